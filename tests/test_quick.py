"""Tests of the rules by which ``scripts/quick.sh`` selects its tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.quick import TESTS, selected

# Runs pytest as if PyArrow were not installed; Python refuses a module that is None.
WITHOUT_PYARROW = """
import sys

sys.modules["pyarrow"] = None
import pytest

sys.exit(pytest.main(sys.argv[1:]))
"""


def test_the_selection_has_the_pure_tests():
    """The quick tests include all tests of the core, and none that starts a process or emulator.

    A helper that many tests import, and that begins to import `subprocess`, would silently leave
    most tests out.
    """
    names = {str(path.relative_to(TESTS)) for path in selected()}
    assert {f"protocol/{path.name}" for path in (TESTS / "protocol").glob("test_*.py")} <= names
    assert {"client/test_consumer.py", "monitoring/test_situations.py", "test_layers.py"} <= names
    assert len(names) > 100
    assert "test_quick.py" not in names  # imports subprocess
    assert "emulator/test_model.py" not in names  # starts emulators


def test_only_missing_heavy_packages_skip_tests(tmp_path: Path):
    """A file or test without its heavy package is skipped; any other missing module is an error."""
    (tmp_path / "test_file.py").write_text("import pyarrow\n\ndef test_one(): pass\n")
    (tmp_path / "test_inside.py").write_text("def test_two():\n    import pyarrow\n")
    (tmp_path / "test_wrong.py").write_text("import pyarow\n")
    (tmp_path / "test_broken.py").write_text("def test_three():\n    import pyarow\n")
    command = ["-q", "-rs", "-p", "tests.quick", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW, *command, "--continue-on-collection-errors", "."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TESTS.parent), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert "2 skipped" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "1 error" in done.stdout


def test_the_full_suite_skips_nothing_for_a_missing_package():
    """In ``scripts/test.sh``, a missing package is an error."""
    assert "tests.quick" not in (TESTS.parent / "scripts" / "test.sh").read_text()
