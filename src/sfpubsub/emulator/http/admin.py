"""The admin endpoint, through which tests in other processes control the emulator. Requests and
responses are JSON.

    GET  /admin/faults   the fault plan and its progress
    POST /admin/faults   add a fault: {"kind": …, "times": …}; or switch one off: {"off": number}
    GET  /admin/clock    the current time
    POST /admin/clock    move the clock forward: {"jump_s": seconds}
    POST /admin/publish  publish events as the org: {"topic": …, "events": [values, …]}
    POST /admin/token    issue an access token: {}; or expire one: {"expire": token}
    POST /admin/managed  set the state of a managed subscription: {"name": …, "state": "RUN" or
                         "STOP"}; or delete it: {"name": …, "delete": true}
    POST /admin/schema   change a topic's schema: {"topic": …, "schema": Avro}
    POST /admin/streaming publish to a PushTopic or generic channel: {"channel": …, "events": …}
    POST /admin/objects  add, change or remove a field: {"object": …, "add_field": {…}}; remove an
                         object or bring it back: {"object": …, "removed": true}; hide it or a field
                         from a user: {"object": …, "hide_from": username, "field": name}
    POST /admin/derive   set fields that no event contains: {"object": …, "id": …, "values": {…}}
    POST /admin/archive  archive a record: {"object": …, "id": …}
    POST /admin/undelete restore a record from the Recycle Bin: {"object": …, "id": …}
    POST /admin/users    create or change a user: {"username": …, "password": …, "active": …}
    POST /admin/permission-sets create or change a permission set: {"name": …, "view_all": […],
                         "assign": […], …}
    POST /admin/api-calls use up the org's API calls, or give them back: {"remaining": number}
    POST /admin/snapshots save the org's state: {"save": name}; or return to it: {"restore": name}
    POST /admin/apps     create or change an app: {"client_id": …, "public_key": PEM, …}

Every request needs `Authorization: Bearer <access token>`, and every POST a JSON body, so that an
unrelated web page in a browser cannot use the endpoint. A token that a fault has expired is still
accepted here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.http.exchange import Answer, Call, Problem, json_answer, json_body
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.schemas import Schema, SchemaProblem
from sfpubsub.emulator.org.world import World

_LONGEST_JUMP_S = 1e9
"""Largest clock jump in seconds, about 30 years. Larger jumps are reduced to this, because times
after a much larger jump would exceed the range of `datetime`.
"""

_USER: dict[str, type] = {
    "username": str,
    "password": str,
    "active": bool,
    "view_all": bool,
}
_PERMISSION_SET: dict[str, type] = {
    "name": str,
    "view_all": list,
    "view_all_data": bool,
    "assign": list,
    "unassign": list,
}
_APP: dict[str, type] = {
    "client_id": str,
    "client_secret": str,
    "run_as": str,
    "refresh_token": str,
    "public_key": str,
}


def faults(call: Call) -> Answer:
    """GET /admin/faults: return the faults that were added, and how many times each occurred."""
    _authorise(call)
    return json_answer({"faults": call.world.faults.report()})


def changing(act: Callable[[World, Any], dict[str, Any]]) -> Callable[[Call], Answer]:
    """Return a POST handler that checks the token, passes the parsed body to *act*, and responds
    with the return value of *act* as JSON.
    """

    def answer(call: Call) -> Answer:
        if call.headers.get_content_type() != "application/json":
            raise Problem(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "set the Content-Type to application/json"
            )
        _authorise(call)
        try:
            body = json_body(call)
            json.dumps(body, ensure_ascii=False).encode()  # lone surrogates cannot be stored
        except ValueError as error:
            raise _bad(f"the body is not valid JSON: {error}") from error
        return json_answer(act(call.world, body))

    return answer


def add_fault(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/faults: add a fault or switch one off, and return the fault's number."""
    try:
        if isinstance(body, dict) and set(body) == {"off"} and type(body["off"]) is int:
            world.faults.switch_off(body["off"])
            return {"number": body["off"], "off": True}
        return {"number": world.faults.add(Fault.from_json(body))}
    except (ValueError, TypeError) as error:
        raise _bad(str(error)) from error


def clock(call: Call) -> Answer:
    """GET /admin/clock: return the emulator's time, in seconds since the epoch."""
    _authorise(call)
    return json_answer({"now": call.world.clock.now()})


