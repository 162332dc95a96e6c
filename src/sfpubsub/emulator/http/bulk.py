"""The resources of the Bulk API 2.0: query jobs and ingest jobs. `org.records.jobs` runs them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call, Problem, json_answer
from sfpubsub.emulator.http.rest import RestRefused, asked_of, body_of, missing
from sfpubsub.emulator.http.sobjects import origin_of, user_of
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.records.job_store import (
    DELIMITERS,
    ENDED,
    ENDINGS,
    INGESTS,
    QUERIES,
    Job,
)
from sfpubsub.emulator.org.records.job_work import columns_of
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.records.result_file import ResultFile

_CSV = "text/csv; charset=UTF-8"
_QUERY_API, _INGEST_API = 47, 41
"""API versions that introduced query jobs (`_QUERY_API`) and ingest jobs (`_INGEST_API`)."""

_MEMBERS = {
    "query": ("operation", "query", "columnDelimiter", "lineEnding", "contentType"),
    "ingest": (
        "operation",
        "object",
        "externalIdFieldName",
        "columnDelimiter",
        "lineEnding",
        "contentType",
        "assignmentRuleId",
    ),
}
_PLACE_DIGITS = 12
"""Maximum number of digits in a locator; no result has that many rows."""

_HIDDEN = ("user", "origin", "delimiter", "query", "columns", "assignmentRuleId")
_NUMBERS = ("numberRecordsProcessed", "numberRecordsFailed", "retries", "totalProcessingTime")
"""`_HIDDEN` are the properties of a job that are never returned; `_NUMBERS` are counts that are
returned only when a single job is read.
"""

_RESULTS = {
    "successfulresults": ("successful", ["sf__Id", "sf__Created"]),
    "failedresults": ("failed", ["sf__Id", "sf__Error"]),
}


def create(call: Call) -> Answer:
    """POST …/jobs/query or …/jobs/ingest: create a job, and return it without its counts."""
    user = user_of(call)
    kind, version = call.parts["kind"], int(call.parts["version"])
    facts = _checked(kind, body_of(call))
    if kind == "query":
        plan = call.world.records.plan(facts["query"], user)
        facts["object"] = plan.of.name
    else:
        of = call.world.records.seen(facts["object"], user)
        facts["object"] = of.name
    facts |= {
        "concurrencyMode": "Parallel",
        "apiVersion": float(version),
        "origin": origin_of(call),
        "delimiter": DELIMITERS[facts["columnDelimiter"]],
    }
    job = call.world.jobs.create(facts, user)
    return json_answer(_shown(job, created=True))


def every(call: Call) -> Answer:
    """GET …/jobs/query or …/jobs/ingest: return the jobs that the user may see."""
    user = user_of(call)
    jobs = call.world.jobs.all(queries=call.parts["kind"] == "query")
    rows = [_shown(job, created=True) for job in jobs if _may_see(job, user)]
    return json_answer({"done": True, "records": rows, "nextRecordsUrl": None})


def read(call: Call) -> Answer:
    """GET …/jobs/<kind>/<Id>: return a job with its counts."""
    return json_answer(_shown(_job(call)))


def change(call: Call) -> Answer:
    """PATCH …/jobs/<kind>/<Id>: close an ingest job (UploadComplete), or abort a job (Aborted)."""
    job = _job(call)
    state = body_of(call).get("state")
    if state == "Aborted":
        call.world.jobs.abort(job)
    elif state == "UploadComplete" and not job.is_query:
        call.world.jobs.close(job)
    else:
        text = (
            f"the state of a job cannot be set to {str(state)[:40]!r}: use Aborted, or"
            " UploadComplete for an ingest job"
        )
        raise RestRefused("INVALIDJOBSTATE", text)
    return json_answer(_shown(job, created=True))


def delete(call: Call) -> Answer:
    """DELETE …/jobs/<kind>/<Id>: delete a job and its files."""
    call.world.jobs.delete(_job(call))
    return Answer(HTTPStatus.NO_CONTENT)


def upload(call: Call) -> Answer:
    """PUT …/jobs/ingest/<Id>/batches: upload the rows of an ingest job, as CSV."""
    job = _job(call)
    if call.headers.get_content_type() != "text/csv":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "set the Content-Type to text/csv")
    call.world.jobs.upload(job, call.body)
    return Answer(HTTPStatus.CREATED)


def results(call: Call) -> Answer:
    """GET …/jobs/query/<Id>/results?locator=…&maxRecords=…: return a page of a query's rows as CSV.
    The status is 204 if the job is not complete.
    """
    job = _job(call)
    if job.facts["apiVersion"] != int(call.parts["version"]):
        text = "the job was created with another API version: use that version"
        raise RestRefused("API_ERROR", text, status=HTTPStatus.CONFLICT)
    if job.state != "JobComplete":
        return Answer(HTTPStatus.NO_CONTENT)
    asked = asked_of(call)
    start, wish = _start(asked.get("locator", [""])[0]), asked.get("maxRecords", [""])[0]
    most = call.world.settings.bulk_result_records
    count = min(int(wish), most) if 0 < len(wish) < 10 and wish.isdecimal() else most
    file = call.world.jobs.stored.result(job, "results", job.facts["columns"])
    there = max(0, min(count, file.count - start))
    following = start + there
    more = following < file.count
    locator = base64.b64encode(str(following).encode()).decode().rstrip("=") if more else "null"
    headers = {"Sforce-Locator": locator, "Sforce-NumberOfRecords": str(there)}
    return _file(file, start, there, headers)


def ingested(call: Call) -> Answer:
    """GET …/jobs/ingest/<Id>/successfulResults, …/failedResults or …/unprocessedrecords: return
    the successful, failed or unprocessed rows of an ingest job, as CSV. The status is 204 if the
    job has not ended, or if no rows were uploaded.
    """
    job = _job(call)
    jobs = call.world.jobs
    path = jobs.stored.upload_path(job)
    if job.state not in ENDED or not path.exists():
        return Answer(HTTPStatus.NO_CONTENT)
    columns = columns_of(path, job.facts["delimiter"])
    which = call.parts["which"].lower()
    if which in _RESULTS:
        name, added = _RESULTS[which]
        file = jobs.stored.result(job, name, [*added, *columns])
        return _file(file, 0, file.count)
    file = jobs.unprocessed(job, columns)
    return _file(file, 0, file.count)


def _file(
    file: ResultFile, start: int, count: int, headers: Mapping[str, str] | None = None
) -> Answer:
    length, pieces = file.read(start, count)
    return Answer(HTTPStatus.OK, _CSV, headers=headers or {}, pieces=pieces, length=length)


def _job(call: Call) -> Job:
    user = user_of(call)
    kind = call.parts.get("kind", "ingest")
    lowest = _QUERY_API if kind == "query" else _INGEST_API
    if int(call.parts["version"]) < lowest:
        raise missing()
    job = call.world.jobs.job(call.parts["id"], queries=kind == "query")
    if not _may_see(job, user):
        raise missing()
    return job


def _may_see(job: Job, user: User) -> bool:
    """Return whether a user may see a job: its owner may, and so may users who may view all
    records. Others may not, because the results contain the rows that the owner can see.
    """
    return user.view_all or job.facts["user"] == user.username


def _checked(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a new job from the request body, with defaults for missing ones.

    Raises:
        RestRefused: A property is unknown, is required but missing, or has a value that is not
            allowed.
    """
    for name, value in body.items():
        if name not in _MEMBERS[kind] or not isinstance(value, str):
            raise RestRefused(
                "INVALIDJOB", f"{name[:80]} is not a known property, or is not a string", name
            )
    facts = {"contentType": "CSV", "columnDelimiter": "COMMA", "lineEnding": "LF", **body}
    choices = {
        "operation": QUERIES if kind == "query" else INGESTS,
        "contentType": ("CSV",),
        "columnDelimiter": tuple(DELIMITERS),
        "lineEnding": tuple(ENDINGS),
    }
    for name, known in choices.items():
        if facts.get(name) not in known:
            raise RestRefused("INVALIDJOB", f"{name} must be one of {', '.join(known)}", name)
    needed = ["query"] if kind == "query" else ["object"]
    if facts["operation"] == "upsert":
        needed.append("externalIdFieldName")
    for name in needed:
        if not facts.get(name):
            raise RestRefused("INVALIDJOB", f"{name} is required", name)
    return facts


def _shown(job: Job, *, created: bool = False) -> dict[str, Any]:
    """Return a job as the JSON object of a response. If *created* is true, the object omits the
    counts and the job type, as in the response that creates a job.
    """
    facts = {
        name: value
        for name, value in job.facts.items()
        if name not in _HIDDEN and not (created and name in _NUMBERS)
    }
    if job.is_query:
        facts.pop("numberRecordsFailed", None)
    else:
        version = job.facts["apiVersion"]
        facts["contentUrl"] = f"services/data/v{version}/jobs/ingest/{job.job_id}/batches"
    if not created:
        facts["jobType"] = "V2Query" if job.is_query else "V2Ingest"
    return {"id": job.job_id, **facts}


def _start(locator: str) -> int:
    """Return the index of the row, counted from 0, at which the page with this locator starts; an
    empty locator means the first page.

    Raises:
        RecordProblem: The locator is not valid.
    """
    if not locator:
        return 0
    try:
        text = base64.b64decode(locator + "=" * (-len(locator) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not (text.isascii() and text.isdecimal() and len(text) < _PLACE_DIGITS):
        raise RecordProblem("INVALID_QUERY_LOCATOR", "invalid query locator")
    return int(text)
