"""A scripted in-memory service, for tests of this client and of programs that use it.

A `MemoryTransport` passes every new stream to the test as a `MemoryCall`. The test answers in place
of the service and reads the client's requests. Nothing happens automatically, except that published
events are accepted.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping

from sfpubsub.errors import SchemaNotFoundError, StreamUnavailableError, TopicNotFoundError
from sfpubsub.protocol.commands import OpenPublish, OpenStream, SendEvents, SendRequest
from sfpubsub.protocol.events import Failure, FailureKind, PublishAnswer, Response
from sfpubsub.transports.base import PublishCall, StreamCall, Target, Transport
from sfpubsub.transports.status import PREFIX
from sfpubsub.types import ProducerEvent, PublishResult, SchemaInfo, TopicInfo

# How long a test waits for an action of the client, in seconds: far longer than any action takes.
PATIENCE = 10.0


class MemoryCall(StreamCall):
    """One stream: the client's end and, for the test, the service's end. Thread-safe."""

    def __init__(self, target: Target, opening: OpenStream) -> None:
        self.target = target
        self.opening = opening
        self.cancelled: bool = False
        self._to_client: queue.SimpleQueue[Response | Failure | None] = queue.SimpleQueue()
        self._to_service: queue.SimpleQueue[SendRequest | None] = queue.SimpleQueue()

    # The test's end.

    def respond(self, response: Response) -> None:
        """Send a message to the client."""
        self._to_client.put(response)

    def end(self, failure: Failure | None = None) -> None:
        """End the stream with OK or with a failure."""
        self._to_client.put(failure)

    def next_request(self, timeout: float = PATIENCE) -> SendRequest | None:
        """Return the client's next request, or None for its half-close.

        Raises:
            queue.Empty: The client sent nothing within *timeout* seconds.
        """
        return self._to_service.get(timeout=timeout)

    # The client's end.

    def receive(self) -> Response | Failure | None:
        return self._to_client.get()

    def send(self, request: SendRequest) -> None:
        self._to_service.put(request)

    def half_close(self) -> None:
        self._to_service.put(None)

    def cancel(self) -> None:
        self.cancelled = True
        self._to_client.put(Failure(FailureKind.RETRY, StreamUnavailableError("cancelled")))


class MemoryPublishCall(PublishCall):
    """A call that accepts all published events immediately, and appends them to a list."""

    def __init__(self, topic: str, published: list[tuple[str, tuple[ProducerEvent, ...]]]) -> None:
        self._topic = topic
        self._published = published
        self._answers: queue.SimpleQueue[PublishAnswer | Failure | None] = queue.SimpleQueue()

    def receive(self) -> PublishAnswer | Failure | None:
        return self._answers.get()

    def send(self, request: SendEvents) -> None:
        self._published.append((self._topic, request.events))
        results = tuple(PublishResult(None, event.id) for event in request.events)
        self._answers.put(PublishAnswer(results))

    def half_close(self) -> None:
        self._answers.put(None)

    def cancel(self) -> None:
        self._answers.put(Failure(FailureKind.RETRY, StreamUnavailableError("cancelled")))


class MemoryTransport(Transport):
    """A scripted service. Thread-safe.

    Args:
        schemas: Schema JSON by schema id.
        topics: Schema id by topic name.
    """

    def __init__(
        self, schemas: Mapping[str, str] | None = None, topics: Mapping[str, str] | None = None
    ) -> None:
        self.schemas: dict[str, str] = dict(schemas or {})
        self.topics: dict[str, str] = dict(topics or {})
        self.published: list[tuple[str, tuple[ProducerEvent, ...]]] = []
        self._calls: queue.SimpleQueue[MemoryCall] = queue.SimpleQueue()

    def next_call(self, timeout: float = PATIENCE) -> MemoryCall:
        """Return the next stream that the client opens.

        Raises:
            queue.Empty: The client opened no stream within *timeout* seconds.
        """
        return self._calls.get(timeout=timeout)

    def connect(self, timeout: float) -> None:
        """Return immediately: the service is always reachable."""

    def open_stream(self, target: Target, opening: OpenStream) -> StreamCall:
        call = MemoryCall(target, opening)
        self._calls.put(call)
        return call

    def get_topic(self, name: str) -> TopicInfo:
        if name not in self.topics:
            raise TopicNotFoundError(
                f"the MemoryTransport has no topic {name}: add it to topics",
                error_code=f"{PREFIX}topic.not.found",
            )
        return TopicInfo(name, "memory", True, True, self.topics[name], "")

    def get_schema(self, schema_id: str) -> SchemaInfo:
        if schema_id not in self.schemas:
            raise SchemaNotFoundError(
                f"the MemoryTransport has no schema {schema_id}: add it to schemas",
                error_code=f"{PREFIX}schema.not.found",
            )
        return SchemaInfo(schema_id, self.schemas[schema_id])

    def open_publish(self, topic: str, opening: OpenPublish, *, streamed: bool) -> PublishCall:
        call = MemoryPublishCall(topic, self.published)
        call.send(SendEvents(opening.stream, opening.events))
        return call

    def close(self) -> None:
        """Do nothing: there is no connection."""
