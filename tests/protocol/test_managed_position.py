"""Tests of the detection of lost events: where a managed subscription's streams begin.

A stream that does not begin where the last one ended is reported as a `Gap`: "repositioned" if the
service's position was known, "unanchored" if no commit had been confirmed yet.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfpubsub.config import Timings
from sfpubsub.protocol.commands import CommitRequest
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.managed_position import ManagedPosition
from sfpubsub.types import CommitReceipt, Gap, ReplayId, StartPosition
from tests.protocol.scripted import NAME, Script, commits_of, events, keepalive, rid


class Managed:
    """A managed position with its ledger, on its first stream.

    The number of an event serves as its sequence number in the ledger.
    """

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
        """End the stream, and open another one."""
        self.position.dropped()
        self.stream += 1
        self.new_stream()

    def take(self, response: Response) -> Gap | None:
        """Process a response; return the gap reported if it begins a stream, or None."""
        _, gap = self.position.began(response, self.last)
        self.last = response.position or self.last
        for raw in response.events:
            self.ledger.add((raw,), number(raw.replay_id))
        if response.keepalive is not None:
            self.ledger.add_keepalive(response.keepalive)
        return gap

    def send(self, *acked: int) -> CommitRequest:
        """Ack events, and send the commit of the newest position; return the request."""
        for each in acked:
            self.ledger.ack(each, each)
        request = self.position.next_commit(0.0)
        assert request is not None
        return request

    def confirm(self, *acked: int) -> None:
        """Ack events, and confirm the commit of the newest position."""
        request = self.send(*acked)
        self.position.answered(CommitAnswer(request.request_id, request.replay_id, None, 1), 0.0)


def number(replay_id: ReplayId) -> int:
    """Return the number of a position; the inverse of `rid`."""
    return int.from_bytes(bytes(replay_id)[4:], "big")


def confirmed() -> Managed:
    """Return a managed position that has received events 1 and 2, with 1 committed."""
    managed = Managed()
    managed.take(events(1, 2))
    managed.confirm(1)
    return managed


# After a confirmed commit.


def test_no_gap_if_a_stream_begins_right_after_the_commit() -> None:
    """A new stream whose first event is the one after the confirmed position reports no gap."""
    managed = confirmed()
    managed.reopen()

    assert managed.take(events(2)) is None


def test_gap_if_a_stream_begins_elsewhere() -> None:
    """If a stream does not begin right after the confirmed position, one gap is reported.

    It contains the confirmed position and the one where the stream began.
    """
    managed = confirmed()
    managed.reopen()

    assert managed.take(events(7)) == Gap("repositioned", NAME, rid(1), rid(7), rpc_id="rpc-7")
    assert managed.take(events(20)) is None, "only the first response of a stream is checked"


def test_response_without_position_does_not_begin_a_stream() -> None:
    """An empty response without a position is not checked for a gap; the first response that has a
    position is.
    """
    managed = confirmed()
    managed.reopen()

    assert managed.take(Response()) is None
    assert managed.take(events(9)) is not None, "the first position is still checked"


def test_gap_if_a_keepalive_skips_unacked_events() -> None:
    """If a stream begins with a keepalive while an event is unacked, a gap is reported.

    The keepalive shows that the service will not redeliver that event.
    """
    managed = confirmed()
    managed.reopen()
    gap = managed.take(keepalive(9))

    assert gap is not None
    assert gap.before == rid(9)


def test_no_gap_after_all_events_were_committed() -> None:
    """If all received events were committed, the next stream may begin with any new event."""
    managed = confirmed()
    managed.confirm(2)
    managed.reopen()

    assert managed.take(events(7)) is None


# Before the first confirmed commit. The service may have no position, and begin at LATEST.


def test_gap_if_the_previous_stream_received_nothing() -> None:
    """A stream without any response may have begun at LATEST and missed events, so the next stream
    reports a gap.
    """
    for response in (events(7), keepalive(7)):
        managed = Managed()
        managed.reopen()

        gap = Gap("unanchored", NAME, None, rid(7), rpc_id=response.rpc_id)
        assert managed.take(response) == gap


def test_gap_if_the_previous_stream_received_only_a_keepalive() -> None:
    """After a stream that received only a keepalive, the next stream reports a gap.

    The keepalive's position is unconfirmed, whether it was never committed or its commit got no
    response.
    """
    managed = Managed()
    managed.take(keepalive(3))
    managed.reopen()
    assert managed.take(events(7)) == Gap("unanchored", NAME, rid(3), rid(7), rpc_id="rpc-7")
    managed = Managed()
    managed.take(keepalive(3))
    managed.send()
    managed.reopen()

    assert managed.take(events(7)) == Gap("unanchored", NAME, rid(3), rid(7), rpc_id="rpc-7")


def test_no_gap_if_a_keepalive_repeats_the_last_position() -> None:
    """A keepalive at the last received position shows that nothing was published in between.

    A later stream that begins elsewhere still reports a gap.
    """
    managed = Managed()
    managed.take(events(3))
    managed.ledger.ack(3, 3)
    managed.reopen()
    assert managed.take(keepalive(3)) is None
    managed.reopen()

    assert managed.take(events(9)) is not None, "the service's position is still unknown"


@pytest.mark.parametrize("acked", [(), (1,), (1, 2)], ids=["none-acked", "one", "all"])
def test_no_gap_if_the_stream_restarts_at_the_first_event(acked: tuple[int, ...]) -> None:
    """If a reopened stream begins with the first event again, no gap is reported.

    The service restarts an uncommitted subscription there. A later stream that begins after all
    known events is reported as a "repositioned" gap.
    """
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
    assert gap.reason == "repositioned", "two streams have shown that the service goes back"


def test_no_gap_if_the_stream_begins_with_any_known_event() -> None:
    """A stream that begins with the second event reports no gap: the first may have expired, and
    all later events follow.
    """
    managed = Managed()
    managed.take(events(1, 2))
    managed.reopen()

    assert managed.take(events(2)) is None


@pytest.mark.parametrize("first", [events(9), keepalive(9)])
def test_gap_if_received_events_are_not_redelivered(first: Response) -> None:
    """A stream that begins after the uncommitted events reports a gap, since it may have begun at
    LATEST.
    """
    managed = Managed()
    managed.take(events(1, 2))
    managed.reopen()
    gap = managed.take(first)

    assert gap is not None
    assert gap.reason == "unanchored"
    assert gap.after == rid(2)


def test_next_known_event_confirms_an_unanswered_commit() -> None:
    """An unanswered commit is confirmed if the next stream begins with the known event after it.

    A stream from LATEST would not contain that event.
    """
    managed = Managed()
    managed.take(events(1, 2))
    managed.send(1)
    managed.reopen()

    assert managed.take(events(2)) is None
    assert managed.position.receipt == CommitReceipt(rid(1), None)


@pytest.mark.parametrize("first", [events(9), keepalive(9)])
def test_gap_if_the_commit_of_all_events_was_not_answered(first: Response) -> None:
    """If the commit of all events got no response and the next stream begins after them, a gap is
    reported.

    The commit stays unconfirmed, because the stream may have begun at LATEST.
    """
    managed = Managed()
    managed.take(events(1, 2))
    managed.send(1, 2)
    managed.reopen()
    gap = managed.take(first)

    assert gap is not None
    assert gap.reason == "unanchored"
    assert managed.position.receipt is None
    assert managed.position.uncommitted() is not None


def test_commit_of_all_events_is_confirmed_if_streams_restart_at_the_first_event() -> None:
    """An unanswered commit of all events is confirmed if the next stream begins with a new event.

    The stream that sent the commit had restarted at the first event; had the commit been lost, the
    next one would have restarted there too.
    """
    managed = Managed()
    managed.take(events(1, 2))
    managed.reopen()
    managed.take(events(1, 2))
    managed.send(1, 2)
    managed.reopen()

    assert managed.take(events(9)) is None
    assert managed.position.receipt == CommitReceipt(rid(2), None)


def test_each_uncertain_start_reports_a_gap() -> None:
    """Each new stream before the first confirmed commit reports its own gap, since each may have
    lost events.
    """
    managed = Managed()
    managed.take(events(1))
    managed.reopen()
    assert managed.take(events(5)) is not None
    managed.reopen()
    gap = managed.take(events(9))

    assert gap is not None
    assert gap.after == rid(5)


def test_no_gap_if_the_earlier_stream_never_began() -> None:
    """No gap is reported if the earlier stream never began, e.g. because another client was using
    the managed subscription.
    """
    managed = Managed()
    managed.stream += 1
    managed.new_stream()

    assert managed.take(events(7)) is None


# What is known of a loss although everything received is confirmed.


def confirm_at(script: Script, hours: float) -> None:
    """Confirm the commit in flight, *hours* after some time by the service's clock; 0: no time."""
    sent = commits_of(script.protocol).unanswered
    assert sent is not None
    time = round((500_000 + hours) * 3_600_000) if hours else 0
    script.respond(Response(commit=CommitAnswer(sent.request_id, sent.replay_id, None, time)))


