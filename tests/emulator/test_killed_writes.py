"""Tests that a kill at any write of the store breaks, loses and doubles nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest


def kills(directory: Path, *arguments: str) -> int:
    """Run `write_killer`, which must find nothing wrong; return the number of kills."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulator.write_killer", str(directory), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item for item in results if item["problems"]] == []
    return sum(item["killed"] for item in results)


EVERY = 1_000_000
"""More writes than there are."""


@pytest.mark.parametrize(
    ("last", "step"), [(150, 6), (EVERY, 151), pytest.param(EVERY, 1, marks=pytest.mark.slow)]
)
def test_a_kill_at_a_write_of_the_database_breaks_nothing(tmp_path, last, step):
    """Killed at its n-th write of a database, during the first start, changes of records, published
    events or a Bulk API job, an emulator starts again complete: each acknowledged record and event
    is there, and each seeded event, record and change event exactly once.
    """
    assert kills(tmp_path, "writes", str(last), str(step)) >= min(last, 1000) // step


def test_a_kill_at_a_write_of_another_file_breaks_nothing(tmp_path):
    """Killed while it writes an uploaded file or a directory, an emulator completes the job with
    all rows once the client has sent them, never with half of them.
    """
    assert kills(tmp_path, "files") > 5


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_during_a_restore_leaves_no_half(tmp_path, step):
    """Killed at a write of a restore, an org is that of before or that of the snapshot, and uses no
    replay id again.
    """
    assert kills(tmp_path, "restores", str(step)) > 50 // step


@pytest.mark.slow
def test_a_kill_at_a_random_moment_breaks_nothing(tmp_path):
    """After a kill at any of 50 random moments, nothing is broken, lost or doubled."""
    seed = random.randrange(2**32)
    print("seed", seed)
    kills(tmp_path, "moments", "50", str(seed))
