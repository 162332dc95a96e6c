"""Ingest the events of a mirror's topic or managed subscription, in a background thread.

The events are written to the raw table. This module also reports when the stream is anchored (its
position is durable, so no later event can be missed), and which positions were lost. `IngestJob`
makes all decisions about events.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.client.last_confirmed import LastConfirmed
from sfpubsub.config import WINDOW, Limits, Timings
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.positions import TableReplayStore
from sfpubsub.spark.ingest.progress import Progress
from sfpubsub.spark.ingest.settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_EVENTS,
    DEFAULT_BATCH_SECONDS,
)
from sfpubsub.spark.ingest.sidecars import KeptGap, Sidecars
from sfpubsub.spark.ingest.streams import SourceSubscription
from sfpubsub.spark.ingest.together import Member, SharedWriter
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.mirror.backlog import Backlog
from sfpubsub.spark.mirror.open_gap import OpenGap
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.sources import Source
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.types import Gap, Health, ReplayId, StartPosition

if TYPE_CHECKING:
    from sfpubsub.client.batch import EventBatch
    from sfpubsub.client.client import PubSubClient

_log = logging.getLogger("sfpubsub.spark")

# Maximum seconds to wait for the current write at the end.
_JOIN = 60.0


@dataclass(frozen=True)
class StreamState:
    """The state of a mirror's event stream."""

    is_anchored: bool = False
    """Whether a position is durable, so no later event can be missed."""
    is_caught_up: bool = False
    """Whether the service has no more events, and all received events are in the raw table."""
    written: int = 0
    """Number of events received so far; increases with each write."""
    gaps: tuple[KeptGap, ...] = ()
    """The stored gaps of this process and earlier ones. The stream has a new position after each of
    them.
    """
    has_open_gap: bool = True
    """Whether `gaps` may lack one, because the stream is not known to have continued after it."""
    health: Health | None = None
    name: str = ""
    """The topic, or the managed subscription's name or id."""
    backlog: Backlog | None = None
    """The rows of the raw table that the mirror has not applied; None if this is not recorded."""


