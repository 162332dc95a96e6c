"""A cache of schemas by id. A schema is fetched again only after it has been evicted.

A schema id is a hash of the schema, so an entry never becomes stale. Around a schema change, the
events of one stream may have different schemas, so a schema is looked up by the schema id of the
event, never by the topic. Thread-safe.

That ids are hashes is not documented, so an answer whose hash is not the id is not refused. But it
may be the schema of other events, which would be decoded to wrong values. So it is used only if the
service sends the same answer twice, and it is never stored.
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

# Maximum number of cached schemas. An org has at most a few hundred event types; the parsed schema
# of a large object takes about 100 KiB, so the cache stays below about 50 MiB.
MAX_SCHEMAS = 512


class Store(Protocol):
    """Stores schemas durably, so that they outlive the process. Thread-safe."""

    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text, or None if it is not stored."""
        ...

    def put(self, schema_id: str, schema_json: str) -> None:
        """Store a schema. The schema is durable when the call returns."""
        ...


def schema_id_of(schema_json: str) -> str:
    """Return the id that the service assigns to a schema.

    It is the MD5 of the schema's Avro parsing canonical form, which omits docs and defaults, in
    base64url without padding.

    Raises:
        SchemaError: The schema is not valid, so it has no canonical form.
    """
    try:
        canonical = to_parsing_canonical_form(json.loads(schema_json))
    except Exception as error:  # fastavro does not document what it raises for an invalid schema
        raise SchemaError(f"not a valid Avro schema: {error}") from error
    digest = hashlib.md5(canonical.encode(), usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _fits(schema_id: str, schema_json: str) -> bool:
    """Return whether *schema_id* is the hash of a schema."""
    try:
        return schema_id_of(schema_json) == schema_id
    except SchemaError:
        return False


class SchemaCache:
    """Caches the most recently used schemas.

    A schema that several threads request at the same time is fetched only once.

    Args:
        fetch: Fetches a schema from the service by id. Its errors are raised in every caller that
            waited for this fetch, and are not cached.
        max_schemas: Maximum number of cached schemas.
        store: Checked before *fetch*, if given. A fetched schema is stored in it before it is
            returned, if its id is its hash.
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
        """Return the codec of *schema_id*, fetching the schema if it is not cached.

        Raises:
            SchemaNotFoundError: The service has no schema with this id.
            SchemaError: The schema is not valid Avro, or the service sent two different ones.
            SfPubSubError: Any other error that the fetch or the store raises.
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
        except BaseException as error:
            with self._lock:
                del self._in_flight[schema_id]
            # This thread's Ctrl-C must not be raised in other threads; they may retry.
            interrupted = SchemaError(
                f"fetching schema {schema_id} was interrupted", retryable=True
            )
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
            if _fits(schema_id, schema_json):
                return Codec(schema_id, schema_json)
            problem = "its hash is not its id"
        except SchemaError as error:
            problem = str(error)
        logger.warning(
            "the stored schema %s is not valid; fetching it from the service: %s",
            schema_id,
            problem,
        )
        return None

    def _fetched(self, schema_id: str) -> Codec:
        schema_json = self._fetch(schema_id).schema_json
        if not _fits(schema_id, schema_json):
            again = self._fetch(schema_id).schema_json
            if not _fits(schema_id, again):
                return self._doubtful(schema_id, schema_json, again)
            schema_json = again
        codec = Codec(schema_id, schema_json)
        if self._store is not None:
            self._store.put(schema_id, schema_json)
        return codec

    def _doubtful(self, schema_id: str, schema_json: str, again: str) -> Codec:
        """Return the codec of a schema whose hash is not its id, which the service sent twice."""
        if again != schema_json:
            raise SchemaError(
                f"the service sent two different schemas for {schema_id}, and the id is the hash "
                f"of neither: its events are not decoded, because the result could be wrong"
            )
        codec = Codec(schema_id, schema_json)
        codec.is_doubtful = True
        with self._lock:
            known = schema_id in self._mismatches
            self._mismatches.add(schema_id)
        if not known:
            logger.warning(
                "schema %s (%s) is used, but not stored, because its id does not match its "
                "content: the expected id is %s",
                schema_id,
                codec.name,
                schema_id_of(schema_json),
            )
        return codec

    @property
    def mismatches(self) -> int:
        """The number of schema ids that are not the hash of the schema used for them."""
        return len(self._mismatches)

    def peek(self, schema_id: str) -> Codec | None:
        """Return the codec of *schema_id*; None if it is not cached. Never fetches a schema."""
        with self._lock:
            codec = self._codecs.get(schema_id)
            if codec is not None:
                self._codecs.move_to_end(schema_id)
            return codec

    def __len__(self) -> int:
        return len(self._codecs)
