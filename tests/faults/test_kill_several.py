"""No event is lost to kills if several sources, including Streaming API channels, share a table.

For a longer run: ``python -m tests.faults.several``.
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
def test_every_source_is_complete_after_kills(format_: str, tmp_path: Path):
    """After twenty kills with SIGKILL, spread over all moments of a write, the table contains each
    event exactly once, in the order of its source.
    """
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    todo = cells("topic", KILLS, random.Random(seed))
    report = several.run(format_, tmp_path, todo, seed=seed, say=print)
    assert report.wrong == {}
    assert set(report.published.values()) == {several.EVENTS_A_KILL * (KILLS + 1)}
    assert sum(report.kills.values()) == KILLS, "not all kills happened"
    assert report.commits_of_several > 0, "no batch contains rows of more than one source"
