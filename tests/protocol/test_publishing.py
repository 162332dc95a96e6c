"""Tests of publishing: what is sent, retried and settled, in single steps and in random walks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sfpubsub.config import (
    MAX_PUBLISH_BYTES,
    MAX_PUBLISH_EVENTS,
    PublishLimits,
    Timings,
)
from sfpubsub.errors import (
    EncodeError,
    LocalProtocolError,
    PermissionDeniedError,
    SchemaError,
    SessionExpiredError,
    StreamError,
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
from sfpubsub.protocol.publishing import PublishProtocol
from sfpubsub.types import ProducerEvent, PublishCounts, PublishResult, ReplayId

TOPIC = "/event/Order_Event__e"
DOWN = Failure(FailureKind.RETRY, StreamUnavailableError("down"))
EXPIRED = Failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired"))
DENIED = Failure(FailureKind.STOP, PermissionDeniedError("not you"))
TIMINGS = Timings(backoff_initial=1.0, backoff_max=4.0)
# For the random walks, in which sessions may be rejected for a long time.
PATIENT = replace(TIMINGS, session_budget=math.inf)
BUSY = "PLATFORM_EVENT_PUBLISHING_UNAVAILABLE"

# Seconds after which the service ends a stream that sends no request (PublishStream RPC).
SWEPT_AFTER = 70.0


def event(number: int, size: int = 10, schema_id: str = "A") -> ProducerEvent:
    """Return an event with *size* bytes and an id derived from *number*."""
    return ProducerEvent(schema_id, bytes(size), f"id{number}")


def make(*, timeout=120.0, ordered=False, timings=TIMINGS, **limits) -> PublishProtocol:
    """Return a publisher with the given limits; *ordered* allows one request in flight."""
    limits.setdefault("max_requests", 1 if ordered else 4)
    return PublishProtocol(
        TOPIC, "A", timeout=timeout, limits=PublishLimits(**limits), timings=timings
    )


def proven(**limits) -> PublishProtocol:
    """Return a publisher whose stream has had a response, so that it may send full requests."""
    protocol = make(**limits)
    submit(protocol, 1)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    return protocol


def submit(protocol: PublishProtocol, count: int = 1, now: float = 0.0, **kind) -> list[Command]:
    """Submit *count* events one by one at the time *now*; return the resulting commands."""
    out: list[Command] = []
    first = protocol.counts().accepted + protocol.counts().pending
    for number in range(first, first + count):
        out += protocol.submit([event(number, **kind)], now)[1]
    return out


def ok(*events: ProducerEvent, schema_id: str = "A") -> PublishAnswer:
    """Return a response that accepts *events*; *schema_id* is the topic's current schema."""
    results = (PublishResult(ReplayId(b"r"), each.id) for each in events)
    return PublishAnswer(tuple(results), schema_id)


def refuse(each: ProducerEvent, error="no", *, schema_id="A", retryable=False) -> PublishAnswer:
    """Return a response that rejects one event; *schema_id* is the topic's current schema."""
    return PublishAnswer((PublishResult(None, each.id, error, retryable),), schema_id)


def settled(commands: Iterable[Command]) -> dict[int, PublishResult]:
    """Return all results in *commands* by ticket, the number of the submitted event."""
    return {
        ticket: result
        for command in commands
        if isinstance(command, SettleEvents)
        for ticket, result in command.outcomes
    }


def test_events_are_batched_while_a_request_is_in_flight():
    """The first event is sent at once; events submitted meanwhile share the next request."""
    protocol = make()
    assert submit(protocol, 3) == [OpenPublish(1, (event(0),))]
    out = protocol.response(1, ok(event(0)), 0.1, 0.5)
    assert settled(out)[1].ok
    assert out[1:] == [SendEvents(1, (event(1), event(2)))]


def test_events_submitted_together_share_a_request():
    """Events submitted in one call of `submit` are sent in one request."""
    protocol = make()
    tickets, out = protocol.submit([event(0), event(1)], 0.0)
    assert tickets == [1, 2]
    assert out == [OpenPublish(1, (event(0), event(1)))]


