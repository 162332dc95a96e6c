"""Administer an org's event channels and their events, and list the topics to subscribe to.

Channels and their events are records of the Tooling API. A change takes up to a few minutes to
reach the Pub/Sub API.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.soql import quoted
from sfpubsub.errors import ConfigurationError, RemoteProtocolError, TopicNotFoundError
from sfpubsub.tooling.soql_queries import TO_CHANGE, Queries, explaining

ChannelType = Literal["event", "data"]
CHANNEL_TYPES: Final[tuple[str, ...]] = ("event", "data")

STANDARD: Final = "ChangeEvents"
"""The change event channel of every org. Only its members have records, not the channel itself."""

_SUFFIX = "__chn"
_NAME = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*")
_ENTITY = re.compile(r"[A-Za-z]\w*", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z]{15}(?:[0-9A-Za-z]{3})?")

# Maximum number of characters of a label (Salesforce documentation, PlatformEventChannel).
_LABEL = 80


@dataclass(frozen=True)
class ChannelMember:
    """An event that is selected for a channel."""

    id: str
    entity: str
    """Name of the event, such as ``Order_Event__e`` or ``AccountChangeEvent``."""
    filter_expression: str | None
    """SOQL condition for the events to deliver; None for all events."""
    enriched_fields: tuple[str, ...]
    """Fields that change events include even if their values are unchanged."""


@dataclass(frozen=True)
class EventChannel:
    """A channel and its members."""

    id: str | None
    """Record id of 15 or 18 characters; None for the standard channel."""
    name: str
    """Full name with the suffix ``__chn``, or ``ChangeEvents``."""
    channel_type: str
    """``event`` for platform events, ``data`` for change events."""
    label: str
    topic: str
    """Topic to subscribe to."""
    members: tuple[ChannelMember, ...]


@dataclass(frozen=True)
class EventTopic:
    """A topic that a client can subscribe to."""

    topic: str
    kind: str
    """Kind of the topic: ``event`` for a platform event, ``change`` for change events, or
    ``channel``.
    """
    label: str
    members: tuple[str, ...]
    """For a channel: the names of its events; otherwise empty."""


class EventChannels:
    """Administers the channels of an org. Thread-safe.

    Every method raises what `sfpubsub.auth.rest.OrgClient` raises, with Salesforce's code in
    ``error_code``.

    Args:
        org: Makes the requests.
        api_version: Version of the Tooling API, such as ``60.0``.
    """

    def __init__(self, org: OrgClient, api_version: str) -> None:
        self._org = org
        self._queries = Queries(org, api_version)
        self._records = f"{self._queries.data}tooling/sobjects/PlatformEventChannel"

    # Reading.

    def channels(self) -> list[EventChannel]:
        """Return all channels: the standard channel first, the others sorted by name."""
        members = self._members()
        custom = [
            _channel(row, members)
            for row in self._queries.rows(
                "SELECT Id, DeveloperName, ChannelType, MasterLabel FROM PlatformEventChannel"
            )
        ]
        return [_standard(members), *sorted(custom, key=lambda item: item.name)]

    def show(self, name: str) -> EventChannel:
        """Return the channel *name*.

        Args:
            name: With or without the suffix ``__chn``; or ``ChangeEvents``.

        Raises:
            ConfigurationError: *name* is not a valid channel name.
            TopicNotFoundError: The org has no channel with that name.
        """
        wanted = _checked(name)
        for channel in self.channels():
            if channel.name.lower() == wanted.lower():
                return channel
        raise _missing(wanted)

    def topics(self) -> list[EventTopic]:
        """Return the topics of custom platform events, of selected change events, and of channels.

        A change event is selected if it is a member of the standard channel. Standard platform
        events are not included, because the org does not report which of them it publishes.
        """
        rows = self._queries.rows(
            "SELECT QualifiedApiName, Label FROM EntityDefinition"
            " WHERE QualifiedApiName LIKE '%\\_\\_e'"
        )
        events = [
            EventTopic(f"/event/{_text(row, 'QualifiedApiName')}", "event", _text(row, "Label"), ())
            for row in rows
        ]
        channels = self.channels()
        changes = [
            EventTopic(f"/data/{member.entity}", "change", member.entity, ())
            for member in channels[0].members
        ]
        carrying = [
            EventTopic(
                channel.topic,
                "channel",
                channel.label,
                tuple(member.entity for member in channel.members),
            )
            for channel in channels
        ]
        return [
            item
            for group in (events, changes, carrying)
            for item in sorted(group, key=lambda item: item.topic)
        ]

    # Changing.

    def create(self, name: str, channel_type: str, *, label: str | None = None) -> EventChannel:
        """Create a channel without members, and return it.

        Args:
            name: With or without the suffix ``__chn``; it cannot be changed later.
            channel_type: ``event`` or ``data``.
            label: Human-readable label; defaults to the name without its suffix.

        Raises:
            ConfigurationError: The name, the type or the label is not valid.
        """
        full_name = _checked(name)
        if full_name == STANDARD:
            raise ConfigurationError(
                f"{STANDARD} is the standard channel of every org: choose another name"
            )
        if channel_type not in CHANNEL_TYPES:
            raise ConfigurationError(
                f"the type of a channel must be event or data, not {channel_type!r}"
            )
        label = full_name.removesuffix(_SUFFIX) if label is None else label
        if not label.strip() or len(label) > _LABEL:
            raise ConfigurationError(
                f"a label must have 1 to {_LABEL} characters, and not only spaces"
            )
        metadata = {"channelType": channel_type, "label": label}
        with explaining(TO_CHANGE):
            answer = self._org.post(self._records, {"FullName": full_name, "Metadata": metadata})
        topic = f"/{channel_type}/{full_name}"
        return EventChannel(_made(answer), full_name, channel_type, label, topic, ())

    def delete(self, name: str) -> EventChannel:
        """Delete a channel and its members, and return the deleted channel.

        Raises what `show` raises, and ConfigurationError for the standard channel.
        """
        channel = self.show(name)
        if channel.id is None:
            raise ConfigurationError(
                f"the channel {STANDARD} cannot be deleted: remove its members instead"
            )
        for member in channel.members:
            self._remove(channel, member)
        with explaining(TO_CHANGE, _missing(channel.name)):
            self._org.delete(f"{self._records}/{channel.id}")
        return channel

    def add(
        self,
        name: str,
        entity: str,
        *,
        filter_expression: str | None = None,
        enriched_fields: Sequence[str] = (),
    ) -> EventChannel:
        """Add an event to a channel and return the channel.

        Args:
            name: Name of the channel. Adding an object to ``ChangeEvents`` turns on its change
                events.
            entity: Name of the event. For a channel of change events, this can also be the name of
                an object, such as ``Account`` or ``Order__c``, whose change event is then added.
            filter_expression: SOQL condition, without WHERE, for the events to deliver; None for
                all events.
            enriched_fields: Fields to include in change events even if their values are unchanged.

        Raises:
            ConfigurationError: A name is not valid, or the channel already contains the event.
            TopicNotFoundError: The org has no channel with that name.
        """
        channel = self.show(name)
        event = _event_of(channel, entity)
        for member in channel.members:
            if member.entity == event:
                raise ConfigurationError(f"the channel {channel.name} already contains {event}")
        metadata: dict[str, Any] = {"eventChannel": channel.name, "selectedEntity": event}
        if filter_expression is not None:
            metadata["filterExpression"] = filter_expression
        if enriched_fields:
            metadata["enrichedFields"] = [{"name": field} for field in enriched_fields]
        # Documented as ChannelName_EventName, without two underscores in a row.
        body = {"FullName": f"{channel.name}_{event}".replace("__", "_"), "Metadata": metadata}
        with explaining(TO_CHANGE):
            self._org.post(f"{self._records}Member", body)
        return self.show(name)

    def remove(self, name: str, entity: str) -> EventChannel:
        """Remove an event from a channel and return the channel.

        Raises:
            ConfigurationError: A name is not valid.
            TopicNotFoundError: The channel does not exist, or does not contain the event.
        """
        channel = self.show(name)
        event = _event_of(channel, entity)
        for member in channel.members:
            if member.entity == event:
                self._remove(channel, member)
                return self.show(name)
        raise TopicNotFoundError(
            f"the channel {channel.name} does not contain {event}: see sfpubsub channel show"
        )

    def _remove(self, channel: EventChannel, member: ChannelMember) -> None:
        gone = TopicNotFoundError(f"the channel {channel.name} no longer contains {member.entity}")
        with explaining(TO_CHANGE, gone):
            self._org.delete(f"{self._records}Member/{member.id}")

    def _members(self) -> dict[str, list[ChannelMember]]:
        """Return the members of each channel, by channel name."""
        # The columns EventChannel and SelectedEntity can be ids; names are in Metadata, which can
        # only be queried one row at a time.
        found: dict[str, list[ChannelMember]] = {}
        for head in self._queries.rows("SELECT Id FROM PlatformEventChannelMember"):
            soql = "SELECT Id, Metadata FROM PlatformEventChannelMember WHERE Id = "
            for row in self._queries.rows(f"{soql}{quoted(_id(head))} LIMIT 1"):
                metadata = row.get("Metadata")
                if not isinstance(metadata, dict):
                    raise RemoteProtocolError("the org returned a channel member without Metadata")
                channel = _text(metadata, "eventChannel")
                found.setdefault(channel, []).append(_member(_id(row), metadata))
        return found


def _standard(members: dict[str, list[ChannelMember]]) -> EventChannel:
    found = _sorted(members.get(STANDARD, []))
    return EventChannel(None, STANDARD, "data", "Change events", f"/data/{STANDARD}", found)


def _channel(row: dict[str, Any], members: dict[str, list[ChannelMember]]) -> EventChannel:
    developer_name, kind = _text(row, "DeveloperName"), _text(row, "ChannelType")
    if kind not in CHANNEL_TYPES:
        raise RemoteProtocolError(f"the channel {developer_name} has the unknown type {kind}")
    name = f"{developer_name.removesuffix(_SUFFIX)}{_SUFFIX}"
    found = _sorted(members.get(name, []))
    return EventChannel(_id(row), name, kind, _text(row, "MasterLabel"), f"/{kind}/{name}", found)


def _sorted(members: Sequence[ChannelMember]) -> tuple[ChannelMember, ...]:
    return tuple(sorted(members, key=lambda member: member.entity))


def _member(member_id: str, metadata: dict[str, Any]) -> ChannelMember:
    enriched = metadata.get("enrichedFields") or []
    expression = metadata.get("filterExpression")
    if not isinstance(enriched, list) or not all(isinstance(item, dict) for item in enriched):
        raise RemoteProtocolError("the org returned a channel member with malformed enrichedFields")
    return ChannelMember(
        member_id,
        _text(metadata, "selectedEntity"),
        expression if isinstance(expression, str) and expression else None,
        tuple(_text(item, "name") for item in enriched),
    )


def _event_of(channel: EventChannel, entity: str) -> str:
    """Return the name of the event that *entity* stands for in a channel.

    Args:
        channel: The channel.
        entity: Name of an event. For a channel of change events, this can also be the name of an
            object, which is converted to the name of the object's change event.

    Raises:
        ConfigurationError: *entity* is not a valid name.
    """
    if not _ENTITY.fullmatch(entity):
        raise ConfigurationError(
            f"{entity!r} is not a valid event or object name: use letters, digits and underscores, "
            f"starting with a letter"
        )
    if channel.channel_type == "event" or entity.endswith("ChangeEvent"):
        return entity
    return f"{entity.removesuffix('__c')}{'__' if entity.endswith('__c') else ''}ChangeEvent"


def _checked(name: str) -> str:
    if name == STANDARD:
        return name
    bare = name.removesuffix(_SUFFIX)
    if not _NAME.fullmatch(bare):
        raise ConfigurationError(
            f"{name!r} is not a valid channel name: use letters, digits and single underscores, "
            f"starting with a letter; the suffix {_SUFFIX} may be omitted"
        )
    return f"{bare}{_SUFFIX}"


def _missing(name: str) -> TopicNotFoundError:
    return TopicNotFoundError(f"the org has no channel {name}: see sfpubsub topics")


def _made(answer: Any) -> str:
    return _id({"Id": answer.get("id") if isinstance(answer, dict) else None})


def _id(row: dict[str, Any]) -> str:
    found = row.get("Id")
    if not isinstance(found, str) or not _ID.fullmatch(found):  # it becomes part of a path
        raise RemoteProtocolError("the org returned a record without a valid id")
    return found


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"the org returned a record without a valid {name}")
    return value
