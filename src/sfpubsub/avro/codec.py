"""Codecs: decode and encode payloads of one Avro schema, and read an event's time and header.

A payload is one raw Avro datum of the schema that the event refers to, without a container
(Salesforce documentation, event deserialization). Decoding with any other schema silently yields
garbage, so a `Codec` is looked up by the event's own ``schema_id`` and checks that every byte was
used.

The decoding is done by the compiled decoder (`sfpubsub.avro.compiled`) or, where that is not
available, by a generated function (`sfpubsub.avro.decoder`). If the decoder in use does not support
a schema or payload, `sfpubsub.avro.guard` first validates the payload and fastavro then decodes it,
with the same result. Since the guard has checked every length and count, a malicious payload cannot
make fastavro loop or allocate without bound. Thread-safe.
"""

from __future__ import annotations

import copy
import io
import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import fastavro

from sfpubsub.avro.compiled import decoder_of
from sfpubsub.avro.decoder import Unsupported, generate
from sfpubsub.avro.encoder import Encoder
from sfpubsub.avro.field_kinds import (
    Times,
    converted,
    fields_of,
    is_double,
    is_time,
    milliseconds,
    set_datetimes,
    to_double,
    to_milliseconds,
)
from sfpubsub.avro.guard import check_payload
from sfpubsub.avro.json import to_json
from sfpubsub.errors import DecodeError, EncodeError, SchemaError

logger = logging.getLogger("sfpubsub.client")

CHANGE_EVENT_HEADER = "ChangeEventHeader"
CREATED_DATE = "CreatedDate"
CREATED_BY = "CreatedById"

# Maximum nesting of brackets in a schema's text. Salesforce's schemas have about ten levels; the
# limit protects the recursive parsers that follow.
MAX_SCHEMA_DEPTH = 100

# Maximum number of projections that a codec caches. A program needs one for each subscription that
# reads different fields of the same event. Each has its own generated function of about 50 KiB.
MAX_PROJECTIONS = 16