def test_requests_stay_within_the_limits_of_the_service():
    """A request contains at most 200 events and 3 MB.

    A full request is sent without waiting for the response to an earlier one.
    """
    protocol = proven()
    submit(protocol, 1)
    full = submit(protocol, MAX_PUBLISH_EVENTS + 1)
    assert [len(command.events) for command in full] == [MAX_PUBLISH_EVENTS]
    protocol = proven()
    submit(protocol, 1)
    (request,) = submit(protocol, 4, size=900_000)
    assert len(request.events) == 3
    assert sum(len(each.payload) for each in request.events) <= MAX_PUBLISH_BYTES


def test_number_of_requests_in_flight_is_limited():
    """Up to four full requests are in flight, or one if events must stay in order."""
    for ordered, expected in ((False, 4), (True, 1)):
        protocol = proven(ordered=ordered, max_pending_count=10_000)
        sent = submit(protocol, 3000)
        assert len(sent) == expected


def test_new_stream_starts_with_one_request():
    """After a failure, a new stream sends one request, and more only after its response.

    This avoids flooding a service that is down.
    """
    protocol = proven()
    submit(protocol, 1500)
    protocol.ended(1, DOWN, 0.0, 0.0)
    (opening,) = protocol.timer(0.0, 0.5)
    assert len(opening.events) == MAX_PUBLISH_EVENTS
    sent = protocol.response(2, ok(*opening.events), 0.1, 0.5)[1:]
    assert [len(command.events) for command in sent] == [MAX_PUBLISH_EVENTS] * 4


def test_pending_events_and_bytes_are_limited():
    """The publisher has room as long as pending events and bytes are below their limits."""
    protocol = make(max_pending_count=2)
    submit(protocol, 1)
    assert protocol.has_room()
    submit(protocol, 1)
    assert not protocol.has_room()
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    assert protocol.has_room()
    protocol = make(max_pending_bytes=1000)
    submit(protocol, 1, size=1000)
    assert not protocol.has_room()


def test_unanswered_events_are_resent_in_order():
    """After a failure and a delay, unanswered events are sent again before newer ones.

    They keep their ids, and late responses on the old stream are ignored.
    """
    protocol = make()
    submit(protocol, 3)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    submit(protocol, 1)
    assert protocol.ended(1, DOWN, 1.0, 0.5) == []
    assert protocol.deadline() == 1.5
    assert protocol.timer(1.2, 0.5) == []
    assert protocol.timer(1.5, 0.5) == [OpenPublish(2, (event(1), event(2), event(3)))]
    assert protocol.counts().sent_again == 2
    assert protocol.response(1, ok(event(1)), 1.6, 0.5) == []  # of the old stream
    assert protocol.ended(1, DOWN, 1.6, 0.5) == []


def test_results_are_matched_by_correlation_key():
    """Results may arrive in any order; those with unknown keys are reported."""
    protocol = proven()
    submit(protocol, 1)
    submit(protocol, 201)
    found = settled(protocol.response(1, ok(event(7), event(3)), 0.0, 0.5))
    assert sorted(found) == [4, 8]
    commands = protocol.response(1, ok(event(1), ProducerEvent("A", b"", "?")), 0.0, 0.5)
    assert sorted(settled(commands)) == [2]
    assert commands[0] == ReportStrangers((PublishResult(ReplayId(b"r"), "?"),))


def without_keys(*errors: str | None) -> PublishAnswer:
    """Return a response without correlation keys, with an error for each rejected event."""
    return PublishAnswer(tuple(PublishResult(None, "", error) for error in errors), "A")


def test_results_without_a_key_are_matched_by_their_place_in_the_request():
    """A result without a correlation key belongs to the event at the same place of the oldest
    request with as many events; it then has the event's id.
    """
    protocol = proven()
    submit(protocol, 1)  # in a request of its own
    submit(protocol, 2)
    protocol.response(1, ok(event(1)), 0.0, 0.5)  # now these two are sent
    found = settled(protocol.response(1, without_keys(None, "no"), 0.0, 0.5))
    assert [(ticket, each.correlation_key, each.error) for ticket, each in found.items()] == [
        (3, "id2", None),
        (4, "id3", "no"),
    ]
    assert protocol.counts().pending == 0


