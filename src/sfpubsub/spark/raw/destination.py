"""Destinations of raw tables: a local directory, a URL, or the name of a catalog table.

Nothing here needs Spark, so an invalid destination is rejected immediately.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.ownership import FORMATS, LOGS, check_destination, recorded_staging
from sfpubsub.spark.raw.paths import Location, is_object_store, local_path, locate
from sfpubsub.spark.raw.sidecar_paths import IDENTITY_NAME, place_of
from sfpubsub.spark.raw.sources import Source


@dataclass(frozen=True, kw_only=True)
class Destination(Location):
    """The format and location of a table. Create it with `parse`."""

    format: str
    """One of `FORMATS`."""
    staging: Path | None = None
    """For parquet: the requested directory for staging and sidecars; None if not given."""

    @classmethod
    def parse(
        cls,
        destination: str | os.PathLike[str],
        format: str,  # noqa: A002  # named as in Spark
        staging: str | os.PathLike[str] | None = None,
    ) -> Destination:
        """Return the destination for a path, a URL or the name of a catalog table.

        Args:
            destination: A path with a slash, such as ``./orders``, or a ``file`` URL. With delta or
                iceberg, also a URL of any scheme that Spark supports, or a catalog table:
                ``schema.table`` in the session's catalog, or ``catalog.schema.table``. The rule is
                that of `kind_of`.
            format: One of `FORMATS`.
            staging: With parquet: directory for staging and sidecars; next to the table by default.

        Raises:
            ConfigurationError: The destination is not valid for the format, or the format is
                unknown.
        """
        check_format(format)
        found = locate(destination, "table")
        if format == "iceberg" and is_object_store(found.address):
            raise ConfigurationError(
                f"a path-only iceberg table relies on atomic renames that never overwrite a file. "
                f"{destination} does not support them, so commits could be lost: use a catalog "
                f"table (catalog type jdbc or rest) or format delta"
            )
        if format == "parquet" and found.local is None:
            _refuse_parquet(found)
        if staging is not None and format != "parquet":
            raise ConfigurationError(
                f"format {format} has no staging directory: leave out staging, or use parquet"
            )
        return cls(
            format=format,
            address=found.address,
            local=found.local,
            in_catalog=found.in_catalog,
            staging=None if staging is None else Path(os.path.realpath(local_path(staging))),
        )

    @property
    def name(self) -> str:
        """The last part of `address`, for messages."""
        return re.split(r"[/.]" if self.in_catalog else "/", self.address)[-1]

    @property
    def sidecar_directory(self) -> Path | None:
        """The directory that contains the sidecars; None if the table is not local.

        For Parquet it is next to the table. For other formats it is the table's own directory,
        because their readers find files only through the log.
        """
        if self.local is None or self.format != "parquet":
            return self.local
        return place_of(self.local, self.staging or recorded_staging(self.local))

    def check(self, sources: Sequence[Source]) -> None:
        """Check, as far as possible without Spark, that this table can store events of *sources*.

        The check changes nothing.

        Raises:
            ConfigurationError: The destination exists but is not a raw table, belongs to other
                sources, or is not writable.
        """
        if self.local is not None:
            check_destination(self.local, sources, self.format, self.staging)


def format_of(raw: str | os.PathLike[str], default: str) -> str:
    """Detect the format of a raw table at a local path by its log directory.

    A directory without a log is taken to be a Parquet table. Return *default* if *raw* is not an
    existing local directory.

    Raises:
        ConfigurationError: *raw* is neither a path nor a name in a catalog (`kind_of`).
    """
    path = locate(raw, "table").local
    if path is None or not path.is_dir():
        return default
    for format_, log in LOGS.items():
        if (path / log).is_dir():
            return format_
    return "parquet"


def check_raw_table(table: Destination) -> None:
    """Check, as far as possible without Spark, that *table* is a raw table.

    Raises:
        ConfigurationError: *table* is not a raw table, or not in the format `table.format`.
    """
    path = table.local
    if path is None:
        return
    if not path.is_dir():
        raise ConfigurationError(f"{table} is not a directory: specify the path of a raw table")
    for other, log in LOGS.items():
        if (path / log).is_dir() and table.format != other:
            raise ConfigurationError(
                f"{table} is a table of format {other}: use --from-format {other} "
                "(in Python: raw_format)"
            )
    mark = LOGS.get(table.format, IDENTITY_NAME)
    if not (path / mark).exists():
        inner = sorted(entry.parent.name for entry in path.glob(f"*/{mark}"))
        hint = (
            f"; name a raw table that it contains: {', '.join(inner)}"
            if inner
            else "; check the path"
        )
        raise ConfigurationError(
            f"{table} is not a raw table of format {table.format} (it has no {mark}){hint}"
        )


def _refuse_parquet(found: Location) -> NoReturn:
    """Raise the error for a location that cannot have a Parquet table: a URL or a catalog."""
    if found.in_catalog:
        raise ConfigurationError(
            f"{found} is a table in a catalog, and a parquet table is a directory: write ./{found} "
            f"for the directory, or use a table format: delta or iceberg"
        )
    scheme = found.address.partition(":")[0]
    raise ConfigurationError(
        f"cannot write parquet to {found}: a batch is published with one rename, which {scheme} "
        f"does not support; use a local directory, or a table format: delta or iceberg"
    )


def check_format(name: str) -> None:
    """Check that *name* is a supported format.

    Raises:
        ConfigurationError: The format is unknown.
    """
    if name not in FORMATS:
        raise ConfigurationError(
            f"format {name!r} is not supported; use one of {', '.join(FORMATS)}"
        )
