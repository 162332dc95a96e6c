"""The consumer alone: what it does with a response and in which order, even if interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from sfpubsub.avro.codec import Codec
from sfpubsub.client.consumer import (
    Consumer,
    End,
    FetchSchemas,
    HandOut,
    Quarantine,
    Step,
    Store,
    Take,
    WaitUntil,
)
from sfpubsub.config import Timings
from sfpubsub.errors import ConfigurationError, SchemaNotFoundError, StreamUnavailableError
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


class Desk:
    """A consumer and the queue in front of it; a test carries out each step by hand."""

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
        return [event.delivery_seq for event in step.batch]


def health(**facts: Any) -> Health:
    """Return the health of a stream in which everything is zero except *facts*."""
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
    """Each response becomes one batch and leaves the queue; then the consumer waits."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02", b"\x04"), arrival(3, b"\x06")]
    assert desk.hand_out() == [1, 2]
    assert desk.hand_out() == [3]
    assert desk.queue == []
    assert desk.step() == WaitUntil(None)


def test_interrupted_take_is_repeated_and_hands_out_once():
    """Ctrl-C before the response leaves the queue loses no event and repeats none."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD)]
    first = desk.step()
    assert isinstance(first, Take)
    assert desk.step() == first
    assert desk.take().acks == (2,)
    assert desk.hand_out() == [1]
    assert desk.step() == WaitUntil(None)


@pytest.mark.parametrize("popped", [False, True])
def test_interrupted_hand_out_is_repeated_and_pops_its_response_once(
    popped: bool,
):
    """Ctrl-C before or after the response leaves the queue loses no batch and repeats none."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02"), arrival(2, b"\x04")]
    first = desk.step()
    assert isinstance(first, HandOut)
    assert first.arrival is desk.queue[0]
    if popped:
        desk.queue.pop(0)
    desk.consumer.interrupted()
    assert desk.hand_out() == [1]
    assert desk.hand_out() == [2]
    assert desk.step() == WaitUntil(None)


class Interrupted(deque[Any]):
    """A deque whose ``popleft`` raises KeyboardInterrupt, before or after it removes the item."""

    def __init__(self, items: Sequence[Any], removed: bool) -> None:
        super().__init__(items)
        self._removed = removed

    def popleft(self) -> Any:
        if self._removed:
            super().popleft()
        raise KeyboardInterrupt


@pytest.mark.parametrize("removed", [False, True])
def test_ctrl_c_while_handing_out_neither_loses_nor_repeats_a_batch(removed: bool):
    """Ctrl-C comes either before a batch is removed from the prepared ones or right after."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02"), arrival(2, b"\x04")]
    desk.step()
    desk.consumer.interrupted()
    prepared = desk.consumer._prepared
    desk.consumer._prepared = prepared._replace(batches=Interrupted(prepared.batches, removed))
    with pytest.raises(KeyboardInterrupt):
        desk.step()
    desk.consumer.interrupted()
    left = deque(desk.consumer._prepared.batches)
    desk.consumer._prepared = prepared._replace(batches=left)
    assert desk.hand_out() == [1]
    assert desk.hand_out() == [2]


def test_last_batch_is_in_hand_until_more_is_asked_for():
    """The events in hand are those that ack="auto" acks when the application asks for more."""
    desk = Desk()
    desk.queue = [arrival(5, b"\x02", b"\x04")]
    desk.consumer.asked()
    assert desk.consumer.in_hand is None
    desk.hand_out()
    assert desk.consumer.in_hand == (5, 6)
    desk.consumer.asked()
    assert desk.consumer.in_hand is None


def test_only_one_event_is_in_hand_when_iterating_over_events():
    """The rest of its batch is not acked with it, and is handed out next."""
    desk = Desk()
    desk.queue = [arrival(5, b"\x02", b"\x04", b"\x06")]
    step = desk.step()
    assert isinstance(step, HandOut)
    desk.queue.clear()
    desk.consumer.took_one(5)
    assert desk.consumer.in_hand == (5, 5)
    desk.consumer.give_back(step.batch.behind(5))
    desk.consumer.asked()
    assert desk.hand_out() == [6, 7]
    desk.consumer.give_back(step.batch.behind(7))
    assert desk.step() == WaitUntil(None)


def test_batch_that_did_not_reach_the_application_is_repeated():
    """A batch whose delivery was interrupted by Ctrl-C is not in hand and is handed out again."""
    desk = Desk()
    desk.queue = [arrival(5, b"\x02")]
    desk.hand_out()
    desk.consumer.interrupted()
    assert desk.consumer.in_hand is None
    assert desk.hand_out() == [5]


def test_pause_holds_back_ready_and_queued_events():
    """A paused consumer hands out neither a prepared batch nor a response from the queue."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD), arrival(3, b"\x04")]
    desk.take()
    desk.consumer.pause(True)
    assert desk.step() == WaitUntil(None)
    desk.consumer.pause(False)
    assert desk.hand_out() == [1]
    desk.consumer.pause(True)
    assert desk.step() == WaitUntil(None)


