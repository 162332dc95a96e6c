"""Prints, after the tests of scripts/judges.sh, each judge with its version, what it does and the
outcome of its tests, as in the table "Programs of others" of the page of evidence.

    python -m pytest -m "foreign or slow" -p tests.emulator.judges …
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from ..pages import page

_OUTCOMES = ("failed", "error", "skipped", "passed")
"""The worst first."""


class Judge(NamedTuple):
    """A row of the table: the program with its version, what it does, and its tests, in the form
    `file::name`, or `directory/file::name` for tests that are not of the emulator.
    """

    program: str
    does: str
    tests: list[str]


def judges() -> list[Judge]:
    """Return the rows of the table."""
    text = page("emulator-evidence").read_text(encoding="utf-8")
    section = text.partition("\n## Programs of others\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [
        Judge(program.strip(), does, re.findall(r"`([\w/]+::\w+)`", tests))
        for program, does, _, tests in rows[2:]
    ]


def name_of(nodeid: str) -> str:
    """Return the name that a test has in the table."""
    file, _, name = nodeid.partition("[")[0].rpartition("::")
    folder = "streaming/" if "streaming" in Path(file).parts else ""
    return f"{folder}{Path(file).stem.removeprefix('test_')}::{name.removeprefix('test_')}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each judge."""
    outcomes: dict[str, str] = {}
    for outcome in _OUTCOMES:
        for report in terminalreporter.stats.get(outcome, ()):
            outcomes.setdefault(name_of(report.nodeid), outcome)
    terminalreporter.section("judges")
    for judge in judges():
        found = {outcomes.get(name, "not run") for name in judge.tests}
        worst = next((one for one in _OUTCOMES if one in found), "not run")
        terminalreporter.write_line(f"{worst:8} {judge.program}: {judge.does}")
