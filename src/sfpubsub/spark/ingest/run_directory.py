"""Manage the directory in which a window of dedupe keys stores its files.

A window (key_window.py) stores dedupe keys in sorted files, its *runs* (key_run.py). This module
locks the directory, writes the manifest that lists the runs, and orders the file operations: a run
is made durable before the manifest that lists it, and is deleted only after a manifest without it
is durable. So a crash can leave unlisted files, which are deleted at the next start, but never a
listed run without its file. Callers must validate the contents of the manifest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from sfpubsub.durable import make_directory, replace_file
from sfpubsub.errors import WriteError
from sfpubsub.spark.ingest.key_run import DamagedRunError, KeyRun, RunEntry, RunWriter
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.sidecar_paths import KEYS_NAME, place_of

_log = logging.getLogger("sfpubsub.spark")

_MANIFEST = "keys.json"
_LOCK = "lock"
_RUNS = "*.keys"

# Version of the file format.
_VERSION = 1


class RunDirectory:
    """The directory of a window's files, used by one process at a time. Not thread-safe.

    It is created when the first run is written. If another process uses it, or it is not writable,
    a temporary directory is used instead, which `close` deletes.

    Args:
        path: The directory, on a local disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._temporary: str | None = None
        if path.is_dir():
            self._take()

    def read_manifest(self) -> dict[str, Any] | None:
        """Return the manifest; None if it is missing, damaged or has another format version.

        Also delete all runs that the manifest does not list.
        """
        if self._lock is None:
            return None
        found = None
        try:
            text = (self.path / _MANIFEST).read_text(encoding="utf-8")
            record = json.loads(text)
            if record.pop("check") == _check(record) and record.pop("version") == _VERSION:
                found = record
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning(
                "%s cannot be read, so the dedupe keys are read from the table: %s",
                self.path / _MANIFEST,
                error,
            )
        kept = {entry["name"] for entry in found["runs"]} if found else set()
        for file in self.path.glob(_RUNS):
            if file.name not in kept:
                file.unlink(missing_ok=True)
        return found

    def write_manifest(self, record: Mapping[str, object]) -> None:
        """Replace the manifest durably; a version and a checksum are added to *record*.

        Raises:
            WriteError: The manifest could not be written.
        """
        whole = {"version": _VERSION, **record}
        try:
            text = json.dumps(whole | {"check": _check(whole)})
            replace_file(self._writable() / _MANIFEST, text)
        except OSError as error:
            raise self.failure(error) from error

    def empty(self) -> None:
        """Delete the manifest, which invalidates all runs, and then the runs.

        Raises:
            WriteError: The files could not be deleted.
        """
        if self._lock is None:
            return  # there is nothing to delete, or another process owns the files
        try:
            (self.path / _MANIFEST).unlink(missing_ok=True)
            for file in self.path.glob(_RUNS):
                file.unlink(missing_ok=True)
        except OSError as error:
            raise self.failure(error) from error

    def new_run(self, expected: int) -> RunWriter:
        """Create a file for a run of at most *expected* records, and return its writer.

        Raises:
            OSError: The file could not be created.
        """
        return RunWriter(self._writable() / f"{uuid.uuid4().hex}.keys", expected)

    def open_run(self, entry: RunEntry) -> KeyRun:
        """Open a run listed in a manifest.

        Raises:
            DamagedRunError: The file is missing or damaged.
        """
        if Path(entry.name).name != entry.name:
            raise DamagedRunError(
                f"the manifest in {self.path} is damaged: {entry.name} is not the name of a run "
                f"file"
            )
        return KeyRun.open(self.path, entry)

    def remove(self, runs: Sequence[KeyRun]) -> None:
        """Delete the files of *runs*, which the manifest must no longer list."""
        for run in runs:
            with suppress(OSError):  # otherwise it is deleted at the next start
                run.path.unlink(missing_ok=True)

    def failure(self, error: OSError) -> WriteError:
        """Return the WriteError to raise for *error*, which occurred in this directory."""
        return WriteError(
            f"the dedupe keys cannot be stored in {self.path} ({error.strerror}), which needs 24 "
            f"bytes per event in the window: free some disk space there"
        )

    def close(self) -> None:
        """Release the directory for other processes. Delete it if it is temporary."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _writable(self) -> Path:
        """Return the directory, creating and locking it if necessary.

        If it cannot be used, return a temporary directory instead.
        """
        if self._lock is None:
            try:
                make_directory(self.path)
            except OSError as error:
                self._use_temporary(str(error))
            else:
                self._take()
        return self.path

    def _take(self) -> None:
        try:
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
            self._use_temporary(str(error))

    def _use_temporary(self, reason: str) -> None:
        self._temporary = tempfile.mkdtemp(prefix="sfpubsub-keys-")
        _log.warning(
            "storing dedupe keys in the temporary directory %s, because %s cannot be used (%s): "
            "the next start will read them from the table",
            self._temporary,
            self.path,
            reason,
        )
        self.path = Path(self._temporary)
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def keys_directory(place: Destination) -> Path:
    """Return the directory for a table's dedupe keys on this machine.

    If the table is local, the directory is next to it; otherwise it is in the user's cache
    directory. It is only a cache, and can be deleted while no writer of the table is running.
    """
    if place.local is not None:
        found = place.sidecar_directory if place.format == "parquet" else None
        return (found or place_of(place.local, None)) / KEYS_NAME
    name = hashlib.blake2b(place.address.encode(), digest_size=16).hexdigest()
    return Path(platformdirs.user_cache_path("sfpubsub", False)) / "keys" / name


def _check(record: Mapping[str, object]) -> str:
    text = json.dumps(record, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
