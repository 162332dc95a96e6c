"""Interpret change events: the values in their headers, and what happened to each field.

A `ChangeEvent` reads a value that `Codec.decode` returned; `sfpubsub.avro.bitmaps` expands its
bitmaps to names. Nothing here decodes payloads, modifies a decoded value or does I/O. Invariant: if
an event does not show what happened to a field, the field's state is `FieldState.UNKNOWN`, never
`FieldState.UNCHANGED`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from sfpubsub.avro.bitmaps import ChangeSchema
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER
from sfpubsub.avro.text_diffs import patched
from sfpubsub.errors import DecodeError, LocalProtocolError

# A unified diff whose header contains no file names, only the hash of the new text.
_TEXT_DIFF = re.compile(r"--- ?\r?\n\+\+\+ (\S+)(?:\r?\n|\Z)")

_Fact = TypeVar("_Fact", str, int, list[str])


class FieldState(enum.Enum):
    """State of a field according to a change event."""

    CHANGED = "changed"
    """The field has a new value."""
    NULLED = "nulled"
    """The field was set to null."""
    UNCHANGED = "unchanged"
    """The field was not changed."""
    UNKNOWN = "unknown"
    """The event does not say what happened to the field, because it is a gap event, or because its
    change type is not supported.
    """


@dataclass(frozen=True)
class TextDiff:
    """A diff of a large text field, sent instead of its new value."""

    diff: str
    """A unified diff, as received, with its header."""
    sha256: str
    """SHA-256 of the new text, in hexadecimal, as received."""

    @classmethod
    def parse(cls, text: str) -> TextDiff | None:
        """Parse *text* as a diff; return None if it does not begin with a diff's header."""
        match = _TEXT_DIFF.match(text)
        return None if match is None else cls(text, match[1])

    def apply(self, old: str) -> str | None:
        """Apply the diff to the old text and return the new text.

        Args:
            old: The text before the change.

        Returns:
            The new text; None if the diff does not apply to *old*, or if the hash of the result
            differs from the attribute `sha256`. If None, read the record from the org.
        """
        return patched(old, self.diff, self.sha256)


@dataclass(frozen=True)
class FieldChange:
    """What happened to one field, according to a change event."""

    name: str
    """The field, or ``Parent.Child`` for a component of a compound field."""
    state: FieldState
    """What happened to the field."""
    value: Any = None
    """The new value of a changed field: a `TextDiff` if the service sent one, or a dict for a
    compound field, in which unchanged components are None. For an unchanged field, its value if the
    channel enriches events with it, else None. None for a nulled field.
    """


