"""Tests of the files in .github/, which only the forge itself can run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT

FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
CONFIG = FORGE / "ISSUE_TEMPLATE" / "config.yml"
FORMS = sorted(set(CONFIG.parent.glob("*.yml")) - {CONFIG})

TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [CONFIG]),
    ],
)
def test_files_fit_the_schema_of_the_forge(schema: str, files: list[Path]):
    """The forge understands every workflow and form: no misspelt key, no value of a wrong type."""
    command = [TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_are_safe():
    """A workflow has only the rights it needs, no input of strangers in its code, and pinned
    actions.
    """
    command = [TOOLS / "zizmor", "--offline", "--min-severity", "medium", FORGE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_run_what_exists():
    """Every script and workflow that a workflow calls is a file of this repository."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    called = re.findall(r"run: bash (\S+)|uses: \./(\S+)", text)
    names = {script or workflow for script, workflow in called}
    assert {"scripts/quick.sh", ".ci/run", ".github/workflows/wheels.yml"} <= names
    assert [name for name in names if not (ROOT / name).is_file()] == []
