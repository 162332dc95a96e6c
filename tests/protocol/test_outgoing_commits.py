"""Tests of how managed subscriptions commit acked positions, and of what each `commit` call returns
or raises.
"""

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
    """Return the positions of the commit requests in *commands*."""
    return [request.replay_id for request in commits(commands)]


def test_ack_commits_the_acked_prefix() -> None:
    """If events are acked out of order, only positions whose earlier events are all acked are
    committed.

    The newest such position waits while another commit is in flight.
    """
    script = streaming()
    script.read(events(2, 3, 4))
    assert script.ack(4) == []

    assert positions(script.ack(2)) == [rid(2)]
    assert script.ack(3) == [], "only one commit is in flight"
    settle_commands = script.respond(answer("1-2", replay_id=rid(2)))
    assert positions(settle_commands) == [rid(4)], "the newest is sent"


def test_batch_is_acked_and_committed_with_the_next_read() -> None:
    """Taking the next batch acks the previous one and commits it in the same call."""
    script = streaming()
    script.read(events(2, 3))
    script.respond(events(4))
    batch = script.inbox.popleft()
    done = (script.seqs[2], script.seqs[3])
    taken = script.protocol.taken(len(batch.events), batch.size, script.now, done=done)
    assert positions(script.did(taken)) == [rid(3)]


def test_credit_and_commit_share_a_request() -> None:
    """A confirmation that makes room sends one request, which contains both the credit and the next
    commit.
    """
    script = streaming(limits=Limits(max_unacked=10))
    script.read(events(*range(2, 12), pending=0))
    (first,) = commits(script.did(script.protocol.acked(1, 9, script.now)))
    script.ack(11)
    (request,) = of(SendRequest, script.respond(answer(first)))

    assert request.num_requested == 9
    assert request.commit is not None


def test_commits_are_limited_by_a_pause() -> None:
    """Commits are at least `commit_pause` seconds apart, and commit the newest acked position."""
    script = streaming(timings=Timings(commit_pause=2.0))
    script.read(events(2, 3, 4))
    assert script.ack(2) == [], "a commit, of the keepalive, was sent just before"
    assert positions(script.wait(1.9)) == []
    assert script.ack(3) == []

    assert script.protocol.deadline() == pytest.approx(script.now + 0.1)
    assert positions(script.wait(0.2)) == [rid(3)], "the newest is sent"
    settle(script)
    script.wait(2.0)
    assert positions(script.ack(4)) == [rid(4)], "the pause is over"


def test_commit_and_drain_skip_the_pause() -> None:
    """`commit` and `drain` commit the acked position at once, regardless of `commit_pause`."""
    for ask in (lambda script: script.commit()[1], lambda script: script.drain()):
        script = streaming(timings=Timings(commit_pause=2.0))
        script.read(events(2))
        assert script.ack(2) == []
        assert positions(ask(script)) == [rid(2)]


def test_keepalive_is_committed() -> None:
    """A keepalive's position is committed, so that an idle subscription's position stays recent."""
    script = streaming()

    assert positions(script.respond(keepalive(9))) == [rid(9)]


def test_commit_answer_changes_neither_credit_nor_position() -> None:
    """A commit response confirms a commit; its stale position and pending count are ignored."""
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


def test_events_in_a_commit_answer_are_delivered() -> None:
    """If a response both confirms a commit and contains events, both take effect."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.respond(answer(request, events=events(3).events))

    assert script.delivered == [2, 3]
    assert script.protocol.health().committed == rid(2)
    assert script.protocol.health().outstanding == 99


def test_commit_returns_the_receipt() -> None:
    """`commit` returns the receipt of its own position, not of an earlier one in flight."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    script.ack(3)
    ticket, commands = script.commit()
    assert commands == []
    (request,) = commits(script.respond(answer(request)))
    assert ticket not in script.settled, "2 is confirmed, but the caller waits for 3"
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(3), 1234)


def test_commit_with_nothing_new_returns_the_last_receipt() -> None:
    """With nothing new to commit, `commit` returns the last receipt at once."""
    script = streaming()
    ticket, commands = script.commit()

    assert commands != []
    assert script.settled[ticket] == CommitReceipt(rid(1), 1234)


def test_commit_does_not_wait_for_a_keepalive() -> None:
    """After a reconnect, `commit` returns the last receipt without waiting for a keepalive.

    A keepalive might not be redelivered for minutes, and its position need not be committed.
    """
    script = streaming()
    script.respond(keepalive(2))
    script.reopen()
    ticket, _ = script.commit()

    assert script.settled[ticket] == CommitReceipt(rid(1), 1234)


