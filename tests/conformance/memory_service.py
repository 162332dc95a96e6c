"""An in-memory service with one topic, one managed subscription, and planned faults.

It responds in the caller's thread, so that scenarios are fast and deterministic. It shares no code
with the client's protocol: it tracks credit, commits and positions independently.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from typing import Any

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import (
    ReplayIdRejectedError,
    SchemaNotFoundError,
    SessionExpiredError,
    StreamUnavailableError,
    SubscriptionBusyError,
    SubscriptionStoppedError,
)
from sfpubsub.protocol.commands import OpenPublish, OpenStream, SendRequest
from sfpubsub.protocol.events import CommitAnswer, Failure, FailureKind, Response
from sfpubsub.transports.base import PublishCall, StreamCall, Target, Transport
from sfpubsub.types import (
    RawEvent,
    ReplayId,
    ReplayPreset,
    SchemaInfo,
    TopicInfo,
)

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order_Event__e",
        "fields": [{"name": "Order_Number__c", "type": ["null", "string"], "default": None}],
    }
)

DOWN = Failure(FailureKind.RETRY, StreamUnavailableError("connection reset"))
BUSY = Failure(FailureKind.SLOT_HELD, SubscriptionBusyError("already active"))
STOPPED = Failure(FailureKind.STOP, SubscriptionStoppedError("state is STOP"))
EXPIRED = Failure(FailureKind.REAUTHENTICATE, SessionExpiredError("session expired"))
REJECTED = Failure(
    FailureKind.POSITION_REJECTED,
    ReplayIdRejectedError(
        "The Replay ID validation failed",
        error_code="sfdc.platform.eventbus.grpc.subscription.fetch.replayid.corrupted",
        rpc_id="rpc",
    ),
)


class MemoryService(Transport):
    """An in-memory service that acts as the client's transport. Thread-safe.

    Args:
        events_per_response: Maximum number of events per response.
        replay_id_bytes: Length of replay ids, whose byte order is not the order of the events.
        commit_answer_tip: Position in commit responses: ``none``, the last one ``sent``, or the
            newest one of the ``org``, which may not have been sent yet.
        commit_answer_pending: Whether commit responses contain the pending count.
    """

    def __init__(
        self,
        *,
        events_per_response: int = 100,
        replay_id_bytes: int = 10,
        commit_answer_tip: str = "sent",
        commit_answer_pending: bool = True,
        **_emulator_only: Any,
    ) -> None:
        self.per_response = events_per_response
        self.id_bytes = replay_id_bytes
        self.answer_tip = commit_answer_tip
        self.pending_in_answers = commit_answer_pending
        self.lock = threading.RLock()
        self.log: list[RawEvent] = []
        self.faults: dict[str, deque[dict[str, Any]]] = {}
        self.committed = -1
        self.stopped = False
        self.calls: list[Call] = []
        self._codec = Codec("schema", SCHEMA)

    # What scenarios call.

    def append(self, count: int) -> None:
        """Publish the next *count* events."""
        with self.lock:
            for number in range(len(self.log), len(self.log) + count):
                payload = self._codec.encode({"Order_Number__c": str(number)})
                self.log.append(RawEvent(f"id-{number}", "schema", payload, self.mint(number)))
            for call in list(self.calls):
                call.pump()

    def plan(self, kind: str, times: int, params: dict[str, Any]) -> None:
        """Plan *times* faults of one kind, each with the parameters *params*."""
        with self.lock:
            self.faults.setdefault(kind, deque()).extend([params] * times)

    def stop_subscription(self) -> None:
        """Stop the managed subscription: end its streams and delete its committed position."""
        with self.lock:
            self.stopped, self.committed = True, -1
            for call in list(self.calls):
                call.end(STOPPED)

    def take_fault(self, kind: str, responses: int = 0) -> bool:
        """Consume the next planned fault of a kind if it is due; return whether it was due."""
        planned = self.faults.get(kind)
        if not planned or responses < planned[0].get("after_responses", 0):
            return False
        planned.popleft()
        return True

    def mint(self, number: int) -> ReplayId:
        """Return the position of event *number*; -1 is the position before all events."""
        scrambled = (number + 2) * 6_364_136_223_846_793_005 % 2**64
        return ReplayId(scrambled.to_bytes(8, "big").ljust(self.id_bytes, b"\x00"))

    @property
    def newest(self) -> ReplayId:
        """The position of the newest event."""
        return self.mint(len(self.log) - 1)

    def number_of(self, replay_id: ReplayId) -> int | None:
        """Return the number of the event at *replay_id*; None if the position is unknown."""
        numbers = range(-1, len(self.log))
        return next((number for number in numbers if self.mint(number) == replay_id), None)

    # The methods of a transport.

    def connect(self, timeout: float) -> None:
        """Return immediately: the service is always reachable."""

    def open_stream(self, target: Target, opening: OpenStream) -> StreamCall:
        with self.lock:
            call = Call(self, target.managed)
            call.begin(opening)
            return call

    def get_topic(self, name: str) -> TopicInfo:
        return TopicInfo(name, "memory", True, True, "schema", "")

    def get_schema(self, schema_id: str) -> SchemaInfo:
        if schema_id != "schema":
            raise SchemaNotFoundError(schema_id)
        return SchemaInfo("schema", SCHEMA)

    def open_publish(self, topic: str, opening: OpenPublish, *, streamed: bool) -> PublishCall:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is no connection."""


