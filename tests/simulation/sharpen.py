"""Whether the simulation still finds what it must: ``python -m tests.simulation.sharpen [NAME …]``.

Each patch in `sharpness/` puts a hole back. It is applied to a copy of the sources, which is then
simulated, one seed after the other, until one fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = tuple(range(1, 21))
MOST_S = 300.0
"""Longest processor time in which a hole must be found, in seconds."""


def find(patch: Path) -> tuple[str, float]:
    """Return what a patched copy of the sources was found to break, and the processor time taken.

    The text is empty if nothing was found.
    """
    began = _used()
    with tempfile.TemporaryDirectory(prefix="sfpubsub-sharpness-") as name:
        copy = Path(name)
        shutil.copytree(ROOT / "src", copy / "src")
        subprocess.run(["git", "apply", str(patch)], cwd=copy, check=True)
        paths = [str(copy / "src"), str(ROOT / "generated"), str(ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for seed in SEEDS:
            command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                found = re.search(r"^(seed .*?; \d+ events)", done.stdout, re.MULTILINE)
                return (found[1] if found else done.stderr[-300:]), _used() - began
            if _used() - began > MOST_S:
                break
    return "", _used() - began


def _used() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> int:
    """Run from the command line; return the exit code: 1 if a hole was not found."""
    patches = sorted(HERE.glob("sharpness/*.patch"))
    if sys.argv[1:]:
        patches = [patch for patch in patches if patch.stem in sys.argv[1:]]
    missed = 0
    for patch in patches:
        began = time.monotonic()
        found, seconds = find(patch)
        missed += not found
        wall = time.monotonic() - began
        print(f"{patch.stem}: {seconds:.0f} s ({wall:.0f} s): {found or 'NOT FOUND'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
