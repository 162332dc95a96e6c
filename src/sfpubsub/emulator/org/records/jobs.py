"""Jobs of the Bulk API 2.0, and the worker thread that runs them.

Jobs run one after another. If the emulator is killed while a job is running, the next start repeats
a query job, and continues an ingest job after its last transaction. `job_work` implements both
kinds of jobs, and `job_store` stores them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfpubsub.emulator.faults.kinds import BULK
from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.records import job_work
from sfpubsub.emulator.org.records.job_store import ENDED, QUERIES, Job, JobStore
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.records.result_file import ResultFile
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

_log = logging.getLogger(__name__)


class Jobs:
    """All jobs of one org. Thread-safe.

    Args:
        store: The store for the jobs.
        records: The records that the jobs read and change.
        clock: The org's clock.
        directory: The directory for the jobs' files; created when it is needed.
        faults: The fault plan.

    Attributes:
        stored: The stored state and the files of the jobs.
    """

    def __init__(
        self, store: Store, records: Records, clock: Clock, directory: Path, faults: FaultPlan
    ) -> None:
        self.stored: JobStore = JobStore(store, clock, directory)
        self._store = store
        self._records = records
        self._clock = clock
        self._faults = faults
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._current: Job | None = None  # the job that the thread is running
        self._stopping = False
        # The jobs whose files of unprocessed rows this process wrote; an earlier process may have
        # been killed while it wrote one.
        self._unprocessed: set[str] = set()
        self._writing = threading.Lock()  # guards _unprocessed; held while such a file is written
        self._jobs = {job.job_id: job for job in self.stored.jobs()}
        for job in self._jobs.values():
            if job.state in ("UploadComplete", "InProgress"):
                self._hand_over(job)

    def create(self, facts: Mapping[str, Any], user: User) -> Job:
        """Create a job. A query job is queued immediately, an ingest job when `close` is called.

        Args:
            facts: The operation and its parameters, which the caller has validated.
            user: The owner of the job.

        Returns:
            The new job.
        """
        with self._changed:
            is_query = facts["operation"] in QUERIES
            job = self.stored.add(
                {
                    "createdById": user.user_id,
                    "state": "UploadComplete" if is_query else "Open",
                    "numberRecordsProcessed": 0,
                    "numberRecordsFailed": 0,
                    "retries": 0,
                    "totalProcessingTime": 0,
                    "user": user.username,
                    **facts,
                }
            )
            self._jobs[job.job_id] = job
        if is_query:
            self._hand_over(job)
        return job

    def job(self, job_id: str, *, queries: bool) -> Job:
        """Return the job with this id.

        Args:
            job_id: 15- or 18-character id.
            queries: Whether a query job is requested; otherwise an ingest job.

        Raises:
            RecordProblem: No job of that kind has this id.
        """
        with self._changed:
            found = self._jobs.get(eighteen(job_id) if len(job_id) == 15 else job_id)
        if found is None or found.is_query != queries:
            raise RecordProblem("NOT_FOUND", "The requested resource does not exist", status=404)
        return found

    def all(self, *, queries: bool) -> list[Job]:
        """Return all query jobs, or all ingest jobs if *queries* is false, oldest first."""
        with self._changed:
            return [job for job in self._jobs.values() if job.is_query == queries]

    def upload(self, job: Job, data: bytes) -> None:
        """Store the uploaded rows of an ingest job.

        Args:
            job: The job.
            data: The rows, as CSV.

        Raises:
            RecordProblem: The job already has rows, or is no longer open.
        """
        with self._changed:
            path = self.stored.upload_path(job)
            if job.state != "Open" or path.exists():
                raise _wrong_state("data can be uploaded only once, while the job is open")
            self.stored.make_directory()
            # Renamed when it is complete, so that a killed process leaves no half of an upload.
            draft = path.with_suffix(".draft")
            draft.write_bytes(data)
            draft.replace(path)

    def close(self, job: Job) -> None:
        """Mark the upload of an ingest job as complete, and queue the job.

        Raises:
            RecordProblem: The job is not open.
        """
        with self._changed:
            if job.state != "Open":
                raise _wrong_state(f"Closing already {job.state} Job not allowed")
            self.stored.change(job, state="UploadComplete")
        self._hand_over(job)

    def abort(self, job: Job) -> None:
        """Abort a job. The changes that the job has made so far are kept.

        Raises:
            RecordProblem: The job has already ended.
        """
        with self._changed:
            if job.state in ENDED:
                raise _wrong_state(f"Aborting already {job.state} Job not allowed")
            job.stopped.set()
            self.stored.change(job, state="Aborted")

    def delete(self, job: Job) -> None:
        """Delete a job and its files.

        Raises:
            RecordProblem: The job is open or running.
        """
        with self._changed:
            if job.state not in (*ENDED, "UploadComplete"):
                raise _wrong_state(f"a job in state {job.state} cannot be deleted: abort it first")
            job.stopped.set()
            self.stored.remove(job)
            self._jobs.pop(job.job_id, None)
        self.stored.remove_files(job)

    def unprocessed(self, job: Job, columns: list[str]) -> ResultFile:
        """Return a file with the unprocessed rows of an ingest job that has ended. If the worker
        thread has not finished with the job yet, wait for it. The first call in a process writes
        the file.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._current is not job)
        file = self.stored.result(job, "unprocessed", columns)
        with self._writing:
            if job.job_id not in self._unprocessed:
                file.remove()
                job_work.write_unprocessed(file, self.stored.upload_path(job), job)
                self._unprocessed.add(job.job_id)
        return file

    def stop(self) -> None:
        """Stop the worker thread. Unfinished jobs are queued again at the next start. This method
        can be called repeatedly.
        """
        with self._changed:
            self._stopping = True
            for job in self._jobs.values():
                job.stopped.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    # Internal.

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
                self.stored.change(job, state="InProgress")
                self._current = job
            self._do(job)
            with self._changed:
                self._current = None
                self._changed.notify_all()

    def _do(self, job: Job) -> None:
        started = self._clock.now()
        user = self._records.user(job.facts["user"])
        try:
            self.stored.make_directory()
            if job.is_query:
                job_work.query(self.stored, self._records, self._store, job, user)
            else:
                job_work.ingest(self.stored, self._records, job, user)
            ended = self._end(job)
        except RecordProblem as problem:
            ended = {"state": "Failed", "errorMessage": f"{problem.code} : {problem.text}"}
        except Exception as error:  # noqa: BLE001 - a bug in the emulator must not end the thread
            _log.exception("Bulk API job %s failed: internal error in the emulator", job.job_id)
            ended = {"state": "Failed", "errorMessage": f"emulator error, see its log: {error}"}
        with self._changed:
            if not job.stopped.is_set():  # by an abort or a deletion, or because the emulator ends
                took = max(1, round((self._clock.now() - started) * 1000))
                self.stored.change(job, **ended, totalProcessingTime=took)

    def _end(self, job: Job) -> dict[str, Any]:
        """Return how a job ends that has processed all of its rows: complete, unless a fault lets a
        query job end otherwise.
        """
        fault = None
        if job.is_query:
            fault = self._faults.take("end_query_job", BULK, job.facts.get("object"))
        if fault is None:
            return {"state": "JobComplete"}
        state = fault.params["state"]
        told = {"errorMessage": fault.params["message"]} if state == "Failed" else {}
        return {"state": state, **told}


def _wrong_state(text: str) -> RecordProblem:
    return RecordProblem("INVALIDJOBSTATE", text)
