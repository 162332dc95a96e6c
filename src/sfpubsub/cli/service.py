"""Shared by the commands that call the service: options, the client, and signals."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sfpubsub.config import DEFAULT_ENDPOINT, Settings
from sfpubsub.config.settings import AUTH_WAYS, DEFAULT_LOGIN_URL, STREAMING_API_VERSION

if TYPE_CHECKING:  # slow imports happen where they are used, so that --help stays fast
    from sfpubsub.auth.session import CurrentSession
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.stores.schema_store import SchemaStore

logger = logging.getLogger("sfpubsub.cli")

# How long a command waits to reach the service, in seconds: several connection attempts, and short
# enough for a person.
CONNECT_TIMEOUT = 10.0

Command = TypeVar("Command", bound=Callable[..., Any])


# Settings that can be given on the command line, with their help. Secrets are excluded, because
# other users of a machine can see command lines.
OPTIONS: dict[str, tuple[str, str]] = {
    "config": ("FILE", "TOML file with settings."),
    "profile": ("NAME", "The [profile.NAME] table of that file."),
    "endpoint": ("HOST:PORT", f"The service.  [default: {DEFAULT_ENDPOINT}]"),
    "insecure": ("1|force", "Plaintext: 1 to loopback only, force to anywhere."),
    "ca_file": ("PEM", "Certificate authorities to trust instead of the system's."),
    "proxy": ("URL", "HTTP proxy; if omitted, https_proxy and no_proxy apply."),
    "ping_interval": ("S", "Seconds between pings; 0 disables them.  [default: 30]"),
    "ping_timeout": ("S", "Seconds until a ping counts as lost.  [default: 10]"),
    "auth": ("WAY", f"How to sign in: {', '.join(AUTH_WAYS)}.  [default: token]"),
    "instance_url": ("URL", "The org: scheme and host."),
    "tenant_id": ("ID", "Organisation id."),
    "login_url": ("URL", f"Where to sign in.  [default: {DEFAULT_LOGIN_URL}]"),
    "client_id": ("KEY", "Consumer key of the connected app."),
    "username": ("USER", "User to sign in as; with sf-cli, the org's username or alias."),
    "private_key_file": ("PEM", "Private key of the JWT flow."),
    "audience": ("URL", "Audience of the JWT flow.  [default: from the login URL]"),
    "streaming_api_version": (
        "N.0",
        f"Version of the Streaming API.  [default: {STREAMING_API_VERSION}]",
    ),
}

CHOICES = {"insecure": ("1", "force"), "auth": tuple(AUTH_WAYS)}


def service_options(command: Command) -> Command:
    """Add the options that select the service and the way to sign in.

    The command gets them as ``**service``, a mapping for `connected_client` and `Settings.load`.
    """
    for name, (metavar, text) in reversed(OPTIONS.items()):
        spelled = f"--{name.replace('_', '-')}"
        choice = click.Choice(CHOICES[name]) if name in CHOICES else None
        option = click.option(spelled, name, metavar=metavar, type=choice, help=text)
        command = option(command)
    return command


@contextmanager
def connected_client(
    schema_store: SchemaStore | None = None,
    sessions: CurrentSession | None = None,
    /,
    **options: str | None,
) -> Iterator[PubSubClient]:
    """Yield a client that has reached the service and is signed in.

    Args:
        schema_store: Store for schemas.
        sessions: Supplies the session, instead of signing in with the options.
        options: Values of `service_options`.

    Raises:
        ConfigurationError: A setting is missing or wrong.
        AuthenticationError: The sign-in was refused.
        StreamUnavailableError: The service or the login host cannot be reached.
    """
    from sfpubsub.auth.oauth import session_provider
    from sfpubsub.auth.session import CurrentSession

    settings = Settings.load(options)
    sessions = sessions or CurrentSession(session_provider(settings))
    with client_of(settings, sessions, schema_store) as client:
        client.connect(CONNECT_TIMEOUT)
        session = sessions.get()  # fail now on a wrong login host, instead of waiting silently
        logger.info("signed in at %s, org %s", session.instance_url, session.tenant_id)
        yield client


def client_of(
    settings: Settings, sessions: CurrentSession, schema_store: SchemaStore | None = None
) -> PubSubClient:
    """Return a client for the configured service.

    Raises:
        ConfigurationError: A setting is wrong.
    """
    from sfpubsub.client.client import PubSubClient

    return PubSubClient(
        sessions,
        endpoint=settings.endpoint,
        insecure=settings.insecure,
        ca_file=settings.ca_file,
        proxy=settings.proxy,
        timings=settings.timings,
        schema_store=schema_store,
    )


class StopRequest:
    """Turns SIGTERM and the first Ctrl-C into a flag. A second Ctrl-C raises KeyboardInterrupt.

    It uses a flag instead of an exception, so that no event is interrupted between being written
    and being acked.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False
        self._tell: Callable[[], None] | None = None

    @contextmanager
    def installed(self) -> Iterator[StopRequest]:
        """Handle both signals within the block. Only for the main thread."""
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
        """Call *callback* in the signal handler when a stop is requested, or at once if it already
        was.
        """
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
