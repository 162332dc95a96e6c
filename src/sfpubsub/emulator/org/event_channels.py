"""Custom event channels and their members, as an administrator defines them.

A custom channel `X__chn` is the topic `/event/X__chn` or `/data/X__chn` of the bus. The standard
channel `ChangeEvents` is the topic `/data/ChangeEvents` and has no record. A member selects one
type of event, optionally with a filter and enriched fields. This module only stores the filters and
enriched fields; `records.publishing` applies them. Invariant: on the bus, a channel carries exactly
the events of its members.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.lexical import DEVELOPER_NAME
from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.store import Store

ChannelKind = Literal["event", "data"]

STANDARD = "ChangeEvents"
"""Name of the standard channel, which every org has."""

_SUFFIX = "__chn"
_NAME_CHARS = 80
_FIELD = re.compile(r"[A-Za-z]\w*", re.ASCII)

_MOST_CHANNELS = 100
"""Maximum number of channels of each kind in an org. Documented."""

_MOST_ENRICHED = 10
"""Maximum number of enriched fields of a member. Reported by users, not documented."""

_CHANNEL_PREFIX, _MEMBER_PREFIX = "0YLSB", "0v8SB"


@dataclass(frozen=True)
class EventChannel:
    """A custom channel.

    Attributes:
        channel_id: 18-character id.
        name: Name, with the suffix `__chn`.
        kind: "event" for platform events, "data" for change events.
        label: Label, for display.
    """

    channel_id: str
    name: str
    kind: ChannelKind
    label: str

    @property
    def developer_name(self) -> str:
        """The channel's name without the suffix `__chn`."""
        return self.name.removesuffix(_SUFFIX)

    @property
    def topic(self) -> str:
        """Name of the bus's topic for this channel, such as `/data/Sales__chn`."""
        return f"/{self.kind}/{self.name}"


@dataclass(frozen=True)
class Member:
    """A member of a channel: one type of event that the channel carries.

    Attributes:
        member_id: 18-character id; blank before the member is stored.
        developer_name: Name of the member.
        channel: Name of the channel, with the suffix `__chn`; or `ChangeEvents`.
        entity: Name of the event type, such as `Order_Event__e` or `AccountChangeEvent`.
        filter_expression: Condition that selects events; blank for all events.
        enriched: Fields that update and delete events include even if their values are unchanged.
    """

    member_id: str
    developer_name: str
    channel: str
    entity: str
    filter_expression: str = ""
    enriched: tuple[str, ...] = ()


class ChangeSource(Protocol):
    """Publishes the change events that channel members select. Implemented by `Records`."""

    def offer(self, event_name: str) -> None:
        """Create the topic for an object's change events, unless it exists. Do nothing if
        *event_name* is not the name of a change event.
        """
        ...

    def check_member(self, member: Member) -> None:
        """Check a member's filter and enriched fields.

        Raises:
            BadValue: The filter or one of the fields is not valid.
        """
        ...

    def selected(self, members: Sequence[Member], gone: Sequence[Member]) -> None:
        """Start publishing change events for the objects that *members* select. Stop publishing
        them for objects that only removed members selected.

        Args:
            members: All current members.
            gone: The members that the change removed.
        """
        ...


