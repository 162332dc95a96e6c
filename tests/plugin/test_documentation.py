"""docs/how-to/testing-python.md and its neighbours: their suites run as they stand there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import PATIENCE
from ..pages import blocks, page

ROOT = Path(__file__).parents[2]
pytest_plugins = ["pytester"]


def tool(name: str) -> str:
    """A program of this machine; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    return found


def run(directory: Path, *command: str) -> str:
    """Run a program of the page with this project's `sfpubsub` on its path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_suite_in_python(pytester):
    """Its tests pass."""
    (code,) = blocks(page("testing-python"), "python")
    pytester.makepyfile(test_page=code)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=code.count("def test_"))


@pytest.mark.foreign
def test_the_suite_in_node(tmp_path):
    """It starts an emulator, publishes, and ends it."""
    node = tool("node")
    helper, suite = blocks(page("testing-node"), "js")
    (tmp_path / "emulator.mjs").write_text(helper)
    (tmp_path / "suite.test.mjs").write_text(suite)
    assert "# pass 1\n" in run(tmp_path, node, "--test", "--test-reporter=tap", "suite.test.mjs")


@pytest.mark.foreign
def test_the_class_in_java(tmp_path):
    """It compiles without a library, starts an emulator, publishes, and ends it."""
    tool("javac")
    (code,) = blocks(page("testing-java"), "java")
    (tmp_path / "Emulator.java").write_text(code)
    assert '"replay_id"' in run(tmp_path, tool("java"), "Emulator.java")
