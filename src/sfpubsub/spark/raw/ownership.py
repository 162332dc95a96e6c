"""Whose a table's directory on this machine is, and whether it can become theirs.

A Parquet table says so in a file of its own, with its layout and the place of its staging; a table
format in its log, which Spark reads. Nothing here needs Spark, so a wrong destination is refused at
once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sfpubsub.durable import replace_file, sync
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.beside import (
    IDENTITY_NAME,
    SIDECARS,
    STAGING_NAME,
    UPGRADE_NAME,
    check_place,
    owner_of,
    place_of,
    prepare,
    settle,
    sidecar_places,
)
from sfpubsub.spark.raw.layout import LAYOUTS, NEWEST, PREFIXES, Layout, newer_layout
from sfpubsub.spark.raw.lease import LEASE_NAME
from sfpubsub.spark.raw.sources import Source, joined, listed, recorded_sources, sources_record

POSITION_NAME = "_position"
BATCH_PREFIX = "batch="

FORMATS = ("parquet", "delta", "iceberg")

# The directory that a table format keeps its log in.
LOGS = {"delta": "_delta_log", "iceberg": "metadata"}

# The layout of Parquet that a table of an older one gets when it is opened: only what is beside it
# moves. Once it is taken over no older version writes it.
_ASIDE = 2


def check_destination(
    path: Path,
    sources: Sequence[Source],
    format: str = "parquet",  # noqa: A002  # Spark's own word
    staging: Path | None = None,
) -> None:
    """Make sure that *path* can become, or already is, the table of *sources*. Changes nothing.

    Whose a table of a table format is, is told by its log, which Spark reads.

    Raises:
        ConfigurationError: It is something else, belongs to other sources, or cannot be written;
            or its staging cannot be where it is to be.
    """
    try:
        if path.exists():
            _check_existing(path, sources, format)
        elif path.is_symlink():
            raise ConfigurationError(f"{path} is a link to a directory that does not exist")
        else:
            parent = next(parent for parent in path.parents if parent.exists())
            if not parent.is_dir():
                raise ConfigurationError(f"{path} cannot be made: {parent} is not a directory")
            _check_writable(parent, f"{path} cannot be made: {parent} is not writable")
        if format == "parquet":
            _check_staging(path, staging)
            check_place(path, staging or recorded_staging(path))
    except OSError as error:
        raise _refusal(path, error) from error


def claim_table(
    path: Path, sources: Sequence[Source], staging: Path | None = None
) -> tuple[Path, Layout]:
    """Record the owner in a table's directory, and make its place for staging and sidecars.

    Call under the lease. It can die at any step, and be called again:

    1. Make the place, and try whether a rename leads from there into the table.
    2. Write the identity. From now on readers look there, and older versions keep off.
    3. Move there what layout 1 kept in the table; readers look in both until that is done.

    Args:
        path: The table's directory, which exists.
        sources: Whose it is to be, and those that it has already.
        staging: As for `Destination.parse`; by default where it was before, or beside the table.

    Returns:
        The place, and the layout: that of the rows that are there, or else the newest.

    Raises:
        ConfigurationError: As `check_destination`; or it cannot be written.
    """
    check_destination(path, sources, staging=staging)
    staging = staging or recorded_staging(path)
    place = place_of(path, staging)
    if (place / UPGRADE_NAME / "ready").exists():
        raise ConfigurationError(f"{path} is being upgraded: sfpubsub upgrade finishes that")
    found = _identity(path)
    is_written = _is_written(path)
    layout = NEWEST
    if found is not None and found.layout < NEWEST.number and is_written:
        layout = LAYOUTS[_ASIDE]
    recorded = found.sources if found is not None and is_written else ()
    identity = _Identity(joined(recorded, sources, path), staging, layout.number)
    try:
        prepare(path, place)
        if _identity(path) != identity:
            replace_file(path / IDENTITY_NAME, identity.to_json())
        settle(path, place)
    except OSError as error:
        raise _refusal(path, error) from error
    return place, layout


def claim_upgraded(path: Path) -> None:
    """Write on a table's directory that its rows have the newest layout, or will at once.

    Raises:
        ConfigurationError: It does not name its owner.
    """
    identity = _identity(path)
    if identity is None:
        raise ConfigurationError(f"{path} is not a parquet table of sfpubsub")
    replace_file(path / IDENTITY_NAME, replace(identity, layout=NEWEST.number).to_json())


def sources_of(path: Path) -> tuple[Source, ...]:
    """Return the sources of a Parquet table; empty if it is not one yet.

    Raises:
        ConfigurationError: The table's identity cannot be read.
    """
    identity = _identity(path)
    return identity.sources if identity else ()


def local_sidecars(path: Path, name: str) -> list[Path]:
    """Return the directories of this machine that a table's sidecar may be in, whatever its format.

    Args:
        path: The table's directory.
        name: Such as ``_gaps``.

    Raises:
        ConfigurationError: The table's identity cannot be read.
    """
    if any((path / log).is_dir() for log in LOGS.values()):
        return [path / name]
    return sidecar_places(path, recorded_staging(path), name)


def make_table_directory(path: Path) -> None:
    """Make the table's directory durable, with those above it.

    Raises:
        ConfigurationError: It cannot be made.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for place in missing:
            sync(place.parent)
    except OSError as error:
        raise _refusal(path, error) from error


