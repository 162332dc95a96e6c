"""When a mirror's stream has continued after its gaps, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfpubsub.monitoring.observation import NEW
from sfpubsub.spark.mirror.open_gap import OpenGap
from sfpubsub.types import Gap, ReplayId

OLD, NEXT = ReplayId(b"old"), ReplayId(b"next")


def test_a_lost_position_is_open_until_the_next_one_is_durable():
    """The stream may be caught up before that; a run that ends when it is settled would then end
    with stale rows.
    """
    found = OpenGap()
    health = replace(NEW, last_position=OLD, caught_up=True)
    assert not found.is_open(health, OLD, 0)
    lost = replace(health, last_position=NEXT, gaps=(Gap("rejected", "T", OLD),))
    assert [found.is_open(lost, OLD, kept) for kept in (0, 1)] == [True, True]
    assert found.is_awaited
    assert not found.is_open(lost, NEXT, 1)
    assert not found.is_awaited


def test_a_gap_is_not_open_for_ever_if_the_mirror_looks_late():
    """The stream's thread notes the gap before it writes what came after it, so a mirror that looks
    only later knows that the position is a new one, also if no event follows for days.
    """
    found = OpenGap()
    lost = replace(NEW, last_position=NEXT, gaps=(Gap("rejected", "T", OLD),))
    assert found.observe(lost, OLD)
    assert not found.is_open(lost, NEXT, 1)


@pytest.mark.parametrize("reason", ["expired", "rights", "deselected"])
def test_a_gap_that_is_found_on_the_stream_is_open_until_it_is_stored(reason):
    """The stream already has its position behind such a gap, but another process would not know the
    gap before it is stored.
    """
    found = OpenGap()
    health = replace(NEW, last_position=NEXT, gaps=(Gap(reason, "T", OLD),))
    assert found.is_open(health, NEXT, 0)
    assert not found.is_open(health, NEXT, 1)
    assert not found.is_awaited


def test_a_new_process_is_open_until_the_service_has_accepted_its_position():
    """Before that, the service may still refuse the position."""
    found = OpenGap()
    assert found.is_open(NEW, OLD, 0)
    assert not found.is_open(replace(NEW, last_position=OLD), OLD, 0)
