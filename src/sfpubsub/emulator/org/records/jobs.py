"""Jobs of the Bulk API 2.0: what they are, where they live, and the thread that carries them out.

A job is a row of the store and files in a directory beside it; a job that was under way when the
emulator was killed continues where its last transaction ended. Jobs run one after another. What one
does is in `job_work`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.records import job_work
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.records.result_file import ResultFile
from sfpubsub.emulator.org.records.values import moment
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

_log = logging.getLogger(__name__)

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
    """One job.

    Attributes:
        facts: What clients are told of it, and `user`, `origin`, `started` that they are not.
    """

    job_id: str
    facts: dict[str, Any]
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def is_query(self) -> bool:
        """Whether it reads."""
        return self.facts["operation"] in QUERIES

    @property
    def state(self) -> str:
        """Open, UploadComplete, InProgress, or one of `ENDED`."""
        return str(self.facts["state"])


class Jobs:
    """All jobs of one org. Thread-safe.

    Args:
        store: Where they live.
        records: What they read and change.
        clock: What time it is.
        directory: Where their files are.
    """

    def __init__(self, store: Store, records: Records, clock: Clock, directory: Path) -> None:
        self._store = store
        self._records = records
        self._clock = clock
        self._directory = directory
        self._changed = threading.Condition()  # guards all below
        self._waiting: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._current: Job | None = None  # what the thread is at
        self._stopping = False
        self._unprocessed = threading.Lock()  # held while such a file is written
        store.run(_TABLE)
        self._jobs = {
            row[0]: Job(row[0], json.loads(row[1]))
            for row in store.rows("SELECT id, facts FROM jobs ORDER BY number")
        }
        for job in self._jobs.values():
            if job.state in ("UploadComplete", "InProgress"):
                self._hand_over(job)

    def create(self, facts: Mapping[str, Any], user: User) -> Job:
        """Make a job; one that queries begins at once.

        Args:
            facts: operation, and what goes with it; checked.
            user: Whose.
        """
        with self._changed:
            rows = self._store.rows("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'")
            job_id = eighteen(f"750SB{(rows[0][0] if rows else 0) + 1:010d}")
            now = moment(self._clock.now())
            is_query = facts["operation"] in QUERIES
            job = Job(
                job_id,
                {
                    "createdById": user.user_id,
                    "createdDate": now,
                    "systemModstamp": now,
                    "state": "UploadComplete" if is_query else "Open",
                    "numberRecordsProcessed": 0,
                    "numberRecordsFailed": 0,
                    "retries": 0,
                    "totalProcessingTime": 0,
                    "user": user.username,
                    **facts,
                },
            )
            self._store.run(
                "INSERT INTO jobs (id, facts) VALUES (?, ?)", job_id, json.dumps(job.facts)
            )
            self._jobs[job_id] = job
        if is_query:
            self._hand_over(job)
        return job

    def job(self, job_id: str, *, queries: bool) -> Job:
        """One job.

        Raises:
            RecordProblem: No job of that kind has this id.
        """
        with self._changed:
            found = self._jobs.get(eighteen(job_id) if len(job_id) == 15 else job_id)
        if found is None or found.is_query != queries:
            raise RecordProblem("NOT_FOUND", "The requested resource does not exist", status=404)
        return found

    def all(self, *, queries: bool) -> list[Job]:
        """All jobs of a kind, the oldest first."""
        with self._changed:
            return [job for job in self._jobs.values() if job.is_query == queries]

    def upload(self, job: Job, data: bytes) -> None:
        """Take the rows of an ingest job.

        Raises:
            RecordProblem: It has them already.
        """
        with self._changed:
            path = self.upload_path(job)
            if job.state != "Open" or path.exists():
                raise _wrong_state("the data of this job was uploaded before")
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(data)

    def close(self, job: Job) -> None:
        """Begin an ingest job whose rows are there.

        Raises:
            RecordProblem: It is not open.
        """
        with self._changed:
            if job.state != "Open":
                raise _wrong_state(f"Closing already {job.state} Job not allowed")
            self.change(job, state="UploadComplete")
        self._hand_over(job)

    def abort(self, job: Job) -> None:
        """End a job; what it did stays.

        Raises:
            RecordProblem: It has ended.
        """
        with self._changed:
            if job.state in ENDED:
                raise _wrong_state(f"Aborting already {job.state} Job not allowed")
            job.stopped.set()
            self.change(job, state="Aborted")

    def delete(self, job: Job) -> None:
        """Forget a job and its files.

        Raises:
            RecordProblem: It is open or under way.
        """
        with self._changed:
            if job.state not in (*ENDED, "UploadComplete"):
                raise _wrong_state(f"a job that is {job.state} cannot be deleted: abort it first")
            job.stopped.set()
            self._store.run("DELETE FROM jobs WHERE id = ?", job.job_id)
            self._jobs.pop(job.job_id, None)
        for path in self._directory.glob(f"{job.job_id}.*"):
            path.unlink(missing_ok=True)

    def result(self, job: Job, which: str, columns: list[str]) -> ResultFile:
        """A file of results: results, successful, failed or unprocessed."""
        return ResultFile(
            self._directory / f"{job.job_id}.{which}.csv",
            columns,
            DELIMITERS[job.facts["columnDelimiter"]],
            ENDINGS[job.facts["lineEnding"]],
        )

    def unprocessed(self, job: Job, columns: list[str]) -> ResultFile:
        """The rows of an ingest job that has ended and did not take them; written when first asked
        for, once the thread has left the job."""
        with self._changed:
            self._changed.wait_for(lambda: self._current is not job)
        file = self.result(job, "unprocessed", columns)
        with self._unprocessed:
            if not file.count:
                job_work.write_unprocessed(file, self.upload_path(job), job)
        return file

    def upload_path(self, job: Job) -> Path:
        """Where the rows of an ingest job are."""
        return self._directory / f"{job.job_id}.upload"

    def change(self, job: Job, **facts: Any) -> None:
        """Change what is known of a job; durable with the transaction that is open, if one is."""
        job.facts |= {**facts, "systemModstamp": moment(self._clock.now())}
        self._store.run("UPDATE jobs SET facts = ? WHERE id = ?", json.dumps(job.facts), job.job_id)

    def stop(self) -> None:
        """End the thread; jobs continue at the next start. Can be repeated."""
        with self._changed:
            self._stopping = True
            for job in self._jobs.values():
                job.stopped.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    # Inside.

    def _hand_over(self, job: Job) -> None:
        with self._changed:
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._carry_out, name="emulator-bulk", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _carry_out(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                job = self._waiting.popleft()
                if job.state in ENDED or job.job_id not in self._jobs:
                    continue
                self.change(job, state="InProgress")
                self._current = job
            self._do(job)
            with self._changed:
                self._current = None
                self._changed.notify_all()

    def _do(self, job: Job) -> None:
        started = self._clock.now()
        user = self._records.user(job.facts["user"])
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            if job.is_query:
                job_work.query(self, self._records, self._store, job, user)
            else:
                job_work.ingest(self, self._records, job, user)
            ended: dict[str, Any] = {"state": "JobComplete"}
        except RecordProblem as problem:
            ended = {"state": "Failed", "errorMessage": f"{problem.code} : {problem.text}"}
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the thread
            _log.exception("job %s failed", job.job_id)
            ended = {"state": "Failed", "errorMessage": f"the emulator failed: {error}"}
        with self._changed:
            if not job.stopped.is_set():  # else it was aborted, or continues at the next start
                took = max(1, round((self._clock.now() - started) * 1000))
                self.change(job, **ended, totalProcessingTime=took)


def _wrong_state(text: str) -> RecordProblem:
    return RecordProblem("INVALIDJOBSTATE", text)
