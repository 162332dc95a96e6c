"""Tests of the consumer alone: the steps by which it handles a response, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sfpubsub.avro.codec import Codec
from sfpubsub.client.consumer import (
    Consumer,
    End,
    FetchSchemas,
    HandOut,
    Opened,
    Quarantine,
    Step,
    Store,
    Take,
    WaitUntil,
)
from sfpubsub.config import Timings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    OtherOrgError,
    SchemaNotFoundError,
    SessionExpiredError,
    StreamUnavailableError,
)
from sfpubsub.protocol.commands import Deliver
from sfpubsub.transports.base import Target
from sfpubsub.transports.mailbox import Arrival
from sfpubsub.types import Health, RawEvent, ReplayId

SCHEMA = '{"type": "record", "name": "Tick__e", "fields": [{"name": "n", "type": "int"}]}'
TICK, TOCK = Codec("tick", SCHEMA), Codec("tock", SCHEMA)
BAD = b"\xff\xff\xff\xff\xff\xff"
TIMINGS = Timings(backoff_initial=1.0, backoff_max=8.0, store_interval=10.0)
DOWN = StreamUnavailableError("GetSchema: down", retryable=True)


def position(seq: int) -> ReplayId:
    """Return the replay id of event number *seq*."""
    return ReplayId(b"r%d" % seq)


def arrival(first_seq: int, *payloads: bytes, schema_id: str = "tick") -> Arrival:
    """Return a received response whose events are numbered from *first_seq*."""
    events = tuple(
        RawEvent(f"id{first_seq + place}", schema_id, payload, position(first_seq + place))
        for place, payload in enumerate(payloads)
    )
    return Arrival(Deliver(events, first_seq, "rpc", sum(map(len, payloads))), 1700000000.0)


class ConsumerHarness:
    """A consumer and the queue in front of it, driven step by step by a test."""

    def __init__(self, policy: Any = "fail", known: Sequence[Codec] = (TICK,), auto: bool = True):
        self.known = {codec.schema_id: codec for codec in known}
        self.acked: list[tuple[int, int]] = []
        self.queue: list[Arrival] = []
        self.over = self.discarded = False
        self.consumer = Consumer(
            Target("/event/Tick__e", False),
            on_undecodable=policy,
            auto_ack=auto,
            peek=self.known.get,
            ack=lambda first, last: self.acked.append((first, last)),
            timings=TIMINGS,
        )

    def step(self, now: float = 0.0) -> Step:
        """Return the consumer's next step at the time *now*, in seconds."""
        if self.consumer.hand.given is not None:  # the application asks for the next batch
            self.consumer.asked()
        head = self.queue[0] if self.queue else None
        return self.consumer.next(now, head, over=self.over, discarded=self.discarded)

    def take(self, now: float = 0.0) -> Take:
        """Carry out the next step, which must take a response off the queue."""
        step = self.step(now)
        assert isinstance(step, Take), step
        assert self.queue.pop(0) is step.arrival
        return step

    def hand_out(self, now: float = 0.0) -> list[int]:
        """Return the ``delivery_seq`` of the events that are handed out next."""
        step = self.step(now)
        assert isinstance(step, HandOut), step
        if step.arrival is not None:
            assert self.queue.pop(0) is step.arrival
        self.consumer.hand.given = step.batch
        return [event.delivery_seq for event in step.batch]


def health(**facts: Any) -> Health:
    """Return the health of a stream whose counters are zero unless *facts* says otherwise."""
    plain = dict.fromkeys(
        ("outstanding", "pending_count", "pending_bytes", "unacked", "delivered"), 0
    )
    return Health(
        **{
            "state": "streaming",
            "reason": None,
            "redelivered": 0,
            "reconnects": 0,
            "last_position": None,
            "committed": None,
            **plain,
            **facts,
        }
    )


# Handing out.


def test_responses_are_handed_out_in_order_of_arrival():
    """Each response is handed out as one batch; once the queue is empty, the consumer waits."""
    harness = ConsumerHarness()
    harness.queue = [arrival(1, b"\x02", b"\x04"), arrival(3, b"\x06")]
    assert harness.hand_out() == [1, 2]
    assert harness.hand_out() == [3]
    assert harness.queue == []
    assert harness.step() == WaitUntil(None)


