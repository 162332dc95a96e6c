"""The channels of the Streaming API, on the org's bus.

Each PushTopic and generic channel has its own log on the bus, under a name that gRPC clients cannot
request; `/event/…` and `/data/…` are the bus's topics. The replay id of an event is its position on
the bus, an increasing number with gaps. Events of PushTopics and generic channels have a shorter
retention period.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.bus import Batch, Bus, Draft, Topic
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.cometd.texts import Refusal
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event, Store

NEW_EVENTS, ALL_EVENTS = -1, -2

_LOG = "cometd:"
"""Prefix of the name of a channel's log on the bus. It cannot clash with the names of topics, which
begin with a slash.
"""

_PREFIXES = {"PushTopic": "0IF", "StreamingChannel": "0M6"}
"""Id prefixes of the two kinds of records."""

_OWN = {"/topic/": "PushTopic", "/u/": "StreamingChannel"}

_FACTOR = 0x9E3779B1
"""Multiplier for computing the gaps between ids. It is odd and large, so that the gaps have no
pattern that a client could rely on.
"""

_CONDITION = re.compile(r"(\w+)=(?:'([^']*)'|(.*))")


@dataclass(frozen=True)
class Record:
    """A PushTopic or StreamingChannel record of the REST API.

    Attributes:
        record_id: 18-character id.
        kind: PushTopic or StreamingChannel.
        name: The record's Name; for a StreamingChannel it is the channel's path, /u/….
        fields: Values of the other fields, by name.
    """

    record_id: str
    kind: str
    name: str
    fields: Mapping[str, Any]


class Channels:
    """The channels of the Streaming API in one org. Thread-safe.

    Args:
        store: The store for the records.
        bus: The bus for the events.
        clock: The org's clock.
        settings: The retention period, and the gaps between ids.
    """

    def __init__(self, store: Store, bus: Bus, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()  # serialises changes of records

    # Records.

    def create(self, kind: str, name: str, fields: Mapping[str, Any]) -> Record:
        """Create a record and its channel.

        Args:
            kind: PushTopic or StreamingChannel.
            name: The record's Name; for a StreamingChannel it is the channel's path, /u/….
            fields: Values of the other fields, by name.

        Raises:
            EmulatorProblem: Another record has this name; names are case-insensitive.
        """
        with self._lock:
            if any(item.name.lower() == name.lower() for item in self.records(kind)):
                raise EmulatorProblem(f"the name {name} is already taken: choose another name")
            number = int(self._store.meta("streaming_made", "0")) + 1
            self._bus.put_log(_LOG + _path(kind, name))
            record_id = eighteen(f"{_PREFIXES[kind]}SB{number:010d}")
            with self._store.transaction():
                self._store.set_meta("streaming_made", str(number))
                self._store.run(
                    "INSERT INTO streaming_records VALUES (?, ?, ?, ?)",
                    record_id,
                    kind,
                    name,
                    json.dumps(dict(fields)),
                )
        return Record(record_id, kind, name, fields)

    def records(self, kind: str) -> list[Record]:
        """Return all records of a kind (PushTopic or StreamingChannel), sorted by name."""
        rows = self._store.rows(
            "SELECT id, kind, name, fields FROM streaming_records WHERE kind = ? ORDER BY name",
            kind,
        )
        return [Record(row[0], row[1], row[2], json.loads(row[3])) for row in rows]

    def update(self, record: Record, fields: Mapping[str, Any]) -> None:
        """Change fields of a record, which apply to the next changes of the org."""
        with self._lock, self._store.transaction():
            kept = {item.record_id: item.fields for item in self.records(record.kind)}
            self._store.run(
                "UPDATE streaming_records SET fields = ? WHERE id = ?",
                json.dumps({**kept.get(record.record_id, {}), **fields}),
                record.record_id,
            )

    def delete(self, record_id: str) -> None:
        """Delete a record. Subscribers of its channel stay connected but receive no more events."""
        self._store.run("DELETE FROM streaming_records WHERE id = ?", record_id)

    # Events.

    def publish(self, path: str, events: Sequence[Mapping[str, Any]]) -> list[int]:
        """Publish events to a PushTopic or a generic channel. The channel is created if it does not
        exist.

        Args:
            path: The channel, /topic/… or /u/….
            events: For a PushTopic, an event has the keys `type` (default: created) and `sobject`;
                for a generic channel, `payload` and `userIds` (the recipients; default: all users).
                At least one key is required.

        Returns:
            The replay ids of the events, in order.

        Raises:
            EmulatorProblem: The path does not begin with /topic/ or /u/, it differs from that of an
                existing channel only in case, or an event is not valid.
        """
        start, kind = next(
            ((start, kind) for start, kind in _OWN.items() if path.startswith(start)), ("", "")
        )
        if not kind:
            raise EmulatorProblem(
                f"{path} is not the path of a PushTopic or generic channel: use /topic/… or /u/…"
            )
        known = {"PushTopic": {"type", "sobject"}, "StreamingChannel": {"payload", "userIds"}}
        for event in events:
            if not set(event) <= known[kind] or not event:
                raise EmulatorProblem(
                    f"an event for {path} may have only the keys"
                    f" {', '.join(sorted(known[kind]))}, and must have at least one of them"
                )
        name = path if start == "/u/" else path.removeprefix(start)
        if all(item.name != name for item in self.records(kind)):
            query = {"Query": "SELECT Id, Name FROM Account", "ApiVersion": 67.0}
            self.create(kind, name, query if kind == "PushTopic" else {})
        return [self._publish(path, dict(event)) for event in events]

    def _publish(self, path: str, event: dict[str, Any]) -> int:
        with self._bus.together() as batch:
            self.add(batch, path, event)
            return batch.tip

    def add(self, batch: Batch, path: str, event: dict[str, Any]) -> None:
        """Add one event to a transaction of the bus. The channel must exist.

        Args:
            batch: The open transaction.
            path: The channel, /topic/… or /u/….
            event: The event, as for `publish`. For a PushTopic, this method removes its
                key `type`.
        """
        created = datetime.fromtimestamp(self._clock.now(), UTC)
        about = {"createdDate": created.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        if path.startswith("/topic/"):
            about["type"] = event.pop("type", "created")
        payload = json.dumps({"event": about, **event}).encode()
        scattered = batch.tip * _FACTOR >> 16
        gap = scattered % (self._settings.streaming_id_gap + 1)
        batch.add(_LOG + path, [Draft(payload, "")], skip=gap)

    def message(self, path: str, topic: Topic, event: Event) -> dict[str, Any]:
        """Return an event as a Bayeux message.

        Args:
            path: The channel to name in the message, with the subscription's filter.
            topic: The topic or log that contains the event.
            event: The event.
        """
        if topic.name.startswith(_LOG):
            data = json.loads(event.payload)
            data["event"]["replayId"] = event.position
            data.pop("userIds", None)
            return {"channel": path, "data": data}
        schema = self._bus.schema(event.schema_id)
        payload = schema.decode(event.payload)
        if "ChangeEventHeader" in payload:
            payload = with_names(payload, json.loads(schema.text))
        elif isinstance(payload.get("CreatedDate"), int):
            made = datetime.fromtimestamp(payload["CreatedDate"] / 1000, UTC)
            text = made.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            payload["CreatedDate"] = text
        about = {"replayId": event.position, "EventUuid": event.event_id}
        data = {"schema": event.schema_id, "payload": payload, "event": about}
        return {"channel": path, "data": data}

    @staticmethod
    def is_for(topic: Topic, event: Event, user_id: str, wanted: Sequence[tuple[str, str]]) -> bool:
        """Return whether a subscriber receives an event.

        Args:
            topic: The topic or log that contains the event.
            event: The event, which may be limited to a list of users.
            user_id: Id of the subscriber's user.
            wanted: The filter, as returned by `conditions`.
        """
        if not topic.name.startswith(_LOG):
            return True
        data = json.loads(event.payload)
        if data.get("userIds") and user_id not in data["userIds"]:
            return False
        fields = data.get("sobject", {})
        return not wanted or any(str(fields.get(name)) == text for name, text in wanted)

    # Subscribing.

    def topic(self, path: str) -> Topic:
        """Return the bus's topic or log that contains the events of a channel.

        Raises:
            Refusal: There is no such channel.
        """
        kind = next((kind for start, kind in _OWN.items() if path.startswith(start)), None)
        try:
            if kind is None:
                topic = self._bus.topic(path)
                if topic.can_subscribe:
                    return topic
                raise Refusal("channel", channel=path)
            names = [_path(kind, item.name) for item in self.records(kind)]
            if path in names:
                return self._bus.topic(_LOG + path)
        except Refused as refused:
            raise Refusal("channel", channel=path) from refused
        if kind == "PushTopic":
            raise Refusal("channel", channel=path)
        if path.lower() in map(str.lower, names):
            raise Refusal("case")
        raise Refusal("unknown channel", channel=path)

    def conditions(self, path: str, text: str) -> list[tuple[str, str]]:
        """Parse the filter of a PushTopic subscription.

        Args:
            path: The channel, /topic/….
            text: The filter after the `?` of the subscription; blank for no filter.

        Returns:
            Pairs of a field name and a value. An event passes the filter if it matches at least
            one pair; an empty list lets all events pass.

        Raises:
            Refusal: The filter is not valid, or uses a field that is not in the PushTopic's query.
        """
        if not text:
            return []
        names = [
            item for item in self.records("PushTopic") if _path("PushTopic", item.name) == path
        ]
        query = str(names[0].fields.get("Query", "")) if names else ""
        selected = re.findall(r"\w+", query.lower().partition(" from ")[0])
        found = []
        for part in text.split("&"):
            condition = _CONDITION.fullmatch(part)
            if condition is None or condition[1].lower() not in selected:
                raise Refusal("channel", channel=f"{path}?{text}")
            value = condition[2] if condition[2] is not None else condition[3]
            found.append((condition[1], value))
        return found

    def position(self, topic: Topic, replay: object) -> int:
        """Return the position after which a subscription starts.

        Args:
            topic: The topic or log of the channel.
            replay: The replay id that the client sent; -1 or None for new events only, -2 for all
                retained events.

        Raises:
            Refusal: The id was never issued, or its event is no longer retained.
        """
        if replay is None or replay == NEW_EVENTS:
            return self._bus.tip()
        forgotten = 0
        if topic.name.startswith(_LOG):
            horizon = self._clock.now() - self._settings.streaming_retention_s
            forgotten = self._bus.position_at(horizon) or 0
        if replay == ALL_EVENTS:
            return forgotten
        if isinstance(replay, int) and replay > forgotten and self._bus.is_alive(replay):
            return replay
        raise Refusal("replay", replay=replay)


def _path(kind: str, name: str) -> str:
    return f"/topic/{name}" if kind == "PushTopic" else name


def with_names(payload: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded change event in the format of the Streaming API: with field names instead of
    bitmaps. Empty fields are omitted, unless the change emptied them; a difference between texts is
    marked as one.
    """
    header = dict(payload["ChangeEventHeader"])
    names = [str(field["name"]) for field in schema["fields"]]
    for key in ("changedFields", "nulledFields", "diffFields"):
        header[key] = [name for bitmap in header[key] for name in _named(bitmap, names)]
    fields = {
        name: value
        for name, value in payload.items()
        if name != "ChangeEventHeader" and (value is not None or name in header["nulledFields"])
    }
    for name in header["diffFields"]:
        if isinstance(fields.get(name), str):
            fields[name] = {"diff": fields[name]}
    return {"ChangeEventHeader": header, **fields}


def _named(bitmap: str, names: Sequence[str]) -> list[str]:
    """Return the names of the fields that a bitmap lists. For a bitmap of a compound field's
    components (`N-0x…`, see `records.bitmaps`), return only the name of the compound field.
    """
    parent, _, digits = bitmap.rpartition("-")
    if parent:
        return [names[int(parent)]]
    bits = int(digits, 16)
    return [name for place, name in enumerate(names) if bits >> place & 1]
