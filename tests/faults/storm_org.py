"""The org that a storm is in: its objects, its settings, and the truth about its records.

What the org holds is read from the emulator's own database, row by row, with no code of the client.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, TypeAlias

from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.seed import DEFAULT_SEED, Seed, load
from sfpubsub.emulator.server import EmulatorServer

OBJECTS = ("Account", "Contact", "Order__c")
CHANNEL = "/data/ChangeEvents"

# The app of an org whose seed names none (docs/reference/emulator.md).
CREDENTIALS = {"client_id": "emulator", "client_secret": "emulator-secret"}

# Records by id, and their values by column, as a current table is to have them.
Rows: TypeAlias = dict[str, dict[str, Any]]

# Settings of the org: answers lag behind the bus, and a transaction of this many changes overflows.
REST_LAG = 0.4
OVERFLOW = 100


def seed_of(directory: Path) -> Seed:
    """The default org, with all its objects selected for change data capture, on one channel."""
    text = DEFAULT_SEED.read_text().replace("change_events = false", "change_events = true")
    topics = ", ".join(f'"/data/{event_of(name)}"' for name in OBJECTS)
    text = text.replace('topics = ["/data/AccountChangeEvent"]', f"topics = [{topics}]")
    path = directory / "storm.toml"
    path.write_text(text)
    return load(path)


def event_of(name: str) -> str:
    """The change event of an object."""
    return f"{name.removesuffix('c')}ChangeEvent" if name.endswith("__c") else f"{name}ChangeEvent"


# The truth.


def truth_of(emulator: EmulatorServer) -> dict[str, Rows]:
    """What the org holds, from the rows of its database: the records that are not deleted."""
    path = emulator.data_dir / "bus.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        return {
            name: {
                row["Id"]: dict(_columns(emulator.records.describe(name), row))
                for row in database.execute(f'SELECT * FROM "rec_{name}" WHERE NOT IsDeleted')
            }
            for name in OBJECTS
        }


def _columns(of: SObject, row: sqlite3.Row) -> Iterator[tuple[str, Any]]:
    compounds = {each.compound for each in of.fields if each.compound}
    for field in of.fields:
        if field.name in ("Id", "IsDeleted", "SystemModstamp") or field.compound:
            continue
        if field.name in compounds:
            parts = {
                part: _value(each, row[each.name]) for part, each in of.parts(field.name).items()
            }
            yield field.name, plain(parts)
        else:
            yield field.name, _value(field, row[field.name])


def _value(field: Field, kept: Any) -> Any:
    """A value as a table has it, by what the field is described as."""
    if field.type == "boolean":
        return bool(kept)
    if kept is None:
        return None
    if field.type == "int":
        return int(kept)
    if field.is_number:
        return Decimal(repr(kept)).quantize(Decimal(1).scaleb(-field.scale), ROUND_HALF_UP)
    if field.type == "date":
        return date.fromisoformat(kept)
    if field.type == "datetime":
        return datetime.fromisoformat(kept).astimezone(UTC)
    return str(kept)


def plain(value: Any) -> Any:
    """A compound value without what is empty in it; None if that is all."""
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if each is not None} or None
