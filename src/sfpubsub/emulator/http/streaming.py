"""PushTopics and generic channels in the REST API: their records, and the
publication of generic events.

The values of a record are validated here. The query of a PushTopic may name an object that this org
does not have, whose events are published by tests; `org.records.publishing` applies it to changed
records.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import RestRefused, authorised, body_of, missing
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.cometd.channels import Record
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.problems import RecordProblem

_PAYLOAD_CHARS = 3000
"""Maximum number of characters in the payload of a generic event. Documented."""

_NAME = {
    "PushTopic": re.compile(r"[A-Za-z]\w{0,24}", re.ASCII),
    "StreamingChannel": re.compile(r"/u/[\w/-]{1,77}", re.ASCII),
}

_OPERATIONS = "NotifyForOperations"
"""A field that is read-only since API version 29.0, and tells nothing about deletions. Documented.
"""

_NOTIFY = "NotifyForOperation"
_YES = {"type": "boolean", "default": True}
_KINDS = ["All", "Create", "Extended", "Update"]

OBJECTS: dict[str, SObject] = {
    of.name: of
    for of in (
        SObject(
            {
                "name": "PushTopic",
                "label": "Push Topic",
                "key_prefix": "0IF",
                "fields": [
                    {"name": "Name", "type": "string", "length": 25, "required": True},
                    {"name": "Query", "type": "string", "length": 1300, "required": True},
                    {"name": "ApiVersion", "type": "double", "scale": 1, "required": True},
                    {"name": "IsActive", **_YES},
                    {
                        "name": "NotifyForFields",
                        "type": "picklist",
                        "picklist": ["All", "Referenced", "Select", "Where"],
                        "restricted": True,
                        "default": "Referenced",
                    },
                    {
                        "name": _OPERATIONS,
                        "type": "picklist",
                        "picklist": _KINDS,
                        "restricted": True,
                        "read_only": True,
                    },
                    {"name": "Description", "type": "string", "length": 400},
                    {"name": f"{_NOTIFY}Create", **_YES},
                    {"name": f"{_NOTIFY}Update", **_YES},
                    {"name": f"{_NOTIFY}Delete", **_YES},
                    {"name": f"{_NOTIFY}Undelete", **_YES},
                ],
            }
        ),
        SObject(
            {
                "name": "StreamingChannel",
                "label": "Streaming Channel",
                "key_prefix": "0M6",
                "fields": [
                    {"name": "Name", "type": "string", "length": 80, "required": True},
                    {"name": "Description", "type": "string", "length": 255},
                ],
            }
        ),
    )
}
"""The two objects, as describe shows them."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {
        field.name: field.default
        for field in map(of.field, (row["name"] for row in of.definition["fields"]))
        if field is not None and field.name != "Name"
    }
    for name, of in OBJECTS.items()
}
"""The fields of each object besides Name, with their defaults."""


def create(call: Call) -> Answer:
    """POST …/sobjects/<object>: create a PushTopic or StreamingChannel record and its channel, and
    return the record's id.
    """
    authorised(call)
    kind, given = call.parts["object"], _given(call)
    name = given.get("Name")
    for field in ("Name", "Query", "ApiVersion") if kind == "PushTopic" else ("Name",):
        if not given.get(field):
            text = f"Required fields are missing: [{field}]"
            raise RestRefused("REQUIRED_FIELD_MISSING", text, field)
    if not isinstance(name, str) or not _NAME[kind].fullmatch(name):
        raise RestRefused("INVALID_FIELD", "Name: not a valid channel name", "Name")
    fields = {**_DEFAULTS[kind], **{key: value for key, value in given.items() if key != "Name"}}
    try:
        made = call.world.cometd.channels.create(kind, name, fields)
    except EmulatorProblem as problem:
        text = "duplicate value found: Name duplicates value on record"
        raise RestRefused("DUPLICATE_VALUE", text, "Name") from problem
    answer = {"id": made.record_id, "success": True, "errors": []}
    return json_answer(answer, HTTPStatus.CREATED)


def read(call: Call) -> Answer:
    """GET …/sobjects/<object>/<Id>: return a PushTopic or StreamingChannel record."""
    authorised(call)
    return json_answer(_row(call, _record(call)))


def update(call: Call) -> Answer:
    """PATCH …/sobjects/<object>/<Id>: change fields of a PushTopic or StreamingChannel record."""
    authorised(call)
    record, given = _record(call), _given(call)
    if given.pop("Name", record.name) != record.name:
        raise RestRefused("INVALID_FIELD", "Name: not changeable in the emulator", "Name")
    call.world.cometd.channels.update(record, given)
    return Answer(HTTPStatus.NO_CONTENT)


def delete(call: Call) -> Answer:
    """DELETE …/sobjects/<object>/<Id>: delete a PushTopic or StreamingChannel record."""
    authorised(call)
    call.world.cometd.channels.delete(_record(call).record_id)
    return Answer(HTTPStatus.NO_CONTENT)


