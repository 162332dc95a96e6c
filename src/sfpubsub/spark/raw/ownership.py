"""Check and record the owner of a local table directory: the sources that the table belongs to.

A Parquet table records its owner in an identity file, with its layout and staging directory. A
Delta or Iceberg table records its owner in its log, which Spark reads. Nothing here needs Spark, so
an invalid destination is rejected immediately.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sfpubsub.durable import replace_file, sync
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import LOGS
from sfpubsub.spark.formats.lease import LEASE_NAME
from sfpubsub.spark.raw.layout import LAYOUT, PREFIX, check_layout
from sfpubsub.spark.raw.organisation import one_org
from sfpubsub.spark.raw.sidecar_paths import (
    IDENTITY_NAME,
    SIDECARS,
    STAGING_NAME,
    check_place,
    owner_of,
    place_of,
    prepare,
)
from sfpubsub.spark.raw.sources import Source, joined, listed, recorded_sources, sources_record

POSITION_NAME = "_position"
BATCH_PREFIX = "batch="


def check_destination(
    path: Path,
    sources: Sequence[Source],
    format: str = "parquet",  # noqa: A002  # named as in Spark
    staging: Path | None = None,
) -> None:
    """Check, without changing anything, that *path* is or can become the table of *sources*.

    The owner of a Delta or Iceberg table is not checked here: it is recorded in the table's log,
    which Spark reads later.

    Raises:
        ConfigurationError: *path* contains other files, belongs to other sources, or is not
            writable; or its staging directory is not usable.
    """
    try:
        if path.exists():
            _check_existing(path, sources, format)
        elif path.is_symlink():
            raise ConfigurationError(
                f"{path} is a link to a directory that does not exist: create that directory, or "
                f"choose another destination"
            )
        else:
            parent = next(parent for parent in path.parents if parent.exists())
            if not parent.is_dir():
                raise ConfigurationError(
                    f"{path} cannot be created, because {parent} is not a directory: choose "
                    f"another destination"
                )
            _check_writable(parent, f"{path} cannot be created, because {parent} is not writable")
        if format == "parquet":
            _check_staging(path, staging)
            check_place(path, staging or recorded_staging(path))
    except OSError as error:
        raise _refusal(path, error) from error


def claim_table(
    path: Path,
    sources: Sequence[Source],
    staging: Path | None = None,
    org_id: str | None = None,
) -> Path:
    """Record a table's owner in its directory, and create a directory for staging and sidecars.

    Call it while holding the lease. It can be interrupted at any step and repeated:

    1. Create the directory for staging and sidecars, and check that files can be renamed from there
       into the table.
    2. Write the identity. From then on, readers use that directory.

    Args:
        path: The table's directory, which must exist.
        sources: Sources to write to the table. If it already has sources, they must include one of
            these; the others stay recorded.
        staging: See `Destination.parse`; None keeps the recorded location, or else uses the default
            next to the table.
        org_id: Id of the org whose events will be written; None if it is not known.

    Returns:
        The directory for staging and sidecars.

    Raises:
        ConfigurationError: See `check_destination`; or the directory cannot be written, or the
            table contains events of another org (OtherOrgError).
    """
    check_destination(path, sources, staging=staging)
    staging = staging or recorded_staging(path)
    place = place_of(path, staging)
    found = _identity(path)
    written = found if _is_written(path) else None
    identity = _Identity(
        joined(written.sources if written else (), sources, path),
        staging,
        found.id if found else uuid.uuid4().hex,
        one_org(written.org_id if written else None, org_id, path),
    )
    try:
        prepare(path, place)
        if _identity(path) != identity:
            replace_file(path / IDENTITY_NAME, identity.to_json())
    except OSError as error:
        raise _refusal(path, error) from error
    return place


def sources_of(path: Path) -> tuple[Source, ...]:
    """Return the sources of a Parquet table; empty if the table has no identity file yet.

    Raises:
        ConfigurationError: The identity file cannot be read.
    """
    identity = _identity(path)
    return identity.sources if identity else ()


def org_of(path: Path) -> str | None:
    """Return the id of the org whose events a Parquet table contains; None if it is not known.

    Raises:
        ConfigurationError: The identity file cannot be read.
    """
    identity = _identity(path)
    return identity.org_id if identity else None


def table_id(path: Path) -> str | None:
    """Return the identity of a Parquet table, which stays the same if the table is moved.

    None if the table has no identity file yet.

    Raises:
        ConfigurationError: The identity file cannot be read.
    """
    identity = _identity(path)
    return identity.id if identity else None


def local_sidecar(path: Path, name: str) -> Path:
    """Return the local directory of a table's sidecar, which may not exist.

    The table may have any format.

    Args:
        path: The table's directory.
        name: Name of the sidecar's directory, such as ``_gaps``.

    Raises:
        ConfigurationError: The table's identity cannot be read.
    """
    if any((path / log).is_dir() for log in LOGS.values()):
        return path / name
    return place_of(path, recorded_staging(path)) / name


def make_table_directory(path: Path) -> None:
    """Create the table's directory and its parents durably.

    Raises:
        ConfigurationError: The directory cannot be created.
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
        raise ConfigurationError(f"{path} is not a directory: choose another destination")
    _check_writable(path, f"{path} is not writable")
    owner = _identity(path)
    log = LOGS.get(format)
    if owner is not None and log is not None:
        raise ConfigurationError(
            f"{path} is a parquet table of {listed(owner.sources)}: choose another destination "
            f"for format {format}"
        )
    if owner is None and not (log is not None and (path / log).exists()):
        foreign = sorted(name for name in os.listdir(path) if not _is_ours(name))
        if foreign:
            raise ConfigurationError(
                f"{path} is neither empty nor an sfpubsub table (it contains {foreign[0]!r}): "
                f"choose another destination"
            )
    elif owner is not None and _is_written(path):
        joined(owner.sources, sources, path)


