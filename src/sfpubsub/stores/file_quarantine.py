"""Events that cannot be decoded, or that a handler failed on, in a directory.

One small file an event, complete before it has its name: a crash at any moment leaves whole entries
and drafts, and drafts are swept.
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

from sfpubsub.durable import make_directory, replace_file, sync
from sfpubsub.errors import ConfigurationError, SfPubSubError, WriteError
from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent
from sfpubsub.types import RawEvent, ReplayId

logger = logging.getLogger("sfpubsub.client")

_ENTRY = ".json"
_DONE = ".done"

# Seconds after which a file without its name was left by a process that died: it gets its name
# within moments. If it did not, taking it away makes its `put` fail, and its events come again.
_DRAFT_LIFE = 3600.0


class FileQuarantine(Quarantine):
    """Entries in a directory, one JSON file each. Several processes may share it.

    One `put`, step by step:

    1. Write each new entry under another name, and flush it.
    2. Give each its name. A name is made of the event, so one that is here already stays as it is,
       unless its file is damaged.
    3. Flush the directory. Only now may the events be acked.

    Killed before 3, an event comes again and is kept then; killed after it, it comes again and is
    here already.

    Args:
        directory: Made with the first entry.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._is_swept = False

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._directory

    def put(self, events: Sequence[QuarantinedEvent]) -> None:
        """Keep events; durable when this returns.

        Raises:
            WriteError: It could not; some of them may be kept.
        """
        drafts: dict[Path, Path] = {}
        try:
            make_directory(self._directory)
            self._sweep()
            for event in events:
                path = self._path(event.key)
                if path not in drafts and not _is_whole(path):
                    drafts[path] = path.with_name(f"{event.key}.{uuid.uuid4().hex}.tmp")
                    drafts[path].write_text(entry_text(event), encoding="utf-8")
                    sync(drafts[path])
            for path, draft in drafts.items():
                os.replace(draft, path)
            # Also for those that were here: their writer may have died before this step.
            sync(self._directory)
        except OSError as error:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
            raise WriteError(
                f"the quarantine {self._directory} cannot be written, none of its events is "
                f"acked: {error.strerror}"
            ) from error

    def get(self, key: str) -> QuarantinedEvent | None:
        """Return an entry by its key, or None.

        Raises:
            ConfigurationError: Its file is damaged or cannot be read.
        """
        try:
            return _read(self._path(key))
        except FileNotFoundError:
            return None

    def entries(self) -> Iterator[QuarantinedEvent]:
        """Yield all entries, those redriven included, in order of arrival.

        Raises:
            ConfigurationError: Entries are damaged or cannot be read; all others were yielded.
        """
        order: list[tuple[float, int, str]] = []
        damaged: list[str] = []
        for path in self._files():
            try:
                event = _read(path)
            except ConfigurationError as error:
                damaged.append(str(error))
            except FileNotFoundError:
                continue  # removed meanwhile
            else:
                order.append((event.received_at, event.delivery_seq, event.key))
        for _, _, key in sorted(order):  # read again, so that payloads are not all held
            found = self.get(key)
            if found is not None:
                yield found
        if damaged:
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            raise ConfigurationError(f"{damaged[0]}{more}")

    def is_redriven(self, key: str) -> bool:
        """Whether the entry was marked by `mark_redriven`."""
        return self._path(key).with_suffix(_DONE).exists()

    def mark_redriven(self, keys: Sequence[str], destination: str) -> None:
        """Say that entries were decoded and written out; call it after that is durable.

        Args:
            keys: Of the entries.
            destination: Shown in messages.

        Raises:
            WriteError: It could not be said; some of them may be marked.
        """
        note = json.dumps({"redriven_at": time.time(), "to": destination}) + "\n"
        try:
            for key in keys:
                replace_file(self._path(key).with_suffix(_DONE), note)
        except OSError as error:
            raise WriteError(
                f"the quarantine {self._directory} cannot be written: {error.strerror}; events "
                f"that were written out may be written out again"
            ) from error

    @contextmanager
    def redriving(self) -> Iterator[None]:
        """Keep other processes from redriving at the same time; entries can be put meanwhile.

        Raises:
            ConfigurationError: Another process is redriving, or there is no quarantine here.
        """
        try:
            lock = os.open(self._directory / ".redrive.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"the quarantine {self._directory} cannot be redriven: {error.strerror}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process is redriving {self._directory}: wait for it"
            ) from error
        finally:
            os.close(lock)

    def __len__(self) -> int:
        """Return how many entries there are, those redriven included."""
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
        """Remove what dead processes left, once."""
        if self._is_swept:
            return
        for path in self._directory.glob("*.tmp"):
            with suppress(FileNotFoundError):  # somebody else was faster
                if time.time() - path.stat().st_mtime > _DRAFT_LIFE:
                    path.unlink()
        self._is_swept = True

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{_ENTRY}"

    def __repr__(self) -> str:
        return f"FileQuarantine({str(self._directory)!r})"


def entry_text(event: QuarantinedEvent) -> str:
    """Return the contents of an entry's file."""
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
    }
    # One line, as Spark reads JSON.
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
        pass  # said below
    raise ConfigurationError(
        f"the quarantined event {path} is damaged: restore it, or move it away"
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
        failed_in=document.get("failed_in", "decoding"),  # older entries do not say
    )


def _is_whole(path: Path) -> bool:
    try:
        _read(path)
    except FileNotFoundError:
        return False
    except SfPubSubError as error:
        logger.warning("%s; it is written again", error)
        return False
    return True
