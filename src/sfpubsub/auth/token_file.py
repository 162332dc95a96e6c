"""Stores the newest refresh token of a user in a file that the processes of one machine share.

A process holds the file's lock while it reads the file, requests a token and stores the answer, so
that each refresh token is used once. A write replaces the file atomically and durably: after a
crash, the file has either the old or the new contents. What is stored is decided by `token_family`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sfpubsub.auth.token_family import TokenFamily
from sfpubsub.config.sources import warn_if_readable_by_others
from sfpubsub.config.state import state_dir
from sfpubsub.durable import make_directory, replace_file
from sfpubsub.errors import ConfigurationError, StreamUnavailableError

# How long to wait for another process that holds a lock, in seconds: longer than the 20 s that its
# request can take, and the writes around it.
LOCK_TIMEOUT = 30.0

# Time between attempts to get a lock, in seconds: short compared with a request.
_LOCK_INTERVAL = 0.02

# Only the owner may read or write a file with a token, or enter the directory it is in.
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


def default_path(login_host: str, client_id: str, refresh_token: str) -> Path:
    """Return the file for a configured refresh token, in the user's state directory.

    Each configured token has its own file: users of the same app do not replace each other's.
    """
    identity = "\0".join((login_host, client_id, refresh_token))
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
    return state_dir() / f"refresh-token-{digest[:16]}.json"


class TokenFile:
    """The file of one family of refresh tokens. Not thread-safe.

    Args:
        path: The file; created, with its directory, when it is first locked.
    """

    def __init__(self, path: Path) -> None:
        # A rename would replace a link instead of the file that it names.
        self.path: Path = Path(os.path.realpath(path))

    @contextmanager
    def locked(self, stop: threading.Event) -> Iterator[None]:
        """Hold the file's lock, which no other process holds at the same time.

        Args:
            stop: When it is set, waiting for the lock ends.

        Raises:
            ConfigurationError: The lock file cannot be created, or the file system has no locks.
            StreamUnavailableError: Another process has held the lock for `LOCK_TIMEOUT` seconds.
        """
        lock = self.path.with_name(f"{self.path.name}.lock")
        with exclusive_lock(lock, f"the token file {self.path}", timeout=LOCK_TIMEOUT, stop=stop):
            yield

    def read(self) -> TokenFamily | None:
        """Return the stored family; None if the file does not exist.

        Raises:
            ConfigurationError: The file cannot be read, or is damaged. Its tokens are not used, and
                neither is the configured one, which may have been used before.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
            warn_if_readable_by_others(self.path)
            return TokenFamily.from_text(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(
                f"the token file {self.path} cannot be read ({error.strerror}): correct its "
                f"permissions, or name another file with SFPUBSUB_TOKEN_FILE"
            ) from error
        except ValueError as error:
            # Not chained: an error of the UTF-8 decoder contains the text.
            problem = "it is not text" if isinstance(error, UnicodeError) else str(error)
        raise ConfigurationError(
            f"the token file {self.path} is not usable: {problem}; restore it, or remove it and "
            f"sign in again for a new SFPUBSUB_REFRESH_TOKEN"
        )

    def write(self, family: TokenFamily) -> None:
        """Replace the file atomically and durably. The caller holds the lock.

        Raises:
            OSError: The file could not be written; it has either the old or the new contents.
        """
        for draft in self.path.parent.glob(f"{self.path.name}.*.tmp"):
            draft.unlink(missing_ok=True)  # of a process that was killed while it held the lock
        replace_file(self.path, family.to_text(), mode=_FILE_MODE)


@contextmanager
def exclusive_lock(
    path: Path, what: str, *, timeout: float, stop: threading.Event | None = None
) -> Iterator[None]:
    """Hold a lock that at most one process, and one thread of it, holds at a time.

    The lock ends with the process that holds it, however it ends.

    Args:
        path: The lock file; created, with its directory, if it does not exist, and kept.
        what: The thing that the lock protects, for the error messages.
        timeout: How long to wait for the lock, in seconds.
        stop: When it is set, waiting ends.

    Raises:
        ConfigurationError: The lock file cannot be created, or the file system has no locks.
        StreamUnavailableError: The lock was not released in time.
    """
    descriptor = -1
    try:
        try:
            _make_private_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
            _lock(descriptor, what, timeout, stop or threading.Event())
        except OSError as error:
            raise ConfigurationError(
                f"{what} cannot be locked ({error.strerror}): the directory {path.parent} must be "
                f"writable, and on a local file system; SFPUBSUB_STATE_DIR and SFPUBSUB_TOKEN_FILE "
                f"select another"
            ) from error
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                # Closing is not enough if the process was forked meanwhile: the child has a copy.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(descriptor: int, what: str, timeout: float, stop: threading.Event) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # flock itself has no timeout.
            if stop.wait(_LOCK_INTERVAL) or time.monotonic() >= deadline:
                break
        else:
            return
    raise StreamUnavailableError(
        f"another process has kept {what} locked for {timeout:g} s: wait until its sign-in has "
        f"ended, or end that process"
    )


def _make_private_directory(path: Path) -> None:
    if not path.exists():
        make_directory(path, mode=_DIRECTORY_MODE)
    elif path == Path(os.path.realpath(state_dir())) and not path.stat().st_mode & stat.S_ISVTX:
        # Not a directory that the user chose for the file alone, and none that all users share.
        with suppress(PermissionError):
            path.chmod(_DIRECTORY_MODE)
