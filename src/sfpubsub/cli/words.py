"""Human-readable counts."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 batch``, ``2 batches`` or ``0 rows``.

    Args:
        number: The count.
        noun: A singular noun whose plural ends in -s, or in -es after -ch.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"
