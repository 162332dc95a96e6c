"""File-system steps that survive the loss of power.

A file is durable after an fsync of the file and of the directory that names it; a rename, after an
fsync of the directories on both sides. POSIX file systems only.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

# macOS: fsync leaves the bytes in the drive's cache, this does not. Absent elsewhere.
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def sync(path: Path) -> None:
    """Flush one file, or the names in one directory, to the disk.

    Raises:
        OSError: The system could not.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _FULL_FSYNC is not None and not path.is_dir():
            fcntl.fcntl(descriptor, _FULL_FSYNC)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory_and_files(directory: Path) -> None:
    """Flush every file of a flat directory, then their names."""
    for entry in sorted(directory.iterdir()):
        sync(entry)
    sync(directory)


def make_directory(path: Path) -> None:
    """Make a directory durable, with those above it; it may be there already.

    Raises:
        OSError: The system could not.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def replace_file(path: Path, text: str) -> None:
    """Give *path* new contents: after a crash it has the old ones or the new ones, never a part.

    Raises:
        OSError: The system could not; the old contents are still there.
    """
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        sync(draft)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)
