"""What can happen to a subscription: the inputs of the protocol, as small frozen values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from sfpubsub.errors import SfPubSubError
from sfpubsub.types import PublishResult, RawEvent, ReplayId


class CommitAnswer(NamedTuple):
    """The service's word on one commit, or on several with the values of the newest."""

    request_id: str
    replay_id: ReplayId | None
    error: str | None
    """Why the commit failed; None when it did not."""
    process_time: int
    """Milliseconds since 1970 UTC."""


class Response(NamedTuple):  # a frozen dataclass takes 1 µs more to make, and there are many
    """One message of a stream."""

    events: tuple[RawEvent, ...] = ()
    latest_replay_id: ReplayId | None = None
    pending: int = 0
    """``pending_num_requested``: the service's figure of what it may still send."""
    rpc_id: str = ""
    commit: CommitAnswer | None = None

    @property
    def keepalive(self) -> ReplayId | None:
        """The position of a keepalive; None for every other message.

        A commit's answer is not a keepalive, whatever it carries: its position and its pending
        figure may be left out or stale.
        """
        if self.events or self.commit is not None or self.pending <= 0:
            return None
        return self.latest_replay_id

    @property
    def position(self) -> ReplayId | None:
        """The position of the stream after this message; None if the message has none."""
        return self.events[-1].replay_id if self.events else self.keepalive


class PublishAnswer(NamedTuple):
    """The service's word on the events of one request to publish."""

    results: tuple[PublishResult, ...]
    schema_id: str = ""
    """The topic's current schema."""
    rpc_id: str = ""


class FailureKind(enum.Enum):
    """What to do about the end of a stream."""

    RETRY = "open it again at the same position"
    REAUTHENTICATE = "get a new session, then open it again at the same position"
    POSITION_REJECTED = "the position is not accepted: never send it again"
    SLOT_HELD = "wait until the managed subscription is free"
    TURNED_AWAY = "give up, unless the service has let this subscription in before"
    STOP = "give up"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a stream ended, classified (sfpubsub.transports.status)."""

    kind: FailureKind
    error: SfPubSubError
