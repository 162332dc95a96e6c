"""Destinations of raw tables: a local directory, a URL, or the name of a catalog table.

Nothing here needs Spark, so an invalid destination is rejected immediately.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.ownership import FORMATS, LOGS, check_destination, recorded_staging
from sfpubsub.spark.raw.paths import SCHEME, file_url, is_object_store, local_path
from sfpubsub.spark.raw.sidecar_paths import IDENTITY_NAME, place_of
from sfpubsub.spark.raw.sources import Source

# A catalog table, as written in Spark SQL without quotes: schema.table, catalog.schema.table.
_CATALOG_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Destination:
    """The format and location of a table. Create it with `parse`."""

    format: str
    """One of `FORMATS`."""
    address: str
    """The address for Spark: an absolute path, a URL, or the name of a catalog table."""
    local: Path | None
    """The table's directory; None if it is not on a local file system."""
    in_catalog: bool = False
    """Whether `address` is the name of a catalog table."""
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
            destination: A path or a ``file`` URL. With delta or iceberg, also a URL of any scheme
                that Spark supports, or a catalog table: ``schema.table`` in the session's catalog,
                or ``catalog.schema.table``. Write ``./schema.table`` for a directory with such a
                name.
            format: One of `FORMATS`.
            staging: With parquet: directory for staging and sidecars; next to the table by default.

        Raises:
            ConfigurationError: The destination is not valid for the format, or the format is
                unknown.
        """
        check_format(format)
        if format == "iceberg" and is_object_store(os.fspath(destination)):
            raise ConfigurationError(
                f"a path-only iceberg table relies on atomic renames that never overwrite a file. "
                f"{destination} does not support them, so commits could be lost: use a catalog "
                f"table (catalog type jdbc or rest) or format delta"
            )
        if staging is not None and format != "parquet":
            raise ConfigurationError(
                f"format {format} has no staging directory: leave out staging, or use parquet"
            )
        text = os.fspath(destination)
        if format != "parquet" and isinstance(destination, str) and _CATALOG_TABLE.fullmatch(text):
            _refuse_ambiguous(text, format)
            return cls(format, text, None, in_catalog=True)
        scheme = SCHEME.match(text)
        if format != "parquet" and scheme is not None and scheme[1] != "file":
            return cls(format, text.rstrip("/"), None)
        path = local_path(text)
        aside = None if staging is None else Path(os.path.realpath(local_path(staging)))
        return cls(format, str(path), path, staging=aside)

    @property
    def url(self) -> str:
        """`address` as Spark expects it: a local path becomes a ``file`` URL."""
        return self.address if self.local is None else file_url(self.local)

    @property
    def in_sql(self) -> str:
        """The name of a catalog table, quoted for SQL."""
        return ".".join(f"`{part}`" for part in self.address.split("."))

    @property
    def name(self) -> str:
        """The last part of `address`, for messages."""
        return re.split(r"[/.]" if self.in_catalog else "/", self.address)[-1]

    def __str__(self) -> str:
        return self.address

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
    """
    try:
        path = local_path(raw)
    except ConfigurationError:
        return default
    if not path.is_dir():
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


def _refuse_ambiguous(name: str, format: str) -> None:  # noqa: A002  # named as in Spark
    if Path(name, LOGS[format]).is_dir():
        raise ConfigurationError(
            f"{name} is ambiguous, as it is both a local directory with a table and a valid "
            f"catalog table name: write ./{name} for the directory, or include the catalog"
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
