"""Commits of a managed subscription: only what is acked and seen, and every caller answered."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import CommitError, LocalProtocolError
from sfpubsub.protocol.commands import CancelStream, Command, CommitRequest, Finish, SendRequest
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.types import CommitReceipt, StartPosition
from tests.protocol.scripted import (
    Script,
    answer,
    commits,
    commits_of,
    credit,
    events,
    failure,
    keepalive,
    of,
    rid,
    settle,
    streaming,
)


def positions(commands: list) -> list:
    return [request.replay_id for request in commits(commands)]


def test_an_ack_commits_the_prefix() -> None:
    """Acked out of order, the position moves only over what is done."""
    script = streaming()
    script.read(events(2, 3, 4))
    assert script.ack(4) == []

    assert positions(script.ack(2)) == [rid(2)]
    assert script.ack(3) == [], "one at a time"
    settle_commands = script.respond(answer("1-2", replay_id=rid(2)))
    assert positions(settle_commands) == [rid(4)], "the newest wins"


def test_an_ack_rides_with_the_next_batch() -> None:
    """What the application is done with is committed when it takes the next batch: one turn."""
    script = streaming()
    script.read(events(2, 3))
    script.respond(events(4))
    batch = script.inbox.popleft()
    done = (script.seqs[2], script.seqs[3])
    taken = script.protocol.taken(len(batch.events), batch.size, script.now, done=done)
    assert positions(script._did(taken)) == [rid(3)]


def test_credit_and_commit_share_a_request() -> None:
    """The service sees them in one order, and both count for the stream."""
    script = streaming(limits=Limits(max_unacked=10))
    script.read(events(*range(2, 12), pending=0))
    (request,) = of(SendRequest, script._did(script.protocol.acked(1, 10, script.now)))

    assert request.num_requested == 10
    assert request.commit is not None


def test_commits_keep_their_distance() -> None:
    """A busy stream does not pay a request and an answer for each response."""
    script = streaming(timings=Timings(commit_pause=2.0))
    script.read(events(2, 3, 4))
    assert script.ack(2) == [], "the keepalive before it was committed just now"
    assert positions(script.wait(1.9)) == []
    assert script.ack(3) == []

    assert script.protocol.deadline() == pytest.approx(script.now + 0.1)
    assert positions(script.wait(0.2)) == [rid(3)], "the newest wins"
    settle(script)
    script.wait(2.0)
    assert positions(script.ack(4)) == [rid(4)], "nothing was sent lately"


def test_who_asks_for_a_commit_does_not_wait_for_the_distance() -> None:
    """`commit` and `drain` send at once what is acked."""
    for ask in (lambda script: script.commit()[1], lambda script: script.drain()):
        script = streaming(timings=Timings(commit_pause=2.0))
        script.read(events(2))
        assert script.ack(2) == []
        assert positions(ask(script)) == [rid(2)]


def test_a_keepalive_is_committed() -> None:
    """An idle subscription's position must not grow too old."""
    script = streaming()

    assert positions(script.respond(keepalive(9))) == [rid(9)]


def test_an_answer_gives_neither_credit_nor_position() -> None:
    """Whatever it carries besides: a stale position, a pending figure of nothing."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    before = script.protocol.health()
    commands = script.respond(answer(request, latest_replay_id=rid(777), pending=0))

    assert commands == []
    after = script.protocol.health()
    assert after.last_position == before.last_position == rid(2)
    assert after.outstanding == before.outstanding
    assert after.committed == rid(2)


def test_events_that_come_with_an_answer_are_delivered() -> None:
    """A message may carry both."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.respond(answer(request, events=events(3).events))

    assert script.delivered == [2, 3]
    assert script.protocol.health().committed == rid(2)
    assert script.protocol.health().outstanding == 99


def test_commit_is_answered_with_the_receipt() -> None:
    """The caller learns what the service knows."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    script.ack(3)
    ticket, commands = script.commit()
    assert commands == []
    (request,) = commits(script.respond(answer(request)))
    assert ticket not in script.settled, "2 is confirmed and 3 is asked for"
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(3), 1234)


def test_commit_with_nothing_new_is_answered_at_once() -> None:
    """With the last receipt."""
    script = streaming()
    ticket, commands = script.commit()

    assert commands != []
    assert script.settled[ticket] == CommitReceipt(rid(1), 1234)


def test_commit_does_not_wait_for_a_keepalive() -> None:
    """After a reconnect the next one may take minutes, and nothing acked depends on it."""
    script = streaming()
    script.respond(keepalive(2))
    script.reopen()
    ticket, _ = script.commit()

    assert script.settled[ticket] == CommitReceipt(rid(1), 1234)


def test_the_first_commit_may_be_of_a_keepalive() -> None:
    """With nothing confirmed yet, its answer is the first receipt there is."""
    script = Script()
    script.start()
    (request,) = commits(script.respond(keepalive(1)))
    ticket, _ = script.commit()
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(1), 1234)


def test_commit_needs_something_acked() -> None:
    """There is no position to commit, and waiting would be for nothing."""
    script = Script()
    script.start()
    script.read(events(1))

    with pytest.raises(LocalProtocolError, match="nothing to commit"):
        script.commit()


def test_commit_after_the_end_is_refused() -> None:
    """Nobody would answer it."""
    script = streaming()
    script.protocol.abort()

    with pytest.raises(LocalProtocolError, match="closed"):
        script.commit()


def test_commit_of_a_plain_subscription_is_refused() -> None:
    """The service keeps no position for it."""
    with pytest.raises(LocalProtocolError, match="plain subscription"):
        streaming(StartPosition.earliest()).commit()


def test_a_refused_commit_moves_nothing() -> None:
    """Its caller is told; the newest position is tried by itself after a delay."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    ticket, _ = script.commit()
    assert commits(script.respond(answer(request, "not yet"))) == []

    assert isinstance(script.settled[ticket], CommitError)
    assert script.protocol.health().committed == rid(1)
    assert positions(script.ack(3)) == []
    assert positions(script.wait(1.0)) == [rid(3)]


