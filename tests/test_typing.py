"""Programs of users are typed: two strict type checkers read `tests/typing`, as a user has them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "typing"


def test_mypy_is_content(tmp_path: Path):
    """Strict, with warnings for ignores that are not needed, and without the project's settings."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}"]
        + [str(path) for path in sorted(HERE.glob("*.py"))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_is_content(tmp_path: Path):
    """Strict, and for the installed package as any other library."""
    for path in HERE.glob("*.py"):  # it takes no path outside its project
        shutil.copy(path, tmp_path)
    settings = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": True,
        "enableTypeIgnoreComments": False,  # those are mypy's
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
