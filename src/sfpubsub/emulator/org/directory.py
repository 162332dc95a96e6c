"""The data directory of an emulator: a lock that only one process can acquire, and the database."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.store import Store, StoreProblem


def claim(data_dir: Path) -> int:
    """Create the directory if necessary, and lock it for this process until the process ends.

    Returns:
        The file descriptor of the lock; closing it releases the lock.

    Raises:
        EmulatorProblem: The directory cannot be written to, or another emulator uses it.
    """
    try:
        # 0o700: it contains access tokens and the private key of a certificate authority.
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmulatorProblem(
            f"data directory {data_dir} cannot be written to ({error.strerror}): choose another"
            " directory"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise EmulatorProblem(
            f"data directory {data_dir} is in use by another emulator: stop it, or choose"
            " another directory"
        ) from error
    return handle


def open_store(data_dir: Path) -> Store:
    """Open the database in a data directory, creating it if it does not exist.

    Raises:
        EmulatorProblem: The database cannot be used.
    """
    try:
        return Store(data_dir / "bus.sqlite3")
    except StoreProblem as error:
        raise EmulatorProblem(f"{error}: choose another data directory") from error
