"""Publishing: what is sent, sent again and settled, under every interleaving of what can happen."""

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
# For the walks, in which sessions may be refused again and again for a long time.
PATIENT = replace(TIMINGS, session_budget=math.inf)
BUSY = "PLATFORM_EVENT_PUBLISHING_UNAVAILABLE"

# Seconds after which the service ends a stream that sends no request (PublishStream RPC).
SWEPT_AFTER = 70.0


def event(number: int, size: int = 10, schema_id: str = "A") -> ProducerEvent:
    return ProducerEvent(schema_id, bytes(size), f"id{number}")


def make(*, timeout=120.0, ordered=False, timings=TIMINGS, **limits) -> PublishProtocol:
    limits.setdefault("max_requests", 1 if ordered else 4)
    return PublishProtocol(
        TOPIC, "A", timeout=timeout, limits=PublishLimits(**limits), timings=timings
    )


def proven(**limits) -> PublishProtocol:
    """A publisher whose stream has answered once."""
    protocol = make(**limits)
    submit(protocol, 1)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    return protocol


def submit(protocol: PublishProtocol, count: int = 1, now: float = 0.0, **kind) -> list[Command]:
    out: list[Command] = []
    first = protocol.counts().accepted + protocol.counts().pending
    for number in range(first, first + count):
        out += protocol.submit([event(number, **kind)], now)[1]
    return out


def ok(*events: ProducerEvent, schema_id: str = "A") -> PublishAnswer:
    results = (PublishResult(ReplayId(b"r"), each.id) for each in events)
    return PublishAnswer(tuple(results), schema_id)


def refuse(each: ProducerEvent, error="no", *, schema_id="A", retryable=False) -> PublishAnswer:
    return PublishAnswer((PublishResult(None, each.id, error, retryable),), schema_id)


def settled(commands: Iterable[Command]) -> dict[int, PublishResult]:
    return {
        ticket: result
        for command in commands
        if isinstance(command, SettleEvents)
        for ticket, result in command.outcomes
    }


def test_events_come_together_while_a_request_is_in_flight():
    """The first goes at once; those that come meanwhile share a request, without a timer."""
    protocol = make()
    assert submit(protocol, 3) == [OpenPublish(1, (event(0),))]
    out = protocol.response(1, ok(event(0)), 0.1, 0.5)
    assert settled(out)[1].ok
    assert out[1:] == [SendEvents(1, (event(1), event(2)))]


def test_events_given_together_go_together():
    """A list is one request, not a first event and then the others."""
    protocol = make()
    tickets, out = protocol.submit([event(0), event(1)], 0.0)
    assert tickets == [1, 2]
    assert out == [OpenPublish(1, (event(0), event(1)))]


def test_a_request_holds_no_more_than_the_service_takes():
    """200 events and 3 MB are the bounds; one that is full need not wait for an answer."""
    protocol = proven()
    submit(protocol, 1)
    full = submit(protocol, MAX_PUBLISH_EVENTS + 1)
    assert [len(command.events) for command in full] == [MAX_PUBLISH_EVENTS]
    protocol = proven()
    submit(protocol, 1)
    (request,) = submit(protocol, 4, size=900_000)
    assert len(request.events) == 3
    assert sum(len(each.payload) for each in request.events) <= MAX_PUBLISH_BYTES


def test_as_many_requests_are_in_flight_as_were_allowed():
    """Full requests follow each other up to the bound, and one by one where order is kept."""
    for ordered, expected in ((False, 4), (True, 1)):
        protocol = proven(ordered=ordered, max_pending_count=10_000)
        sent = submit(protocol, 3000)
        assert len(sent) == expected


def test_a_new_stream_is_tried_with_one_request():
    """A service that is down is not sent all that waits with each attempt."""
    protocol = proven()
    submit(protocol, 1500)
    protocol.ended(1, DOWN, 0.0, 0.0)
    (opening,) = protocol.timer(0.0, 0.5)
    assert len(opening.events) == MAX_PUBLISH_EVENTS
    sent = protocol.response(2, ok(*opening.events), 0.1, 0.5)[1:]
    assert [len(command.events) for command in sent] == [MAX_PUBLISH_EVENTS] * 4


