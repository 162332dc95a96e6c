"""Writes what the parity tests found in an org to one file, without ids, names and tokens.

    python -m pytest tests/parity -p tests.parity.report --parity-report FILE

A pytest plugin for scripts/parity.sh. The file is JSON: the outcome of each test, and each fact of
the page of evidence that is marked UNCONF, with the outcome of its tests and what they saw, or "not
tried".
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.emulator.faults.refusals import FAILURES

from ..pages import page
from .conftest import NAMES

_PATTERNS = (
    (re.compile(r"\b00D\w{12}(?:\w{3})?![\w.]+"), "TOKEN"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "EMAIL"),
    (re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:salesforce|force)\.com\b"), "HOST"),
    (re.compile(r"\b[A-Za-z]\w*__(?:[a-z]{1,3}|ChangeEvent)\b"), "NAME"),
    # An id of a record, which has digits, unlike a word of this length; or one of a call.
    (re.compile(r"\b(?=\w*\d\w*\d\w*\d)[a-zA-Z0-9]{15}(?:[a-zA-Z0-9]{3})?\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
)


def redacted(text: str, settings: dict[str, str]) -> str:
    """Return a text without the values of settings, and without what looks like an id, a name that
    is not Salesforce's own, an address of a person or of an org, or a token.
    """
    for pattern, name in _PATTERNS:
        text = pattern.sub(name, text)
    secrets = {value: f"PARITY_{name}" for name, value in settings.items() if value}
    host = settings.get("INSTANCE_URL", "").partition("://")[2]
    secrets |= {host: "HOST"} if host else {}
    for name in ("TENANT_ID", "USER_ID"):  # both forms of an id
        secrets |= {settings[name][:15]: f"PARITY_{name}"} if settings.get(name) else {}
    secrets[str(Path.home())] = "HOME"
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, secrets[value])
    return text


def unconfirmed(outcomes: dict[str, str], seen: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each fact of the page of evidence that is marked UNCONF, with the outcomes of its
    parity tests and what they saw.

    Args:
        outcomes: The outcome of each parity test, by its name on the page, with its parameters.
        seen: What the tests saw, by the same names.
    """
    found = []
    for line in page("emulator-evidence").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and "UNCONF" in line:
            tests = re.findall(r"`parity/(\w+::\w+)`", line)
            answers = {
                name: {"outcome": outcome, "seen": seen.get(name, {})}
                for name, outcome in outcomes.items()
                if outcome != "skipped" and _belongs(name, tests, line)
            }
            found.append({"fact": cells[0], "answer": answers or "not tried"})
    return found


def _belongs(name: str, tests: list[str], line: str) -> bool:
    """Return whether a test is one of a row's tests. A test of an error code belongs only to rows
    that name the code.
    """
    base, _, parameter = name.removesuffix("]").partition("[")
    return base in tests and (parameter not in FAILURES or f"`{parameter}`" in line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file."""
    parser.addoption("--parity-report", type=Path, required=True)


class Report:
    """Collects the outcomes of a run, and writes them at its end.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._seen: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of the parts of a test, and the text of a failure."""
        file, _, name = report.nodeid.rpartition("::")
        where = f"{Path(file).stem.removeprefix('test_')}::{name.removeprefix('test_')}"
        if report.when == "call" or not report.passed:
            self._outcomes[where] = report.outcome
        if report.user_properties:
            self._seen[where] = dict(report.user_properties)
        if report.failed:
            self._failures[where] = report.longreprtext

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        settings = {name: os.environ.get(f"PARITY_{name}", "") for name in NAMES}
        found = {
            "tests": self._outcomes,
            "failures": self._failures,
            "unconfirmed": unconfirmed(self._outcomes, self._seen),
        }
        text = json.dumps(found, indent=1, ensure_ascii=False)
        self._path.write_text(redacted(text, settings) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to collect."""
    config.pluginmanager.register(Report(config.getoption("parity_report")))
