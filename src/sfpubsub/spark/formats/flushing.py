"""Flush to the disk what commits have added to local Delta and Iceberg tables.

Spark closes the files that it writes, but does not flush them. A table's log tells which files its
commits have added: files with rows and deletes, and files of the log itself. So these are flushed,
whichever program has committed them, and nothing else that the machine has in its caches. Where the
log does not tell, the whole file system is flushed: when a process starts, because it is not known
what an earlier process has left unflushed, and if another program has cut the log short.

Both logs are read as their formats document them, so Spark is not needed.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro

from sfpubsub.durable import sync_file_system, sync_files


@dataclass(frozen=True)
class Mark:
    """The newest commit of a table of which everything has been flushed."""

    version: int = -1
    """Number of the newest file in the table's log; -1 if there is none."""
    sequence: int = 0
    """In Iceberg format: sequence number of the newest snapshot."""
    checkpoint: int = -1
    """In Delta format: version of the newest checkpoint; -1 if there is none."""


# The files that commits have added, and the newest of these commits.
Added = tuple[list[Path], Mark]


class Flusher:
    """Flushes what has been committed to local tables since the last time. Not thread-safe.

    Args:
        format: ``delta`` or ``iceberg``.
        root: The directory that contains the tables, or that is the only table.
    """

    def __init__(self, format: str, root: Path) -> None:  # noqa: A002  # named as in Spark
        self._newest, self._added = _LOGS[format]
        self._root = root
        self._flushed: dict[Path, Mark] | None = None

    def flush(self, tables: Iterable[Path]) -> None:
        """Flush everything that has been committed to tables.

        Args:
            tables: All directories in the root that may be tables, or the root.

        Raises:
            OSError: Something could not be flushed. The next call tries it again.
        """
        if self._flushed is None:
            found = {table: self._newest(table) for table in tables}
            sync_file_system(self._root)
            self._flushed = found
            return
        for table in tables:
            since = self._flushed.get(table, Mark())
            added = self._added(table, since)
            if added is None:
                newest = self._newest(table)
                sync_file_system(self._root)
            else:
                files, newest = added
                if newest != since:
                    sync_files(_with_checksums(files), self._root)
            self._flushed[table] = newest


def _with_checksums(files: Iterable[Path]) -> Iterator[Path]:
    """Also yield the file in which Hadoop stores a file's checksum; not every file has one."""
    for file in files:
        yield file
        yield file.with_name(f".{file.name}.crc")


# Delta: each commit is a file of the log, which lists the files that it has added.

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_LAST_CHECKPOINT = "_last_checkpoint"

# Digits of numbers to the base 85, in which the log has the names of deletion vectors (Z85).
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_DIGITS = 20


def delta_newest(table: Path) -> Mark:
    """Return the newest commit of a Delta table."""
    log = table / _LOG
    found = map(_COMMIT.fullmatch, os.listdir(log) if log.is_dir() else ())
    version = max((int(name[1]) for name in found if name is not None), default=-1)
    return Mark(version, checkpoint=int(_checkpoint(log).get("version", -1)))


def delta_added(table: Path, since: Mark) -> Added | None:
    """Return what commits to a Delta table have added; None if the log does not tell.

    Files that no longer exist may be among them.
    """
    log = table / _LOG
    if not log.is_dir():
        return [], Mark()
    if not (log / _commit_name(max(since.version, 0))).exists():
        return None
    version, files = since.version, []
    while (commit := log / _commit_name(version + 1)).exists():
        version += 1
        files += [*_files_of(table, commit), commit, log / f"{version:020d}.crc"]
    checkpoint = _checkpoint(log)
    newest = int(checkpoint.get("version", -1))
    if newest != since.checkpoint:
        files += [*_parts_of(log, checkpoint), log / _LAST_CHECKPOINT]
    return files, Mark(version, checkpoint=newest)


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _files_of(table: Path, commit: Path) -> Iterator[Path]:
    """Yield the files that a commit has added to a Delta table, except for those of the log."""
    for line in commit.read_text(encoding="utf-8").splitlines():
        action = json.loads(line)
        for found in (action.get("add"), action.get("cdc")):
            if found is not None:
                yield _place(table, found["path"])
                vector = found.get("deletionVector") or {}
                if vector.get("storageType") == "u":
                    yield table / vector_path(vector["pathOrInlineDv"])
                elif vector.get("storageType") == "p":
                    yield _place(table, vector["pathOrInlineDv"])


def _place(table: Path, path: str) -> Path:
    # A path in the log is percent-encoded, and relative to the table or a URL.
    return table / unquote(urlsplit(path).path if path.startswith("file:") else path)