def test_ctrl_c_before_a_take_neither_loses_nor_repeats_an_event():
    """If Ctrl-C comes before a response leaves the queue, the consumer repeats its step."""
    harness = ConsumerHarness("skip")
    harness.queue = [arrival(1, b"\x02", BAD)]
    first = harness.step()
    assert isinstance(first, Take)
    assert harness.step() == first
    assert harness.take().acks == (2,)
    assert harness.hand_out() == [1]
    assert harness.step() == WaitUntil(None)


@pytest.mark.parametrize("popped", [False, True])
def test_ctrl_c_before_a_batch_is_handed_out_neither_loses_nor_repeats_it(popped: bool):
    """If Ctrl-C comes just before or after a response leaves the queue, each batch is still handed
    out exactly once.
    """
    harness = ConsumerHarness()
    harness.queue = [arrival(1, b"\x02"), arrival(2, b"\x04")]
    first = harness.step()
    assert isinstance(first, HandOut)
    assert first.arrival is harness.queue[0]
    if popped:
        harness.queue.pop(0)
    harness.consumer.asked()
    assert harness.consumer.in_hand is None
    assert harness.hand_out() == [1]
    assert harness.hand_out() == [2]
    assert harness.step() == WaitUntil(None)


def test_last_batch_is_in_hand_until_the_next_request():
    """With ack="auto", the events in hand are acked when the application asks for more."""
    harness = ConsumerHarness()
    harness.queue = [arrival(5, b"\x02", b"\x04")]
    harness.consumer.asked()
    assert harness.consumer.in_hand is None
    harness.hand_out()
    assert harness.consumer.in_hand == (5, 6)
    harness.consumer.asked()
    assert harness.consumer.in_hand is None


def test_a_batch_in_hand_may_be_dropped_before_the_next_request():
    """If a drain discards everything while a batch is in hand, the next request finds no other."""
    harness = ConsumerHarness()
    harness.queue = [arrival(5, b"\x02")]
    assert harness.hand_out() == [5]
    assert harness.consumer.next(0.0, None, over=False, discarded=True) == WaitUntil(None)
    harness.consumer.asked()
    assert harness.consumer.in_hand is None
    harness.over = harness.discarded = True
    assert harness.step() == End()


def test_only_one_event_is_in_hand_when_iterating_over_events():
    """When events are iterated over one by one, only the current one is in hand.

    The rest of its batch is not acked with it, but handed out next.
    """
    harness = ConsumerHarness()
    harness.queue = [arrival(5, b"\x02", b"\x04", b"\x06")]
    step = harness.step()
    assert isinstance(step, HandOut)
    harness.queue.clear()
    harness.consumer.hand.given = opened = Opened(step.batch)
    assert harness.consumer.in_hand is None
    opened.last = 5
    assert harness.consumer.in_hand == (5, 5)
    harness.consumer.asked()
    assert harness.hand_out() == [6, 7]
    assert harness.step() == WaitUntil(None)


def test_pause_holds_back_ready_and_queued_events():
    """A paused consumer hands out neither a prepared batch nor a response from the queue."""
    harness = ConsumerHarness("skip")
    harness.queue = [arrival(1, b"\x02", BAD), arrival(3, b"\x04")]
    harness.take()
    harness.consumer.pause(True)
    assert harness.step() == WaitUntil(None)
    harness.consumer.pause(False)
    assert harness.hand_out() == [1]
    harness.consumer.pause(True)
    assert harness.step() == WaitUntil(None)


def test_a_pause_does_not_hide_the_end():
    """After the stream has ended, a paused consumer hands out what was received, and then ends."""
    harness = ConsumerHarness()
    harness.queue = [arrival(1, b"\x02")]
    harness.consumer.pause(True)
    harness.over = True
    assert harness.hand_out() == [1]
    assert harness.step() == End()


def test_received_events_are_handed_out_before_the_end():
    """After a failure, a plain subscription hands out the events in its queue before it ends."""
    harness = ConsumerHarness()
    harness.queue, harness.over = [arrival(1, b"\x02")], True
    harness.hand_out()
    assert harness.step() == End()