class Call(StreamCall):
    """One stream of the service."""

    def __init__(self, service: MemoryService, managed: bool) -> None:
        self._service = service
        self._managed = managed
        self._out: queue.SimpleQueue[Response | Failure | None] = queue.SimpleQueue()
        self._credit = 0
        self._cursor = -1
        self._sent_up_to = -2
        self._responses = 0
        self._waiting: list[CommitAnswer] = []
        self._alive = True

    def begin(self, opening: OpenStream) -> None:
        """Handle the first request of the stream."""
        service = self._service
        service.calls.append(self)
        if service.take_fault("drop_call"):
            return self.end(DOWN)
        if service.take_fault("expire_session"):
            return self.end(EXPIRED)
        if self._managed:
            if service.stopped:
                return self.end(STOPPED)
            if service.take_fault("hold_slot"):
                return self.end(BUSY)
            self._cursor = service.committed
        elif opening.start is not None:
            start = opening.start
            if start.replay_id is not None:
                number = service.number_of(start.replay_id)
                if number is None:
                    return self.end(REJECTED)
                self._cursor = number
            elif start.preset is ReplayPreset.LATEST:
                self._cursor = len(service.log) - 1
        assert 0 < opening.num_requested <= 100
        self._credit = opening.num_requested
        return self.pump()

    def pump(self) -> None:
        """Send unsent events, as many as the client has requested."""
        service = self._service
        while self._alive and self._credit and self._cursor + 1 < len(service.log):
            if self._dropped():
                return
            first = self._cursor + 1
            count = min(service.per_response, self._credit, len(service.log) - first)
            self._cursor = self._sent_up_to = first + count - 1
            self._credit -= count
            self._respond(Response(tuple(service.log[first : first + count]), pending=self._credit))
        self._dropped()

    def _dropped(self) -> bool:
        if self._service.take_fault("drop_stream", self._responses):
            self.end(DOWN)
        return not self._alive

    def _respond(self, response: Response) -> None:
        self._responses += 1
        self._out.put(response)

    def end(self, failure: Failure | None) -> None:
        """End the stream with *failure*, or with OK if it is None."""
        if self._alive:
            self._alive = False
            self._service.calls.remove(self)
            self._out.put(failure)

    def _commit(self, request: SendRequest) -> None:
        assert request.commit is not None
        service, error = self._service, None
        number = service.number_of(request.commit.replay_id)
        assert number is not None, "the service does not know this position"
        if service.take_fault("fail_commit"):
            error = "The commit failed."
        elif number < service.committed:
            error = "older than the committed one"
        elif number > self._sent_up_to and number != service.committed:
            error = "not delivered on this stream"
        else:
            service.committed = number
        if service.take_fault("drop_before_commit_answer"):
            return self.end(DOWN)
        if service.take_fault("leave_commit_unanswered"):
            return None
        answer = CommitAnswer(request.commit.request_id, request.commit.replay_id, error, 1)
        tips = {"none": None, "sent": service.mint(self._cursor), "org": service.newest}
        pending = self._credit if service.pending_in_answers else 0
        return self._respond(
            Response(latest_replay_id=tips[service.answer_tip], pending=pending, commit=answer)
        )

    # What the client calls.

    def receive(self) -> Response | Failure | None:
        return self._out.get()

    def send(self, request: SendRequest) -> None:
        with self._service.lock:
            if not self._alive:
                return
            self._credit += request.num_requested
            assert self._credit <= 100, "more than 100 events were requested"
            if request.commit is not None:
                self._commit(request)
            self.pump()

    def half_close(self) -> None:
        with self._service.lock:
            self.end(None)

    def cancel(self) -> None:
        with self._service.lock:
            self.end(DOWN)
