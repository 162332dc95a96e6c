"""Sessions with an org, and the objects that provide them.

A `Session` does not reveal its token by accident: its repr hides it, and pickling fails.
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
    OtherOrgError,
    SessionExpiredError,
    SfPubSubError,
)

# What an HTTP header may contain; anything else would make every call fail and be retried forever.
_HEADER_VALUE = re.compile(r"[!-~]*")

# An access token that is not a JWT begins with the organisation id (15 characters, the first three
# always 00D) and an exclamation mark. This is a convention that other tools rely on as well.
_TOKEN_WITH_ORG = re.compile(r"(00D[0-9A-Za-z]{12})!")

# An organisation id: 15 characters, or 18 with a checksum of the letters' case.
ORG_ID = r"[0-9A-Za-z]{15}(?:[0-9A-Za-z]{3})?"

_SUFFIX_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"


def eighteen(org_id: str) -> str:
    """Return the 18-character form of a 15-character id; return any other id unchanged.

    The three additional characters encode which letters are upper-case, so the longer form can be
    compared case-insensitively. The service accepts both forms.
    """
    if len(org_id) != 15:
        return org_id
    suffix = ""
    for part in (org_id[:5], org_id[5:10], org_id[10:]):
        suffix += _SUFFIX_LETTERS[sum(1 << i for i, letter in enumerate(part) if letter.isupper())]
    return org_id + suffix


def org_id_of_token(access_token: str) -> str:
    """Return the organisation id at the start of a token, in its 18-character form.

    The result is an empty string if the token does not begin with an organisation id.
    """
    found = _TOKEN_WITH_ORG.match(access_token)
    return eighteen(found[1]) if found else ""


def org_id_of(tenant_id: str) -> str:
    """Return the organisation id that a tenant id contains, in its 18-character form.

    The result is an empty string if the tenant id contains no valid organisation id.
    """
    given = tenant_id.rpartition("/")[2]
    return eighteen(given) if re.fullmatch(ORG_ID, given) else ""


def is_other_org(org_id: str, tenant_id: str) -> bool:
    """Return whether *tenant_id* belongs to an org other than *org_id*.

    Args:
        org_id: An organisation id.
        tenant_id: An organisation id or ``core/MyDomain/ID``. If it contains no valid id, the
            result is False.
    """
    given = tenant_id.rpartition("/")[2]
    return re.fullmatch(ORG_ID, given) is not None and given[:15] != org_id[:15]


@dataclass(frozen=True, repr=False)
class Session:
    """Credentials for API calls.

    Raises:
        ConfigurationError: A value is missing, or contains characters not allowed in a header.
    """

    access_token: str
    """OAuth access token or session id."""
    instance_url: str
    """Scheme and host of the org, without a path."""
    tenant_id: str = ""
    """Organisation id; taken from the access token if empty."""
    user_id: str = ""
    """Id of the signed-in user; empty if the sign-in does not return it."""

    def __post_init__(self) -> None:
        for name in ("access_token", "instance_url", "tenant_id"):
            value = getattr(self, name).strip()  # a token file usually ends with a line break
            if not _HEADER_VALUE.fullmatch(value):
                raise ConfigurationError(
                    f"the {name.replace('_', ' ')} contains characters that are not allowed in a "
                    f"header: correct SFPUBSUB_{name.upper()}"
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
        """Headers that every gRPC call needs (Salesforce documentation, RPC method headers)."""
        return (
            ("accesstoken", self.access_token),
            ("instanceurl", self.instance_url),
            ("tenantid", self.tenant_id),
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> Session:
        """Create a session from the token in the settings.

        Raises:
            ConfigurationError: A value is missing or not valid.
        """
        return cls(settings.access_token, settings.instance_url, settings.tenant_id)

    def doubt(self) -> str:
        """Return a message if the token does not belong to the org of the tenant id.

        The result is an empty string if no mismatch is found.
        """
        org_id = org_id_of_token(self.access_token)
        if not org_id or not is_other_org(org_id, self.tenant_id):
            return ""
        return (
            f"the access token belongs to the org {org_id}, but the tenant id is {self.tenant_id}"
        )

    def __repr__(self) -> str:
        return f"Session(access_token=***, instance_url={self.instance_url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a session contains a secret and cannot be pickled: create it where it is needed"
        )


class SessionProvider(Protocol):
    """Supplies sessions. Any object with a `get_session` method can be used."""

    def get_session(self, expired: Session | None) -> Session:
        """Return a session. May block.

        Args:
            expired: The session that the service refused; None when no session was refused.

        Raises:
            AuthenticationError: No session can be obtained.
        """
        ...


class StaticSession:
    """A `SessionProvider` with a fixed session, which cannot be renewed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_session(self, expired: Session | None) -> Session:
        """Return the fixed session.

        Raises:
            SessionExpiredError: *expired* is not None, so the service has refused the session.
        """
        if expired is not None:
            doubt = self._session.doubt()
            if doubt:
                raise SessionExpiredError(
                    f"the service does not accept the session: {doubt}; set SFPUBSUB_TENANT_ID to "
                    f"the id of the org that issued the token, or use a token from the org that it "
                    f"names now"
                )
            raise SessionExpiredError(
                "the service no longer accepts the access token, and there are no credentials to "
                "get a new one: set SFPUBSUB_ACCESS_TOKEN to a new token, or sign in another way "
                "with SFPUBSUB_AUTH"
            )
        return self._session


