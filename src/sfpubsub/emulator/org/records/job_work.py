"""Implements the jobs of the Bulk API: query jobs and ingest jobs.

A query job reads a snapshot of the org and writes the rows of its query to a file. An ingest job
processes the rows of an uploaded file in transactions of 200 rows. Each transaction also stores the
job's progress, so that a restarted job processes no row twice.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.records import values
from sfpubsub.emulator.org.records.job_store import Job, JobStore
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.records.result_file import ResultFile
from sfpubsub.emulator.org.records.writing import Transaction
from sfpubsub.emulator.org.store import Store

_CHUNK = 200
"""Number of rows processed in one transaction. Documented."""

_NULL = "#N/A"
"""The value that clears a field; an empty value leaves it unchanged. Documented."""


def query(jobs: JobStore, records: Records, store: Store, job: Job, user: User) -> None:
    """Run a query job: write the rows of the query to the job's file. Return early if the job is
    stopped.

    Raises:
        RecordProblem: The query cannot be executed.
    """
    plan = records.plan(job.facts["query"], user, deleted=job.facts["operation"] == "queryAll")
    select = plan.select
    wide = any(c.function == "FIELDS" and c.field.upper() != "STANDARD" for c in select.columns)
    compound = any(not output.field.is_stored for output in plan.outputs)
    if select.counts or select.aggregates or select.offset or wide or compound:
        raise RecordProblem(
            "FUNCTIONALITY_NOT_ENABLED",
            "aggregates, GROUP BY, OFFSET, FIELDS(ALL), FIELDS(CUSTOM) and compound address fields"
            " are not supported in a bulk query",
        )
    columns = [".".join(output.path) for output in plan.outputs]
    jobs.change(job, columns=columns)
    file = jobs.result(job, "results", columns)
    file.remove()
    # The stream is closed before the snapshot: an unfinished stream would block `Snapshot.close`.
    with (
        contextlib.closing(store.snapshot()) as snapshot,
        contextlib.closing(snapshot.stream(plan.rows, *plan.values)) as found,
    ):
        # After the id come the selected values, and after these the ids of parents.
        texts = [(values.as_text, output.field) for output in plan.outputs]
        rows = (
            [as_text(field, kept) for (as_text, field), kept in zip(texts, row[1:], strict=False)]
            for row in found
        )
        for count in file.append(rows):
            job.facts["numberRecordsProcessed"] = count
            if job.stopped.is_set():
                return


def columns_of(path: Path, delimiter: str) -> list[str]:
    """Return the column names in the first line of a CSV file; empty if the file is empty."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file, delimiter=delimiter), [])


def _check_ending(path: Path, ending: str) -> None:
    with path.open("rb") as file:
        first = file.readline()
    found = "CRLF" if first.endswith(b"\r\n") else "LF"
    if first.endswith(b"\n") and found != ending:
        raise RecordProblem(
            "ClientInputError",
            f"LineEnding is invalid on user data. Current LineEnding setting is {ending}",
        )


