"""Several sources in one table, channels of the Streaming API among them: nothing is lost by kills.

By hand for longer: ``python -m tests.faults.several``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import several
from tests.faults.matrix import cells

KILLS = 20


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_every_event_of_every_source_is_there_once_after_kills(format_: str, tmp_path: Path):
    """SIGKILL twenty times, at every moment of a write; each source in its order of arrival."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    todo = cells("topic", KILLS, random.Random(seed))
    report = several.run(format_, tmp_path, todo, seed=seed, say=print)
    assert report.wrong == {}
    assert set(report.published.values()) == {several.EVENTS_A_KILL * (KILLS + 1)}
    assert sum(report.kills.values()) == KILLS, "the kills happened"
    assert report.commits_of_several > 0, "the sources were written together"
