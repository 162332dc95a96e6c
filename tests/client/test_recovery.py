"""What a subscription gets over by itself, on the emulator, and what it says of it."""

from __future__ import annotations

import time

import pytest

from sfpubsub.config import Timings
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.settings import Settings
from sfpubsub.errors import CommitError

from ..conftest import until
from .test_managed import NAME, TOPIC, collect, committed, orders

# Retries within moments; the budgets are those of the test.
SHORT = {"backoff_initial": 0.02, "backoff_max": 0.1, "slot_initial": 0.02, "slot_max": 0.1}


def test_refused_commits_are_got_over(run_emulator, connect):
    """A service that refuses commits for a while, and at once, ends nothing."""
    plan = FaultPlan([Fault("fail_commit", times=20)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=1))
    emulator.publish(TOPIC, orders(40))
    with connect(emulator).subscribe_managed(NAME) as subscription:
        assert collect(subscription, 40) == list(range(40))
        until(lambda: committed(emulator) is not None, "a commit")
    plan.assert_consumed()


def test_commits_that_are_refused_for_too_long_end_the_subscription(run_emulator, connect):
    """A position that cannot be kept is not silently given up."""
    plan = FaultPlan([Fault("fail_commit", times=10_000)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=1))
    emulator.publish(TOPIC, orders(40))
    client = connect(emulator, timings=Timings(**SHORT, commit_budget=0.5))
    subscription = client.subscribe_managed(NAME)
    began = time.monotonic()
    with pytest.raises(CommitError, match="no commit was accepted") as caught:
        list(subscription)
    assert caught.value.retryable
    assert time.monotonic() - began > 0.5
