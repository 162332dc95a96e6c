"""Custom channels and their members, as records of the Tooling API."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import RestRefused, authorised, body_of, missing
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.event_channels import EventChannel, Member
from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.sessions import eighteen

CHANNEL, MEMBER = "PlatformEventChannel", "PlatformEventChannelMember"

_FIRST_VERSION = 47
"""API version that introduced both objects in the Tooling API."""

_LABEL_CHARS = 80

_METADATA: dict[str, dict[str, tuple[type, ...]]] = {
    CHANNEL: {"channelType": (str,), "label": (str,)},
    MEMBER: {
        "eventChannel": (str,),
        "selectedEntity": (str,),
        "filterExpression": (str,),
        "enrichedFields": (list,),
    },
}
"""The members of Metadata and their types."""


def create(call: Call) -> Answer:
    """POST …/tooling/sobjects/<object>: create a channel or a member, and return its id."""
    _of_this_version(call)
    name, metadata = _given(call)
    if not name:
        raise _required("FullName")
    channels, of_channel = call.world.event_channels, call.parts["object"] == CHANNEL
    for needed in ("channelType", "label") if of_channel else ("eventChannel", "selectedEntity"):
        if not metadata.get(needed):
            raise _required(needed)
    try:
        if of_channel:
            label = _label(metadata)
            made_id = channels.create(name, metadata["channelType"], label).channel_id
        else:
            made_id = channels.add(
                name,
                metadata["eventChannel"],
                metadata["selectedEntity"],
                filter_expression=metadata.get("filterExpression") or "",
                enriched=_enriched(metadata),
            ).member_id
    except BadValue as error:
        raise RestRefused(error.code, str(error), error.field) from error
    answer = {"id": made_id, "success": True, "errors": [], "warnings": [], "infos": []}
    return json_answer(answer, HTTPStatus.CREATED)


def read(call: Call) -> Answer:
    """GET …/tooling/sobjects/<object>/<Id>: return a channel or a member."""
    version = _of_this_version(call)
    found = _record(call)
    if isinstance(found, EventChannel):
        return json_answer(CHANNELS.shown(_channel_row(found), version))
    return json_answer(MEMBERS.shown(_member_row(call, found), version))


def update(call: Call) -> Answer:
    """PATCH …/tooling/sobjects/<object>/<Id>: change a channel's label, or the filter and the
    enriched fields of a member.
    """
    _of_this_version(call)
    found = _record(call)
    name, metadata = _given(call)
    own = _channel_row(found) if isinstance(found, EventChannel) else _member_row(call, found)
    if name not in ("", own["FullName"]):
        raise _invalid("FullName", "the name cannot be changed: create a new record instead")
    for fixed in ("channelType", "eventChannel", "selectedEntity"):
        if metadata.get(fixed) not in (None, own["Metadata"].get(fixed)):
            raise _invalid(fixed, f"{fixed} cannot be changed: create a new record instead")
    channels = call.world.event_channels
    try:
        if isinstance(found, EventChannel):
            channels.relabel(found.channel_id, _label(metadata))
        else:
            expression = metadata.get("filterExpression") or ""
            channels.change(found.member_id, expression, _enriched(metadata))
    except BadValue as error:
        raise RestRefused(error.code, str(error), error.field) from error
    except KeyError as error:  # deleted in the meantime
        raise missing() from error
    return Answer(HTTPStatus.NO_CONTENT)


def delete(call: Call) -> Answer:
    """DELETE …/tooling/sobjects/<object>/<Id>: delete a channel or a member."""
    _of_this_version(call)
    found = _record(call)
    try:
        if isinstance(found, EventChannel):
            call.world.event_channels.delete(found.channel_id)
        else:
            call.world.event_channels.remove(found.member_id)
    except BadValue as error:
        raise RestRefused(error.code, str(error), error.field) from error
    except KeyError as error:  # deleted in the meantime
        raise missing() from error
    return Answer(HTTPStatus.NO_CONTENT)


def _of_this_version(call: Call) -> int:
    version = authorised(call)
    if version < _FIRST_VERSION:
        raise missing()
    return version


def _record(call: Call) -> EventChannel | Member:
    given = call.parts["id"]
    record_id = eighteen(given) if len(given) == 15 else given
    channels = call.world.event_channels
    found: EventChannel | Member | None
    if call.parts["object"] == CHANNEL:
        found = next((item for item in channels.channels() if item.channel_id == record_id), None)
    else:
        found = channels.member(record_id)
    if found is None:
        raise missing()
    return found


def _given(call: Call) -> tuple[str, Mapping[str, Any]]:
    """Return the FullName and the Metadata of a request; FullName may be empty.

    Raises:
        RestRefused: A member is unknown or has the wrong type, or Metadata is missing.
    """
    kind = call.parts["object"]
    body = body_of(call)
    for name in body:
        if name not in ("FullName", "Metadata"):
            raise RestRefused("INVALID_FIELD", f"No such column '{name[:80]}' on {kind}")
    full_name, metadata = body.get("FullName") or "", body.get("Metadata")
    if not isinstance(full_name, str) or not isinstance(metadata, (dict, type(None))):
        raise RestRefused("JSON_PARSER_ERROR", "FullName must be a string and Metadata an object")
    if not metadata:
        raise _required("Metadata")
    for name, value in metadata.items():
        if name not in _METADATA[kind]:
            raise RestRefused("INVALID_FIELD", f"No such column '{name[:80]}' on {kind}")
        if value is not None and not isinstance(value, _METADATA[kind][name]):
            raise RestRefused("JSON_PARSER_ERROR", f"{name} has a value of the wrong type", name)
    return full_name, metadata


def _label(metadata: Mapping[str, Any]) -> str:
    label = str(metadata.get("label") or "")
    if not label.strip() or len(label) > _LABEL_CHARS:
        raise _invalid("label", f"a label must have 1 to {_LABEL_CHARS} characters")
    return label


def _enriched(metadata: Mapping[str, Any]) -> list[str]:
    fields = metadata.get("enrichedFields") or []
    for item in fields:
        if not isinstance(item, dict) or set(item) != {"name"} or not isinstance(item["name"], str):
            raise _invalid("enrichedFields", 'each item of enrichedFields must be {"name": …}')
    return [item["name"] for item in fields]


def _channel_row(channel: EventChannel) -> dict[str, Any]:
    return {
        "Id": channel.channel_id,
        "DeveloperName": channel.developer_name,
        "ChannelType": channel.kind,
        "MasterLabel": channel.label,
        "Language": "en_US",
        "NamespacePrefix": None,
        "ManageableState": "unmanaged",
        "FullName": channel.name,
        "Metadata": {"channelType": channel.kind, "label": channel.label},
    }


def _member_row(call: Call, member: Member) -> dict[str, Any]:
    channel = call.world.event_channels.channel(member.channel)
    return {
        "Id": member.member_id,
        "DeveloperName": member.developer_name,
        "MasterLabel": member.developer_name,
        # As in an org: the id of a custom channel, but the name of the standard channel.
        "EventChannel": channel.channel_id if channel else member.channel,
        "SelectedEntity": member.entity,
        "FilterExpression": member.filter_expression or None,
        "Language": "en_US",
        "NamespacePrefix": None,
        "ManageableState": "unmanaged",
        "FullName": member.developer_name,
        "Metadata": {
            "eventChannel": member.channel,
            "selectedEntity": member.entity,
            "filterExpression": member.filter_expression or None,
            "enrichedFields": [{"name": name} for name in member.enriched],
        },
    }


def _channels(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    return [_channel_row(item) for item in call.world.event_channels.channels()]


def _members(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    return [_member_row(call, item) for item in call.world.event_channels.members()]


_SHARED = {
    "Id": "id",
    **dict.fromkeys(
        ("DeveloperName", "MasterLabel", "Language", "NamespacePrefix", "ManageableState"), "string"
    ),
}
_SINGLE = {"FullName": "string", "Metadata": "complexvalue"}

CHANNELS = Table(
    CHANNEL,
    {**_SHARED, "ChannelType": "string", **_SINGLE},
    _channels,
    _FIRST_VERSION,
    f"tooling/sobjects/{CHANNEL}",
)
MEMBERS = Table(
    MEMBER,
    {
        **_SHARED,
        **dict.fromkeys(("EventChannel", "SelectedEntity", "FilterExpression"), "string"),
        **_SINGLE,
    },
    _members,
    _FIRST_VERSION,
    f"tooling/sobjects/{MEMBER}",
)
TABLES = (CHANNELS, MEMBERS)
"""The objects of this module that queries of the Tooling API can use."""


def _required(name: str) -> RestRefused:
    return RestRefused("REQUIRED_FIELD_MISSING", f"Required fields are missing: [{name}]", name)


def _invalid(name: str, text: str) -> RestRefused:
    return RestRefused("INVALID_INPUT", text, name)
