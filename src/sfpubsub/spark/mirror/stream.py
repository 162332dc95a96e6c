"""Ingest the events of a mirror's topic or managed subscription, in a background thread.

The events are written to the raw table. This module also reports when the stream is anchored (its
position is durable, so no later event can be missed), and which positions were lost. `IngestJob`
makes all decisions about events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import pyarrow as pa

from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.ingest import Ingest
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.ingest.rights import RightsWatch
from sfpubsub.spark.ingest.settings import DEFAULT_BATCH_SECONDS, IngestSettings
from sfpubsub.spark.ingest.shared_writer import SourceWriter
from sfpubsub.spark.ingest.sidecars import KeptGap
from sfpubsub.spark.ingest.streams import SourceSubscription
from sfpubsub.spark.mirror.backlog import Backlog
from sfpubsub.spark.mirror.open_gap import OpenGap
from sfpubsub.spark.mirror.stream_state import StreamState
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import Gap, Health, ReplayId, StartPosition


class MirrorStream(Ingest):
    """An `Ingest` with one source, which tells a mirror how far it is.

    What it opens, such as the session, stays open until its block is left, even if it has failed.

    Args:
        source: A topic or a managed subscription.
        raw: The raw table.
        start: Position from which a new table reads a topic.
        batch_seconds: See `IngestJob`.
        maintain: See `EventWriter`.
        subscribes: Whether to subscribe. Otherwise only the raw table is opened, and the stream is
            always at its end.
        others: Further arguments of `Ingest`.
    """

    def __init__(
        self,
        source: Source,
        raw: Destination,
        *,
        start: Literal["latest", "earliest"] = "latest",
        batch_seconds: float = DEFAULT_BATCH_SECONDS,
        maintain: bool = True,
        subscribes: bool = True,
        **others: Any,
    ) -> None:
        settings = IngestSettings(
            batch_seconds=batch_seconds,
            maintain=maintain,
            fallback="earliest",  # if events were lost, their records are read from the org
            on_undecodable="keep",  # the mirror detects these events by their rows
        )
        super().__init__([source], to=raw.address, format=raw.format, settings=settings, **others)
        self.source: Source = source
        self.subscribes: bool = subscribes
        self._start = StartPosition.latest() if start == "latest" else StartPosition.earliest()
        self._failure: BaseException | None = None
        self._health: Health | None = None
        self._open_gap = OpenGap()
        self._looking = threading.Lock()  # the job's thread and the mirror's look at gaps
        self._gaps: tuple[KeptGap, ...] = ()
        # Number of the subscription's gaps when `_gaps` was read; -1 before.
        self._gaps_read = -1
        self._was_anchored = False
        self._backlog = Backlog()

    def state(self) -> StreamState:
        """Return the state of the stream.

        Raises:
            BaseException: The error that ended the stream.
        """
        if self._failure is not None:
            raise self._failure
        if not self.subscribes:
            return StreamState(
                True, True, has_open_gap=False, name=self.source.name, backlog=self._backlog
            )
        health = self._health
        if health is None:
            return StreamState(backlog=self._backlog)
        position = self._position(health)
        self._was_anchored = self._was_anchored or position is not None
        is_open = self._has_open_gap(health, position)
        received = self.streams[0].job.progress.received
        idle = health.caught_up and not health.pending_count and health.delivered == received
        return StreamState(
            self._was_anchored,
            idle,
            received,
            () if is_open else self._gaps,
            is_open,
            health.last_position,
            self.source.name,
            self._backlog,
        )

    def report_gap(self, gap: Gap) -> None:
        """Store a gap that the mirror found, and report it as a gap of the subscription.

        Raises:
            WriteError: The gap could not be stored.
        """
        self.sidecars.keep_gaps([gap])
        for stream in self.streams:
            stream.subscription.report_gap(gap)

    def _position(self, health: Health) -> ReplayId | None:
        """Return the durable position after which another process would continue.

        None if the source has no durable position yet.
        """
        if self.source.keeps_position:
            return self.writer.positions.get(self.source.name)
        return health.committed

    def _has_open_gap(self, health: Health, position: ReplayId | None) -> bool:
        """Return whether the stream has yet to continue after a gap; if not, update `_gaps`."""
        count = len(health.gaps)
        with self._looking:
            is_open = self._open_gap.is_open(health, position, self.streams[0].job.kept_gaps)
        if is_open:
            return True
        if self._gaps_read != count:
            self._gaps, self._gaps_read = tuple(self.sidecars.gaps()), count
        return False

    def _open(self, opened: ExitStack) -> None:
        super()._open(opened)
        if self.streams:
            self.writer.on_rows = self._note_rows

    def _work(self) -> None:
        try:
            super()._work()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._orders.get()  # the mirror uses the session until it leaves the block

    @property
    def _subscribed(self) -> Sequence[Source]:
        return self.sources if self.subscribes else ()

    def _replay_store(self, member: SourceWriter) -> TableReplayStore:
        return _AnchoredStore(member, self._start, lambda: self._open_gap.is_awaited)

    def _rights(self, source: Source, subscription: SourceSubscription) -> RightsWatch | None:
        return None  # the mirror checks the rights to its objects

    def _note_rows(self, rows: pa.Table) -> None:
        columns = [("ingest_seq", "max"), ("received_at", "min")]
        for row in rows.group_by("event_name").aggregate(columns).to_pylist():
            at = row["received_at_min"].timestamp()
            self._backlog.add(row["event_name"] or "", row["ingest_seq_max"], at)

    def _note_health(self, health: Health, rights: RightsWatch | None) -> None:
        # In the job's thread, before it writes what came after a gap: later, the durable position
        # would already be the one after the gap.
        with self._looking:
            self._open_gap.observe(health, self._position(health))
        self._health = health


class _AnchoredStore(TableReplayStore):
    """Stores positions in the raw table.

    Makes a position durable immediately if the mirror waits for it: the first one, and the first
    one after a gap.

    Args:
        member: The writer of the source's events.
        start: Where to start if the table has no position yet.
        is_awaited: Returns whether the mirror waits for a position after a gap.
    """

    def __init__(
        self, member: SourceWriter, start: StartPosition, is_awaited: Callable[[], bool]
    ) -> None:
        super().__init__(member)
        self._member = member
        self._start = start
        self._is_awaited = is_awaited

    def get(self, topic: str) -> StartPosition:
        """Return where to resume: after the stored position; without one, at the given start."""
        if self._member.positions.get(topic) is None:
            return self._start
        return super().get(topic)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Like `TableReplayStore.set`, but a position that is waited for is durable on return."""
        is_first = self._member.positions.get(topic) is None
        super().set(topic, replay_id)
        if is_first or self._is_awaited():
            self._member.flush()
