"""Format durations for display."""

from __future__ import annotations

from datetime import timedelta


def span(seconds: float) -> str:
    """Format a duration for display, such as "3.2 s", "0:05:10" or "2 days, 1:00:00"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))
