"""The consumer alone: what is done with a response, whatever interrupts it, and when."""

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
    return ReplayId(b"r%d" % seq)


def arrival(first_seq: int, *payloads: bytes, schema_id: str = "tick") -> Arrival:
    events = tuple(
        RawEvent(f"id{first_seq + place}", schema_id, payload, position(first_seq + place))
        for place, payload in enumerate(payloads)
    )
    return Arrival(Deliver(events, first_seq, "rpc", sum(map(len, payloads))), 1700000000.0)


class Desk:
    """A consumer and the queue in front of it, with everything carried out by hand."""

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
        head = self.queue[0] if self.queue else None
        return self.consumer.next(now, head, over=self.over, discarded=self.discarded)

    def take(self, now: float = 0.0) -> Take:
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


def test_a_response_is_taken_off_the_queue_when_it_is_ready_and_then_handed_out():
    """One batch a response, in order of arrival; then there is nothing but to wait."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02", b"\x04"), arrival(3, b"\x06")]
    assert desk.hand_out() == [1, 2]
    assert desk.hand_out() == [3]
    assert desk.queue == []
    assert desk.step() == WaitUntil(None)


def test_an_interrupted_take_comes_again_and_hands_out_once():
    """Ctrl-C between the answer and the queue costs nothing, and repeats nothing."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD)]
    first = desk.step()
    assert isinstance(first, Take)
    assert desk.step() == first
    assert desk.take().acks == (2,)
    assert desk.hand_out() == [1]
    assert desk.step() == WaitUntil(None)


@pytest.mark.parametrize("popped", [False, True])
def test_an_interrupted_hand_out_comes_again_and_takes_its_response_off_the_queue_once(
    popped: bool,
):
    """Ctrl-C between the answer and the application, before or behind the queue."""
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
    """Ctrl-C comes while the next item is removed."""

    def __init__(self, items: Sequence[Any], removed: bool) -> None:
        super().__init__(items)
        self._removed = removed

    def popleft(self) -> Any:
        if self._removed:
            super().popleft()
        raise KeyboardInterrupt


@pytest.mark.parametrize("removed", [False, True])
def test_ctrl_c_at_any_moment_of_handing_out_neither_loses_nor_repeats_a_batch(removed: bool):
    """Before the batch is removed, and right after it."""
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


def test_what_is_in_hand_is_what_was_handed_out_last():
    """ack="auto" acks it when the application asks for more, and commit does."""
    desk = Desk()
    desk.queue = [arrival(5, b"\x02", b"\x04")]
    desk.consumer.asked()
    assert desk.consumer.in_hand is None
    desk.hand_out()
    assert desk.consumer.in_hand == (5, 6)
    desk.consumer.asked()
    assert desk.consumer.in_hand is None


def test_of_a_batch_that_is_given_event_by_event_only_one_is_in_hand():
    """What the application has not seen is not acked for it, and is handed out next."""
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


def test_a_batch_that_did_not_reach_the_application_comes_again():
    """Ctrl-C in the middle of handing out."""
    desk = Desk()
    desk.queue = [arrival(5, b"\x02")]
    desk.hand_out()
    desk.consumer.interrupted()
    assert desk.consumer.in_hand is None
    assert desk.hand_out() == [5]


def test_a_pause_holds_what_is_ready_and_what_waits():
    """Nothing is handed out until the application says so."""
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
    """What was received before a failure is handed out all the same, and then the end is told."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02")]
    desk.consumer.pause(True)
    desk.over = True
    assert desk.hand_out() == [1]
    assert desk.step() == End()


def test_the_end_comes_behind_everything_received():
    """A plain subscription that failed hands out its queue first."""
    desk = Desk()
    desk.queue, desk.over = [arrival(1, b"\x02")], True
    desk.hand_out()
    assert desk.step() == End()


def test_what_was_discarded_is_not_handed_out():
    """After a drain or an abort, and after the failure of a managed subscription."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD, b"\x04")]
    desk.take()
    assert desk.hand_out() == [1]
    desk.discarded = True
    assert desk.step() == WaitUntil(None)  # how it ends has to be awaited
    desk.over = True
    assert desk.step() == End()
    desk.discarded = False  # it never becomes so; but what is forgotten is forgotten
    assert desk.step() == End()


# Schemas.


def test_a_response_waits_for_its_schemas():
    """They are fetched once, and only those that are not known."""
    desk = Desk()
    desk.queue = [arrival(1, b"\x02", schema_id="tock")]
    assert desk.step() == FetchSchemas(("tock",))
    assert desk.step() == FetchSchemas(("tock",))  # interrupted
    desk.consumer.found({"tock": TOCK})
    assert desk.hand_out() == [1]


def test_a_schema_that_somebody_else_has_fetched_is_used():
    """The cache is the client's: another subscription may be faster."""
    desk = Desk(known=())
    desk.queue = [arrival(1, b"\x02")]
    assert desk.step() == FetchSchemas(("tick",))
    desk.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    desk.known["tick"] = TICK
    desk.hand_out()
    assert desk.consumer.health(health(), 0, discarded=False).state == "streaming"


def test_a_schema_that_cannot_be_fetched_is_asked_for_with_backoff_however_often_one_looks():
    """Polling does not become a load on a service that is down."""
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


def test_a_found_schema_ends_the_backoff():
    """The next trouble begins with a short delay again."""
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