class CurrentSession:
    """The session that all calls of a client share. Thread-safe.

    An expired session is renewed only once, even if several callers request a renewal. A renewed
    session must belong to the same org: a position or a table is that of one org. This class is a
    `SessionProvider` itself, so that several clients can share one sign-in.

    Args:
        session: A session, or a provider of sessions.
    """

    def __init__(self, session: Session | SessionProvider) -> None:
        provider = StaticSession(session) if isinstance(session, Session) else session
        self._provider = provider
        # Held while a session is fetched, so that other callers wait for it.
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._failures = 0
        self._failure: SfPubSubError | None = None

    def get(self) -> Session:
        """Return the current session, fetching it on first use.

        Raises:
            SfPubSubError: No session can be obtained; usually an AuthenticationError.
        """
        failures = self._failures
        with self._lock:
            if self._session is None:
                self._session = self._fetch(None, failures)
            return self._session

    def renew(self, expired: Session) -> Session:
        """Return a session other than *expired*, fetching one unless another caller has done so.

        Raises:
            SfPubSubError: No session can be obtained; usually an AuthenticationError.
        """
        failures = self._failures
        with self._lock:
            if self._session is expired or self._session is None:
                self._session = self._fetch(expired, failures)
            return self._session

    def get_session(self, expired: Session | None) -> Session:
        """Return `get()` if *expired* is None, else `renew(expired)`."""
        return self.get() if expired is None else self.renew(expired)

    def _fetch(self, expired: Session | None, failures: int) -> Session:
        if self._failure is not None and self._failures != failures:
            # Another caller's fetch failed while this one waited. An immediate retry would fail
            # too, and too many refused sign-ins lock the user out.
            raise copy.copy(self._failure)
        try:
            return _of_same_org(self._provider.get_session(expired), expired)
        except SfPubSubError as error:
            self._failure = copy.copy(error)
            self._failures += 1
            raise
        except Exception as error:  # noqa: BLE001  # a provider may raise anything
            # Neither quoted nor chained: the error may contain a URL or body with a secret.
            failure = AuthenticationError(
                f"the session provider failed with {type(error).__name__}; it should raise an "
                f"AuthenticationError that names the reason",
                retryable=isinstance(error, OSError),
            )
        self._failure = failure
        self._failures += 1
        raise copy.copy(failure)


def _of_same_org(session: Session, expired: Session | None) -> Session:
    before = org_id_of(expired.tenant_id) if expired is not None else ""
    if before and is_other_org(before, session.tenant_id):
        raise OtherOrgError(
            f"the new session belongs to the org {org_id_of(session.tenant_id)}, but the one that "
            f"has expired to {before}: sign in to that org, for instance by naming it in the "
            f"settings instead of using the default org of another tool, and start again"
        )
    return session
