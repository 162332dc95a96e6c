"""Bulk API 2.0 query jobs: create them, wait for them, fetch their results, delete them.

The org keeps a job and its results, and identifies the job by its id. A process that has saved the
id and the locator of the next page can therefore continue after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from sfpubsub.backoff import Backoff
from sfpubsub.errors import (
    LocalProtocolError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
    StreamUnavailableError,
)
from sfpubsub.rest.requests import Asker, check_id
from sfpubsub.rest.results import ResultPage, fetch

# Default rows per page. After a broken connection, a page is fetched again: about 100 MB for a wide
# object.
PAGE_ROWS = 50_000

_COMPLETE = "JobComplete"
_ENDED = frozenset({_COMPLETE, "Failed", "Aborted"})
_STATES = _ENDED | {"UploadComplete", "InProgress"}


@dataclass(frozen=True)
class QueryJob:
    """State of a query job, as the org reports it."""

    id: str
    object: str
    state: str
    """``UploadComplete`` (queued), ``InProgress``, ``JobComplete``, ``Failed`` or ``Aborted``."""
    created: str
    """Creation time by the org's clock, in ISO 8601."""
    records_processed: int
    error: str
    """Why the job failed; empty if it did not fail."""

    @property
    def is_complete(self) -> bool:
        """Whether the job's results can be fetched."""
        return self.state == _COMPLETE

    @property
    def has_ended(self) -> bool:
        """Whether the job's state is final."""
        return self.state in _ENDED


class QueryJobs:
    """Creates query jobs and fetches their results. Thread-safe.

    Every method raises what `OrgReader` raises, and ReadExpiredError if the org no longer has the
    job: an org deletes jobs and their results after seven days.

    Args:
        asker: Makes the requests.
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._jobs = f"{asker.data}jobs/query"

    def create(self, soql: str, *, all_rows: bool = False) -> QueryJob:
        """Create a job and return it. The org starts it automatically.

        The request is not retried. If there is no response, the job may exist nevertheless; delete
        it in the org.

        Args:
            soql: Query without aggregates, OFFSET or compound fields (use their components).
            all_rows: Whether to include records that are archived or in the Recycle Bin.

        Raises:
            RequestRefusedError: The query is not valid in a job.
        """
        body = {
            "operation": "queryAll" if all_rows else "query",
            "query": soql,
            "contentType": "CSV",
            "columnDelimiter": "COMMA",
            "lineEnding": "LF",
        }
        return _job_of(self._asker.post(self._jobs, body, repeat=False))

    def get(self, job_id: str) -> QueryJob:
        """Return the current state of a job."""
        with _expiring(job_id):
            return _job_of(self._asker.get(self._path(job_id)))

    def wait(
        self,
        job_id: str,
        *,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[QueryJob], None] | None = None,
    ) -> QueryJob:
        """Wait until a job is complete, and return it.

        Args:
            job_id: Id of the job.
            deadline: Time on *clock* at which to stop waiting. The job is polled at least once, and
                once more at the deadline.
            clock: Monotonic clock, in seconds.
            progress: Called with the result of each poll except the last.

        Raises:
            RequestRefusedError: The job failed or was aborted.
            StreamUnavailableError: The deadline has passed. The job is still running; call `wait`
                again.
        """
        timings = self._asker.timings
        polls = Backoff(timings.poll_initial, timings.poll_max)
        while True:
            job = self.get(job_id)
            if job.is_complete:
                return job
            if job.has_ended:
                raise RequestRefusedError(
                    f"the query job {job_id} of {job.object} ended as {job.state}"
                    + (f": {job.error}" if job.error else "")
                )
            rest = deadline - clock()
            if rest <= 0:
                raise StreamUnavailableError(
                    f"the query job {job_id} for {job.object} was not finished in time (it is "
                    f"{job.state} after {job.records_processed} records): wait for it again"
                )
            if progress is not None:
                progress(job)
            self._asker.retries.sleep(min(polls.next(), rest))

    def results(
        self,
        job_id: str,
        file: BinaryIO,
        *,
        columns: Sequence[str],
        locator: str | None = None,
        max_records: int = PAGE_ROWS,
    ) -> ResultPage:
        """Fetch a page of results into *file*.

        If the connection breaks, the same page is requested again; it does not change while the job
        exists (documentation: Get Results for a Query Job).

        Args:
            job_id: Id of a complete job.
            file: Binary file, open for reading and writing; its content is replaced.
            columns: Columns of the job's query, in the same order; used to recognise a header line
                in the results.
            locator: `ResultPage.next_locator` of the previous page; None for the first.
            max_records: Maximum number of rows in the page.

        Raises:
            LocalProtocolError: The job is not complete, or *max_records* is not positive.
            OSError: The file could not be written.
        """
        if max_records < 1:
            raise LocalProtocolError(f"max_records must be at least 1, not {max_records}")
        query = {"maxRecords": str(max_records), **({"locator": locator} if locator else {})}
        with _expiring(job_id):
            return fetch(self._asker, f"{self._path(job_id)}/results", query, columns, file)

    def abort(self, job_id: str) -> QueryJob:
        """Abort a running job, and return its new state. An aborted job can be deleted."""
        with _expiring(job_id):
            return _job_of(self._asker.patch(self._path(job_id), {"state": "Aborted"}))

    def delete(self, job_id: str) -> None:
        """Delete a finished job and its results. Does nothing if the job no longer exists."""
        with suppress(ReadExpiredError), _expiring(job_id):
            self._asker.delete(self._path(job_id))

    def _path(self, job_id: str) -> str:
        return f"{self._jobs}/{check_id('a job', job_id)}"


@contextmanager
def _expiring(job_id: str) -> Iterator[None]:
    try:
        yield
    except RequestRefusedError as error:
        if error.status != 404:
            raise
        raise ReadExpiredError(
            f"the org no longer has the query job {job_id}: it has expired or was deleted; start "
            f"the read again",
            status=404,
            error_code=error.error_code,
        ) from error


def _job_of(found: Any) -> QueryJob:
    found = found if isinstance(found, dict) else {}
    texts = {name: found.get(name) for name in ("id", "object", "state", "createdDate")}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise RemoteProtocolError(f"the org returned a query job without a valid {name}")
    if texts["state"] not in _STATES:
        raise RemoteProtocolError(
            f"the org returned a query job in the unknown state {texts['state']!r}"
        )
    processed = found.get("numberRecordsProcessed")
    error = found.get("errorMessage")
    return QueryJob(
        id=str(texts["id"]),
        object=str(texts["object"]),
        state=str(texts["state"]),
        created=str(texts["createdDate"]),
        records_processed=processed if isinstance(processed, int) else 0,  # missing for a new job
        error=error if isinstance(error, str) else "",
    )
