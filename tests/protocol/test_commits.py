"""Commits: at most one out, the newest wins, and every answer counts for what it is."""

from __future__ import annotations

import pytest

from sfpubsub.config import Timings
from sfpubsub.errors import CommitError
from sfpubsub.protocol.commands import CommitRequest, SettleCommit
from sfpubsub.protocol.commits import Commits
from sfpubsub.protocol.events import CommitAnswer
from sfpubsub.protocol.run import Entry
from sfpubsub.types import CommitReceipt
from tests.protocol.scripted import rid

TIMES = Timings(commit_interval=1200.0, commit_timeout=30.0, commit_pause=0.0)


def entry(order: int) -> Entry:
    return Entry(order, rid(order))


def fresh() -> Commits:
    commits = Commits(TIMES)
    commits.new_stream(1, 0.0)
    return commits


def sent(commits: Commits, order: int, now: float = 0.0) -> CommitRequest:
    request = commits.next_request(entry(order), now)
    assert request is not None
    assert request.replay_id == rid(order)
    return request


def ok(request: CommitRequest) -> CommitAnswer:
    return CommitAnswer(request.request_id, request.replay_id, None, 77)


def refusal(request: CommitRequest) -> CommitAnswer:
    return CommitAnswer(request.request_id, None, "not delivered", 77)


def test_one_commit_at_a_time() -> None:
    """While one is out the newest prefix waits, and goes after the answer."""
    commits = fresh()
    request = sent(commits, 1)
    assert commits.next_request(entry(2), 0.0) is None
    assert commits.next_request(entry(5), 0.0, again=True) is None

    assert commits.answered(ok(request), 0.0) == 1
    assert commits.receipt == CommitReceipt(rid(1), 77)
    assert sent(commits, 5).request_id != request.request_id


def test_an_answer_without_request_id_is_known_by_its_position() -> None:
    """The request id may be left out of an answer."""
    commits = fresh()
    sent(commits, 1)

    assert commits.answered(CommitAnswer("", rid(9), None, 0), 0.0) is None
    assert commits.answered(CommitAnswer("", rid(1), None, 0), 0.0) == 1


def test_an_answer_to_nobody_confirms_nothing() -> None:
    """A made-up or foreign answer moves no position and fails nothing."""
    commits = fresh()
    assert commits.answered(CommitAnswer("other", rid(9), None, 0), 0.0) is None
    sent(commits, 1)
    assert commits.answered(CommitAnswer("other", rid(9), "refused", 0), 0.0) is None

    assert commits.unanswered is not None
    assert commits.receipt is None
    assert commits.last_error is None


def test_after_a_refusal_a_growing_delay_runs() -> None:
    """Then the newest position goes, be it the refused one; a caller need not wait."""
    commits = fresh()
    assert commits.answered(refusal(sent(commits, 3)), 0.0) is None
    assert commits.next_request(entry(3), 0.9) is None
    assert commits.next_request(entry(4), 0.9) is None
    assert commits.deadline(entry(4)) == 1.0

    commits.answered(refusal(sent(commits, 3, now=1.0)), 1.0)
    assert commits.deadline(entry(3)) == 3.0
    assert commits.next_request(entry(3), 1.0, again=True) is not None


def test_a_new_stream_may_send_a_refused_position() -> None:
    """It may have been refused because it was not sent on that stream."""
    commits = fresh()
    commits.answered(refusal(sent(commits, 3)), 0.0)
    commits.new_stream(2, 0.5)

    assert sent(commits, 3, now=0.5).request_id.startswith("2-")


def test_a_commit_without_answer_is_tried_again() -> None:
    """After the timeout it counts as failed, and the same position may go again."""
    commits = fresh()
    sent(commits, 1, now=10.0)
    commits.check_timeout(39.9)
    assert commits.last_error is None
    assert commits.deadline(None) == 40.0
    commits.check_timeout(40.0)

    assert commits.last_error == "no answer within 30 s"
    assert commits.next_request(entry(1), 41.0) is not None


