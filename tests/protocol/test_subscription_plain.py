"""Plain subscriptions: the position is ours to keep, with a store or without."""

from __future__ import annotations

from sfpubsub.errors import ReplayIdRejectedError
from sfpubsub.protocol.commands import Finish, OpenStream, ReportGap, Wake
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.types import Gap, StartPosition
from tests.protocol.scripted import (
    NAME,
    Script,
    commits,
    events,
    failure,
    keepalive,
    of,
    rid,
    streaming,
)

EARLIEST, LATEST = StartPosition.earliest(), StartPosition.latest()
REFUSED = Failure(
    FailureKind.POSITION_REJECTED,
    ReplayIdRejectedError("corrupted", error_code="replayid.corrupted", rpc_id="rpc-5"),
)


def test_it_starts_where_it_was_told() -> None:
    """The first request says where."""
    assert Script(LATEST).start() == [OpenStream(1, 10, LATEST)]


def test_a_start_that_was_looked_up_later_counts() -> None:
    """A store may be asked after the subscription was made; a reopening forgets nothing of it."""
    script = Script(LATEST)
    assert script.start(EARLIEST) == [OpenStream(1, 10, EARLIEST)]
    script.end(failure())

    assert script.reopen().start == EARLIEST


def test_it_resumes_after_what_was_received() -> None:
    """Received events are never dropped, acked or not."""
    script = streaming(LATEST)
    script.respond(events(5, 6))

    assert script.reopen().start == StartPosition.after(rid(6))


def test_it_resumes_after_a_keepalive() -> None:
    """An idle topic's position must not grow too old."""
    script = streaming(LATEST)
    script.respond(keepalive(9))

    assert script.reopen().start == StartPosition.after(rid(9))


def test_a_drop_before_latest_was_anchored_is_reported_once() -> None:
    """It opens at LATEST again, and what was missed is said."""
    script = Script(LATEST)
    script.start()

    assert script.end(failure()) == [ReportGap(Gap("unanchored", NAME))]
    assert of(OpenStream, script.wait(1.0)) == [OpenStream(2, 10, LATEST)]
    assert script.end(failure()) == []


def test_a_refused_position_stops_by_default() -> None:
    """No event is skipped without the caller's word; the error says what to do."""
    script = Script(StartPosition.after(rid(7)))
    script.start()
    script.end(REFUSED)

    gap = Gap("rejected", NAME, rid(7), error_code="replayid.corrupted", rpc_id="rpc-5")
    assert script.gaps == [gap]
    assert script.finish is not None
    error = script.finish.error
    assert isinstance(error, ReplayIdRejectedError)
    assert error.gap == gap
    assert error.error_code == "replayid.corrupted"
    assert error.__cause__ is REFUSED.error


def test_a_refused_position_goes_on_at_the_fallback() -> None:
    """Reported, after a delay, and never at the refused position again."""
    script = Script(StartPosition.after(rid(7)), fallback=EARLIEST)
    script.start()
    assert [gap.gap.reason for gap in of(ReportGap, script.end(REFUSED))] == ["rejected"]
    assert script.protocol.state is State.WAITING

    assert script.wait(1.0) == [OpenStream(2, 10, EARLIEST)]
    assert script.finish is None


def test_a_refused_position_of_a_managed_subscription_is_fatal() -> None:
    """There is no other position to go on from."""
    script = streaming()
    script.end(REFUSED)

    assert script.finish == Finish(REFUSED.error)


def test_it_commits_nothing() -> None:
    """The service keeps no position for it."""
    script = streaming(EARLIEST)
    script.read(events(2))

    assert commits(script.ack(2)) == []
    assert commits(script.wait(200.0)) == []


def test_storable_is_the_acked_prefix_once() -> None:
    """A position is stored only when every event up to it is acked."""
    script = streaming(EARLIEST)
    assert script.protocol.storable() == rid(1)
    script.read(events(2, 3, 4))
    script.ack(3)
    assert script.protocol.storable() is None
    script.ack(2)

    assert script.protocol.storable() == rid(3)
    assert script.protocol.storable() is None


def test_storable_follows_keepalives() -> None:
    """The application is woken to store the position of an idle topic."""
    script = streaming(EARLIEST)
    script.read(events(2))
    assert of(Wake, script.respond(keepalive(8)))
    assert script.protocol.storable() == rid(1)
    script.ack(2)

    assert script.protocol.storable() == rid(8)


def test_storable_outlives_reconnects_and_the_end() -> None:
    """What was acked on an older stream is done all the same."""
    script = streaming(EARLIEST)
    script.read(events(2))
    script.reopen()
    script.ack(2)
    script._did(script.protocol.abort())

    assert script.protocol.storable() == rid(2)


def test_a_managed_subscription_has_nothing_to_store() -> None:
    """Its position is the service's."""
    script = streaming()
    script.respond(keepalive(5))

    assert script.protocol.storable() is None


def test_an_untracked_subscription_holds_nothing() -> None:
    """No store, no ledger: acks are no words to it and memory does not grow."""
    script = streaming(EARLIEST, tracked=False)
    script.read(events(2, 3))

    assert script.ack(2) == []
    assert script.protocol.storable() is None
    assert script.protocol.health().unacked == 0
    assert not script.protocol._ledger.holds_events


def test_draining_stores_what_is_acked_and_half_closes() -> None:
    """There is nobody to wait for."""
    script = streaming(EARLIEST)
    script.read(events(2))
    script.ack(2)
    script.drain()
    assert script.protocol.state is State.CLOSING
    script.end(None)

    assert script.finish == Finish(None)
    assert script.protocol.storable() == rid(2)
