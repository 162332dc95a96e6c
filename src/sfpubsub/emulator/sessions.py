"""Who may call: the org, its access token, and the three headers of every RPC.

Tokens and the org's id live in the store, so that a restarted emulator accepts the clients of the
one before. Sign-in flows will hand out more tokens; they belong here too.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from sfpubsub.emulator.failures import Refused
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.store import Store

DEFAULT_ORG_ID = "00DSB0000000001"
"""15-character id of the emulated org; SB as in sandbox."""

_SUFFIX_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"
_TENANT_PATH = re.compile(r"core/[^/]+/(\w+)", re.IGNORECASE)
_INSTANCE_URL = re.compile(r"https?://[^/\s]+/?")
_HEADERS = ("accesstoken", "instanceurl", "tenantid")


def eighteen(record_id: str) -> str:
    """The 18-character form of a record id of 15: a letter for the case of each five letters."""
    suffix = ""
    for start in (0, 5, 10):
        chunk = record_id[start : start + 5]
        bits = sum(1 << index for index, letter in enumerate(chunk) if letter.isupper())
        suffix += _SUFFIX_ALPHABET[bits]
    return record_id + suffix


@dataclass(frozen=True)
class _End:
    """Why a token is void: `expired` ends open streams too; `cause` is the fault that did it."""

    expired: bool
    cause: Fault | None


class Sessions:
    """The org and its tokens. Thread-safe.

    A token is good until `end_all`; a restart on the same store leaves good tokens good and makes a
    new one if none is.

    Args:
        store: Where they live.

    Attributes:
        org_id: 18 characters.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards what is below
        org_id = store.meta("org_id", DEFAULT_ORG_ID)
        self.org_id = eighteen(org_id)
        self._good: list[str] = json.loads(store.meta("tokens", "[]"))
        self._ended: dict[str, _End] = {}
        store.set_meta("org_id", org_id)
        self._newest = self._good[-1] if self._good else ""
        if not self._good:
            self.new_token()

    @property
    def access_token(self) -> str:
        """The newest token of the emulator's own user, good or not."""
        return self._newest

    def new_token(self) -> str:
        """Hand out one more token; those before stay as they are."""
        token = f"{self.org_id[:15]}!{secrets.token_urlsafe(48)}"
        with self._lock:
            self._good.append(token)
            self._newest = token
            self._remember()
        return token

    def end_all(self, *, expired: bool, cause: Fault | None = None) -> None:
        """Make all tokens void.

        Args:
            expired: Whether streams that are open with them end at once.
            cause: What is counted when a client notices.
        """
        with self._lock:
            for token in self._good:
                self._ended[token] = _End(expired, cause)
            self._good.clear()
            self._remember()

    def ended_by(self, token: str) -> Fault | None:
        """The fault that made a token void, if one did."""
        with self._lock:
            end = self._ended.get(token)
            return end.cause if end else None

    def has_expired(self, token: str) -> bool:
        """Whether what was opened with a token must end now."""
        with self._lock:
            end = self._ended.get(token)
            return end is not None and end.expired

    @property
    def tenant(self) -> str:
        """The org as error texts and TopicInfo name it."""
        return f"CORE/prod/{self.org_id}"

    def check(self, headers: Mapping[str, str]) -> None:
        """Pass only if an RPC's headers open this org.

        Raises:
            Refused: A header is missing, blank or malformed; or the token or tenant is not ours.
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
        """Whether a token is good."""
        with self._lock:
            return _among(token, self._good)

    def is_ours(self, token: str) -> bool:
        """Whether a token is good or was; void ones still open the admin endpoint, or nobody could
        ask for a new one."""
        with self._lock:
            return _among(token, [*self._good, *self._ended])

    def _remember(self) -> None:
        self._store.set_meta("tokens", json.dumps(self._good))


def _among(token: str, tokens: list[str]) -> bool:
    return any(hmac.compare_digest(token.encode(), item.encode()) for item in tokens)
