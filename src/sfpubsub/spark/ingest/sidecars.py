"""The sidecar tables of a raw table: schemas, quarantine, gaps, commits, conflicts, confirmed.

Each is a directory of JSON files with one object per line (raw/sidecar_files.py). Their purpose
determines when they are written:

- a *schema* is durable before a row that needs it is written; writer.py ensures this;
- an event in the *quarantine* is durable before its position can be committed; writer.py ensures
  this too;
- a *gap* is durable before anything received after it is written;
- a *commit* is a log line, written after the service's confirmation and never read by a job. A
  killed job loses the last seconds of its log;
- a *conflict*, an event with the id of another event, is durable before its position can be
  committed;
- *confirmed* has one file per managed subscription: its newest confirmed position and the time of
  that position, which the next job needs to notice that the position was lost
  (client/last_confirmed.py).

Writing an entry again changes nothing, because its file name is derived from its id or contents.
Only the log of commits has numbered files, and only the files of *confirmed* change. This module
makes no decisions about events, and leaves file operations to raw/files.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.client.last_confirmed import Confirmed
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.confirmations import Commit
from sfpubsub.spark.ingest.dedupe import Conflict
from sfpubsub.spark.raw.destination import sidecar_directory
from sfpubsub.spark.raw.files import Files, files_of
from sfpubsub.spark.raw.sidecar_files import SidecarQuarantine, SidecarSchemas
from sfpubsub.spark.raw.sidecar_paths import (
    COMMITS_NAME,
    CONFIRMED_NAME,
    CONFLICTS_NAME,
    GAPS_NAME,
    QUARANTINE_NAME,
    SCHEMAS_NAME,
    SIDECARS,
)
from sfpubsub.spark.runtime.runtimes import delta_settings
from sfpubsub.spark.runtime.session import own_session
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.stores.schema_store import FileSchemaStore, SchemaStore
from sfpubsub.types import Gap, ReplayId

# Lines per file of commits, about 0.3 MB: nine files a day with a batch every 10 s, 170 if a
# backlog is read at two batches per second all day.
COMMITS_A_FILE = 1000

# Seconds between writes of the newest file of commits. A killed job may lose up to this many
# seconds of commits. A write is so rare that its two flushes and 0.3 MB have no measurable cost.
COMMITS_EVERY = 5.0

# The same for a table that is not on a local disk, where a write takes about a second.
SLOW_COMMITS_EVERY = 60.0


@dataclass(frozen=True)
class KeptGap:
    """A stored gap."""

    name: str
    """Name of its file, which is unique."""
    entity: str | None
    """API name of the only object whose events may be missing; None if any event may be."""


class Sidecars:
    """Writes the sidecar tables of one raw table. Thread-safe: the sources' threads share it.

    Args:
        spark: Used if the table is not local.
        destination: The raw table. A catalog table must exist before a sidecar is first used.
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        spark: SparkSession,
        destination: Destination,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._destination = destination
        self._clock = clock
        self._local = sidecar_directory(destination)
        self._kept: set[str] = set()
        self._opened: dict[str, Files] = {}
        self._own: SparkSession | None = None
        # Guards the commit log; writes to the other sidecars are idempotent.
        self._lock = threading.Lock()
        self._commits: _CommitLog | None = None
        self._opening = threading.Lock()  # guards the opened files and their session

    def open(self) -> None:
        """Start the commit log, and create all directories, so that every sidecar can be read.

        Raises:
            ConfigurationError: The file system cannot be used.
            WriteError: A directory could not be created.
        """
        for name in SIDECARS:
            self._files(name).make()
        self._commits = _CommitLog(self._files(COMMITS_NAME), self._clock())

    def close(self) -> None:
        """Write the commits that are not in the log yet.

        Raises:
            WriteError: The commits could not be written.
        """
        with self._lock:
            if self._commits is not None:
                self._commits.flush()

    @property
    def schemas(self) -> SchemaStore:
        """Store of the events' Avro schemas, in the sidecar ``_schemas``."""
        if self._local is not None:
            return FileSchemaStore(self._local / SCHEMAS_NAME)
        return SidecarSchemas(self._files(SCHEMAS_NAME))

    @property
    def quarantine(self) -> Quarantine:
        """Store of undecodable events, in the sidecar ``_quarantine``.

        The property may be used before the table exists.
        """
        if self._local is not None:
            return FileQuarantine(self._local / QUARANTINE_NAME)
        return SidecarQuarantine(lambda: self._files(QUARANTINE_NAME))

    def keep_schemas(self, schemas: Mapping[str, str]) -> None:
        """Store the schemas of events durably. Call it before their rows are written.

        Args:
            schemas: Avro schemas as JSON text, by schema id. Schemas that could not be
                fetched are empty strings, which are ignored.

        Raises:
            ConfigurationError: The schema store cannot be read or written.
            WriteError: The file system failed while a schema was stored.
        """
        for schema_id, text in schemas.items():
            if schema_id in self._kept or not text:
                continue
            store = self.schemas
            if store.get(schema_id) is None:
                self._files(SCHEMAS_NAME).make()
                store.put(schema_id, text)
            self._kept.add(schema_id)

    def lacks_schemas(self, schema_ids: Iterable[str]) -> list[str]:
        """Return those of *schema_ids* whose schemas are not stored, sorted.

        Raises:
            ConfigurationError: The store cannot be read.
        """
        lacking = []
        for schema_id in sorted(set(schema_ids) - self._kept):
            if self.schemas.get(schema_id) is None:
                lacking.append(schema_id)
            else:
                self._kept.add(schema_id)
        return lacking

    def keep_gaps(self, gaps: Sequence[Gap]) -> list[str]:
        """Store gaps durably. Call it before anything received after them is written.

        If a job dies before it has written anything after a gap, it encounters the same gap again
        after the restart. The gap is stored only once.

        Returns:
            The names of the stored gaps; see `gap_names`.

        Raises:
            WriteError: The gaps could not be stored.
        """
        names = []
        for gap in gaps:
            record: dict[str, object] = {
                "subscription": gap.subscription,
                "reason": gap.reason,
                "after": gap.after.hex() if gap.after else None,
                "before": gap.before.hex() if gap.before else None,
                "error_code": gap.error_code,
            }
            if gap.entity is not None:
                record["entity"] = gap.entity
            same = {"after": None, "before": None, "occurrence": gap.occurrence}
            name = _name_of({**record, **(same if gap.occurrence else {})})
            names.append(name)
            record |= {"rpc_id": gap.rpc_id, "noted_at": self._clock()}
            files = self._files(GAPS_NAME)
            files.make()
            files.add({name: _line(record)})
        return names

    def gaps(self) -> list[KeptGap]:
        """Return all stored gaps. A gap that occurs again has the same name.

        Raises:
            ConfigurationError: The gaps cannot be read.
        """
        files = self._files(GAPS_NAME)
        found = []
        for name in files.names():
            text = files.read(name) if name.endswith(".json") else None
            if text is not None:
                found.append(KeptGap(name, json.loads(text).get("entity")))
        return found

    def confirmed(self, subscription: str) -> Confirmed | None:
        """Return the newest confirmed position of a managed subscription, and its time.

        None if nothing is stored.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        text = self._files(CONFIRMED_NAME).read(_name_of({"subscription": subscription}))
        if text is None:
            return None
        record = json.loads(text)
        return Confirmed(ReplayId.from_hex(record["replay_id"]), float(record["at"]))

    def keep_confirmed(self, subscription: str, confirmed: Confirmed) -> None:
        """Store the newest confirmed position of a managed subscription, and its time.

        Raises:
            WriteError: It could not be stored.
        """
        record = {
            "subscription": subscription,
            "replay_id": confirmed.position.hex(),
            "at": confirmed.at,
            "noted_at": self._clock(),
        }
        files = self._files(CONFIRMED_NAME)
        files.make()
        files.replace(_name_of({"subscription": subscription}), _line(record))

    def keep_conflicts(self, rows: pa.Table, conflicts: Sequence[Conflict]) -> None:
        """Durably store events that have the id of another event. Call it before they are acked.

        Args:
            rows: Rows of a raw table, including those of the conflicts.
            conflicts: The conflicts, whose indexes refer to *rows*.

        Raises:
            WriteError: The events could not be stored.
        """
        files = self._files(CONFLICTS_NAME)
        files.make()  # `open` is not called for a writer without a job
        for conflict in conflicts:
            row = rows.slice(conflict.index, 1).to_pylist()[0]
            names = ("subscription", "topic", "event_id", "schema_id")
            record = {name: row[name] for name in names} | {
                "replay_id": _hex(row["replay_id"]),
                "payload": base64.b64encode(row["payload"] or b"").decode(),
                "stored_replay_id": _hex(conflict.stored.replay_id),
            }
            name = _name_of(record)
            record |= {"stored_seq": conflict.stored.ingest_seq, "noted_at": self._clock()}
            files.add({name: _line(record)})

    def keep_commit(self, commit: Commit) -> None:
        """Add a line to the commit log; do nothing if `open` has not been called.

        If `flush_due` is called regularly, the line becomes durable within `COMMITS_EVERY` seconds
        (`SLOW_COMMITS_EVERY` if the table is not local), otherwise when `close` is called.

        Raises:
            WriteError: The log could not be written; the line is kept for the next attempt.
        """
        with self._lock:
            if self._commits is not None:
                self._commits.add(commit, self._clock())

    def flush_due(self) -> None:
        """Write pending commits, unless the last write was only a few seconds ago (`keep_commit`).

        Raises:
            WriteError: The log could not be written.
        """
        with self._lock:
            if self._commits is not None:
                self._commits.flush_due(self._clock())

    def _files(self, name: str) -> Files:
        with self._opening:
            if name not in self._opened:
                if self._local is None and self._own is None:
                    self._own = own_session(self._spark, delta_settings(local=False))
                place = replace(self._destination, local=self._local)
                self._opened[name] = files_of(place, place.format, name, self._own)
            return self._opened[name]


class _CommitLog:
    """A log in files of `COMMITS_A_FILE` lines each. The newest file is rewritten as it grows."""

    def __init__(self, files: Files, now: float) -> None:
        self._files = files
        self._run = uuid.uuid4().hex[:12]
        self._began = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        self._number = 0
        self._lines: list[str] = []
        self._unwritten = 0
        self._every = SLOW_COMMITS_EVERY if files.is_slow else COMMITS_EVERY
        self._written_at = now - self._every

    def add(self, commit: Commit, now: float) -> None:
        self._lines.append(_line({"run": self._run, "noted_at": now, **asdict(commit)}))
        self._unwritten += 1
        self.flush_due(now)

    def flush_due(self, now: float) -> None:
        full = len(self._lines) >= COMMITS_A_FILE
        if self._unwritten and (full or now - self._written_at >= self._every):
            self.flush()
            self._written_at = now
        if full:
            self._lines = []
            self._number += 1

    def flush(self) -> None:
        if self._unwritten:
            name = f"{self._began}-{self._run}-{self._number:04}.json"
            self._files.replace(name, "".join(self._lines))
            self._unwritten = 0


def _name_of(record: Mapping[str, object]) -> str:
    """Return a record's file name, a hash of its contents."""
    return f"{hashlib.blake2b(json.dumps(record).encode(), digest_size=16).hexdigest()}.json"


def _hex(replay_id: bytes | None) -> str | None:
    return None if replay_id is None else replay_id.hex()


def _line(record: Mapping[str, object]) -> str:
    return json.dumps(record) + "\n"
