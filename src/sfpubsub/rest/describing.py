"""What an org tells about its objects and fields: believed only in the form that is documented.

A field that the user may not see is absent from a describe; nothing tells that it exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfpubsub.errors import RemoteProtocolError


@dataclass(frozen=True)
class PicklistValue:
    """One value of a picklist; those that are no longer active stay in old records."""

    value: str
    label: str
    active: bool


@dataclass(frozen=True)
class FieldDescription:
    """One field, as the running user sees it."""

    name: str
    label: str
    type: str
    """As the describe has it: ``string``, ``currency``, ``reference``, ``address`` …"""
    length: int
    """Maximum length in characters; 0 for types other than text."""
    precision: int
    """Most digits of a number with decimals; 0 otherwise."""
    scale: int
    """Digits after the point."""
    digits: int
    """Most digits of an integer; 0 otherwise."""
    nillable: bool
    createable: bool
    updateable: bool
    calculated: bool
    """A formula or a roll-up; its changes are in no event of its own."""
    custom: bool
    compound_field_name: str | None
    """The compound field that it is a part of, such as ``BillingAddress``."""
    relationship_name: str | None
    reference_to: tuple[str, ...]
    """Objects that it may point to; several for a polymorphic field."""
    picklist_values: tuple[PicklistValue, ...]


@dataclass(frozen=True)
class ObjectSummary:
    """One object, without its fields."""

    name: str
    label: str
    key_prefix: str | None
    """What the ids of its records begin with; some objects have none."""
    custom: bool
    queryable: bool
    replicateable: bool
    retrieveable: bool


@dataclass(frozen=True)
class ObjectDescription(ObjectSummary):
    """One object with its fields, in the org's order."""

    fields: tuple[FieldDescription, ...]

    def field(self, name: str) -> FieldDescription | None:
        """Return a field by its name, in any case; None if the user does not see one."""
        for field in self.fields:
            if field.name.lower() == name.lower():
                return field
        return None


def object_of(found: Any) -> ObjectDescription:
    """Return the object that a describe tells.

    Raises:
        RemoteProtocolError: It has not the form of a describe.
    """
    summary = summary_of(found)
    fields = _items(found, "fields", summary.name)
    return ObjectDescription(
        **vars(summary), fields=tuple(_field(field, summary.name) for field in fields)
    )


def summaries_of(found: Any) -> tuple[ObjectSummary, ...]:
    """Return the objects that a global describe tells.

    Raises:
        RemoteProtocolError: It has not the form of one.
    """
    return tuple(map(summary_of, _items(found, "sobjects", "the org")))


def summary_of(found: Any) -> ObjectSummary:
    """Return the head of a describe.

    Raises:
        RemoteProtocolError: It has not the form of one.
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
        raise RemoteProtocolError(f"the describe of {part.what} came with a referenceTo of no text")
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
    # A value without a translation may come without a label.
    return PicklistValue(value, part.text_or_none("label") or value, part.flag("active"))


@dataclass(frozen=True)
class _Part:
    """Members of one JSON object, each of the type that it must have."""

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
        return RemoteProtocolError(f"the describe of {self.what} came without a valid {member}")


def _items(found: Any, member: str, what: str) -> list[Any]:
    items = found.get(member) if isinstance(found, dict) else None
    if not isinstance(items, list):
        raise RemoteProtocolError(f"the describe of {what} came without its {member}")
    return items
