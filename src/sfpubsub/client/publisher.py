"""Publishing: values to Avro, in requests of a size that the service takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import PublishError, SfPubSubError
from sfpubsub.types import ProducerEvent, PublishResult

# Events and payload bytes of one request (Salesforce documentation, allocations: at most 200
# events and 3 MB are recommended; over 4 MB the stream breaks).
MAX_EVENTS = 200
MAX_BYTES = 3_000_000


def publish(
    events: Iterable[Mapping[str, Any]],
    *,
    codec: Callable[[], Codec],
    topic: str,
    created_by: str | None,
    send: Callable[[list[ProducerEvent]], list[PublishResult]],
) -> list[PublishResult]:
    """Encode *events* and send them in as many requests as they need.

    Args:
        events: Values of the fields by name.
        codec: Returns the codec of the topic's schema.
        topic: For messages.
        created_by: ``CreatedById`` of events that lack it; those that lack ``CreatedDate`` get the
            present time. None to fill in nothing.
        send: Publishes one request's events.

    Raises:
        EncodeError: An event does not fit the schema; none was published.
        PublishError: Events were refused, or a call after the first failed; has the results so far.
    """
    schema = codec()
    created = None if created_by is None else (round(time.time() * 1000), created_by)
    encoded = [
        ProducerEvent(schema.schema_id, schema.encode(event, fill_created=created))
        for event in events
    ]
    results: list[PublishResult] = []
    for part in _parts(encoded):
        try:
            results += send(part)
        except SfPubSubError as error:
            if not results:
                raise
            raise PublishError(
                f"{topic}: {len(results)} of {len(encoded)} events were published, then: {error}",
                results=results,
            ) from error
    refused = [result for result in results if not result.ok]
    if refused:
        raise PublishError(
            f"{topic}: {len(refused)} of {len(results)} events were refused, the first one: "
            f"{refused[0].error}",
            results=results,
        )
    return results


def _parts(events: list[ProducerEvent]) -> Iterator[list[ProducerEvent]]:
    part: list[ProducerEvent] = []
    size = 0
    for event in events:
        if part and (len(part) >= MAX_EVENTS or size + len(event.payload) > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(event)
        size += len(event.payload)
    if part:
        yield part