def rows_of(path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV file after its header line; blank lines are skipped."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        next(reader, None)
        yield from (row for row in reader if row)


def write_unprocessed(file: ResultFile, path: Path, job: Job) -> None:
    """Write the unprocessed rows of an ingest job to a file.

    Args:
        file: The file to write to.
        path: Path of the file that contains the uploaded rows.
        job: The job.
    """
    rows = rows_of(path, job.facts["delimiter"])
    for _count in file.append(itertools.islice(rows, job.facts["numberRecordsProcessed"], None)):
        pass


def ingest(jobs: JobStore, records: Records, job: Job, user: User) -> None:
    """Run an ingest job: process the uploaded rows that are not processed yet. Return early if the
    job is stopped.

    Raises:
        RecordProblem: The rows cannot be read, their line ends are not those of the job, or they
            have a column that the object does not have.
    """
    path, delimiter = jobs.upload_path(job), job.facts["delimiter"]
    try:
        columns = columns_of(path, delimiter) if path.exists() else []
        if columns:
            _check_ending(path, job.facts["lineEnding"])
        _check(columns, records, job)
        _take(jobs, records, job, user, columns)
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordProblem("InvalidBatch", f"the data cannot be read: {error}") from error


def _take(jobs: JobStore, records: Records, job: Job, user: User, columns: list[str]) -> None:
    good = jobs.result(job, "successful", ["sf__Id", "sf__Created", *columns])
    bad = jobs.result(job, "failed", ["sf__Id", "sf__Error", *columns])
    done, failed = job.facts["numberRecordsProcessed"], job.facts["numberRecordsFailed"]
    good.cut(done - failed)
    bad.cut(failed)
    act = _ACTS[job.facts["operation"]]
    rows = itertools.islice(rows_of(jobs.upload_path(job), job.facts["delimiter"]), done, None)
    while not job.stopped.is_set() and (chunk := list(itertools.islice(rows, _CHUNK))):
        went, failures = [], []
        with records.transaction(user, job.facts["origin"]) as changing:
            for row in chunk:
                try:
                    found, made = act(changing, job, _values(columns, row))
                    went.append([found, "true" if made else "false", *row])
                except RecordProblem as problem:
                    given = _values(columns, row).get("id") or ""
                    failures.append([given, _said(problem), *row])
            # Written before the commit: a restart truncates rows beyond the stored counts.
            for file, results in ((good, went), (bad, failures)):
                for _count in file.append(iter(results)):
                    pass
            done += len(chunk)
            failed += len(failures)
            jobs.change(job, numberRecordsProcessed=done, numberRecordsFailed=failed)


def _check(columns: Sequence[str], records: Records, job: Job) -> None:
    of = records.describe(job.facts["object"])
    if not columns:
        raise RecordProblem("InvalidBatch", "the data has no header line with field names")
    for name in columns:
        if of.field(name) is None:
            raise RecordProblem("InvalidBatch", f"Field name not found : {name[:80]}")


def _values(columns: Sequence[str], row: Sequence[str]) -> dict[str, Any]:
    """Return the non-empty values of a row by column name, with None for `#N/A`. The key of the
    record id is "id", even if the column name is written in another case.

    Raises:
        RecordProblem: The row does not have one value for each column.
    """
    if len(row) != len(columns):
        raise RecordProblem(
            "InvalidBatch", f"the row has {len(row)} values for {len(columns)} columns"
        )
    given: dict[str, Any] = {}
    for name, text in zip(columns, row, strict=True):
        if text:
            key = "id" if name.lower() == "id" else name
            given[key] = None if text == _NULL else text
    return given


def _insert(changing: Transaction, job: Job, given: dict[str, Any]) -> tuple[str, bool]:
    return changing.create(job.facts["object"], given), True


def _update(changing: Transaction, job: Job, given: dict[str, Any]) -> tuple[str, bool]:
    record_id = _id(given)
    changing.update(job.facts["object"], record_id, given)
    return values.full_id(record_id), False


def _upsert(changing: Transaction, job: Job, given: dict[str, Any]) -> tuple[str, bool]:
    field = str(job.facts["externalIdFieldName"])
    value = None
    for name in list(given):
        if name.lower() == field.lower():
            value = given.pop(name)
    return changing.upsert(job.facts["object"], field, value, given)


def _delete(changing: Transaction, job: Job, given: dict[str, Any]) -> tuple[str, bool]:
    record_id = _id(given)
    hard = job.facts["operation"] == "hardDelete"
    changing.delete(job.facts["object"], record_id, hard=hard)
    return values.full_id(record_id), False


_ACTS: dict[str, Callable[[Transaction, Job, dict[str, Any]], tuple[str, bool]]] = {
    "insert": _insert,
    "update": _update,
    "upsert": _upsert,
    "delete": _delete,
    "hardDelete": _delete,
}


def _id(given: dict[str, Any]) -> str:
    record_id = given.pop("id", None)
    if not record_id:
        raise RecordProblem("MISSING_ARGUMENT", "Id not specified in an update call")
    return str(record_id)


def _said(problem: RecordProblem) -> str:
    """Return the error of a failed row, in the format of the column sf__Error in job results."""
    fields = " ".join((*problem.fields, "--"))
    return f"{problem.code}:{problem.text}:{fields}"