def test_there_is_room_until_the_bounds_are_reached():
    """Events and bytes without a result are bounded; a result makes room."""
    protocol = make(max_pending_count=2)
    submit(protocol, 1)
    assert protocol.has_room
    submit(protocol, 1)
    assert not protocol.has_room
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    assert protocol.has_room
    protocol = make(max_pending_bytes=1000)
    submit(protocol, 1, size=1000)
    assert not protocol.has_room


def test_what_was_not_answered_is_sent_again_in_its_order():
    """After a break the same events go out under the same ids, before newer ones."""
    protocol = make()
    submit(protocol, 3)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    submit(protocol, 1)
    assert protocol.ended(1, DOWN, 1.0, 0.5) == []
    assert protocol.deadline() == 1.5
    assert protocol.timer(1.2, 0.5) == []
    assert protocol.timer(1.5, 0.5) == [OpenPublish(2, (event(1), event(2), event(3)))]
    assert protocol.counts().sent_again == 2
    assert protocol.response(1, ok(event(1)), 1.6, 0.5) == []  # the old stream's: unknown by then
    assert protocol.ended(1, DOWN, 1.6, 0.5) == []


def test_results_find_their_event_by_the_correlation_key():
    """The order of results within an answer and between answers does not matter."""
    protocol = make()
    protocol = proven()
    submit(protocol, 1)
    submit(protocol, 201)
    found = settled(protocol.response(1, ok(event(7), event(3)), 0.0, 0.5))
    assert sorted(found) == [4, 8]
    found = settled(protocol.response(1, ok(event(1), ProducerEvent("A", b"", "?")), 0.0, 0.5))
    assert sorted(found) == [2]


def test_one_id_given_twice_is_settled_twice():
    """Whoever gives an id twice gets two results, though subscribers take the events for one."""
    protocol = make()
    protocol.submit([event(0)], 0.0)
    protocol.submit([event(1)], 0.0)
    protocol.submit([event(1)], 0.0)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    found = settled(protocol.response(1, ok(event(1), event(1)), 0.0, 0.5))
    assert sorted(found) == [2, 3]


def test_a_request_that_is_not_answered_is_given_up_with_its_stream():
    """A silent stream, or one that left an event out, does not hold events for ever."""
    protocol = make()
    submit(protocol, 3)
    protocol.response(1, ok(event(0)), 5.0, 0.5)
    protocol.response(1, ok(event(1)), 6.0, 0.5)  # without event 2
    assert protocol.deadline() == 35.0
    assert protocol.timer(35.0, 0.5) == [CancelStream(1)]
    assert protocol.timer(40.0, 0.5) == [OpenPublish(2, (event(2),))]


def test_an_event_whose_time_is_over_is_given_up_and_says_whether_it_was_sent():
    """The caller learns in time, and whether the event may be on the bus."""
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
    # The answer comes too late to change that.
    assert not settled(protocol.response(2, ok(event(0), event(1)), 13.0, 0.5))
    assert protocol.counts() == PublishCounts(0, 3, 0, 1, 2)


def test_what_expired_in_flight_is_not_sent_again():
    """It is settled: its stream's end is no reason to publish it once more."""
    protocol = make(timeout=10.0)
    submit(protocol, 1)
    protocol.timer(10.0, 0.5)
    assert protocol.ended(1, EXPIRED, 11.0, 0.5) == []
    assert protocol.deadline() is None


def test_what_expired_while_it_waited_is_not_sent():
    """An event that nobody waits for any more takes no place in a request."""
    protocol = make(timeout=10.0)
    submit(protocol, 1)
    protocol.ended(1, DOWN, 9.0, 0.9)
    submit(protocol, 1, now=9.0)
    out = protocol.timer(10.0, 0.5)
    assert list(settled(out)) == [1]
    assert out[1:] == [OpenPublish(2, (event(1),))]


def test_a_refused_event_is_settled_and_the_others_are_not_touched():
    """One bad event is one bad result."""
    protocol = make()
    submit(protocol, 3)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    answer = PublishAnswer(refuse(event(1)).results + ok(event(2)).results, "A")
    found = settled(protocol.response(1, answer, 0.0, 0.5))
    assert [found[2].ok, found[3].ok] == [False, True]
    assert protocol.counts() == PublishCounts(2, 1, 0, 0, 1)


