"""Parse describe responses about objects and fields, accepting only the documented form.

A describe response omits fields that the user may not see, and does not indicate that they exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfpubsub.errors import RemoteProtocolError

# Field with the time of a record's last change, with or without an event, in whole seconds.
STAMP = "SystemModstamp"


@dataclass(frozen=True)
class PicklistValue:
    """One value of a picklist. Inactive values may still occur in old records."""

    value: str
    label: str
    active: bool


@dataclass(frozen=True)
class FieldDescription:
    """One field, as visible to the running user."""

    name: str
    label: str
    type: str
    """Type in the describe response: ``string``, ``currency``, ``reference``, ``address`` …"""
    length: int
    """Maximum length in characters; 0 for types other than text."""
    precision: int
    """Total digits of a decimal number; 0 for other types."""
    scale: int
    """Digits after the decimal point."""
    digits: int
    """Digits of an integer; 0 for other types."""
    nillable: bool
    createable: bool
    updateable: bool
    calculated: bool
    """Whether the field is a formula or a roll-up summary, whose changes cause no events."""
    custom: bool
    compound_field_name: str | None
    """The compound field that contains this field, such as ``BillingAddress``; otherwise None."""
    relationship_name: str | None
    reference_to: tuple[str, ...]
    """Objects that the field may refer to; several for a polymorphic field, else at most one."""
    picklist_values: tuple[PicklistValue, ...]


@dataclass(frozen=True)
class ObjectSummary:
    """Summary of one object, without its fields."""

    name: str
    label: str
    key_prefix: str | None
    """First characters of the object's record ids; None for some objects."""
    custom: bool
    queryable: bool
    replicateable: bool
    retrieveable: bool


@dataclass(frozen=True)
class ObjectDescription(ObjectSummary):
    """One object with its fields, in the org's order."""

    fields: tuple[FieldDescription, ...]

    def field(self, name: str) -> FieldDescription | None:
        """Return the field *name*, ignoring case; None if it is missing or hidden from the user."""
        for field in self.fields:
            if field.name.lower() == name.lower():
                return field
        return None


def object_of(found: Any) -> ObjectDescription:
    """Parse the describe response for an object.

    Raises:
        RemoteProtocolError: The response is not valid.
    """
    summary = summary_of(found)
    fields = _items(found, "fields", summary.name)
    return ObjectDescription(
        **vars(summary), fields=tuple(_field(field, summary.name) for field in fields)
    )


def summaries_of(found: Any) -> tuple[ObjectSummary, ...]:
    """Parse the describe response for the whole org.

    Raises:
        RemoteProtocolError: The response is not valid.
    """
    return tuple(map(summary_of, _items(found, "sobjects", "the org")))


def summary_of(found: Any) -> ObjectSummary:
    """Parse the summary of an object in a describe response.

    Raises:
        RemoteProtocolError: The response is not valid.
    """
    part = _Part(found, "an object")
    name = part.text("name")
    part = _Part(found, name)
    return ObjectSummary(
        name=name,
        label=part.text("label"),
        key_prefix=part.text_or_none("keyPrefix"),
        custom=part.flag("custom"),
        queryable=part.flag("queryable"),
        replicateable=part.flag("replicateable"),
        retrieveable=part.flag("retrieveable"),
    )


def _field(found: Any, of: str) -> FieldDescription:
    part = _Part(found, f"a field of {of}")
    name = part.text("name")
    part = _Part(found, f"{of}.{name}")
    references = _items(found, "referenceTo", part.what)
    if not all(isinstance(target, str) for target in references):
        raise RemoteProtocolError(
            f"the org's describe response for {part.what} has a non-string value in referenceTo"
        )
    return FieldDescription(
        name=name,
        label=part.text("label"),
        type=part.text("type"),
        length=part.number("length"),
        precision=part.number("precision"),
        scale=part.number("scale"),
        digits=part.number("digits"),
        nillable=part.flag("nillable"),
        createable=part.flag("createable"),
        updateable=part.flag("updateable"),
        calculated=part.flag("calculated"),
        custom=part.flag("custom"),
        compound_field_name=part.text_or_none("compoundFieldName"),
        relationship_name=part.text_or_none("relationshipName"),
        reference_to=tuple(references),
        picklist_values=tuple(
            _value(value, part.what) for value in _items(found, "picklistValues", part.what)
        ),
    )


def _value(found: Any, of: str) -> PicklistValue:
    part = _Part(found, f"a picklist value of {of}")
    value = part.text("value")
    # An untranslated value may have no label.
    return PicklistValue(value, part.text_or_none("label") or value, part.flag("active"))


@dataclass(frozen=True)
class _Part:
    """Reads members of a JSON object and checks their types."""

    found: Any
    what: str

    def text(self, member: str) -> str:
        return str(self._of(str, member))

    def text_or_none(self, member: str) -> str | None:
        return None if self._get(member) is None else self.text(member)

    def flag(self, member: str) -> bool:
        return bool(self._of(bool, member))

    def number(self, member: str) -> int:
        value = self._of(int, member)
        if isinstance(value, bool):
            raise self._malformed(member)
        return int(value)

    def _of(self, kind: type, member: str) -> Any:
        value = self._get(member)
        if not isinstance(value, kind):
            raise self._malformed(member)
        return value

    def _get(self, member: str) -> Any:
        return self.found.get(member) if isinstance(self.found, dict) else None

    def _malformed(self, member: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"the org's describe response for {self.what} has no valid {member}"
        )


def _items(found: Any, member: str, what: str) -> list[Any]:
    items = found.get(member) if isinstance(found, dict) else None
    if not isinstance(items, list):
        raise RemoteProtocolError(f"the org's describe response for {what} has no {member} list")
    return items
