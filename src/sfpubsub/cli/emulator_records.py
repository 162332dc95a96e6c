"""``sfpubsub emulator records``: view and change the records of an emulator.

The commands are thin wrappers around the emulator's REST API.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import click

from sfpubsub.cli.emulator_admin import ListFirst, of_an_emulator
from sfpubsub.cli.results import print_record, print_records
from sfpubsub.emulator.remote import RemoteEmulator

_REST = "/services/data/v62.0"

_values = click.argument("values", nargs=-1, metavar="FIELD=VALUE...", required=True)


@click.group(cls=ListFirst)
def records() -> None:
    """List the org's objects; view, create, update and delete records.

    Every change publishes a change event, unless change events are off for the object.
    """


@records.command("list")
@of_an_emulator
def list_(emulator: RemoteEmulator) -> None:
    """List the org's objects."""
    items = emulator.call("GET", f"{_REST}/sobjects")["sobjects"]
    rows = ({"name": item["name"], "label": item["label"]} for item in items)
    print_records(rows, "no objects")


@records.command()
@click.argument("soql")
@of_an_emulator
def query(emulator: RemoteEmulator, soql: str) -> None:
    """Print the records of a query, such as "SELECT Id, Name FROM Account LIMIT 10"."""
    print_records(_found(emulator, soql), "no records")


@records.command("show")
@click.argument("object_", metavar="OBJECT")
@click.argument("record_id", metavar="ID")
@of_an_emulator
def show_(emulator: RemoteEmulator, object_: str, record_id: str) -> None:
    """Print one record as a JSON line."""
    print_record(_plain(emulator.call("GET", _path(object_, record_id))))


@records.command()
@click.argument("object_", metavar="OBJECT")
@_values
@of_an_emulator
def create(emulator: RemoteEmulator, object_: str, values: tuple[str, ...]) -> None:
    """Create a record and print its id."""
    answer = emulator.call("POST", _path(object_), _given(values))
    print_record({"id": answer["id"]})


@records.command()
@click.argument("object_", metavar="OBJECT")
@click.argument("record_id", metavar="ID")
@_values
@of_an_emulator
def update(emulator: RemoteEmulator, object_: str, record_id: str, values: tuple[str, ...]) -> None:
    """Update fields of a record, and print its id. An empty value clears a field."""
    emulator.call("PATCH", _path(object_, record_id), _given(values))
    print_record({"id": record_id})


@records.command()
@click.argument("object_", metavar="OBJECT")
@click.argument("record_id", metavar="ID")
@of_an_emulator
def delete(emulator: RemoteEmulator, object_: str, record_id: str) -> None:
    """Move a record to the Recycle Bin, and print its id."""
    emulator.call("DELETE", _path(object_, record_id))
    print_record({"id": record_id})


@records.command()
@click.argument("object_", metavar="OBJECT")
@click.argument("record_id", metavar="ID")
@_values
@of_an_emulator
def derive(emulator: RemoteEmulator, object_: str, record_id: str, values: tuple[str, ...]) -> None:
    """Set fields that no change event contains, such as LastActivityDate, and print the id.

    As in an org, this changes SystemModstamp and publishes no event.
    """
    body = {"object": object_, "id": record_id, "values": _given(values)}
    print_record(emulator.call("POST", "/admin/derive", body))


@records.command()
@click.argument("object_", metavar="OBJECT")
@click.argument("record_id", metavar="ID")
@of_an_emulator
def archive(emulator: RemoteEmulator, object_: str, record_id: str) -> None:
    """Archive a record of an object whose records can be archived, and print its id."""
    print_record(emulator.call("POST", "/admin/archive", {"object": object_, "id": record_id}))


def _found(emulator: RemoteEmulator, soql: str) -> Iterator[dict[str, Any]]:
    path: str | None = f"{_REST}/query?{urlencode({'q': soql})}"
    while path:
        answer = emulator.call("GET", path)
        yield from map(_plain, answer["records"])
        path = answer.get("nextRecordsUrl")


def _path(*parts: str) -> str:
    return "/".join((f"{_REST}/sobjects", *(quote(part, safe="") for part in parts)))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "attributes"}


def _given(values: tuple[str, ...]) -> dict[str, str | None]:
    """Parse ``FIELD=VALUE`` arguments; an empty value becomes None.

    Other values remain text, because the org parses numbers and dates.
    """
    given = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r} is not valid: use FIELD=VALUE")
        given[name] = value or None
    return given
