"""Tests of commit tracking: at most one commit in flight, newest position first, and each response
counted once.
"""

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
    """Return a ledger entry whose arrival number and position number are both *order*."""
    return Entry(order, rid(order))


def fresh() -> Commits:
    """Return an empty `Commits` on its first stream."""
    commits = Commits(TIMES)
    commits.new_stream(1, 0.0)
    return commits


def sent(commits: Commits, order: int, now: float = 0.0) -> CommitRequest:
    """Send the commit of position *order*, asserting that it is due, and return the request."""
    request = commits.next_request(entry(order), now)
    assert request is not None
    assert request.replay_id == rid(order)
    return request


def ok(request: CommitRequest) -> CommitAnswer:
    """Return a response that confirms *request*."""
    return CommitAnswer(request.request_id, request.replay_id, None, 77)


def refusal(request: CommitRequest) -> CommitAnswer:
    """Return a response that rejects *request*."""
    return CommitAnswer(request.request_id, None, "not delivered", 77)


def test_one_commit_is_in_flight_at_a_time() -> None:
    """While a commit is in flight, newer positions wait; after the response to it, only the newest
    is sent.
    """
    commits = fresh()
    request = sent(commits, 1)
    assert commits.next_request(entry(2), 0.0) is None
    assert commits.next_request(entry(5), 0.0, again=True) is None

    assert commits.answered(ok(request), 0.0) == 1
    assert commits.receipt == CommitReceipt(rid(1), 77)
    assert sent(commits, 5).request_id != request.request_id


def test_answer_without_request_id_is_matched_by_position() -> None:
    """A response without a request id confirms the commit in flight if it has the same position."""
    commits = fresh()
    sent(commits, 1)

    assert commits.answered(CommitAnswer("", rid(9), None, 0), 0.0) is None
    assert commits.answered(CommitAnswer("", rid(1), None, 0), 0.0) == 1


def test_answer_to_an_unknown_request_is_ignored() -> None:
    """A response with an unknown request id, whether success or error, changes nothing."""
    commits = fresh()
    assert commits.answered(CommitAnswer("other", rid(9), None, 0), 0.0) is None
    sent(commits, 1)
    assert commits.answered(CommitAnswer("other", rid(9), "refused", 0), 0.0) is None

    assert commits.unanswered is not None
    assert commits.receipt is None
    assert commits.last_error is None


def test_rejected_commit_is_retried_after_a_growing_delay() -> None:
    """After a rejection, neither the same position nor a newer one is sent until a growing delay
    has passed, unless the application requests a commit.
    """
    commits = fresh()
    assert commits.answered(refusal(sent(commits, 3)), 0.0) is None
    assert commits.next_request(entry(3), 0.9) is None
    assert commits.next_request(entry(4), 0.9) is None
    assert commits.deadline(entry(4)) == 1.0

    commits.answered(refusal(sent(commits, 3, now=1.0)), 1.0)
    assert commits.deadline(entry(3)) == 3.0
    assert commits.next_request(entry(3), 1.0, again=True) is not None


def test_rejected_position_may_be_sent_on_a_new_stream() -> None:
    """On a new stream, a rejected position may be sent again without delay.

    It may have been rejected because its event had not been delivered on the old stream.
    """
    commits = fresh()
    commits.answered(refusal(sent(commits, 3)), 0.0)
    commits.new_stream(2, 0.5)

    assert sent(commits, 3, now=0.5).request_id.startswith("2-")


def test_unanswered_commit_is_retried_after_the_timeout() -> None:
    """A commit without a response within 30 s counts as failed, and the same position may be sent
    again.
    """
    commits = fresh()
    sent(commits, 1, now=10.0)
    commits.check_timeout(39.9)
    assert commits.last_error is None
    assert commits.deadline(None) == 40.0
    commits.check_timeout(40.0)

    assert commits.last_error == "no answer within 30 s"
    assert commits.next_request(entry(1), 41.0) is not None


def test_late_answer_counts_only_if_it_confirms() -> None:
    """After a commit has timed out, a late success still confirms it, but a late rejection is
    ignored: the timeout has already counted as a failure.
    """
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


def test_confirmation_covers_earlier_unanswered_commits() -> None:
    """A confirmed position also settles earlier commits whose outcome is unknown.

    A response to a commit of an earlier stream is ignored.
    """
    commits = fresh()
    sent(commits, 1, now=0.0)
    commits.check_timeout(30.0)
    request = sent(commits, 2, now=31.0)
    commits.new_stream(2, 40.0)
    assert [sent.order for sent in commits.in_doubt] == [1, 2]
    assert commits.answered(ok(request), 0.0) is None, "answers come only on their own stream"

    assert commits.answered(ok(sent(commits, 2, now=40.0)), 40.0) == 2
    assert commits.in_doubt == []


def test_commits_of_unknown_outcome_do_not_accumulate() -> None:
    """If commits of the same position are lost on many streams, only one of them is kept as
    unresolved.
    """
    commits = fresh()
    for stream in range(2, 50):
        sent(commits, 1)
        commits.new_stream(stream, 0.0)

    assert [sent.order for sent in commits.in_doubt] == [1]


def reject_commits(commits: Commits, now: float, until: float) -> int:
    """Send and reject each commit that becomes due until the time *until*; return their number."""
    count = 0
    now = max(now, commits.deadline(entry(1)) or 0.0)
    while now < until and commits.exhausted is None:
        commits.answered(refusal(sent(commits, 1 + count, now)), now)
        now = commits.deadline(entry(1)) or now
        count += 1
    return count


