"""What the client needs of a transport: unary calls, and calls that send and receive.

Protobuf and grpc stay behind this interface. `sfpubsub.transports.channel` is the real one,
`sfpubsub.transports.memory` a scripted one for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from sfpubsub.protocol.commands import OpenPublish, OpenStream, SendEvents, SendRequest
from sfpubsub.protocol.events import Failure, PublishAnswer, Response
from sfpubsub.types import SchemaInfo, TopicInfo

Sent = TypeVar("Sent")
Received = TypeVar("Received")

# Name and value of each header of a call. They hold the session: never logged.
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """What a stream subscribes to."""

    name: str
    """Topic path, or developer name or record id of a managed subscription."""
    managed: bool


class Call(ABC, Generic[Sent, Received]):
    """One live call. `read` is for one thread; the other methods are for any thread."""

    headers: Headers = ()
    """The session's headers that the call was made with."""

    def read(
        self, received: Callable[[Received], None], ended: Callable[[Failure | None], None]
    ) -> None:
        """Hand over every message, and then the end of the call.

        Here by waiting for them; a call that has a thread for that anyway returns at once.

        Args:
            received: Called with one message after another, in one thread; does not wait.
            ended: Called once, after the last message, in that thread: with how the call failed,
                or None when the service ended it with OK.
        """
        while (message := self.receive()) is not None and not isinstance(message, Failure):
            received(message)
        ended(message)

    @abstractmethod
    def receive(self) -> Received | Failure | None:
        """Wait for the next message.

        Returns:
            A message; or how the call failed; or None when the service ended it with OK. After
            one of the last two nothing follows.
        """

    @abstractmethod
    def send(self, request: Sent) -> None:
        """Queue a request; never waits. After the end of the call it goes nowhere."""

    @abstractmethod
    def half_close(self) -> None:
        """Say that no further request follows."""

    @abstractmethod
    def cancel(self) -> None:
        """End the call now; a waiting `receive` returns."""


StreamCall: TypeAlias = Call[SendRequest, Response]
"""A Subscribe or ManagedSubscribe call."""

PublishCall: TypeAlias = Call[SendEvents, PublishAnswer]
"""A PublishStream call, or one Publish call after another, a request each."""


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
            SfPubSubError: No session could be obtained.
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
    def open_publish(self, topic: str, opening: OpenPublish, *, streamed: bool) -> PublishCall:
        """Start to publish. Does not wait for the service.

        Args:
            topic: Full path.
            opening: Has the first request's events.
            streamed: By PublishStream, otherwise by Publish.

        Raises:
            SfPubSubError: No session could be obtained.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection. Calls that are still alive end."""
