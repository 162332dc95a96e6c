"""A session with the org, and who supplies it.

A secret never leaves a `Session` by accident: not in its repr, not in a pickle.
"""

from __future__ import annotations

import copy
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

# An access token that is not a JWT begins with the organisation id: 15 characters, always 00D at
# first, and an exclamation mark. A convention, which others rely on as well.
_TOKEN_WITH_ORG = re.compile(r"(00D[0-9A-Za-z]{12})!")

# What an organisation id may be: 15 characters, or 18 with their cases repeated at the end.
ORG_ID = r"[0-9A-Za-z]{15}(?:[0-9A-Za-z]{3})?"

_SUFFIX_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"


def eighteen(org_id: str) -> str:
    """Return the form of 18 characters of an id of 15: a letter for the cases of each five.

    Both are accepted by the service, and 18 by whatever compares ids without their cases.
    """
    if len(org_id) != 15:
        return org_id
    suffix = ""
    for part in (org_id[:5], org_id[5:10], org_id[10:]):
        suffix += _SUFFIX_LETTERS[sum(1 << i for i, letter in enumerate(part) if letter.isupper())]
    return org_id + suffix


def org_id_of_token(access_token: str) -> str:
    """Return the organisation id, of 18 characters, that a token begins with; else empty."""
    found = _TOKEN_WITH_ORG.match(access_token)
    return eighteen(found[1]) if found else ""


def org_id_of(tenant_id: str) -> str:
    """Return the organisation id, of 18 characters, in a tenant id; empty where it has none."""
    given = tenant_id.rpartition("/")[2]
    return eighteen(given) if re.fullmatch(ORG_ID, given) else ""


def is_other_org(org_id: str, tenant_id: str) -> bool:
    """Whether *tenant_id*, an id or ``core/MyDomain/ID``, is of another org than *org_id*."""
    given = tenant_id.rpartition("/")[2]
    return re.fullmatch(ORG_ID, given) is not None and given[:15] != org_id[:15]


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
            org_id = org_id_of_token(self.access_token)
            if not org_id:
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

    def doubt(self) -> str:
        """Return what about this session contradicts itself, as a clause; empty if nothing does."""
        org_id = org_id_of_token(self.access_token)
        if not org_id or not is_other_org(org_id, self.tenant_id):
            return ""
        return f"the access token is of the org {org_id}, and the tenant id is {self.tenant_id}"

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
            AuthenticationError: No session can be obtained.
        """
        ...


class StaticSession:
    """A ready session, with nothing behind it to renew it from."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_session(self, expired: Session | None) -> Session:
        """Return the session; raises once it has expired."""
        if expired is not None:
            doubt = self._session.doubt()
            if doubt:
                raise SessionExpiredError(
                    f"the service does not accept the session: {doubt}; set SFPUBSUB_TENANT_ID to "
                    f"the token's org, or take a token of the other"
                )
            raise SessionExpiredError(
                "the service no longer accepts the access token, and there are no credentials to "
                "get a new one: set SFPUBSUB_ACCESS_TOKEN anew, or sign in another way with "
                "SFPUBSUB_AUTH"
            )
        return self._session


class CurrentSession:
    """The session that all calls of a client share; renewed once, however many ask. Thread-safe.

    It is a `SessionProvider` itself, so that several clients can share one sign-in.

    Args:
        session: A ready session, or what supplies one.
    """

    def __init__(self, session: Session | SessionProvider) -> None:
        provider = StaticSession(session) if isinstance(session, Session) else session
        self._provider = provider
        self._lock = threading.Lock()  # held while a session is fetched: the others wait for it
        self._session: Session | None = None
        self._failures = 0
        self._failure: SfPubSubError | None = None  # the last one

    def get(self) -> Session:
        """Return the current session; fetches the first one.

        Raises:
            AuthenticationError: No session can be obtained.
        """
        failures = self._failures
        with self._lock:
            if self._session is None:
                self._session = self._fetch(None, failures)
            return self._session

    def renew(self, expired: Session) -> Session:
        """Return a session other than *expired*; fetches one unless another caller just has.

        Raises:
            AuthenticationError: No session can be obtained.
        """
        failures = self._failures
        with self._lock:
            if self._session is expired or self._session is None:
                self._session = self._fetch(expired, failures)
            return self._session

    def get_session(self, expired: Session | None) -> Session:
        """Return the current session, or one other than *expired*; as `get` and `renew`."""
        return self.get() if expired is None else self.renew(expired)

    def _fetch(self, expired: Session | None, failures: int) -> Session:
        if self._failure is not None and self._failures != failures:
            # Somebody else's fetch has failed while this caller waited. Asking again at once would
            # fail again, and a user with too many refused sign-ins is locked out.
            raise copy.copy(self._failure)
        try:
            return self._provider.get_session(expired)
        except SfPubSubError as error:
            self._failure = copy.copy(error)
            self._failures += 1
            raise
        except Exception as error:  # noqa: BLE001  # a provider is anyone's code
            # Neither its message nor a chain to it: a request's URL or body may hold a secret.
            failure = AuthenticationError(
                f"the session provider failed with {type(error).__name__}; it should raise an "
                f"AuthenticationError that says why",
                retryable=isinstance(error, OSError),
            )
        self._failure = failure
        self._failures += 1
        raise copy.copy(failure)
