"""The org of the storm in storm.py: its objects, its settings, and the expected values of its
records.

The records are read from the emulator's database, independently of the client.
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

# Credentials of the default app of the emulator (docs/reference/emulator.md).
CREDENTIALS = {"client_id": "emulator", "client_secret": "emulator-secret"}

# The mirror's user, who owns no records, the app with which the mirror signs in, and what gives the
# user View All.
MIRROR_USER = "mirror@example.com"
MIRROR_CREDENTIALS = {"client_id": "mirror", "client_secret": "mirror-secret"}
PERMISSION_SET = "Mirror"

# Records by id; their values by column, as expected in a current table.
Rows: TypeAlias = dict[str, dict[str, Any]]

# Settings of the org: seconds by which REST responses are stale, and changes at which a transaction
# overflows.
REST_LAG = 0.4
OVERFLOW = 100


def seed_of(directory: Path) -> Seed:
    """Return the default seed with change data capture for all objects, on one channel.

    Its file is written to *directory*.
    """
    text = DEFAULT_SEED.read_text().replace("change_events = false", "change_events = true")
    topics = ", ".join(f'"/data/{event_of(name)}"' for name in OBJECTS)
    text = text.replace('topics = ["/data/AccountChangeEvent"]', f"topics = [{topics}]")
    path = directory / "storm.toml"
    path.write_text(text)
    return load(path)


def admit_mirror(emulator: EmulatorServer) -> None:
    """Create the mirror's user, who sees all records of the objects through a permission set."""
    emulator.accounts.put_user(MIRROR_USER, view_all=False)
    emulator.accounts.put_app(**MIRROR_CREDENTIALS, run_as=MIRROR_USER)
    emulator.rights.put_permission_set(PERMISSION_SET, view_all=OBJECTS)
    emulator.rights.assign(MIRROR_USER, PERMISSION_SET)


def aligned(found: Rows, wanted: Rows) -> Rows:
    """Return rows of a table with the fields that the org has by now.

    The value of a field that got another type is in one of several columns, such as Price__c and
    Price__c__decimal_18_4. A column that the table does not have counts as empty.
    """
    names = list(next(iter(wanted.values()), {}))
    columns: dict[str, list[str]] = {}
    for column in {column for row in found.values() for column in row}:
        owner = next((name for name in names if column == name), None) or next(
            (name for name in names if column.startswith(f"{name}__")), None
        )
        if owner is not None:
            columns.setdefault(owner, []).append(column)

    def value(row: dict[str, Any], name: str) -> Any:
        there = [row[each] for each in columns.get(name, ()) if row.get(each) is not None]
        return there[0] if len(there) == 1 else there or None

    return {
        record_id: {name: value(row, name) for name in names} for record_id, row in found.items()
    }


def event_of(name: str) -> str:
    """Return the name of an object's change event."""
    return f"{name.removesuffix('c')}ChangeEvent" if name.endswith("__c") else f"{name}ChangeEvent"


# Expected records.


def late_events(emulator: EmulatorServer) -> int:
    """Return the number of delayed events that are not published yet."""
    with _database(emulator) as database:
        return int(database.execute("SELECT count(*) FROM late_events").fetchone()[0])


def _database(emulator: EmulatorServer) -> closing[sqlite3.Connection]:
    path = emulator.data_dir / "bus.sqlite3"
    return closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))


def truth_of(emulator: EmulatorServer) -> dict[str, Rows]:
    """Return the records of each object that are not deleted, read from the database."""
    with _database(emulator) as database:
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
    """Convert a stored value to the form that tables use for its field's type."""
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
    """Drop the null parts of a compound value, or return None if all are null; return any other
    value as is.
    """
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if each is not None} or None
