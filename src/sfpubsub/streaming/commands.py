"""What the protocol wants done; a driver carries it out, in order."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sfpubsub.errors import SfPubSubError
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.types import Gap

if TYPE_CHECKING:
    from sfpubsub.streaming.subscriptions import Channel


class Lane(enum.Enum):
    """Two requests may be in flight: one connect, and one of everything else."""

    POLL = "poll"
    ASK = "ask"


@dataclass(eq=False)
class Send:
    """Send a request, and hand its answer or its failure back together with this."""

    lane: Lane
    body: str
    timeout: float
    """Seconds; the protocol cuts it then, and the transport may give up by itself."""
    due: float
    """The same as a point in time."""
    asked: Mapping[tuple[str, str], Channel | None]
    """By channel and id of each message, the subscription that it is about."""
    is_cut: bool = False
    """Whether its answer no longer matters. One that is not on its way yet stays unsent."""


@dataclass(frozen=True)
class Cut:
    """Break the connection of a request; its failure is told as any other."""

    request: Send


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
