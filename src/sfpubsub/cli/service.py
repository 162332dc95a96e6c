"""Options, client and signal handling for the commands that call the service."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sfpubsub.config import DEFAULT_ENDPOINT, Settings
from sfpubsub.config.settings import AUTH_WAYS, DEFAULT_LOGIN_URL, STREAMING_API_VERSION

if TYPE_CHECKING:  # these are imported where they are used, so that --help is fast
    from sfpubsub.auth.session import CurrentSession
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.stores.schema_store import SchemaStore

logger = logging.getLogger("sfpubsub.cli")

# Timeout for reaching the service, in seconds: enough for several connection attempts, but bearable
# for a waiting user.
CONNECT_TIMEOUT = 10.0

Command = TypeVar("Command", bound=Callable[..., Any])


# Settings that can be set on the command line, with placeholder and help text. Secrets are
# excluded, because other users of a machine can see command lines.
OPTIONS: dict[str, tuple[str, str]] = {
    "config": (
        "FILE",
        "TOML file with settings; for the other connection options: `sfpubsub help connection`.",
    ),
    "profile": ("NAME", "Use the table [profile.NAME] of the settings file."),
    "endpoint": ("HOST:PORT", f"Address of the service.  [default: {DEFAULT_ENDPOINT}]"),
    "insecure": ("1|force", "Use plaintext: 1 to loopback only, force to any host."),
    "ca_file": ("PEM", "Certificate authorities to trust instead of the system's."),
    "proxy": (
        "URL",
        "HTTP proxy, without a password; if omitted, https_proxy and no_proxy apply.",
    ),
    "ping_interval": ("S", "Seconds between pings; 0 disables them.  [default: 30]"),
    "ping_timeout": ("S", "Seconds until a ping counts as lost.  [default: 10]"),
    "auth": ("WAY", f"How to sign in: {', '.join(AUTH_WAYS)}.  [default: token]"),
    "instance_url": ("URL", "URL of the org: scheme and host."),
    "tenant_id": ("ID", "Organisation id."),
    "login_url": ("URL", f"URL to sign in at.  [default: {DEFAULT_LOGIN_URL}]"),
    "client_id": ("KEY", "Consumer key of the connected app."),
    "username": ("USER", "User to sign in as; with sf-cli, the org's username or alias."),
    "private_key_file": ("PEM", "Private key of the JWT flow."),
    "token_file": (
        "FILE|none",
        "Where the newest refresh token is kept.  [default: in the user's state directory]",
    ),
    "audience": ("URL", "Audience of the JWT flow.  [default: derived from the login URL]"),
    "streaming_api_version": (
        "N.0",
        f"Version of the Streaming API.  [default: {STREAMING_API_VERSION}]",
    ),
}

CHOICES = {"insecure": ("1", "force"), "auth": tuple(AUTH_WAYS)}


def _no_password(
    _context: click.Context, _option: click.Parameter, proxy: str | None
) -> str | None:
    if proxy and "@" in proxy:
        raise click.UsageError(
            "--proxy must not contain a password, which other users of this machine could see: set"
            " SFPUBSUB_PROXY, or proxy in the settings file"
        )
    return proxy


class _Unlisted(click.Option):
    """An option that --help leaves out, because `sfpubsub help connection` explains it."""

    def get_help_record(self, ctx: click.Context) -> None:
        """Return None, so that --help has no line for the option."""


def connection_options() -> list[tuple[str, str]]:
    """Return the spelling and the help text of each option that `service_options` adds."""
    return [
        (f"--{name.replace('_', '-')} {metavar}", text) for name, (metavar, text) in OPTIONS.items()
    ]


def service_options(command: Command) -> Command:
    """Add the options that select the service and the way to sign in. --help lists only --config.

    The command receives them as ``**service``, and passes them to `connected_client` or
    `Settings.load`.
    """
    for name, (metavar, text) in reversed(OPTIONS.items()):
        spelled = f"--{name.replace('_', '-')}"
        choice = click.Choice(CHOICES[name]) if name in CHOICES else None
        check = _no_password if name == "proxy" else None
        kind = click.Option if name == "config" else _Unlisted
        option = click.option(
            spelled, name, cls=kind, metavar=metavar, type=choice, help=text, callback=check
        )
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
        schema_store: Store that is searched before a schema is requested from the service, and
            that keeps the schemas received; None for no store.
        sessions: Supplies the session; None to sign in with *options*.
        options: Values of the options that `service_options` adds, by parameter name.

    Raises:
        ConfigurationError: A setting is missing or not valid.
        AuthenticationError: The sign-in was rejected.
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
        ConfigurationError: A setting is not valid.
    """
    from sfpubsub.auth.http import HttpClient
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.tooling import Tooling

    return PubSubClient.from_settings(
        settings,
        sessions,
        schema_store=schema_store,
        record_of=Tooling(sessions, http=HttpClient.from_settings(settings)).stamp,
    )


class StopRequest:
    """Sets a flag on SIGTERM or the first Ctrl-C. A second Ctrl-C raises KeyboardInterrupt.

    A flag is used instead of an exception, so that a signal cannot interrupt the command between
    writing an event and acking it.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False
        self._tell: Callable[[], None] | None = None

    @contextmanager
    def installed(self) -> Iterator[StopRequest]:
        """Treat SIGINT and SIGTERM as stop requests within the ``with`` block.

        Call this in the main thread only.
        """
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
        """Set the function that the signal handler calls when a stop is requested.

        If a stop was already requested, *callback* is called immediately.
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
