"""What the tests of records share."""

from __future__ import annotations

from typing import Any

from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.server import EmulatorServer


def select(emulator: EmulatorServer, name: str) -> None:
    """Select an object for Change Data Capture."""
    definition = emulator.records.describe(name).definition
    emulator.records.put_object(SObject({**definition, "change_events": True}))


def events(emulator: EmulatorServer, topic: str) -> list[dict[str, Any]]:
    """All retained events of a topic, decoded."""
    found, _ = emulator.bus.read(emulator.bus.topic(topic), 0, 100_000)
    return [emulator.bus.schema(event.schema_id).decode(event.payload) for event in found]


def said(event: dict[str, Any]) -> dict[str, Any]:
    """The body of an event without what is empty."""
    return {k: v for k, v in event.items() if k != "ChangeEventHeader" and v is not None}
