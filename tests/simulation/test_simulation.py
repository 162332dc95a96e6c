"""Tests that simulated days break no promise, and that a seed repeats its run.

The runs are in processes of their own: they replace the clocks and threads of the whole library.
How long the tests take is bounded by the number of seeds, so a slow machine fails none of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.states import IN_THE_SUITE

SUITE = range(1, 15)
"""The suite's seeds: about 60 s on a quiet machine."""

OF_A_COMMIT = 7
"""How many seeds are made from a commit's hash: about 30 s on a quiet machine."""

PATIENCE_S = 3600.0
"""Longest time in which a simulation that does not hang ends, on the slowest machine."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tests.simulation`` with some arguments."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def digests(output: str) -> list[str]:
    """Return what identifies each run in an output."""
    return re.findall(r"digest (\w+)", output)


def test_a_stormy_day_breaks_no_promise():
    """Whatever the order of resets, silence, pages, stops, moves and kills: nothing is skipped
    without a gap, no position is committed or stored before all events up to it are acked, no
    thread spins, and everything is caught up within the bound after the last fault. Each of the
    rare states has been reached.
    """
    found = simulate("--days", "1", "--seed", *map(str, SUITE))
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(digests(found.stdout)) == len(SUITE)
    reached = set(re.findall(r"^ *\d+  (.+)$", found.stdout, re.MULTILINE))
    missed = set(IN_THE_SUITE) - reached
    assert not missed, sorted(missed)


def test_each_commit_runs_days_of_its_own():
    """Each commit simulates days that no commit before it has simulated."""
    command = ["git", "rev-parse", "HEAD"]
    root = Path(__file__).parent
    named = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if named.returncode:
        pytest.skip("the sources are not in a git repository")
    first = int(named.stdout[:8], 16)
    seeds = [str(first + index) for index in range(OF_A_COMMIT)]
    found = simulate("--days", "1", "--shrink", "--seed", *seeds)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("seed", ["1"])
def test_a_seed_repeats_its_run(seed):
    """A run that failed can be looked at: its seed gives the same run again."""
    first, second = (simulate("--days", "0.3", "--seed", seed).stdout for _ in range(2))
    assert digests(first) == digests(second)
    assert len(digests(first)) == 1
