"""Table formats: what a table of each contains, and how it is changed exactly once.

This module needs neither Spark nor a format's library, so that commands can name the formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from sfpubsub.errors import ConfigurationError


@dataclass(frozen=True)
class Format:
    """A format in which tables are stored."""

    name: str
    log: str | None = None
    """Name of the directory with the log of a local table; None if the format has no log."""
    every: str | None = None
    """Pattern of the names of files that are in the log of every table, and that Spark lists."""


# All formats. Each one with a log has a module with its name in this package. Its function
# `store_of` returns a `TableStore`, and `path_of` the name of a table in SQL. Only such a format
# can replace rows, as derived tables must.
FORMATS = {
    found.name: found
    for found in (
        Format("parquet"),
        Format("delta", "_delta_log", "*.json"),
        Format("iceberg", "metadata", "version-hint.text"),
    )
}

RAW_FORMATS = tuple(FORMATS)
"""Formats of raw tables."""

TARGET_FORMATS = tuple(name for name, found in FORMATS.items() if found.log)
"""Formats of derived tables: those whose rows can be replaced."""

LOGS = {name: found.log for name, found in FORMATS.items() if found.log is not None}
"""Name of the directory with a local table's log, by format."""


def check_raw_format(name: str) -> None:
    """Check that raw tables can have a format.

    Raises:
        ConfigurationError: The format is unknown.
    """
    if name not in RAW_FORMATS:
        raise ConfigurationError(
            f"format {name!r} is not supported; use one of {', '.join(RAW_FORMATS)}"
        )


def check_target_format(name: str) -> None:
    """Check that derived tables can have a format.

    Raises:
        ConfigurationError: They cannot, or the format is unknown.
    """
    if name not in TARGET_FORMATS:
        raise ConfigurationError(
            f"format {name!r} is not a format of derived tables, whose rows must be replaceable: "
            f"use one of {', '.join(TARGET_FORMATS)}"
        )


class Conflict(Exception):  # noqa: N818  # never leaves this package; not a user error
    """Raised if a transaction was not committed, usually because another one came first."""


class FormatError(Exception):
    """Raised if the library of a table format cannot read or write a table."""