def test_a_result_with_a_key_shows_the_request_of_those_without():
    """Results with and without a key in one response belong to the same request."""
    protocol = proven()
    submit(protocol, 1)
    submit(protocol, 3)
    protocol.response(1, ok(event(1)), 0.0, 0.5)
    mixed = PublishAnswer((*without_keys(None).results, *ok(event(3), event(4)).results), "A")
    assert list(settled(protocol.response(1, mixed, 0.0, 0.5))) == [3, 4, 5]


@pytest.mark.parametrize("count", [1, 3])
def test_results_without_a_key_that_match_no_request_are_reported(count: int):
    """If no request in flight has as many events, or its event at that place already has a result,
    a result without a key is reported, and the events keep waiting.
    """
    protocol = proven()
    submit(protocol, 1)
    submit(protocol, 2)
    protocol.response(1, ok(event(1)), 0.0, 0.5)
    commands = protocol.response(1, without_keys(*[None] * count), 0.0, 0.5)
    assert commands == [ReportStrangers(without_keys(*[None] * count).results)]
    assert protocol.counts().pending == 2
    protocol.response(1, ok(event(2)), 0.0, 0.5)
    commands = protocol.response(1, without_keys(None, None), 0.0, 0.5)
    assert list(settled(commands)) == [4]
    assert commands[0] == ReportStrangers(without_keys(None).results)


def test_events_with_the_same_id_are_settled_separately():
    """Each of two events with the same id gets its own result."""
    protocol = make()
    protocol.submit([event(0)], 0.0)
    protocol.submit([event(1)], 0.0)
    protocol.submit([event(1)], 0.0)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    found = settled(protocol.response(1, ok(event(1), event(1)), 0.0, 0.5))
    assert sorted(found) == [2, 3]


def test_unanswered_request_cancels_its_stream():
    """If an event has no result 30 s after it was sent, its stream is cancelled.

    The event is then sent again on a new stream.
    """
    protocol = make()
    submit(protocol, 3)
    protocol.response(1, ok(event(0)), 5.0, 0.5)
    protocol.response(1, ok(event(1)), 6.0, 0.5)  # without event 2
    assert protocol.deadline() == 35.0
    assert protocol.timer(35.0, 0.5) == [CancelStream(1)]
    assert protocol.timer(40.0, 0.5) == [OpenPublish(2, (event(2),))]


def test_timed_out_event_says_whether_it_may_be_published():
    """The result of an event that timed out says whether it may have been published.

    A late response does not change it.
    """
    protocol = make(timeout=10.0)
    submit(protocol, 1)
    submit(protocol, 1, now=1.0)
    protocol.ended(1, DOWN, 2.0, 0.0)
    protocol.timer(2.0, 0.0)  # both are in flight now
    submit(protocol, 1, now=2.0)
    assert protocol.deadline() == 10.0
    (first,) = settled(protocol.timer(10.0, 0.5)).values()
    assert "may have been published under this id" in first.error
    assert "the last failure: down" in first.error
    assert first.retryable
    found = settled(protocol.timer(12.0, 0.5))
    assert "never sent" in found[3].error
    # A late answer changes nothing.
    assert not settled(protocol.response(2, ok(event(0), event(1)), 13.0, 0.5))
    assert protocol.counts() == PublishCounts(0, 3, 0, 1, 2)


def test_event_that_expired_in_flight_is_not_resent():
    """An event that timed out in flight is not sent again when its stream fails."""
    protocol = make(timeout=10.0)
    submit(protocol, 1)
    protocol.timer(10.0, 0.5)
    assert protocol.ended(1, EXPIRED, 11.0, 0.5) == []
    assert protocol.deadline() is None


def test_event_that_expired_while_waiting_is_not_sent():
    """An event that times out before it can be sent again is left out of the next request."""
    protocol = make(timeout=10.0)
    submit(protocol, 1)
    protocol.ended(1, DOWN, 9.0, 0.9)
    submit(protocol, 1, now=9.0)
    out = protocol.timer(10.0, 0.5)
    assert list(settled(out)) == [1]
    assert out[1:] == [OpenPublish(2, (event(1),))]


