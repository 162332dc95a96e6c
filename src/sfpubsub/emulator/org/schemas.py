"""Avro: schema ids, encoding of Python values, and validation of published payloads.

This module uses fastavro and is independent of topics and storage. A `Schema` is immutable and
thread-safe.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import uuid
from collections.abc import Mapping
from typing import Any

import fastavro
import fastavro.schema

_UNREADABLE = (
    EOFError,
    ValueError,  # includes UnicodeDecodeError
    IndexError,  # a union branch or enum symbol that does not exist
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,  # a length larger than any payload
    struct.error,
)
"""The built-in exceptions that fastavro raises for an invalid schema, value or payload."""


class SchemaProblem(ValueError):  # noqa: N818 - a report about data, not about the program
    """Raised if a schema, value or payload is not valid; the message gives the reason."""


class Schema:
    """The Avro schema of an event.

    Args:
        text: The schema as JSON.

    Attributes:
        schema_id: MD5 of the parsing canonical form, base64url without padding, as the service
            computes it.
        text: The schema as JSON, unchanged.
        name: Name of the record, without its namespace.

    Raises:
        SchemaProblem: The text is not JSON, not an Avro schema, or not a record.
    """

    def __init__(self, text: str) -> None:
        try:
            value = json.loads(text)
            parsed = fastavro.parse_schema(value)
            canonical = fastavro.schema.to_parsing_canonical_form(value)
            is_record = isinstance(value, dict) and value.get("type") == "record"
            fields = value["fields"] if is_record else []
        except json.JSONDecodeError as error:
            raise SchemaProblem(f"the schema is not valid JSON: {error}") from error
        except fastavro.schema.UnknownType as error:
            raise SchemaProblem(f"the schema uses the unknown type {error}") from error
        except (fastavro.schema.SchemaParseException, *_UNREADABLE) as error:
            raise SchemaProblem(f"the schema is not valid Avro: {error!r}") from error
        if not is_record:
            raise SchemaProblem("the schema of an event must be an Avro record")
        digest = hashlib.md5(canonical.encode(), usedforsecurity=False).digest()
        self.schema_id: str = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self.text = text
        self.name: str = str(value["name"]).rpartition(".")[2]
        self._fields = {str(item["name"]) for item in fields}
        self._parsed = parsed

    def check(self, payload: bytes) -> None:
        """Check that *payload* consists of exactly one datum of this schema.

        Raises:
            SchemaProblem: The payload does not match the schema, or has extra bytes.
        """
        stream = io.BytesIO(payload)
        try:
            fastavro.schemaless_reader(stream, self._parsed, None)
        except _UNREADABLE as error:
            raise SchemaProblem(f"the payload does not match schema {self.schema_id}") from error
        rest = len(payload) - stream.tell()
        if rest:
            raise SchemaProblem(f"the payload has {rest} bytes after the datum")

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Return the values in an event's payload, by field name.

        Raises:
            SchemaProblem: The payload is not exactly one datum of this schema.
        """
        self.check(payload)
        found: Any = fastavro.schemaless_reader(io.BytesIO(payload), self._parsed, None)
        return dict(found)

    def encode(self, values: Mapping[str, Any], now: float) -> bytes:
        """Encode an event's values, and add values for the fields that an org sets itself.

        If a platform event has no CreatedDate or CreatedById, they are set to *now* (seconds since
        the epoch) and to a user of the org. Missing fields of a ChangeEventHeader get default
        values. Other missing nullable fields are null.

        Raises:
            SchemaProblem: *values* has a field that the schema does not have, a required field is
                missing, or a value has the wrong type.
        """
        unknown = sorted(set(values) - self._fields)
        if unknown:
            raise SchemaProblem(f"{self.name} does not have these fields: {', '.join(unknown)}")
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._parsed, self._filled(values, now))
        except (AttributeError, *_UNREADABLE) as error:
            raise SchemaProblem(f"the values do not match {self.name}: {error!r}") from error
        return stream.getvalue()

    def _filled(self, values: Mapping[str, Any], now: float) -> dict[str, Any]:
        now_ms = int(now * 1000)
        if "ChangeEventHeader" not in self._fields:
            standard = {"CreatedDate": now_ms, "CreatedById": _USER_ID}
            return {**{k: v for k, v in standard.items() if k in self._fields}, **values}
        header = {
            "entityName": self.name.removesuffix("ChangeEvent"),
            "recordIds": [],
            "changeType": "CREATE",
            "changeOrigin": "",
            "transactionKey": str(uuid.uuid4()),
            "sequenceNumber": 1,
            "commitTimestamp": now_ms,
            "commitNumber": now_ms,
            "commitUser": _USER_ID,
            "nulledFields": [],
            "diffFields": [],
            "changedFields": [],
        }
        return {**values, "ChangeEventHeader": {**header, **values.get("ChangeEventHeader", {})}}


_USER_ID = "005SB0000000001YAA"
"""Id of the first user of the emulated org."""
