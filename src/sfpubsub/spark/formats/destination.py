"""Destinations of tables: a local directory, a URL, or a name in a catalog.

Nothing here needs Spark, so an invalid destination is rejected immediately.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import check_raw_format, check_target_format
from sfpubsub.spark.runtime.paths import Location, is_object_store, local_path, locate


@dataclass(frozen=True, kw_only=True)
class Destination(Location):
    """The format and location of a raw table, or of a target with derived tables.

    Create it with `parse` or `of_tables`.
    """

    format: str
    """One of `sfpubsub.spark.formats.FORMATS`."""
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
            format: One of `RAW_FORMATS`.
            staging: With parquet: directory for staging and sidecars; next to the table by default.

        Raises:
            ConfigurationError: The destination is not valid for the format, or the format is
                unknown.
        """
        check_raw_format(format)
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

    @classmethod
    def of_tables(
        cls,
        target: str | os.PathLike[str],
        format: str,  # noqa: A002  # named as in Spark
    ) -> Destination:
        """Return the destination of derived tables.

        Args:
            target: A path, a URL or the name of a schema, such as ``catalog.schema``. The rule is
                that of `kind_of`.
            format: One of `TARGET_FORMATS`.

        Raises:
            ConfigurationError: *target* is not valid for the format, or the format is unknown.
        """
        check_target_format(format)
        found = locate(target, "schema")
        return cls(
            format=format, address=found.address, local=found.local, in_catalog=found.in_catalog
        )

    @property
    def name(self) -> str:
        """The last part of `address`, for messages."""
        return re.split(r"[/.]" if self.in_catalog else "/", self.address)[-1]

    def table(self, name: str) -> Destination:
        """Return the destination of a table in this directory, URL or schema."""
        if self.in_catalog:
            return replace(self, address=f"{self.address}.{name}")
        local = None if self.local is None else self.local / name
        return replace(self, address=f"{self.address}/{name}", local=local)


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
