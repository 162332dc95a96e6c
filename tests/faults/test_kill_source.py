"""The guarantee of the streaming source: even if it is killed at any moment, no event is lost or
delivered twice.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import source_killer

KILLS = 3


@pytest.mark.spark
def test_every_published_event_is_in_the_table_once_after_kills(tmp_path: Path):
    """The driver, Spark's JVM and the source's process are killed once each, and at least one kill
    hits an uncommitted batch. Each event is still in the table exactly once, in order.
    """
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    report = source_killer.run(tmp_path, kills=KILLS, events=3_000, seed=seed, say=print)
    assert report.published == 3_000
    assert (report.lost, report.duplicated, report.strangers) == (0, 0, 0), report
    assert report.in_order, report
    # Each kill hit a running process, and at least one an uncommitted batch.
    assert {kill.victim for kill in report.kills} == {"driver", "jvm", "source"}
    assert len(report.kills) == KILLS
    assert report.repeated >= 1
