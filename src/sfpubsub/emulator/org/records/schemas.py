"""The Avro schema of an object's change events, and the position of each field in it.

The schema consists of the header, followed by a nullable field for each field of the object, in the
same order. The id and internal fields are omitted, as are formula fields unless they are requested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfpubsub.emulator.org.records.fields import Field, SObject

_NAMESPACE = "com.sforce.eventbus"
_LEFT_OUT = ("Id", "IsDeleted", "SystemModstamp")
_CLOB_CHARS = 255
"""Text areas with more characters are stored separately by the org, and have a different type in
events.
"""

# Type of a field -> its Avro type and the type in its doc.
_TYPES: dict[str, tuple[str, str]] = {
    "string": ("string", "Data:Text"),
    "textarea": ("string", "Data:Text"),
    "boolean": ("boolean", "Data:Boolean"),
    "int": ("int", "Data:Integer"),
    "double": ("double", "Data:Double"),
    "currency": ("double", "Data:Currency"),
    "percent": ("double", "Data:Percent"),
    "date": ("long", "Data:DateOnly"),
    "datetime": ("long", "Data:DateTime"),
    "time": ("long", "Data:TimeOnly"),
    "picklist": ("string", "Data:DynamicEnum"),
    "multipicklist": ("string", "Data:MultiEnum"),
    "reference": ("string", "ForeignKey:EntityId"),
    "email": ("string", "Data:Email"),
    "phone": ("string", "Data:Phone"),
    "url": ("string", "Data:Url"),
}
_DOCS = {
    "CreatedDate": "CreatedDate:DateTime",
    "CreatedById": "CreatedBy:EntityId",
    "LastModifiedDate": "LastModifiedDate:DateTime",
    "LastModifiedById": "LastModifiedBy:EntityId",
}
_TEXTS = {"type": "array", "items": "string"}

CHANGE_TYPES = (
    "CREATE",
    "UPDATE",
    "DELETE",
    "UNDELETE",
    "GAP_CREATE",
    "GAP_UPDATE",
    "GAP_DELETE",
    "GAP_UNDELETE",
    "GAP_OVERFLOW",
    "SNAPSHOT",
)

_HEADER = {
    "type": "record",
    "name": "ChangeEventHeader",
    "fields": [
        {"name": "entityName", "type": "string"},
        {"name": "recordIds", "type": _TEXTS},
        {
            "name": "changeType",
            "type": {"type": "enum", "name": "ChangeType", "symbols": list(CHANGE_TYPES)},
        },
        {"name": "changeOrigin", "type": "string"},
        {"name": "transactionKey", "type": "string"},
        {"name": "sequenceNumber", "type": "int"},
        {"name": "commitTimestamp", "type": "long"},
        {"name": "commitNumber", "type": "long"},
        {"name": "commitUser", "type": "string"},
        {"name": "nulledFields", "type": _TEXTS},
        {"name": "diffFields", "type": _TEXTS},
        {"name": "changedFields", "type": _TEXTS},
    ],
}


def _part(name: str, kind: str, doc: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "doc": f"Data:{doc}", "default": None}


_ADDRESS = [
    *(
        _part(name, "string", "Text")
        for name in ("Street", "City", "State", "PostalCode", "Country")
    ),
    *(_part(name, "string", "DynamicEnum") for name in ("StateCode", "CountryCode")),
    *(_part(name, "double", "Double") for name in ("Latitude", "Longitude")),
    _part("GeocodeAccuracy", "string", "StaticEnum"),
]
_PERSON = [
    _part("Salutation", "string", "DynamicEnum"),
    *(_part(name, "string", "Text") for name in ("FirstName", "LastName")),
]

# Type of a compound field -> name and fields of its record.
_COMPOUND = {"address": ("Address", _ADDRESS), "name": ("PersonName", _PERSON)}
_SWITCHABLE = "Switchable_PersonName"
"""The type of an account's name: a string, or a person's name in orgs with person accounts."""


@dataclass(frozen=True)
class ChangeSchema:
    """The schema of one object's change events.

    Attributes:
        text: The Avro schema as JSON.
        places: Position of each top-level field in the schema, by field name.
        parts: For each component of a compound field, by the component's name: the position of the
            compound field in the schema, and that of the component within the compound field.
    """

    text: str
    places: Mapping[str, int]
    parts: Mapping[str, tuple[int, int]]


def change_schema(of: SObject, *, formulas: bool = False) -> ChangeSchema:
    """Return the schema of an object's change events. With *formulas*, the schema includes custom
    formula fields.
    """
    rows: list[dict[str, Any]] = [
        {"name": "ChangeEventHeader", "type": _HEADER, "doc": "Data:ComplexValueType"}
    ]
    places: dict[str, int] = {}
    parts: dict[str, tuple[int, int]] = {}
    written: set[str] = set()  # a named type may be defined once, and is then referenced by name
    for field in of.fields:
        is_left_out = not field.in_events or (
            field.calculated and not (formulas and field.is_custom)
        )
        if field.name in _LEFT_OUT or field.compound or is_left_out:
            continue
        place = len(rows)
        places[field.name] = place
        if field.type in _COMPOUND:
            members = _COMPOUND[field.type][1]
            inner = [str(member["name"]) for member in members]
            for part, holder in of.parts(field.name).items():
                parts[holder.name] = (place, inner.index(part))
        rows.append(_row(of, field, written))
    record = {"name": of.event_name, "namespace": _NAMESPACE, "type": "record", "fields": rows}
    return ChangeSchema(json.dumps(record), places, parts)


def _row(of: SObject, field: Field, written: set[str]) -> dict[str, Any]:
    if field.type in _COMPOUND:
        name, members = _COMPOUND[field.type]
        kinds: list[Any] = ["null", _named(name, members, written)]
        doc = f"Data:{name}"
    elif field.avro == _SWITCHABLE:
        kinds, doc = (
            ["null", "string", _named(_SWITCHABLE, _PERSON, written)],
            f"Data:{_SWITCHABLE}",
        )
    else:
        kind, doc = _TYPES[field.type]
        kinds = ["null", kind]
        if field.type == "textarea" and field.length > _CLOB_CHARS:
            doc = "Data:StringPlusClob"
        if field.avro:
            doc = field.avro if ":" in field.avro else f"Data:{field.avro}"
    doc = _DOCS.get(field.name, doc)
    if field.is_custom:
        doc += f":{of.field_id(field)}"
    return {"name": field.name, "type": kinds, "doc": doc, "default": None}


def _named(name: str, members: list[dict[str, Any]], written: set[str]) -> Any:
    if name in written:
        return name
    written.add(name)
    return {"type": "record", "name": name, "fields": members}