def test_a_passing_refusal_is_tried_again_after_a_while():
    """Only the refused event goes out again, after a growing delay that a success resets."""
    protocol = make()
    submit(protocol, 2)
    protocol.response(1, ok(event(0)), 0.0, 0.5)
    for begun, due in ((1.0, 1.5), (2.0, 3.0)):
        busy = refuse(event(1), BUSY, retryable=True)
        assert protocol.response(1, busy, begun, 0.5) == []
        assert protocol.deadline() == due
        assert protocol.timer(due, 0.5) == [SendEvents(1, (event(1),))]
    assert settled(protocol.response(1, ok(event(1)), 4.0, 0.5))[2].ok


def test_a_changed_schema_has_refused_events_encoded_anew():
    """The id stays; what comes after is encoded by the new schema at once."""
    protocol = make(ordered=True)
    submit(protocol, 3)
    out = protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    # In order: nothing passes the event that is being encoded.
    assert out == [UseSchema("B"), Reencode((1,), "B")]
    anew = event(0, schema_id="B")
    assert protocol.reencoded(1, anew, 0.0, 0.5) == [SendEvents(1, (anew, event(1), event(2)))]
    found = settled(protocol.response(1, refuse(anew, schema_id="B"), 0.0, 0.5))
    assert not found[1].ok  # by the schema that the service named: it does not fit


def test_without_order_others_pass_an_event_that_is_encoded_anew():
    """Nobody waits for one event's schema who did not ask for order."""
    protocol = make()
    submit(protocol, 2)
    out = protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    assert out[-1] == SendEvents(1, (event(1),))


def test_an_event_that_does_not_fit_the_new_schema_is_refused():
    """Its caller learns the field, and the others go on."""
    protocol = make(ordered=True)
    submit(protocol, 2)
    protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    out = protocol.reencoded(1, EncodeError("no such field"), 0.0, 0.5)
    assert settled(out)[1].error == "no such field"
    assert out[1:] == [SendEvents(1, (event(1),))]


def test_a_schema_that_could_not_be_fetched_is_asked_for_again():
    """A passing failure of the look-up costs a delay and no event."""
    protocol = make()
    submit(protocol, 1)
    protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    assert protocol.reencoded(1, SchemaError("down", retryable=True), 1.0, 0.5) == []
    assert protocol.timer(1.5, 0.5) == [SendEvents(1, (event(0),))]
    out = protocol.response(1, refuse(event(0), schema_id="B"), 2.0, 0.5)
    assert out == [Reencode((1,), "B")]


def test_an_event_that_expired_while_it_was_encoded_stays_settled():
    """What comes back too late is for nobody."""
    protocol = make(timeout=5.0)
    submit(protocol, 1)
    protocol.response(1, refuse(event(0), schema_id="B"), 0.0, 0.5)
    assert settled(protocol.timer(5.0, 0.5))
    assert protocol.reencoded(1, event(0, schema_id="B"), 6.0, 0.5) == []


def test_an_idle_stream_is_closed_before_the_service_does():
    """The service ends a stream after 70 s without a request; ours ends before, in order."""
    protocol = make()
    submit(protocol, 1)
    protocol.response(1, ok(event(0)), 1.0, 0.5)
    assert protocol.deadline() == TIMINGS.publish_idle < SWEPT_AFTER
    assert protocol.timer(TIMINGS.publish_idle, 0.5) == [HalfClose(1)]
    assert protocol.deadline() is None
    assert protocol.ended(1, None, 51.0, 0.5) == []
    assert submit(protocol, 1, now=60.0) == [OpenPublish(2, (event(1),))]


def test_the_end_of_an_idle_stream_is_no_failure():
    """A restart of the service while nothing is to be sent concerns nobody."""
    protocol = make()
    submit(protocol, 1)
    protocol.response(1, ok(event(0)), 1.0, 0.5)
    assert protocol.ended(1, DENIED, 2.0, 0.5) == []
    assert submit(protocol, 1, now=3.0) == [OpenPublish(2, (event(1),))]


def test_a_stream_that_ends_well_with_events_in_flight_is_opened_again():
    """OK is no answer to an event."""
    protocol = make()
    submit(protocol, 1)
    assert protocol.ended(1, None, 1.0, 0.0) == []
    assert protocol.timer(1.0, 0.5) == [OpenPublish(2, (event(0),))]


