"""What the protocol wants done; a driver carries it out, in order."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sfpubsub.errors import SfPubSubError
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.types import Gap


class Lane(enum.Enum):
    """Two requests may be in flight: one connect, and one of everything else."""

    POLL = "poll"
    ASK = "ask"


@dataclass(frozen=True)
class Send:
    """Send a request; its answer or its failure goes back with the ticket."""

    lane: Lane
    ticket: int
    body: str
    timeout: float
    """Seconds; the protocol cuts the lane then, and the transport may give up by itself."""


@dataclass(frozen=True)
class Cut:
    """Break what is in flight on a lane; its failure is told as any other."""

    lane: Lane
    ticket: int


@dataclass(frozen=True)
class Renew:
    """Renew the session that was used last, and say so."""


@dataclass(frozen=True)
class Deliver:
    """Put messages, or an error that the application must see, behind what waits for it."""

    items: Sequence[StreamingMessage | SfPubSubError]


@dataclass(frozen=True)
class Report:
    """Tell of a gap."""

    gap: Gap


@dataclass(frozen=True)
class Settle:
    """Tell a caller that what it waits for is done, or why it is not."""

    waiter: object
    error: SfPubSubError | None = None


Command: TypeAlias = Send | Cut | Renew | Deliver | Report | Settle
