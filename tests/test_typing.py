"""Tests that strict type checkers accept the programs in `tests/typing`.

As in a user's project, the package is an installed library.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "typing"


def test_mypy_accepts_user_programs(tmp_path: Path):
    """Strict mypy reports no error and no unused ignore, without this project's settings."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}"]
        + [str(path) for path in sorted(HERE.glob("*.py"))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_user_programs(tmp_path: Path):
    """Strict pyright reports no error and no unused ignore."""
    for path in HERE.glob("*.py"):  # pyright accepts no path outside its project
        shutil.copy(path, tmp_path)
    settings = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": True,
        "enableTypeIgnoreComments": False,  # those comments are for mypy
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