def test_discarded_events_are_not_handed_out():
    """Events discarded by a drain, an abort or a failure are dropped for good."""
    harness = ConsumerHarness("skip")
    harness.queue = [arrival(1, b"\x02", BAD, b"\x04")]
    harness.take()
    assert harness.hand_out() == [1]
    harness.discarded = True
    assert harness.step() == WaitUntil(None)  # waits for the outcome
    harness.over = True
    assert harness.step() == End()
    harness.discarded = False  # cannot happen; dropped events stay dropped
    assert harness.step() == End()


# Schemas.


def test_a_response_waits_for_its_schemas():
    """A response is handed out only after its unknown schemas have been fetched.

    An interrupted fetch is repeated.
    """
    harness = ConsumerHarness()
    harness.queue = [arrival(1, b"\x02", schema_id="tock")]
    assert harness.step() == FetchSchemas(("tock",))
    assert harness.step() == FetchSchemas(("tock",))  # interrupted
    harness.consumer.found({"tock": TOCK})
    assert harness.hand_out() == [1]


def test_schema_fetched_by_another_subscription_is_used():
    """A consumer stops waiting for a schema once another subscription has put it in the cache."""
    harness = ConsumerHarness(known=())
    harness.queue = [arrival(1, b"\x02")]
    assert harness.step() == FetchSchemas(("tick",))
    harness.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    harness.known["tick"] = TICK
    harness.hand_out()
    assert harness.consumer.health(health(), 0, discarded=False).state == "streaming"


def test_schema_fetch_backs_off_however_often_the_consumer_is_polled():
    """Polling every 0.125 s does not make failed fetches more frequent."""
    harness = ConsumerHarness(known=())
    harness.queue = [arrival(1, b"\x02")]
    fetches, now = [], 0.0
    while now < 20.0:
        step = harness.step(now)
        if isinstance(step, FetchSchemas):
            fetches.append(now)
            harness.consumer.not_found(DOWN, now, 0.5, over=False)
        else:
            assert isinstance(step, WaitUntil)
        now += 0.125
    assert fetches == [0.0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5]


def test_fetched_schema_resets_the_backoff():
    """After a successful fetch, the next failed one is retried after the initial delay."""
    harness = ConsumerHarness(known=())
    harness.queue = [arrival(1, b"\x02"), arrival(2, b"\x02", schema_id="tock")]
    assert harness.step() == FetchSchemas(("tick",))
    for _ in range(2):
        harness.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    assert harness.step(3.0) == FetchSchemas(("tick",))
    harness.consumer.found({"tick": TICK})
    harness.hand_out(3.0)
    assert harness.step(3.0) == FetchSchemas(("tock",))
    harness.consumer.not_found(DOWN, 3.0, 0.5, over=False)
    assert harness.step(3.0) == WaitUntil(3.5)


def test_health_reports_the_wait_for_a_schema():
    """A subscription that waits for a schema is unhealthy even though its stream is up.

    If the stream is down, its reason takes precedence.
    """
    harness = ConsumerHarness(known=())
    harness.queue = [arrival(1, b"\x02")]
    harness.step()
    harness.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    told = harness.consumer.health(health(), 0, discarded=False)
    assert told.state == "waiting_for_schema"
    assert told.reason is not None
    assert "GetSchema: down" in told.reason
    assert not told.can_receive
    # A stream that is down takes precedence.
    assert (
        harness.consumer.health(health(state="waiting", reason="down"), 0, discarded=False).reason
        == "down"
    )


