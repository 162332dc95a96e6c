"""The guarantee of `sfpubsub ingest`: even if it is killed at any moment, no event is lost or
written twice.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import killer

KILLS = 3


@pytest.mark.spark
@pytest.mark.slow  # scripts/test.sh relies on the kills in tests/spark/ingest/test_crashes.py
@pytest.mark.parametrize("source", ["managed", "topic"])
def test_every_published_event_is_in_the_table_once_after_kills(source: str, tmp_path: Path):
    """While 20,000 events are published, ingest is killed with SIGKILL three times; afterwards
    pyarrow finds each event in the table exactly once, in order.
    """
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    report = killer.run(source, tmp_path, kills=KILLS, seed=seed, say=print)
    assert report.published == 20_000
    assert (report.lost, report.duplicated, report.strangers) == (0, 0, 0), report
    assert report.in_order, report
    # All kills happened, with each kind of progress as a trigger and at random times.
    assert len(report.kills) == KILLS
    assert {kill.moment for kill in report.kills} >= {"staging", "batch", "random"}
