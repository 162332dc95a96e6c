"""The stored jobs of the Bulk API: each is a row in the store, and files in a directory."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.records.result_file import ResultFile
from sfpubsub.emulator.org.records.values import moment
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

_TABLE = """CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, facts TEXT NOT NULL)"""

ENDED = ("JobComplete", "Aborted", "Failed")
QUERIES = ("query", "queryAll")
INGESTS = ("insert", "update", "upsert", "delete", "hardDelete")
DELIMITERS = {
    "COMMA": ",",
    "TAB": "\t",
    "SEMICOLON": ";",
    "PIPE": "|",
    "CARET": "^",
    "BACKQUOTE": "`",
}
ENDINGS = {"LF": "\n", "CRLF": "\r\n"}


@dataclass
class Job:
    """A Bulk API job.

    Attributes:
        job_id: 18-character id.
        facts: The job's properties by name. Responses contain most of them; some, such as `user`
            and `origin`, are internal.
        stopped: Set when the worker thread must stop running the job.
    """

    job_id: str
    facts: dict[str, Any]
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def is_query(self) -> bool:
        """Whether this is a query job; otherwise it is an ingest job."""
        return self.facts["operation"] in QUERIES

    @property
    def state(self) -> str:
        """The job's state: Open, UploadComplete, InProgress, or one of `ENDED`."""
        return str(self.facts["state"])


class JobStore:
    """Stores jobs, their uploaded rows and their results.

    Not thread-safe: `Jobs` serialises the calls for one job.

    Args:
        store: The store for the jobs.
        clock: The org's clock.
        directory: The directory for the jobs' files; created when it is needed.
    """

    def __init__(self, store: Store, clock: Clock, directory: Path) -> None:
        self._store = store
        self._clock = clock
        self._directory = directory
        store.run(_TABLE)

    def jobs(self) -> list[Job]:
        """Return all stored jobs, oldest first."""
        rows = self._store.rows("SELECT id, facts FROM jobs ORDER BY number")
        return [Job(job_id, json.loads(facts)) for job_id, facts in rows]

    def add(self, facts: Mapping[str, Any]) -> Job:
        """Store a new job with these properties, and return it."""
        rows = self._store.rows("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'")
        job_id = eighteen(f"750SB{(rows[0][0] if rows else 0) + 1:010d}")
        now = moment(self._clock.now())
        job = Job(job_id, {"createdDate": now, "systemModstamp": now, **facts})
        self._store.run("INSERT INTO jobs (id, facts) VALUES (?, ?)", job_id, json.dumps(job.facts))
        return job

    def change(self, job: Job, **facts: Any) -> None:
        """Change properties of a job, and update its `systemModstamp`. If a transaction is open,
        the stored job is updated as part of that transaction.
        """
        job.facts |= {**facts, "systemModstamp": moment(self._clock.now())}
        self._store.run("UPDATE jobs SET facts = ? WHERE id = ?", json.dumps(job.facts), job.job_id)

    def remove(self, job: Job) -> None:
        """Remove a job. `remove_files` removes its files."""
        self._store.run("DELETE FROM jobs WHERE id = ?", job.job_id)

    def make_directory(self) -> None:
        """Create the directory for the jobs' files if it does not exist."""
        self._directory.mkdir(mode=0o700, exist_ok=True)

    def upload_path(self, job: Job) -> Path:
        """Return the path of the file that contains the uploaded rows of an ingest job."""
        return self._directory / f"{job.job_id}.upload"

    def result(self, job: Job, which: str, columns: list[str]) -> ResultFile:
        """Return a result file of a job.

        Args:
            job: The job.
            which: The kind of file: results, successful, failed or unprocessed.
            columns: The column names, for the header line.
        """
        return ResultFile(
            self._directory / f"{job.job_id}.{which}.csv",
            columns,
            DELIMITERS[job.facts["columnDelimiter"]],
            ENDINGS[job.facts["lineEnding"]],
        )

    def remove_files(self, job: Job) -> None:
        """Delete the files of a job."""
        for path in self._directory.glob(f"{job.job_id}.*"):
            path.unlink(missing_ok=True)