def test_a_pause_does_not_hide_the_end():
    """After the stream has ended, a paused consumer hands out what was received, and then ends."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02")]
    desk.consumer.pause(True)
    desk.over = True
    assert desk.hand_out() == [1]
    assert desk.step() == End()


def test_end_comes_after_everything_received():
    """A plain subscription that failed hands out its queue before it ends."""
    desk = Desk()
    desk.queue, desk.over = [arrival(1, b"\x02")], True
    desk.hand_out()
    assert desk.step() == End()


def test_discarded_events_are_not_handed_out():
    """Events discarded by a drain, an abort or a failure are dropped for good."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD, b"\x04")]
    desk.take()
    assert desk.hand_out() == [1]
    desk.discarded = True
    assert desk.step() == WaitUntil(None)  # waits for the outcome
    desk.over = True
    assert desk.step() == End()
    desk.discarded = False  # cannot happen; dropped events stay dropped
    assert desk.step() == End()


# Schemas.


def test_a_response_waits_for_its_schemas():
    """The consumer asks for unknown schemas, also after an interruption, before it hands out."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02", schema_id="tock")]
    assert desk.step() == FetchSchemas(("tock",))
    assert desk.step() == FetchSchemas(("tock",))  # interrupted
    desk.consumer.found({"tock": TOCK})
    assert desk.hand_out() == [1]


def test_schema_fetched_by_another_subscription_is_used():
    """The schema cache belongs to the client, so another subscription may fill it first."""
    desk = Desk(known=())
    desk.queue = [arrival(1, b"\x02")]
    assert desk.step() == FetchSchemas(("tick",))
    desk.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    desk.known["tick"] = TICK
    desk.hand_out()
    assert desk.consumer.health(health(), 0, discarded=False).state == "streaming"


def test_schema_fetch_backs_off_however_often_the_consumer_is_polled():
    """Polling every 0.125 s does not become a load on a service that is down."""
    desk = Desk(known=())
    desk.queue = [arrival(1, b"\x02")]
    fetches, now = [], 0.0
    while now < 20.0:
        step = desk.step(now)
        if isinstance(step, FetchSchemas):
            fetches.append(now)
            desk.consumer.not_found(DOWN, now, 0.5, over=False)
        else:
            assert isinstance(step, WaitUntil)
        now += 0.125
    assert fetches == [0.0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5]


def test_found_schema_resets_the_backoff():
    """After a success, the next failed fetch is repeated after a short delay again."""
    desk = Desk(known=())
    desk.queue = [arrival(1, b"\x02"), arrival(2, b"\x02", schema_id="tock")]
    assert desk.step() == FetchSchemas(("tick",))
    for _ in range(2):
        desk.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    assert desk.step(3.0) == FetchSchemas(("tick",))
    desk.consumer.found({"tick": TICK})
    desk.hand_out(3.0)
    assert desk.step(3.0) == FetchSchemas(("tock",))
    desk.consumer.not_found(DOWN, 3.0, 0.5, over=False)
    assert desk.step(3.0) == WaitUntil(3.5)


def test_health_reports_the_wait_for_a_schema():
    """A subscription that waits for a schema is not healthy, although its stream is.

    The reason of a stream that is down takes precedence.
    """
    desk = Desk(known=())
    desk.queue = [arrival(1, b"\x02")]
    desk.step()
    desk.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    told = desk.consumer.health(health(), 0, discarded=False)
    assert told.state == "waiting_for_schema"
    assert told.reason is not None
    assert "GetSchema: down" in told.reason
    assert not told.can_receive
    # A stream that is down takes precedence.
    assert (
        desk.consumer.health(health(state="waiting", reason="down"), 0, discarded=False).reason
        == "down"
    )


def test_permanent_schema_error_is_raised():
    """A schema error that no retry can fix is raised, unless the subscription is already over."""
    desk = Desk(known=())
    error = SchemaNotFoundError("schema tick: not there", retryable=False)
    with pytest.raises(SchemaNotFoundError):
        desk.consumer.not_found(error, 0.0, 0.5, over=False)
    desk.consumer.not_found(error, 0.0, 0.5, over=True)
    desk.queue, desk.over = [arrival(1, b"\x02")], True
    assert desk.step(0.1) == End()


# Undecodable events.


def test_undecodable_events_are_quarantined_before_anything_is_acked():
    """The order is quarantine, ack, hand out; an interrupted quarantine is repeated as a whole."""
    desk = Desk("quarantine")
    desk.queue = [arrival(1, b"\x02", BAD, b"\x04", BAD)]
    step = desk.step()
    assert isinstance(step, Quarantine)
    assert [event.raw.id for event in step.events] == ["id2", "id4"]
    assert desk.step() == step
    desk.consumer.set_aside()
    assert desk.take().acks == (2, 4)
    assert desk.hand_out() == [1]
    assert desk.hand_out() == [3]
    assert desk.consumer.health(health(), 0, discarded=False).quarantined == 2
    assert desk.step() == WaitUntil(None)


def test_each_response_is_quarantined_separately():
    """A quarantine that was completed for one response does not count for the next."""
    desk = Desk("quarantine")
    desk.queue = [arrival(1, BAD), arrival(2, BAD)]
    for seq in (1, 2):
        assert isinstance(desk.step(), Quarantine)
        desk.consumer.set_aside()
        assert desk.take().acks == (seq,)
    assert desk.step() == WaitUntil(None)


def test_skipped_events_are_acked_and_counted():
    """The policy "skip" acks an undecodable event without storing it, and health counts it."""
    desk = Desk("skip")
    desk.queue = [arrival(1, BAD, b"\x04")]
    assert desk.take().acks == (1,)
    assert desk.hand_out() == [2]
    told = desk.consumer.health(health(), 3, discarded=False)
    assert (told.skipped, told.quarantined) == (1, 0)
    assert told.details["schema_id_mismatches"] == 3


def test_ready_events_count_as_pending():
    """`pending_count` includes events that are prepared but not handed out, unless discarded."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD, b"\x04", b"\x06")]
    desk.take()
    assert desk.consumer.health(health(pending_count=7), 0, discarded=False).pending_count == 10
    assert desk.consumer.health(health(), 0, discarded=True).pending_count == 0
    desk.hand_out()
    assert desk.consumer.health(health(), 0, discarded=False).pending_count == 2


