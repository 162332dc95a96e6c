"""Where the service stands with a managed subscription, told by what its streams begin with."""

from __future__ import annotations

import pytest

from sfpubsub.config import Timings
from sfpubsub.protocol.commands import CommitRequest
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.managed_position import ManagedPosition
from sfpubsub.types import CommitReceipt, Gap, ReplayId
from tests.protocol.scripted import NAME, events, keepalive, rid


class Managed:
    """A managed position with its ledger, on stream 1. Event numbers are delivery_seqs."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.position = ManagedPosition(NAME, self.ledger, Timings(commit_pause=0.0))
        self.last: ReplayId | None = None
        self.stream = 1
        self.new_stream()

    def new_stream(self) -> None:
        self.ledger.new_stream()
        self.position.new_stream(self.stream, 0.0)

    def reopen(self) -> None:
        """The stream ends, and another one is opened."""
        self.position.dropped()
        self.stream += 1
        self.new_stream()

    def take(self, response: Response) -> Gap | None:
        """Take a response, as the intake does; return what was lost."""
        _, gap = self.position.began(response, self.last)
        self.last = response.position or self.last
        for raw in response.events:
            self.ledger.add((raw,), number(raw.replay_id))
        if response.keepalive is not None:
            self.ledger.add_keepalive(response.keepalive)
        return gap

    def send(self, *acked: int) -> CommitRequest:
        """Ack events, and send the commit."""
        for each in acked:
            self.ledger.ack(each, each)
        request = self.position.next_commit(0.0)
        assert request is not None
        return request

    def confirm(self, *acked: int) -> None:
        request = self.send(*acked)
        self.position.answered(CommitAnswer(request.request_id, request.replay_id, None, 1), 0.0)


def number(replay_id: ReplayId) -> int:
    return int.from_bytes(bytes(replay_id)[4:], "big")


def confirmed() -> Managed:
    """Events 1 and 2 came, and 1 is committed."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.confirm(1)
    return managed


# With a confirmed commit.


def test_a_stream_that_begins_right_after_the_confirmed_position_is_in_order() -> None:
    """Nothing was moved."""
    managed = confirmed()
    managed.reopen()

    assert managed.take(events(2)) is None


def test_a_stream_that_begins_elsewhere_was_moved() -> None:
    """The service gave up the position: that is said, with what is known."""
    managed = confirmed()
    managed.reopen()

    assert managed.take(events(7)) == Gap("repositioned", NAME, rid(1), rid(7), rpc_id="rpc-7")
    assert managed.take(events(20)) is None, "once a stream"


def test_a_response_without_position_is_no_beginning() -> None:
    """A bare commit answer or an odd empty message says nothing of where the stream stands."""
    managed = confirmed()
    managed.reopen()

    assert managed.take(Response()) is None
    assert managed.take(events(9)) is not None, "the first position is still checked"


def test_a_stream_that_begins_with_a_keepalive_over_open_events_was_moved() -> None:
    """A keepalive says that nothing is left to send, though the ledger holds an event."""
    managed = confirmed()
    managed.reopen()
    gap = managed.take(keepalive(9))

    assert gap is not None
    assert gap.before == rid(9)


def test_behind_everything_committed_anything_may_come() -> None:
    """The service knows where it stands."""
    managed = confirmed()
    managed.confirm(2)
    managed.reopen()

    assert managed.take(events(7)) is None


# Before a commit is confirmed: the service may have no position, and begin at LATEST.


def test_a_stream_that_brought_nothing_leaves_a_doubt() -> None:
    """What was published meanwhile may be lost: at LATEST it is."""
    for response in (events(7), keepalive(7)):
        managed = Managed()
        managed.reopen()

        gap = Gap("unanchored", NAME, None, rid(7), rpc_id=response.rpc_id)
        assert managed.take(response) == gap


def test_a_stream_that_brought_only_a_keepalive_leaves_a_doubt() -> None:
    """Its position was not committed for sure, be the commit sent or not."""
    managed = Managed()
    managed.take(keepalive(3))
    managed.reopen()
    assert managed.take(events(7)) == Gap("unanchored", NAME, rid(3), rid(7), rpc_id="rpc-7")
    managed = Managed()
    managed.take(keepalive(3))
    managed.send()
    managed.reopen()

    assert managed.take(events(7)) == Gap("unanchored", NAME, rid(3), rid(7), rpc_id="rpc-7")


def test_a_keepalive_at_the_last_position_proves_that_nothing_was_published() -> None:
    """The tip has not moved since."""
    managed = Managed()
    managed.take(events(3))
    managed.ledger.ack(3, 3)
    managed.reopen()
    assert managed.take(keepalive(3)) is None
    managed.reopen()

    assert managed.take(events(9)) is not None, "it is still not known where the service stands"


@pytest.mark.parametrize("acked", [(), (1,), (1, 2)], ids=["none-acked", "one", "all"])
def test_events_that_come_again_prove_that_nothing_is_lost(acked: tuple[int, ...]) -> None:
    """EARLIEST, or a position of an earlier run: the service went back, and will again."""
    managed = Managed()
    managed.take(events(1, 2))
    for each in acked:
        managed.ledger.ack(each, each)
    managed.reopen()
    assert managed.take(events(1)) is None
    managed.reopen()
    assert managed.take(events(1)) is None
    managed.reopen()
    gap = managed.take(events(9))

    assert gap is not None
    assert gap.reason == "repositioned", "it is known by now that the service goes back"


def test_any_event_that_comes_again_proves_that_nothing_is_lost() -> None:
    """Retention may have passed the first one: what is behind the second comes all the same."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.reopen()

    assert managed.take(events(2)) is None


@pytest.mark.parametrize("first", [events(9), keepalive(9)])
def test_events_that_do_not_come_again_leave_a_doubt(first: Response) -> None:
    """LATEST, with something published between the streams, perhaps."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.reopen()
    gap = managed.take(first)

    assert gap is not None
    assert gap.reason == "unanchored"
    assert gap.after == rid(2)


def test_an_old_event_behind_a_commit_without_answer_proves_it_carried_out() -> None:
    """LATEST would not send an event of before the drop."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.send(1)
    managed.reopen()

    assert managed.take(events(2)) is None
    assert managed.position.receipt == CommitReceipt(rid(1), None)


@pytest.mark.parametrize("first", [events(9), keepalive(9)])
def test_a_commit_of_everything_without_answer_leaves_a_doubt(first: Response) -> None:
    """Carried out, or LATEST: both look the same, so nobody is told that it is committed."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.send(1, 2)
    managed.reopen()
    gap = managed.take(first)

    assert gap is not None
    assert gap.reason == "unanchored"
    assert managed.position.receipt is None
    assert managed.position.uncommitted() is not None


def test_a_commit_of_everything_is_believed_where_the_service_goes_back() -> None:
    """It would have begun with the first event otherwise."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.reopen()
    managed.take(events(1, 2))
    managed.send(1, 2)
    managed.reopen()

    assert managed.take(events(9)) is None
    assert managed.position.receipt == CommitReceipt(rid(2), None)


def test_each_doubt_is_said() -> None:
    """Another drop before the first commit may lose other events."""
    managed = Managed()
    managed.take(events(1))
    managed.reopen()
    assert managed.take(events(5)) is not None
    managed.reopen()
    gap = managed.take(events(9))

    assert gap is not None
    assert gap.after == rid(5)


def test_a_stream_that_never_began_leaves_no_doubt() -> None:
    """The slot was held by another: nothing was ours to lose."""
    managed = Managed()
    managed.stream += 1
    managed.new_stream()

    assert managed.take(events(7)) is None
