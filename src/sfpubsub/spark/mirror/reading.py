"""Read the org into the log, piece by piece: with Bulk jobs, by queries over id ranges, or by ids.

A read of changed records (`Wanted.stamps_from`) returns them in the order of their stamps, that is,
of SystemModstamp. A record that has just changed is left for the next read, unless it was left
before, because its event may still be on the way, and then nothing has to be repaired.

For the read log, its pieces and their markers, see log.py. This module decides neither what to read
nor a read's as-of (reads.py). To resume an interrupted read, only the marker of its newest stored
piece is needed.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from sfpubsub.errors import ReadExpiredError, RemoteProtocolError
from sfpubsub.rest import OrgReader, QueryJob
from sfpubsub.rest.describing import STAMP
from sfpubsub.spark.mirror import values
from sfpubsub.spark.mirror.due_reads import Wanted
from sfpubsub.spark.mirror.log import Kind, Marker, ReadLog
from sfpubsub.spark.mirror.news import News, stamp_of
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.reads import AsOf

# Rows per query: the maximum page size.
_PAGE = 2000

# Length of a query above which an object is read in bulk: a request's URL is limited to 16,384
# bytes (Salesforce documentation), and encoding makes it longer.
LONGEST_QUERY = 8000

# Ids, and names of fields, in one query for records by id: 2,300 and at most 4,400 characters.
_IDS_PER_QUERY, _FIELDS_PER_QUERY = 100, 100

# Added to the org's time, because the Date header has a resolution of one second.
_SECOND = timedelta(seconds=1)

# Maximum time to wait for a job, in seconds; the service abandons a query job earlier.
_JOB_TIMEOUT = 24 * 3600.0

_DELETED = "IsDeleted"


@dataclass(frozen=True)
class Reading:
    """An object to read, with its columns and log."""

    columns: Columns
    log: ReadLog
    has_bin: bool
    """Whether the object has the field ``IsDeleted``."""
    has_stamp: bool = False
    """Whether the object has the field ``SystemModstamp``."""
    epoch: int = 0
    """See `Marker.epoch`."""
    at: float | None = None
    """See `Marker.at`."""

    @property
    def entity(self) -> str:
        """The object's name."""
        return self.columns.entity

    def filled(self, kind: Kind) -> Mapping[str, int]:
        """Return the columns that a read of *kind* fills; see `Columns.filled`."""
        return {} if kind == "sweep" else self.columns.filled

    def selected(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of the fields that a read of *kind* selects."""
        if kind == "sweep":
            return ("Id",)
        own = self.columns.selected
        flags = [(_DELETED, self.has_bin), (STAMP, self.has_stamp)]
        return (*own, *(name for name, is_there in flags if is_there))


class OrgReads:
    """Reads the org into the read logs of its objects. Not thread-safe.

    Args:
        reader: Sends requests to the org.
        margin: Maximum lag of the org's responses, in seconds; see `reads.as_of`.
        bulk_from: Minimum number of records for which an object is read in bulk. A smaller object
            is read in bulk only if its query is too long for a URL.
        piece_rows: Maximum number of rows in a piece of a read. Each piece is stored in one
            transaction.
        stop: Called between requests; raises an error to end the read.
    """

    def __init__(
        self,
        reader: OrgReader,
        *,
        margin: float,
        bulk_from: int,
        piece_rows: int,
        stop: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._margin = timedelta(seconds=margin)
        self._bulk_from = bulk_from
        self._piece_rows = piece_rows
        self._stop = stop
        self._findings = values.Findings()
        # An event may arrive a margin after its change, and be applied a margin before the read.
        self._delay = 2 * margin
        self._news: dict[str, News] = {}

    def begin(self, wanted: Wanted, of: Reading, as_of: AsOf) -> Iterator[Marker]:
        """Start a read, and yield the marker of each piece once it is durable.

        Args:
            wanted: The read to perform.
            of: The object to read.
            as_of: What the read is guaranteed to contain; the result of `reads.as_of`.
        """
        selected, filled = of.selected(wanted.kind), of.filled(wanted.kind)
        marker = Marker(
            0, wanted.kind, as_of, selected=selected, filled=filled, epoch=of.epoch, at=of.at
        )
        if wanted.kind == "ids":
            yield self._by_ids(wanted.record_ids, of, marker)
            return
        if wanted.stamps_from is not None:
            try:
                delay = self._delay if wanted.has_events else None
                yield from self._by_stamps(wanted.stamps_from, of, marker, delay)
            except BaseException:
                self.forget(of.entity)
                raise
            return
        sent = time.monotonic()
        total = self._count(of.entity)
        through = self._sent(sent)
        derived_at = self._derived_at(through)
        marker = replace(marker, total=total, through=through, derived_at=derived_at)
        if (marker.total or 0) < self._bulk_from and len(_query(of, marker)) < LONGEST_QUERY:
            yield from self._by_queries(of, marker)
            return
        job = self._reader.jobs.create(_query(of, marker), all_rows=True)
        begun = of.log.add(of.columns, (), replace(marker, job=job.id))
        yield begun
        yield from self._by_job(of, begun)

    def resume(self, of: Reading, last: Marker) -> Iterator[Marker]:
        """Resume an interrupted read, and yield the marker of each new piece once it is durable.

        Args:
            of: The object to read.
            last: Marker of the newest piece that was stored. It must not be the read's final piece.

        Raises:
            ReadExpiredError: The job no longer exists in the org, or the object's fields have
                changed: start a new read.
        """
        if last.filled != of.filled(last.kind):
            raise ReadExpiredError(
                f"the fields of {of.entity} have changed since its read began: the read starts over"
            )
        if last.job is not None:
            yield from self._by_job(of, last)
        else:
            yield from self._by_queries(of, last)

    def forget(self, entity: str) -> None:
        """Forget which rows of an object were read: pieces with some of them were dropped."""
        self._news.pop(entity, None)

    def _by_stamps(
        self, first: datetime, of: Reading, marker: Marker, delay: float | None
    ) -> Iterator[Marker]:
        sent = time.monotonic()
        page, last = self._changed(of, marker, first)
        begun = self._sent(sent)
        through = begun - (delay or 0.0)
        marker = replace(marker, through=through, derived_at=self._derived_at(begun))
        if len(page) == _PAGE and self._count(of.entity, _since(first)) >= self._bulk_from:
            soql = _select(of.entity, marker.selected, _since(first))
            job = self._reader.jobs.create(soql, all_rows=True)
            created = of.log.add(of.columns, (), replace(marker, job=job.id))
            yield created
            yield from self._by_job(of, created)
            return
        news = self._news.setdefault(of.entity, News())
        news.begin(first, math.inf if delay is None else through)
        selected = set(marker.selected)
        while not marker.is_last:
            rows: list[Mapping[str, Any]] = []
            while len(rows) < self._piece_rows and not marker.is_last:
                self._stop()
                rows += [row for row in page if row.keys() >= selected and news.has(row)]
                marker = replace(marker, is_last=len(page) < _PAGE)
                if not marker.is_last:
                    page, last = self._changed(of, marker, first, last)
            part = _with_flags(values.of_json(of.columns, rows, self._findings), rows, found=True)
            marker = replace(
                marker, until=self._until(), rows=marker.rows + len(rows), size=len(rows)
            )
            marker = of.log.add(of.columns, [part], marker)
            yield marker
        news.end()

    def _changed(
        self, of: Reading, marker: Marker, first: datetime, last: Mapping[str, Any] | None = None
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]:
        """Return the next records in the order of their stamps, at most `_PAGE`, and the last key.

        The last key is the id and the stamp after which the next page begins. The last record may
        have got another stamp by the time when it is retrieved.

        Args:
            of: The object.
            marker: The marker with the fields to select.
            first: The lowest stamp.
            last: The last key of the page before; None for the first page.
        """
        where = _since(first)
        if last is not None:
            stamp = _in_soql(stamp_of(last))
            tie = f"({STAMP} = {stamp} AND Id > '{last['Id']}')"
            where = f" WHERE {STAMP} > {stamp} OR {tie}"
        order = f"{where} ORDER BY {STAMP}, Id LIMIT {_PAGE}"
        soql = _select(of.entity, marker.selected, order)
        if len(soql) < LONGEST_QUERY:
            page = _page(self._reader, soql)
            return page, page[-1] if page else None
        keys = _page(self._reader, _select(of.entity, ("Id", STAMP), order))
        found = self._retrieved(of.entity, [key["Id"] for key in keys], marker.selected)
        # A record that is purged meanwhile leaves its key, for the next page.
        return [found[key["Id"]] or key for key in keys], keys[-1] if keys else None

    def _retrieved(
        self, entity: str, ids: Sequence[str], selected: Sequence[str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return records by id; None for those that the org has not returned."""
        found = self._reader.retrieve(entity, ids, selected)
        missing = [record_id for record_id, row in found.items() if row is None]
        found.update(rows_by_query(self._reader, entity, missing, selected))
        return found

    def _sent(self, sent: float) -> float:
        """Return the org's time when a request was sent to which it has just responded.

        Args:
            sent: The same time on the monotonic clock.
        """
        return self._org_time().timestamp() - (time.monotonic() - sent)

    def _count(self, entity: str, where: str = "") -> int:
        soql = f"SELECT COUNT() FROM {entity}{where}"  # noqa: S608  # no SQL
        return next(iter(self._reader.query(soql, all_rows=True))).total

    def _by_ids(self, ids: Sequence[str], of: Reading, marker: Marker) -> Marker:
        sent = time.monotonic()
        found = self._retrieved(of.entity, ids, marker.selected)
        rows = [row for row in found.values() if row is not None]
        absent = [{"Id": record_id} for record_id, row in found.items() if row is None]
        parts = [
            _with_flags(values.of_json(of.columns, part, self._findings), part, found=is_found)
            for part, is_found in ((rows, True), (absent, False))
        ]
        done = replace(
            marker,
            until=self._until(),
            derived_at=self._derived_at(self._sent(sent)),
            rows=len(rows),
            size=len(found),
            absent=len(absent),
            is_last=True,
        )
        return of.log.add(of.columns, parts, done)

    def _by_queries(self, of: Reading, marker: Marker) -> Iterator[Marker]:
        while not marker.is_last:
            rows: list[Mapping[str, Any]] = []
            after, is_last = marker.after, False
            while len(rows) < self._piece_rows and not is_last:
                self._stop()
                most = min(_PAGE, self._piece_rows - len(rows))
                found = _page(self._reader, _query(of, marker, after, most))
                rows += found
                after, is_last = (found[-1]["Id"] if found else after), len(found) < most
            part = _with_flags(values.of_json(of.columns, rows, self._findings), rows, found=True)
            marker = replace(
                marker,
                after=after,
                is_last=is_last,
                until=self._until(),
                rows=marker.rows + len(rows),
                size=len(rows),
            )
            marker = of.log.add(of.columns, [part], marker)
            yield marker

    def _by_job(self, of: Reading, marker: Marker) -> Iterator[Marker]:
        if marker.job is None:
            raise AssertionError("the marker of a Bulk read must name its job")
        job = self._wait(marker.job)
        until = marker.until or self._until()
        locator = marker.locator
        while not marker.is_last:
            self._stop()
            with tempfile.TemporaryFile(prefix="sfpubsub-") as file:
                page = self._reader.jobs.results(
                    job.id,
                    file,
                    columns=marker.selected,
                    locator=locator,
                    max_records=self._piece_rows,
                )
                locator = page.next_locator
                marker = replace(
                    marker,
                    locator=locator,
                    is_last=locator is None,
                    until=until,
                    rows=marker.rows + page.records,
                    size=page.records,
                    total=job.records_processed,
                )
                _check_count(job, marker)
                marker = of.log.add(of.columns, self._of_page(of, page, marker), marker)
            yield marker
        self._reader.jobs.delete(job.id)

    def _of_page(self, of: Reading, page: Any, marker: Marker) -> Iterator[pa.Table]:
        blocks = values.of_csv(
            of.columns,
            page.file,
            marker.selected,
            has_header=page.has_header,
            findings=self._findings,
        )
        for rows, texts in blocks:
            flags = texts[_DELETED] if _DELETED in texts.column_names else None
            yield _flagged(rows, values.flags_of(flags, len(rows)), found=True)

    def _wait(self, job_id: str) -> QueryJob:
        deadline = time.monotonic() + _JOB_TIMEOUT
        return self._reader.jobs.wait(job_id, deadline=deadline, progress=lambda _: self._stop())

    def _derived_at(self, sent: float) -> datetime:
        return datetime.fromtimestamp(sent, UTC) - self._margin

    def _until(self) -> datetime:
        return self._org_time() + self._margin + _SECOND

    def _org_time(self) -> datetime:
        found = self._reader.org_time
        if found is None:
            raise RemoteProtocolError(
                "the org's response has no Date header: check whether a proxy removes headers"
            )
        return found.astimezone(UTC)


def rows_by_query(
    reader: OrgReader, entity: str, ids: Sequence[str], selected: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return those records that a request by id did not return, but a query of all rows does.

    Such a query includes the Recycle Bin, and archived activities; whether a request by id returns
    these is not documented. If neither does, a record is absent.

    Args:
        reader: Sends requests to the org.
        entity: The object.
        ids: Ids of the records.
        selected: Fields to return, including ``Id``.
    """
    there: list[str] = []
    for part in _chunks(ids, _IDS_PER_QUERY):
        there += [row["Id"] for row in _page(reader, _query_of(entity, ["Id"], part))]
    found: dict[str, dict[str, Any]] = {each: {"Id": each} for each in there}
    fields = [each for each in selected if each != "Id"]
    for part in _chunks(there, _IDS_PER_QUERY):
        for some in _chunks(fields, _FIELDS_PER_QUERY):
            for row in _page(reader, _query_of(entity, ["Id", *some], part)):
                found[row["Id"]].update(row)
    return {each: row for each, row in found.items() if row.keys() >= set(selected)}


def ids_where(reader: OrgReader, entity: str, where: str, most: int) -> tuple[str, ...] | None:
    """Return the ids of the records that match a condition; None if more than *most* match.

    Args:
        reader: Sends requests to the org.
        entity: The object.
        where: A SOQL condition.
        most: Maximum number of ids.
    """
    found: list[str] = []
    soql = f"SELECT Id FROM {entity} WHERE {where}"  # noqa: S608  # no SQL
    for page in reader.query(soql, all_rows=True):
        found += [row["Id"] for row in page.rows]
        if len(found) > most:
            return None
    return tuple(found)


def _page(reader: OrgReader, soql: str) -> list[Mapping[str, Any]]:
    # Otherwise archived activities are left out, which the org does not call deleted.
    pages = reader.query(soql, all_rows=True)
    return [row for page in pages for row in page.rows]


def _query_of(entity: str, fields: Sequence[str], ids: Sequence[str]) -> str:
    listed = ", ".join(f"'{each}'" for each in ids)
    return f"SELECT {', '.join(fields)} FROM {entity} WHERE Id IN ({listed})"  # noqa: S608  # no SQL


def _chunks(found: Sequence[str], size: int) -> list[Sequence[str]]:
    return [found[start : start + size] for start in range(0, len(found), size)]


def _query(of: Reading, marker: Marker, after: str | None = None, most: int | None = None) -> str:
    conditions = [f"{_DELETED} = false"] if marker.kind == "sweep" and of.has_bin else []
    if after is not None:
        conditions.append(f"Id > '{after}'")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    soql = _select(of.entity, marker.selected, where)
    return soql if most is None else f"{soql} ORDER BY Id LIMIT {most}"


def _select(entity: str, fields: Sequence[str], rest: str) -> str:
    return f"SELECT {', '.join(fields)} FROM {entity}{rest}"  # noqa: S608  # no SQL


def _since(first: datetime) -> str:
    return f" WHERE {STAMP} >= {_in_soql(first)}"


def _in_soql(time: datetime) -> str:
    return f"{time.astimezone(UTC).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


def _with_flags(table: pa.Table, rows: Sequence[Mapping[str, Any]], *, found: bool) -> pa.Table:
    deleted = pa.array([row.get(_DELETED) is True for row in rows], pa.bool_())
    return _flagged(table, deleted, found=found)


def _flagged(table: pa.Table, deleted: pa.Array, *, found: bool) -> pa.Table:
    there = pa.array([found] * len(table), pa.bool_())
    return table.append_column("_is_deleted", deleted).append_column("_found", there)


def _check_count(job: QueryJob, marker: Marker) -> None:
    """Check that the results of a job are complete, if *marker* is that of the last page.

    Raises:
        ReadExpiredError: Records are missing, so the read must start over.
    """
    if marker.is_last and marker.rows != job.records_processed:
        raise ReadExpiredError(
            f"the query job {job.id} of {job.object} has processed {job.records_processed} "
            f"records, but its results contain {marker.rows}: the read starts over"
        )