def test_invalid_subscribe_options_are_rejected():
    """An unknown policy or ack mode, or a policy "quarantine" without a quarantine, is an error."""
    from sfpubsub.client.options import SubscribeOptions

    with pytest.raises(ConfigurationError, match="'fail', 'quarantine' or 'skip'"):
        SubscribeOptions(on_undecodable="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be used together"):
        SubscribeOptions(on_undecodable="quarantine")
    with pytest.raises(ConfigurationError, match="'auto' or 'manual'"):
        SubscribeOptions(ack="bad")  # type: ignore[arg-type]


# Positions.


def stored(desk: Desk, now: float, **options: Any) -> ReplayId | None:
    """Store the position that is due, if there is one, and return it."""
    found = desk.consumer.to_store(now, **options)
    if found is not None:
        desk.consumer.stored(found, now)
    return found


def test_first_position_is_stored_at_once_and_later_ones_together():
    """After the first write there is one write in each interval, however many acks it covers."""
    desk = Desk(auto=False)
    consumer = desk.consumer
    consumer.storable(position(1))
    assert consumer.is_store_due(100.0)
    assert desk.step(100.0) == Store()
    assert stored(desk, 100.0) == position(1)
    for seq in range(2, 50):
        consumer.storable(position(seq))
        assert not consumer.is_store_due(100.0 + seq / 10)
        assert stored(desk, 100.0 + seq / 10) is None
    assert desk.step(105.0) == WaitUntil(110.0)
    assert desk.step(110.0) == Store()
    assert stored(desk, 110.0) == position(49)
    assert desk.step(110.0) == WaitUntil(None)


def test_acked_position_is_stored_before_the_consumer_waits():
    """While there is work the position may wait for the interval.

    Before an idle wait it is stored.
    """
    desk = Desk()
    desk.consumer.storable(position(1))
    stored(desk, 0.0)
    desk.queue = [arrival(2, b"\x02")]
    desk.consumer.asked()
    desk.consumer.storable(position(2))
    assert desk.hand_out(0.1) == [2]  # there is work, so the position may wait
    assert stored(desk, 0.2) is None
    desk.consumer.asked()
    assert desk.step(0.3) == Store()
    assert stored(desk, 0.3) == position(2)
    assert desk.step(0.3) == WaitUntil(None)
    desk.consumer.storable(position(3))  # acked by a worker while this one waits
    assert desk.step(0.4) == WaitUntil(10.3)


def test_position_that_was_not_stored_is_offered_again():
    """A position stays due until its write has succeeded; a newer one takes its place."""
    desk = Desk()
    desk.consumer.storable(position(1))
    assert desk.consumer.to_store(0.0) == position(1)
    desk.consumer.storable(None)  # no new position
    assert desk.consumer.to_store(0.0) == position(1)
    desk.consumer.storable(position(2))
    desk.consumer.stored(position(1), 0.0)  # a late write of an older position
    assert desk.consumer.to_store(0.0, last=True) == position(2)


def test_the_last_position_is_stored_before_the_end():
    """The end ignores the store interval, because nothing could be stored later."""
    desk = Desk()
    desk.consumer.storable(position(1))
    stored(desk, 0.0)
    desk.consumer.storable(position(2))
    desk.over = True
    assert desk.step(0.1) == Store()
    assert stored(desk, 0.1) == position(2)
    assert desk.step(0.1) == End()