def test_first_commit_may_be_a_keepalive() -> None:
    """If the first position ever committed is a keepalive's, `commit` returns its receipt."""
    script = Script()
    script.start()
    (request,) = commits(script.respond(keepalive(1)))
    ticket, _ = script.commit()
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(1), 1234)


def test_commit_without_acks_raises() -> None:
    """Calling `commit` without a position to commit raises an error instead of waiting forever."""
    script = Script()
    script.start()
    script.read(events(1))

    with pytest.raises(LocalProtocolError, match="nothing to commit"):
        script.commit()


def test_commit_after_close_raises() -> None:
    """Calling `commit` on a closed subscription raises an error."""
    script = streaming()
    script.protocol.abort()

    with pytest.raises(LocalProtocolError, match="closed"):
        script.commit()


def test_commit_on_a_plain_subscription_raises() -> None:
    """Calling `commit` on a plain subscription raises an error: its position is not stored."""
    with pytest.raises(LocalProtocolError, match="plain subscription"):
        streaming(StartPosition.earliest()).commit()


def test_rejected_commit_fails_its_caller_and_is_retried() -> None:
    """A rejected commit makes the waiting `commit` call raise `CommitError`.

    The committed position does not change. After a delay, the newest acked position is sent.
    """
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    ticket, _ = script.commit()
    assert commits(script.respond(answer(request, "not yet"))) == []

    assert isinstance(script.settled[ticket], CommitError)
    assert script.protocol.health().committed == rid(1)
    assert positions(script.ack(3)) == []
    assert positions(script.wait(1.0)) == [rid(3)]


def test_commit_retries_a_rejected_position() -> None:
    """Calling `commit` retries a rejected position at once.

    A rejection of an unknown commit request is ignored.
    """
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
    """Reject each commit until the time *until* or the end of the subscription.

    Return the commands that the last ack or rejection caused.

    Args:
        script: The subscription.
        until: Simulated time, in seconds.
        ack: Whether to deliver and ack a new event before each rejection, so that the position to
            commit increases.
    """
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
def test_subscription_ends_after_15_minutes_of_rejections(ack: bool) -> None:
    """Commit rejections for 900 s end the subscription with a retryable `CommitError`.

    This also fails a waiting `commit`, whether the rejected position stays the same or changes.
    """
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


def test_subscription_ends_if_commits_stay_unanswered() -> None:
    """Repeated commit timeouts end the subscription with `CommitError`.

    A waiting `commit` raises it too.
    """
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


def test_one_answer_may_confirm_several_commits() -> None:
    """If a commit times out, the confirmation of a newer one completes both `commit` calls."""
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


def test_late_commit_answer_counts() -> None:
    """If a commit succeeds after its timeout, the waiting `commit` call still gets the receipt."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    ticket, _ = script.commit()
    script.ack(3)
    script.wait(31.0)
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(2), 1234)


def test_idle_stream_repeats_its_last_commit() -> None:
    """If a slow handler acks nothing for half an hour, the last commit is repeated once.

    Otherwise, the service would close the stream after 1,800 s without a commit.
    """
    script = streaming()
    script.read(events(2))  # not acked by a slow handler
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


def test_keepalives_during_a_commit_are_merged() -> None:
    """After several keepalives during a commit, only the newest is committed next."""
    script = Script()
    script.start()
    (request,) = commits(script.respond(keepalive(1)))
    assert commits(script.respond(keepalive(2))) == []
    assert commits(script.respond(keepalive(3))) == []

    assert positions(script.respond(answer(request))) == [rid(3)]
    assert script.protocol.health().committed == rid(1)


def test_commit_call_survives_a_reconnect() -> None:
    """After a reconnect, the acked event is redelivered and its position is committed again.

    The waiting `commit` call then gets its receipt.
    """
    script = streaming()
    script.read(events(2))
    script.ack(2)
    ticket, _ = script.commit()
    script.reopen()
    (request,) = commits(script.respond(events(2)))
    assert script.delivered == [2]
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(2), 1234)


def test_fatal_error_fails_waiting_commit_calls() -> None:
    """A waiting `commit` fails with the error that closes the subscription."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    ticket, _ = script.commit()
    stopped = failure(FailureKind.STOP)
    script.end(stopped)

    assert script.settled[ticket] is stopped.error
    assert script.protocol.state is State.CLOSED


def test_commit_answer_on_a_plain_stream_is_ignored() -> None:
    """A commit response on a plain subscription is ignored, and events are requested as usual."""
    script = streaming(StartPosition.earliest())

    assert script.respond(answer("x")) == []
    assert credit(script.respond(events(*range(2, 12)))) == 100
