"""The Tooling API: queries, and the records of managed subscriptions.

The RPC ManagedSubscribe uses the same records. As in the real API, a PATCH replaces the whole
Metadata: members that it omits are reset to their defaults, except the state, which is kept.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.http import channels, discovery, tables
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import NEWEST_VERSION, RestRefused, authorised, body_of, missing
from sfpubsub.emulator.http.sobjects import query_of
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.lexical import DEVELOPER_NAME
from sfpubsub.emulator.org.managed import LimitReached, ManagedSubscription, NameTaken
from sfpubsub.emulator.org.records.problems import no_object
from sfpubsub.emulator.org.records.values import moment
from sfpubsub.emulator.org.sessions import eighteen

_OBJECT = "ManagedEventSubscription"
_FIRST_VERSION = 60
"""API version that introduced managed subscriptions."""

_NAME_CHARS = 80
"""Maximum number of characters in a developer name or label."""

_PRESETS = ("LATEST", "EARLIEST")
_STATES = ("RUN", "STOP")
_MEMBERS: dict[str, tuple[type, ...]] = {
    "label": (str,),
    "topicName": (str,),
    "defaultReplay": (str,),
    "errorRecoveryReplay": (str,),
    "state": (str,),
    "version": (int, float),
}
"""The members of Metadata and their types."""

_FIELDS = {
    "Id": "id",
    **dict.fromkeys(("DeveloperName", "MasterLabel", "Language", "NamespacePrefix"), "string"),
    "CreatedDate": "datetime",
    "LastModifiedDate": "datetime",
    "FullName": "string",
    "Metadata": "complexvalue",
}
_SINGLE = ("FullName", "Metadata")
"""Columns that can be selected only if the query finds at most one row."""


def create(call: Call) -> Answer:
    """POST …/tooling/sobjects/ManagedEventSubscription: create a managed subscription, and return
    its id.
    """
    _of_this_version(call)
    body = _members(body_of(call), {"FullName": (str,), "Metadata": (dict,)})
    for name in ("FullName", "Metadata"):
        if not body.get(name):
            raise _required(name)
    metadata = _metadata(body["Metadata"])
    name = body["FullName"]
    if not DEVELOPER_NAME.fullmatch(name) or len(name) > _NAME_CHARS:
        raise _invalid(
            "FullName",
            "a name consists of letters, digits and single underscores, begins with a letter, does"
            f" not end with an underscore, and has at most {_NAME_CHARS} characters",
        )
    topic = metadata["topicName"]
    try:
        if not call.world.bus.topic(topic).can_subscribe:
            raise _invalid("topicName", "The topicName field is invalid")
        made = call.world.managed.create(
            name,
            topic,
            label=metadata["label"],
            default_replay=metadata["defaultReplay"],
            error_recovery_replay=metadata["errorRecoveryReplay"],
            state=metadata.get("state", "RUN"),
        )
    except Refused as refused:
        raise _invalid("topicName", "The topicName field is invalid") from refused
    except NameTaken as taken:
        raise RestRefused(
            "DUPLICATE_DEVELOPER_NAME", f"The name {name} is already used.", "DeveloperName"
        ) from taken
    except LimitReached as reached:
        raise RestRefused(
            "LIMIT_EXCEEDED", f"No more managed subscriptions can be created: {reached}."
        ) from reached
    answer = {
        "id": made.subscription_id,
        "success": True,
        "errors": [],
        "warnings": [],
        "infos": [],
    }
    return json_answer(answer, HTTPStatus.CREATED)


def read(call: Call) -> Answer:
    """GET …/tooling/sobjects/ManagedEventSubscription/<Id>: return a managed subscription."""
    version = _of_this_version(call)
    return json_answer(TABLE.shown(_values(_record(call)), version))


def update(call: Call) -> Answer:
    """PATCH …/tooling/sobjects/ManagedEventSubscription/<Id>: replace the Metadata of a managed
    subscription.
    """
    _of_this_version(call)
    record = _record(call)
    body = _members(body_of(call), {"FullName": (str,), "Metadata": (dict,)})
    if body.get("FullName", record.developer_name) != record.developer_name:
        raise _invalid("FullName", "the name cannot be changed: create a new record instead")
    if not body.get("Metadata"):
        raise _required("Metadata")
    metadata = _metadata(body["Metadata"])
    if metadata["topicName"] != record.topic:
        raise _invalid("topicName", "the topic cannot be changed: create a new record instead")
    try:
        call.world.managed.change(
            record.subscription_id,
            label=metadata["label"],
            default_replay=metadata["defaultReplay"],
            error_recovery_replay=metadata["errorRecoveryReplay"],
            state=metadata.get("state", record.state),
        )
    except KeyError as error:  # deleted in the meantime
        raise missing() from error
    return Answer(HTTPStatus.NO_CONTENT)


def delete(call: Call) -> Answer:
    """DELETE …/tooling/sobjects/ManagedEventSubscription/<Id>: delete a managed subscription."""
    _of_this_version(call)
    try:
        call.world.managed.delete(_record(call).subscription_id)
    except KeyError as error:  # deleted in the meantime
        raise missing() from error
    return Answer(HTTPStatus.NO_CONTENT)


def query(call: Call) -> Answer:
    """GET …/tooling/query?q=SELECT …: return rows of a Tooling API object, or, with `columns=true`,
    the columns of the query.
    """
    plan, page = query_of(call, (TABLE, *channels.TABLES, *discovery.TABLES))
    if plan.of.is_stored:
        raise no_object(plan.of.name)
    if page is None:
        return json_answer(tables.metadata(plan))
    if page.total > 1 and any(output.field.name in _SINGLE for output in plan.outputs):
        text = f"a query for {' or '.join(_SINGLE)} must find at most one row"
        raise RestRefused("MALFORMED_QUERY", text)
    return json_answer(
        {
            "size": len(page.rows),
            "totalSize": page.total,
            "done": not page.rest,
            "queryLocator": None,
            "entityTypeName": plan.of.name,
            "records": page.rows,
        }
    )


def _of_this_version(call: Call) -> int:
    version = authorised(call)
    if version < _FIRST_VERSION:
        raise missing()
    return version


def _record(call: Call) -> ManagedSubscription:
    given = call.parts["id"]
    record = call.world.managed.by_id(eighteen(given) if len(given) == 15 else given)
    if record is None:
        raise missing()
    return record


def _metadata(given: dict[str, Any]) -> dict[str, Any]:
    """Return the Metadata of a request, with defaults for missing members except the state.

    Raises:
        RestRefused: A member is unknown, is required but missing, or has a value that is not valid.
    """
    metadata = {
        "defaultReplay": "LATEST",
        "errorRecoveryReplay": "LATEST",
        **{key: value for key, value in _members(given, _MEMBERS).items() if value is not None},
    }
    for name in ("label", "topicName"):
        if not metadata.get(name, "").strip():
            raise _required(name)
    if len(metadata["label"]) > _NAME_CHARS:
        raise _invalid("label", f"the label is longer than {_NAME_CHARS} characters, the maximum")
    for name in ("defaultReplay", "errorRecoveryReplay"):
        if metadata[name] not in _PRESETS:
            raise _invalid(name, f"{name} must be LATEST or EARLIEST")
    if metadata.get("state", "RUN") not in _STATES:
        raise _invalid("state", "state must be RUN or STOP")
    return metadata


def _members(given: dict[str, Any], known: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    for name, value in given.items():
        if name not in known:
            raise RestRefused(
                "INVALID_FIELD", f"No such column '{name[:_NAME_CHARS]}' on {_OBJECT}"
            )
        fits = isinstance(value, known[name]) and not isinstance(value, bool)
        if value is not None and not fits:
            raise RestRefused("JSON_PARSER_ERROR", f"{name} has a value of the wrong type", name)
    return given


def _values(record: ManagedSubscription) -> dict[str, Any]:
    return {
        "Id": record.subscription_id,
        "DeveloperName": record.developer_name,
        "MasterLabel": record.label,
        "Language": "en_US",
        "NamespacePrefix": None,
        "CreatedDate": moment(record.created_at),
        "LastModifiedDate": moment(record.modified_at),
        "FullName": record.developer_name,
        "Metadata": {
            "defaultReplay": record.default_replay,
            "errorRecoveryReplay": record.error_recovery_replay,
            "label": record.label,
            "state": record.state,
            "topicName": record.topic,
            "version": float(NEWEST_VERSION),
        },
    }


def _rows(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    return [_values(record) for record in call.world.managed.all()]


TABLE = Table(_OBJECT, _FIELDS, _rows, _FIRST_VERSION, f"tooling/sobjects/{_OBJECT}")
"""Managed subscriptions as an object that can be queried."""


def _required(name: str) -> RestRefused:
    return RestRefused("REQUIRED_FIELD_MISSING", f"Required fields are missing: [{name}]", name)


def _invalid(name: str, text: str) -> RestRefused:
    return RestRefused("INVALID_INPUT", text, name)