def test_an_expired_session_is_renewed_and_the_events_go_out_again():
    """Nothing is lost by a token that ends."""
    protocol = make()
    submit(protocol, 1)
    assert protocol.ended(1, EXPIRED, 1.0, 0.5) == [RenewSession()]
    assert protocol.timer(1.0, 0.5) == []
    assert protocol.session_renewed(2.0) == [OpenPublish(2, (event(0),))]


def test_a_sign_in_that_fails_in_passing_is_tried_again():
    """The way to the login host may be down for a while; what is final ends the publisher."""
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


def test_a_session_is_not_asked_for_when_nobody_waits():
    """The events of the sign-in have expired meanwhile."""
    protocol = make(timeout=5.0)
    submit(protocol, 1)
    protocol.ended(1, EXPIRED, 1.0, 0.5)
    protocol.timer(5.0, 0.5)
    assert protocol.renewal_failed(DOWN, 6.0, 0.5) == []
    assert protocol.deadline() is None
    assert protocol.drain(7.0) == [Finish(None)]


def test_idle_time_is_no_outage():
    """Refused sessions end a publisher after a time of refusals, not after a pause."""
    protocol = make(timeout=5.0)
    for begun in (0.0, TIMINGS.session_budget + 1):
        submit(protocol, 1, now=begun)
        assert RenewSession() in protocol.ended(protocol.counts().streams, EXPIRED, begun, 0.0)
        protocol.session_renewed(begun)
        assert settled(protocol.timer(begun + 5.0, 0.0))
        protocol.ended(protocol.counts().streams, EXPIRED, begun + 5.0, 0.0)


def test_what_cannot_be_helped_ends_the_publisher():
    """Every event has its result, and none is taken any more."""
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


def test_drain_waits_for_every_result():
    """An orderly end loses nothing, and takes nothing more."""
    protocol = make()
    submit(protocol, 2)
    assert protocol.drain(0.0) == []
    with pytest.raises(LocalProtocolError):
        protocol.submit([event(9)], 0.0)
    assert protocol.response(1, ok(event(0)), 1.0, 0.5)[-1] == SendEvents(1, (event(1),))
    out = protocol.response(1, ok(event(1)), 2.0, 0.5)
    assert out[1:] == [HalfClose(1), Finish(None)]


def test_drain_ends_with_the_last_event_that_expires():
    """Its time bounds the end; a stream with an unanswered request is cancelled."""
    protocol = make(timeout=5.0)
    submit(protocol, 1)
    protocol.drain(0.0)
    assert protocol.timer(5.0, 0.5)[1:] == [CancelStream(1), Finish(None)]


