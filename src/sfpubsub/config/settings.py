"""The settings: which service to call, and how to sign in.

Each setting can be an option (``--login-url``), an environment variable (``SFPUBSUB_LOGIN_URL``) or
a key in a TOML file (``login_url``), in this order of precedence. Secrets are never options,
because other users of a machine can see command lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sfpubsub.config import network
from sfpubsub.config.numbers import Timings
from sfpubsub.config.sources import (
    CONFIG,
    ENVIRONMENT_PREFIX,
    NO_FILE,
    PROFILE,
    Given,
    expanded,
    from_environment,
    from_file,
    near,
    profiles_in,
)
from sfpubsub.errors import ConfigurationError

# The global endpoint; port 443 works as well (Salesforce documentation, Pub/Sub endpoints).
DEFAULT_ENDPOINT = "api.pubsub.salesforce.com:7443"

DEFAULT_LOGIN_URL = "https://login.salesforce.com"

# The newest version of the Streaming API known to this package.
STREAMING_API_VERSION = "67.0"

# The ways to sign in, and the settings that each requires.
AUTH_WAYS: dict[str, tuple[str, ...]] = {
    "token": ("access_token", "instance_url"),
    # The only flow that login.salesforce.com does not offer: it needs the org's own host.
    "client-credentials": ("login_url", "client_id", "client_secret"),
    "jwt": ("client_id", "username", "private_key_file"),
    "refresh": ("client_id", "refresh_token"),
    "password": ("client_id", "client_secret", "username", "password"),
    "sf-cli": (),
}

SECRETS = ("access_token", "client_secret", "password", "refresh_token")
FILES = ("ca_file", "private_key_file", "token_file")
NUMBERS = ("ping_interval", "ping_timeout")

# Fields that describe the settings and are not settings themselves.
_ABOUT = ("sources", "profiles")


class Setting(NamedTuple):
    """The name, value and source of one setting, in a form that is safe to show."""

    name: str
    value: str
    """The value as text; ``***`` for a secret."""
    source: str
    """Source of the value: ``option --x``, ``environment SFPUBSUB_X``, ``FILE: key`` or
    ``default``.
    """


@dataclass(frozen=True, repr=False)
class Settings:
    """Which service to call, and how to sign in.

    Raises:
        ConfigurationError: A value is not valid.
    """

    endpoint: str = DEFAULT_ENDPOINT
    """``host:port`` of the Pub/Sub API."""
    insecure: str = ""
    """``1`` uses plaintext for gRPC to loopback, ``force`` to any host; otherwise gRPC uses TLS.
    Plaintext HTTP is always allowed on loopback; ``force`` allows it for any host.
    """
    ca_file: str = ""
    """PEM file of certificate authorities to trust instead of the system's."""
    proxy: str = ""
    """``http://[user:password@]host:port`` of an HTTP proxy for gRPC and HTTP; if empty, the
    variables ``https_proxy`` and ``no_proxy`` apply.
    """
    ping_interval: float = Timings.ping_interval
    """Seconds between HTTP/2 pings; 0 disables them."""
    ping_timeout: float = Timings.ping_timeout
    """Seconds after which an unanswered ping ends the connection."""
    auth: str = "token"
    """How a session is obtained, one of `AUTH_WAYS`."""
    access_token: str = ""
    """The access token; used only if `auth` is ``token``."""
    instance_url: str = ""
    """Scheme and host of the org. Required if `auth` is ``token``. Otherwise optional; if set, the
    URL that the sign-in returns must match it.
    """
    tenant_id: str = ""
    """Organisation id; optional. If set, the org that the session belongs to must have this id."""
    login_url: str = DEFAULT_LOGIN_URL
    """Where to sign in: My Domain, login.salesforce.com or test.salesforce.com."""
    client_id: str = ""
    """Consumer key of the connected app."""
    client_secret: str = ""
    username: str = ""
    """User to sign in as. For ``sf-cli``: username or alias of the org; empty means the default
    org.
    """
    password: str = ""
    """The password, followed by the security token if the org requires one."""
    private_key_file: str = ""
    """PEM file of the private key whose certificate was uploaded to the connected app."""
    refresh_token: str = ""
    """The refresh token to begin with; the newer ones are in `token_file`."""
    token_file: str = ""
    """File for the newest refresh token; empty means one in the user's state directory, and
    ``none`` that the token is stored nowhere.
    """
    audience: str = ""
    """The ``aud`` claim of the JWT; derived from ``login_url`` if empty."""
    streaming_api_version: str = STREAMING_API_VERSION
    """Version of the Streaming API: 37.0 or later."""

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Source of each setting, by name; settings with their default value are omitted."""
    profiles: tuple[str, ...] = field(default=(), compare=False)
    """Profiles of the settings file; empty if one was selected."""

    def __post_init__(self) -> None:
        for name in NUMBERS:
            object.__setattr__(self, name, self._seconds(name))
        if self.insecure not in ("", "0", "1", "force"):
            raise ConfigurationError(
                f"{self._naming('insecure')} must be 1 or force, not {self.insecure!r}"
            )
        if self.auth not in AUTH_WAYS:
            raise ConfigurationError(
                f"{self._naming('auth')}={self.auth} is not valid: use one of "
                f"{', '.join(AUTH_WAYS)}"
            )
        for name, path in (("login_url", True), ("instance_url", False), ("audience", True)):
            url = getattr(self, name).strip()
            if url:
                url = network.check_url(url, self._naming(name), insecure=self.insecure, path=path)
            object.__setattr__(self, name, url)
        for name in FILES:
            path = getattr(self, name)
            if path and path != NO_FILE:  # a shell expands ~ only at the start of a word
                object.__setattr__(self, name, str(expanded(path, self._naming(name))))
        if self.proxy:
            network.check_proxy(self.proxy, self._naming("proxy"))

    @classmethod
    def load(
        cls,
        options: Mapping[str, str | None] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Load each setting from *options*, else the environment, else a file, else its default.

        Args:
            options: Values by field name; ``config`` and ``profile`` select the file and a table in
                it. None or an empty string means that the setting is not specified.
            environ: ``SFPUBSUB_…`` variables; None uses the process environment.

        Raises:
            ConfigurationError: A name is unknown, a value is not valid, or the file cannot be read.
        """
        try:
            return cls._load(options or {}, os.environ if environ is None else environ)
        except ConfigurationError as error:
            # Drop the traceback: local variables in its frames contain secrets, which error
            # reporters show.
            failure = error.with_traceback(None)
        del options, environ
        raise failure

    @classmethod
    def _load(cls, options: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
        names = [name for name in cls.__dataclass_fields__ if name not in _ABOUT]
        given = {}
        for name, value in options.items():
            if name not in (*names, CONFIG, PROFILE):
                raise ConfigurationError(f"{name} is not a setting: {near(name, names)}")
            if value:
                given[name] = Given(value, f"option --{name.replace('_', '-')}")
        found = {**from_environment(environ, names), **given}
        config, profile = found.pop(CONFIG, None), found.pop(PROFILE, None)
        unchosen: tuple[str, ...] = ()
        if config is not None:
            file = expanded(config.value, config.source)
            kept = from_file(
                file,
                profile.value if profile else None,
                names,
                secrets=SECRETS,
                files=FILES,
            )
            found = {**kept, **found}
            unchosen = () if profile else profiles_in(file)
        elif profile is not None:
            raise ConfigurationError(
                f"profile {profile.value} ({profile.source}) requires a settings file: name the "
                "file with --config or SFPUBSUB_CONFIG"
            )
        values: dict[str, Any] = {name: item.value for name, item in found.items()}
        sources = {name: item.source for name, item in found.items()}
        return cls(**values, sources=sources, profiles=unchosen)

    @property
    def timings(self) -> Timings:
        """Timings of the client: the defaults, except for the configured ping settings."""
        return Timings(ping_interval=self.ping_interval, ping_timeout=self.ping_timeout)

    def describe(self) -> list[Setting]:
        """Return every setting and its source, with secrets masked."""
        shown = []
        for name in self.__dataclass_fields__:
            if name in _ABOUT:
                continue
            value = getattr(self, name)
            if name in SECRETS:
                value = "***" if value else ""
            elif name == "proxy":
                value = network.without_password(value)
            elif name in NUMBERS:
                value = f"{value:g}"
            shown.append(Setting(name, value, self.sources.get(name, "default")))
        return shown

    def missing(self) -> list[str]:
        """Return the names of the required settings that are not set.

        A required ``login_url`` counts as not set if it is login.salesforce.com or
        test.salesforce.com.
        """
        needed = AUTH_WAYS[self.auth]
        return [
            name
            for name in needed
            if not getattr(self, name) or (name == "login_url" and self._is_general_login())
        ]

    def _is_general_login(self) -> bool:
        host = urlsplit(self.login_url).hostname
        return host in ("login.salesforce.com", "test.salesforce.com")

    def _naming(self, name: str) -> str:
        source = self.sources.get(name, "")
        variable = ENVIRONMENT_PREFIX + name.upper()
        return variable if variable in source or not source else f"{variable} ({source})"

    def _seconds(self, name: str) -> float:
        text = getattr(self, name)
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 86_400:
            raise ConfigurationError(
                f"{self._naming(name)} must be a number of seconds, at least 0 and below 86,400, "
                f"not {text!r}"
            )
        return seconds

    def __repr__(self) -> str:
        return f"Settings(endpoint={self.endpoint!r}, auth={self.auth!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "settings contain secrets and cannot be pickled: load them where they are needed"
        )
