"""Change events in application terms: the facts of the header, and what happened to a field.

A `ChangeEvent` reads a value that `Codec.decode` returned; `sfpubsub.avro.bitmaps` turns its lists
into names. Nothing here decodes payloads, changes a decoded value or does I/O. Invariant: what an
event does not say is `FieldState.UNKNOWN`, never "unchanged".
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

# A unified diff whose header names no files, only the hash of the new text.
_TEXT_DIFF = re.compile(r"--- ?\r?\n\+\+\+ (\S+)(?:\r?\n|\Z)")

_Fact = TypeVar("_Fact", str, int, list[str])


class FieldState(enum.Enum):
    """What a change event says of a field."""

    CHANGED = "changed"
    """It has a new value."""
    NULLED = "nulled"
    """It is null now."""
    UNCHANGED = "unchanged"
    """The change did not touch it."""
    UNKNOWN = "unknown"
    """The event does not say: a gap event, or a change type that this library does not know."""


@dataclass(frozen=True)
class TextDiff:
    """The change of a large text, sent in place of the text."""

    diff: str
    """A unified diff, as received, with its header."""
    sha256: str
    """Hash of the new text, as received."""

    @classmethod
    def parse(cls, text: str) -> TextDiff | None:
        """Return *text* as a diff, or None when it does not begin as one."""
        match = _TEXT_DIFF.match(text)
        return None if match is None else cls(text, match[1])

    def apply(self, old: str) -> str | None:
        """Return the new text, made of the old one.

        Args:
            old: The text before the change.

        Returns:
            None when the diff does not fit *old*, or the result's hash is not `sha256`: read the
            record from the org then.
        """
        return patched(old, self.diff, self.sha256)


@dataclass(frozen=True)
class FieldChange:
    """What a change event says of one field."""

    name: str
    """The field, or ``Parent.Child`` for a part of a compound field."""
    state: FieldState
    """What happened to it."""
    value: Any = None
    """The new value of a changed field: a `TextDiff` where the service sent one, and a dict for a
    compound field, in which parts that did not change are None. Of an unchanged field, the value
    if the channel enriches events with it, else None."""


class ChangeEvent:
    """A decoded change event, read by its header. Not changed and not copied; does no I/O.

    Lists of fields are expanded when they are asked for, so an event that nobody asks costs
    nothing. Safe to share between threads.

    Args:
        schema: Of the schema that the event was written with.
        value: What `Codec.decode` returned.
        wanted: The fields that were decoded; None for all. See `Codec.wanted`.

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
            raise DecodeError(f"a {schema.name} (schema {schema.schema_id}) has no header")
        self._schema = schema
        self._value = value
        self._wanted = wanted
        self._header = header

    @property
    def change_type(self) -> str:
        """``CREATE``, ``UPDATE``, ``DELETE``, ``UNDELETE``, ``GAP_…``, or one that is newer."""
        return self._fact("changeType", str)

    @property
    def is_gap(self) -> bool:
        """Whether the service could not say what changed; read the records from the org."""
        return self.change_type.startswith("GAP_")

    @property
    def is_overflow(self) -> bool:
        """Whether a transaction changed so much that the service left out the rest of it."""
        return self.change_type == "GAP_OVERFLOW"

    @property
    def entity_name(self) -> str:
        """API name of the object, such as ``Account``."""
        return self._fact("entityName", str)

    @property
    def record_ids(self) -> tuple[str, ...]:
        """Ids of the records that changed in this way; ``001*`` stands for all of an object."""
        return tuple(self._fact("recordIds", list))

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of the fields that an update changed; other change types name none."""
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
        """The same for all changes of one transaction."""
        return self._fact("transactionKey", str)

    @property
    def sequence_number(self) -> int:
        """Counts the changes of one transaction, from 1."""
        return self._fact("sequenceNumber", int)

    @property
    def commit_number(self) -> int:
        """The service's number of the commit; it grows, with holes."""
        return self._fact("commitNumber", int)

    @property
    def commit_timestamp(self) -> int:
        """When the change was committed, in milliseconds since 1970 UTC."""
        return self._fact("commitTimestamp", int)

    @property
    def commit_user(self) -> str:
        """Id of the user who made the change."""
        return self._fact("commitUser", str)

    @property
    def change_origin(self) -> str:
        """The API and the client that made the change; empty for changes of the org itself."""
        return self._fact("changeOrigin", str)

    def change(self, name: str) -> FieldChange:
        """Say what happened to one field.

        By change type: a CREATE changed every field that has a value and leaves the others
        unchanged; an UPDATE did what its lists say; after a DELETE every field is null; an
        UNDELETE brought every field back, null ones included. Any other type leaves it unknown.
        A compound field is changed when any part of it is, and null when all its parts were set to
        null.

        Args:
            name: A field, or ``Parent.Child``.

        Raises:
            LocalProtocolError: The event's schema has no such field, or the subscription's
                ``fields`` left it out.
            DecodeError: The lists do not fit the schema.
        """
        if name not in self._schema.names:
            raise LocalProtocolError(
                f"a {self._schema.name} has no field {name!r} in schema {self._schema.schema_id}"
            )
        if self._wanted is not None and name.partition(".")[0] not in self._wanted:
            raise LocalProtocolError(
                f"{name} of a {self._schema.name} was not read: add it to the fields=… that the "
                f"subscription was made with"
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
        field = name.partition(".")[0]  # the bit of a compound field speaks for its parts
        if name in nulled or field in nulled:
            return FieldState.NULLED
        if name in touched or field in touched:
            return FieldState.NULLED if _is_null(value) else FieldState.CHANGED
        parts = self._schema.parts.get(name, ())
        if touched.isdisjoint(parts):
            return FieldState.UNCHANGED
        # Parts that were not touched are null in the event too, so only the lists can tell.
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
                f"the header of a {self._schema.name} (schema {self._schema.schema_id}) "
                f"has no {name}"
            )
        return value

    def __repr__(self) -> str:
        return f"ChangeEvent({self._header.get('changeType')}, {self._schema.name})"


def _is_null(value: Any) -> bool:
    """Whether a field is empty; a compound field is when all its parts are."""
    if isinstance(value, dict):
        return all(part is None for part in value.values())
    return value is None
