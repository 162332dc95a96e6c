"""Tests of what an error holds back, and of the order of reads."""

from __future__ import annotations

import pytest

from sfpubsub.errors import (
    AuthenticationError,
    PermissionDeniedError,
    QuotaExceededError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
    SfPubSubError,
    StreamUnavailableError,
    WriteError,
)
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror.deadlines import Deadlines, Now
from sfpubsub.spark.mirror.due_reads import Rounds, Wanted, smallest_first, wanted_reads
from sfpubsub.spark.mirror.failures import Failures, RequestBackoff, can_resume
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.reads import AsOf, Entry


def test_trickle_of_one_object_does_not_starve_the_others():
    """An object with new entries all the time, first in order, gets every second read at most, if
    another one has an entry.
    """
    rounds = Rounds()
    reads = [Wanted("Account", "ids", ("1",)), Wanted("Contact", "ids", ("2",))]
    assert [rounds.next(reads) for _ in range(6)] == reads * 3
    sweep = [reads[0], Wanted("Account", "sweep")]
    assert {rounds.next(sweep).kind for _ in range(2)} == {"ids", "sweep"}


@pytest.mark.parametrize(
    ("error", "scope", "resumes"),
    [
        (StreamUnavailableError("down"), Scope.ORG, True),
        (QuotaExceededError("used up", retryable=False), Scope.ORG, True),
        (AuthenticationError("later", retryable=True), Scope.ORG, True),
        (AuthenticationError("refused"), Scope.MIRROR, False),
        (WriteError("full"), Scope.MIRROR, False),
        (ValueError("a bug"), Scope.MIRROR, False),
        (RequestRefusedError("the job failed"), Scope.OBJECT, False),
        (RequestRefusedError("x", error_code="QUERY_TIMEOUT", retryable=True), Scope.OBJECT, True),
        (RequestRefusedError("x", status=404, error_code="NOT_FOUND"), Scope.GONE, False),
        (RequestRefusedError("x", status=400, error_code="INVALID_TYPE"), Scope.GONE, False),
        (ReadExpiredError("x", status=404, error_code="NOT_FOUND"), Scope.OBJECT, False),
        (PermissionDeniedError("x"), Scope.OBJECT, False),
        (RemoteProtocolError("x"), Scope.OBJECT, False),
    ],
)
def test_error_stops_no_more_than_it_has_to(error: BaseException, scope: Scope, resumes: bool):
    """An error of one object stops only that object, and its read goes on only if that can help."""
    assert scope_of(error) is scope
    assert can_resume(error) is resumes


def test_object_whose_read_failed_waits_alone():
    """After a failed read, only its object waits, longer each time, with the reason; an error of
    the org holds back every request.
    """
    time = Deadlines(Now(0.0, 5.0))
    waiting = Waiting(time)
    failures = Failures(waiting, time)
    refused = RequestRefusedError("the query job 750 of Account ended as Failed")

    def may_read(entity: str, at: float) -> bool:
        time.now = Now(at, at)
        return failures.may_read(entity)

    begun = 0.0
    for delay in (10.0, 20.0):
        assert failures.failed("Account", refused) is Scope.OBJECT
        assert "ended as Failed" in waiting.of("Account")[Why.READ].text
        assert not may_read("Account", begun + delay - 1)
        assert time.next == begun + delay
        assert may_read("Contact", begun)
        assert may_read("Account", begun + delay)
        assert not waiting.of("Account")
        begun += delay
        time.next = float("inf")
    failures.succeeded("Account")
    failures.failed("Account", refused)
    assert may_read("Account", begun + 10.0)
    failures.failed("Account", refused)  # a describe request, during a read
    failures.succeeded("Account")  # the read
    assert not waiting.of("Account")
    down: SfPubSubError = StreamUnavailableError("down")
    time.now = Now(100.0, 5.0)
    assert failures.failed("Account", down) is Scope.ORG
    time.now = Now(109.0, 5.0)
    assert not failures.may_ask
    assert "down" in (failures.reason or "")
    time.now = Now(110.0, 5.0)
    assert failures.may_ask


def test_object_that_is_gone_is_looked_at_again_at_most_hourly():
    """An object that the org no longer has is asked about again after a minute, then after twice
    the time, up to an hour; until then it is not read.
    """
    time = Deadlines(Now(0.0, 5.0))
    waiting = Waiting(time)
    failures = Failures(waiting, time)
    gone = RequestRefusedError("no such object", status=404, error_code="NOT_FOUND")
    looks = []
    time.now = Now(0.0, 0.0)
    for _ in range(9):
        assert failures.failed("Account", gone) is Scope.GONE
        time.next = float("inf")
        assert not failures.may_look("Account")
        looks.append(time.next - time.now.clock)
        time.now = Now(time.next, time.next)
        assert failures.may_look("Account")
    assert looks == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert waiting.of("Account")[Why.GONE].since == 0.0
    assert not failures.may_read("Account")
    assert failures.is_there("Account")
    assert failures.may_read("Account")
    assert not failures.is_there("Account")


def test_retry_delays_grow_up_to_ten_minutes():
    """The delay doubles with each failure, up to ten minutes, and a successful read resets it.

    If the daily limit of requests is used up, the delay is ten minutes at once.
    """
    time = Deadlines(Now(0.0, 0.0))
    patience = RequestBackoff(time)
    error = StreamUnavailableError("down")
    assert patience.is_over
    waits = [patience.after(error) for _ in range(8)]
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    time.now = Now(599.0, 0.0)
    assert not patience.is_over
    time.now = Now(600.0, 0.0)
    assert patience.is_over
    patience.reset()
    assert patience.after(QuotaExceededError("used up", retryable=False)) == 600.0
    assert patience.after(error) == 20.0


def test_after_a_gap_the_smallest_object_is_read_first():
    """If all objects wait for a read, they are read once each, by ascending number of records;
    objects that were never read come last.
    """
    entry = Entry(None, Cue(Reason.GAP, None, None, 0), 1)
    objects = ["New", "Case", "Lead", "Account"]
    order = smallest_first(objects, {"Case": 500, "Lead": 0, "Account": 30, "New": None})
    rounds, queue, begun = Rounds(), {name: [entry] for name in objects}, []
    while reads := wanted_reads(queue, [name for name in order if name in queue], AsOf(1, 1)):
        choice = rounds.next(reads)
        begun.append(choice.entity)
        del queue[choice.entity]
    assert begun == ["Lead", "Account", "Case", "New"]
