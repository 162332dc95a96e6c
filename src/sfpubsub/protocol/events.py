"""Inputs of the protocol: what can happen to a subscription or publisher, as immutable values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from sfpubsub.errors import SfPubSubError
from sfpubsub.types import PublishResult, RawEvent, ReplayId


class CommitAnswer(NamedTuple):
    """The service's response to a commit. If it answers several, its fields describe the newest."""

    request_id: str
    replay_id: ReplayId | None
    error: str | None
    """Why the commit failed; None if it succeeded."""
    process_time: int
    """When the service received the commit request, in milliseconds since the epoch."""


class Response(NamedTuple):  # a frozen dataclass takes 1 µs longer to create, and there are many
    """One message received on the stream of a subscription."""

    events: tuple[RawEvent, ...] = ()
    latest_replay_id: ReplayId | None = None
    pending: int = 0
    """``pending_num_requested``: how many more events the service may send."""
    rpc_id: str = ""
    commit: CommitAnswer | None = None

    @property
    def keepalive(self) -> ReplayId | None:
        """The position of a keepalive; None for any other message.

        A commit response is never a keepalive, because its position and its pending count may be
        missing or stale.
        """
        if self.events or self.commit is not None or self.pending <= 0:
            return None
        return self.latest_replay_id

    @property
    def position(self) -> ReplayId | None:
        """The position of the stream after this message; None if the message has none."""
        return self.events[-1].replay_id if self.events else self.keepalive


class PublishAnswer(NamedTuple):
    """The service's response to one publish request."""

    results: tuple[PublishResult, ...]
    schema_id: str = ""
    """The topic's current schema."""
    rpc_id: str = ""


class FailureKind(enum.Enum):
    """Kinds of failures that end a stream. Each value states how to react."""

    RETRY = "open the stream again at the same position"
    REAUTHENTICATE = "get a new session, then open the stream again at the same position"
    POSITION_REJECTED = "the position is not accepted: never send it again"
    SLOT_HELD = "wait until the managed subscription is free"
    TURNED_AWAY = "give up, unless the service has accepted this subscription before"
    STOP = "give up"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a stream ended, as classified by `sfpubsub.transports.status`."""

    kind: FailureKind
    error: SfPubSubError
    is_unheard: bool = False
    """Whether the service cannot have received the call: no connection was made, or no session was
    obtained.
    """
