"""Human-readable counts."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return ``1 batch``, ``2 batches``, ``0 rows``.

    Args:
        number: How many.
        noun: In the singular; one that is regular in the plural.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"
