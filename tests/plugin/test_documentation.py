"""Tests that run the example suites of the pages testing-python, testing-node and testing-java."""

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
    """Return the path of an installed program; skip the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    return found


def run(directory: Path, *command: str) -> str:
    """Run a command with this project's `sfpubsub` on PATH; it must succeed. Return its stdout."""
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


def test_python_suites_from_the_page_pass(pytester):
    """All tests of the suites on the testing-python page pass without warnings."""
    suites = blocks(page("testing-python"), "python")
    pytester.makepyfile(**{f"test_page_{number}": code for number, code in enumerate(suites)})
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=sum(code.count("def test_") for code in suites))


@pytest.mark.foreign
def test_node_suite_from_the_page_passes(tmp_path):
    """The suite on the testing-node page passes with an emulator started by the page's helper."""
    node = tool("node")
    helper, suite = blocks(page("testing-node"), "js")
    (tmp_path / "emulator.mjs").write_text(helper)
    (tmp_path / "suite.test.mjs").write_text(suite)
    assert "# pass 1\n" in run(tmp_path, node, "--test", "--test-reporter=tap", "suite.test.mjs")


@pytest.mark.foreign
def test_java_class_from_the_page_runs(tmp_path):
    """The class on the testing-java page needs no library, starts an emulator and publishes an
    event.
    """
    tool("javac")
    (code,) = blocks(page("testing-java"), "java")
    (tmp_path / "Emulator.java").write_text(code)
    assert '"replay_id"' in run(tmp_path, tool("java"), "Emulator.java")
