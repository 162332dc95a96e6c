"""The data directory of an emulator: a lock that only one process can acquire, and the database."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.store import Store, StoreProblem


def claim(data_dir: Path) -> int:
    """Create the directory if necessary, let only its owner use it, and lock it for this process
    until the process ends.

    Returns:
        The file descriptor of the lock; closing it releases the lock.

    Raises:
        EmulatorProblem: The directory cannot be written to, all users share it, or another emulator
            uses it.
    """
    try:
        # 0o700: it contains access tokens and the private key of a certificate authority.
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if data_dir.stat().st_mode & stat.S_ISVTX:
            raise EmulatorProblem(
                f"data directory {data_dir} is shared by all users: choose a directory that only"
                " the emulator uses"
            )
        with contextlib.suppress(PermissionError):  # another user's; its files are still private
            data_dir.chmod(0o700)
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
    """Open the database in a data directory, creating it if it does not exist. Only the owner can
    read its files, which contain tokens and events.

    Raises:
        EmulatorProblem: The database cannot be used.
    """
    try:
        for name in ("bus.sqlite3", "blocks.sqlite3"):  # SQLite gives its other files this mode
            os.close(os.open(data_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for file in data_dir.glob(f"{name}*"):
                file.chmod(0o600)
        return Store(data_dir / "bus.sqlite3")
    except (StoreProblem, OSError) as error:
        raise EmulatorProblem(f"{error}: choose another data directory") from error
