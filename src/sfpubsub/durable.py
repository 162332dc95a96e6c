"""File operations whose results survive a power failure.

A file is durable after an fsync of the file and of its directory. A rename is durable after an
fsync of the source and target directories. POSIX file systems only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

# On macOS, fsync leaves data in the drive's cache, and this command flushes it. None elsewhere.
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)

# On Linux, this call flushes one file system. None elsewhere.
_SYNCFS = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk.

    Raises:
        OSError: *path* could not be opened or flushed.
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
    """Flush every file in a directory, then the directory, which must have no subdirectories.

    Raises:
        OSError: A file could not be opened or flushed.
    """
    for entry in sorted(directory.iterdir()):
        sync(entry)
    sync(directory)


def sync_files(files: Iterable[Path], root: Path) -> None:
    """Flush files, and the entries of the directories that lead to them from a directory.

    Args:
        files: The files. Those that do not exist are left out.
        root: A directory, which is flushed too. For a file outside of it, only the file's own
            directory is flushed.

    Raises:
        OSError: A file could not be opened or flushed.
    """
    directories = {root}
    for file in files:
        try:
            sync(file)
        except FileNotFoundError:
            continue
        for parent in file.parents:
            if parent in directories:
                break
            directories.add(parent)
            if not parent.is_relative_to(root):
                break
    for directory in sorted(directories, key=lambda each: len(each.parts), reverse=True):
        sync(directory)


def sync_file_system(path: Path) -> None:
    """Flush everything in the file system that contains *path*.

    Raises:
        OSError: *path* could not be opened, or not everything could be flushed.
    """
    if _SYNCFS is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _SYNCFS(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, mode: int = 0o777) -> None:
    """Create a directory and its missing parents durably; do nothing if it exists.

    Args:
        path: The directory.
        mode: Permissions of the directory itself, reduced by the process's umask.

    Raises:
        OSError: A directory could not be created or flushed.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read. It is not flushed to the disk.

    Raises:
        OSError: The file exists, or could not be written.
    """
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)


def replace_file(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace the contents of *path* atomically and durably.

    After a crash, the file has either the old or the new contents.

    Args:
        path: The file.
        text: The new contents.
        mode: Permissions of the file, reduced by the process's umask.

    Raises:
        OSError: The file could not be written, replaced or flushed; it has either the old or the
            new contents.
    """
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        sync(draft)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)