@pytest.mark.parametrize(
    ("before", "after", "gaps"),
    [(1, 71.9, 0), (1, 72.1, 1), (0, 99, 0), (1, 0, 0)],
    ids=["short", "long", "unknown before", "unknown after"],
)
def test_position_that_expired_during_an_outage_is_reported_once(
    before: float, after: float, gaps: int
) -> None:
    """If more time than events are retained, less a margin, passed between the last commit of a
    stream and the first of the next, by the service's clock, a gap says so.
    """
    script = Script()
    script.start()
    script.respond(keepalive(1))
    confirm_at(script, before)
    script.reopen()
    script.respond(keepalive(2))
    confirm_at(script, after)
    script.respond(keepalive(3))
    confirm_at(script, after + 1)

    assert script.gaps == [Gap("expired", NAME, after=rid(1))] * gaps


def test_expired_position_is_not_reported_twice() -> None:
    """If the service shows by the events of a stream that it moved the position, the same loss is
    not reported again because of the time.
    """
    script = Script()
    script.start()
    script.respond(keepalive(1))
    confirm_at(script, 1)
    script.respond(events(2, 3))
    script.reopen()
    script.respond(keepalive(9))
    script.take()
    script.ack(2, 3)
    confirm_at(script, 99)

    assert [gap.reason for gap in script.gaps] == ["repositioned"]


def test_stopped_subscription_reports_a_gap_when_it_runs_again() -> None:
    """The first position after a refusal as stopped is reported as the end of a gap, once."""
    stopped = Gap("repositioned", NAME, after=rid(1))
    script = Script(stopped=stopped)
    assert script.protocol.stopped == stopped
    script.start()
    script.respond(keepalive(9))
    confirm_at(script, 1)
    script.reopen()
    script.respond(keepalive(10))

    assert script.gaps == [replace(stopped, before=rid(9), rpc_id="rpc-keepalive-9")]
    assert script.protocol.stopped is None
    assert Script(StartPosition.latest()).protocol.stopped is None