def test_commit_sends_a_refused_position_once_more() -> None:
    """The caller asked for it."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.respond(answer(request, "not yet"))
    ticket, commands = script.commit()
    (request,) = commits(commands)
    script.respond(answer("stray", "an answer to nobody"))
    assert ticket not in script.settled
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(2), 1234)


def refuse_until(script: Script, until: float, *, ack: bool) -> list:
    """Refuse every commit, up to a time; return the last commands. Commits of acks, if asked."""
    number, commands = int(script.now), list[Command]()
    while script.finish is None and script.now < until:
        if ack:
            script.read(events(number))
            commands = script.ack(number)
            number += 1
        out = commits_of(script.protocol).unanswered
        if out is not None:
            commands = script.respond(
                answer(CommitRequest(out.request_id, out.replay_id), "broken")
            )
        if script.finish is None:
            script.wait(1.0)
    return commands


@pytest.mark.parametrize("ack", [False, True], ids=["one-position", "newer-ones"])
def test_refusals_end_the_subscription_only_after_their_time(ack: bool) -> None:
    """A service that refuses for a quarter of an hour is not a broken one; then it is said."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    refuse_until(script, 1000.0 + 899.0, ack=ack)
    assert script.finish is None
    ticket, _ = script.commit()
    commands = refuse_until(script, 3000.0, ack=ack)

    assert script.now < 1000.0 + 1000.0
    assert isinstance(script.settled[ticket], CommitError)
    assert of(CancelStream, commands) == [CancelStream(1)]
    assert isinstance(commands[-1], Finish)
    assert isinstance(commands[-1].error, CommitError)
    assert commands[-1].error.retryable


def test_answers_that_never_come_end_the_subscription() -> None:
    """Each is waited for 30 s; the caller is answered with the end."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    ticket, _ = script.commit()
    assert positions(script.wait(31.0)) == [rid(2)]
    for number in range(100):
        script.wait(30.0)
        if script.finish is None:
            script.respond(keepalive(10 + number))

    assert isinstance(script.finish, Finish)
    assert isinstance(script.finish.error, CommitError)
    assert isinstance(script.settled[ticket], CommitError)


def test_one_answer_may_stand_for_several_commits() -> None:
    """The values of the newest come back; older ones are settled with it."""
    script = streaming()
    script.read(events(2, 3))
    script.ack(2)
    first, _ = script.commit()
    script.ack(3)
    (request,) = commits(script.wait(31.0))
    assert request.replay_id == rid(3)
    second, _ = script.commit()
    script.respond(answer(request))

    assert script.settled[first] == script.settled[second] == CommitReceipt(rid(3), 1234)


def test_a_late_answer_counts() -> None:
    """What the service says it has done, it has done."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    ticket, _ = script.commit()
    script.ack(3)
    script.wait(31.0)
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(2), 1234)


def test_an_idle_stream_repeats_its_last_commit() -> None:
    """The service closes a managed stream without a commit for 1,800 s."""
    script = streaming()
    script.read(events(2))  # held by a slow handler
    sent: list[CommitRequest] = []
    for number in range(9):
        repeated = commits(script.wait(200.0))
        if repeated:
            settle(script)
        sent += repeated
        script.respond(keepalive(10 + number))

    (again,) = sent
    assert again.replay_id == rid(1)
    assert script.now < 1000.0 + 1800.0 + 1.0


def test_keepalives_while_a_commit_is_out() -> None:
    """Merged with the one that was sent, the newer one is sent next."""
    script = Script()
    script.start()
    (request,) = commits(script.respond(keepalive(1)))
    assert commits(script.respond(keepalive(2))) == []
    assert commits(script.respond(keepalive(3))) == []

    assert positions(script.respond(answer(request))) == [rid(3)]
    assert script.protocol.health().committed == rid(1)


def test_a_ticket_survives_a_reconnect() -> None:
    """Its position comes again, is committed on the new stream, and the caller answered."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    ticket, _ = script.commit()
    script.reopen()
    (request,) = commits(script.respond(events(2)))
    assert script.delivered == [2]
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(2), 1234)


def test_a_fatal_end_answers_every_caller() -> None:
    """With the error that ended it."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    ticket, _ = script.commit()
    stopped = failure(FailureKind.STOP)
    script.end(stopped)

    assert script.settled[ticket] is stopped.error
    assert script.protocol.state is State.CLOSED


def test_a_commit_answer_on_a_plain_stream_does_no_harm() -> None:
    """It answers nothing of ours."""
    script = streaming(StartPosition.earliest())

    assert script.respond(answer("x")) == []
    assert credit(script.respond(events(*range(2, 12)))) == 100