class EventChannels:
    """The custom channels of one org, and the members of all channels. Thread-safe.

    Args:
        store: The store for the records.
        bus: The bus for the channels' topics.
    """

    def __init__(self, store: Store, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        self._lock = threading.RLock()  # one change at a time
        self._records: ChangeSource | None = None

    def feed(self, records: ChangeSource) -> None:
        """Connect the source of change events, and pass the current members to it."""
        self._records = records
        records.selected(self.members(), [])

    def adopt(self) -> None:
        """Make the records and the bus consistent: create missing topics and records of channels,
        and set the members of each channel to the events that the channel carries on the bus.
        """
        with self._lock:
            topics = {topic.name for topic in self._bus.topics()}
            for channel in self.channels():
                # The process may have been killed between creating the record and the topic.
                if channel.topic not in topics:
                    self._bus.put_channel(channel.topic, [])
            for topic in self._bus.topics():
                _, kind, name = f"{topic.name}//".split("/")[:3]
                is_channel = not topic.schema_id and kind in ("event", "data")
                if not is_channel or not (name.endswith(_SUFFIX) or topic.name == _topic(STANDARD)):
                    continue
                if name != STANDARD and self.channel(name) is None:
                    self._keep_channel(name, "data" if kind == "data" else "event", name)
                carried = {item.rpartition("/")[2] for item in self._bus.members(topic.name)}
                for member in self.members(name):
                    if member.entity not in carried:
                        self._forget_member(member)
                known = {member.entity for member in self.members(name)}
                for entity in sorted(carried - known):
                    self._keep_member(Member("", _member_name(name, entity), name, entity))

    # Channels.

    def channels(self) -> list[EventChannel]:
        """Return all custom channels, sorted by name."""
        rows = self._store.rows("SELECT id, name, kind, label FROM event_channels ORDER BY name")
        return [EventChannel(*row) for row in rows]

    def channel(self, name_or_id: str) -> EventChannel | None:
        """Return the custom channel with this name or id, or None if it does not exist. Names are
        case-insensitive.
        """
        for item in self.channels():
            if item.name.lower() == name_or_id.lower() or item.channel_id == name_or_id:
                return item
        return None

    def create(self, name: str, kind: str, label: str) -> EventChannel:
        """Create a channel without members.

        Args:
            name: Name, with the suffix `__chn`.
            kind: "event" for platform events, "data" for change events.
            label: Label, for display.

        Raises:
            BadValue: A value is not valid, the name is taken, or the org has reached its limit on
                channels of this kind.
        """
        bare = name.removesuffix(_SUFFIX)
        if bare == name or not DEVELOPER_NAME.fullmatch(bare) or len(name) > _NAME_CHARS:
            text = (
                "The name of a channel begins with a letter, consists of letters, digits and single"
                f" underscores, ends in {_SUFFIX}, and has at most {_NAME_CHARS} characters."
            )
            raise BadValue("INVALID_INPUT", text, "FullName")
        if kind not in ("event", "data"):
            raise BadValue("INVALID_INPUT", "channelType must be data or event", "channelType")
        with self._lock:
            others = self.channels()
            if self.channel(name) is not None:
                text = f"The name {name} is already used."
                raise BadValue("DUPLICATE_DEVELOPER_NAME", text, "DeveloperName")
            if sum(item.kind == kind for item in others) >= _MOST_CHANNELS:
                text = f"An org has at most {_MOST_CHANNELS} custom channels of each type."
                raise BadValue("LIMIT_EXCEEDED", text, "FullName")
            made = self._keep_channel(name, "data" if kind == "data" else "event", label)
            self._bus.put_channel(made.topic, [])
            return made

    def relabel(self, channel_id: str, label: str) -> None:
        """Change the label of a channel; an unknown id is ignored."""
        self._store.run("UPDATE event_channels SET label = ? WHERE id = ?", label, channel_id)

    def delete(self, channel_id: str) -> None:
        """Delete a channel. Streams that read the channel end.

        Raises:
            KeyError: There is no such channel.
            BadValue: The channel has members.
        """
        with self._lock:
            found = self.channel(channel_id)
            if found is None:
                raise KeyError(channel_id)
            if self.members(found.name):
                text = f"{found.name} has members: delete them first."
                raise BadValue("DEPENDENCY_EXISTS", text, "FullName")
            self._store.run("DELETE FROM event_channels WHERE id = ?", channel_id)
            self._bus.remove_channel(found.topic)

    # Members.

    def members(self, channel: str | None = None) -> list[Member]:
        """Return the members of one channel, or of all channels if *channel* is None, sorted by
        name.
        """
        rows = self._store.rows("SELECT * FROM channel_selections ORDER BY developer_name")
        found = [
            Member(row[0], row[1], row[2], row[3], row[4], tuple(json.loads(row[5])))
            for row in rows
        ]
        return [item for item in found if channel is None or item.channel == channel]

    def member(self, member_id: str) -> Member | None:
        """Return the channel member with this 18-character id, or None if it does not exist."""
        return next((item for item in self.members() if item.member_id == member_id), None)

    def add(
        self,
        developer_name: str,
        channel: str,
        entity: str,
        *,
        filter_expression: str = "",
        enriched: Sequence[str] = (),
    ) -> Member:
        """Add a member to a channel. From now on, the channel carries the member's event.

        Args:
            developer_name: Name of the member.
            channel: Name or id of the channel.
            entity: Name of the event; case-insensitive.
            filter_expression: Condition that selects events; blank for all events.
            enriched: Fields to include in update and delete events even if their values are
                unchanged.

        Raises:
            BadValue: A value is not valid, the name is taken, or the channel already carries the
                event.
        """
        if not DEVELOPER_NAME.fullmatch(developer_name):
            text = (
                "A name must consist of letters, digits and single underscores, begin with a"
                " letter, and not end with an underscore"
            )
            raise BadValue("INVALID_INPUT", text, "FullName")
        with self._lock:
            if self._records is not None:
                self._records.offer(entity)
            topic, entity = self._places(channel, entity)
            name = topic.rpartition("/")[2]
            for item in self.members():
                if (item.channel, item.entity) == (name, entity):
                    text = f"{name} already has {entity}."
                    raise BadValue("DUPLICATE_VALUE", text, "SelectedEntity")
                if item.developer_name.lower() == developer_name.lower():
                    text = f"The name {developer_name} is already used."
                    raise BadValue("DUPLICATE_DEVELOPER_NAME", text, "DeveloperName")
            made = Member("", developer_name, name, entity, filter_expression, tuple(enriched))
            made = self._keep_member(self._checked(made))
            self._update_topic(name)
            self._tell()
            return made

    def change(self, member_id: str, filter_expression: str, enriched: Sequence[str]) -> None:
        """Replace the filter and enriched fields of a member.

        Args:
            member_id: The member's 18-character id.
            filter_expression: Condition that selects events; blank for all events.
            enriched: Fields to include in update and delete events even if their values are
                unchanged.

        Raises:
            KeyError: There is no such member.
            BadValue: A value is not valid.
        """
        with self._lock:
            found = self.member(member_id)
            if found is None:
                raise KeyError(member_id)
            changed = self._checked(
                replace(found, filter_expression=filter_expression, enriched=tuple(enriched))
            )
            self._store.run(
                "UPDATE channel_selections SET filter_expression = ?, enriched = ? WHERE id = ?",
                changed.filter_expression,
                json.dumps(changed.enriched),
                member_id,
            )
            self._tell()

    def remove(self, member_id: str) -> None:
        """Remove a member from its channel. Events already on the channel remain readable.

        Raises:
            KeyError: There is no such member.
        """
        with self._lock:
            found = self.member(member_id)
            if found is None:
                raise KeyError(member_id)
            self._forget_member(found)
            self._update_topic(found.channel)
            self._tell(found)

    # Internal.

    def _tell(self, *gone: Member) -> None:
        if self._records is not None:
            self._records.selected(self.members(), gone)

    def _checked(self, member: Member) -> Member:
        checked = _checked(member)
        if self._records is not None:
            self._records.check_member(checked)
        return checked

    def _places(self, channel: str, entity: str) -> tuple[str, str]:
        """Return the name of a channel's topic and the name of an event, as the org spells them.

        Raises:
            BadValue: The channel does not exist, or cannot carry this event.
        """
        found = self.channel(channel)
        if found is None and channel.lower() != STANDARD.lower():
            text = f"There is no channel {channel[:_NAME_CHARS]}."
            raise BadValue("INVALID_INPUT", text, "EventChannel")
        topic = found.topic if found else _topic(STANDARD)
        for item in self._bus.topics():
            start, _, name = item.name.rpartition("/")
            if item.schema_id and name.lower() == entity.lower() and topic.startswith(f"{start}/"):
                return topic, name
        text = f"{entity[:_NAME_CHARS]} is not an event that this channel can carry."
        raise BadValue("INVALID_INPUT", text, "SelectedEntity")

    def _update_topic(self, name: str) -> None:
        found = self.channel(name)
        topic = found.topic if found else _topic(STANDARD)
        start = topic.rpartition("/")[0]
        self._bus.put_channel(topic, [f"{start}/{item.entity}" for item in self.members(name)])

    def _keep_channel(self, name: str, kind: ChannelKind, label: str) -> EventChannel:
        made = EventChannel(self._new_id(_CHANNEL_PREFIX), name, kind, label)
        self._store.run(
            "INSERT INTO event_channels VALUES (?, ?, ?, ?)", made.channel_id, name, kind, label
        )
        return made

    def _keep_member(self, member: Member) -> Member:
        made = replace(member, member_id=self._new_id(_MEMBER_PREFIX))
        self._store.run(
            "INSERT INTO channel_selections VALUES (?, ?, ?, ?, ?, ?)",
            made.member_id,
            made.developer_name,
            made.channel,
            made.entity,
            made.filter_expression,
            json.dumps(made.enriched),
        )
        return made

    def _forget_member(self, member: Member) -> None:
        self._store.run("DELETE FROM channel_selections WHERE id = ?", member.member_id)

    def _new_id(self, prefix: str) -> str:
        number = int(self._store.meta("channels_made", "0")) + 1
        self._store.set_meta("channels_made", str(number))
        return eighteen(f"{prefix}{number:010d}")


def _topic(name: str) -> str:
    return f"/data/{name}"


def _member_name(channel: str, entity: str) -> str:
    """Return the default name of a member: ChannelName_EventName, as Salesforce documents it."""
    return f"{channel}_{entity}".replace("__", "_")


def _checked(member: Member) -> Member:
    if len(member.enriched) > _MOST_ENRICHED or len(set(member.enriched)) < len(member.enriched):
        text = f"enrichedFields can name at most {_MOST_ENRICHED} fields, each once"
        raise BadValue("INVALID_INPUT", text, "enrichedFields")
    for name in member.enriched:
        if not _FIELD.fullmatch(name):
            text = f"{name[:_NAME_CHARS]} is not a field of the object itself"
            raise BadValue("INVALID_INPUT", text, "enrichedFields")
    if re.match(r"\s*where\b", member.filter_expression, re.IGNORECASE):
        text = "A filter expression must not begin with WHERE."
        raise BadValue("INVALID_INPUT", text, "filterExpression")
    return member
