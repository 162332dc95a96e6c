"""Table formats: what a table of each contains, and how it is changed exactly once."""

from __future__ import annotations


class Conflict(Exception):  # noqa: N818  # never leaves this package; not a user error
    """Raised if a transaction was not committed, usually because another one came first."""


class FormatError(Exception):
    """Raised if the library of a table format cannot read or write a table."""
