"""The five tables beside a raw table: schemas, quarantine, gaps, commits and conflicts.

Each is a directory of JSON files, one object a line (raw/sidecar_files.py). What they are for
decides when they are written:

- a *schema* is durable before a row that needs it is published (writer.py does that);
- an event in the *quarantine* is durable before its position may pass (writer.py does that);
- a *gap* is durable before anything that came after it is written;
- a *commit* is a line of a log, written after the service's word and never read by a job. A job
  that is killed leaves out its last seconds;
- a *conflict*, an event with the id of another event, is durable before its position may pass.

Writing one again changes nothing: names are made of what is in the files. Decides nothing about
events; where files are is raw/files.py's business.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.spark.ingest.confirmations import Commit
from sfpubsub.spark.ingest.dedupe import Conflict
from sfpubsub.spark.raw.beside import (
    COMMITS_NAME,
    CONFLICTS_NAME,
    GAPS_NAME,
    QUARANTINE_NAME,
    SCHEMAS_NAME,
    SIDECARS,
)
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.files import Files, files_at
from sfpubsub.spark.raw.sidecar_files import SidecarQuarantine, SidecarSchemas, location_of
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.stores.schema_store import FileSchemaStore, SchemaStore
from sfpubsub.types import Gap

# Lines of one file of commits, 0.3 MB: nine files a day when a batch is written every 10 s, 170
# when a backlog is read at two batches a second all day long.
COMMITS_A_FILE = 1000

# Seconds between two writes of the newest file of commits: what a kill may leave out, and so rare
# that two flushes and 0.3 MB cost a job nothing that can be measured.
COMMITS_EVERY = 5.0


class Sidecars:
    """Writes the tables beside one raw table. Thread-safe: each source has a thread of its own.

    Args:
        spark: Reaches file systems other than this machine's.
        destination: The raw table. A catalog's table must exist when one of these is first used.
        clock: Seconds since 1970 UTC.
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
        self._local = destination.beside
        self._root: Path | str | None = self._local
        self._kept: set[str] = set()
        self._gaps: Files | None = None
        self._lock = threading.Lock()  # guards the log; the others write what is the same each time
        self._commits: _CommitLog | None = None

    def open(self) -> None:
        """Make the directories, so that all can be read from the first moment on.

        Raises:
            ConfigurationError: The file system cannot be used.
            WriteError: A directory could not be made.
        """
        for name in SIDECARS:
            self._files(name).make()
        self._gaps = self._files(GAPS_NAME)
        self._commits = _CommitLog(self._files(COMMITS_NAME), self._clock())

    def close(self) -> None:
        """Write the commits that are not written yet.

        Raises:
            WriteError: They could not be.
        """
        with self._lock:
            if self._commits is not None:
                self._commits.flush()

    @property
    def schemas(self) -> SchemaStore:
        """The store of schemas."""
        if isinstance(self._place, Path):
            return FileSchemaStore(self._place / SCHEMAS_NAME)
        return SidecarSchemas(self._files(SCHEMAS_NAME))

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine; it may be requested before the table exists."""
        if self._local is not None:
            return FileQuarantine(self._local / QUARANTINE_NAME)
        return SidecarQuarantine(lambda: self._files(QUARANTINE_NAME))

    def keep_schemas(self, schemas: Mapping[str, str]) -> None:
        """Make the schemas of events durable; call it before their rows are written.

        Args:
            schemas: JSON texts by schema id. One that the service does not know is empty, and there
                is nothing to keep.

        Raises:
            ConfigurationError: One could not be kept.
            WriteError: As well.
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
        """Return those of some schemas that are not kept.

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

    def keep_gaps(self, gaps: Sequence[Gap]) -> None:
        """Make gaps durable; call it before anything that was received after them is written.

        A job that dies before it has written anything after a gap meets the same gap again, which
        is one row.

        Raises:
            WriteError: One was not kept.
        """
        for gap in gaps:
            record: dict[str, object] = {
                "subscription": gap.subscription,
                "reason": gap.reason,
                "after": gap.after.hex() if gap.after else None,
                "before": gap.before.hex() if gap.before else None,
                "error_code": gap.error_code,
            }
            name = _name_of(record)
            files = self._gaps or self._files(GAPS_NAME)
            if files.read(name) is None:
                files.make()
                record |= {"rpc_id": gap.rpc_id, "noted_at": self._clock()}
                files.replace(name, _line(record))

    def gap_names(self) -> list[str]:
        """Return the names of all gaps that were kept; one that is met again has its name again.

        Raises:
            ConfigurationError: They cannot be listed.
        """
        names = (self._gaps or self._files(GAPS_NAME)).names()
        return [name for name in names if name.endswith(".json")]

    def keep_conflicts(self, rows: pa.Table, conflicts: Sequence[Conflict]) -> None:
        """Make events durable that have the id of another event; call it before they are acked.

        Args:
            rows: Rows of a raw table, of which some are those events.
            conflicts: Which.

        Raises:
            WriteError: One was not kept.
        """
        files = self._files(CONFLICTS_NAME)
        files.make()  # a writer of a program of its own has opened none of them
        for conflict in conflicts:
            row = rows.slice(conflict.index, 1).to_pylist()[0]
            names = ("subscription", "topic", "event_id", "schema_id")
            record = {name: row[name] for name in names} | {
                "replay_id": _hex(row["replay_id"]),
                "payload": base64.b64encode(row["payload"] or b"").decode(),
                "stored_replay_id": _hex(conflict.stored.replay_id),
            }
            name = _name_of(record)
            if files.read(name) is None:
                record |= {"stored_seq": conflict.stored.ingest_seq, "noted_at": self._clock()}
                files.replace(name, _line(record))

    def keep_commit(self, commit: Commit) -> None:
        """Add a line to the log of commits; it is durable within seconds, and after `close`.

        Raises:
            WriteError: The log could not be written; the line is kept for the next time.
        """
        with self._lock:
            if self._commits is not None:
                self._commits.add(commit, self._clock())

    def look(self) -> None:
        """Write what has waited long enough. Cheap.

        Raises:
            WriteError: It could not be written.
        """
        with self._lock:
            if self._commits is not None:
                self._commits.look(self._clock())

    @property
    def _place(self) -> Path | str:
        if self._root is None:
            # In a session of its own: a catalog of Iceberg keeps for its session what it has looked
            # up, and the user's would keep seeing the table as it is now.
            self._root = location_of(self._spark.newSession(), self._destination)
        return self._root

    def _files(self, name: str) -> Files:
        return files_at(self._place, name, self._spark)


class _CommitLog:
    """Lines in files that are bounded in number: the newest one is written again as it grows."""

    def __init__(self, files: Files, now: float) -> None:
        self._files = files
        self._run = uuid.uuid4().hex[:12]
        self._began = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        self._number = 0
        self._lines: list[str] = []
        self._unwritten = 0
        self._written_at = now - COMMITS_EVERY

    def add(self, commit: Commit, now: float) -> None:
        self._lines.append(_line({"run": self._run, "noted_at": now, **asdict(commit)}))
        self._unwritten += 1
        self.look(now)

    def look(self, now: float) -> None:
        full = len(self._lines) >= COMMITS_A_FILE
        if self._unwritten and (full or now - self._written_at >= COMMITS_EVERY):
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
    """Return the file's name for a record: the same one each time."""
    return f"{hashlib.blake2b(json.dumps(record).encode(), digest_size=16).hexdigest()}.json"


def _hex(replay_id: bytes | None) -> str | None:
    return None if replay_id is None else replay_id.hex()


def _line(record: Mapping[str, object]) -> str:
    return json.dumps(record) + "\n"
