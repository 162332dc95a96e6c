"""Where a plain subscription's position lives when the caller keeps it.

A store is touched only in the thread that iterates or acks, never by the stream's own thread. That
matters for stores that are tied to a thread, such as a shelve on Python 3.13.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any

from sfpubsub.durable import replace_file
from sfpubsub.errors import ConfigurationError
from sfpubsub.types import Replay, ReplayId, StartPosition, start_position


class ReplayStore(ABC):
    """A position per topic.

    `set` is called after every event up to the position was acked, so that a new process which
    starts at `get` misses nothing and sees again at most what was not acked.
    """

    @abstractmethod
    def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts, or None for LATEST."""

    @abstractmethod
    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id* as the position of *topic*; durable when this returns."""


class MappingReplayStore(ReplayStore):
    """Positions in any mutable mapping: a dict, a shelve, a key-value database.

    Keys are topics, values the bytes of a replay id. Values that are a `ReplayId` are read as well.

    Args:
        mapping: Used as it is; opening, closing and flushing it are the caller's business.
    """

    def __init__(self, mapping: MutableMapping[str, Any]) -> None:
        self._mapping = mapping

    def get(self, topic: str) -> StartPosition | None:
        """Return the position kept for *topic*, or None.

        Raises:
            ConfigurationError: What is kept there is no replay id.
        """
        value = self._mapping.get(topic)
        if value is None:
            return None
        if isinstance(value, ReplayId):
            return StartPosition.after(value)
        if isinstance(value, bytes) and value:
            return StartPosition.after(ReplayId(value))
        raise ConfigurationError(
            f"the replay store holds {value!r} for {topic}, which is no replay id: delete the key "
            f"to start over, or store bytes"
        )

    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Put the position's bytes under *topic*."""
        self._mapping[topic] = bytes(replay_id)


class DefaultMappingReplayStore(MappingReplayStore):
    """As `MappingReplayStore`, with a start of the caller's choice for the first run.

    Args:
        mapping: Used as it is.
        default: Where a topic starts that the mapping does not know.
    """

    def __init__(self, mapping: MutableMapping[str, Any], default: Replay) -> None:
        super().__init__(mapping)
        self._default = start_position(default)

    def get(self, topic: str) -> StartPosition:
        """Return the position kept for *topic*, or the default."""
        return super().get(topic) or self._default


class FileReplayStore(ReplayStore):
    """Positions in a small JSON file, one writer at a time.

    Every `set` replaces the file by one rename, flushed before and after: a crash at any moment
    leaves the old positions or the new ones. A file that is damaged all the same (by a disk, by an
    editor) is an error and never an empty store, because starting over may lose events.

    Thread-safe. Use it as a context manager, or call `close`, to let another process have it.

    Args:
        path: The file; made with the first position.
        default: Where a topic starts that the file does not know.

    Raises:
        ConfigurationError: The file is damaged, cannot be read, or is in use by another process.
    """

    def __init__(self, path: str | os.PathLike[str], *, default: Replay = "latest") -> None:
        self._path = Path(path)
        self._default = start_position(default)
        self._writing = threading.Lock()  # one `set` at a time: each writes all positions
        self._lock: int | None = _claim(self._path)
        try:
            self._positions = _read(self._path)
        except BaseException:
            self.close()
            raise

    def get(self, topic: str) -> StartPosition:
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
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked child may hold the file as well
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> FileReplayStore:
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


def as_store(replay: object) -> ReplayStore | None:
    """Return the store that a ``replay`` argument stands for, or None for a fixed position.

    Raises:
        ConfigurationError: It is an async store, which nobody here could await.
    """
    if is_async(replay):
        raise ConfigurationError(
            f"{type(replay).__name__} is an async store, which only AsyncPubSubClient can await"
        )
    if isinstance(replay, ReplayStore):
        return replay
    if isinstance(replay, MutableMapping):
        return MappingReplayStore(replay)
    return None


class AsyncReplayStore(ABC):
    """A `ReplayStore` whose methods are coroutines. For `AsyncPubSubClient` only.

    They are awaited in the loop of the subscription, one at a time: `get` before the first stream
    is opened, `set` while `next_batch` or `drain` is awaited. A `set` that is cancelled or fails is
    called again with the newest position.
    """

    @abstractmethod
    async def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts, or None for LATEST."""

    @abstractmethod
    async def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id* as the position of *topic*; durable when this returns."""


def is_async(store: object) -> bool:
    """Return whether *store* is a replay store with a coroutine among its methods."""
    return isinstance(store, AsyncReplayStore) or (
        isinstance(store, ReplayStore)
        and (iscoroutinefunction(store.get) or iscoroutinefunction(store.set))
    )
