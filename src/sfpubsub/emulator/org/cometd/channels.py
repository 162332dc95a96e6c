"""The channels of the Streaming API, on the org's bus.

Each PushTopic and generic channel has its own log on the bus, under a name that gRPC clients cannot
request; `/event/…` and `/data/…` are the bus's topics. An event's id is its position on the bus: an
increasing number with gaps. Events of PushTopics and generic channels have a shorter retention.
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
"""Prefix of a channel's log on the bus. It cannot clash with topics, which begin with a slash."""

_PREFIXES = {"PushTopic": "0IF", "StreamingChannel": "0M6"}
"""Id prefixes of the two kinds of records."""

_OWN = {"/topic/": "PushTopic", "/u/": "StreamingChannel"}

_FACTOR = 0x9E3779B1
"""Odd and large, so that gaps between ids have no pattern that a client could rely on."""

_CONDITION = re.compile(r"(\w+)=(?:'([^']*)'|(.*))")


@dataclass(frozen=True)
class Record:
    """A PushTopic or StreamingChannel record of the REST API."""

    record_id: str
    kind: str
    name: str
    fields: Mapping[str, Any]


class Channels:
    """All channels. Thread-safe.

    Args:
        store: The store that holds the records.
        bus: The bus that holds the events.
        clock: The org's clock.
        settings: Retention and gaps.
    """

    def __init__(self, store: Store, bus: Bus, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()  # serialises changes of records

    # Records.

    def create(self, kind: str, name: str, fields: Mapping[str, Any]) -> Record:
        """Create a record and its channel; names are case-insensitive.

        Raises:
            EmulatorProblem: The name is taken.
        """
        with self._lock:
            if any(item.name.lower() == name.lower() for item in self.records(kind)):
                raise EmulatorProblem(f"the name {name} is already taken: choose another")
            number = int(self._store.meta("streaming_number", "0")) + 1
            self._bus.put_log(_LOG + _path(kind, name))
            record_id = eighteen(f"{_PREFIXES[kind]}SB{number:010d}")
            with self._store.transaction():
                self._store.set_meta("streaming_number", str(number))
                self._store.run(
                    "INSERT INTO streaming_records VALUES (?, ?, ?, ?)",
                    record_id,
                    kind,
                    name,
                    json.dumps(dict(fields)),
                )
        return Record(record_id, kind, name, fields)

    def records(self, kind: str) -> list[Record]:
        """Return all records of a kind, sorted by name."""
        rows = self._store.rows(
            "SELECT id, kind, name, fields FROM streaming_records WHERE kind = ? ORDER BY name",
            kind,
        )
        return [Record(row[0], row[1], row[2], json.loads(row[3])) for row in rows]

    def delete(self, record_id: str) -> None:
        """Delete a record; its subscribers stay connected but receive no more events."""
        self._store.run("DELETE FROM streaming_records WHERE id = ?", record_id)

    # Events.

    def publish(self, path: str, events: Sequence[Mapping[str, Any]]) -> list[int]:
        """Publish to a PushTopic or a generic channel, creating it if necessary.

        Args:
            path: The channel.
            events: For a PushTopic `type` and `sobject`; for a generic channel `payload` and
                optionally `userIds`, the recipients.

        Returns:
            The replay ids of the events, in order.

        Raises:
            EmulatorProblem: The path is not that of such a channel, or an event is not valid.
        """
        start, kind = next(
            ((start, kind) for start, kind in _OWN.items() if path.startswith(start)), ("", "")
        )
        if not kind:
            raise EmulatorProblem(
                f"{path} is neither a PushTopic nor a generic channel: use /topic/… or /u/…"
            )
        known = {"PushTopic": {"type", "sobject"}, "StreamingChannel": {"payload", "userIds"}}
        for event in events:
            if not set(event) <= known[kind] or not event:
                raise EmulatorProblem(
                    f"an event of {path} needs one or more of the keys"
                    f" {', '.join(sorted(known[kind]))}, and no others"
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
        """Publish one event within a transaction of the bus; the channel must exist."""
        created = datetime.fromtimestamp(self._clock.now(), UTC)
        about = {"createdDate": created.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        if path.startswith("/topic/"):
            about["type"] = event.pop("type", "created")
        payload = json.dumps({"event": about, **event}).encode()
        scattered = batch.tip * _FACTOR >> 16
        gap = scattered % (self._settings.streaming_id_gap + 1)
        batch.add(_LOG + path, [Draft(payload, "")], skip=gap)

    def message(self, path: str, topic: Topic, event: Event) -> dict[str, Any]:
        """Return an event as a Bayeux message."""
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
        """Return whether a subscriber receives an event, based on the event's list of users and the
        subscription's filter.
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
        """Return the log of a channel.

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
        """Return the filter conditions after a PushTopic's name; an event needs to match only one
        of them.

        Raises:
            Refusal: The filter uses a field that is not in the topic's query, or is not valid.
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
    """Return a change event in the format of this API: field names instead of bitmaps, and only
    changed fields.
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
    return {"ChangeEventHeader": header, **fields}


def _named(bitmap: str, names: Sequence[str]) -> list[str]:
    """Return the field names of a bitmap; for a nested bitmap, the name of its compound field."""
    parent, _, digits = bitmap.rpartition("-")
    if parent:
        return [names[int(parent)]]
    bits = int(digits, 16)
    return [name for place, name in enumerate(names) if bits >> place & 1]
