"""Who may call: the org, its access token, and the three headers of every RPC.

The token and the org's id live in the store, so that a restarted emulator accepts the clients of
the one before. Sign-in flows will hand out more tokens; they belong here too.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping

from sfpubsub.emulator.failures import Refused
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


class Sessions:
    """The org and its tokens. Thread-safe.

    Args:
        store: Where they live.

    Attributes:
        org_id: 18 characters.
        access_token: The token of the emulator's own user.
    """

    def __init__(self, store: Store) -> None:
        with store.transaction():
            org_id = store.meta("org_id", DEFAULT_ORG_ID)
            token = store.meta("access_token") or f"{org_id}!{secrets.token_urlsafe(48)}"
            store.set_meta("org_id", org_id)
            store.set_meta("access_token", token)
        self.org_id = eighteen(org_id)
        self.access_token = token

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
        return hmac.compare_digest(token.encode(), self.access_token.encode())
