"""Tests of scripts/parity.sh and of the list of parity tests.

The script contacts no org unless all its settings are given. The page of evidence for the
emulator's behaviour names every parity test.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ..pages import page
from .conftest import NAMES

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "parity.sh"
FILES = ("pubsub", "rest", "unconfirmed", "streaming", "made")
SETTINGS = {f"PARITY_{name}": "x" for name in NAMES}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "set " + " ".join(SETTINGS)),
        ({name: "x" for name in SETTINGS if name != "PARITY_TOPIC"}, "set PARITY_TOPIC"),
        (SETTINGS, "PARITY_TOPIC must be a platform event"),
    ],
)
def test_script_does_nothing_without_valid_settings(settings, said):
    """Without valid settings the script exits with status 2 and says what to set, without doing
    anything.
    """
    environment = {name: text for name, text in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"nothing was done: {said}" in done.stderr


def test_report_asks_before_it_publishes(tmp_path):
    """With --report, the script names the topic and the org, and does nothing without a yes."""
    settings = {**SETTINGS, "PARITY_TOPIC": "/event/X__e", "PARITY_INSTANCE_URL": "https://o.test"}
    for answer in ("n\n", ""):
        done = subprocess.run(
            ["bash", str(SCRIPT), "--report", str(tmp_path / "report.json")],
            env={**os.environ, **settings},
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "nothing was done" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_evidence_page_names_every_parity_test():
    """The page of evidence for the emulator's behaviour names every parity test, and no test that
    doesn't exist.
    """
    text = page("emulator-evidence").read_text(encoding="utf-8")
    named = set(re.findall(r"`parity/(\w+)::(\w+)`", text))
    there = {
        (file, name)
        for file in FILES
        for name in re.findall(
            r"^def test_(\w+)\(",
            (Path(__file__).parent / f"test_{file}.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert named == there
