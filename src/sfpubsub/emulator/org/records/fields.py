"""Objects and their fields, including the system fields of every object and the components of
compound fields.

An `SObject` is created from a definition: plain data in the format that a seed file uses. The store
contains these definitions. Fields and objects are immutable and thread-safe.
"""

from __future__ import annotations

import copy
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfpubsub.emulator.org.records import formulas

_NAME = re.compile(r"[A-Za-z]\w{0,79}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9]{3}")

TYPES: dict[str, int] = {
    "string": 255,
    "textarea": 32_768,
    "boolean": 0,
    "int": 0,
    "double": 0,
    "currency": 0,
    "percent": 0,
    "date": 0,
    "datetime": 0,
    "time": 0,
    "picklist": 255,
    "multipicklist": 4_099,
    "reference": 18,
    "email": 80,
    "phone": 40,
    "url": 255,
    "id": 18,
    "name": 121,
    "address": 0,
}
"""Field types, each with its default length in characters; 0 for types without a length."""

_LONG_TEXT = 255
"""Text areas with more characters cannot be used to filter or sort. Documented."""

NUMBERS = ("int", "double", "currency", "percent")
_LONGEST = 131_072
"""Maximum number of characters in a text field of an org."""

_SCALE, _GEO_SCALE, _MOST_SCALE = 2, 15, 17
"""Numbers of decimal places: the default, that of a latitude or longitude, and the maximum. A
number has at most 18 digits.
"""

# Part of a compound field -> type and length of the field that stores it.
_NAME_PARTS = {
    "Salutation": ("picklist", 40),
    "FirstName": ("string", 40),
    "LastName": ("string", 80),
}
_ADDRESS_PARTS = {
    "Street": ("textarea", 255),
    "City": ("string", 40),
    "State": ("string", 80),
    "PostalCode": ("string", 20),
    "Country": ("string", 80),
    "Latitude": ("double", 0),
    "Longitude": ("double", 0),
    "GeocodeAccuracy": ("picklist", 40),
}

_KEYS: dict[str, type] = {
    "name": str,
    "type": str,
    "label": str,
    "length": int,
    "scale": int,
    "required": bool,
    "picklist": list,
    "restricted": bool,
    "references": list,
    "formula": str,
    "external_id": bool,
    "unique": bool,
    "default": object,
    "read_only": bool,
    "avro": str,
    "in_events": bool,
}
"""Keys of a field definition and the types of their values."""

_SYSTEM: dict[str, dict[str, Any]] = {
    "OwnerId": {"type": "reference", "label": "Owner ID", "references": ["User"]},
    "CreatedDate": {"type": "datetime", "label": "Created Date", "read_only": True},
    "CreatedById": {
        "type": "reference",
        "label": "Created By ID",
        "references": ["User"],
        "read_only": True,
    },
    "LastModifiedDate": {"type": "datetime", "label": "Last Modified Date", "read_only": True},
    "LastModifiedById": {
        "type": "reference",
        "label": "Last Modified By ID",
        "references": ["User"],
        "read_only": True,
    },
}
"""Fields that every object has; a definition may list them to set their order."""