def _check_writable(path: Path, message: str) -> None:
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{message}: change its permissions or choose another destination")


def _is_ours(name: str) -> bool:
    """Return whether a writer interrupted at its start may have left a file or directory *name*."""
    return name in {LEASE_NAME, STAGING_NAME, *SIDECARS} or name.startswith(IDENTITY_NAME)


def _is_written(path: Path) -> bool:
    """Return whether the table contains rows or a position.

    Until it does, its recorded sources can be replaced, so that a mistyped topic does not claim the
    path for good.
    """
    return any(name.startswith(PREFIX) or name == POSITION_NAME for name in os.listdir(path))


@dataclass(frozen=True)
class _Identity:
    """Contents of a table's identity file."""

    sources: tuple[Source, ...]
    staging: Path | None
    id: str
    org_id: str | None

    def to_json(self) -> str:
        record = {
            "layout": LAYOUT,
            "format": "parquet",
            "id": self.id,
            "sources": sources_record(self.sources),
            "staging": str(self.staging) if self.staging else None,
            "org_id": self.org_id,
        }
        return json.dumps({key: value for key, value in record.items() if value is not None})


def _identity(path: Path) -> _Identity | None:
    try:
        text = (path / IDENTITY_NAME).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = json.loads(text)
        number = found["layout"]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    check_layout(path, number)
    try:
        staging = found.get("staging")
        return _Identity(
            recorded_sources(found["sources"]),
            Path(staging) if staging else None,
            found["id"],
            found.get("org_id"),
        )
    except (KeyError, TypeError, ConfigurationError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{path / IDENTITY_NAME} cannot be read ({error}): choose another destination"
    )


def recorded_staging(path: Path) -> Path | None:
    """Return the table's recorded parent directory for staging; None if it uses the default."""
    identity = _identity(path)
    return identity.staging if identity else None


def _check_staging(path: Path, staging: Path | None) -> None:
    """Check that a changed staging directory would not leave existing sidecars behind."""
    kept = place_of(path, recorded_staging(path))
    if staging is None or kept == place_of(path, staging):
        return
    owner = owner_of(kept)
    if owner is not None and path.exists() and owner.exists() and owner.samefile(path):
        raise ConfigurationError(
            f"the sidecars of {path} are in {kept}: omit --staging (staging=), or move that "
            f"directory into {staging} first"
        )


def _refusal(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written ({error.strerror}): choose another destination"
    )
