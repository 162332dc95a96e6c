"""The driver of a publisher: accepts events and reports their outcomes.

This driver extends `CallDriver`. The protocol decides which events share a request, what is
retried, and when to give up.
"""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from sfpubsub.errors import LocalProtocolError, SfPubSubError
from sfpubsub.protocol.commands import (
    Command,
    OpenPublish,
    Reencode,
    ReportStrangers,
    SendEvents,
    SettleEvents,
    UseSchema,
)
from sfpubsub.protocol.events import PublishAnswer
from sfpubsub.protocol.publishing import PublishProtocol
from sfpubsub.transports.alarm import AlarmClock, Clock
from sfpubsub.transports.base import Call, Headers, Transport
from sfpubsub.transports.calls import CallDriver
from sfpubsub.types import ProducerEvent, PublishCounts, PublishResult

logger = logging.getLogger("sfpubsub.transport")

# Seconds between two looks whether the client was closed, while an event is handed over. That takes
# microseconds, so nearly every call needs none.
_GLANCE = 0.1


class PublishDriver(CallDriver[OpenPublish]):
    """Runs one `PublishProtocol` over a transport. Thread-safe.

    Args:
        protocol: The protocol to run, owned by this object from now on.
        transport: Opens the calls.
        streamed: Whether to use PublishStream instead of Publish.
        reencode: Called with a ticket (the number that the protocol gave to an event) and a schema
            id: re-encodes the event with that schema. It may block, and may raise SfPubSubError.
        use_schema: Called with the id of the topic's new schema; must not block.
        settled: Called with pairs of a ticket and the outcome of its event; must not block.
        alarm: Timer thread, shared by the drivers of a client.
        renew: See `CallDriver`.
        clock: Monotonic clock in seconds, the same as the alarm's.
        jitter: Returns uniform random numbers in [0, 1).
    """

    def __init__(
        self,
        protocol: PublishProtocol,
        transport: Transport,
        *,
        streamed: bool,
        reencode: Callable[[int, str], ProducerEvent],
        use_schema: Callable[[str], None],
        settled: Callable[[Sequence[tuple[int, PublishResult]]], None],
        alarm: AlarmClock,
        renew: Callable[[Headers], None],
        clock: Clock = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(
            protocol,
            protocol.topic,
            f"the publisher for {protocol.topic}",
            alarm=alarm,
            renew=renew,
            clock=clock,
            jitter=jitter,
        )
        self._protocol = protocol
        self._transport = transport
        self._streamed = streamed
        self._reencode = reencode
        self._use_schema = use_schema
        self._settled = settled

    # For the application's threads.

    def offer(
        self,
        events: Sequence[ProducerEvent],
        taken: Callable[[list[int]], None],
        *,
        times: int = 1,
    ) -> bool:
        """Submit *events* and return True; return False if pending events have reached a limit.

        If this is interrupted, the events may be sent nevertheless.

        Args:
            events: Events with their ids.
            taken: Called with the events' tickets, in the same order, before any event is settled.
                It is called in a thread of the client, one call at a time, and must not block.
            times: How many times the limits apply.

        Raises:
            SfPubSubError: The publisher has failed or was closed.
        """
        answer: queue.SimpleQueue[bool | SfPubSubError] = queue.SimpleQueue()

        def submit(now: float) -> list[Command]:
            if not self._protocol.has_room(times):
                answer.put(False)
                return []
            try:
                tickets, commands = self._protocol.submit(events, now)
            except SfPubSubError as error:
                answer.put(error)
                return []
            taken(tickets)
            answer.put(True)
            return commands

        self.raise_failure()
        if self.over:  # nothing changes the protocol any more
            submit(self._clock())
        elif self._alarm.is_current:
            self._apply(submit)
        else:
            self._post(submit)
        while True:
            try:
                found = answer.get(timeout=_GLANCE)
            except queue.Empty:
                if not self._alarm.is_closed:  # it was, if the client was closed in between
                    continue
                self.raise_failure()
                raise LocalProtocolError("the client is closed: create a new one") from None
            if isinstance(found, SfPubSubError):
                raise found
            return found

    @property
    def must_not_wait(self) -> bool:
        """Whether the calling thread is the one that works off what is offered."""
        return self._alarm.is_current

    def drain(self) -> None:
        """Accept no more events, and end once all events are settled."""
        self._post(self._protocol.drain)

    def counts(self) -> PublishCounts:
        """Return the counts so far: of events by outcome, of resends, and of streams."""
        return self._snapshot(self._protocol.counts)

    # Event handling.

    def _open_call(self, opening: OpenPublish) -> Call[Any, Any]:
        return self._transport.open_publish(self._name, opening, streamed=self._streamed)

    def _carry_out(self, command: Command) -> bool:
        if isinstance(command, SendEvents):
            # Without a call, the stream has just ended, and the protocol will be notified.
            if self._call is not None:
                self._call.send(command)
            return True
        return self._steer(command)

    def _tell(self, command: Command) -> None:
        if isinstance(command, SettleEvents):
            self._settled(command.outcomes)
            self._mailbox.wake()
        elif isinstance(command, ReportStrangers):
            logger.warning(
                "%s: %d publish results belong to no event that waits for one; the first: %s",
                self._name,
                len(command.results),
                command.results[0],
            )
        elif isinstance(command, UseSchema):
            self._use_schema(command.schema_id)
        elif isinstance(command, Reencode):
            self._spawn("encode", lambda: self._encode_again(command))

    def _received(self, stream: int, message: PublishAnswer) -> None:
        self._apply(lambda now: self._protocol.response(stream, message, now, self._jitter()))

    def _encode_again(self, command: Reencode) -> None:
        for ticket in command.tickets:
            outcome: ProducerEvent | SfPubSubError
            try:
                outcome = self._reencode(ticket, command.schema_id)
            except SfPubSubError as error:
                outcome = error
            self._encoded(ticket, outcome)

    def _encoded(self, ticket: int, outcome: ProducerEvent | SfPubSubError) -> None:
        self._apply(lambda now: self._protocol.reencoded(ticket, outcome, now, self._jitter()))