class Codec:
    """Decodes and encodes the payloads of one schema.

    Args:
        schema_id: The service's id for the schema.
        schema_json: The Avro schema as JSON text.

    Raises:
        SchemaError: The text is not JSON, or not an Avro record schema.
    """

    wanted: frozenset[str] | None = None
    """The fields in a decoded value; None means all. See `only`."""
    is_doubtful: bool = False
    """Whether the schema may be that of other events, so that it must not be stored."""
    _whole: Codec | None = None

    def __init__(self, schema_id: str, schema_json: str) -> None:
        self.schema_id = schema_id
        self.schema_json = schema_json
        self._named: dict[str, Any] = {}
        try:
            schema = _parse(schema_json, self._named)
        except Exception as error:  # fastavro does not document which errors a bad schema raises
            raise SchemaError(f"schema {schema_id} is not a valid Avro schema: {error}") from error
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise SchemaError(f"schema {schema_id} is not an Avro record schema")
        self._schema = schema
        self.fields: tuple[str, ...] = tuple(field["name"] for field in schema["fields"])
        self.name: str = str(schema["name"]).rpartition(".")[2]
        """The event's API name, such as ``Order_Event__e`` or ``AccountChangeEvent``."""
        self.is_change_event: bool = self.fields[:1] == (CHANGE_EVENT_HEADER,)
        """Whether events of this schema are change data capture events."""
        self.topic: str = f"/{'data' if self.is_change_event else 'event'}/{self.name}"
        """The event type's own topic; channels may carry its events as well."""
        self._encoder = Encoder(schema, self._named, self.name)
        # Created for the first payload, because a publisher does not decode. Two threads may both
        # create one.
        self._read: Callable[[bytes], Any] | None = None
        self._is_finite = False
        self._compiled: Any = None
        self._fact = CHANGE_EVENT_HEADER if self.is_change_event else CREATED_DATE
        self._times: Times | None = None
        self._doubles: Times | None = None
        self._only: dict[frozenset[str], Codec] = {}

    def only(self, names: frozenset[str]) -> Codec:
        """Return a codec for the same schema that decodes only the fields *names*. Cached.

        The other fields are skipped, which takes less than half the time of decoding them. The
        payload must still fit its schema, except that skipped strings need not be valid UTF-8.
        `always_read` is always included.

        Args:
            names: Names of top-level fields. Unknown names are ignored, with a warning in the log,
                because events with other schemas may have them.
        """
        found = self._only.get(names)
        if found is None:
            unknown = sorted(names.difference(self.fields))
            if unknown:
                logger.warning(
                    "%s (schema %s) lacks these requested fields, so its events are decoded "
                    "without them: %s",
                    self.name,
                    self.schema_id,
                    ", ".join(unknown),
                )
            found = copy.copy(self)
            found.wanted, found._whole = names.union(self.always_read), self.whole
            found._read, found._compiled, found._is_finite, found._only = None, None, False, {}
            if len(self._only) >= MAX_PROJECTIONS:
                self._only.clear()
            self._only[names] = found
        return found

    @property
    def whole(self) -> Codec:
        """The codec that decodes all fields of the same schema."""
        return self._whole or self

    @property
    def always_read(self) -> tuple[str, ...]:
        """A tuple with the name of the field that is always decoded.

        The field is the header of a change event, or ``CreatedDate`` of any other event. The tuple
        is empty if the schema does not have that field.
        """
        name = CHANGE_EVENT_HEADER if self.is_change_event else CREATED_DATE
        return (name,) if name in self.fields else ()

    def decode(self, payload: bytes, *, datetimes: bool = False) -> dict[str, Any]:
        """Decode a payload and return the event's fields by name.

        Args:
            payload: The Avro bytes.
            datetimes: Whether to return fields that the schema documents as ``DateTime`` as
                `datetime` in UTC instead of integer milliseconds. Times outside the years 1 to
                9999 remain integers. ``DateOnly`` and ``TimeOnly`` remain integers, because
                Salesforce does not document their unit, and so does the header's
                ``commitTimestamp``.

        Raises:
            DecodeError: The payload does not fit the schema, or has trailing bytes.
        """
        value = self._decode(payload)[0]
        if datetimes:
            set_datetimes(value, self.times)
        return value

    def decode_with_json(self, payload: bytes) -> tuple[dict[str, Any], str]:
        """Decode a payload, and return the event's fields by name and as JSON text.

        This is faster than calling `decode` and `sfpubsub.avro.json.to_json`, with the same
        results.

        Raises:
            DecodeError: The payload does not fit the schema, or has trailing bytes.
        """
        value, is_finite = self._decode(payload)
        return value, to_json(value, is_finite=is_finite)

    def to_json(self, payload: bytes) -> str:
        """Decode a payload and return the fields as JSON text, like `sfpubsub.avro.json.to_json`.

        Raises:
            DecodeError: The payload does not fit the schema, or has trailing bytes.
        """
        if self.compiled is not None:
            try:
                return str(self._compiled.to_json(payload))
            except (ValueError, TypeError):  # not supported, or not bytes
                pass
        return self.decode_with_json(payload)[1]

    def facts_and_json(self, payload: bytes) -> tuple[int | None, Mapping[str, Any] | None, str]:
        """Decode a payload, and return the event's time, its header, and the JSON text.

        See `facts` for the time and the header, and `to_json` for the JSON text.

        Raises:
            DecodeError: The payload does not fit the schema, or has trailing bytes.
        """
        value: Mapping[str, Any] | None = None
        if self.compiled is not None and self._fact in self.fields:
            try:
                place = self.fields.index(self._fact)
                text, fact = self._compiled.to_json_with(payload, place)
                value = {self._fact: fact}
            except (ValueError, TypeError):  # not supported, or not bytes
                pass
        if value is None:
            value, text = self.decode_with_json(payload)
        return (*self.facts(value), text)

    def facts(self, value: Mapping[str, Any]) -> tuple[int | None, Mapping[str, Any] | None]:
        """Return a decoded event's time (see `event_time`) and its header.

        The header is None if the event is not a change event.
        """
        header = value.get(CHANGE_EVENT_HEADER) if self.is_change_event else None
        return self.event_time(value), header if isinstance(header, Mapping) else None

    @property
    def compiled(self) -> Any:
        """The compiled decoder; None if it is disabled, or not available for this schema."""
        if self._read is None:
            self._make_read()
        return self._compiled

    def _decode(self, payload: bytes) -> tuple[dict[str, Any], bool]:
        # Also returns whether all numbers are known to be finite.
        if type(payload) is not bytes:  # slices of other types are not bytes
            payload = bytes(payload)
        read = self._read or self._make_read()
        try:
            return read(payload), self._is_finite
        except Exception:  # noqa: BLE001 - of any type: the careful decoder finds the reason
            return self._decode_carefully(payload), False

    @property
    def times(self) -> Times:
        """The fields that the schema documents as ``DateTime``, including those within records.

        This is a list of pairs: the name of a ``DateTime`` field and None, or the name of a field
        with a record type and the `Times` of that record.
        """
        if self._times is None:
            self._times = fields_of(self._schema, self._named, is_time)
        return self._times

    @property
    def _numbers(self) -> Times:
        """The fields of type double, including those within records; see `times`."""
        if self._doubles is None:
            self._doubles = fields_of(self._schema, self._named, is_double)
        return self._doubles

    def _make_read(self) -> Callable[[bytes], Any]:
        try:
            self._compiled = decoder_of(self._schema, self._named, self.wanted)
            if self._compiled is None:
                read = generate(self._schema, self._named, self.wanted)
            else:
                read = self._compiled.decode
            self._is_finite = True  # set before the function can be called
            self._read = read
        except (Unsupported, RecursionError, MemoryError, SyntaxError):
            self._read = self._decode_carefully
        return self._read

    def _decode_carefully(self, payload: bytes) -> Any:
        try:
            check_payload(payload, self._schema, self._named)
            value: Any = fastavro.schemaless_reader(io.BytesIO(payload), self._schema, None)
        except Exception as error:
            raise DecodeError(
                f"payload of {len(payload)} bytes does not fit schema {self.schema_id} "
                f"({self.name}): {str(error) or type(error).__name__}"
            ) from error
        if self.wanted is None:
            return value
        return {name: value[name] for name in self.fields if name in self.wanted}

    def encode(
        self, value: Mapping[str, Any], *, fill_created: tuple[int, str] | None = None
    ) -> bytes:
        """Encode *value* as Avro bytes. A missing field gets its default from the schema.

        Args:
            value: Values by field name. Times are integers, in milliseconds since the epoch; where
                the schema documents a ``DateTime``, a `datetime` with a time zone is accepted as
                well. Numbers of type double may be `Decimal`.
            fill_created: ``CreatedDate`` (milliseconds since the epoch) and ``CreatedById`` to use
                if the schema has these fields and *value* lacks them.

        Raises:
            EncodeError: A field is unknown, missing without a default, or of the wrong type. The
                message names the field's path and, for a wrong type, the expected and actual types.
        """
        if not isinstance(value, Mapping):
            raise EncodeError(f"{self.name} must be a mapping, not {type(value).__name__}")
        if fill_created is not None:
            created = dict(zip((CREATED_DATE, CREATED_BY), fill_created, strict=True))
            value = {**{k: v for k, v in created.items() if k in self.fields}, **value}
        value = converted(value, self.times, to_milliseconds, self.name)
        value = converted(value, self._numbers, to_double, self.name)
        return self._encoder.encode(value)

    def event_time(self, value: Mapping[str, Any]) -> int | None:
        """Return when the event occurred, in milliseconds since the epoch; None if unknown.

        This is ``CreatedDate`` of a platform event, or ``commitTimestamp`` in the header of a
        change event.

        Args:
            value: The decoded event.
        """
        if self.is_change_event:
            header = value.get(CHANGE_EVENT_HEADER)
            time = header.get("commitTimestamp") if isinstance(header, Mapping) else None
        else:
            time = value.get(CREATED_DATE)
        if isinstance(time, datetime):  # decoded with datetimes=True
            return milliseconds(time)
        return time if isinstance(time, int) else None

    def __repr__(self) -> str:
        return f"Codec({self.schema_id}, {self.name})"


