"""The directory ``.NAME.sfpubsub``, which contains a Parquet table's staging files and sidecars.

Inside the table, these files would disturb readers: not every reader of ``**/*.parquet`` ignores
names that begin with ``_``, and even one that does may list a directory while it is being removed.
By default, ``.NAME.sfpubsub`` is next to the table. The user can choose another parent directory,
which is then recorded in the table's identity file. It must be on the table's file system, because
a batch is published by one rename.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from pathlib import Path

from sfpubsub.durable import make_directory, replace_file
from sfpubsub.errors import ConfigurationError

IDENTITY_NAME = "_table.json"
STAGING_NAME = "_staging"
SCHEMAS_NAME = "_schemas"
QUARANTINE_NAME = "_quarantine"
GAPS_NAME = "_gaps"
COMMITS_NAME = "_commits"
CONFLICTS_NAME = "_conflicts"
CONFIRMED_NAME = "_confirmed"
SIDECARS = (
    SCHEMAS_NAME,
    QUARANTINE_NAME,
    GAPS_NAME,
    COMMITS_NAME,
    CONFLICTS_NAME,
    CONFIRMED_NAME,
)

# File that names the table to which the directory belongs, because several tables may share a
# parent directory chosen by the user.
_OWNER_NAME = "table.json"


def place_of(table: Path, staging: Path | None) -> Path:
    """Return the directory for a table's staging and sidecars.

    Every path to the table, such as one through a link, gives the same directory.

    Args:
        table: The table's directory.
        staging: Parent directory chosen by the user; None means the parent of the table.
    """
    real = Path(os.path.realpath(table))
    return (staging or real.parent) / f".{real.name}.sfpubsub"


def owner_of(place: Path) -> Path | None:
    """Return the table that *place* was last used for; None if no valid record of it exists."""
    try:
        return Path(json.loads((place / _OWNER_NAME).read_text(encoding="utf-8"))["table"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def check_place(table: Path, staging: Path | None) -> None:
    """Check, without changing anything, that the directory for staging and sidecars is usable.

    Raises:
        ConfigurationError: The directory would be inside the table or on another file system, is
            not writable, or belongs to another table.
        OSError: The directory cannot be inspected.
    """
    place = place_of(table, staging)
    if place.is_relative_to(os.path.realpath(table)):
        raise ConfigurationError(
            f"staging {staging} is inside the table {table}, so readers would read files that are "
            f"not published: name a directory outside the table"
        )
    above, below = _existing(place), _existing(table)
    if above.stat().st_dev != below.stat().st_dev:
        raise _other_file_system(table, place)
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{place}, the directory for the table's staging, cannot be created: {above} is not "
            f"writable; change its permissions, or name another directory on the table's file "
            f"system with --staging (staging=)"
        )
    owner = owner_of(place)
    # Check only a directory that the user chose. The default one cannot belong to another table,
    # although it names the original if the table is a copy.
    if staging is not None and owner is not None and _is_another(owner, table):
        raise ConfigurationError(
            f"{place} belongs to the table {owner}: name another directory with --staging "
            f"(staging=)"
        )


def prepare(table: Path, place: Path) -> None:
    """Create *place*, record *table* as its owner, and check renames from *place* into *table*.

    Raises:
        ConfigurationError: The directory and the table are on different file systems.
        OSError: The directory cannot be created, or a file cannot be written there.
    """
    make_directory(place)
    if owner_of(place) != Path(os.path.realpath(table)):
        replace_file(place / _OWNER_NAME, json.dumps({"table": os.path.realpath(table)}))
    # The probe is named like a temporary identity file, because a crash may leave it behind.
    name = f"{IDENTITY_NAME}.{uuid.uuid4().hex}.tmp"
    probe, there = place / name, table / name
    probe.touch()
    try:
        # Rename a file instead of a directory, because readers tolerate a file that disappears.
        # Only a trial is reliable: a directory that is mounted twice has the same device number.
        os.rename(probe, there)
    except OSError as error:
        probe.unlink()
        if error.errno == errno.EXDEV:
            raise _other_file_system(table, place) from error
        raise
    there.unlink()


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _is_another(owner: Path, table: Path) -> bool:
    """Return whether *owner* is an existing directory other than *table*. Links are followed."""
    return owner.is_dir() and not (table.exists() and owner.samefile(table))


def _other_file_system(table: Path, place: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{place} and {table} are on different file systems, but a batch is published by renaming "
        f"it: choose a directory on the table's file system with --staging (staging=); if {table} "
        f"is a mount point, write to a directory inside it"
    )
