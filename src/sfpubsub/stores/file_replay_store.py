"""A replay store in a small file that survives restarts and crashes."""

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
    """Stores positions in a small JSON file, with one writer at a time.

    Every `set` replaces the file with one rename, flushed before and after, so a crash at any
    moment leaves either the old or the new positions. If the file was damaged in another way, for
    instance by a disk or an editor, an error is raised: treating the file as empty could lose
    events.

    Thread-safe. Use it as a context manager, or call `close`, to release the file for other
    processes.

    Args:
        path: The file; created when the first position is stored.
        default: Where a subscription starts if no position is stored for its topic; None to use the
            subscription's ``replay``.

    Raises:
        ConfigurationError: The file is damaged, cannot be read, or is in use by another process.
    """

    def __init__(self, path: str | os.PathLike[str], *, default: Replay | None = None) -> None:
        self._path = Path(path)
        self._default = None if default is None else start_position(default)
        self._process = os.getpid()
        self._writing = threading.Lock()  # one `set` at a time, because each writes all positions
        self._lock: int | None = _claim(self._path)
        try:
            self._positions = _read(self._path)
        except BaseException:
            self.close()
            raise

    def get(self, topic: str) -> StartPosition | None:
        """Return the stored position of *topic*, or else the store's default, which may be None."""
        replay_id = self._positions.get(topic)
        return self._default if replay_id is None else StartPosition.after(replay_id)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Store *replay_id* durably as the position of *topic*.

        Raises:
            ConfigurationError: The file cannot be written, the store is closed, or this is a forked
                child of the process that opened the store.
        """
        with self._writing:
            self._set(topic, replay_id)

    def _set(self, topic: str, replay_id: ReplayId) -> None:
        if self._lock is None:
            raise ConfigurationError(
                f"the replay store {self._path} is closed: create a new FileReplayStore"
            )
        if os.getpid() != self._process:
            raise ConfigurationError(
                f"the replay store {self._path} belongs to the parent of this forked process: "
                "open another store in this process"
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
        """Release the file for other processes. Can be called repeatedly."""
        if self._lock is not None:
            if os.getpid() == self._process:  # in a forked child, the lock belongs to the parent
                # Explicit, because a forked child may have the file open as well.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
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
    # Lock a separate file, since every write replaces the store itself. The lock ends with the
    # process.
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
            f"the replay store {path} is in use by another process: stop that process, or use "
            f"another file"
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
