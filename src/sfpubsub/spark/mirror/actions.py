"""What a mirror's schedule tells the job to do, and the time on which it decides.

The schedule (schedule.py) returns one action at a time. The job carries it out, and hands back its
result or error before it asks for the next one. An action that stores something is durable when its
result is handed back; so a process that is killed has carried out a prefix of the actions. This
module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sfpubsub.rest.grants import Held
from sfpubsub.spark.mirror.due_reads import Wanted
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.mailbox import Signal
from sfpubsub.spark.mirror.notes import Note
from sfpubsub.spark.records.reads import AsOf
from sfpubsub.types import Gap


class Action:
    """Something to do."""


@dataclass(frozen=True)
class Say(Action):
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class ApplyEvents(Action):
    """Perform the next step with events, or complete an unfinished one.

    The result is whether there was one.
    """


@dataclass(frozen=True)
class TakeStep(Action):
    """Perform a step that processes no raw rows."""

    note: Note
    calls: list[tuple[float, int]]
    """The API calls of the last 24 hours, to store with the step; see `Budget.used`."""


@dataclass(frozen=True)
class Describe(Action):
    """Describe an object, and add the columns of its new fields."""

    entity: str


@dataclass(frozen=True)
class CheckObject(Action):
    """Ask the org whether an object can be mirrored."""

    entity: str
    with_rights: bool
    """Whether the user must be able to see all its records."""
    with_stamps: bool
    """Whether it must be possible to read its changed records."""


@dataclass(frozen=True)
class AddObject(Action):
    """Begin to mirror an object."""

    entity: str


@dataclass(frozen=True)
class RemoveObject(Action):
    """Stop mirroring an object. Its rows stay."""

    entity: str


@dataclass(frozen=True)
class ListSignals(Action):
    """Return the signals in the mailbox, in order of arrival."""


@dataclass(frozen=True)
class MarkSignals(Action):
    """Record that signals were carried out."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class FindRecords(Action):
    """Return the ids of the records that a signal is about; None if they are more than *most*."""

    signal: Signal
    most: int


@dataclass(frozen=True)
class FindParked(Action):
    """Return the ids of the records of an object whose deletion waits for a confirmation."""

    entity: str


@dataclass(frozen=True)
class ReadGrants(Action):
    """Return what lets the user see every record, as a `Grant` by object."""

    entities: tuple[str, ...]


@dataclass(frozen=True)
class FindLimit(Action):
    """Return how many API calls the org allows in 24 hours, to all its clients together."""


@dataclass(frozen=True)
class LookAtMembers(Action):
    """Begin to ask for the members of the channel. `Schedule.members_found` takes the result."""


@dataclass(frozen=True)
class KeepRights(Action):
    """Store what is known about the user's rights, and which gaps need no further rereads."""

    held: Mapping[str, Held]
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeepMembers(Action):
    """Store what is known about the channel's members."""

    known: Mapping[str, str | None]


@dataclass(frozen=True)
class KeepGaps(Action):
    """Store the names of the gaps for which rereads were requested."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class StoreGap(Action):
    """Store a gap beside the raw table. The result is the names under which it is stored."""

    gap: Gap


@dataclass(frozen=True)
class ReportGap(Action):
    """Report a gap, once it is stored."""

    gap: Gap


@dataclass(frozen=True)
class FindOrder(Action):
    """Return the position of an object's last event in the org's order (`Read.since`)."""

    entity: str
    last: int
    """Only events up to the raw row with this ``ingest_seq`` count."""


@dataclass(frozen=True)
class StartRead(Action):
    """Begin a read in the background. Its pieces and its end are handed to the schedule."""

    wanted: Wanted
    as_of: AsOf
    last: Marker | None
    """The newest piece of the read to resume; None for a new read."""
    merged: int
    """Number of the newest piece that was merged. A new read removes the log up to it."""
    epoch: int
    """See `Marker.epoch`."""
    at: float
    """See `Marker.at`."""


@dataclass(frozen=True)
class StopRead(Action):
    """Make the read that is running end soon, after which it is handed to the schedule."""


@dataclass(frozen=True)
class ClearLog(Action):
    """Remove all pieces of an object's read from its log."""

    entity: str


@dataclass(frozen=True)
class Idle:
    """There is nothing to do, unless something arrives."""

    until: float
    """When something may be due without any input, on the monotonic clock; infinite for never."""


@dataclass(frozen=True)
class End:
    """The work of a run with ``once`` is done."""


T = TypeVar("T")

# A decision that takes several actions: it yields each, and receives its result or its error.
Decision: TypeAlias = Generator[Action, Any, T]
