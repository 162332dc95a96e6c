"""What the client needs of a transport: three unary calls and a stream of responses.

Protobuf and grpc stay behind this interface. `sfpubsub.transports.channel` is the real one,
`sfpubsub.transports.memory` a scripted one for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sfpubsub.protocol.commands import OpenStream, SendRequest
from sfpubsub.protocol.events import Failure, Response
from sfpubsub.types import ProducerEvent, PublishResult, SchemaInfo, TopicInfo

# Name and value of each header of a call. They hold the session: never logged.
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """What a stream subscribes to."""

    name: str
    """Topic path, or developer name or record id of a managed subscription."""
    managed: bool


class StreamCall(ABC):
    """One live call. `receive` is for one thread; the other methods are for any thread."""

    headers: Headers = ()
    """The session's headers that the call was made with."""

    @abstractmethod
    def receive(self) -> Response | Failure | None:
        """Wait for the next message.

        Returns:
            A response; or how the stream failed; or None when the service ended it with OK. After
            one of the last two nothing follows.
        """

    @abstractmethod
    def send(self, request: SendRequest) -> None:
        """Queue a request; never waits. After the end of the stream it goes nowhere."""

    @abstractmethod
    def half_close(self) -> None:
        """Say that no further request follows."""

    @abstractmethod
    def cancel(self) -> None:
        """End the call now; a waiting `receive` returns."""


class Transport(ABC):
    """A way to one service with one session. Thread-safe."""

    @abstractmethod
    def connect(self, timeout: float) -> None:
        """Wait until the service can be reached.

        Args:
            timeout: Seconds.

        Raises:
            StreamUnavailableError: It could not in that time.
        """

    @abstractmethod
    def open_stream(self, target: Target, opening: OpenStream) -> StreamCall:
        """Start a Subscribe or ManagedSubscribe call. Does not wait for the service.

        Raises:
            SfPubSubError: No session could be had.
        """

    @abstractmethod
    def get_topic(self, name: str) -> TopicInfo:
        """Call GetTopic.

        Raises:
            SfPubSubError: As classified by sfpubsub.transports.status.
        """

    @abstractmethod
    def get_schema(self, schema_id: str) -> SchemaInfo:
        """Call GetSchema; raises like `get_topic`."""

    @abstractmethod
    def publish(self, topic: str, events: Sequence[ProducerEvent]) -> list[PublishResult]:
        """Call Publish; raises like `get_topic`. One result an event, in order."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection. Calls that are still alive end."""