@dataclass(frozen=True)
class Field:
    """One field of an object.

    Attributes:
        name: API name.
        label: Label, for display.
        type: Key of `TYPES`.
        length: Maximum number of characters in a text or id; 0 for other types.
        scale: Number of decimal places, as shown by describe; not enforced on writes.
        nillable: Whether the field can be empty.
        createable: Whether a client can set the field when it creates a record.
        updateable: Whether a client can change the field.
        picklist_values: The values of a picklist.
        restricted: Whether the picklist rejects other values.
        reference_to: Objects that a reference can point to; polymorphic if there are several.
        calculated: Whether this is a formula field.
        formula: The formula; blank if this is not a formula field.
        external_id: Whether records can be found and upserted by this field.
        unique: Whether each value can occur in only one record.
        default: The value for new records that do not set one.
        compound: Name of the compound field to which this field belongs; blank for other fields.
        part: Name of this field within its compound field; blank for other fields.
        in_events: Whether change events can contain the field. Clients cannot set a field that no
            event contains; the org sets it by itself, without an event.
        avro: Name of the type for the field's `doc` in the Avro schema; blank uses the default
            for `type`.
    """

    name: str
    label: str
    type: str
    length: int = 0
    nillable: bool = True
    createable: bool = True
    updateable: bool = True
    picklist_values: tuple[str, ...] = ()
    restricted: bool = False
    reference_to: tuple[str, ...] = ()
    calculated: bool = False
    formula: str = ""
    external_id: bool = False
    unique: bool = False
    default: Any = None
    compound: str = ""
    part: str = ""
    avro: str = ""
    scale: int = 0
    in_events: bool = True

    @property
    def is_custom(self) -> bool:
        """Whether the field is custom, that is, added by the org's administrator."""
        return self.name.endswith("__c")

    @property
    def is_stored(self) -> bool:
        """Whether the table has a column for the field. An address has a column for each of its
        components instead.
        """
        return self.type != "address"

    @property
    def is_plain(self) -> bool:
        """Whether queries can filter and sort by the field."""
        long_text = self.type == "textarea" and self.length > _LONG_TEXT
        return self.is_stored and not long_text and self.type != "complexvalue"

    @property
    def relationship(self) -> str:
        """Name of the relationship of a reference, such as Account for AccountId and Parent__r for
        Parent__c; blank for other fields.
        """
        if self.type != "reference":
            return ""
        return f"{self.name[:-1]}r" if self.is_custom else self.name.removesuffix("Id")

    @property
    def is_number(self) -> bool:
        """Whether the field's values are numbers."""
        return self.type in NUMBERS


_ARCHIVED = Field(
    "IsArchived", "Archived", "boolean", 0, False, False, False, default=False, in_events=False
)
"""The field that says whether a record was archived, in objects whose records can be."""


