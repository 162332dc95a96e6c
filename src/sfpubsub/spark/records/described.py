"""Convert an object's describe result to table columns.

This module is pure: no Spark session, no I/O. Each field becomes a column of the same name. A
compound field becomes a struct, whose fields have the names of the components in events
(``BillingAddress.City``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.rest import FieldDescription, ObjectDescription
from sfpubsub.rest.describing import STAMP

# Fields to exclude, because every mirrored table already has columns for them.
_OURS = ("Id", "IsDeleted")


# Fields to exclude, because no event reports them and they change constantly: with every change of
# the record, or whenever a user views it, with a different value for each user.
_RESTLESS = (STAMP, "LastViewedDate", "LastReferencedDate")

# Types of fields that queries do not return as a single value: files and compound values. Ordinary
# compound fields are assembled from their parts.
_UNREADABLE = ("base64", "complexvalue", "address", "location")

# Maximum number of digits of a number in Salesforce. All decimals use this precision, regardless of
# the org's declaration, so that a field keeps its column when its number of integer digits is
# raised.
_DIGITS = 18

# First and last date that Python has (1 January of year 1 and 31 December of year 9999), in days
# since 1970. Rows are merged by Python code.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896

_KINDS = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "date": pa.date32(),
    "datetime": TIME,
}

_DECIMALS = ("double", "currency", "percent")

# The parts of a custom compound field ``Site__c`` are named like ``Site__City__s``.
_CUSTOM_PART, _CUSTOM = "__s", "__c"

# A field that exists only if the org has person accounts. Only then can a name be either a text or
# a struct of parts.
_PERSON_ACCOUNTS = "IsPersonAccount"


@dataclass(frozen=True)
class Column:
    """One column of a mirrored object's table."""

    name: str
    type: pa.DataType
    field: str
    """API name of the field, as in change events. Differs from `name` only in the second column of
    a field whose type changed.
    """
    comment: str
    """Comment of the column: the label and, in parentheses, the API name."""
    asked: tuple[str, ...] = ()
    """API names that a read selects for the column: the field itself, or the parts of a compound
    field. Empty for a column that is not described.
    """
    parts: tuple[str, ...] = ()
    """For a compound field: names of the struct members, one for each element of `asked`; otherwise
    empty. If the first member has the name of the field, it contains names that are not divided
    into parts, and is null if another member is set. The struct may have further members, which
    only events fill.
    """
    calculated: bool = False
    """Whether the field is a formula or a roll-up summary, which no event reports."""
    is_time: bool = False
    """Whether the field is a time of day, stored as text as in REST, such as ``09:30:00.000Z``."""
    described: bool = True
    """Whether the org describes the field, so a read fills the column. False for a field that
    only events have, that the org has removed, or whose type has changed.
    """
    returns: int = 0
    """How often the org described the field again after it had not described it. Values that were
    read before that may have changed without an event that the user could see.
    """


def described(description: ObjectDescription) -> Iterator[Column]:
    """Yield the columns of all readable fields; a compound field's components share a column."""
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
    """Return the name of the compound field that contains *field*, or None.

    A name field may be declared as a component of itself, which is ignored.
    """
    name = field.compound_field_name
    found = None if name is None else description.field(name)
    return None if found is None or found.name == field.name else found.name


def _part(compound: str, field: str) -> str:
    """Return the name of a component in events, such as ``City`` for ``BillingCity``."""
    if field.endswith(_CUSTOM_PART) and compound.endswith(_CUSTOM):
        stem = f"{compound.removesuffix(_CUSTOM)}__"
        return field.removesuffix(_CUSTOM_PART).removeprefix(stem)
    if not compound.endswith("Address"):
        return field
    return field.removeprefix(compound.removesuffix("Address"))


def _type(field: FieldDescription) -> pa.DataType:
    """Return the Arrow type of a field's column: string for types such as picklist and time."""
    if field.type in _DECIMALS:
        return pa.decimal128(max(_DIGITS, field.precision, field.scale), field.scale)
    return _KINDS.get(field.type, pa.string())


def number_of(columns: Sequence[Column], name: str) -> int | None:
    """Return the index of the column *name*, ignoring case; None if there is no such column."""
    for number, column in enumerate(columns):
        if column.name.lower() == name.lower():  # Spark compares names case-insensitively
            return number
    return None
