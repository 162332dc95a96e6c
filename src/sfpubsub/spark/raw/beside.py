"""Where a Parquet table keeps what is not its rows: a directory beside it, ``.NAME.sfpubsub``.

Staging and sidecars are not in the table's own tree, because not every reader of ``**/*.parquet``
leaves out names that begin with ``_``, and those that do list what is in them all the same while
it is being removed. The directory is beside the table, or in one of the user's choice, which the
table's identity file then names. It must be on the table's file system: a batch is published by
one rename.

Tables of layout 1 had all this inside. `settle` moves it out, under the lease: it can die at any
step and begin again, and meanwhile `sidecar_places` finds both places.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from pathlib import Path

from sfpubsub.durable import make_directory, replace_file, sync
from sfpubsub.errors import ConfigurationError

IDENTITY_NAME = "_table.json"
STAGING_NAME = "_staging"
UPGRADE_NAME = "_upgrade"
SCHEMAS_NAME = "_schemas"
QUARANTINE_NAME = "_quarantine"
GAPS_NAME = "_gaps"
COMMITS_NAME = "_commits"
CONFLICTS_NAME = "_conflicts"
SIDECARS = (SCHEMAS_NAME, QUARANTINE_NAME, GAPS_NAME, COMMITS_NAME, CONFLICTS_NAME)

# Of what a writer knows of the keys: a cache (ingest/key_window.py).
KEYS_NAME = "_keys"

# Says which table the directory belongs to. One of the user's choice may be given to several.
_OWNER_NAME = "table.json"


def place_of(table: Path, staging: Path | None) -> Path:
    """Return the directory of a table's staging and sidecars, by whatever path the table is known.

    Args:
        table: The table's directory.
        staging: The directory of the user's choice to make it in; the table's parent by default.
    """
    real = Path(os.path.realpath(table))
    return (staging or real.parent) / f".{real.name}.sfpubsub"


def sidecar_places(table: Path, staging: Path | None, name: str) -> list[Path]:
    """Return the places that a sidecar may be in: its own, and the one of layout 1."""
    return [place_of(table, staging) / name, table / name]


def owner_of(place: Path) -> Path | None:
    """Return the table that the directory was last used for, or None."""
    try:
        return Path(json.loads((place / _OWNER_NAME).read_text(encoding="utf-8"))["table"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def check_place(table: Path, staging: Path | None) -> None:
    """Make sure, as far as possible without trying, that the directory is usable.

    Changes nothing.

    Raises:
        ConfigurationError: It would be in the table, or on another file system, or belongs to
            another table.
        OSError: It cannot be looked at.
    """
    place = place_of(table, staging)
    if place.is_relative_to(os.path.realpath(table)):
        raise ConfigurationError(
            f"staging must not be in the table, whose readers would come upon it: {staging} is in "
            f"{table}"
        )
    above, below = _existing(place), _existing(table)
    if above.stat().st_dev != below.stat().st_dev:
        raise _other_file_system(table, place)
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{place} cannot be made, where the table's staging is to be: {above} is not "
            f"writable; change its permissions, or name another directory of this file system "
            f"with --staging (staging=)"
        )
    owner = owner_of(place)
    # Beside the table nobody else's can be; a copy of both still names what it is a copy of.
    if staging is not None and owner is not None and _is_another(owner, table):
        raise ConfigurationError(
            f"{place} belongs to the table {owner}: name another directory with --staging "
            f"(staging=)"
        )


def prepare(table: Path, place: Path) -> None:
    """Make the directory, and try whether what is in it can be renamed into the table.

    Raises:
        ConfigurationError: It cannot: they are on different file systems.
        OSError: The directory cannot be made.
    """
    make_directory(place)
    if owner_of(place) != Path(os.path.realpath(table)):
        replace_file(place / _OWNER_NAME, json.dumps({"table": os.path.realpath(table)}))
    name = f"{IDENTITY_NAME}.{uuid.uuid4().hex}.tmp"  # as a draft, of which a death may leave one
    probe, there = place / name, table / name
    probe.touch()
    try:
        # A file, and not a directory: no reader minds that one goes away while it looks. Only
        # trying tells: a directory that is mounted a second time has the number of the first.
        os.rename(probe, there)
    except OSError as error:
        probe.unlink()
        if error.errno == errno.EXDEV:
            raise _other_file_system(table, place) from error
        raise
    there.unlink()


def settle(table: Path, place: Path) -> None:
    """Move what layout 1 kept in the table to its place. Can die and begin again.

    1. A sidecar that is not in its place yet moves as a whole, by one rename.
    2. Where there is one already, because a stream was told the old path, each of its files moves:
       names are made of what is in the files, so one that is there says the same.
    3. What a dead write left in staging is moved out, and removed where nobody looks.

    Raises:
        OSError: The system could not; what was moved stays where it is, and the rest as well.
    """
    for name in SIDECARS:
        if (table / name).is_dir():
            _move(table / name, place / name)
    if (table / STAGING_NAME).is_dir():
        make_directory(place / STAGING_NAME)
        os.rename(table / STAGING_NAME, place / STAGING_NAME / f"old.{uuid.uuid4().hex}")
        sync(table)


def _move(old: Path, new: Path) -> None:
    if new.exists():
        for entry in sorted(old.iterdir()):
            os.replace(entry, new / entry.name)
        sync(new)
        old.rmdir()
    else:
        os.rename(old, new)
        sync(new.parent)
    sync(old.parent)


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _is_another(owner: Path, table: Path) -> bool:
    """Whether *owner* is there and is not *table* by another path."""
    return owner.is_dir() and not (table.exists() and owner.samefile(table))


def _other_file_system(table: Path, place: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{place} and {table} are on different file systems, and a batch is published by one "
        f"rename from there: name a directory of the table's own file system with --staging "
        f"(staging=); if {table} is a mount of its own, write to a directory in it"
    )
