"""The collection resources of the REST API. One request reads up to 2,000 records, or changes up to
200 records in one transaction and returns a result for each.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from sfpubsub.emulator.http import events
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import RestRefused, asked_of, body_of
from sfpubsub.emulator.http.sobjects import origin_of, record, user_of
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.records.problems import RecordProblem, no_object
from sfpubsub.emulator.org.records.writing import Transaction

_MOST = 200
_MOST_READ = 2000
"""Maximum number of records in a request that changes records (`_MOST`), and in a request that
reads records (`_MOST_READ`). Documented.
"""

_ROLLED_BACK = RecordProblem(
    "ALL_OR_NONE_OPERATION_ROLLED_BACK",
    "Record rolled back because not all records were valid and the request was using AllOrNone"
    " header",
)

_One = Callable[[Transaction, Any], dict[str, Any]]


class _RollBack(Exception):  # noqa: N818 - rolls back a transaction, not an error
    pass


def create(call: Call) -> Answer:
    """POST …/composite/sobjects: create records and publish platform events, and return a result
    for each. Events are published first, and not taken back when records are rolled back.
    """
    user, published = user_of(call), dict[int, dict[str, Any] | RecordProblem]()
    for place, item in enumerate(_records(body_of(call))[:_MOST]):
        with contextlib.suppress(RecordProblem):
            kind, values = _typed(item)
            if kind.lower().endswith("__e"):
                published[place] = _published(call, kind, values, user)
    places = itertools.count()

    def one(changing: Transaction, given: Any) -> dict[str, Any]:
        result = published.get(next(places))
        if isinstance(result, RecordProblem):
            raise result
        if result is not None:
            return result
        kind, values = _typed(given)
        return _saved(changing.create(kind, values))

    return _changed(call, one)


def _published(
    call: Call, kind: str, values: dict[str, Any], user: User
) -> dict[str, Any] | RecordProblem:
    try:
        return events.published(call, kind, values, user)
    except RecordProblem as problem:
        return problem


def update(call: Call) -> Answer:
    """PATCH …/composite/sobjects: change fields of records, and return a result for each."""

    def one(changing: Transaction, given: Any) -> dict[str, Any]:
        kind, values = _typed(given)
        record_id = _taken(values, "id")
        if not isinstance(record_id, str):
            raise RecordProblem("MISSING_ARGUMENT", "Id not specified in an update call")
        changing.update(kind, record_id, values)
        return _saved(record_id)

    return _changed(call, one)


def upsert(call: Call) -> Answer:
    """PATCH …/composite/sobjects/<object>/<field>: update or create records by external id, and
    return a result for each.
    """

    def one(changing: Transaction, given: Any) -> dict[str, Any]:
        kind, values = _typed(given)
        if kind.lower() != call.parts["object"].lower():
            text = f"the records must be of type {call.parts['object']}"
            raise RecordProblem("INVALID_TYPE", text)
        field = call.parts["field"]
        found, made = changing.upsert(kind, field, _taken(values, field.lower()), values)
        return {**_saved(found), "created": made}

    return _changed(call, one)


def delete(call: Call) -> Answer:
    """DELETE …/composite/sobjects?ids=…&allOrNone=…: delete records; return a result for each."""
    user = user_of(call)
    asked = asked_of(call)
    ids = [one for text in asked.get("ids", []) for one in text.split(",") if one]

    def one(changing: Transaction, record_id: Any) -> dict[str, Any]:
        of = call.world.records.by_prefix(record_id)
        if of is None:
            raise RecordProblem("MALFORMED_ID", f"malformed id {record_id[:80]}")
        changing.delete(of.name, record_id)
        return _saved(record_id)

    all_or_none = asked.get("allOrNone", ["false"])[0].lower() == "true"
    return _carried_out(call, user, ids, one, all_or_none=all_or_none)


def read(call: Call) -> Answer:
    """GET …/composite/sobjects/<object>?ids=…&fields=…, or POST with both in the body: return
    fields of several records, with null for each record that does not exist.
    """
    user = user_of(call)
    if call.method == "POST":
        body = body_of(call)
        ids, fields = body.get("ids"), body.get("fields")
    else:
        asked = asked_of(call)
        ids = [one for text in asked.get("ids", []) for one in text.split(",") if one]
        fields = [one for text in asked.get("fields", []) for one in text.split(",") if one]
    ids, fields = _texts("ids", ids), _texts("fields", fields)
    if len(ids) > _MOST_READ:
        raise _too_many(_MOST_READ)
    records = call.world.records
    try:
        of = records.seen(call.parts["object"], user)
    except RecordProblem as problem:
        raise RestRefused(problem.code, problem.text) from problem
    rows: list[dict[str, Any] | None] = []
    hides = of.archivable and not call.world.settings.archived_by_id
    for one in ids:
        try:
            if hides and records.get(of.name, one, ["IsArchived"], user)["IsArchived"]:
                rows.append(None)
                continue
            rows.append(record(call, of.name, records.get(of.name, one, fields, user), one))
        except RecordProblem as problem:
            if problem.code not in ("NOT_FOUND", "ENTITY_IS_DELETED"):
                raise
            rows.append(None)
    return json_answer(rows)


def _changed(call: Call, one: _One) -> Answer:
    user = user_of(call)
    body = body_of(call)
    return _carried_out(call, user, _records(body), one, all_or_none=body.get("allOrNone") is True)


def _records(body: dict[str, Any]) -> list[Any]:
    given = body.get("records")
    if not isinstance(given, list):
        raise RestRefused("JSON_PARSER_ERROR", "records: a list is required")
    return given


def _carried_out(
    call: Call, user: Any, given: list[Any], one: _One, *, all_or_none: bool
) -> Answer:
    if len(given) > _MOST:
        raise _too_many(_MOST)
    results: list[dict[str, Any]] = []
    try:
        with call.world.records.transaction(user, origin_of(call)) as changing:
            for item in given:
                try:
                    results.append(one(changing, item))
                except RecordProblem as problem:
                    results.append(failed(problem))
            if all_or_none:
                _check_all(results)
    except _RollBack:
        results = [failed(_ROLLED_BACK) if item["success"] else item for item in results]
    return json_answer(results)


def _check_all(results: list[dict[str, Any]]) -> None:
    if not all(result["success"] for result in results):
        raise _RollBack


def failed(problem: RecordProblem) -> dict[str, Any]:
    """Return the entry of the response that reports a rejected record."""
    error = {"statusCode": problem.code, "message": problem.text, "fields": list(problem.fields)}
    return {"success": False, "errors": [error]}


def _saved(record_id: str) -> dict[str, Any]:
    return {"id": record_id, "success": True, "errors": []}


def _typed(given: Any) -> tuple[str, dict[str, Any]]:
    """Return the object name and the values of a record in a request.

    Raises:
        RecordProblem: The record does not name its object in `attributes`.
    """
    attributes = given.get("attributes") if isinstance(given, dict) else None
    kind = attributes.get("type") if isinstance(attributes, dict) else None
    if not isinstance(kind, str):
        raise no_object(str(kind))
    return kind, {name: value for name, value in given.items() if name != "attributes"}


def _taken(values: dict[str, Any], name: str) -> Any:
    """Remove the member *name*, ignoring case, from a JSON object, and return the member's value.
    Return None if the member is missing. *name* must be in lower case.
    """
    for key in list(values):
        if key.lower() == name:
            return values.pop(key)
    return None


def _texts(name: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not given or not all(isinstance(x, str) for x in given):
        raise RestRefused("MISSING_ARGUMENT", f"{name}: a list of strings is required", name)
    return given


def _too_many(most: int) -> RestRefused:
    return RestRefused("INVALID_INPUT", f"the request has more than {most} records, the maximum")
