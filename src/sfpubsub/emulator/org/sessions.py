"""Authentication of calls: the org's id, its access tokens, and the three headers of every RPC.

Valid tokens and the org's id are in the store, so that clients stay signed in when the emulator
restarts. `signin` checks credentials before a token is issued.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Store

DEFAULT_ORG_ID = "00DSB0000000001"
"""15-character id of the emulated org; SB stands for sandbox."""

ORG_ID: re.Pattern[str] = re.compile(r"00D\w{12}", re.ASCII)
"""The form of a 15-character id of an org."""

_SUFFIX_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"
_TENANT_PATH = re.compile(r"core/[^/]+/(\w+)", re.IGNORECASE)
_INSTANCE_URL = re.compile(r"https?://[^/\s]+/?")
_HEADERS = ("accesstoken", "instanceurl", "tenantid")

_TOKEN_BYTES = 72
"""Number of random bytes in a token. They are encoded in 96 characters; with the org's id, a token
has the usual 112 characters.
"""

_MOST_TOKENS = 1000
"""Maximum number of stored tokens from sign-ins, valid or not. The oldest are deleted first, as an
org ends its oldest sessions.
"""


def eighteen(record_id: str) -> str:
    """Return the 18-character form of a 15-character record id. Each of the three added characters
    encodes the case of five characters.
    """
    suffix = ""
    for start in (0, 5, 10):
        chunk = record_id[start : start + 5]
        bits = sum(1 << index for index, letter in enumerate(chunk) if letter.isupper())
        suffix += _SUFFIX_ALPHABET[bits]
    return record_id + suffix


@dataclass(frozen=True)
class _End:
    """The reason why a token is no longer valid.

    Attributes:
        expired: Whether the token expired, which also ends open streams; otherwise it was revoked.
        cause: The fault that invalidated the token; None if no fault did.
    """

    expired: bool
    cause: Fault | None


@dataclass
class _Token:
    """The state of an access token. The token is valid until `end` is set or its lifetime ends.

    Attributes:
        username: The user; blank for the emulator's own tokens.
        family: The family of the refresh token for which the token was issued; blank if the sign-in
            used no refresh token.
        own: Whether this is one of the emulator's own tokens.
        made_at: Time of issue, in seconds since the epoch.
        end: Why the token was expired early or revoked; None if it was neither.
    """

    username: str
    family: str
    own: bool
    made_at: float
    end: _End | None = None


class Sessions:
    """The org's id and its access tokens. Thread-safe.

    A token is valid until its lifetime ends, or until it is expired early, revoked, or deleted
    because the org has too many tokens. Valid tokens survive a restart with the same store. If the
    newest of the emulator's own tokens is not valid after a restart, a new one is issued.

    Args:
        store: The store for the tokens and the org's id.
        clock: The org's clock.
        settings: The lifetime of tokens.

    Attributes:
        org_id: The org's 18-character id.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._life = settings.token_lifetime_s
        self._lock = threading.Lock()  # guards the fields below
        self._on_end: list[Callable[[], None]] = []
        org_id = store.meta("org_id", DEFAULT_ORG_ID)
        store.set_meta("org_id", org_id)
        self.org_id = eighteen(org_id)
        self._tokens = {
            token: _Token(username, family, bool(own), made_at)
            for token, username, family, own, made_at in store.rows(
                "SELECT token, username, family, own, made_at FROM access_tokens ORDER BY rowid"
            )
        }
        own = [token for token, known in self._tokens.items() if known.own]
        self._newest = own[-1] if own else ""
        if not self.knows(self._newest):
            self.new_token()

    @property
    def access_token(self) -> str:
        """The newest of the emulator's own tokens. It may no longer be valid."""
        return self._newest

    def new_token(self) -> str:
        """Issue and return another token for the emulator itself. Earlier tokens are unaffected."""
        self._newest = self._issue("", "", own=True)
        return self._newest

    def issue(self, username: str, family: str = "") -> str:
        """Issue and return an access token for a user who signed in.

        Args:
            username: The user.
            family: The family of the refresh token for which the access token is issued; revoking
                the family also revokes the access token. Blank if the sign-in used no refresh
                token.
        """
        return self._issue(username, family, own=False)

    def user_of(self, token: str) -> str | None:
        """Return the username of a token: blank for the emulator's own tokens, None if the token is
        not valid.
        """
        with self._lock:
            known = self._tokens.get(token)
            return known.username if known and self._is_good(known) else None

    def end_all(self, *, expired: bool, cause: Fault | None = None) -> None:
        """Invalidate all tokens.

        Args:
            expired: Whether the tokens expire, which ends open streams that use them. Otherwise
                they are revoked, and open streams continue.
            cause: The fault to count when a client uses one of the tokens.
        """
        self._end(lambda _token, _known: True, _End(expired, cause))

    def revoke(self, token: str) -> bool:
        """Revoke one token at the request of a client. Open streams that use the token continue.

        Returns:
            Whether the token was valid.
        """
        return self._end(lambda item, _known: item == token, _End(False, None))

    def revoke_family(self, family: str) -> None:
        """Revoke all access tokens that were issued for the refresh tokens of a family."""
        self._end(lambda _token, known: known.family == family, _End(False, None))

    def expire(self, token: str) -> bool:
        """Expire one token, and end the streams that use it.

        Returns:
            Whether the token was valid.
        """
        return self._end(lambda item, _known: item == token, _End(True, None))

    def on_end(self, listener: Callable[[], None]) -> None:
        """Register a function to call whenever tokens are expired or revoked, so that waiting
        streams check their tokens. It is not called when the lifetime of a token ends.
        """
        with self._lock:
            self._on_end.append(listener)

    def ended_by(self, token: str) -> Fault | None:
        """Return the fault that invalidated a token, or None if no fault invalidated it."""
        with self._lock:
            known = self._tokens.get(token)
            return known.end.cause if known and known.end else None

    def has_expired(self, token: str) -> bool:
        """Return whether a token has expired. If so, the streams that use it must end.

        Return False for a revoked token, whose streams continue, and for an unknown token.
        """
        with self._lock:
            known = self._tokens.get(token)
            if known is None:
                return False
            return known.end.expired if known.end else not self._is_good(known)

    def expires_at(self, token: str) -> float | None:
        """Return the time at which a token expires, in seconds since the epoch; None if it never
        expires, was expired early or revoked, or is unknown.
        """
        with self._lock:
            known = self._tokens.get(token)
            if known is None or known.end is not None or not self._life:
                return None
            return known.made_at + self._life

    @property
    def tenant(self) -> str:
        """The org's name as it appears in error messages and TopicInfo."""
        return f"CORE/prod/{self.org_id}"

    def check(self, headers: Mapping[str, str]) -> None:
        """Check the headers accesstoken, instanceurl and tenantid of an RPC.

        Raises:
            Refused: A header is missing, blank or malformed; or the token or the tenant is not
                valid for this org.
        """
        for name in _HEADERS:
            if not headers.get(name, "").strip():
                raise Refused("service.auth.headers.invalid", header=name)
        if not _INSTANCE_URL.fullmatch(headers["instanceurl"]):
            raise Refused("service.auth.headers.invalid", header="instanceurl")
        path = _TENANT_PATH.fullmatch(headers["tenantid"])
        tenant = path[1] if path else headers["tenantid"]
        if tenant not in (self.org_id, self.org_id[:15]):
            raise Refused("service.auth.error")
        if not self.knows(headers["accesstoken"]):
            raise Refused("service.auth.error")

    def knows(self, token: str) -> bool:
        """Return whether a token is valid."""
        return self.user_of(token) is not None

    def is_ours(self, token: str) -> bool:
        """Return whether this org issued a token and still knows it, even if it is no longer valid.

        Expired and revoked tokens are known at least until the process ends, unless the org has too
        many tokens. The admin endpoint accepts every known token, so that a client can use an old
        token to request a new one.
        """
        with self._lock:
            return token in self._tokens

    def _issue(self, username: str, family: str, *, own: bool) -> str:
        token = f"{self.org_id[:15]}!{secrets.token_urlsafe(_TOKEN_BYTES)}"
        with self._lock:
            made = _Token(username, family, own, self._clock.now())
            self._tokens[token] = made
            self._store.run(
                "INSERT INTO access_tokens VALUES (?, ?, ?, ?, ?)",
                token,
                username,
                family,
                own,
                made.made_at,
            )
            others = [item for item, known in self._tokens.items() if not known.own]
            for old in others[: max(0, len(others) - _MOST_TOKENS)]:
                self._forget(old)
                del self._tokens[old]
        return token

    def _end(self, which: Callable[[str, _Token], bool], end: _End) -> bool:
        with self._lock:
            found = [
                item
                for item, known in self._tokens.items()
                if self._is_good(known) and which(item, known)
            ]
            with self._store.transaction():
                for token in found:
                    self._tokens[token].end = end
                    self._forget(token)
            listeners = list(self._on_end)
        for listener in listeners:
            listener()
        return bool(found)

    def _forget(self, token: str) -> None:
        self._store.run("DELETE FROM access_tokens WHERE token = ?", token)

    def _is_good(self, known: _Token) -> bool:
        over = self._life and self._clock.now() >= known.made_at + self._life
        return known.end is None and not over
