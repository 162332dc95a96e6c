"""A session with the org, and who supplies it.

A secret never leaves a `Session` by accident: not in its repr, not in a pickle.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from sfpubsub.config import Settings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    SessionExpiredError,
    SfPubSubError,
)

# What an HTTP header may carry; anything else would fail each call, and be tried again for ever.
_HEADER_VALUE = re.compile(r"[!-~]*")

# Characters of an organisation id at the start of an access token, before the exclamation mark.
_ORG_ID_LENGTH = 15


@dataclass(frozen=True, repr=False)
class Session:
    """What authenticates a call.

    Raises:
        ConfigurationError: A part is missing.
    """

    access_token: str
    """OAuth access token or session id."""
    instance_url: str
    """Scheme and host of the org, without a path."""
    tenant_id: str = ""
    """Organisation id; taken from the access token when it is empty."""

    def __post_init__(self) -> None:
        for name in ("access_token", "instance_url", "tenant_id"):
            value = getattr(self, name).strip()  # a token file ends with a line break
            if not _HEADER_VALUE.fullmatch(value):
                raise ConfigurationError(
                    f"the {name.replace('_', ' ')} has characters that a header cannot carry: set "
                    f"SFPUBSUB_{name.upper()} anew"
                )
            object.__setattr__(self, name, value)
        if not self.access_token:
            raise ConfigurationError("no access token: set SFPUBSUB_ACCESS_TOKEN")
        if not self.instance_url:
            raise ConfigurationError("no instance URL: set SFPUBSUB_INSTANCE_URL")
        object.__setattr__(self, "instance_url", self.instance_url.rstrip("/"))
        if not self.tenant_id:
            org_id, mark, _ = self.access_token.partition("!")
            if not mark or len(org_id) != _ORG_ID_LENGTH:
                raise ConfigurationError(
                    "no tenant id, and the access token does not begin with one: set "
                    "SFPUBSUB_TENANT_ID to the organisation id"
                )
            object.__setattr__(self, "tenant_id", org_id)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of every call (Salesforce documentation, RPC method headers)."""
        return (
            ("accesstoken", self.access_token),
            ("instanceurl", self.instance_url),
            ("tenantid", self.tenant_id),
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> Session:
        """Return the ready session that the settings name.

        Raises:
            ConfigurationError: A part is missing.
        """
        return cls(settings.access_token, settings.instance_url, settings.tenant_id)

    def __repr__(self) -> str:
        return f"Session(access_token=***, instance_url={self.instance_url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a session holds a secret and is not pickled; make one where it is needed")


class SessionProvider(Protocol):
    """Supplies sessions. One method, so that anything can be one."""

    def get_session(self, expired: Session | None) -> Session:
        """Return a session; may wait.

        Args:
            expired: The session that was refused, or None for the first one.

        Raises:
            AuthenticationError: None can be had.
        """
        ...


class StaticSession:
    """A ready session, with nothing behind it to renew it from."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_session(self, expired: Session | None) -> Session:
        """Return the session; raises once it has expired."""
        if expired is not None:
            raise SessionExpiredError(
                "the service no longer accepts the access token, and there are no credentials to "
                "get a new one: set SFPUBSUB_ACCESS_TOKEN anew"
            )
        return self._session


class CurrentSession:
    """The session that all calls of a client share; renewed once, however many ask. Thread-safe."""

    def __init__(self, provider: SessionProvider) -> None:
        self._provider = provider
        self._lock = threading.Lock()  # held while a session is fetched: the others wait for it
        self._session: Session | None = None

    def get(self) -> Session:
        """Return the current session; fetches the first one.

        Raises:
            AuthenticationError: None can be had.
        """
        with self._lock:
            if self._session is None:
                self._session = self._fetch(None)
            return self._session

    def renew(self, expired: Session) -> Session:
        """Return a session other than *expired*; fetches one unless another caller just has.

        Raises:
            AuthenticationError: None can be had.
        """
        with self._lock:
            if self._session is expired or self._session is None:
                self._session = self._fetch(expired)
            return self._session

    def _fetch(self, expired: Session | None) -> Session:
        try:
            return self._provider.get_session(expired)
        except SfPubSubError:
            raise
        except Exception as error:  # noqa: BLE001  # a provider is anyone's code
            # Neither its message nor a chain to it: a request's URL or body may hold a secret.
            raise AuthenticationError(
                f"the session provider failed with {type(error).__name__}; it should raise an "
                f"AuthenticationError that says why",
                retryable=isinstance(error, OSError),
            ) from None
