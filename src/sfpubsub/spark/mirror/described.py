"""What an org describes of an object, as columns of a table.

Pure: no Spark session, no I/O. A field is a column of its name; the parts of a compound field are
members of one struct, named as in events (``BillingAddress.City``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.rest import FieldDescription, ObjectDescription

# The table has these in columns of its own.
_OURS = ("Id", "IsDeleted")

# Left out, because no event tells of them and they change all the time: with every change of the
# record, or whenever somebody looks at it, and then for each user differently.
_RESTLESS = ("SystemModstamp", "LastViewedDate", "LastReferencedDate")

# Types of fields that no query returns as a value: files, and compound values of odd kinds.
# A compound field of the usual kinds is put together from its parts.
_UNREADABLE = ("base64", "complexvalue", "address", "location")

# Most digits of a number in an org. All decimals have so many, whatever the org says of a field, so
# that a field that gets more of them in front of the point keeps its column.
_DIGITS = 18

_KINDS = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "date": pa.date32(),
    "datetime": TIME,
}

_DECIMALS = ("double", "currency", "percent")

# A custom compound field's parts are ``Site__City__s`` of ``Site__c``.
_CUSTOM_PART, _CUSTOM = "__s", "__c"

# Where an org has person accounts. Only there a name is either a text or in parts.
_PERSON_ACCOUNTS = "IsPersonAccount"


@dataclass(frozen=True)
class Column:
    """One column of a mirrored object's table."""

    name: str
    type: pa.DataType
    field: str
    """API name of the field, as change events have it: `name`, but for a second column."""
    comment: str
    """The label and, in parentheses, the API name."""
    asked: tuple[str, ...] = ()
    """API names that a read selects for it: itself, or a compound field's parts. Empty of a column
    that is not described."""
    parts: tuple[str, ...] = ()
    """Of a compound field: the member of the struct for each of `asked`. Where the first one is
    called like the field, it is the whole name of what has no name in parts: null if another one
    is set. The struct may have further members, which only events fill."""
    calculated: bool = False
    """A formula or a roll-up: no event tells of it."""
    is_time: bool = False
    """A time of day, as REST has it: a text such as ``09:30:00.000Z``."""
    described: bool = True
    """Whether the org describes it, so that a read fills it. Not so of a field that only events
    have, or that the org has removed, or that has another type now."""


def described(description: ObjectDescription) -> Iterator[Column]:
    """Yield the columns of a describe: each field, or the compound field that has it as a part."""
    parts: dict[str, list[FieldDescription]] = {}
    for field in description.fields:
        if compound := _compound_of(description, field):
            parts.setdefault(compound, []).append(field)
    for field in description.fields:
        if field.name in (*_OURS, *_RESTLESS) or _compound_of(description, field):
            continue
        own = parts.get(field.name, [])
        if own and field.type not in _UNREADABLE and description.field(_PERSON_ACCOUNTS):
            own = [field, *own]
        readable = [each for each in own or [field] if each.type not in _UNREADABLE]
        if not readable:
            continue
        asked = tuple(each.name for each in readable)
        names = tuple(_part(field.name, each.name) for each in readable) if own else ()
        types = [_type(each) for each in readable]
        yield Column(
            field.name,
            pa.struct(list(zip(names, types, strict=True))) if own else types[0],
            field.name,
            f"{field.label} ({field.name})",
            asked,
            names,
            calculated=field.calculated,
            is_time=field.type == "time",
        )


def _compound_of(description: ObjectDescription, field: FieldDescription) -> str | None:
    """Return the compound field that a field is a part of; a name may be said to be its own."""
    name = field.compound_field_name
    found = None if name is None else description.field(name)
    return None if found is None or found.name == field.name else found.name


def _part(compound: str, field: str) -> str:
    """Return what a part is called in events: ``City`` is ``BillingCity`` of ``BillingAddress``."""
    if field.endswith(_CUSTOM_PART) and compound.endswith(_CUSTOM):
        stem = f"{compound.removesuffix(_CUSTOM)}__"
        return field.removesuffix(_CUSTOM_PART).removeprefix(stem)
    if not compound.endswith("Address"):
        return field
    return field.removeprefix(compound.removesuffix("Address"))


def _type(field: FieldDescription) -> pa.DataType:
    """Return the type of a field's column. Picklists, references, times of day: texts."""
    if field.type in _DECIMALS:
        return pa.decimal128(max(_DIGITS, field.precision, field.scale), field.scale)
    return _KINDS.get(field.type, pa.string())


def number_of(columns: Sequence[Column], name: str) -> int | None:
    """Return which column has a name; None for none of them."""
    for number, column in enumerate(columns):
        if column.name.lower() == name.lower():  # Spark does not tell names apart by case
            return number
    return None
