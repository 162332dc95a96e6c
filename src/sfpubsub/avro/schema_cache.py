"""Schemas by id, fetched once.

A schema id names its content (it is a hash of the schema), so an entry never goes stale. Events of
one stream may carry different ids around a schema change, so the key is the event's own id and
never the topic. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import SchemaError
from sfpubsub.types import SchemaInfo

# Schemas kept. An org has some hundreds of event types at most; a parsed schema of a large object
# takes about 100 KiB, so this bounds the cache near 50 MiB.
MAX_SCHEMAS = 512


class SchemaCache:
    """Fetches each schema once, however many threads ask, and keeps the most recently used.

    Args:
        fetch: Asks the service for a schema id. Its errors reach every caller that waited for this
            fetch and are not remembered.
        max_schemas: Schemas kept.
    """

    def __init__(
        self, fetch: Callable[[str], SchemaInfo], *, max_schemas: int = MAX_SCHEMAS
    ) -> None:
        self._fetch = fetch
        self._max = max_schemas
        self._lock = threading.Lock()  # guards both maps; never held during a fetch
        self._codecs: OrderedDict[str, Codec] = OrderedDict()
        self._in_flight: dict[str, Future[Codec]] = {}

    def get(self, schema_id: str) -> Codec:
        """Return the codec of *schema_id*, fetching the schema when it is not known.

        Raises:
            SchemaNotFoundError: The service does not know the id.
            SchemaError: The schema is not valid Avro.
            SfPubSubError: What else the fetch raised.
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
            info = self._fetch(schema_id)
            codec = Codec(schema_id, info.schema_json)
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

    def peek(self, schema_id: str) -> Codec | None:
        """Return the codec of *schema_id* if it is known; never waits."""
        with self._lock:
            codec = self._codecs.get(schema_id)
            if codec is not None:
                self._codecs.move_to_end(schema_id)
            return codec

    def __len__(self) -> int:
        return len(self._codecs)