class ChangeEvent:
    """A view of a decoded change event, based on its header.

    It neither modifies nor copies the event, and does no I/O. Field lists are expanded on demand,
    so an unused view costs nothing. Thread-safe.

    Args:
        schema: The `ChangeSchema` of the event's own schema.
        value: The decoded event, as returned by `Codec.decode`.
        wanted: The fields that were decoded; None means all. See `Codec.wanted`.

    Raises:
        DecodeError: The value has no header.
    """

    def __init__(
        self,
        schema: ChangeSchema,
        value: dict[str, Any],
        wanted: Collection[str] | None = None,
    ) -> None:
        header = value.get(CHANGE_EVENT_HEADER)
        if not isinstance(header, dict):
            raise DecodeError(
                f"an event of type {schema.name} (schema {schema.schema_id}) has no header, so it "
                f"cannot be read as a change event"
            )
        self._schema = schema
        self._value = value
        self._wanted = wanted
        self._header = header

    @property
    def change_type(self) -> str:
        """``CREATE``, ``UPDATE``, ``DELETE``, ``UNDELETE``, ``GAP_…``, or a newer type."""
        return self._fact("changeType", str)

    @property
    def is_gap(self) -> bool:
        """Whether this is a gap event, which does not contain the changes.

        If so, read the records from the org.
        """
        return self.change_type.startswith("GAP_")

    @property
    def is_overflow(self) -> bool:
        """Whether the service omitted changes because the transaction contained too many."""
        return self.change_type == "GAP_OVERFLOW"

    @property
    def entity_name(self) -> str:
        """API name of the object, such as ``Account``."""
        return self._fact("entityName", str)

    @property
    def record_ids(self) -> tuple[str, ...]:
        """Ids of the changed records; an entry such as ``001*`` means all records of the object."""
        return tuple(self._fact("recordIds", list))

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of the fields that an update changed; empty for other change types."""
        return self._schema.expand(self._fact("changedFields", list))

    @property
    def nulled_fields(self) -> tuple[str, ...]:
        """Names of the fields that an update set to null."""
        return self._schema.expand(self._fact("nulledFields", list))

    @property
    def diff_fields(self) -> tuple[str, ...]:
        """Names of the fields whose text was sent as a diff."""
        return self._schema.expand(self._fact("diffFields", list))

    @property
    def transaction_key(self) -> str:
        """Key shared by all changes of one transaction."""
        return self._fact("transactionKey", str)

    @property
    def sequence_number(self) -> int:
        """Number of this change within its transaction, starting at 1."""
        return self._fact("sequenceNumber", int)

    @property
    def commit_number(self) -> int:
        """The service's commit number. Commit numbers increase, with gaps between them."""
        return self._fact("commitNumber", int)

    @property
    def commit_timestamp(self) -> int:
        """When the change was committed, in milliseconds since the epoch."""
        return self._fact("commitTimestamp", int)

    @property
    def commit_user(self) -> str:
        """Id of the user who made the change."""
        return self._fact("commitUser", str)

    @property
    def change_origin(self) -> str:
        """The API and client that made the change; empty for changes made by the org itself."""
        return self._fact("changeOrigin", str)

    def change(self, name: str) -> FieldChange:
        """Return what happened to one field.

        The state depends on the change type. A CREATE changes every field that has a value and
        leaves the others unchanged. An UPDATE changes or nulls the fields in its lists and
        leaves the others unchanged. A DELETE nulls every field. An UNDELETE changes every field
        that has a value and nulls the others. For any other type, the state is unknown. A compound
        field is changed if any of its components is, and nulled if all its components were set to
        null.

        Args:
            name: A field, or ``Parent.Child`` for a component of a compound field.

        Raises:
            LocalProtocolError: The event's schema has no such field, or the subscription's
                ``fields`` excluded it.
            DecodeError: The header is incomplete, or its field lists do not fit the schema.
        """
        if name not in self._schema.names:
            raise LocalProtocolError(
                f"{self._schema.name} has no field {name!r} in schema {self._schema.schema_id}: "
                f"use the API name of a field, or Parent.Child for a component of a compound field"
            )
        if self._wanted is not None and name.partition(".")[0] not in self._wanted:
            raise LocalProtocolError(
                f"the field {name} of {self._schema.name} was not decoded: add it to fields=… when "
                f"creating the subscription"
            )
        value = self._value_of(name)
        state = self._state(name, value)
        if state is FieldState.NULLED:
            return FieldChange(name, state)
        if state is FieldState.CHANGED and isinstance(value, str) and name in self.diff_fields:
            return FieldChange(name, state, TextDiff.parse(value) or value)
        return FieldChange(name, state, value)

    def _state(self, name: str, value: Any) -> FieldState:
        change_type = self.change_type
        if change_type == "UPDATE":
            return self._state_in_update(name, value)
        if change_type == "DELETE":
            return FieldState.NULLED
        if change_type not in ("CREATE", "UNDELETE"):
            return FieldState.UNKNOWN
        if not _is_null(value):
            return FieldState.CHANGED
        return FieldState.UNCHANGED if change_type == "CREATE" else FieldState.NULLED

    def _state_in_update(self, name: str, value: Any) -> FieldState:
        nulled, touched = self._nulled_and_touched
        field = name.partition(".")[0]  # the bit of a compound field covers its parts
        if name in nulled or field in nulled:
            return FieldState.NULLED
        if name in touched or field in touched:
            return FieldState.NULLED if _is_null(value) else FieldState.CHANGED
        parts = self._schema.parts.get(name, ())
        if touched.isdisjoint(parts):
            return FieldState.UNCHANGED
        # Untouched parts are null in the event as well, so the lists decide.
        return FieldState.NULLED if nulled.issuperset(parts) else FieldState.CHANGED

    @cached_property
    def _nulled_and_touched(self) -> tuple[frozenset[str], frozenset[str]]:
        nulled = frozenset(self.nulled_fields)
        return nulled, nulled.union(self.changed_fields, self.diff_fields)

    def _value_of(self, name: str) -> Any:
        field, _, part = name.partition(".")
        value = self._value.get(field)
        if not part:
            return value
        return value.get(part) if isinstance(value, dict) else None

    def _fact(self, name: str, kind: type[_Fact]) -> _Fact:
        value = self._header.get(name)
        if not isinstance(value, kind):
            raise DecodeError(
                f"an event of type {self._schema.name} (schema {self._schema.schema_id}) has no "
                f"{name} in its header"
            )
        return value

    def __repr__(self) -> str:
        return f"ChangeEvent({self._header.get('changeType')}, {self._schema.name})"


def _is_null(value: Any) -> bool:
    """Return whether a field is null. A compound field is null if all its components are."""
    if isinstance(value, dict):
        return all(part is None for part in value.values())
    return value is None
