"""Query jobs of the Bulk API 2.0: made, waited for, their results fetched, closed.

A job lives in the org, and is known by its id alone: a process that was killed continues with the
id and the locator that it noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from sfpubsub.config import RestTimings
from sfpubsub.errors import (
    LocalProtocolError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
    StreamUnavailableError,
)
from sfpubsub.rest.asking import Asker, check_id
from sfpubsub.rest.results import ResultPage, fetch

# Rows of a page unless the caller says otherwise: what a broken connection costs, and some 100 MB
# of a wide object.
PAGE_ROWS = 50_000

_COMPLETE = "JobComplete"
_ENDED = frozenset({_COMPLETE, "Failed", "Aborted"})
_STATES = _ENDED | {"UploadComplete", "InProgress"}


@dataclass(frozen=True)
class QueryJob:
    """What the org tells about a query job."""

    id: str
    object: str
    state: str
    """``UploadComplete`` (queued), ``InProgress``, ``JobComplete``, ``Failed`` or ``Aborted``."""
    created: str
    """When it was made, by the org's clock, in ISO 8601."""
    records_processed: int
    error: str
    """Why it failed; empty unless it did."""

    @property
    def is_complete(self) -> bool:
        """Whether its results can be fetched."""
        return self.state == _COMPLETE

    @property
    def has_ended(self) -> bool:
        """Whether its state changes no more."""
        return self.state in _ENDED


class QueryJobs:
    """Makes query jobs and fetches what they found. Thread-safe.

    Every method raises what `OrgReader` raises; and ReadExpiredError where the org does not have
    the job any longer: it deletes jobs and their results after seven days.

    Args:
        asker: Asks the org.
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._jobs = f"{asker.data}jobs/query"

    def create(self, soql: str, *, all_rows: bool = False) -> QueryJob:
        """Make a job, and return it; it begins by itself.

        Not repeated when no answer comes: the job may be there, and can be deleted in the org.

        Args:
            soql: Without aggregates, OFFSET, and compound fields (their parts instead).
            all_rows: Also records in the Recycle Bin, and archived ones.

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
        """Return a job as it is now."""
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
        """Return a job once it is complete.

        Args:
            job_id: Which.
            deadline: By *clock*; it is looked at once at least, and once when the time is up.
            clock: Steady seconds.
            progress: Told what each look but the last has found.

        Raises:
            RequestRefusedError: The job failed or was aborted.
            StreamUnavailableError: The time is up. The job continues, and can be waited for again.
        """
        looks = 0
        while True:
            job = self.get(job_id)
            looks += 1
            if job.is_complete:
                return job
            if job.has_ended:
                raise RequestRefusedError(
                    f"the query job {job_id} of {job.object} ended as {job.state}"
                    + (f": {job.error}" if job.error else "")
                )
            delay = next_poll(looks, clock(), deadline, self._asker.timings)
            if delay is None:
                raise StreamUnavailableError(
                    f"the query job {job_id} of {job.object} is {job.state} after "
                    f"{job.records_processed} records: it is still running, wait for it again"
                )
            if progress is not None:
                progress(job)
            self._asker.sleep(delay)

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

        A connection that breaks is made again, for the same page: it does not change as long as the
        job is there (documentation: Get Results for a Query Job).

        Args:
            job_id: Of a complete job.
            file: Open for reading and writing; its content is replaced.
            columns: Of the job's query, in its order; the org tells neither before its results.
            locator: `ResultPage.next_locator` of the page before; None for the first.
            max_records: Rows of the page at most.

        Raises:
            LocalProtocolError: The job is not complete, or *max_records* is not positive.
            OSError: The file could not be written.
        """
        if max_records < 1:
            raise LocalProtocolError(f"a page has at least 1 record, not {max_records}")
        query = {"maxRecords": str(max_records), **({"locator": locator} if locator else {})}
        with _expiring(job_id):
            return fetch(self._asker, f"{self._path(job_id)}/results", query, columns, file)

    def abort(self, job_id: str) -> QueryJob:
        """End a job before it is complete, and return it; it can be deleted then."""
        with _expiring(job_id):
            return _job_of(self._asker.patch(self._path(job_id), {"state": "Aborted"}))

    def delete(self, job_id: str) -> None:
        """Delete a job that has ended, with its results. One that is gone already is fine."""
        with suppress(ReadExpiredError), _expiring(job_id):
            self._asker.delete(self._path(job_id))

    def _path(self, job_id: str) -> str:
        return f"{self._jobs}/{check_id('a job', job_id)}"


def next_poll(looks: int, now: float, deadline: float, timings: RestTimings) -> float | None:
    """Return the seconds until a job is looked at again; None when the time is up.

    Args:
        looks: How often it was looked at; at least 1.
        now: Of the clock that *deadline* is of.
        deadline: The last look is then.
        timings: The first delay, which doubles, and the longest.
    """
    if now >= deadline:
        return None
    delay = timings.poll_initial * 2.0 ** min(looks - 1, 30)  # beyond any poll_max
    return min(delay, timings.poll_max, deadline - now)


@contextmanager
def _expiring(job_id: str) -> Iterator[None]:
    try:
        yield
    except RequestRefusedError as error:
        if error.status != 404:
            raise
        raise ReadExpiredError(
            f"the org does not have the query job {job_id} any longer: it has expired or was "
            f"deleted, begin the read again",
            status=404,
            error_code=error.error_code,
        ) from error


def _job_of(found: Any) -> QueryJob:
    found = found if isinstance(found, dict) else {}
    texts = {name: found.get(name) for name in ("id", "object", "state", "createdDate")}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise RemoteProtocolError(f"the org answered with a query job without a valid {name}")
    if texts["state"] not in _STATES:
        raise RemoteProtocolError(f"the org answered with a query job in state {texts['state']!r}")
    processed = found.get("numberRecordsProcessed")
    error = found.get("errorMessage")
    return QueryJob(
        id=str(texts["id"]),
        object=str(texts["object"]),
        state=str(texts["state"]),
        created=str(texts["createdDate"]),
        records_processed=processed if isinstance(processed, int) else 0,  # not in a new job's
        error=error if isinstance(error, str) else "",
    )
