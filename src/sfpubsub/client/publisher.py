"""Publishing: values to Avro, in requests of a size that the service takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import PermissionDeniedError, PublishError, SfPubSubError
from sfpubsub.types import ProducerEvent, PublishResult, TopicInfo

# Events and payload bytes of one request (Salesforce documentation, allocations: at most 200
# events and 3 MB are recommended; over 4 MB the stream breaks).
MAX_EVENTS = 200
MAX_BYTES = 3_000_000


def publish(
    events: Iterable[Mapping[str, Any]],
    *,
    topic: TopicInfo,
    codec: Callable[[str], Codec],
    created_by: str | None,
    send: Callable[[list[ProducerEvent]], list[PublishResult]],
) -> list[PublishResult]:
    """Encode *events* and send them in as many requests as they need.

    Args:
        events: Values of the fields by name.
        topic: Where to; the service has just said so.
        codec: Returns the codec of a schema id.
        created_by: ``CreatedById`` of events that lack it; those that lack ``CreatedDate`` get the
            present time. None to fill in nothing.
        send: Publishes one request's events.

    Raises:
        PermissionDeniedError: The topic cannot be published to. No event was looked at.
        EncodeError: An event does not fit the schema; none was published.
        PublishError: Events were refused, or a call after the first failed; has the results so far.
    """
    name = topic.topic_name
    if not topic.can_publish:
        reason = (
            "change events come from the org alone"
            if name.startswith("/data/")
            else "give the user create access to the event"
        )
        raise PermissionDeniedError(
            f"{name} cannot be published to (can_publish is false): {reason}"
        )
    schema = codec(topic.schema_id)
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
                f"{name}: published {len(results)} of {len(encoded)}, then: {error}",
                results=results,
            ) from error
    refused = [result for result in results if not result.ok]
    if refused:
        raise PublishError(
            f"{name}: the service refused {len(refused)} of {len(results)}, the first one: "
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
