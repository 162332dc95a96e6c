"""One Avro schema and what can be done with it: decode, encode, and read an event's own facts.

A payload is one raw Avro datum of the schema that the event names, with no container around it
(Salesforce documentation, event deserialization). Decoding with any other schema gives garbage
silently, so a `Codec` is looked up by the event's own ``schema_id`` and checks that every byte was
used. Stateless after construction and safe to share between threads.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
from fastavro.validation import ValidationError, validate

from sfpubsub.errors import DecodeError, EncodeError, SchemaError

CHANGE_EVENT_HEADER = "ChangeEventHeader"


class Codec:
    """Decodes and encodes the payloads of one schema.

    Args:
        schema_id: The service's id of the schema.
        schema_json: The Avro schema as JSON text.

    Raises:
        SchemaError: The text is not JSON, or not an Avro record schema.
    """

    def __init__(self, schema_id: str, schema_json: str) -> None:
        self.schema_id = schema_id
        self.schema_json = schema_json
        try:
            schema: Any = fastavro.parse_schema(json.loads(schema_json))
        except Exception as error:  # fastavro does not document what it raises for a bad schema
            raise SchemaError(f"schema {schema_id} is not a valid Avro schema: {error}") from error
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise SchemaError(f"schema {schema_id} is not an Avro record")
        self._schema = schema
        self.fields: tuple[str, ...] = tuple(field["name"] for field in schema["fields"])
        self._required = [field["name"] for field in schema["fields"] if "default" not in field]

    @property
    def name(self) -> str:
        """The event's API name, such as ``Order_Event__e`` or ``AccountChangeEvent``."""
        return str(self._schema["name"]).rpartition(".")[2]

    @property
    def is_change_event(self) -> bool:
        """Whether events of this schema are change data capture events."""
        return self.fields[:1] == (CHANGE_EVENT_HEADER,)

    @property
    def topic(self) -> str:
        """The event type's own topic; channels may carry it as well."""
        return f"/{'data' if self.is_change_event else 'event'}/{self.name}"

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Return the event's fields by name. Times stay integers, in milliseconds.

        Raises:
            DecodeError: The payload does not fit the schema, or has bytes left over.
        """
        stream = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:  # EOFError, IndexError, UnicodeDecodeError…: none is documented
            raise DecodeError(
                f"payload of {len(payload)} bytes does not fit schema {self.schema_id} "
                f"({self.name}): {type(error).__name__} {error}"
            ) from error
        if stream.tell() != len(payload):
            raise DecodeError(
                f"payload has {len(payload) - stream.tell()} bytes more than schema "
                f"{self.schema_id} ({self.name}) describes"
            )
        return value  # type: ignore[return-value]  # a record, as checked in the constructor

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Return the Avro bytes of *value*. Fields left out take the schema's default.

        Raises:
            EncodeError: A field is unknown, missing without a default, or of the wrong type.
        """
        unknown = [name for name in value if name not in self.fields]
        if unknown:
            raise EncodeError(
                f"{self.name} has no field {unknown[0]!r}; it has {', '.join(self.fields)}"
            )
        missing = [name for name in self._required if name not in value]
        if missing:
            raise EncodeError(f"a {self.name} needs the field {missing[0]!r}")
        out = io.BytesIO()
        try:
            validate(value, self._schema, raise_errors=True)
            fastavro.schemaless_writer(out, self._schema, dict(value))
        except ValidationError as error:
            reasons = "; ".join(map(str, error.errors))
            raise EncodeError(f"not a {self.name}: {reasons}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EncodeError(f"not a {self.name}: {error}") from error
        return out.getvalue()

    def event_time(self, value: Mapping[str, Any]) -> int | None:
        """Return when the event happened, in milliseconds since 1970 UTC, where it says so.

        Platform events carry ``CreatedDate``, change events ``commitTimestamp`` in their header.
        """
        if self.is_change_event:
            header = value.get(CHANGE_EVENT_HEADER)
            time = header.get("commitTimestamp") if isinstance(header, Mapping) else None
        else:
            time = value.get("CreatedDate")
        return time if isinstance(time, int) else None

    def __repr__(self) -> str:
        return f"Codec({self.schema_id}, {self.name})"