def test_a_wait_for_a_schema_is_told():
    """A subscription that hands out nothing is not healthy, though its stream is."""
    desk = Desk(known=())
    desk.queue = [arrival(1, b"\x02")]
    desk.step()
    desk.consumer.not_found(DOWN, 0.0, 0.5, over=False)
    told = desk.consumer.health(health(), 0, discarded=False)
    assert told.state == "waiting_for_schema"
    assert told.reason is not None
    assert "GetSchema: down" in told.reason
    assert not told.can_receive
    # A stream that is down is the greater trouble.
    assert (
        desk.consumer.health(health(state="waiting", reason="down"), 0, discarded=False).reason
        == "down"
    )


def test_an_error_that_trying_again_does_not_mend_is_raised():
    """Until the subscription is over: then that is what there is to say."""
    desk = Desk(known=())
    error = SchemaNotFoundError("schema tick: not there", retryable=False)
    with pytest.raises(SchemaNotFoundError):
        desk.consumer.not_found(error, 0.0, 0.5, over=False)
    desk.consumer.not_found(error, 0.0, 0.5, over=True)
    desk.queue, desk.over = [arrival(1, b"\x02")], True
    assert desk.step(0.1) == End()


# What cannot be decoded.


def test_what_cannot_be_decoded_is_durable_before_anything_is_acked():
    """Quarantine, then ack, then hand out; repeated as a whole where it was interrupted."""
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


def test_each_response_is_made_durable_by_itself():
    """What was set aside for one says nothing of the next."""
    desk = Desk("quarantine")
    desk.queue = [arrival(1, BAD), arrival(2, BAD)]
    for seq in (1, 2):
        assert isinstance(desk.step(), Quarantine)
        desk.consumer.set_aside()
        assert desk.take().acks == (seq,)
    assert desk.step() == WaitUntil(None)


def test_skipped_events_are_acked_and_counted():
    """skip: nothing is kept, and nothing is silent."""
    desk = Desk("skip")
    desk.queue = [arrival(1, BAD, b"\x04")]
    assert desk.take().acks == (1,)
    assert desk.hand_out() == [2]
    told = desk.consumer.health(health(), 3, discarded=False)
    assert (told.skipped, told.quarantined) == (1, 0)
    assert told.details["schema_id_mismatches"] == 3


def test_ready_events_count_as_pending():
    """pending_count: received and not yet handed out, wherever they wait."""
    desk = Desk("skip")
    desk.queue = [arrival(1, b"\x02", BAD, b"\x04", b"\x06")]
    desk.take()
    assert desk.consumer.health(health(pending_count=7), 0, discarded=False).pending_count == 10
    assert desk.consumer.health(health(), 0, discarded=True).pending_count == 0
    desk.hand_out()
    assert desk.consumer.health(health(), 0, discarded=False).pending_count == 2


def test_there_are_three_policies():
    """A misspelt one is refused before anything is opened."""
    from sfpubsub.client.options import SubscribeOptions

    with pytest.raises(ConfigurationError, match="'fail', 'quarantine' or 'skip'"):
        SubscribeOptions(on_undecodable="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be used together"):
        SubscribeOptions(on_undecodable="quarantine")
    with pytest.raises(ConfigurationError, match="'auto' or 'manual'"):
        SubscribeOptions(ack="bad")  # type: ignore[arg-type]


# Positions.


def stored(desk: Desk, now: float, **options: Any) -> ReplayId | None:
    """Store what there is to store; return it."""
    found = desk.consumer.to_store(now, **options)
    if found is not None:
        desk.consumer.stored(found, now)
    return found


def test_the_first_position_is_stored_at_once_and_the_next_ones_together():
    """One write for an interval, however many acks there are in it."""
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


def test_before_it_waits_for_more_everything_acked_is_stored():
    """An idle subscription has nothing at stake."""
    desk = Desk()
    desk.consumer.storable(position(1))
    stored(desk, 0.0)
    desk.queue = [arrival(2, b"\x02")]
    desk.consumer.asked()
    desk.consumer.storable(position(2))
    assert desk.hand_out(0.1) == [2]  # there is work: the position waits
    assert stored(desk, 0.2) is None
    desk.consumer.asked()
    assert desk.step(0.3) == Store()
    assert stored(desk, 0.3) == position(2)
    assert desk.step(0.3) == WaitUntil(None)
    desk.consumer.storable(position(3))  # acked by a worker while this one waits
    assert desk.step(0.4) == WaitUntil(10.3)


def test_a_store_that_failed_is_asked_again():
    """Also when newer positions have come meanwhile, and then with the newest."""
    desk = Desk()
    desk.consumer.storable(position(1))
    assert desk.consumer.to_store(0.0) == position(1)
    desk.consumer.storable(None)  # no news
    assert desk.consumer.to_store(0.0) == position(1)
    desk.consumer.storable(position(2))
    desk.consumer.stored(position(1), 0.0)  # an older write that was late
    assert desk.consumer.to_store(0.0, last=True) == position(2)


def test_the_last_position_is_stored_before_the_end():
    """Whatever the interval says: there is no later time."""
    desk = Desk()
    desk.consumer.storable(position(1))
    stored(desk, 0.0)
    desk.consumer.storable(position(2))
    desk.over = True
    assert desk.step(0.1) == Store()
    assert stored(desk, 0.1) == position(2)
    assert desk.step(0.1) == End()