def publish(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/publish: publish events as the org itself would, and return their ids. If one of
    the events is not valid, none is published.
    """
    events = body.get("events") if isinstance(body, dict) and len(body) == 2 else None
    if not isinstance(events, list) or not isinstance(body.get("topic"), str):
        raise _bad('the body must be {"topic": …, "events": […]}')
    if not all(isinstance(event, dict) for event in events):
        raise _bad("each item of events must be an object")
    try:
        done = world.bus.publish_values(body["topic"], events)
    except SchemaProblem as error:
        raise _bad(str(error)) from error
    except Refused as error:
        raise _bad(error.text) from error
    return {
        "results": [{"event_id": item.event_id, "replay_id": item.replay_id.hex()} for item in done]
    }


def jump(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/clock: move the emulator's clock forward, and return the new time."""
    seconds = body.get("jump_s") if isinstance(body, dict) and len(body) == 1 else None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise _bad('the body must be {"jump_s": seconds}, with a number that is 0 or more')
    world.clock.jump(min(seconds, _LONGEST_JUMP_S))
    return {"now": world.clock.now()}


def token(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/token: issue and return a new access token; or expire a token, and return whether
    it was valid.
    """
    if body == {}:
        return {"access_token": world.sessions.new_token()}
    ended = body.get("expire") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(ended, str):
        raise _bad('the body must be {} for a new token, or {"expire": token} to expire one')
    return {"expired": world.sessions.expire(ended)}


def managed(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/managed: set the state of a managed subscription, or delete it."""
    rest = dict(body) if isinstance(body, dict) else {}
    name = rest.pop("name", None)
    removed = set(rest) == {"delete"} and rest["delete"] is True
    if not isinstance(name, str) or not (removed or rest in ({"state": "RUN"}, {"state": "STOP"})):
        raise _bad(
            'the body must be {"name": …, "state": "RUN" or "STOP"} or {"name": …, "delete": true}'
        )
    try:
        if removed:
            world.managed.delete(name)
            return {"name": name, "state": None}
        world.managed.set_state(name, rest["state"])
    except KeyError as error:
        raise _bad(f"there is no managed subscription {name!r}") from error
    return {"name": name, "state": rest["state"]}


def schema(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/schema: replace a topic's schema, given as a JSON object or as JSON text, and
    return the id of the new schema.
    """
    if not isinstance(body, dict) or set(body) != {"topic", "schema"}:
        raise _bad('the body must be {"topic": …, "schema": …}')
    topic, avro = body["topic"], body["schema"]
    if not isinstance(topic, str) or not isinstance(avro, (str, dict)):
        raise _bad("topic must be a string, and schema an Avro schema: an object, or JSON text")
    try:
        changed = Schema(avro if isinstance(avro, str) else json.dumps(avro))
        world.bus.change_schema(topic, changed)
    except SchemaProblem as error:
        raise _bad(str(error)) from error
    except Refused as error:
        raise _bad(error.text) from error
    return {"topic": topic, "schema_id": changed.schema_id}


def streaming(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/streaming: publish events to a PushTopic or generic channel, which is created if
    it does not exist, and return their replay ids.
    """
    events = body.get("events") if isinstance(body, dict) and len(body) == 2 else None
    if not isinstance(events, list) or not isinstance(body.get("channel"), str):
        raise _bad('the body must be {"channel": …, "events": […]}')
    if not all(isinstance(event, dict) for event in events):
        raise _bad("each item of events must be an object")
    try:
        return {"replay_ids": world.cometd.channels.publish(body["channel"], events)}
    except EmulatorProblem as error:
        raise _bad(str(error)) from error


def change_object(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/objects: add, change or remove a field of an object, and return the names of all
    fields, later change events use the new schema; or remove an object, bring it back, hide it or
    one of its fields from a user, or show it again.
    """
    members = dict(body) if isinstance(body, dict) else {}
    name = members.pop("object", None)
    if not isinstance(name, str):
        raise _bad('the body must be a JSON object with the key "object", the name of an object')
    records, convert = world.records, False
    try:
        match members:
            case {"removed": True, **rest} if not rest:
                records.remove_object(name)
                return {"object": name, "removed": True}
            case {"removed": False, **rest} if not rest:
                records.restore_object(name)
                return {"object": name, "removed": False}
        of = records.describe(name)
        match members:
            case {"hide_from": str(username), **rest} if set(rest) <= {"field"}:
                records.visibility.hide(username, of.name, str(rest.get("field", "")))
                return {"object": of.name}
            case {"show_to": str(username), **rest} if set(rest) <= {"field"}:
                records.visibility.show(username, of.name, str(rest.get("field", "")))
                return {"object": of.name}
            case _ if len(members) != 1:
                raise _bad("the body must have one of add_field, change_field, remove_field, …")
            case {"change_field": dict(field)}:
                of, convert = of.with_field(field), True
            case {"add_field": dict(field)}:
                of = of.with_field(field)
            case {"remove_field": str(field)}:
                of = of.without_field(field)
            case _:
                raise _bad(
                    "use add_field or change_field with an object, remove_field with the name of a"
                    " field, removed with a boolean, hide_from or show_to with a username"
                )
        records.put_object(of, convert=convert)
    except (ValueError, RecordProblem) as error:
        raise _bad(str(error)) from error
    return {"object": of.name, "fields": [item.name for item in of.fields]}


def undelete(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/undelete: restore a record from the Recycle Bin."""
    if not isinstance(body, dict) or set(body) != {"object", "id"}:
        raise _bad('the body must be {"object": …, "id": …}')
    try:
        world.records.undelete(str(body["object"]), str(body["id"]), world.accounts.holder(""))
    except RecordProblem as error:
        raise _bad(str(error)) from error
    return {"id": body["id"]}


def derive(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/derive: set fields of a record that no event contains."""
    values = body.get("values") if isinstance(body, dict) else None
    if not isinstance(values, dict) or set(body) != {"object", "id", "values"}:
        raise _bad('the body must be {"object": …, "id": …, "values": {…}}')
    try:
        world.records.derive(str(body["object"]), str(body["id"]), values)
    except RecordProblem as error:
        raise _bad(str(error)) from error
    return {"id": body["id"]}


def archive(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/archive: archive a record."""
    if not isinstance(body, dict) or set(body) != {"object", "id"}:
        raise _bad('the body must be {"object": …, "id": …}')
    try:
        world.records.archive(str(body["object"]), str(body["id"]))
    except RecordProblem as error:
        raise _bad(str(error)) from error
    return {"id": body["id"]}


def user(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/users: create or change a user."""
    fields = _fields(body, _USER, "username")
    world.accounts.put_user(**fields)
    return {"username": fields["username"]}


def permission_set(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/permission-sets: create or change a permission set, then assign it to users or
    take it away from them, and return its id.
    """
    fields = _fields(body, _PERMISSION_SET, "name")
    lists = {key: fields.pop(key, None) for key in ("view_all", "assign", "unassign")}
    for key, names in lists.items():
        if names is not None and not all(isinstance(name, str) for name in names):
            raise _bad(f"{key} must be a list of strings")
    try:
        made = world.rights.put_permission_set(**fields, view_all=lists["view_all"])
        for username in lists["unassign"] or ():
            world.rights.unassign(username, made.name)
        for username in lists["assign"] or ():
            world.rights.assign(username, made.name)
    except EmulatorProblem as error:
        raise _bad(str(error)) from error
    return {"id": made.set_id}


def api_calls(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/api-calls: set how many API calls remain; without `remaining`, all of them."""
    calls = world.api_calls
    remaining = body.get("remaining", calls.most) if isinstance(body, dict) else None
    if type(remaining) is not int or set(body) - {"remaining"}:
        raise _bad('the body must be {"remaining": number}, or {} to give all calls back')
    try:
        calls.set_remaining(remaining, world.clock.now())
    except ValueError as error:
        raise _bad(str(error)) from error
    return {"remaining": remaining}


def snapshot(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/snapshots: save a snapshot; or restore one, and return the new access token."""
    try:
        match body:
            case {"save": str(name), **rest} if not rest:
                world.save(name)
                return {"snapshot": name}
            case {"restore": str(name), **rest} if not rest:
                return {"snapshot": name, "access_token": world.restore(name)}
    except EmulatorProblem as error:
        raise _bad(str(error)) from error
    raise _bad('the body must be {"save": name} or {"restore": name}')


def app(world: World, body: Any) -> dict[str, Any]:
    """POST /admin/apps: create or change a connected app."""
    fields = _fields(body, _APP, "client_id")
    try:
        world.accounts.put_app(**fields)
    except EmulatorProblem as error:
        raise _bad(str(error)) from error
    return {"client_id": fields["client_id"]}


def _fields(body: Any, known: Mapping[str, type], key: str) -> dict[str, Any]:
    if not isinstance(body, dict) or not body.get(key):
        raise _bad(f"the body must be a JSON object with the key {key!r}")
    for name, value in body.items():
        if name not in known:
            raise _bad(f"unknown key {name!r}; valid keys are {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise _bad(f"{name} must be of type {known[name].__name__}")
    return dict(body)


def _authorise(call: Call) -> None:
    if not call.world.sessions.is_ours(call.bearer):
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "the access token is missing or not valid: send the header Authorization: Bearer"
            " <access token>, with a token of this emulator",
        )


def _bad(text: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, text)