def test_a_late_answer_counts_when_it_is_good() -> None:
    """A bad one was counted as a timeout already."""
    commits = fresh()
    first = sent(commits, 1, now=0.0)
    commits.check_timeout(30.0)
    second = sent(commits, 2, now=31.0)
    commits.check_timeout(61.0)

    assert commits.answered(refusal(second), 62.0) is None
    assert commits.last_error == "no answer within 30 s"
    assert commits.answered(ok(first), 62.0) == 1
    assert commits.last_error is None
    assert commits.receipt == CommitReceipt(rid(1), 77)


def test_a_later_confirmation_covers_what_was_not_answered() -> None:
    """One answer may stand for several commits; nothing of them is kept."""
    commits = fresh()
    sent(commits, 1, now=0.0)
    commits.check_timeout(30.0)
    request = sent(commits, 2, now=31.0)
    commits.new_stream(2, 40.0)
    assert [sent.order for sent in commits.in_doubt] == [1, 2]
    assert commits.answered(ok(request), 0.0) is None, "answers come only on their own stream"

    assert commits.answered(ok(sent(commits, 2, now=40.0)), 40.0) == 2
    assert commits.in_doubt == []


def test_commits_of_unknown_outcome_do_not_pile_up() -> None:
    """A stream that breaks after every commit leaves one memory a position."""
    commits = fresh()
    for stream in range(2, 50):
        sent(commits, 1)
        commits.new_stream(stream, 0.0)

    assert [sent.order for sent in commits.in_doubt] == [1]


def fail(commits: Commits, now: float, until: float) -> int:
    """Refuse every commit that comes when it may, up to a time; return how many there were."""
    count = 0
    now = max(now, commits.deadline(entry(1)) or 0.0)
    while now < until and commits.exhausted is None:
        commits.answered(refusal(sent(commits, 1 + count, now)), now)
        now = commits.deadline(entry(1)) or now
        count += 1
    return count


def test_commits_that_fail_for_too_long_end_it() -> None:
    """However many or few there were: a service may refuse for a while, and at once."""
    commits = fresh()
    assert 10 < fail(commits, 0.0, 899.0) < 30
    assert commits.exhausted is None
    assert fail(commits, 899.0, 2000.0) <= 2

    assert isinstance(commits.exhausted, CommitError)
    assert commits.exhausted.retryable
    assert "not delivered" in str(commits.exhausted)


def test_one_success_starts_the_time_again() -> None:
    """It is the time without any."""
    commits = fresh()
    fail(commits, 0.0, 899.0)
    commits.answered(ok(sent(commits, 50, now=1000.0)), 1000.0)
    fail(commits, 1000.0, 1800.0)

    assert commits.exhausted is None


def test_time_without_a_stream_is_not_counted() -> None:
    """An outage of half an hour between two refusals is no half hour of refusals."""
    commits = fresh()
    commits.answered(refusal(sent(commits, 1)), 0.0)
    commits.new_stream(2, 1800.0)
    commits.answered(refusal(sent(commits, 1, now=3600.0)), 3601.0)

    assert commits.exhausted is None
    fail(commits, 3602.0, 3600.0 + 1000.0)
    assert commits.exhausted is not None


def test_the_last_confirmed_position_is_repeated() -> None:
    """The service closes a managed stream that commits nothing for 1,800 s."""
    commits = fresh()
    assert commits.deadline(None) is None, "nothing to repeat"
    commits.answered(ok(sent(commits, 1, now=5.0)), 0.0)
    assert commits.deadline(None) == 1205.0
    assert commits.next_request(None, 1204.9) is None
    again = commits.next_request(None, 1205.0)

    assert again is not None
    assert again.replay_id == rid(1)
    assert commits.answered(ok(again), 0.0) == 0


def test_a_repetition_that_fails_is_tried_again_soon() -> None:
    """With the next interval it would be too late: the service closes the stream after 1,800 s."""
    commits = fresh()
    commits.answered(ok(sent(commits, 1)), 0.0)
    assert commits.next_request(None, 1200.0) is not None
    commits.check_timeout(1230.0)
    assert commits.deadline(None) == 1231.0

    assert commits.next_request(None, 1231.0) is not None