class SObject:
    """One object of the org.

    Args:
        definition: name, label, plural, key_prefix, fields, archivable, and change_events (whether
            the object is selected for Change Data Capture), as in a seed.

    Attributes:
        name: API name.
        label: Label, for display.
        plural: Plural form of the label.
        key_prefix: The first three characters of the ids of the object's records.
        change_events: Whether changes are published as events.
        archivable: Whether records can be archived, as tasks and events of an org are.
        fields: All fields, in order, including system fields.
        is_stored: Whether the records are stored; otherwise they are computed.
        definition: The definition from which the object was created.

    Raises:
        ValueError: The definition is not valid; the message names the object or the field.
    """

    is_stored: bool = True

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self.definition: dict[str, Any] = dict(definition)
        self.name: str = str(definition.get("name", ""))
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} is not a valid object name: use at most 80 letters, digits and"
                " underscores, beginning with a letter"
            )
        self.label: str = str(
            definition.get("label", self.name.removesuffix("__c").replace("_", " "))
        )
        self.plural: str = str(definition.get("plural", f"{self.label}s"))
        self.key_prefix: str = str(definition.get("key_prefix", ""))
        if not _PREFIX.fullmatch(self.key_prefix):
            raise ValueError(
                f"{self.name}: key_prefix must be three letters or digits, not {self.key_prefix!r}"
            )
        self.change_events: bool = bool(definition.get("change_events", True))
        self.archivable: bool = bool(definition.get("archivable", False))
        rows = definition.get("fields", ())
        self.fields: tuple[Field, ...] = tuple(_fields(self.name, rows, self.archivable))
        names = [field.name.lower() for field in self.fields]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"{self.name}: the field {min(twice)} appears twice")
        self._by_name = {field.name.lower(): field for field in self.fields}
        for field in self.fields:
            try:
                wanted = formulas.fields_of(field.formula) if field.calculated else ()
            except ValueError as error:
                raise ValueError(f"{self.name}.{field.name}: {error}") from error
            for name in wanted:
                found = self.field(name)
                if found is None or found.calculated or not found.is_stored:
                    raise ValueError(
                        f"{self.name}.{field.name}: the formula cannot use {name}: use fields of"
                        " the object that are not formulas or addresses"
                    )

    @classmethod
    def computed(cls, name: str, key_prefix: str, fields: Mapping[str, str]) -> SObject:
        """Return an object whose records are computed, not stored.

        Args:
            name: API name.
            key_prefix: The first three characters of the ids of the records; may be blank.
            fields: The type of each field, in order: a type of `TYPES`, `complexvalue` for a JSON
                object, or the name of the object to which a reference points.
        """
        made = cls({"name": name, "key_prefix": key_prefix or "000", "fields": ()})
        made.is_stored = False
        made.change_events = False
        made.fields = tuple(
            Field(field, _label(field), kind, TYPES.get(kind, 0), True, False, False)
            if kind in TYPES or kind == "complexvalue"
            else Field(
                field, _label(field), "reference", 18, True, False, False, reference_to=(kind,)
            )
            for field, kind in fields.items()
        )
        made._by_name = {field.name.lower(): field for field in made.fields}
        return made

    def field(self, name: str) -> Field | None:
        """Return the field with this name, ignoring case, or None if there is no such field."""
        return self._by_name.get(name.lower())

    def with_field(self, field: Mapping[str, Any]) -> SObject:
        """Return a copy of this object with a field appended; a field with the same name is
        replaced.

        Raises:
            ValueError: The field is not valid.
        """
        rest = [item for item in self.definition["fields"] if item["name"] != field.get("name")]
        return SObject({**self.definition, "fields": [*rest, dict(field)]})

    def without_field(self, name: str) -> SObject:
        """Return a copy of this object without one of its fields.

        Raises:
            ValueError: The object's definition does not have such a field.
        """
        rest = [item for item in self.definition["fields"] if item["name"] != name]
        if len(rest) == len(self.definition["fields"]):
            raise ValueError(
                f"{self.name}: cannot remove the field {name}: it does not exist, or is a system"
                " field or a component of a compound field"
            )
        return SObject({**self.definition, "fields": rest})

    def without(self, hidden: Collection[str]) -> SObject:
        """Return this object as a user sees it from whom some fields are hidden. With a compound
        field, its components are hidden too.
        """
        shown = copy.copy(self)
        for cached in ("stored", "calculated"):
            shown.__dict__.pop(cached, None)
        shown.fields = tuple(
            field
            for field in self.fields
            if field.name not in hidden and field.compound not in hidden
        )
        shown._by_name = {field.name.lower(): field for field in shown.fields}
        return shown

    @property
    def is_custom(self) -> bool:
        """Whether the object is custom, that is, added by the org's administrator."""
        return self.name.endswith("__c")

    @property
    def event_name(self) -> str:
        """Name of the object's change event, such as `AccountChangeEvent`."""
        return (
            f"{self.name.removesuffix('c')}ChangeEvent"
            if self.is_custom
            else (f"{self.name}ChangeEvent")
        )

    @property
    def topic(self) -> str:
        """Name of the topic for the object's change events."""
        return f"/data/{self.event_name}"

    @cached_property
    def stored(self) -> tuple[Field, ...]:
        """The fields that have a column in the table."""
        return tuple(field for field in self.fields if field.is_stored)

    @cached_property
    def calculated(self) -> tuple[Field, ...]:
        """The formula fields."""
        return tuple(field for field in self.fields if field.calculated)

    def parts(self, compound: str) -> dict[str, Field]:
        """Return the components of a compound field, by their names within it."""
        return {field.part: field for field in self.fields if field.compound == compound}

    def field_id(self, field: Field) -> str:
        """Return the 15-character id of a custom field's definition, derived from its name."""
        number = zlib.crc32(f"{self.name}.{field.name}".encode())
        return f"00NSB{number:010d}"


def _fields(of: str, rows: object, archivable: bool) -> list[Field]:
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"{of}: fields must be a list of tables")
    found = [Field("Id", "Record ID", "id", 18, False, False, False)]
    found.append(Field("IsDeleted", "Deleted", "boolean", 0, False, False, False, default=False))
    if archivable:
        found.append(_ARCHIVED)
    named = {row.get("name") for row in rows}
    missing = [name for name in _SYSTEM if name not in named]
    for row in rows:
        if str(row.get("name", "")).endswith("__c"):  # other system fields precede custom fields
            found += [_system({"name": name}) for name in missing]
            missing = []
        found += _one(of, row)
    found += [_system({"name": name}) for name in missing]
    found.append(Field("SystemModstamp", "System Modstamp", "datetime", 0, False, False, False))
    return found


