"""Quick checks of the benchmarks; CI also runs `python -m benchmarks --short`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from benchmarks.__main__ import MODULES, OTHERS
from benchmarks.cases import CASES, SHORT, TARGETS
from benchmarks.feed import KINDS, corpus

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "benchmarks.md").read_text()


@pytest.mark.parametrize("name", OTHERS)
def test_a_benchmark_can_be_imported(name, monkeypatch):
    """Each benchmark that no other test runs can at least be imported."""
    monkeypatch.setenv("PYSPARK_PYTHON", "python")  # one module sets it; undone after the test
    importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_a_benchmark_is_documented(name):
    """The benchmarks page mentions every benchmark that the command accepts."""
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_measured(target):
    """Every target has a benchmark run that measures it, so that none lacks a result."""
    shapes = {(run.way, run.kind, run.size, run.streams) for run in CASES[target.case].runs}
    assert (target.way, target.kind, target.size, target.streams) in shapes


@pytest.mark.parametrize("case", [*CASES.values(), SHORT])
def test_runs_of_a_case_are_distinct(case):
    """No two runs of a benchmark case are equal, so that each sample can be assigned to its run."""
    assert len(set(case.runs)) == len(case.runs)


@pytest.mark.parametrize(("kind", "size"), [("change", 630), ("sparse", 265), ("platform", 140)])
def test_sample_events_have_the_size_that_targets_assume(kind, size):
    """The sample events have the average size that the targets were set for, and most of them
    differ.
    """
    _, payloads = corpus(kind)
    assert sum(map(len, payloads)) / len(payloads) == pytest.approx(size, rel=0.05)
    assert len(set(payloads)) > len(payloads) / 2, "the events should differ"
    assert kind in KINDS
