"""A quarantine in a directory, for events that cannot be decoded or that a handler failed on.

Each event is one small file, written completely before it is renamed into place. A crash at any
moment leaves only complete entries and temporary files (*drafts*), which are removed later.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sfpubsub.durable import make_directory, replace_file, sync, write_private
from sfpubsub.errors import ConfigurationError, SfPubSubError, WriteError
from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent
from sfpubsub.types import RawEvent, ReplayId

logger = logging.getLogger("sfpubsub.client")

_ENTRY = ".json"
_DONE = ".done"

# Age in seconds after which a draft must have been left by a dead process: drafts are renamed
# within moments. If the process is alive after all, removing the draft makes its `put` fail, and
# its events are redelivered.
_DRAFT_LIFE = 3600.0


class FileQuarantine(Quarantine):
    """A quarantine in a directory, with one JSON file per entry, which only its owner can read.
    Several processes of a user may share it.

    A `put` works in these steps:

    1. Write each new entry under a temporary name, and flush it.
    2. Rename each file to its final name. The name is derived from the event, so an existing entry
       is kept, unless its file is damaged.
    3. Flush the directory. Only now may the events be acked.

    If the process is killed before the ack takes effect, the event is redelivered. The next `put`
    then keeps the event's entry if it is complete, and writes it otherwise.

    Args:
        directory: Directory for the files; created when the first entry is written.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._is_swept = False

    @property
    def directory(self) -> Path:
        """The directory that contains the files."""
        return self._directory

    def put(self, events: Sequence[QuarantinedEvent]) -> None:
        """Store events durably.

        Raises:
            WriteError: At least one event could not be stored. Others may have been stored.
        """
        drafts: dict[Path, Path] = {}
        try:
            make_directory(self._directory)
            self._sweep()
            for event in events:
                path = self._path(event.key)
                if path not in drafts and not _is_whole(path):
                    drafts[path] = path.with_name(f"{event.key}.{uuid.uuid4().hex}.tmp")
                    write_private(drafts[path], entry_text(event))
                    sync(drafts[path])
            for path, draft in drafts.items():
                os.replace(draft, path)
            # Needed for existing entries too: their writer may have died before this step.
            sync(self._directory)
        except OSError as error:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
            raise WriteError(
                f"the quarantine {self._directory} cannot be written, so no events were acked: "
                f"{error.strerror}"
            ) from error

    def get(self, key: str) -> QuarantinedEvent | None:
        """Return the entry stored under *key*; None if there is no such entry.

        Raises:
            ConfigurationError: The entry's file is damaged or cannot be read.
        """
        try:
            return _read(self._path(key))
        except FileNotFoundError:
            return None

    def entries(self) -> Iterator[QuarantinedEvent]:
        """Yield all entries in order of arrival, including redriven ones.

        Raises:
            ConfigurationError: The directory cannot be read, or an entry is damaged or cannot be
                read. An error about an entry is raised after all readable entries have been
                yielded.
        """
        order: list[tuple[float, int, str]] = []
        damaged: list[str] = []
        for path in self._files():
            try:
                event = _read(path)
            except ConfigurationError as error:
                damaged.append(str(error))
            except FileNotFoundError:
                continue  # removed after the directory was listed
            else:
                order.append((event.received_at, event.delivery_seq, event.key))
        for _, _, key in sorted(order):  # read again, to avoid holding all payloads in memory
            found = self.get(key)
            if found is not None:
                yield found
        if damaged:
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            raise ConfigurationError(f"{damaged[0]}{more}")

    def is_redriven(self, key: str) -> bool:
        """Return whether `mark_redriven` has marked the entry with this *key*."""
        return self._path(key).with_suffix(_DONE).exists()

    def mark_redriven(self, keys: Sequence[str], destination: str) -> None:
        """Mark entries as redriven. Call this only after their events were written durably.

        Args:
            keys: Keys of the entries.
            destination: Where the events were written; stored with the mark.

        Raises:
            WriteError: At least one entry could not be marked. Others may have been marked.
        """
        note = json.dumps({"redriven_at": time.time(), "to": destination}) + "\n"
        try:
            for key in keys:
                replace_file(self._path(key).with_suffix(_DONE), note)
        except OSError as error:
            raise WriteError(
                f"the quarantine {self._directory} cannot be written: {error.strerror}; "
                f"some events were redriven but not marked as redriven, so the next redrive will "
                f"write them again: correct the cause, redrive again, and drop duplicate events (a "
                f"raw table drops them itself)"
            ) from error

    @contextmanager
    def redriving(self) -> Iterator[None]:
        """Lock the quarantine against other redriving processes. Entries can still be added.

        Raises:
            ConfigurationError: Another process is redriving, or the directory cannot be locked.
        """
        try:
            lock = os.open(self._directory / ".redrive.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"the quarantine {self._directory} cannot be locked for redriving: {error.strerror}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process is redriving {self._directory}: wait until it has finished"
            ) from error
        finally:
            os.close(lock)

    def __len__(self) -> int:
        """Return the number of entries, including redriven ones."""
        return len(self._files())

    def __bool__(self) -> bool:
        return True

    def _files(self) -> list[Path]:
        try:
            return sorted(p for p in self._directory.iterdir() if p.name.endswith(_ENTRY))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(
                f"the quarantine {self._directory} cannot be read: {error.strerror}"
            ) from error

    def _sweep(self) -> None:
        """Remove the temporary files of crashed processes, on the first call only."""
        if self._is_swept:
            return
        for path in self._directory.glob("*.tmp"):
            with suppress(FileNotFoundError):  # another process was faster
                if time.time() - path.stat().st_mtime > _DRAFT_LIFE:
                    path.unlink()
        self._is_swept = True

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{_ENTRY}"

    def __repr__(self) -> str:
        return f"FileQuarantine({str(self._directory)!r})"