def test_rejected_event_does_not_affect_others():
    """If one event of a request is rejected, only that event fails."""
    protocol = make()
    submit(protocol, 3)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    answer = PublishAnswer(refuse(event(1)).results + ok(event(2)).results, "A")
    found = settled(protocol.response(1, answer, 0.0, 0.5))
    assert [found[2].ok, found[3].ok] == [False, True]
    assert protocol.counts() == PublishCounts(2, 1, 0, 0, 1)


def test_a_refusal_after_a_lost_answer_says_that_the_event_may_be_published():
    """If an event was sent before without an answer, and is then refused, the refusal is only about
    the second time: the result says that the event may have been published.
    """
    protocol = make(ordered=True)
    submit(protocol, 2)
    protocol.ended(1, DOWN, 0.0, 0.5)
    protocol.timer(10.0, 0.5)
    answer = PublishAnswer(refuse(event(0)).results + refuse(event(1)).results, "A")
    found = settled(protocol.response(2, answer, 10.0, 0.5))
    assert found[1].error is not None
    assert found[1].error.startswith("no; ")
    assert "may have been published" in found[1].error
    assert found[2].error == "no"  # which was sent once


def test_an_event_that_cannot_be_reencoded_after_a_lost_answer_may_be_published():
    """The same holds if its second refusal asks for a schema that it does not fit."""
    protocol = make()
    submit(protocol, 1)
    protocol.ended(1, DOWN, 0.0, 0.5)
    protocol.timer(10.0, 0.5)
    protocol.response(2, refuse(event(0), schema_id="B"), 10.0, 0.5)
    found = settled(protocol.reencoded(1, EncodeError("no such field"), 10.0, 0.5))
    assert "may have been published" in str(found[1].error)


def test_temporarily_rejected_event_is_retried():
    """Only an event with a retryable error is sent again; its delay grows with each rejection."""
    protocol = make()
    submit(protocol, 2)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    for begun, due in ((1.0, 1.5), (2.0, 3.0)):
        busy = refuse(event(1), BUSY, retryable=True)
        assert protocol.response(1, busy, begun, 0.5) == []
        assert protocol.deadline() == due
        assert protocol.timer(due, 0.5) == [SendEvents(1, (event(1),))]
    assert settled(protocol.response(1, ok(event(1)), 4.0, 0.5))[2].ok


def test_events_are_reencoded_after_a_schema_change():
    """If a rejection names a new schema, the event is reencoded and sent again in order.

    It keeps its id. If it is rejected again, it fails.
    """
    protocol = make(ordered=True)
    submit(protocol, 3)
    out = protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    # In order: no other event is sent before the one that is being encoded.
    assert out == [UseSchema("B"), Reencode((1,), "B")]
    anew = event(0, schema_id="B")
    assert protocol.reencoded(1, anew, 0.0, 0.5) == [SendEvents(1, (anew, event(1), event(2)))]
    found = settled(protocol.response(1, refuse(anew, schema_id="B"), 0.0, 0.5))
    assert not found[1].ok  # it already had the schema that the service named


def test_unordered_events_do_not_wait_for_reencoding():
    """If order is not required, other events are sent while one is being reencoded."""
    protocol = make()
    submit(protocol, 2)
    out = protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    assert out[-1] == SendEvents(1, (event(1),))


def test_event_that_does_not_fit_the_new_schema_fails():
    """An event that can't be encoded with the new schema fails, and the next one is sent."""
    protocol = make(ordered=True)
    submit(protocol, 2)
    protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    out = protocol.reencoded(1, EncodeError("no such field"), 0.0, 0.5)
    assert settled(out)[1].error == "no such field"
    assert out[1:] == [SendEvents(1, (event(1),))]


def test_schema_is_fetched_again_after_a_temporary_failure():
    """If the new schema can't be fetched, the event is sent again after a delay.

    If it is rejected again, the schema is fetched again.
    """
    protocol = make()
    submit(protocol, 1)
    protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    assert protocol.reencoded(1, SchemaError("down", retryable=True), 1.0, 0.5) == []
    assert protocol.timer(1.5, 0.5) == [SendEvents(1, (event(0),))]
    out = protocol.response(1, refuse(event(0), schema_id="B"), 2.0, 0.5)
    assert out == [Reencode((1,), "B")]


