"""Mirror: keep complete tables of an org's objects, from one stream and reads of the org.

The stream, an `Ingest` with one source, is opened first, and with it Spark. The tables are opened
last. The org is asked about the objects only after that, so that events are ingested even if it
does not answer. All decisions about records are made by `MirrorJob`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from sfpubsub.client.client import PubSubClient
from sfpubsub.errors import SfPubSubError
from sfpubsub.rest import OrgReader
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.ingest import OnAcked, OnProgress, Spark, Wrap
from sfpubsub.spark.ingest.members import ALL_CHANGES, ChannelMembers
from sfpubsub.spark.ingest.selection import Selection, check_filters
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.mirror.settings import MirrorReport, MirrorSettings
from sfpubsub.spark.mirror.status import ObjectStatus
from sfpubsub.spark.mirror.stream import MirrorStream
from sfpubsub.spark.mirror.stream_state import StreamState
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.runtime.threaded import ThreadedJob
from sfpubsub.types import Health

# Default name of the raw table in a target.
RAW_NAME = "_raw"


class Mirror(ThreadedJob):
    """Keeps a table of each object in sync with the org.

    ::

        with Mirror(["Account", "Contact"], to="./lake") as mirror:
            mirror.run()  # until another thread or a signal handler calls stop()

    The mirror opens the stream, reads each object from the org, and then applies the events. The
    process can be killed at any moment: the next run resumes.

    Use it as a context manager, and run it once. If Ctrl-C interrupts a call, the mirror stops as
    with `stop`, and KeyboardInterrupt is raised once everything is closed; a second Ctrl-C ends it
    without draining. What belongs to the caller is never closed. `stop`, `health` and `status` are
    thread-safe.

    Args:
        objects: API names of the objects to mirror, in addition to those of earlier runs.
        to: Location of the tables: a directory, written with a slash (``./lake``) or as a `Path`; a
            URL; or ``catalog.schema``.
        format: ``delta`` or ``iceberg``.
        source: A topic or a managed subscription that delivers the objects' changes; the topic of
            all changes by default.
        raw: Raw table for the events; by default ``_raw`` in *to*.
        settings: All other settings.
        options: See `Ingest`.
        spark: See `Ingest`.
        client: See `Ingest`.
        on_message: Called with each progress message, in a thread of the mirror.
        on_progress: See `Ingest`.
        on_acked: See `Ingest`.
        wrap: See `Ingest`.

    Raises:
        ConfigurationError: A setting is missing or not valid, or a location is not valid.
    """

    def __init__(
        self,
        objects: Sequence[str],
        *,
        to: str | os.PathLike[str],
        format: str = "delta",  # noqa: A002  # named as in Spark
        source: Source | None = None,
        raw: str | os.PathLike[str] | None = None,
        settings: MirrorSettings | None = None,
        options: Mapping[str, str | None] | None = None,
        spark: Spark = None,
        client: PubSubClient | None = None,
        on_message: Callable[[str], None] | None = None,
        on_progress: OnProgress | None = None,
        on_acked: OnAcked | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        super().__init__(f"mirror in {to}")
        place = Destination.of_tables(to, format)
        separator = "." if place.in_catalog else "/"
        self.settings: MirrorSettings = settings or MirrorSettings()
        self.stream: MirrorStream = MirrorStream(
            source or Source("topic", ALL_CHANGES),
            Destination.parse(raw or f"{place.address}{separator}{RAW_NAME}", format),
            start=self.settings.start,
            batch_seconds=self.settings.batch_seconds,
            maintain=self.settings.maintain,
            subscribes=self.settings.by != "modstamp",
            options=options,
            spark=spark,
            client=client,
            on_progress=on_progress,
            on_acked=on_acked,
            wrap=wrap,
        )
        self.job: MirrorJob | None = None  # until the tables are open
        self._selection: Callable[[], Selection]
        self._objects = list(dict.fromkeys(objects))
        self._place = place
        self._say = on_message or (lambda _: None)
        self._once = False

    @property
    def objects(self) -> list[str]:
        """Names of the mirrored objects: those given, of earlier runs, and added by signals."""
        return list(self._objects) if self.job is None else self.job.objects

    @property
    def report(self) -> MirrorReport:
        """Counts of the work done so far."""
        return MirrorReport() if self.job is None else self.job.report

    def run(self, *, once: bool = False) -> MirrorReport:
        """Run until the mirror is stopped, and close everything.

        Args:
            once: Whether to return when the tables match the org.

        Returns:
            What was done, as counts.

        Raises:
            WriteError: A step failed, and the next process completes it; or the raw table could not
                be written, or Spark has exited.
            FilteredObjectError: The channel delivers only some events of an object.
            SfPubSubError: The stream failed, nobody is signed in, or an object that was never
                mirrored cannot be mirrored. With *once*, also if the org no longer has an object,
                or if the user may not see every record.
        """
        self._once = once
        self._run()
        return self.report

    def health(self) -> dict[Source, Health]:
        """Return the health of the stream's subscription, or its last one if it has ended."""
        return self.stream.health()

    def status(self) -> list[ObjectStatus]:
        """Return the state of each object, as of the last unit of work; empty before `run`."""
        return [] if self.job is None else self.job.status()

    def _open(self, opened: ExitStack) -> None:
        stream = opened.enter_context(self.stream)
        if self._is_stopping:  # perhaps before the stream was open
            return
        sessions, http, source = stream.service.sessions, stream.service.http, stream.source
        topic = source.name if source.keeps_position else None
        self._selection = ChannelMembers(sessions, http, topic=topic, managed=source.name)
        if not self.stream.subscribes:
            self._selection = partial(Selection, "", {})
        self.job = opened.enter_context(
            MirrorJob(
                stream.spark,
                OrgReader(sessions, http=http),
                stream.table,
                self._place.address,
                self._objects,
                format=self._place.format,
                settings=self.settings,
                selection=self._selection,
                report_gap=stream.report_gap,
                on_message=self._say,
            )
        )

    def _work(self) -> None:
        if self.job is None:
            return
        self.stream.begin()  # before any request to the org, whose limit of calls may be used up
        alone = self._check_selection()
        if self.stream.subscribes:
            self._say(f"waiting until the stream from {self.stream.source} has a start position")
        self.job.run(self._state, once=self._once, alone=alone)

    def _state(self) -> StreamState:
        if self._is_stopping and self.job is not None:
            self.job.stop()
        return self.stream.state()

    def _stop(self) -> None:
        if self.job is None:
            self.stream.stop()

    def _abort(self) -> None:
        self.stream._abort()

    def _check_selection(self) -> list[str]:
        """Refuse objects of which the channel delivers only some events.

        A channel that cannot be asked is asked again while the mirror runs.

        Returns:
            The objects whose events the channel does not deliver.
        """
        try:
            found = self._selection()
        except SfPubSubError as error:
            self._say(f"cannot check which objects are selected for {self.stream.source}: {error}")
            return []
        check_filters(found, self._objects)
        return [name for name in self._objects if found.whole(name) is None]