class MirrorStream:
    """Writes the events of one source to the raw table.

    A context manager. Not thread-safe, except for `stop`.

    Args:
        spark: Any classic Spark session.
        table: The raw table.
        source: A topic or a managed subscription.
        connect: Opens a client that looks up schemas in the given store.
        start: Position from which a new table reads a topic.
        fallback: Where to continue if the service rejects the table's position: ``earliest`` or
            ``latest``. With None, the stream fails.
        org_id: Id of the org, 18 characters.
        job_settings: Arguments for `IngestJob`.
        on_health: Called with the subscription's health a few times per second.
        on_progress: See `IngestJob`.
        on_acked: See `IngestJob`.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: Destination,
        source: Source,
        connect: Callable[[SchemaStore], PubSubClient],
        *,
        start: StartPosition,
        fallback: str | None = None,
        org_id: str | None = None,
        job_settings: Mapping[str, Any] | None = None,
        on_health: Callable[[Health], object] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_acked: Callable[[EventBatch, int], None] | None = None,
    ) -> None:
        self._spark = spark
        self._table = table
        self._source = source
        self._connect = connect
        self._start = start
        self._fallback = fallback
        self._org_id = org_id
        self._settings = dict(job_settings or {})
        self._on_health = on_health
        self._on_progress = on_progress
        self._on_acked = on_acked
        self._opened = ExitStack()
        self._thread = threading.Thread(target=self._run, name=f"mirror {source.name}", daemon=True)
        self._job: IngestJob | None = None
        self._error: BaseException | None = None
        self._health: Health | None = None
        self._open_gap = OpenGap()
        self._looking = threading.Lock()  # the job's thread and the mirror's look at gaps
        self._gaps: tuple[KeptGap, ...] = ()
        # Number of the subscription's gaps when `_gaps` was read; -1 before.
        self._gaps_read = -1
        self._was_anchored = False
        self._backlog = Backlog()

    def __enter__(self) -> MirrorStream:
        with ExitStack() as unless_done:
            self._open(unless_done)
            self._opened = unless_done.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(_JOIN)
        self._opened.close()
        if self._error is not None and not any(error):
            raise self._error  # from the last write, not yet raised by `state`

    @property
    def job(self) -> IngestJob:
        """The job that ingests the events. Available once the stream is open."""
        if self._job is None:
            raise AssertionError("the stream must be open before its job is accessed")
        return self._job

    @property
    def subscription(self) -> SourceSubscription:
        """The subscription that supplies the events. Available once the stream is open."""
        return cast("SourceSubscription", self._subscription)

    def begin(self) -> None:
        """Start ingesting events in the background thread."""
        self._thread.start()

    def stop(self) -> None:
        """Request a stop. The events received so far are still written and acked.

        Safe to call from signal handlers.
        """
        if self._job is not None:
            self._job.stop()

    def state(self) -> StreamState:
        """Return the state of the stream.

        Raises:
            BaseException: The error that ended the stream.
        """
        if self._error is not None:
            raise self._error
        health, job = self._health, self._job
        if health is None or job is None:
            return StreamState(backlog=self._backlog)
        position = self._position(health)
        self._was_anchored = self._was_anchored or position is not None
        is_open = self._has_open_gap(health, position)
        received = job.progress.received
        idle = health.caught_up and not health.pending_count and health.delivered == received
        return StreamState(
            self._was_anchored,
            idle,
            received,
            () if is_open else self._gaps,
            is_open,
            health,
            self._source.name,
            self._backlog,
        )

    def report_gap(self, gap: Gap) -> None:
        """Store a gap that the mirror found, and report it as a gap of the subscription.

        Raises:
            WriteError: The gap could not be stored.
        """
        self._sidecars.keep_gaps([gap])
        self._subscription.report_gap(gap)

    def _position(self, health: Health) -> ReplayId | None:
        """Return the durable position after which another process would continue.

        None if the source has no durable position yet.
        """
        if self._source.keeps_position:
            return self._writer.positions.get(self._source.name)
        return health.committed

    def _has_open_gap(self, health: Health, position: ReplayId | None) -> bool:
        """Return whether the stream has yet to continue after a gap; if not, update `_gaps`."""
        count = len(health.gaps)
        with self._looking:
            is_open = self._open_gap.is_open(health, position, self.job.kept_gaps)
        if is_open:
            return True
        if self._gaps_read != count:
            self._gaps, self._gaps_read = tuple(self._sidecars.gaps()), count
        return False

    def _open(self, opened: ExitStack) -> None:
        self._sidecars = sidecars = Sidecars(self._spark, self._table)
        schemas = _Lookup()
        client = opened.enter_context(self._connect(schemas))
        keeps = self._source.keeps_position
        if keeps:
            # Fail here on a wrong name, before a table is created.
            client.get_topic(self._source.name)
        self._writer = EventWriter(
            self._spark,
            self._table.address,
            format=self._table.format,
            subscription=None if keeps else self._source.name,
            topic=self._source.name if keeps else None,
            org_id=self._org_id,
            # Keep undecodable events, because the mirror detects them by their rows.
            on_undecodable="keep",
        )
        opened.callback(self._writer.close)
        self._writer.on_rows = self._note_rows
        sidecars.open()
        opened.callback(sidecars.close)
        schemas.store = sidecars.schemas
        batch = int(self._settings.get("batch_events", DEFAULT_BATCH_EVENTS))
        together = SharedWriter(
            self._writer,
            max_events=batch,
            max_bytes=int(self._settings.get("batch_bytes", DEFAULT_BATCH_BYTES)),
        )
        self._member = together.member(self._source)
        self._subscription = self._subscribe(client, max(Limits.max_unacked, 2 * batch + WINDOW))
        opened.callback(self._subscription.close)
        settings = {"batch_seconds": DEFAULT_BATCH_SECONDS, **self._settings}
        self._job = IngestJob(
            self._subscription,
            self._member,
            sidecars=sidecars,
            last_confirmed=None
            if keeps
            else LastConfirmed(self._source.name, sidecars.confirmed(self._source.name), Timings()),
            on_progress=self._on_progress,
            on_acked=self._on_acked,
            on_health=self._note_health,
            **settings,
        )

    def _subscribe(self, client: PubSubClient, unacked: int) -> Any:
        if not self._source.keeps_position:
            return client.subscribe_managed(self._source.name, ack="manual", max_unacked=unacked)
        return client.subscribe(
            self._source.name,
            replay=_AnchoredStore(self._member, self._start, lambda: self._open_gap.is_awaited),
            replay_fallback=self._fallback,
            ack="manual",
            max_unacked=unacked,
        )

    def _note_rows(self, rows: pa.Table) -> None:
        columns = [("ingest_seq", "max"), ("received_at", "min")]
        for row in rows.group_by("event_name").aggregate(columns).to_pylist():
            at = row["received_at_min"].timestamp()
            self._backlog.add(row["event_name"] or "", row["ingest_seq_max"], at)

    def _note_health(self, health: Health) -> None:
        # In the job's thread, before it writes what came after a gap: later, the durable position
        # would already be the one after the gap.
        with self._looking:
            self._open_gap.observe(health, self._position(health))
        self._health = health
        if self._on_health is not None:
            self._on_health(health)

    def _run(self) -> None:
        job = self.job
        try:
            with self._subscription:
                job.run()
            job.settle()
        except BaseException as error:  # noqa: BLE001  # raised by `state`, or at the end
            self._error = error
        finally:
            try:
                self._member.leave()
            except Exception as error:  # noqa: BLE001  # raised by `state`, or at the end
                if self._error is None:
                    self._error = error
                else:
                    _log.warning(
                        "the last positions were not stored, so events may be read again: %s",
                        error,
                    )


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
        self, member: Member, start: StartPosition, is_awaited: Callable[[], bool]
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


class _Lookup(SchemaStore):
    """Gives the client access to the raw table's schema store, which is opened after the client.

    Until the store is open, no schema is found. This class stores nothing: the job stores schemas
    before the rows that need them.
    """

    def __init__(self) -> None:
        self.store: SchemaStore | None = None

    def get(self, schema_id: str) -> str | None:
        """See `SchemaStore`."""
        return None if self.store is None else self.store.get(schema_id)

    def put(self, schema_id: str, schema_json: str) -> None:
        """See `SchemaStore`."""
