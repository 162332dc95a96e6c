"""The transport interface that the client requires: unary and streaming calls.

Protobuf and gRPC are hidden behind this interface. `sfpubsub.transports.channel` implements it with
gRPC, and `sfpubsub.transports.memory` with a scripted service for tests.
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

# Name and value of each header of a call. They contain the session's token and are never logged.
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """The topic or managed subscription that a stream subscribes to."""

    name: str
    """Topic path, or the developer name or record id of a managed subscription."""
    managed: bool


class Call(ABC, Generic[Sent, Received]):
    """One active call. Thread-safe, but only one thread may call `read` or `receive`."""

    headers: Headers = ()
    """Session headers sent with the call."""

    def read(
        self, received: Callable[[Received], None], ended: Callable[[Failure | None], None]
    ) -> None:
        """Pass every message, and then the end of the call, to callbacks.

        This implementation blocks until the call ends. A call with its own reader thread returns
        immediately.

        Args:
            received: Called with each message in order, from one thread. Must not block.
            ended: Called once, after the last message and from the same thread, with the failure,
                or None if the service ended the call with OK.
        """
        while (message := self.receive()) is not None and not isinstance(message, Failure):
            received(message)
        ended(message)

    @abstractmethod
    def receive(self) -> Received | Failure | None:
        """Wait for the next message.

        Returns:
            A message, the failure of the call, or None if the service ended it with OK. Nothing
            follows a failure or None.
        """

    @abstractmethod
    def send(self, request: Sent) -> None:
        """Queue a request without blocking. Requests after the end of the call are discarded."""

    @abstractmethod
    def half_close(self) -> None:
        """Signal that no further request follows."""

    @abstractmethod
    def cancel(self) -> None:
        """End the call now. A blocked `receive` returns."""


StreamCall: TypeAlias = Call[SendRequest, Response]
"""A Subscribe or ManagedSubscribe call."""

PublishCall: TypeAlias = Call[SendEvents, PublishAnswer]
"""A PublishStream call, or a sequence of Publish calls with one request each."""


class Transport(ABC):
    """Makes calls to one endpoint of the service, with one client's session. Thread-safe."""

    @abstractmethod
    def connect(self, timeout: float) -> None:
        """Wait until the service is reachable.

        Args:
            timeout: Longest wait, in seconds.

        Raises:
            StreamUnavailableError: The service was not reachable within *timeout*.
        """

    @abstractmethod
    def open_stream(self, target: Target, opening: OpenStream) -> StreamCall:
        """Start a Subscribe or ManagedSubscribe call, without waiting for the service.

        Raises:
            SfPubSubError: No session could be obtained.
        """

    @abstractmethod
    def get_topic(self, name: str) -> TopicInfo:
        """Fetch a topic's schema id and permissions with GetTopic.

        Raises:
            SfPubSubError: The call failed. `sfpubsub.transports.status` selects the subclass.
        """

    @abstractmethod
    def get_schema(self, schema_id: str) -> SchemaInfo:
        """Fetch a schema with GetSchema. Raises the same errors as `get_topic`."""

    @abstractmethod
    def open_publish(self, topic: str, opening: OpenPublish, *, streamed: bool) -> PublishCall:
        """Start a call that publishes, without waiting for the service.

        Args:
            topic: Full path, such as ``/event/Order__e``.
            opening: Contains the events of the first request.
            streamed: Whether to use PublishStream instead of Publish.

        Raises:
            SfPubSubError: No session could be obtained.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Active calls end."""
