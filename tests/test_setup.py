"""Tests of scripts/setup.sh: the compiled decoder is optional, and never makes it fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import PATIENCE, until

ROOT = Path(__file__).parent.parent

NEW_CARGO = 'echo "cargo 99.0.0 (0000000 2099-01-01)"'

# A build that never ends, with a child process, as maturin has cargo.
ENDLESS = 'sleep 600 & echo $! >"$CARGO_TARGET_DIR/child"; wait'
BUILT = (
    'while [ "$1" != --out ]; do shift; done; mkdir -p "$2"; touch "$2/sfpubsub_native-1.whl"; '
    "echo noise; echo noise >&2"
)


class Clone:
    """A directory with the scripts, a fake cargo and maturin, and no package installer."""

    def __init__(self, place: Path, cargo: str | None, maturin: str) -> None:
        self.place = place
        shutil.copytree(ROOT / "scripts", place / "scripts")
        shutil.copytree(ROOT / "native", place / "native", ignore=shutil.ignore_patterns("target"))
        self._command(".venv/bin/maturin", maturin)
        self._command("bin/python", f'exec "{sys.executable}" "$@"')
        for name in ("bash", "cat", "cksum", "cut", "mkdir", "rm", "sed", "sleep", "sort", "touch"):
            found = shutil.which(name)
            assert found is not None
            (place / "bin" / name).symlink_to(found)
        if cargo is not None:
            self._command("bin/cargo", cargo)

    def _command(self, name: str, text: str) -> None:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
        path.chmod(0o755)

    def set_up(self, seconds: int = 60) -> subprocess.CompletedProcess[str]:
        """Do what the end of setup.sh does, with a limit of *seconds* for the build."""
        code = (
            "set -euo pipefail; . scripts/environment.sh; install() { echo installing; }; "
            f"prepare_native {seconds} || true; echo ready"
        )
        return subprocess.run(
            ["bash", "-c", code],
            cwd=self.place,
            env={"PATH": str(self.place / "bin"), "HOME": os.environ["HOME"]},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.mark.parametrize(
    ("cargo", "maturin", "says"),
    [
        (None, BUILT, "is not installed, because cargo is not"),
        ('echo "cargo 1.60.0 (0000000 2022-01-01)"', BUILT, "is not installed: it needs cargo 1."),
        (NEW_CARGO, "echo broken >&2; exit 101", "its build failed: see .venv/native/build.log"),
        (NEW_CARGO, BUILT, "the compiled decoder is installed in .venv, built with cargo 99.0.0"),
    ],
)
def test_setup_says_in_one_line_whether_the_compiled_decoder_is_there(
    tmp_path: Path, cargo: str | None, maturin: str, says: str
):
    """Without cargo, with an old one, or if the build fails, setup goes on; it says so in one line,
    and in one line too if the decoder is installed.
    """
    done = Clone(tmp_path, cargo, maturin).set_up()
    assert (done.returncode, done.stdout) == (0, "ready\n")
    (line,) = done.stderr.splitlines()
    assert says in line


def test_setup_builds_the_compiled_decoder_once(tmp_path: Path):
    """The second setup finds the decoder that the first has built."""
    clone = Clone(tmp_path, NEW_CARGO, BUILT)
    assert "built with" in clone.set_up().stderr
    clone._command(".venv/bin/maturin", "exit 1")
    assert clone.set_up().stderr == "the compiled decoder is installed in .venv\n"


def test_setup_does_not_wait_for_a_long_build(tmp_path: Path):
    """A build that does not end in its time is ended, with its child processes."""
    clone = Clone(tmp_path, NEW_CARGO, ENDLESS)
    began = time.monotonic()
    done = clone.set_up(seconds=1)
    assert time.monotonic() - began < 300
    assert (done.returncode, done.stdout) == (0, "ready\n")
    (line,) = done.stderr.splitlines()
    assert "its build failed" in line
    assert "ended after 1 s" in (tmp_path / ".venv/native/build.log").read_text()
    child = int((tmp_path / ".venv/native/child").read_text())
    until(lambda: not is_running(child), "the end of the build's child process", PATIENCE)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended may be known until its parent asks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_only_the_setup_script_and_the_decoders_own_build_it():
    """The demo and the quick tests do not wait for a build."""
    scripts = (ROOT / "scripts").glob("*.sh")
    assert {path.name for path in scripts if "prepare_native" in path.read_text()} == {
        "environment.sh",
        "native.sh",
        "setup.sh",
    }
