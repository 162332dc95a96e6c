"""The promise of the ingest job: killed at any moment, nothing is lost and nothing comes twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import killer

KILLS = 3


@pytest.mark.spark
@pytest.mark.slow  # the kills of scripts/test.sh are those of tests/spark/ingest/test_crashes.py
@pytest.mark.parametrize("source", ["managed", "topic"])
def test_every_published_event_is_in_the_table_once_after_kills(source: str, tmp_path: Path):
    """SIGKILL three times over one stream of 20,000 events; counted in the table, by pyarrow."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    report = killer.run(source, tmp_path, kills=KILLS, seed=seed, say=print)
    assert report.published == 20_000
    assert (report.lost, report.duplicated, report.strangers) == (0, 0, 0), report
    assert report.in_order, report
    # The faults happened: every kill is counted, those after progress by what they waited for.
    assert len(report.kills) == KILLS
    assert {kill.moment for kill in report.kills} >= {"staging", "batch", "random"}
