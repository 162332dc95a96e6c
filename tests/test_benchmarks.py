"""The benchmarks work as far as that takes no time; `python -m benchmarks --short` runs in CI."""

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
    """What it is made of is where it says, though no test runs it."""
    monkeypatch.setenv("PYSPARK_PYTHON", "python")  # one of them sets it
    importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_a_benchmark_is_on_the_page(name):
    """Everything that the command takes is explained."""
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_measured(target):
    """A row of the table that no run gives a figure for would never be seen."""
    shapes = {(run.way, run.kind, run.size, run.streams) for run in CASES[target.case].runs}
    assert (target.way, target.kind, target.size, target.streams) in shapes


@pytest.mark.parametrize("case", [*CASES.values(), SHORT])
def test_a_case_measures_no_run_twice(case):
    """Samples are told apart by their run."""
    assert len(set(case.runs)) == len(case.runs)


@pytest.mark.parametrize(("kind", "size"), [("change", 630), ("sparse", 265), ("platform", 140)])
def test_the_size_of_events(kind, size):
    """The shapes are those that targets were set for."""
    _, payloads = corpus(kind)
    assert sum(map(len, payloads)) / len(payloads) == pytest.approx(size, rel=0.05)
    assert len(set(payloads)) > len(payloads) / 2, "they vary"
    assert kind in KINDS