def vector_path(text: str) -> str:
    """Return the path of a deletion vector in its table.

    Args:
        text: Its name in the log: a directory, which may be missing, and the encoded UUID.
    """
    prefix, name = text[:-_UUID_DIGITS], text[-_UUID_DIGITS:]
    content = b""
    for start in range(0, _UUID_DIGITS, 5):
        number = 0
        for digit in name[start : start + 5]:
            number = number * 85 + _DIGITS.index(digit)
        content += number.to_bytes(4, "big")
    return os.path.join(prefix, f"deletion_vector_{uuid.UUID(bytes=content)}.bin")


def _checkpoint(log: Path) -> dict[str, Any]:
    """Return what the log says of its newest checkpoint; empty if there is none."""
    try:
        return dict(json.loads((log / _LAST_CHECKPOINT).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):  # Delta too ignores one that cannot be read
        return {}


def _parts_of(log: Path, checkpoint: dict[str, Any]) -> list[Path]:
    name, parts = f"{checkpoint.get('version', 0):020d}.checkpoint", checkpoint.get("parts")
    second = checkpoint.get("v2Checkpoint")
    if second is not None:
        others = [each["path"] for each in second.get("sidecarFiles") or ()]
        return [log / Path(second["path"]).name, *(log / "_sidecars" / each for each in others)]
    if parts is None:
        return [log / f"{name}.parquet"]
    return [log / f"{name}.{n:010d}.{parts:010d}.parquet" for n in range(1, parts + 1)]


# Iceberg: each commit replaces the metadata, and adds a snapshot, whose manifests list the files.

_METADATA = "metadata"
_HINT = "version-hint.text"
_SUFFIXES = (".metadata.json", ".gz.metadata.json")

# Status of an entry of a manifest: the snapshot has added the file.
_IS_ADDED = 1


def iceberg_newest(table: Path) -> Mark:
    """Return the newest commit of a path-based Iceberg table."""
    version = _version_of(table)
    if version < 0:
        return Mark()
    return Mark(version, int(_metadata_of(table, version).get("last-sequence-number", 0)))


def iceberg_added(table: Path, since: Mark) -> Added | None:
    """Return what commits to an Iceberg table have added; None if the metadata do not tell.

    Files that no longer exist may be among them.
    """
    version = _version_of(table)
    if version == since.version:
        return [], since
    if version < since.version:
        return None
    metadata = _metadata_of(table, version)
    sequence = int(metadata.get("last-sequence-number", 0))
    new = [
        each
        for each in metadata.get("snapshots", ())
        if each.get("sequence-number", 0) > since.sequence
    ]
    if metadata["format-version"] < 2 or len(new) != sequence - since.sequence:
        return None  # snapshots without numbers, or one that has expired since
    files = [table / _METADATA / _HINT]
    for number in range(since.version + 1, version + 1):
        files += [table / _METADATA / f"v{number}{suffix}" for suffix in _SUFFIXES]
    try:
        for snapshot in new:
            files += _files_of_snapshot(snapshot)
    except ValueError:  # compressed in a way for which fastavro lacks the library
        return None
    return files, Mark(version, sequence)


def _version_of(table: Path) -> int:
    """Return the number of the newest metadata of an Iceberg table; -1 if there are none."""
    directory = table / _METADATA
    hint = directory / _HINT
    if not hint.exists():
        return -1
    version = int(hint.read_text(encoding="utf-8"))
    # The hint is written after the metadata, and may be missed.
    while any((directory / f"v{version + 1}{suffix}").exists() for suffix in _SUFFIXES):
        version += 1
    return version


def _metadata_of(table: Path, version: int) -> dict[str, Any]:
    plain, compressed = (table / _METADATA / f"v{version}{suffix}" for suffix in _SUFFIXES)
    if plain.exists():
        return dict(json.loads(plain.read_bytes()))
    return dict(json.loads(gzip.decompress(compressed.read_bytes())))


def _files_of_snapshot(snapshot: dict[str, Any]) -> Iterator[Path]:
    manifests = _local(snapshot["manifest-list"])
    yield manifests
    for manifest in _rows(manifests):
        if manifest["added_snapshot_id"] == snapshot["snapshot-id"]:
            path = _local(manifest["manifest_path"])
            yield path
            for entry in _rows(path):
                if entry["status"] == _IS_ADDED:
                    yield _local(entry["data_file"]["file_path"])


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [dict(row) for row in fastavro.reader(file) if isinstance(row, dict)]


def _local(location: str) -> Path:
    # Iceberg's locations are not percent-encoded.
    return Path(re.sub("^file:(//)?(?=/)", "", location))


_LOGS = {"delta": (delta_newest, delta_added), "iceberg": (iceberg_newest, iceberg_added)}
