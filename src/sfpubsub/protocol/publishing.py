"""The publishing protocol: what to send, which result belongs to which event, and what to retry.

Events wait in submission order. Each request is filled with waiting events up to its size limits.
While a request is in flight, another one is sent only if it is full, so that events are batched
without an added delay. With at most one request in flight, the order of events is preserved.

An event stays pending until it has a result. If its stream ends or no response arrives, the event
is resent with the same id. After its timeout it fails, and its result states whether it may
have been published. The service ends a stream after 70 s without a request, so an idle stream is
closed before that; the next event opens a new one.

Unary calls work the same way with one request per call; only the transport differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sfpubsub.backoff import Backoff
from sfpubsub.config import PublishLimits, Timings
from sfpubsub.errors import (
    LocalProtocolError,
    SfPubSubError,
    StreamStalledError,
    StreamUnavailableError,
)
from sfpubsub.protocol.commands import (
    CancelStream,
    Command,
    Finish,
    HalfClose,
    OpenPublish,
    Reencode,
    RenewSession,
    ReportStrangers,
    SendEvents,
    SettleEvents,
    UseSchema,
)
from sfpubsub.protocol.events import Failure, FailureKind, PublishAnswer
from sfpubsub.protocol.retries import Retries, Verdict
from sfpubsub.protocol.states import Signal
from sfpubsub.protocol.unanswered import Entry, Unanswered
from sfpubsub.types import ProducerEvent, PublishCounts, PublishResult


class PublishProtocol:
    """A publisher for one topic. Not thread-safe; the driver serialises all calls.

    Args:
        topic: Full path of the topic.
        schema_id: Id of the schema with which events are initially encoded.
        timeout: Seconds that an event may take from `submit` to its result.
        limits: Limits of the publisher.
        timings: Intervals, delays and timeouts; see `Timings`.
    """

    def __init__(
        self,
        topic: str,
        schema_id: str,
        *,
        timeout: float,
        limits: PublishLimits,
        timings: Timings,
    ) -> None:
        self.topic = topic
        self._schema_id = schema_id
        self._timeout = timeout
        self._limits = limits
        self._timings = timings
        self._events = Unanswered()
        self._retries = Retries(topic, timings, None)
        self._pause = Backoff(timings.backoff_initial, timings.backoff_max)
        self._stream = 0  # number of the newest stream
        self._open = False
        self._proven = False  # whether the current stream has answered a request
        self._sent_at = 0.0
        self._wait_until: float | None = None  # nothing is sent before this time
        self._renewing = False  # a session is being fetched
        self._must_renew = False  # whether to fetch a session after `_wait_until`
        self._draining = False
        self._over = False
        self._accepted = self._failed = self._sent_again = 0

    # Inputs from the application.

    def has_room(self, times: int = 1) -> bool:
        """Return whether the pending events are below *times* the limits, so more can be added."""
        limits = self._limits
        few = len(self._events) < limits.max_pending_count * times
        return few and self._events.size < limits.max_pending_bytes * times

    def submit(
        self, events: Sequence[ProducerEvent], now: float
    ) -> tuple[list[int], list[Command]]:
        """Add events; return their tickets and the resulting commands.

        Raises:
            LocalProtocolError: The publisher is closed.
        """
        if self._draining or self._over:
            raise LocalProtocolError(f"the publisher for {self.topic} is closed: open a new one")
        expires_at = now + self._timeout
        return [self._events.add(event, expires_at) for event in events], self._send(now)

    def drain(self, now: float) -> list[Command]:
        """Reject new events, and end once all pending events have results."""
        self._draining = True
        return self._send(now)

    def abort(self) -> list[Command]:
        """End immediately; pending events fail."""
        closed = SfPubSubError("the publisher was closed before a result arrived", retryable=True)
        return self._finish(None, closed)

    def crashed(self, error: SfPubSubError) -> list[Command]:
        """End with an internal error; pending events fail."""
        return self._finish(error, error)

    def reencoded(
        self, ticket: int, outcome: ProducerEvent | SfPubSubError, now: float, jitter: float
    ) -> list[Command]:
        """Queue a re-encoded event, or handle the error if it could not be re-encoded.

        If the error is retryable, the event is resent unchanged after a delay. Any other error
        becomes the event's result.
        """
        entry = self._events.recoded(ticket)
        if entry is None:
            return []
        if isinstance(outcome, ProducerEvent):
            self._events.replace(entry, outcome)
        elif outcome.retryable:
            # Resend it unchanged; if it is rejected again, it is re-encoded.
            self._events.put_back_unchanged(entry)
            self._wait_until = now + self._pause.next(jitter)
        else:
            refused = PublishResult(None, entry.event.id, str(outcome))
            return [self._settle([(entry, refused)]), *self._send(now)]
        return self._send(now)

    # Inputs from the stream.

    def response(
        self, stream: int, answer: PublishAnswer, now: float, jitter: float
    ) -> list[Command]:
        """Handle a publish response: settle, resend or re-encode each event that it answers."""
        if stream != self._stream or not self._open:
            return []
        self._retries.responded()
        self._proven = True
        settled: list[tuple[Entry, PublishResult]] = []
        others: list[int] = []
        passing = False
        matched, strangers = self._events.answered(answer.results)
        for entry, result in matched:
            if result.ok:
                settled.append((entry, result))
            elif result.retryable:
                passing = True
                self._events.put_back(entry)
            elif answer.schema_id and answer.schema_id not in entry.tried:
                self._events.recode(entry, answer.schema_id)
                others.append(entry.ticket)
            else:
                settled.append((entry, result))
        if passing:
            self._wait_until = now + self._pause.next(jitter)
        else:
            self._pause.reset()
        out: list[Command] = []
        if strangers:
            out.append(ReportStrangers(tuple(strangers)))
        if answer.schema_id not in ("", self._schema_id):
            self._schema_id = answer.schema_id
            out.append(UseSchema(answer.schema_id))
        if settled:
            out.append(self._settle(settled))
        if others:
            out.append(Reencode(tuple(others), answer.schema_id))
        return out + self._send(now)

    def ended(
        self, stream: int, failure: Failure | None, now: float, jitter: float
    ) -> list[Command]:
        """Handle the end of a call: resend its unanswered events on a new call, or give up."""
        if stream != self._stream or not self._open:
            return []
        in_vain = bool(self._events.requests)
        self._dropped()
        if not in_vain and not self._events.waiting:
            # The stream was idle, so ignore the failure: if it persists, the next stream fails too.
            return []
        if failure is None:
            failure = Failure(
                FailureKind.RETRY,
                StreamUnavailableError(f"{self.topic}: the service ended the stream"),
            )
        return self._apply_verdict(self._retries.judge(failure, now, jitter), now)

    def session_renewed(self, now: float) -> list[Command]:
        """Record the session's renewal, and send queued events unless a retry delay is running."""
        self._renewing = False
        self._retries.renewed()
        return self._send(now)

    def renewal_failed(self, failure: Failure, now: float, jitter: float) -> list[Command]:
        """Handle a failure to obtain a new session: retry later, or give up."""
        if not self._renewing:
            return []
        self._renewing = False
        verdict = self._retries.judge(failure, now, jitter)
        self._must_renew = True
        return self._apply_verdict(verdict, now)

    # Inputs from the timer.

    def deadline(self) -> float | None:
        """Return when `timer` must be called; None if nothing will become due.

        Calling `timer` earlier has no effect.
        """
        times = [at for at in (self._wait_until, self._events.expires_at) if at is not None]
        if self._open:
            sent_at = self._events.sent_at
            if sent_at is None:
                times.append(self._sent_at + self._timings.publish_idle)
            else:
                times.append(sent_at + self._timings.publish_answer)
        return min(times, default=None)

    def timer(self, now: float, jitter: float) -> list[Command]:
        """Handle what is due at *now*: event timeouts, retries, overdue responses, idle streams."""
        out: list[Command] = []
        expired = self._events.expired(now)
        if expired:
            late = StreamStalledError(self._too_late())
            out.append(self._settle([(entry, _lost(entry, late)) for entry in expired]))
            if not self._events:
                # Time without pending events does not count as part of an outage.
                self._retries.recovered()
        if self._wait_until is not None and now >= self._wait_until:
            self._wait_until = None
            if self._must_renew:
                self._must_renew, self._renewing = False, True
                out.append(RenewSession())
        sent_at = self._events.sent_at
        if self._open and sent_at is not None and now >= sent_at + self._timings.publish_answer:
            out.append(CancelStream(self._stream))
            self._dropped()
            stalled = StreamStalledError(
                f"{self.topic}: no answer for {self._timings.publish_answer:g} s"
            )
            out += self._apply_verdict(self._retries.stalled(stalled, now, jitter), now)
        elif self._open and sent_at is None and now >= self._sent_at + self._timings.publish_idle:
            self._open = False
            out.append(HalfClose(self._stream))
        return out + self._send(now)

    def _too_late(self) -> str:
        reason = f"; the last failure: {self._retries.reason}" if self._retries.reason else ""
        return f"{self.topic}: no result within {self._timeout:g} s{reason}"

    # Sending and settling.

    def _send(self, now: float) -> list[Command]:
        out: list[Command] = []
        while not self._over and self._may_send:
            events = self._events.send(now)
            self._sent_at = now
            if self._open:
                out.append(SendEvents(self._stream, events))
            else:
                self._stream += 1
                self._open, self._proven = True, False
                out.append(OpenPublish(self._stream, events))
        if self._draining and not self._over and not self._events:
            if self._open and not self._events.requests:
                self._open = False
                out.append(HalfClose(self._stream))
            out += self._finish(None, None)
        return out

    @property
    def _may_send(self) -> bool:
        events = self._events
        if not events.waiting or self._wait_until is not None or self._renewing:
            return False
        if self._limits.max_requests == 1 and events.recoding:
            return False  # re-encoded events must be sent first
        if not events.requests:
            return True
        # Send only one request on a new stream, so that not all waiting events are sent each time
        # while the service is unavailable.
        allowed = self._limits.max_requests if self._proven else 1
        return events.requests < allowed and events.fills_request

    def _dropped(self) -> None:
        self._open = False
        self._events.lost()

    def _apply_verdict(self, verdict: Verdict, now: float) -> list[Command]:
        if verdict.error is not None:
            return self._finish(verdict.error, verdict.error)
        if not self._events:
            # All events in flight have failed, so no new stream is needed, and the idle time that
            # follows does not count as part of this failure.
            self._retries.recovered()
            self._must_renew = False
            return self._send(now)
        self._wait_until = verdict.reopen_at
        if verdict.signal is Signal.EXPIRED:
            self._renewing = True
            return [RenewSession()]
        return []

    def _settle(self, outcomes: Iterable[tuple[Entry, PublishResult]]) -> SettleEvents:
        told: list[tuple[int, PublishResult]] = []
        for entry, result in outcomes:
            self._events.settle(entry)
            self._accepted += result.ok
            self._failed += not result.ok
            self._sent_again += max(0, entry.attempts - 1)
            told.append((entry.ticket, result))
        return SettleEvents(tuple(told))

    def _finish(self, error: SfPubSubError | None, reason: SfPubSubError | None) -> list[Command]:
        if self._over:
            return []
        self._over = True
        self._wait_until = None
        out: list[Command] = []
        if self._open:
            self._open = False
            out.append(CancelStream(self._stream))
        left = self._events.entries()
        if left:
            assert reason is not None  # noqa: S101  # none are left after a graceful end
            out.append(self._settle([(entry, _lost(entry, reason)) for entry in left]))
        return [*out, Finish(error)]

    def counts(self) -> PublishCounts:
        """Return the numbers of events by outcome, of resends and of streams so far."""
        again = sum(max(0, entry.attempts - 1) for entry in self._events.entries())
        return PublishCounts(
            accepted=self._accepted,
            failed=self._failed,
            pending=len(self._events),
            sent_again=self._sent_again + again,
            streams=self._stream,
        )


def _lost(entry: Entry, error: SfPubSubError) -> PublishResult:
    text = str(error)
    if entry.attempts:
        text += "; the event was sent, and may have been published under this id"
    else:
        text += "; the event was never sent"
    return PublishResult(None, entry.event.id, text, error.retryable)