def test_event_that_expired_during_reencoding_stays_settled():
    """An event that timed out while it was being reencoded is not sent."""
    protocol = make(timeout=5.0)
    submit(protocol, 1)
    protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    assert settled(protocol.timer(5.0, 0.5))
    assert protocol.reencoded(1, event(0, schema_id="B"), 6.0, 0.5) == []


def test_idle_stream_is_closed_before_the_service_does():
    """An idle stream is half-closed before the service would end it after 70 s.

    The next event opens a new stream.
    """
    protocol = make()
    submit(protocol, 1)
    protocol.response(1, ok(event(0)), 1.0, 0.5)
    assert protocol.deadline() == TIMINGS.publish_idle < SWEPT_AFTER
    assert protocol.timer(TIMINGS.publish_idle, 0.5) == [HalfClose(1)]
    assert protocol.deadline() is None
    assert protocol.ended(1, None, 51.0, 0.5) == []
    assert submit(protocol, 1, now=60.0) == [OpenPublish(2, (event(1),))]


def test_a_failed_idle_stream_does_not_close_the_publisher():
    """Even a fatal error of an idle stream does not close the publisher.

    The next event opens a new stream.
    """
    protocol = make()
    submit(protocol, 1)
    protocol.response(1, ok(event(0)), 1.0, 0.5)
    assert protocol.ended(1, DENIED, 2.0, 0.5) == []
    assert submit(protocol, 1, now=3.0) == [OpenPublish(2, (event(1),))]


def test_stream_ending_with_ok_is_reopened_for_pending_events():
    """If a stream ends with OK before an event has a result, the event is sent on a new stream."""
    protocol = make()
    submit(protocol, 1)
    assert protocol.ended(1, None, 1.0, 0.0) == []
    assert protocol.timer(1.0, 0.5) == [OpenPublish(2, (event(0),))]


def test_expired_session_is_renewed_and_events_are_resent():
    """Events whose session expires are sent again after it has been renewed."""
    protocol = make()
    submit(protocol, 1)
    assert protocol.ended(1, EXPIRED, 1.0, 0.5) == [RenewSession()]
    assert protocol.timer(1.0, 0.5) == []
    assert protocol.session_renewed(2.0) == [OpenPublish(2, (event(0),))]


def test_sign_in_is_retried_unless_it_fails_for_good():
    """A temporary sign-in failure is retried after a delay.

    A permanent one fails all events and closes the publisher.
    """
    protocol = make()
    submit(protocol, 1)
    protocol.ended(1, EXPIRED, 1.0, 0.5)
    assert protocol.renewal_failed(DOWN, 2.0, 0.5) == []
    assert protocol.timer(2.5, 0.5) == [RenewSession()]
    out = protocol.renewal_failed(DENIED, 3.0, 0.5)
    assert not settled(out)[1].ok
    assert out[-1] == Finish(DENIED.error)
    assert protocol.renewal_failed(DOWN, 4.0, 0.5) == []
    assert protocol.session_renewed(5.0) == []


def test_sign_in_is_not_retried_without_pending_events():
    """If all events time out during a sign-in that then fails, the sign-in is not retried."""
    protocol = make(timeout=5.0)
    submit(protocol, 1)
    protocol.ended(1, EXPIRED, 1.0, 0.5)
    protocol.timer(5.0, 0.5)
    assert protocol.renewal_failed(DOWN, 6.0, 0.5) == []
    assert protocol.deadline() is None
    assert protocol.drain(7.0) == [Finish(None)]


def test_idle_time_does_not_count_as_rejected_sessions():
    """Rejected sessions that are far apart in time do not close the publisher.

    This holds even if the pending event expires before its session is rejected.
    """
    protocol = make(timeout=5.0)
    for begun in (0.0, 2 * TIMINGS.session_budget, 4 * TIMINGS.session_budget):
        submit(protocol, 1, now=begun)
        assert RenewSession() in protocol.ended(protocol.counts().streams, EXPIRED, begun, 0.0)
        protocol.session_renewed(begun)
        (opened,) = protocol.timer(begun, 0.0)
        assert settled(protocol.timer(begun + 5.0, 0.0))
        assert protocol.ended(opened.stream, EXPIRED, begun + 5.0, 0.0) == []
    (opened,) = submit(protocol, 1, now=begun + 6.0)
    assert isinstance(opened, OpenPublish)


