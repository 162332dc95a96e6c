"""The REST resources for single records and for queries.

`org.records` implements the changes and the queries; this module handles paths, bodies and
statuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from sfpubsub.emulator.http import discovery, permissions, streaming, tables
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import asked_of, authorised, body_of, missing
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.records.problems import RecordProblem, no_field, not_offered
from sfpubsub.emulator.org.records.queries import Plan
from sfpubsub.emulator.org.records.reading import Page

_BATCH = 2000
_SMALLEST_BATCH = 200
"""Number of rows in a page of a query: at most `_BATCH`, which is also the default. A client can
request fewer rows, but not less than `_SMALLEST_BATCH`. Documented.
"""

_COMPUTED = (discovery.ENTITIES, discovery.METRICS, *permissions.TABLES, *streaming.TABLES)
"""The objects that queries find although `org.records` does not store them."""

_CLIENT = re.compile(r"(?:^|[,;\s])client=([^,;\s]+)")
_UPSERTS_ANSWER = 46
"""First API version in which the response to an upsert that updates a record has a body."""


def create(call: Call) -> Answer:
    """POST …/sobjects/<object>: create a record, and return its id."""
    user = user_of(call)
    name = _object(call)
    made = call.world.records.create(name, body_of(call), user, origin_of(call))
    headers = {"Location": _path(call, name, made)}
    return json_answer(_saved(made), HTTPStatus.CREATED, headers)


def read(call: Call) -> Answer:
    """GET …/sobjects/<object>/<Id>?fields=…: return the named fields of a record, or all fields."""
    user = user_of(call)
    of, found = _object(call), call.parts["id"]
    return json_answer(record(call, of, call.world.records.get(of, found, _fields(call), user)))


def read_computed(call: Call) -> Answer:
    """GET …/sobjects/<object>/<Id>?fields=… of an object whose records are not stored: return the
    named fields of a record, or all fields.
    """
    user, name = user_of(call), call.parts["object"]
    of = tables.of_call(call, _COMPUTED)[name.lower()].of
    names = [field.name for field in of.fields] if (given := _fields(call)) is None else given
    for one in names:
        if of.field(one) is None:
            raise no_field(one, name)
    text = f"SELECT {', '.join(names)} FROM {name} WHERE Id = '{call.parts['id']}'"  # noqa: S608
    plan = call.world.records.plan(text, user, computed=tables.of_call(call, _COMPUTED))
    found = call.world.records.page(plan, user, 1, tables.linker(call, _COMPUTED)).rows
    if not found:
        raise missing()
    return json_answer(found[0])


def update(call: Call) -> Answer:
    """PATCH …/sobjects/<object>/<Id>: change fields of a record."""
    user = user_of(call)
    given = body_of(call)
    call.world.records.update(_object(call), call.parts["id"], given, user, origin_of(call))
    return Answer(HTTPStatus.NO_CONTENT)


def delete(call: Call) -> Answer:
    """DELETE …/sobjects/<object>/<Id>: move a record to the Recycle Bin."""
    user = user_of(call)
    call.world.records.delete(_object(call), call.parts["id"], user, origin_of(call))
    return Answer(HTTPStatus.NO_CONTENT)


def upsert(call: Call) -> Answer:
    """PATCH …/sobjects/<object>/<field>/<value>: update the record with this external id, or create
    it. If several records have it, change none and return their URLs with status 300.
    """
    user = user_of(call)
    name, value = _object(call), unquote(call.parts["value"])
    try:
        found, made = call.world.records.upsert(
            name, call.parts["field"], value, body_of(call), user, origin_of(call)
        )
    except RecordProblem as problem:
        if problem.status != HTTPStatus.MULTIPLE_CHOICES:
            raise
        urls = [_path(call, name, one) for one in problem.fields]
        return json_answer(urls, HTTPStatus.MULTIPLE_CHOICES)
    if made:
        headers = {"Location": _path(call, name, found)}
        return json_answer({**_saved(found), "created": True}, HTTPStatus.CREATED, headers)
    if int(call.parts["version"]) < _UPSERTS_ANSWER:
        return Answer(HTTPStatus.NO_CONTENT)
    return json_answer({**_saved(found), "created": False})


def read_by(call: Call) -> Answer:
    """GET …/sobjects/<object>/<field>/<value>: return the record with this external id. If several
    records have it, return their URLs with status 300.
    """
    user = user_of(call)
    found = _one_by(call, user)
    return found if isinstance(found, Answer) else json_answer(record(call, _object(call), found))


def delete_by(call: Call) -> Answer:
    """DELETE …/sobjects/<object>/<field>/<value>: delete the record with this external id. If
    several records have it, delete none and return their URLs with status 300.
    """
    user = user_of(call)
    found = _one_by(call, user)
    if isinstance(found, Answer):
        return found
    call.world.records.delete(_object(call), found["Id"], user, origin_of(call))
    return Answer(HTTPStatus.NO_CONTENT)


def query(call: Call) -> Answer:
    """GET …/query?q=… or …/queryAll?q=…: return the first page of a query or, with `columns=true`,
    the columns of the query.
    """
    plan, page = query_of(call, _COMPUTED)
    return json_answer(tables.metadata(plan)) if page is None else _page(call, page)


def query_of(call: Call, computed: Sequence[Table]) -> tuple[Plan, Page | None]:
    """Return the query in a request, and its first page; no page if only its columns are wanted.

    Args:
        call: The request.
        computed: The objects that can be queried although they are not stored.

    Raises:
        RestRefused: The token is not valid.
        RecordProblem: The query is not valid.
    """
    user, asked, records = user_of(call), _asked(call), call.world.records
    if "explain" in asked:
        raise not_offered("explain")
    deleted = call.parts.get("all") is not None
    found = tables.of_call(call, computed)
    plan = records.plan(asked.get("q", ""), user, deleted=deleted, computed=found)
    if asked.get("columns") == "true":
        return plan, None
    return plan, records.page(plan, user, _size(call), tables.linker(call, computed))


def query_more(call: Call) -> Answer:
    """GET …/query/<locator> or …/queryAll/<locator>: return the next page of a query."""
    user, link = user_of(call), tables.linker(call, _COMPUTED)
    return _page(call, call.world.records.next_page(call.parts["locator"], user, link))


def user_of(call: Call) -> User:
    """Return the user of the request's token.

    Raises:
        RestRefused: The token is not valid.
        Problem: The emulator does not serve this API version.
    """
    authorised(call)
    return call.world.accounts.holder(call.world.sessions.user_of(call.bearer) or "")


def origin_of(call: Call, api: str = "rest") -> str:
    """Return the changeOrigin for the header of change events that the request causes."""
    origin = f"com/salesforce/api/{api}/{call.parts['version']}.0"
    client = _CLIENT.search(call.headers.get("Sforce-Call-Options", ""))
    return f"{origin};client={client[1]}" if client else origin


def record(call: Call, of: str, values: Mapping[str, Any], record_id: str = "") -> dict[str, Any]:
    """Return a record as the JSON object of a response: `attributes` with its type and URL, then
    its values.

    Args:
        call: The request.
        of: The object's name.
        values: The values to return, by field name.
        record_id: The record's id; if empty, it is read from *values* or from the path.
    """
    name = call.world.records.describe(of).name
    url = _path(call, name, record_id or str(values.get("Id", call.parts.get("id", ""))))
    return {"attributes": {"type": name, "url": url}, **values}


def _page(call: Call, page: Page) -> Answer:
    answer: dict[str, Any] = {"totalSize": page.total, "done": not page.rest}
    if page.rest:
        every = call.parts.get("all") or ""
        version = call.parts["version"]
        answer["nextRecordsUrl"] = f"/services/data/v{version}.0/query{every}/{page.rest}"
    return json_answer({**answer, "records": page.rows})


def _one_by(call: Call, user: User) -> dict[str, Any] | Answer:
    name = _object(call)
    value = unquote(call.parts["value"])
    found = call.world.records.find(name, call.parts["field"], value, None, user)
    if not found:
        raise missing()
    if len(found) > 1:
        urls = [_path(call, name, row["Id"]) for row in found]
        return json_answer(urls, HTTPStatus.MULTIPLE_CHOICES)
    wanted = _fields(call)
    if wanted is None:
        return found[0]
    return call.world.records.get(name, found[0]["Id"], wanted, user)


def _object(call: Call) -> str:
    """Return the name of the object in the request's path, as the org spells it.

    Raises:
        Problem: The object does not exist.
    """
    try:
        return call.world.records.seen(call.parts["object"], user_of(call)).name
    except RecordProblem as problem:
        raise missing() from problem


def _fields(call: Call) -> list[str] | None:
    """Return the field names in the request's parameter `fields`, plus the id. If the parameter is
    missing or empty, return None, which means all fields.
    """
    names = [name for name in _asked(call).get("fields", "").split(",") if name]
    if not names:
        return None
    return names if "id" in map(str.lower, names) else [*names, "Id"]


def _asked(call: Call) -> dict[str, str]:
    return {name: texts[0] for name, texts in asked_of(call).items()}


def _size(call: Call) -> int:
    """Return the number of rows per page: the batch size requested by the client, within limits."""
    wish = re.search(r"batchSize=(\d{1,9})", call.headers.get("Sforce-Query-Options", ""))
    return min(_BATCH, max(_SMALLEST_BATCH, int(wish[1]))) if wish else _BATCH


def _saved(record_id: str) -> dict[str, Any]:
    return {"id": record_id, "success": True, "errors": []}


def _path(call: Call, of: str, record_id: str) -> str:
    return f"/services/data/v{call.parts['version']}.0/sobjects/{of}/{record_id}"