def online(call: Call) -> Answer:
    """GET …/sobjects/StreamingChannel/<Id>/push: return the ids of the users subscribed to a
    generic channel.
    """
    authorised(call)
    record = _record(call)
    users = sorted(call.world.cometd.sessions.users_of(record.name))
    return json_answer({"OnlineUserIds": users, "ChannelName": record.name})


def push(call: Call) -> Answer:
    """POST …/sobjects/StreamingChannel/<Id>/push: publish events to a generic channel. For each
    event, return the number of its recipients who are subscribed, or -1 if it names no recipients.
    """
    authorised(call)
    record, events = _record(call), body_of(call).get("pushEvents")
    if not isinstance(events, list) or not events:
        raise RestRefused("REQUIRED_FIELD_MISSING", "Required fields are missing: [pushEvents]")
    answers = []
    for event in events:
        payload = event.get("payload") if isinstance(event, dict) else None
        if not isinstance(payload, str) or len(payload) > _PAYLOAD_CHARS:
            text = f"payload must be a string of at most {_PAYLOAD_CHARS} characters"
            raise RestRefused("INVALID_FIELD", text, "payload")
        users = list(event.get("userIds") or [])
        present = call.world.cometd.sessions.users_of(record.name)
        found = [{"payload": payload, "userIds": users} if users else {"payload": payload}]
        call.world.cometd.channels.publish(record.name, found)
        reached = len(present & set(users)) if users else -1
        status = {user: user in present for user in users}
        answers.append({"fanoutCount": reached, "userOnlineStatus": status})
    return json_answer(answers)


def _given(call: Call) -> dict[str, Any]:
    """Return the fields in the body of a request, without those that are null and have a default.

    Raises:
        RestRefused: A field does not exist or cannot be set, or the query is not valid.
    """
    kind, given = call.parts["object"], body_of(call)
    given.pop("attributes", None)  # of the JSON form of a record; the URL has the type
    defaults = _DEFAULTS[kind]
    for column in given:
        if column == _OPERATIONS:
            text = f"Unable to create/update fields: {column}"
            raise RestRefused("INVALID_FIELD_FOR_INSERT_UPDATE", text, column)
        if column not in (*defaults, "Name"):
            text = f"No such column '{column[:80]}' on sobject of {kind}"
            raise RestRefused("INVALID_FIELD", text)
    if query := given.get("Query"):
        _check_query(call, str(query))
    return {
        column: value
        for column, value in given.items()
        if value is not None or defaults.get(column) is None
    }


def _check_query(call: Call, query: str) -> None:
    """Check that a query has only fields of one object and a condition.

    Raises:
        RestRefused: It has something else, or the org has the object, but not its fields.
    """
    records = call.world.records
    try:
        asked = soql.parse(query)
        if asked.of.lower() in map(str.lower, records.objects()):
            user = call.world.accounts.holder(call.world.sessions.user_of(call.bearer) or "")
            records.plan(query, user)
    except (soql.Malformed, RecordProblem) as problem:
        raise RestRefused("INVALID_FIELD", f"Query: {problem}", "Query") from problem
    simple = soql.Select(asked.columns, asked.of, asked.where, (), (), None, 0)
    plain = all(item.field.isidentifier() and not item.function for item in asked.columns)
    if asked != simple or asked.counts or not plain:
        text = "Query: only fields of one object and a condition are allowed"
        raise RestRefused("INVALID_FIELD", text, "Query")


def _record(call: Call) -> Record:
    for record in call.world.cometd.channels.records(call.parts["object"]):
        if call.parts["id"] in (record.record_id, record.record_id[:15]):
            return record
    raise missing()


def _row(call: Call, record: Record) -> dict[str, Any]:
    path = f"/services/data/v{call.parts['version']}.0/sobjects/{record.kind}/{record.record_id}"
    return {"attributes": {"type": record.kind, "url": path}, **_values(record)}


def _values(record: Record) -> dict[str, Any]:
    own = {"Id": record.record_id, "Name": record.name}
    fields = {**own, **_DEFAULTS[record.kind], **record.fields}
    if _OPERATIONS in fields:
        told = [kind for kind in ("Create", "Update") if fields[f"{_NOTIFY}{kind}"]]
        fields[_OPERATIONS] = told[0] if len(told) == 1 else "All" if told else "Extended"
    return fields


def _table(kind: str) -> Table:
    def rows(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
        return [_values(record) for record in call.world.cometd.channels.records(kind)]

    of = OBJECTS[kind]
    names = ("Id", "Name", *_DEFAULTS[kind])
    fields = {field.name: field.type for field in of.fields if field.name in names}
    return Table(kind, fields, rows, path=f"sobjects/{kind}", prefix=of.key_prefix)


TABLES = tuple(map(_table, OBJECTS))
"""The two objects, as queries see them."""