def entry_text(event: QuarantinedEvent) -> str:
    """Return the content of an entry's file as JSON text."""
    raw = event.raw
    document = {
        "subscription": event.subscription,
        "topic": event.topic,
        "event_id": raw.id,
        "replay_id": raw.replay_id.hex(),
        "schema_id": raw.schema_id,
        "payload": base64.b64encode(raw.payload).decode(),
        "headers": [[name, base64.b64encode(value).decode()] for name, value in raw.headers],
        "reason": event.reason,
        "received_at": event.received_at,
        "delivery_seq": event.delivery_seq,
        "schema": event.schema_json,
        "failed_in": event.failed_in,
        "traceback": event.traceback,
    }
    # One line, because Spark reads JSON line by line.
    return json.dumps({**document, "check": _check(document)}) + "\n"


def _check(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> QuarantinedEvent:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("check") == _check(document):
            event = _event(document)
            if path.name == f"{event.key}{_ENTRY}":
                return event
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # reported below
    raise ConfigurationError(
        f"the quarantined event {path} is damaged: restore the file, or move it elsewhere"
    )


def _event(document: dict[str, Any]) -> QuarantinedEvent:
    headers = tuple((name, base64.b64decode(value)) for name, value in document["headers"])
    return QuarantinedEvent(
        RawEvent(
            document["event_id"],
            document["schema_id"],
            base64.b64decode(document["payload"], validate=True),
            ReplayId.from_hex(document["replay_id"]),
            headers,
        ),
        subscription=document["subscription"],
        topic=document["topic"],
        reason=document["reason"],
        received_at=document["received_at"],
        delivery_seq=document["delivery_seq"],
        schema_json=document["schema"],
        failed_in=document.get("failed_in", "decoding"),  # missing in older entries
        traceback=document.get("traceback", ""),  # likewise
    )


def _is_whole(path: Path) -> bool:
    try:
        _read(path)
    except FileNotFoundError:
        return False
    except SfPubSubError as error:
        logger.warning(
            "rewriting the entry of an event that was received again, so no action is needed (%s)",
            error,
        )
        return False
    return True