@pytest.mark.parametrize("is_open", [True, False])
def test_abort_and_a_fault_of_ours_settle_everything(is_open):
    """Nobody waits for ever."""
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
    """A service that answers, refuses, goes silent, breaks and changes its schema, in any order.

    Streams are lists of requests that wait to be carried out; what was carried out may be answered
    or not. The application counts what it was told.
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
        self.unsent: list[PublishAnswer] = []  # carried out, and the answer is on its way
        self.schema = "A"
        self.asked: list[tuple[int, str]] = []
        self.renewing = False
        self.last_request = 0.0
        self.refused: set[str] = set()
        self.passed: set[str] = set()  # refused in passing: the order of these may differ

    def do(self, commands: list[Command]) -> None:
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
                assert not self.unsent, "closed with an answer on its way"
                self.stream = 0
            elif isinstance(command, CancelStream):
                self.cut()
            else:
                assert isinstance(command, UseSchema), command

    def take(self, command: OpenPublish | SendEvents) -> None:
        assert not self.renewing
        if isinstance(command, OpenPublish):
            assert self.stream == 0
            assert not self.requests
        else:
            assert command.stream == self.stream
            assert self.now < self.last_request + SWEPT_AFTER, "the service swept the stream"
        self.stream = command.stream
        self.last_request = self.now
        self.requests.append(command.events)
        assert 0 < len(command.events) <= MAX_PUBLISH_EVENTS
        assert len(self.requests) + len(self.unsent) <= (1 if self.ordered else 2)
        numbers = [int(each.id) for each in command.events]
        assert numbers == sorted(numbers)
        for number in numbers:
            assert number + 1 not in self.told, "sent again though it was settled"

    def cut(self) -> None:
        self.stream = 0
        self.requests.clear()
        self.unsent.clear()

    @rule(count=st.integers(1, 30), size=st.sampled_from([1, 100_000, 900_000]))
    def give(self, count: int, size: int) -> None:
        for _ in range(count):
            if not self.protocol.has_room:
                return
            name = str(len(self.given))
            self.given.append(name)
            each = ProducerEvent("A", bytes(size), name)
            tickets, commands = self.protocol.submit([each], self.now)
            assert tickets == [len(self.given)]
            self.do(commands)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def carry_out(self, data: st.DataObject) -> None:
        """Publish the oldest request's events, but for some that are refused."""
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
        answer = self.unsent.pop(0)
        self.do(self.protocol.response(self.stream, answer, self.now, jitter))

    @precondition(lambda self: self.stream)
    @rule(failure=st.sampled_from([None, DOWN, EXPIRED]), jitter=st.floats(0, 0.99))
    def breaks(self, failure: Failure | None, jitter: float) -> None:
        stream = self.stream
        self.cut()
        self.do(self.protocol.ended(stream, failure, self.now, jitter))

    @precondition(lambda self: self.renewing)
    @rule(works=st.booleans(), jitter=st.floats(0, 0.99))
    def renewal(self, works: bool, jitter: float) -> None:
        self.renewing = False
        if works:
            self.do(self.protocol.session_renewed(self.now))
        else:
            self.do(self.protocol.renewal_failed(DOWN, self.now, jitter))

    @precondition(lambda self: not self.ordered)
    @rule()
    def change_schema(self) -> None:
        self.schema = "B" if self.schema == "A" else "C"

    @precondition(lambda self: self.asked)
    @rule(works=st.booleans())
    def encode(self, works: bool) -> None:
        ticket, schema_id = self.asked.pop()
        name = self.given[ticket - 1]
        outcome = (
            ProducerEvent(schema_id, b"anew", name)
            if works
            else StreamUnavailableError("no schema now")
        )
        self.do(self.protocol.reencoded(ticket, outcome, self.now, 0.5))

    @rule(jitter=st.floats(0, 0.99))
    def wait(self, jitter: float) -> None:
        """Let the time come that the protocol asked for; its timer must not spin."""
        at = self.protocol.deadline()
        if at is not None:
            self.now = max(self.now, at)
            for _ in range(4):  # a delay may be 0
                self.do(self.protocol.timer(self.now, jitter))
                after = self.protocol.deadline()
                if after is None or after > self.now:
                    return
            raise AssertionError("the timer spins")

    @invariant()
    def something_will_happen(self) -> None:
        assert self.protocol.deadline() is not None or len(self.told) == len(self.given)

    @invariant()
    def what_was_told_is_true(self) -> None:
        for ticket, result in self.told.items():
            name = self.given[ticket - 1]
            assert result.correlation_key == name
            assert not result.ok or name in self.bus
            assert result.ok or name in self.refused or result.retryable or self.schema != "A"

    @invariant()
    def repeats_are_counted(self) -> None:
        repeats = sum(count - 1 for count in Counter(self.bus).values())
        assert repeats <= self.protocol.counts().sent_again

    @invariant()
    def order_is_kept(self) -> None:
        """Of what was never refused, the first publication of each is in the order given."""
        if self.ordered:
            excused = self.passed | self.refused
            first = [int(name) for name in dict.fromkeys(self.bus) if name not in excused]
            assert first == sorted(first)

    def teardown(self) -> None:
        """From here on the service is well: everything is settled, and nothing is lost."""
        self.do_all_well()
        assert sorted(self.told) == list(range(1, len(self.given) + 1))
        for ticket, result in self.told.items():
            lost = not result.ok and self.given[ticket - 1] in self.bus
            assert not lost or result.retryable or self.given[ticket - 1] in self.refused
        end = self.protocol.drain(self.now)
        assert isinstance(end[-1], Finish)

    def do_all_well(self) -> None:
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
        raise AssertionError("it does not end")

    def encode_all(self) -> None:
        asked, self.asked = self.asked, []
        for ticket, schema_id in asked:
            anew = ProducerEvent(schema_id, b"anew", self.given[ticket - 1])
            self.do(self.protocol.reencoded(ticket, anew, self.now, 0.5))


class InOrder(Publishing):
    ordered = True


TestPublishing = Publishing.TestCase
TestInOrder = InOrder.TestCase
TestPublishing.settings = TestInOrder.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None
)
