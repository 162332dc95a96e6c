"""Decides which refresh token is used next, and what is stored about it. No I/O, no clock.

An app with refresh token rotation gives a new refresh token with each access token, and accepts
each refresh token only once. If a token is used a second time, Salesforce revokes the newest
refresh token and all access tokens that descend from the same one: the family (Salesforce help,
article 005316711). So every process of a user must know the newest token of the family.

`newest_family` chooses between what the user configured, what is stored and what this process
remembers. `TokenFamily.is_reusable` decides whether the stored access token is used or a new one is
requested. A request is noted (`asked`) before it is sent, and its answer (`answered`) before the
access token is used. If the note of a request is found later without its answer, the answer was
lost, and with it probably the family: this is what `is_in_doubt` tells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

FORMAT = 1
"""Version of the stored text."""

# How long a stored access token is used without a request, in seconds. It must be shorter than the
# shortest session timeout that an org can set, 15 minutes: of a token that is older, the org may
# have ended the session, and a call would be refused.
REUSED_FOR = 600.0

# The fields of a token response that are stored: what a session is made of.
_KEPT = ("access_token", "instance_url", "id", "token_type")


def utc(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as text."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    return text.removesuffix("+00:00") + " UTC"


def fingerprint(token: str) -> str:
    """Return a hash that identifies a token without revealing it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, repr=False)
class TokenFamily:
    """The newest refresh token of a family, and the newest access token."""

    root: str
    """Fingerprint of the refresh token that the family began with, the configured one."""
    refresh_token: str
    """The newest refresh token."""
    number: int = 0
    """How many answers the family has had."""
    answer: Mapping[str, str] = field(default_factory=dict)
    """Fields of the newest token response; empty before the first."""
    answered_at: float = 0.0
    """Time of that response, in seconds since the epoch."""
    asked_at: float | None = None
    """Time of a request with `refresh_token` whose answer is not stored; None if there is none."""
    host: str = ""
    """Name of the machine that stored this."""

    def is_reusable(self, refused: str | None, now: float) -> bool:
        """Return whether the access token can be used without a request.

        Args:
            refused: The access token that the service refused; None if none was refused.
            now: Seconds since the epoch.
        """
        token = self.answer.get("access_token")
        # A time in the future is that of a clock that was wrong.
        return bool(token) and token != refused and 0 <= now - self.answered_at < REUSED_FOR

    @property
    def is_in_doubt(self) -> bool:
        """Whether a request was sent whose answer, with the next refresh token, was not stored."""
        return self.asked_at is not None

    def asked(self, now: float, host: str) -> TokenFamily:
        """Return what to store before a request with the refresh token is sent."""
        return replace(self, asked_at=now, host=host)

    def answered(
        self, response: Mapping[str, Any], now: float, *, is_usable: bool = True
    ) -> TokenFamily:
        """Return what to store before the access token of a response is used.

        Args:
            response: The fields of the token response.
            now: Seconds since the epoch.
            is_usable: Whether the response has a usable access token. Its refresh token is kept in
                any case.
        """
        kept = {k: v for k, v in response.items() if k in _KEPT and isinstance(v, str)}
        rotated = response.get("refresh_token")
        return replace(
            self,
            refresh_token=rotated if isinstance(rotated, str) and rotated else self.refresh_token,
            number=self.number + 1,
            answer=kept if is_usable else {},
            answered_at=now,
            asked_at=None,
        )

    @property
    def is_rotated(self) -> bool:
        """Whether the newest refresh token is another one than the family began with."""
        return fingerprint(self.refresh_token) != self.root

    def summary(self) -> str:
        """Return a phrase about the newest refresh token, without secrets."""
        if self.asked_at is not None:
            return (
                f"a refresh token that {self.host} sent at {utc(self.asked_at)}, without an answer "
                f"so far: it may have been replaced"
            )
        if not self.number:
            return "a refresh token that was refused"
        kind = "rotated" if self.is_rotated else "not rotated by this app"
        return f"a refresh token ({kind}), last used at {utc(self.answered_at)} on {self.host}"

    def to_text(self) -> str:
        """Return the text to store, which contains secrets."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> TokenFamily:
        """Return the family in a stored text.

        Raises:
            ValueError: The text is not one that `to_text` returns. The message does not quote it.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None  # the parser's error contains the text
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004  # a text from outside
        if found.pop("format", None) != FORMAT:
            raise ValueError("it was written by another version of sfpubsub")
        if found.keys() != {item.name for item in fields(cls)} or not _is_valid(found):
            raise ValueError("a field is missing, unknown, or of the wrong type")
        return cls(**found)

    def __repr__(self) -> str:
        return f"TokenFamily(number={self.number})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a token is a secret and cannot be pickled: create it where it is needed")


def newest_family(
    given: str, stored: TokenFamily | None, remembered: TokenFamily | None
) -> TokenFamily:
    """Return the family to continue; a new one if none descends from the configured token.

    Args:
        given: The configured refresh token.
        stored: The family in the token file; None if there is none.
        remembered: The family that this process used last; None if it has used none. It is newer
            than the stored one if it could not be stored, or if the file was removed.
    """
    own = fingerprint(given)
    known = [
        family
        for family in (stored, remembered)
        # A user may also have configured the newest token, copied from the file.
        if family is not None and own in (family.root, fingerprint(family.refresh_token))
    ]
    return max(known, key=lambda family: family.number, default=TokenFamily(own, given))


def _is_valid(found: Mapping[str, Any]) -> bool:
    answer = found["answer"]
    return (
        all(isinstance(found[name], str) for name in ("root", "refresh_token", "host"))
        and bool(found["refresh_token"])
        and type(found["number"]) is int
        and isinstance(answer, dict)
        and all(isinstance(value, str) for value in answer.values())
        and _is_time(found["answered_at"])
        and (found["asked_at"] is None or _is_time(found["asked_at"]))
    )


def _is_time(value: object) -> bool:
    # The bound is far in the future, and what `datetime` can still represent.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11
