"""What the commands that call the service share: its options, the client, and signals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from sfpubsub.client.client import PubSubClient
from sfpubsub.client.schema_store import SchemaStore
from sfpubsub.config import DEFAULT_ENDPOINT

# How long a command waits for the service to be reached, in seconds: several attempts of a
# connection, and short enough for a person.
CONNECT_TIMEOUT = 10.0

Command = TypeVar("Command", bound=Callable[..., Any])


def service_options(command: Command) -> Command:
    """Add the options that say which service to call.

    The command gets them as ``service``, a mapping for `connected_client`.
    """
    options = [
        click.option(
            "--endpoint", metavar="HOST:PORT", help=f"The service.  [default: {DEFAULT_ENDPOINT}]"
        ),
        click.option(
            "--insecure",
            type=click.Choice(["1", "force"]),
            help="Plaintext: 1 to loopback only, force to anywhere.",
        ),
        click.option("--ca-file", metavar="PEM", help="Certificate authorities to trust."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def connected_client(
    schema_store: SchemaStore | None = None, /, **options: str | None
) -> Iterator[PubSubClient]:
    """Yield a client whose service can be reached.

    Args:
        schema_store: Where schemas are kept.
        options: What `service_options` gave.

    Raises:
        ConfigurationError: A setting is missing or wrong.
        StreamUnavailableError: The service cannot be reached.
    """
    with PubSubClient.from_env(options, schema_store=schema_store) as client:
        client.connect(CONNECT_TIMEOUT)
        yield client


class StopRequest:
    """Turns SIGTERM and the first Ctrl-C into a flag; a second Ctrl-C raises KeyboardInterrupt.

    A flag, not an exception, so that no event is caught between being written and being acked.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False
        self._tell: Callable[[], None] | None = None

    @contextmanager
    def installed(self) -> Iterator[StopRequest]:
        """Handle both signals in the block, the drain at its end included. For the main thread."""
        previous = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def tell(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the request comes, in a signal handler; at once if it has come."""
        self._tell = callback
        if self.requested:
            callback()

    def _handle(self, number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
        self.requested = True
        if self._tell is not None:
            self._tell()