class NoCodec(Codec):
    """The codec of an unavailable schema: decoding and encoding always fail.

    Args:
        schema_id: The service's id for the schema.
        error: Why the schema is not available.
    """

    def __init__(self, schema_id: str, error: SchemaError) -> None:
        self.schema_id = schema_id
        self.schema_json = ""
        self.fields = ()
        self.name = ""  # known only from the schema
        self.topic = ""  # derived from the name
        self.is_change_event = False  # not known
        self.error = error
        self._fact = ""
        self._read, self._compiled = self._decode, None

    def only(self, names: frozenset[str]) -> Codec:
        """Return this codec, which cannot decode any field."""
        return self

    def _decode(self, payload: bytes) -> tuple[dict[str, Any], bool]:
        raise DecodeError(
            str(self.error), error_code=self.error.error_code, rpc_id=self.error.rpc_id
        ) from self.error

    def encode(
        self, value: Mapping[str, Any], *, fill_created: tuple[int, str] | None = None
    ) -> bytes:
        """Raise an EncodeError, because the schema is not available."""
        raise EncodeError(str(self.error)) from self.error


def _parse(text: str, named: dict[str, Any]) -> Any:
    # Parse a schema, and fill *named* with its named types. Reject schemas that fastavro accepts
    # but that cannot be used here.
    value = json.loads(text)
    layer = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        layer = [
            item
            for parent in layer
            if isinstance(parent, (dict, list))
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
    if layer:
        raise ValueError(f"its JSON is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    if isinstance(value, dict):
        value.pop("__fastavro_parsed", None)  # would make fastavro skip its checks
        value.pop("__named_schemas", None)
    schema = fastavro.parse_schema(value, named_schemas=named)
    for definition in named.values():
        size = definition.get("size", 0)
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"a fixed type must have an integer size of at least 0, not {size!r}")
        for field in definition.get("fields", ()):
            if not isinstance(field["name"], str):
                raise ValueError(f"the field name {field['name']!r} is not a string")  # noqa: TRY004
            _set_bytes_default(field, named)
    return schema


def _set_bytes_default(field: dict[str, Any], named: Mapping[str, Any]) -> None:
    # Avro schemas give the default of a bytes field as a string with one character per byte.
    # fastavro keeps it as a string and then fails to encode it.
    kind = field["type"][0] if isinstance(field["type"], list) and field["type"] else field["type"]
    kind = kind if isinstance(kind, dict) else named.get(kind, {"type": kind})
    if kind["type"] in ("bytes", "fixed") and isinstance(field.get("default"), str):
        field["default"] = field["default"].encode("latin-1")