def test_fatal_failure_closes_the_publisher():
    """A failure that can't be retried fails every event, and `submit` raises an error.

    Each result says whether its event was sent.
    """
    protocol = make()
    submit(protocol, 3)
    out = protocol.ended(1, DENIED, 1.0, 0.5)
    found = settled(out)
    assert "may have been published" in found[1].error
    assert "never sent" in found[2].error
    assert not any(result.retryable for result in found.values())
    assert out[-1] == Finish(DENIED.error)
    with pytest.raises(LocalProtocolError, match="closed"):
        protocol.submit([event(9)], 2.0)
    assert protocol.abort() == []
    assert protocol.deadline() is None


def test_drain_waits_for_all_results():
    """Draining rejects new events, sends the waiting ones, and finishes after the last result."""
    protocol = make()
    submit(protocol, 2)
    assert protocol.drain(0.0) == []
    with pytest.raises(LocalProtocolError):
        protocol.submit([event(9)], 0.0)
    assert protocol.response(1, ok(event(0)), 1.0, 0.5)[-1] == SendEvents(1, (event(1),))
    out = protocol.response(1, ok(event(1)), 2.0, 0.5)
    assert out[1:] == [HalfClose(1), Finish(None)]


def test_drain_ends_when_the_last_event_times_out():
    """If the last event times out, draining cancels the unanswered stream and finishes."""
    protocol = make(timeout=5.0)
    submit(protocol, 1)
    protocol.drain(0.0)
    assert protocol.timer(5.0, 0.5)[1:] == [CancelStream(1), Finish(None)]


@pytest.mark.parametrize("is_open", [True, False])
def test_abort_and_crash_settle_all_events(is_open):
    """An abort or an internal error settles all events, and cancels an open stream."""
    for end in (
        lambda protocol: protocol.abort(),
        lambda protocol: protocol.crashed(StreamError("bug")),
    ):
        protocol = make()
        submit(protocol, 2)
        if not is_open:
            protocol.ended(1, DOWN, 0.0, 0.5)
        out = end(protocol)
        assert isinstance(out[-1], Finish)
        assert len(settled(out)) == 2
        assert (CancelStream(1) in out) is is_open