def _check_existing(path: Path, sources: Sequence[Source], format: str) -> None:  # noqa: A002
    if not path.is_dir():
        raise ConfigurationError(f"{path} is not a directory: name another destination")
    _check_writable(path, f"{path} is not writable")
    owner = _identity(path)
    log = LOGS.get(format)
    if owner is not None and log is not None:
        raise ConfigurationError(
            f"{path} is a parquet table of {listed(owner.sources)}: name another destination for "
            f"format {format}"
        )
    if owner is None and not (log is not None and (path / log).exists()):
        foreign = sorted(name for name in os.listdir(path) if not _is_ours(name))
        if foreign:
            raise ConfigurationError(
                f"{path} is not empty and not a table of sfpubsub (it holds {foreign[0]!r}): name "
                f"another destination"
            )
    elif owner is not None and _is_written(path):
        joined(owner.sources, sources, path)


def _check_writable(path: Path, message: str) -> None:
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{message}: change its permissions or name another destination")


def _is_ours(name: str) -> bool:
    """Whether a start that did not get as far as the identity file may have made it."""
    return name in {LEASE_NAME, STAGING_NAME, *SIDECARS} or name.startswith(IDENTITY_NAME)


def _is_written(path: Path) -> bool:
    """Whether it holds rows or a position. Until then a mistyped topic must not keep a path."""
    return any(name.startswith(PREFIXES) or name == POSITION_NAME for name in os.listdir(path))


@dataclass(frozen=True)
class _Identity:
    """What is written on a table's directory."""

    sources: tuple[Source, ...]
    staging: Path | None
    layout: int

    def to_json(self) -> str:
        record = {
            "layout": self.layout,
            "format": "parquet",
            "sources": sources_record(self.sources),
        }
        return json.dumps(record | ({"staging": str(self.staging)} if self.staging else {}))


def _identity(path: Path) -> _Identity | None:
    try:
        text = (path / IDENTITY_NAME).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    number: object = None
    try:
        found = json.loads(text)
        number = found["layout"]
        if number in LAYOUTS and found["format"] in FORMATS:
            sources = recorded_sources(found)
            staging = found.get("staging")
            return _Identity(sources, Path(staging) if staging else None, number)
        reason = f"layout {number}, format {found['format']}"
    except (ValueError, KeyError, TypeError, ConfigurationError) as error:
        reason = f"unreadable: {error}"
    if isinstance(number, int) and number > NEWEST.number:
        raise ConfigurationError(newer_layout(path, number))
    raise ConfigurationError(
        f"{path / IDENTITY_NAME} is not of this version of sfpubsub ({reason}): name another "
        f"destination"
    )


def recorded_staging(path: Path) -> Path | None:
    """Return the directory for staging that the table's identity names, if any."""
    identity = _identity(path)
    return identity.staging if identity else None


def _check_staging(path: Path, staging: Path | None) -> None:
    """Make sure that what is kept for a table is not left behind for another place."""
    kept = place_of(path, recorded_staging(path))
    if staging is None or kept == place_of(path, staging):
        return
    owner = owner_of(kept)
    if owner is not None and path.exists() and owner.exists() and owner.samefile(path):
        raise ConfigurationError(
            f"the sidecars of {path} are in {kept}: leave out --staging (staging=), or move that "
            f"directory to {staging} first"
        )


def _refusal(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written ({error.strerror}): name another destination"
    )
