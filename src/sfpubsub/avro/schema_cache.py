"""Schemas by id, fetched once.

A schema id names its content (it is a hash of the schema), so an entry never goes stale. Events of
one stream may carry different ids around a schema change, so the key is the event's own id and
never the topic. Thread-safe.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from fastavro.schema import to_parsing_canonical_form

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import SchemaError
from sfpubsub.types import SchemaInfo

logger = logging.getLogger("sfpubsub.client")

# Schemas kept. An org has some hundreds of event types at most; a parsed schema of a large object
# takes about 100 KiB, so this bounds the cache near 50 MiB.
MAX_SCHEMAS = 512


class Store(Protocol):
    """Keeps schemas beyond this process. Thread-safe."""

    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text, or None if it is not there."""
        ...

    def put(self, schema_id: str, schema_json: str) -> None:
        """Keep a schema; durable when this returns."""
        ...


def schema_id_of(schema_json: str) -> str:
    """Return the id that the service gives to a schema.

    It is the base64url form, without padding, of the MD5 of the Avro parsing canonical form, which
    leaves out docs and defaults.

    Raises:
        SchemaError: There is no canonical form of it.
    """
    try:
        canonical = to_parsing_canonical_form(json.loads(schema_json))
    except Exception as error:  # fastavro does not document what it raises for a bad schema
        raise SchemaError(f"the schema has no canonical form: {error}") from error
    digest = hashlib.md5(canonical.encode(), usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class SchemaCache:
    """Fetches each schema once, however many threads ask, and keeps the most recently used.

    Args:
        fetch: Asks the service for a schema id. Its errors reach every caller that waited for this
            fetch and are not remembered.
        max_schemas: Schemas kept.
        store: Looked into before *fetch*, and given what was fetched before anybody gets it.
    """

    def __init__(
        self,
        fetch: Callable[[str], SchemaInfo],
        *,
        max_schemas: int = MAX_SCHEMAS,
        store: Store | None = None,
    ) -> None:
        self._fetch = fetch
        self._max = max_schemas
        self._store = store
        self._lock = threading.Lock()  # guards what follows; never held during a fetch
        self._codecs: OrderedDict[str, Codec] = OrderedDict()
        self._in_flight: dict[str, Future[Codec]] = {}
        self._mismatches: set[str] = set()

    def get(self, schema_id: str) -> Codec:
        """Return the codec of *schema_id*, fetching the schema when it is not known.

        Raises:
            SchemaNotFoundError: The service does not know the id.
            SchemaError: The schema is not valid Avro.
            SfPubSubError: What else the fetch or the store raised.
        """
        with self._lock:
            codec = self._codecs.get(schema_id)
            if codec is not None:
                self._codecs.move_to_end(schema_id)
                return codec
            waiting = self._in_flight.get(schema_id)
            mine: Future[Codec] = Future()
            if waiting is None:
                self._in_flight[schema_id] = mine
        if waiting is not None:
            return waiting.result()
        try:
            codec = self._stored(schema_id) or self._fetched(schema_id)
            self._note_mismatch(codec)
        except BaseException as error:
            with self._lock:
                del self._in_flight[schema_id]
            # The others must not be interrupted by this thread's Ctrl-C; they may ask again.
            interrupted = SchemaError("the fetch was interrupted", retryable=True)
            mine.set_exception(error if isinstance(error, Exception) else interrupted)
            raise
        with self._lock:
            del self._in_flight[schema_id]
            self._codecs[schema_id] = codec
            if len(self._codecs) > self._max:
                self._codecs.popitem(last=False)
        mine.set_result(codec)
        return codec

    def _stored(self, schema_id: str) -> Codec | None:
        schema_json = None if self._store is None else self._store.get(schema_id)
        if schema_json is None:
            return None
        try:
            return Codec(schema_id, schema_json)
        except SchemaError as error:  # the service knows better
            logger.warning("the schema store cannot be used here, asking the service: %s", error)
            return None

    def _fetched(self, schema_id: str) -> Codec:
        codec = Codec(schema_id, self._fetch(schema_id).schema_json)
        if self._store is not None:
            self._store.put(schema_id, codec.schema_json)
        return codec

    def _note_mismatch(self, codec: Codec) -> None:
        # Not fatal: what decodes an event is the schema that the service gave for its id, whatever
        # the id is made of. But a schema that is not its id's may be another event's.
        try:
            made_of = schema_id_of(codec.schema_json)
        except SchemaError as error:
            made_of = f"nothing, for {error}"
        if made_of == codec.schema_id:
            return
        with self._lock:
            known = codec.schema_id in self._mismatches
            self._mismatches.add(codec.schema_id)
        if not known:
            logger.warning(
                "schema %s (%s) is used, though its id is not made of its content, which gives %s",
                codec.schema_id,
                codec.name,
                made_of,
            )

    @property
    def mismatches(self) -> int:
        """Schema ids that are not the hash of their schema."""
        return len(self._mismatches)

    def peek(self, schema_id: str) -> Codec | None:
        """Return the codec of *schema_id* if it is known; never waits."""
        with self._lock:
            codec = self._codecs.get(schema_id)
            if codec is not None:
                self._codecs.move_to_end(schema_id)
            return codec

    def __len__(self) -> int:
        return len(self._codecs)
