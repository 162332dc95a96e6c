"""The place of a run's emulator, and its end. Imports nothing that costs time: each run with xdist
has one, whether it needs an emulator or not.

The process that owns the run (pytest itself, or the controller of xdist) makes a directory with a
pipe in it, and holds the pipe open. The emulator has the other end as its stdin, and ends when that
does: with the run, however the run ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

_END_S = 10.0
"""Longest wait for the end of the emulator; it takes milliseconds."""

_LOOK_S = 0.01
"""How often its end is looked for: the lock of a file tells nobody that it was given back."""


class EmulatorRun:
    """The place of a run's emulator, held by the process that owns the run.

    Attributes:
        directory: Passed to the workers.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sfpubsub-emulator-"))
        os.mkfifo(self.directory / "lifeline")
        # For reading too, so that opening waits for nobody. No child inherits it.
        self._lifeline = os.open(self.directory / "lifeline", os.O_RDWR)

    def end(self) -> None:
        """End the emulator, if there is one, and remove the directory."""
        os.close(self._lifeline)
        lock = self.directory / "data" / "lock"
        if lock.exists() and not _ended(lock):
            sys.stderr.write(f"the emulator of {self.directory} has not ended\n")
            return
        shutil.rmtree(self.directory, ignore_errors=True)


def _ended(lock: Path) -> bool:
    """Wait until nobody holds the lock of a data directory."""
    deadline = time.monotonic() + _END_S
    with lock.open("rb") as file:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(_LOOK_S)
    return False
