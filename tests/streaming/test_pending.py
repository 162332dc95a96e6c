"""Tests of the queue between the driver's threads and the application."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sfpubsub.errors import SfPubSubError, StreamUnavailableError
from sfpubsub.streaming.bayeux import StreamingMessage
from sfpubsub.streaming.pending import Pending
from tests.streaming.script import TOPIC, event


def put(pending, *ids):
    """Append events with these replay ids."""
    pending.put(TOPIC, [event(each) for each in ids], ids)


class Queue(RuleBasedStateMachine):
    """A state machine that checks the queue under random operations.

    Items leave in the order in which they were added, by receive or by iteration. Whenever a full
    queue has room again, this is reported.
    """

    @initialize(limit=st.integers(-1, 6))
    def create(self, limit):
        """Create a queue with the given limit; a limit below 1 makes it unbounded."""
        self.limit = limit
        self.pending = Pending(1, limit)
        self.pending.on_room = self.note_fullness
        self.waiting = []  # replay ids and errors, in the order they must come out
        self.ids = itertools.count(1)
        self.last = 0
        self.iterator = iter(())
        self.awaits_room = False  # true while the driver would wait for room in a full queue
        self.is_mixed = False  # whether `receive` was called during an iteration

    def note_fullness(self):
        """Record whether the queue is full, in which case the driver would wait for room."""
        self.awaits_room = self.pending.is_full

    @rule(count=st.integers(1, 12))
    def arrive(self, count):
        """Append events, as the driver does after a response."""
        ids = list(itertools.islice(self.ids, count))
        put(self.pending, *ids)
        self.waiting += ids
        self.note_fullness()

    @rule()
    def fail(self):
        """Append an error, as the driver does after a failure."""
        error = StreamUnavailableError("no connection")
        self.pending.fail(error)
        self.waiting.append(error)
        self.note_fullness()

    @precondition(lambda self: self.waiting)
    @rule(looks=st.integers(1, 2))
    def receive(self, looks):
        """Look at the first item once or twice, and take it."""
        for _ in range(looks):
            item = self.pending.head()
        if isinstance(item, StreamingMessage):
            self.check_message(item)
        else:
            assert item is self.waiting.pop(0)
        self.is_mixed = True
        self.pending.take()

    @rule(count=st.integers(1, 8), anew=st.booleans())
    def iterate(self, count, anew):
        """Take up to *count* items from a new iteration if *anew*, otherwise from the previous one.

        The previous one must continue correctly even if `receive` has taken messages since.
        """
        if anew:
            self.iterator, self.is_mixed = self.pending.messages(), False
        for item in itertools.islice(self.iterator, count):
            self.check_message(item)

    def check_message(self, item):
        """Check that the message is the next expected one, with a higher sequence number."""
        assert item.replay_id == self.waiting.pop(0)
        assert item.delivery_seq > self.last
        self.last = item.delivery_seq

    @invariant()
    def check_state(self):
        """Check the length, the errors and the fullness, and that the driver does not wait for room
        in a queue that has room.
        """
        assert len(self.pending) == len(self.waiting)
        assert self.pending.errors == [
            item for item in self.waiting if isinstance(item, SfPubSubError)
        ]
        assert self.pending.is_full == (0 < self.limit <= len(self.waiting))
        if self.is_mixed and not self.waiting:
            self.pending.report_room()  # as the reader does before each wait
        if not self.is_mixed or not self.waiting:
            assert not self.awaits_room or self.pending.is_full, "room was not reported"


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_an_iteration_stops_before_an_error():
    """An iteration stops before an error and leaves it in the queue, so that `receive`
    raises it.
    """
    pending = Pending(1, 100)
    put(pending, 1)
    pending.fail(StreamUnavailableError("no connection"))
    put(pending, 2)
    assert [item.replay_id for item in pending.messages()] == [1]
    assert isinstance(pending.head(), StreamUnavailableError)
    pending.take()
    assert [item.replay_id for item in pending.messages()] == [2]
    assert pending.head() is None


class Interrupted(Pending):
    """A queue whose next length check calls `hook`, which simulates another thread."""

    hook = None

    def __len__(self):
        found = super().__len__()
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return found


@pytest.mark.parametrize("before", [2, 3])
def test_room_is_reported_again_after_a_concurrent_append(before):
    """If another thread refills the queue just as room is reported, room is reported again once
    more items are taken.
    """
    pending, told = Interrupted(1, 2), []
    pending.on_room = lambda: told.append(len(pending))
    put(pending, *range(before))
    pending.head()
    pending.hook = lambda: put(pending, 8, 9)
    pending.take()
    told.clear()
    for _ in range(before + 1):
        pending.head()
        pending.take()
    assert told
    assert len(pending) == 0


@pytest.mark.parametrize("limit", [1, 3])
def test_room_is_reported_despite_concurrent_appends(limit):
    """A thread that waits for room before each append is always woken, while another
    thread reads.
    """
    pending = Pending(1, limit)
    room, rounds = threading.Event(), 200

    def append():
        for number in range(rounds):
            room.clear()  # before the check; in the driver, its lock guarantees that order
            while pending.is_full:
                assert room.wait(30), f"room was not reported after {number} appends"
                room.clear()
            put(pending, 2 * number, 2 * number + 1)

    pending.on_room = room.set
    thread = threading.Thread(target=append)
    thread.start()
    found: list[int | None] = []
    while len(found) < 2 * rounds and (thread.is_alive() or len(pending)):
        found += [item.replay_id for item in pending.messages()]
        pending.report_room()
    thread.join(60)
    assert found == list(range(2 * rounds))
