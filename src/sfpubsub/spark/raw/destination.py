"""Look at the directory of a raw table, without Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import LOGS
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.ownership import check_destination, recorded_staging
from sfpubsub.spark.raw.sidecar_paths import IDENTITY_NAME, place_of
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.runtime.paths import locate


def sidecar_directory(table: Destination) -> Path | None:
    """Return the directory that contains a table's sidecars; None if the table is not local.

    For Parquet it is next to the table. For other formats it is the table's own directory, because
    their readers find files only through the log.
    """
    if table.local is None or table.format != "parquet":
        return table.local
    return place_of(table.local, table.staging or recorded_staging(table.local))


def check_sources(table: Destination, sources: Sequence[Source]) -> None:
    """Check, as far as possible without Spark, that a table can store events of *sources*.

    The check changes nothing.

    Raises:
        ConfigurationError: The table's directory exists but is not a raw table, belongs to other
            sources, or is not writable.
    """
    if table.local is not None:
        check_destination(table.local, sources, table.format, table.staging)


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
