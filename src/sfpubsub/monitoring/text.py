"""Format durations and counts for display."""

from __future__ import annotations

from datetime import timedelta


def span(seconds: float) -> str:
    """Format a duration for display, such as "3.2 s", "0:05:10" or "2 days, 1:00:00"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 batch``, ``2 batches`` or ``0 rows``.

    Args:
        number: The count.
        noun: The noun in the singular. Its plural must end in -s, or in -es if it ends in -ch.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"
