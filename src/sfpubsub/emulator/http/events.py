"""Platform events in the REST API: publishing an event by creating it like a record, and reading
event schemas.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import RestRefused, asked_of, authorised, body_of, missing
from sfpubsub.emulator.http.sobjects import user_of
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.bus import Draft, Topic
from sfpubsub.emulator.org.event_values import event_values
from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.records.problems import RecordProblem, no_object
from sfpubsub.emulator.org.schemas import Schema, SchemaProblem

_EVENT_ID = "e00xx0000000001AAA"
"""The id in the response to a publication: a constant without meaning. Documented."""

_FIRST_VERSION = 40
_FIRST_FORMATS = 43
"""API versions that introduced event schemas (`_FIRST_VERSION`) and the parameter payloadFormat
(`_FIRST_FORMATS`).
"""


def publish(call: Call) -> Answer:
    """POST …/sobjects/<event>__e: publish a platform event, and return its event UUID."""
    user = user_of(call)
    if topic_of(call, call.parts["event"]) is None:
        raise missing()
    return json_answer(
        published(call, call.parts["event"], body_of(call), user), HTTPStatus.CREATED
    )


def topic_of(call: Call, event: str) -> Topic | None:
    """Return the topic of a platform event, ignoring case; None if there is no such event."""
    wanted = f"/event/{event.lower()}"
    for topic in call.world.bus.topics():
        if topic.name.lower() == wanted and topic.schema_id:
            return topic
    return None


def published(call: Call, event: str, given: dict[str, Any], user: User) -> dict[str, Any]:
    """Publish a platform event, and return the result as a JSON object.

    Args:
        call: The request.
        event: Name of the event, ignoring case.
        given: The values of its fields.
        user: The user who publishes it.

    Raises:
        RecordProblem: There is no such event, a value is not valid, or the event is refused.
    """
    world, topic = call.world, topic_of(call, event)
    if topic is None:
        raise no_object(event)
    schema, now = world.bus.schema(topic.schema_id), world.clock.now()
    try:
        payload = schema.encode(event_values(schema, given, user.user_id, now), now)
    except BadValue as error:
        raise RecordProblem(error.code, str(error), error.field) from error
    except SchemaProblem as error:
        raise RecordProblem("JSON_PARSER_ERROR", str(error)) from error
    try:
        (done,) = world.bus.publish(topic.name, [Draft(payload, schema.schema_id)])
    except Refused as refused:
        raise RecordProblem(
            "CANNOT_INSERT_UPDATE_ACTIVATE_ENTITY", refused.text, status=HTTPStatus.FORBIDDEN
        ) from refused
    if done.problem is not None:
        raise RecordProblem("LIMIT_EXCEEDED", done.problem)
    queued = {"statusCode": "OPERATION_ENQUEUED", "message": done.event_id, "fields": []}
    return {"id": _EVENT_ID, "success": True, "errors": [queued]}


def schema_of_event(call: Call) -> Answer:
    """GET …/sobjects/<event>/eventSchema: return the current schema of an event."""
    _of_this_version(call)
    wanted = {f"/event/{call.parts['event']}", f"/data/{call.parts['event']}"}
    for topic in call.world.bus.topics():
        if topic.name in wanted and topic.schema_id:
            return _schema(call, call.world.bus.schema(topic.schema_id))
    raise missing()


def schema_by_id(call: Call) -> Answer:
    """GET …/event/eventSchema/<schema id>: return the schema with this id."""
    _of_this_version(call)
    try:
        return _schema(call, call.world.bus.schema(call.parts["id"]))
    except Refused as refused:
        raise missing() from refused


def _of_this_version(call: Call) -> None:
    if authorised(call) < _FIRST_VERSION:
        raise missing()


def _schema(call: Call, schema: Schema) -> Answer:
    asked = asked_of(call).get("payloadFormat", ["EXPANDED"])[0]
    known = ("EXPANDED", "COMPACT") if int(call.parts["version"]) >= _FIRST_FORMATS else ()
    if asked not in known and "payloadFormat" in call.query:
        raise RestRefused(
            "INVALID_PARAMETER",
            "payloadFormat must be EXPANDED or COMPACT, and requires API version 43.0 or later",
        )
    value = json.loads(schema.text)
    return json_answer(value if asked == "COMPACT" else _expanded(value))


def _expanded(compact: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the message in which a Streaming API subscriber receives an event. The
    message also contains the channel and the replay id. *compact* is the schema of the event alone.
    """
    event = {"type": "record", "name": "Event", "fields": [{"name": "replayId", "type": "long"}]}
    payload = {"type": "record", "name": "Payload", "doc": "", "fields": compact["fields"]}
    data = [
        {"name": "schema", "type": "string"},
        {"name": "payload", "type": payload},
        {"name": "event", "type": event},
    ]
    record = {"type": "record", "name": "Data", "namespace": "", "fields": data}
    return {
        "name": compact["name"],
        "namespace": compact.get("namespace", "com.sforce.eventbus"),
        "type": "expanded-record",
        "fields": [{"name": "data", "type": record}, {"name": "channel", "type": "string"}],
    }