def test_a_receipt_is_repeated_only_where_the_service_stands_there() -> None:
    """On a stream that was moved back, the old position would pass over events."""
    commits = fresh()
    commits.answered(ok(sent(commits, 1)), 0.0)
    commits.new_stream(2, 100.0)
    assert commits.deadline(None) is None
    assert commits.next_request(None, 1300.0) is None
    commits.began_after_receipt()

    assert commits.deadline(None) == 1300.0
    assert commits.next_request(None, 1300.0) is not None


def test_the_beginning_of_a_stream_can_confirm() -> None:
    """A commit that was carried out and never answered is learned from what comes next."""
    commits = fresh()
    commits.answered(refusal(sent(commits, 1)), 0.0)
    sent(commits, 2, now=1.0)
    commits.new_stream(2, 9.0)
    commits.began_after(commits.in_doubt[0], certain=True)

    assert commits.receipt == CommitReceipt(rid(2), None)
    assert commits.in_doubt == []
    assert commits.last_error is None
    assert commits.last_error is None


def test_tickets_are_settled_by_what_they_wait_for() -> None:
    """A caller is answered by its own position or a later one, once."""
    commits = fresh()
    commits.wait_for(1, 2)
    commits.wait_for(2, 5)
    request = sent(commits, 3)
    order = commits.answered(ok(request), 0.0)
    assert order == 3
    receipt = CommitReceipt(rid(3), 77)

    assert commits.settle(order) == [SettleCommit(1, receipt)]
    assert commits.settle(order) == []
    (left,) = commits.settle_all(CommitError("closed"))
    assert left.ticket == 2
    assert commits.settle_all(CommitError("closed")) == []


def test_a_refusal_is_the_answer_for_those_who_wait_for_it() -> None:
    """And for nobody else."""
    commits = fresh()
    commits.wait_for(1, 3)
    commits.wait_for(2, 4)
    commits.answered(refusal(sent(commits, 3)), 0.0)

    (settled,) = commits.settle_refused()
    assert settled.ticket == 1
    assert isinstance(settled.outcome, CommitError)
    assert "not delivered" in str(settled.outcome)


def test_a_position_asked_for_again_is_not_refused_until_it_is() -> None:
    """A stray answer must not fail the caller whose second attempt is on its way."""
    commits = fresh()
    commits.answered(refusal(sent(commits, 3)), 0.0)
    commits.wait_for(1, 3)
    assert commits.next_request(entry(3), 1.0, again=True) is not None
    assert commits.answered(CommitAnswer("stray", None, "refused", 0), 0.0) is None

    assert commits.settle_refused() == []


@pytest.mark.parametrize("error", ["", "refused"])
def test_any_error_is_a_refusal(error: str) -> None:
    """Also one without words."""
    commits = fresh()
    request = sent(commits, 1)

    assert commits.answered(CommitAnswer(request.request_id, rid(1), error, 0), 0.0) is None
    assert commits.last_error is not None


def test_an_ambiguous_beginning_repeats_nothing() -> None:
    """An unanswered commit of a keepalive may stand behind the receipt and begin the same way."""
    commits = fresh()
    commits.answered(ok(sent(commits, 1)), 0.0)
    sent(commits, 2)
    commits.new_stream(2, 100.0)
    commits.began_after_receipt()
    assert commits.deadline(None) is None

    sent(commits, 3)
    commits.new_stream(3, 200.0)
    commits.began_after(commits.in_doubt[0], certain=True)
    assert commits.deadline(None) is None
    commits.began_after(commits.in_doubt[0], certain=True)
    assert commits.deadline(None) == 1400.0


def test_an_uncertain_beginning_repeats_nothing() -> None:
    """A new event may also be an old one that was forgotten, of a service that moved back."""
    commits = fresh()
    sent(commits, 1)
    commits.new_stream(2, 100.0)
    commits.began_after(commits.in_doubt[0], certain=False)

    assert commits.receipt == CommitReceipt(rid(1), None)
    assert commits.deadline(None) is None
