"""Tests that simulated days break no promise, and that a seed repeats its run.

The runs are in a process of their own: they replace the clocks and threads of the whole library.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.simulation.states import SOMETIMES

SUITE = (1, 2, 3, 4, 5, 6, 7, 8)
"""The suite's seeds."""

PATIENCE_S = 1200.0


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
    assert set(SOMETIMES) <= reached, sorted(set(SOMETIMES) - reached)


@pytest.mark.parametrize("seed", ["1"])
def test_a_seed_repeats_its_run(seed):
    """A run that failed can be looked at: its seed gives the same run again."""
    first, second = (simulate("--days", "0.3", "--seed", seed).stdout for _ in range(2))
    assert digests(first) == digests(second)
    assert len(digests(first)) == 1
