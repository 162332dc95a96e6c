"""What the commands that call the service share: its options, the client, and signals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from sfpubsub.client.client import PubSubClient
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
def connected_client(**options: str | None) -> Iterator[PubSubClient]:
    """Yield a client whose service can be reached.

    Raises:
        ConfigurationError: A setting is missing or wrong.
        StreamUnavailableError: The service cannot be reached.
    """
    with PubSubClient.from_env(options) as client:
        client.connect(CONNECT_TIMEOUT)
        yield client


class StopRequest:
    """Turns the first SIGINT or SIGTERM into a flag, and lets the second one end the process.

    A flag, not an exception, so that no event is caught between being written and being acked.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def installed(self) -> Iterator[StopRequest]:
        """Handle both signals in the block. For the main thread."""
        previous = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def requested(self) -> bool:
        """Whether to stop."""
        return self.signal is not None

    @property
    def interrupted(self) -> bool:
        """Whether it was Ctrl-C."""
        return self.signal == signal.SIGINT
