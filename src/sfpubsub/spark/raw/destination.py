"""Where a raw table may be: a directory of this machine, a URL, or the name of a catalog's table.

Nothing here needs Spark, so a wrong destination is refused at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.beside import IDENTITY_NAME, place_of
from sfpubsub.spark.raw.ownership import FORMATS, LOGS, check_destination, recorded_staging
from sfpubsub.spark.raw.paths import SCHEME, file_url, is_object_store, local_path
from sfpubsub.spark.raw.sources import Source

# A table of a catalog, as Spark SQL writes it without quotes: schema.table, catalog.schema.table.
_CATALOG_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Destination:
    """Where a table is. Use `parse`."""

    format: str
    """One of `FORMATS`."""
    address: str
    """The name for Spark: an absolute path, a URL, or the name of a catalog's table."""
    local: Path | None
    """The directory, if it is one of this machine's."""
    in_catalog: bool = False
    """Whether `address` is the name of a catalog's table."""
    staging: Path | None = None
    """Of a parquet table: the directory in which staging and sidecars were asked for."""

    @classmethod
    def parse(
        cls,
        destination: str | os.PathLike[str],
        format: str,  # noqa: A002  # Spark's own word
        staging: str | os.PathLike[str] | None = None,
    ) -> Destination:
        """Return what *destination* names.

        Args:
            destination: A path; a URL of scheme ``file``, or for table formats of any scheme that
                Spark knows, or a table of a catalog: ``schema.table`` of the session's, or
                ``catalog.schema.table``. So a directory of such a name is ``./schema.table``.
            format: One of `FORMATS`.
            staging: With parquet: the directory in which to keep staging and sidecars; beside the
                table by default.

        Raises:
            ConfigurationError: It is not for this format, or there is no such format.
        """
        check_format(format)
        if format == "iceberg" and is_object_store(os.fspath(destination)):
            raise ConfigurationError(
                f"iceberg tables that are only a path need a rename that replaces nothing, which "
                f"{destination} does not have, and would lose commits: name a table of a catalog "
                f"(of type jdbc or rest), or use delta"
            )
        if staging is not None and format != "parquet":
            raise ConfigurationError(f"staging goes with format parquet; {format} has none")
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
        """`address`, with its scheme if it is a path."""
        return self.address if self.local is None else file_url(self.local)

    @property
    def in_sql(self) -> str:
        """The name of a catalog's table, with quotes."""
        return ".".join(f"`{part}`" for part in self.address.split("."))

    @property
    def name(self) -> str:
        """Its last part, for messages."""
        return re.split(r"[/.]" if self.in_catalog else "/", self.address)[-1]

    def __str__(self) -> str:
        return self.address

    @property
    def beside(self) -> Path | None:
        """The directory with its sidecars, if it is on this machine.

        Beside a Parquet table; in that of a table format, whose readers go by its log.
        """
        if self.local is None or self.format != "parquet":
            return self.local
        return place_of(self.local, self.staging or recorded_staging(self.local))

    def check(self, sources: Sequence[Source]) -> None:
        """Make sure, as far as possible without Spark, that it is or can become theirs.

        Changes nothing.

        Raises:
            ConfigurationError: It is something else, belongs to other sources, or cannot be
                written.
        """
        if self.local is not None:
            check_destination(self.local, sources, self.format, self.staging)


def format_of(raw: str | os.PathLike[str], default: str) -> str:
    """Return the format of the raw table at a path of this machine; of any other *default*."""
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
    """Make sure, as far as possible without Spark, that there is a raw table to read.

    Raises:
        ConfigurationError: There is no raw table, or it has another format.
    """
    path = table.local
    if path is None:
        return
    if not path.is_dir():
        raise ConfigurationError(f"{table} is not a directory: name the raw table to read")
    for other, log in LOGS.items():
        if (path / log).is_dir() and table.format != other:
            raise ConfigurationError(
                f"{table} is a table of format {other}: say so with --from-format"
            )
    mark = LOGS.get(table.format, IDENTITY_NAME)
    if not (path / mark).exists():
        inner = sorted(entry.parent.name for entry in path.glob(f"*/{mark}"))
        hint = f"; it holds {', '.join(inner)}, which are: name one of them" if inner else ""
        raise ConfigurationError(
            f"{table} is not a raw table of format {table.format} (it has no {mark}){hint}"
        )


def _refuse_ambiguous(name: str, format: str) -> None:  # noqa: A002  # Spark's own word
    if Path(name, LOGS[format]).is_dir():
        raise ConfigurationError(
            f"{name} is a directory here that holds a table, and the name of a table of a catalog: "
            f"write ./{name} for the directory, or name the catalog as well"
        )


def check_format(name: str) -> None:
    """Make sure that the format exists.

    Raises:
        ConfigurationError: It does not, or not yet.
    """
    if name not in FORMATS:
        raise ConfigurationError(f"format {name!r} is not available; there is {', '.join(FORMATS)}")