def test_permanent_schema_error_is_raised():
    """A schema error that no retry can fix is raised, unless the subscription is already over."""
    harness = ConsumerHarness(known=())
    error = SchemaNotFoundError("schema tick: not there", error_code="schema.not.found")
    with pytest.raises(SchemaNotFoundError):
        harness.consumer.not_found(error, 0.0, 0.5, over=False)
    harness.consumer.not_found(error, 0.0, 0.5, over=True)
    harness.queue, harness.over = [arrival(1, b"\x02")], True
    assert harness.step(0.1) == End()


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("a page in HTML instead of a token"),
        SessionExpiredError("a new session was refused", retryable=True),
        SchemaNotFoundError("a status without an error code"),
    ],
)
def test_doubtful_schema_error_is_raised_only_after_the_session_budget(error):
    """A failure of which neither the service nor the login host named the cause is retried like
    that of a stream, for `session_budget`; a success starts the budget anew.
    """
    harness = ConsumerHarness(known=())
    harness.queue = [arrival(1, b"\x02"), arrival(2, b"\x02", schema_id="tock")]
    budget = Timings().session_budget
    harness.step()
    harness.consumer.not_found(error, 0.0, 0.5, over=False)
    harness.consumer.not_found(error, budget - 1, 0.5, over=False)
    harness.known["tick"] = TICK
    harness.hand_out(budget)
    assert harness.step(budget) == FetchSchemas(("tock",))
    harness.consumer.not_found(error, budget, 0.5, over=False)
    with pytest.raises(type(error)):
        harness.consumer.not_found(error, 2 * budget, 0.5, over=False)


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("refused", error_code="invalid_grant"),
        SessionExpiredError("there are no credentials to get a new session"),
        OtherOrgError("another org"),
    ],
)
def test_refused_sign_in_for_a_schema_is_raised_at_once(error):
    """If the login host refused with a code, or no other session can be had, waiting is useless."""
    harness = ConsumerHarness(known=())
    harness.queue = [arrival(1, b"\x02")]
    harness.step()
    with pytest.raises(type(error)):
        harness.consumer.not_found(error, 0.0, 0.5, over=False)


# Undecodable events.


def test_undecodable_events_are_quarantined_before_anything_is_acked():
    """Undecodable events are quarantined before any event of their response is acked or handed out.

    An interrupted quarantine is repeated as a whole.
    """
    harness = ConsumerHarness("quarantine")
    harness.queue = [arrival(1, b"\x02", BAD, b"\x04", BAD)]
    step = harness.step()
    assert isinstance(step, Quarantine)
    assert [event.raw.id for event in step.events] == ["id2", "id4"]
    assert harness.step() == step
    harness.consumer.set_aside()
    assert harness.take().acks == (2, 4)
    assert harness.hand_out() == [1]
    assert harness.hand_out() == [3]
    assert harness.consumer.health(health(), 0, discarded=False).quarantined == 2
    assert harness.step() == WaitUntil(None)


def test_each_response_is_quarantined_separately():
    """Quarantining the events of one response does not exempt those of the next."""
    harness = ConsumerHarness("quarantine")
    harness.queue = [arrival(1, BAD), arrival(2, BAD)]
    for seq in (1, 2):
        assert isinstance(harness.step(), Quarantine)
        harness.consumer.set_aside()
        assert harness.take().acks == (seq,)
    assert harness.step() == WaitUntil(None)


def test_skipped_events_are_acked_and_counted():
    """The policy "skip" acks an undecodable event without storing it, and health counts it."""
    harness = ConsumerHarness("skip")
    harness.queue = [arrival(1, BAD, b"\x04")]
    assert harness.take().acks == (1,)
    assert harness.hand_out() == [2]
    told = harness.consumer.health(health(), 3, discarded=False)
    assert (told.skipped, told.quarantined) == (1, 0)
    assert told.details["schema_id_mismatches"] == 3


def test_ready_events_count_as_pending():
    """`pending_count` includes events that are prepared but not handed out, unless discarded."""
    harness = ConsumerHarness("skip")
    harness.queue = [arrival(1, b"\x02", BAD, b"\x04", b"\x06")]
    harness.take()
    assert harness.consumer.health(health(pending_count=7), 0, discarded=False).pending_count == 10
    assert harness.consumer.health(health(), 0, discarded=True).pending_count == 0
    harness.hand_out()
    assert harness.consumer.health(health(), 0, discarded=False).pending_count == 2


