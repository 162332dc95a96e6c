"""Positions in a small file, kept over restarts and crashes of the process."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from sfpubsub.durable import replace_file
from sfpubsub.errors import ConfigurationError
from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.types import Replay, ReplayId, StartPosition, start_position


class FileReplayStore(ReplayStore):
    """Positions in a small JSON file, one writer at a time.

    Every `set` replaces the file by one rename, flushed before and after: a crash at any moment
    leaves the old positions or the new ones. A file that is damaged all the same (by a disk, by an
    editor) is an error and never an empty store, because starting over may lose events.

    Thread-safe. Use it as a context manager, or call `close`, to let another process have it.

    Args:
        path: The file; made with the first position.
        default: Where a topic starts that the file does not know; None for where the subscriber
            says.

    Raises:
        ConfigurationError: The file is damaged, cannot be read, or is in use by another process.
    """

    def __init__(self, path: str | os.PathLike[str], *, default: Replay | None = None) -> None:
        self._path = Path(path)
        self._default = None if default is None else start_position(default)
        self._process = os.getpid()
        self._writing = threading.Lock()  # one `set` at a time: each writes all positions
        self._lock: int | None = _claim(self._path)
        try:
            self._positions = _read(self._path)
        except BaseException:
            self.close()
            raise

    def get(self, topic: str) -> StartPosition | None:
        """Return the position kept for *topic*, or the default."""
        replay_id = self._positions.get(topic)
        return self._default if replay_id is None else StartPosition.after(replay_id)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep the position; durable when this returns.

        Raises:
            ConfigurationError: The file cannot be written; the old positions are still there.
        """
        with self._writing:
            self._set(topic, replay_id)

    def _set(self, topic: str, replay_id: ReplayId) -> None:
        if self._lock is None:
            raise ConfigurationError(f"the replay store {self._path} is closed")
        if os.getpid() != self._process:
            raise ConfigurationError(
                f"the replay store {self._path} belongs to the process that forked this one"
            )
        positions = {**self._positions, topic: replay_id}
        document = {"positions": {name: positions[name].hex() for name in sorted(positions)}}
        try:
            replace_file(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise ConfigurationError(
                f"the replay store {self._path} cannot be written: {error.strerror}"
            ) from error
        self._positions = positions

    def close(self) -> None:
        """Let another process have the file. Can be repeated."""
        if self._lock is not None:
            if os.getpid() == self._process:  # the lock is the parent's, in a forked child
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # such a child may hold the file as well
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _claim(path: Path) -> int:
    # A file of its own is locked, since the store itself is replaced by every write. The lock ends
    # with the process.
    lock = path.with_name(f"{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"the replay store {path} cannot be written: {error.strerror}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigurationError(
            f"the replay store {path} is in use by another process: stop it, or use another file"
        ) from error
    return descriptor


def _read(path: Path) -> dict[str, ReplayId]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        positions = document["positions"]
        return {str(topic): ReplayId.from_hex(text) for topic, text in positions.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(
            f"the replay store {path} cannot be read: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the replay store {path} is damaged: restore it, or remove it to start over, which "
            f"may lose or repeat events"
        ) from error
