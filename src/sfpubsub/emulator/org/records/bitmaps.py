"""The bitmaps in the header of a change event, which list fields.

A list of fields is a list of strings. `0x…` has one bit for each field of the schema, the lowest
for the first field; `N-0x…` has one bit for each component of the compound field at position N. The
hexadecimal digits are upper-case, and their number is even. The string for the schema's own fields
is first, and is omitted if no bit is set. If only components of a compound field changed, the bit
of the compound field itself is not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def bitmaps(places: Iterable[int], parts: Mapping[int, Iterable[int]]) -> list[str]:
    """Return the bitmap strings for a list of fields.

    Args:
        places: Positions of the listed fields in the schema.
        parts: Maps the position of a compound field in the schema to the positions of its listed
            components within the compound field.
    """
    top = _bits(places)
    texts = [_hex(top)] if top else []
    nested = ((place, _bits(inner)) for place, inner in sorted(parts.items()))
    return texts + [f"{place}-{_hex(bits)}" for place, bits in nested if bits]


def _bits(places: Iterable[int]) -> int:
    return sum(1 << place for place in set(places))


def _hex(bits: int) -> str:
    digits = f"{bits:X}"
    return f"0x{'0' * (len(digits) % 2)}{digits}"
