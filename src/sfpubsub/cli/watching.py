"""Monitor a long-running command: serve its metrics over HTTP, and show a status line on stderr."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import click

from sfpubsub.cli.live import LiveLine, echo
from sfpubsub.cli.summary import Summary
from sfpubsub.config import Timings
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.situations import Bounds

_LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """Address for the HTTP server to listen on."""

    host: str
    port: int


class Listen(click.types.StringParamType):
    """Parameter type for an address: a port on loopback, or HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse *value* into an `Address`. If *value* has no host, the host is 127.0.0.1."""
        if isinstance(value, Address):
            return value
        host, _, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or _LOCAL
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not a valid address: use PORT or HOST:PORT", param, ctx)
        return Address(host, int(port))


http_option = click.option(
    "--http",
    type=Listen(),
    metavar="[HOST:]PORT",
    help="Address at which to serve /metrics, /health and a status page.  [default HOST: "
    "127.0.0.1]",
)


@contextmanager
def watching(
    title: str,
    address: Address | None,
    *,
    timings: Timings | None = None,
    also: Callable[[], str] = str,
    ends: bool = False,
) -> Iterator[Monitor]:
    """Monitor a command while the block runs.

    Args:
        title: Name of the command, for display.
        address: Address for the HTTP server to listen on; None to start no server.
        timings: Timings of the client, from which the thresholds of the health check are derived;
            None for the defaults.
        also: Returns additional text for the status line, or an empty string.
        ends: Whether to print the status line once more at the end.

    Raises:
        ConfigurationError: The server cannot listen on *address*.
    """
    with ExitStack() as opened:
        monitor = Monitor(title, bounds=Bounds.of(timings or Timings()))
        summary = Summary(lambda: [each.facts() for each in monitor.observations])
        line = opened.enter_context(
            LiveLine(lambda: "; ".join(filter(None, (summary(), also()))), ends=ends)
        )
        # No status line if events are printed on the same terminal.
        if not (sys.stderr.isatty() and sys.stdout.isatty() and title.startswith("subscribe")):
            monitor.on_update(line.refresh)
        opened.enter_context(monitor)
        if is_traced():
            from sfpubsub.monitoring.otel import export_metrics

            export_metrics(monitor.registry)
        if address is not None:
            from sfpubsub.monitoring.server import serve  # most runs need no server

            url = opened.enter_context(serve(monitor, address.host, address.port))
            echo(f"metrics, health and status page: {url}")
        yield monitor


def is_traced() -> bool:
    """Return whether OpenTelemetry is configured and installed, without importing it."""
    is_set_up = any(name.startswith("OTEL_") for name in os.environ)
    return is_set_up and importlib.util.find_spec("opentelemetry") is not None