def _system(row: Mapping[str, Any]) -> Field:
    known = _SYSTEM[row["name"]]
    return _field({**known, **row, "required": True})


def _one(of: str, row: Mapping[str, Any]) -> list[Field]:
    """Return the field that a definition describes and, for a compound field, its components.

    Raises:
        ValueError: The definition is not valid.
    """
    name = row.get("name", "")
    for key, value in row.items():
        if key not in _KEYS:
            raise ValueError(f"{of}.{name}: unknown key {key}; valid keys are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            kind = _KEYS[key].__name__
            raise ValueError(  # noqa: TRY004 - as for every definition that is not valid
                f"{of}.{name}: {key} must be of type {kind}, not {value!r}"
            )
    if name in _SYSTEM:
        return [_system(row)]
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{of}: {name!r} is not a valid field name: use at most 80 letters, digits and"
            " underscores, beginning with a letter"
        )
    if row.get("type") not in TYPES or row["type"] == "id":
        raise ValueError(
            f"{of}.{name}: type must be one of {', '.join(TYPES)}"
            " (id only for the predefined field Id)"
        )
    if not 0 <= row.get("length", 0) <= _LONGEST:
        raise ValueError(f"{of}.{name}: length must be from 0 to {_LONGEST}, not {row['length']}")
    if not 0 <= row.get("scale", 0) <= _MOST_SCALE:
        raise ValueError(f"{of}.{name}: scale must be from 0 to {_MOST_SCALE}, not {row['scale']}")
    if row["type"] == "reference" and not row.get("references"):
        raise ValueError(
            f"{of}.{name}: a field of type reference needs the key references, a list of object"
            " names"
        )
    field = _field(row)
    if row["type"] == "name":
        parts = [
            Field(
                part,
                _label(part),
                kind,
                length,
                nillable=part != "LastName",
                picklist_values=("Mr.", "Ms.", "Mrs.", "Dr.", "Prof.")
                if kind == "picklist"
                else (),
                compound=name,
                part=part,
            )
            for part, (kind, length) in _NAME_PARTS.items()
        ]
        return [field, *parts]
    if row["type"] == "address":
        stem = str(name).removesuffix("Address")
        parts = [
            Field(
                f"{stem}{part}",
                _label(f"{stem}{part}"),
                kind,
                length,
                compound=name,
                part=part,
                scale=_GEO_SCALE if kind == "double" else 0,
            )
            for part, (kind, length) in _ADDRESS_PARTS.items()
        ]
        return [field, *parts]
    return [field]


def _field(row: Mapping[str, Any]) -> Field:
    kind = str(row["type"])
    in_events = row.get("in_events", True)
    derived = "formula" in row or kind in ("name", "address") or not in_events
    written = not (row.get("read_only") or derived)
    default = row.get("default", False if kind == "boolean" and "formula" not in row else None)
    return Field(
        name=row["name"],
        label=row.get("label", _label(row["name"])),
        type=kind,
        length=row.get("length", TYPES[kind]),
        nillable=not row.get("required", kind == "boolean" and "formula" not in row),
        createable=written,
        updateable=written,
        picklist_values=tuple(map(str, row.get("picklist", ()))),
        restricted=row.get("restricted", False),
        reference_to=tuple(map(str, row.get("references", ()))),
        calculated="formula" in row,
        formula=row.get("formula", ""),
        external_id=row.get("external_id", False),
        unique=row.get("unique", False),
        default=default,
        avro=row.get("avro", ""),
        in_events=in_events,
        scale=row.get("scale", _SCALE) if kind in ("double", "currency", "percent") else 0,
    )


def _label(name: str) -> str:
    """Return the default label of a field, such as "Billing Postal Code" for BillingPostalCode and
    "Order Number" for Order_Number__c.
    """
    plain = name.removesuffix("__c").replace("_", " ")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