def test_commits_failing_for_too_long_end_in_an_error() -> None:
    """If commits fail for about 900 s, however many are sent, the subscription ends with a
    retryable error that includes the service's reason.
    """
    commits = fresh()
    assert 10 < reject_commits(commits, 0.0, 899.0) < 30
    assert commits.exhausted is None
    assert reject_commits(commits, 899.0, 2000.0) <= 2

    assert isinstance(commits.exhausted, CommitError)
    assert commits.exhausted.retryable
    assert "not delivered" in str(commits.exhausted)


def test_success_resets_the_failure_time() -> None:
    """A successful commit resets the time after which failing commits end the subscription."""
    commits = fresh()
    reject_commits(commits, 0.0, 899.0)
    commits.answered(ok(sent(commits, 50, now=1000.0)), 1000.0)
    reject_commits(commits, 1000.0, 1800.0)

    assert commits.exhausted is None


def test_time_between_streams_does_not_count_as_failing() -> None:
    """The time between two streams does not count towards the time after which failing commits end
    the subscription.
    """
    commits = fresh()
    commits.answered(refusal(sent(commits, 1)), 0.0)
    commits.new_stream(2, 1800.0)
    commits.answered(refusal(sent(commits, 1, now=3600.0)), 3601.0)

    assert commits.exhausted is None
    reject_commits(commits, 3602.0, 3600.0 + 1000.0)
    assert commits.exhausted is not None


def test_last_confirmed_position_is_committed_again() -> None:
    """With nothing new to commit, the last position is repeated after 1,200 s, because the service
    closes a managed stream without a commit for 1,800 s.
    """
    commits = fresh()
    assert commits.deadline(None) is None, "nothing to repeat"
    commits.answered(ok(sent(commits, 1, now=5.0)), 0.0)
    assert commits.deadline(None) == 1205.0
    assert commits.next_request(None, 1204.9) is None
    again = commits.next_request(None, 1205.0)

    assert again is not None
    assert again.replay_id == rid(1)
    assert commits.answered(ok(again), 0.0) == 0


def test_repeated_commit_is_retried_soon_after_a_timeout() -> None:
    """If a repeated commit times out, it is retried after the usual backoff: waiting for the next
    interval would let the service close the stream.
    """
    commits = fresh()
    commits.answered(ok(sent(commits, 1)), 0.0)
    assert commits.next_request(None, 1200.0) is not None
    commits.check_timeout(1230.0)
    assert commits.deadline(None) == 1231.0

    assert commits.next_request(None, 1231.0) is not None


def test_commit_is_repeated_only_if_the_stream_began_at_its_position() -> None:
    """On a new stream, the last confirmed position is committed again only if the stream began
    there; otherwise, the commit could skip events.
    """
    commits = fresh()
    commits.answered(ok(sent(commits, 1)), 0.0)
    commits.new_stream(2, 100.0)
    assert commits.deadline(None) is None
    assert commits.next_request(None, 1300.0) is None
    commits.began_after_receipt()

    assert commits.deadline(None) == 1300.0
    assert commits.next_request(None, 1300.0) is not None


def test_start_of_a_stream_can_confirm_a_commit() -> None:
    """A commit without a response is confirmed if the next stream begins right after its position;
    its receipt then has no process time.
    """
    commits = fresh()
    commits.answered(refusal(sent(commits, 1)), 0.0)
    sent(commits, 2, now=1.0)
    commits.new_stream(2, 9.0)
    commits.began_after(commits.in_doubt[0], certain=True)

    assert commits.receipt == CommitReceipt(rid(2), None)
    assert commits.in_doubt == []
    assert commits.last_error is None


def test_ticket_is_settled_once_its_position_is_confirmed() -> None:
    """A caller that waits for a commit gets one result: when its position or a later one is
    confirmed, or when the subscription ends.
    """
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


def test_rejection_fails_only_the_callers_of_that_position() -> None:
    """A rejected position raises `CommitError` for the caller that waits for it, not for one that
    waits for a later position.
    """
    commits = fresh()
    commits.wait_for(1, 3)
    commits.wait_for(2, 4)
    commits.answered(refusal(sent(commits, 3)), 0.0)

    (settled,) = commits.settle_refused()
    assert settled.ticket == 1
    assert isinstance(settled.outcome, CommitError)
    assert "not delivered" in str(settled.outcome)


def test_stray_answer_does_not_fail_a_retried_commit() -> None:
    """While a rejected position is being retried, an error with an unknown request id does not fail
    the caller that waits for that position.
    """
    commits = fresh()
    commits.answered(refusal(sent(commits, 3)), 0.0)
    commits.wait_for(1, 3)
    assert commits.next_request(entry(3), 1.0, again=True) is not None
    assert commits.answered(CommitAnswer("stray", None, "refused", 0), 0.0) is None

    assert commits.settle_refused() == []


@pytest.mark.parametrize("error", ["", "refused"])
def test_answer_with_any_error_is_a_rejection(error: str) -> None:
    """A response with an error is a rejection, even if the error's text is empty."""
    commits = fresh()
    request = sent(commits, 1)

    assert commits.answered(CommitAnswer(request.request_id, rid(1), error, 0), 0.0) is None
    assert commits.last_error is not None


def test_commit_is_not_repeated_after_an_ambiguous_stream_start() -> None:
    """The last confirmed position is not committed again while the outcome of a newer commit is
    unknown, because the service may be at either position.
    """
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


def test_commit_is_not_repeated_after_an_uncertain_stream_start() -> None:
    """A position is not committed again if its commit was confirmed only because a stream began
    with an unknown event: the service may then be at another position.
    """
    commits = fresh()
    sent(commits, 1)
    commits.new_stream(2, 100.0)
    commits.began_after(commits.in_doubt[0], certain=False)

    assert commits.receipt == CommitReceipt(rid(1), None)
    assert commits.deadline(None) is None
