"""The lines of a generated decoder that read one value or step over it, and what they call.

In them: ``b`` payload, ``p`` position, ``q`` length of a text, ``x`` a first byte. What they do not
expect they raise an exception for, of any type (see `sfpubsub.avro.decoder`).
"""

from __future__ import annotations

ODD = 0x81  # of a first byte: the number continues, or is negative


class Odd(Exception):  # noqa: N818 - see above
    """The payload has something that the generated decoder leaves to the careful reading."""


# By the byte that a length begins with: the bytes of it and of what follows, 0 where it continues
# or is negative. A look-up is faster than the arithmetic.
SIZES = tuple(0 if x & ODD else (x >> 1) + 1 for x in range(256))
SIZES_AND_1 = tuple(size and size + 1 for size in SIZES)


# A time of today has six bytes. They are read without a call, which would take a third more.
# Each is looked at only after one that continues, so that none behind the number is.
_IS_SIX = (
    "    if (",
    "        (x1 := b[p]) > 127",
    "        and (x2 := b[p + 1]) > 127",
    "        and (x3 := b[p + 2]) > 127",
    "        and (x4 := b[p + 3]) > 127",
    "        and (x5 := b[p + 4]) < 128",
    "    ):",
)
_SIX = (
    *_IS_SIX,
    "        x += x1 * 0x80 + x2 * 0x4000 - 0x810204080",
    "        x += (x3 + x4 * 0x80 + x5 * 0x4000) * 0x200000",
    "        p += 5",
)


# JSON cannot express NaN and the infinities. What is returned has none of them, so that whoever
# makes JSON of it need not look.
_FINITE = ("if x - x:", "    raise Odd", "= x")


def _scalars(at: int) -> dict[str, tuple[str, ...]]:
    # Lines that read one value *at* bytes behind p; the one after "= " is the value itself.
    first = f"b[p + {at}]" if at else "b[p]"
    number = (f"x = {first}", f"p += {at + 1}", "if x > 127:")
    call = "    p, x = long(b, p)"
    zigzag = "= ~(x >> 1) if x & 1 else x >> 1"
    found: dict[str, tuple[str, ...]] = {
        "null": (f"p += {at}", "= None") if at else ("= None",),
        "boolean": (f"= booleans[{first}]", f"p += {at + 1}"),  # 2 and more: IndexError
        "int": (*number, call, "    if x >> 32:", "        raise Odd", zigzag),
        "long": (*number, *_SIX, "    else:", f"    {call}", zigzag),
        "float": (f"x = float_at(b, p + {at})[0]", *_FINITE, f"p += {at + 4}"),
        "double": (f"x = double_at(b, p + {at})[0]", *_FINITE, f"p += {at + 8}"),
    }
    for kind, decode in (("bytes", ""), ("string", ".decode()")):
        found[kind] = (
            f"q = {'sizes_and_1' if at else 'sizes'}[{first}]",
            "if q:",
            f"    = b[p + {at + 1} : (p := p + q)]{decode}",
            "else:",
            f"    x, p = span(b, p + {at + 1})",
            f"    = b[x:p]{decode}",
        )
    return found


def _skipped(at: int) -> dict[str, tuple[str, ...]]:
    # Lines that step over one value *at* bytes behind p.
    first = f"b[p + {at}]" if at else "b[p]"
    number = (f"x = {first}", f"p += {at + 1}", "if x > 127:")
    call = "    p, x = long(b, p)"
    text = (
        f"q = {'sizes_and_1' if at else 'sizes'}[{first}]",
        "if q:",
        "    p += q",
        "else:",
        f"    x, p = span(b, p + {at + 1})",
    )
    return {
        "null": (f"p += {at}",) if at else (),
        "boolean": (f"booleans[{first}]", f"p += {at + 1}"),
        "int": (*number, call, "    if x >> 32:", "        raise Odd"),
        "long": (*number, *_IS_SIX, "        p += 5", "    else:", f"    {call}"),
        "float": (f"p += {at + 4}",),
        "double": (f"p += {at + 8}",),
        "bytes": text,
        "string": text,
    }


SCALARS = (_scalars(0), _scalars(1))
SKIPPED = (_skipped(0), _skipped(1))
ENUM = (
    "x = b[p]",
    "p += 1",
    "if x > 127:",
    "    p, x = long(b, p)",
    "if x & 1:",
    "    raise Odd",
    "= <symbols>[x >> 1]",
)
# A slice past the end is short and no error. Then p is past the end, so that the next read, or the
# comparison with the length at the very end, fails.
FIXED = ("= b[p : p + <size>]", "p += <size>")


def long(b: bytes, p: int) -> tuple[int, int]:
    # The number whose first byte is before p, and where it ends; still zigzag. Unrolled as far as
    # times of today reach (six bytes); each result takes off the continuation bits added up.
    # Multiplied and not shifted, because CPython does that faster.
    x0 = b[p - 1]
    x1 = b[p]
    if x1 < 128:
        return p + 1, x0 + x1 * 0x80 - 0x80
    x2 = b[p + 1]
    if x2 < 128:
        return p + 2, x0 + x1 * 0x80 + x2 * 0x4000 - 0x4080
    x3 = b[p + 2]
    low = x0 + x1 * 0x80 + x2 * 0x4000
    if x3 < 128:
        return p + 3, low + x3 * 0x200000 - 0x204080
    x4 = b[p + 3]
    if x4 < 128:
        return p + 4, low + (x3 + x4 * 0x80) * 0x200000 - 0x10204080
    x5 = b[p + 4]
    if x5 < 128:
        return p + 5, low + (x3 + x4 * 0x80 + x5 * 0x4000) * 0x200000 - 0x810204080
    x = low + (x3 + x4 * 0x80 + x5 * 0x4000) * 0x200000 - 0x40810204080
    p += 5
    for shift in (42, 49, 56, 63):
        byte = b[p]
        p += 1
        if byte < 128:
            x |= byte << shift
            if x >> 64:
                raise Odd
            return p, x
        x |= (byte & 127) << shift
    raise Odd


def span(b: bytes, p: int) -> tuple[int, int]:
    # Begin and end of what follows the length whose first byte is before p.
    x = b[p - 1]
    if x > 127:
        byte = b[p]
        if byte < 128:
            x += (byte << 7) - 128
            p += 1
        else:
            p, x = long(b, p)
    if x & 1:
        raise Odd
    return p, p + (x >> 1)


def block(b: bytes, p: int) -> tuple[int, int]:
    # Where a block of an array or map begins, and its count, whose first byte is before p.
    x = b[p - 1]
    if x > 127:
        p, x = long(b, p)
    if x & 1:  # negative: the size of the block in bytes follows
        x = x + 1
        p, _ = long(b, p + 1) if b[p] > 127 else (p + 1, 0)
    if not 0 < x >> 1 <= len(b) - p:  # every item has a byte at least
        raise Odd
    return p, x >> 1
