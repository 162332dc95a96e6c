"""Human-readable counts."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 batch``, ``2 batches`` or ``0 rows``.

    Args:
        number: The count.
        noun: The noun in the singular. Its plural must end in -s, or in -es if it ends in -ch.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"
