"""The gRPC calls that publish: one PublishStream, or one Publish per request."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from sfpubsub.protocol.commands import OpenPublish, SendEvents
from sfpubsub.protocol.events import Failure, PublishAnswer
from sfpubsub.transports import wire
from sfpubsub.transports.base import Headers, PublishCall
from sfpubsub.transports.status import classify
from sfpubsub.types import ProducerEvent

# Deadline of a unary call, in seconds. The service usually answers in well under 1 s; rejecting an
# invalid token has been observed to take 11 s.
UNARY_TIMEOUT = 30.0


class _GrpcPublish(PublishCall):
    """Base of `StreamedPublish` and `UnaryPublish`: queues requests and classifies failures.

    Args:
        topic: Full path, such as ``/event/Order__e``.
        method: Method of the stub.
        opening: Contains the events of the first request.
        headers: Session headers.
        metadata: Returns the headers and a new trace id for one gRPC call.
    """

    def __init__(
        self,
        topic: str,
        method: Any,
        opening: OpenPublish,
        headers: Headers,
        metadata: Callable[[], list[tuple[str, str]]],
    ) -> None:
        self.headers = headers
        self._topic = topic
        self._method = method
        self._metadata = metadata
        # None ends the call.
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._put(opening.events)

    def _put(self, events: tuple[ProducerEvent, ...]) -> None:
        self._requests.put(wire.publish_request(self._topic, events))

    def receive(self) -> PublishAnswer | Failure | None:
        try:
            message = self._next()
        except grpc.RpcError as error:
            self.half_close()
            return classify(f"topic {self._topic}", error)
        return None if message is None else wire.publish_answer(message)

    @abstractmethod
    def _next(self) -> Any:
        """Wait for the next response; return None if no more follow."""

    def send(self, request: SendEvents) -> None:
        self._put(request.events)

    def half_close(self) -> None:
        self._requests.put(None)


class StreamedPublish(_GrpcPublish):
    """One PublishStream call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._call = self._method(self._take_requests(), metadata=self._metadata())

    def _take_requests(self) -> Iterator[Any]:
        while (request := self._requests.get()) is not None:
            yield request

    def _next(self) -> Any:
        message = next(self._call, None)
        if message is None:
            self.half_close()  # releases gRPC's own thread, which waits for the next request
        return message

    def cancel(self) -> None:
        self._call.cancel()
        self.half_close()


class UnaryPublish(_GrpcPublish):
    """A sequence of Publish calls, which ends after the last request or when a call fails."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._call: Any = None
        self._cancelled = False

    def _next(self) -> Any:
        request = self._requests.get()
        if request is None or self._cancelled:
            return None
        call = self._method.future(request, timeout=UNARY_TIMEOUT, metadata=self._metadata())
        self._call = call
        if self._cancelled:  # cancelled between the check and the call
            call.cancel()
        try:
            return call.result()
        except grpc.FutureCancelledError:
            return None

    def cancel(self) -> None:
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()
        self.half_close()
