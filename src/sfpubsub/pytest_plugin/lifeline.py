"""Directory and lifetime of a pytest run's emulator.

This module imports nothing expensive, because each run with xdist creates an `EmulatorRun`, whether
or not it needs an emulator.

The process that owns the run (pytest itself, or the controller of xdist) creates a directory that
contains a pipe, and keeps the pipe open. The emulator reads the other end as its stdin and exits
when the pipe closes: at the end of the run, however the run ends.
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
"""Longest wait for the emulator to exit, in seconds; it normally takes milliseconds."""

_LOOK_S = 0.01
"""Seconds between attempts to acquire the lock that the emulator releases when it exits."""


class EmulatorRun:
    """Creates the directory of a pytest run's emulator, and stops the emulator when the run ends.

    Only the process that owns the run creates an instance.

    Attributes:
        directory: Contains the pipe, the emulator's data and, once the emulator is running, a file
            with its addresses. The workers receive the path of the directory.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sfpubsub-emulator-"))
        os.mkfifo(self.directory / "lifeline")
        # Opened for reading too, so that opening does not block. Children do not inherit it.
        self._lifeline = os.open(self.directory / "lifeline", os.O_RDWR)

    def end(self) -> None:
        """Stop the emulator, if it is running, and remove its directory."""
        os.close(self._lifeline)
        lock = self.directory / "data" / "lock"
        if lock.exists() and not _ended(lock):
            sys.stderr.write(
                f"the emulator in {self.directory} did not exit: end its process and remove the"
                " directory\n"
            )
            return
        shutil.rmtree(self.directory, ignore_errors=True)


def _ended(lock: Path) -> bool:
    """Wait up to `_END_S` seconds for the emulator to release its lock; return whether it did."""
    deadline = time.monotonic() + _END_S
    with lock.open("rb") as file:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(_LOOK_S)
    return False
