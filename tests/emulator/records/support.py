"""Helpers for the tests of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.server import EmulatorServer


def select(emulator: EmulatorServer, name: str) -> None:
    """Turn on Change Data Capture for an object."""
    definition = emulator.records.describe(name).definition
    emulator.records.put_object(SObject({**definition, "change_events": True}))


def events(emulator: EmulatorServer, topic: str) -> list[dict[str, Any]]:
    """Return all retained events of a topic, decoded."""
    found, _ = emulator.bus.read(emulator.bus.topic(topic), 0, 100_000)
    return [emulator.bus.schema(event.schema_id).decode(event.payload) for event in found]


def body(event: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an event: its fields that are not null, without its header."""
    return {k: v for k, v in event.items() if k != "ChangeEventHeader" and v is not None}


_FILL = """
WITH RECURSIVE counter(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < ?)
INSERT INTO rec_Order__c (Id, IsDeleted, Name, OwnerId, Quantity__c, Gift__c, CreatedDate,
    LastModifiedDate, SystemModstamp, Notes__c)
SELECT printf('a00SB%010dAAA', n), 0, 'order ' || n, '005SB0000000001YAA', n, 0,
    '2026-01-01T00:00:00.000+0000', '2026-01-01T00:00:00.000+0000', '2026-01-01T00:00:00.000+0000',
    ?
FROM counter
"""


def fill_orders(emulator: EmulatorServer, count: int, notes: str | None = None) -> None:
    """Insert *count* orders, numbered from 1, into an org without orders; no events are sent."""
    emulator._store.run(_FILL, count, notes)


def peak_mb() -> float:
    """Return the peak memory of this process since `forget_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def forget_peak() -> None:
    """Reset the peak memory of this process, so that `peak_mb` starts over."""
    Path("/proc/self/clear_refs").write_text("5")