class Publishing(RuleBasedStateMachine):
    """A random walk of a publisher, and of a service that responds, rejects events or fails.

    The service may also change the topic's schema. All results are recorded in `told`.
    """

    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        limits = {} if self.ordered else {"max_pending_count": 1000, "max_requests": 2}
        self.protocol = make(ordered=self.ordered, timeout=500.0, timings=PATIENT, **limits)
        self.given: list[str] = []
        self.told: dict[int, PublishResult] = {}
        self.bus: list[str] = []  # ids in the order published
        self.stream = 0
        self.requests: list[tuple[ProducerEvent, ...]] = []
        self.unsent: list[PublishAnswer] = []  # answers of executed requests, in transit
        self.schema = "A"
        self.asked: list[tuple[int, str]] = []
        self.renewing = False
        self.last_request = 0.0
        self.refused: set[str] = set()
        self.passed: set[str] = set()  # rejected temporarily; their order may differ

    def do(self, commands: list[Command]) -> None:
        """Execute commands as a driver does, recording the results."""
        for command in commands:
            if isinstance(command, (OpenPublish, SendEvents)):
                self.take(command)
            elif isinstance(command, SettleEvents):
                for ticket, result in command.outcomes:
                    assert ticket not in self.told, "settled twice"
                    self.told[ticket] = result
            elif isinstance(command, Reencode):
                self.asked += [(ticket, command.schema_id) for ticket in command.tickets]
            elif isinstance(command, RenewSession):
                assert not self.renewing
                self.renewing = True
            elif isinstance(command, HalfClose):
                assert not self.requests
                assert not self.unsent, "closed with an answer in transit"
                self.stream = 0
            elif isinstance(command, CancelStream):
                self.cut()
            else:
                assert isinstance(command, UseSchema), command

    def take(self, command: OpenPublish | SendEvents) -> None:
        """Receive a request; check its size, its order and the number of requests in flight."""
        assert not self.renewing
        if isinstance(command, OpenPublish):
            assert self.stream == 0
            assert not self.requests
        else:
            assert command.stream == self.stream
            assert self.now < self.last_request + SWEPT_AFTER, (
                "the service had ended the idle stream"
            )
        self.stream = command.stream
        self.last_request = self.now
        self.requests.append(command.events)
        assert 0 < len(command.events) <= MAX_PUBLISH_EVENTS
        assert len(self.requests) + len(self.unsent) <= (1 if self.ordered else 2)
        numbers = [int(each.id) for each in command.events]
        assert numbers == sorted(numbers)
        for number in numbers:
            assert number + 1 not in self.told, "resent although it was settled"

    def cut(self) -> None:
        """End the stream, and discard everything in transit."""
        self.stream = 0
        self.requests.clear()
        self.unsent.clear()

    @rule(count=st.integers(1, 30), size=st.sampled_from([1, 100_000, 900_000]))
    def submit_events(self, count: int, size: int) -> None:
        """Submit up to *count* events of *size* bytes each, while there is room."""
        for _ in range(count):
            if not self.protocol.has_room():
                return
            name = str(len(self.given))
            self.given.append(name)
            each = ProducerEvent("A", bytes(size), name)
            tickets, commands = self.protocol.submit([each], self.now)
            assert tickets == [len(self.given)]
            self.do(commands)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def execute_request(self, data: st.DataObject) -> None:
        """Execute the oldest request: publish some of its events, and reject the others."""
        events = self.requests.pop(0)
        results = []
        fates = st.sampled_from(["ok", "ok", "ok", "busy", "bad"])
        for each in events:
            fate = data.draw(fates)
            if each.schema_id != self.schema:
                results.append(PublishResult(None, each.id, "another schema"))
            elif fate == "ok":
                self.bus.append(each.id)
                results.append(PublishResult(ReplayId(b"r"), each.id))
            elif fate == "busy":
                self.passed.add(each.id)
                results.append(PublishResult(None, each.id, BUSY, True))
            else:
                self.refused.add(each.id)
                results.append(PublishResult(None, each.id, "bad"))
        self.unsent.append(PublishAnswer(tuple(data.draw(st.permutations(results))), self.schema))

    @precondition(lambda self: self.unsent)
    @rule(jitter=st.floats(0, 0.99))
    def answer(self, jitter: float) -> None:
        """Deliver the oldest publish response in transit to the client."""
        answer = self.unsent.pop(0)
        self.do(self.protocol.response(self.stream, answer, self.now, jitter))

    @precondition(lambda self: self.stream)
    @rule(failure=st.sampled_from([None, DOWN, EXPIRED]), jitter=st.floats(0, 0.99))
    def fail_stream(self, failure: Failure | None, jitter: float) -> None:
        """End the stream with *failure*, or with OK if it is None."""
        stream = self.stream
        self.cut()
        self.do(self.protocol.ended(stream, failure, self.now, jitter))

    @precondition(lambda self: self.renewing)
    @rule(works=st.booleans(), jitter=st.floats(0, 0.99))
    def finish_renewal(self, works: bool, jitter: float) -> None:
        """Finish a sign-in, successfully if *works*."""
        self.renewing = False
        if works:
            self.do(self.protocol.session_renewed(self.now))
        else:
            self.do(self.protocol.renewal_failed(DOWN, self.now, jitter))

    @precondition(lambda self: not self.ordered)
    @rule()
    def change_schema(self) -> None:
        """Change the topic's schema, so that events encoded with the old one are rejected."""
        self.schema = "B" if self.schema == "A" else "C"

    @precondition(lambda self: self.asked)
    @rule(works=st.booleans())
    def encode(self, works: bool) -> None:
        """Finish a requested reencoding; unless *works*, report that the schema is unavailable."""
        ticket, schema_id = self.asked.pop()
        name = self.given[ticket - 1]
        outcome = (
            ProducerEvent(schema_id, b"anew", name)
            if works
            else StreamUnavailableError("no schema now")
        )
        self.do(self.protocol.reencoded(ticket, outcome, self.now, 0.5))

    @rule(jitter=st.floats(0, 0.99))
    def advance_time(self, jitter: float) -> None:
        """Advance the time to the publisher's deadline and call its timer; fail if it stays due."""
        at = self.protocol.deadline()
        if at is not None:
            self.now = max(self.now, at)
            for _ in range(4):  # a delay may be 0
                self.do(self.protocol.timer(self.now, jitter))
                after = self.protocol.deadline()
                if after is None or after > self.now:
                    return
            raise AssertionError("the timer is due forever")

    @invariant()
    def deadline_exists_while_results_are_missing(self) -> None:
        """As long as any event has no result, the publisher has a deadline."""
        assert self.protocol.deadline() is not None or len(self.told) == len(self.given)

    @invariant()
    def results_match_the_bus(self) -> None:
        """Every event with a successful result was published.

        Until the schema changes, each failed event was rejected or has a retryable result.
        """
        for ticket, result in self.told.items():
            name = self.given[ticket - 1]
            assert result.correlation_key == name
            assert not result.ok or name in self.bus
            assert result.ok or name in self.refused or result.retryable or self.schema != "A"

    @invariant()
    def duplicates_are_counted(self) -> None:
        """Events published more than once are included in `sent_again`."""
        repeats = sum(count - 1 for count in Counter(self.bus).values())
        assert repeats <= self.protocol.counts().sent_again

    @invariant()
    def order_is_preserved(self) -> None:
        """An ordered publisher publishes events that were never rejected in order of submission.

        Repeats of an event that is already published are ignored.
        """
        if self.ordered:
            excused = self.passed | self.refused
            first = [int(name) for name in dict.fromkeys(self.bus) if name not in excused]
            assert first == sorted(first)

    def teardown(self) -> None:
        """Check that, without further failures, every event is settled and draining finishes."""
        self.run_without_failures()
        assert sorted(self.told) == list(range(1, len(self.given) + 1))
        for ticket, result in self.told.items():
            lost = not result.ok and self.given[ticket - 1] in self.bus
            assert not lost or result.retryable or self.given[ticket - 1] in self.refused
        end = self.protocol.drain(self.now)
        assert isinstance(end[-1], Finish)

    def run_without_failures(self) -> None:
        """Execute everything pending, without failures, until every event has a result."""
        for _ in range(10_000):
            if self.renewing:
                self.renewing = False
                self.do(self.protocol.session_renewed(self.now))
            elif self.asked:
                self.encode_all()
            elif self.requests:
                events = self.requests.pop(0)
                results = []
                for each in events:
                    if each.schema_id == self.schema:
                        self.bus.append(each.id)
                        results.append(PublishResult(ReplayId(b"r"), each.id))
                    else:
                        results.append(PublishResult(None, each.id, "another schema"))
                answer = PublishAnswer(tuple(results), self.schema)
                self.do(self.protocol.response(self.stream, answer, self.now, 0.5))
            elif self.unsent:
                answer = self.unsent.pop(0)
                self.do(self.protocol.response(self.stream, answer, self.now, 0.5))
            elif len(self.told) == len(self.given):
                return
            else:
                at = self.protocol.deadline()
                assert at is not None
                self.now = max(self.now, at)
                self.do(self.protocol.timer(self.now, 0.5))
        raise AssertionError("results are still missing after 10,000 steps")

    def encode_all(self) -> None:
        """Encode all waiting events with the new schema."""
        asked, self.asked = self.asked, []
        for ticket, schema_id in asked:
            anew = ProducerEvent(schema_id, b"anew", self.given[ticket - 1])
            self.do(self.protocol.reencoded(ticket, anew, self.now, 0.5))


class InOrder(Publishing):
    """The random walk of `Publishing` with an ordered publisher, which has at most one request in
    flight.
    """

    ordered = True


TestPublishing = Publishing.TestCase
TestInOrder = InOrder.TestCase
TestPublishing.settings = TestInOrder.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None
)