def test_invalid_subscribe_options_are_rejected():
    """An unknown policy or ack mode, or "quarantine" without a quarantine, raises an error."""
    from sfpubsub.client.options import SubscribeOptions

    with pytest.raises(ConfigurationError, match="'fail', 'quarantine' or 'skip'"):
        SubscribeOptions(on_undecodable="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be used together"):
        SubscribeOptions(on_undecodable="quarantine")
    with pytest.raises(ConfigurationError, match="'auto' or 'manual'"):
        SubscribeOptions(ack="bad")  # type: ignore[arg-type]


# Positions.


def stored(harness: ConsumerHarness, now: float, **options: Any) -> ReplayId | None:
    """Store the position that is due, if there is one, and return it."""
    found = harness.consumer.to_store(now, **options)
    if found is not None:
        harness.consumer.stored(found, now)
    return found


def test_positions_are_stored_at_most_once_per_interval():
    """The first acked position is stored immediately; later ones wait for the store interval."""
    harness = ConsumerHarness(auto=False)
    consumer = harness.consumer
    consumer.storable(position(1))
    assert consumer.is_store_due(100.0)
    assert harness.step(100.0) == Store()
    assert stored(harness, 100.0) == position(1)
    for seq in range(2, 50):
        consumer.storable(position(seq))
        assert not consumer.is_store_due(100.0 + seq / 10)
        assert stored(harness, 100.0 + seq / 10) is None
    assert harness.step(105.0) == WaitUntil(110.0)
    assert harness.step(110.0) == Store()
    assert stored(harness, 110.0) == position(49)
    assert harness.step(110.0) == WaitUntil(None)


def test_acked_position_is_stored_before_the_consumer_waits():
    """An acked position is stored at once if the consumer has no events and is about to wait.

    Otherwise, the position waits for the store interval.
    """
    harness = ConsumerHarness()
    harness.consumer.storable(position(1))
    stored(harness, 0.0)
    harness.queue = [arrival(2, b"\x02")]
    harness.consumer.asked()
    harness.consumer.storable(position(2))
    assert harness.hand_out(0.1) == [2]  # there is work, so the position may wait
    assert stored(harness, 0.2) is None
    harness.consumer.asked()
    assert harness.step(0.3) == Store()
    assert stored(harness, 0.3) == position(2)
    assert harness.step(0.3) == WaitUntil(None)
    harness.consumer.storable(position(3))  # acked by a worker while this one waits
    assert harness.step(0.4) == WaitUntil(10.3)


def test_position_stays_due_until_it_is_stored():
    """A position stays due until it has been stored or replaced by a newer one."""
    harness = ConsumerHarness()
    harness.consumer.storable(position(1))
    assert harness.consumer.to_store(0.0) == position(1)
    harness.consumer.storable(None)  # no new position
    assert harness.consumer.to_store(0.0) == position(1)
    harness.consumer.storable(position(2))
    harness.consumer.stored(position(1), 0.0)  # a late write of an older position
    assert harness.consumer.to_store(0.0, last=True) == position(2)


def test_the_last_position_is_stored_before_the_end():
    """Before the end, a position is stored even if the store interval has not passed."""
    harness = ConsumerHarness()
    harness.consumer.storable(position(1))
    stored(harness, 0.0)
    harness.consumer.storable(position(2))
    harness.over = True
    assert harness.step(0.1) == Store()
    assert stored(harness, 0.1) == position(2)
    assert harness.step(0.1) == End()


def test_the_newest_position_is_needed_only_where_it_may_be_stored():
    """While there is something to hand out, the position matters once per interval; without, it
    matters at once.
    """
    harness = ConsumerHarness()
    consumer, queued = harness.consumer, arrival(1, b"\x02", b"\x04")
    assert consumer.needs_position(0.0, queued)  # nothing was stored yet
    consumer.storable(position(1))
    consumer.stored(position(1), 0.0)
    assert not consumer.needs_position(9.9, queued)
    assert consumer.needs_position(9.9, None)
    assert consumer.needs_position(10.0, queued)
    harness.queue.append(queued)
    harness.hand_out()
    consumer.hand.given = Opened(queued_batch := consumer.hand.given)
    consumer.hand.given.last = queued_batch.first_seq
    consumer.asked()  # the second event of the batch comes next
    assert not consumer.needs_position(9.9, None)
