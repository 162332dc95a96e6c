"""Lines of source text for generated decoders, and the functions that these lines call.

Each group of lines reads or skips one value. The lines use these variables: ``b`` is the payload,
``p`` the position in it, ``q`` the length of a string, and ``x`` a number or its first byte. If the
payload contains anything unexpected, the lines raise an exception, which may have any type (see
`sfpubsub.avro.decoder`).
"""

from __future__ import annotations

ODD = 0x81  # mask for a first byte: set if the number continues or is negative


class UnexpectedPayload(Exception):  # noqa: N818 - see above
    """Raised if the generated decoder cannot handle a payload.

    The payload is then checked by `sfpubsub.avro.guard` and decoded by fastavro.
    """


# By the first byte of a length: the size of the length and its data in bytes, or 0 if the length
# continues or is negative. A look-up is faster than the arithmetic.
SIZES = tuple(0 if x & ODD else (x >> 1) + 1 for x in range(256))
SIZES_AND_1 = tuple(size and size + 1 for size in SIZES)


# A current timestamp has six bytes. They are read inline, because a call would take a third longer.
# Each byte is read only if the previous one continues, so no byte after the number is read.
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


# JSON cannot express NaN and the infinities. They are never returned, so that encoding to JSON
# needs no check.
_FINITE = ("if x - x:", "    raise UnexpectedPayload", "= x")


def _scalars(at: int) -> dict[str, tuple[str, ...]]:
    # Lines that read one value *at* bytes after p; the text after "= " is the value itself.
    first = f"b[p + {at}]" if at else "b[p]"
    number = (f"x = {first}", f"p += {at + 1}", "if x > 127:")
    call = "    p, x = long(b, p)"
    zigzag = "= ~(x >> 1) if x & 1 else x >> 1"
    found: dict[str, tuple[str, ...]] = {
        "null": (f"p += {at}", "= None") if at else ("= None",),
        "boolean": (f"= booleans[{first}]", f"p += {at + 1}"),  # 2 or more raises IndexError
        "int": (*number, call, "    if x >> 32:", "        raise UnexpectedPayload", zigzag),
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
    # Lines that skip one value *at* bytes after p.
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
        "int": (*number, call, "    if x >> 32:", "        raise UnexpectedPayload"),
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
    "    raise UnexpectedPayload",
    "= <symbols>[x >> 1]",
)
# A slice past the end is short, without an error. But p is then past the end, so the next read or
# the final comparison with the length fails.
FIXED = ("= b[p : p + <size>]", "p += <size>")


def long(b: bytes, p: int) -> tuple[int, int]:
    """Return the position after the number that begins at p - 1, and the number, still in zigzag
    encoding.
    """
    # Unrolled up to the six bytes of current timestamps; each result subtracts the sum of the
    # continuation bits. Multiplies instead of shifting, because that is faster in CPython.
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
                raise UnexpectedPayload
            return p, x
        x |= (byte & 127) << shift
    raise UnexpectedPayload


def span(b: bytes, p: int) -> tuple[int, int]:
    """Return the start and end of the data whose length begins at p - 1."""
    x = b[p - 1]
    if x > 127:
        byte = b[p]
        if byte < 128:
            x += (byte << 7) - 128
            p += 1
        else:
            p, x = long(b, p)
    if x & 1:
        raise UnexpectedPayload
    return p, p + (x >> 1)


def block(b: bytes, p: int) -> tuple[int, int]:
    """Return the start of the items in a block of an array or map, and their count, which begins
    at p - 1.
    """
    x = b[p - 1]
    if x > 127:
        p, x = long(b, p)
    if x & 1:  # negative: the size of the block in bytes follows
        x = x + 1
        p, _ = long(b, p + 1) if b[p] > 127 else (p + 1, 0)
    if not 0 < x >> 1 <= len(b) - p:  # every item takes at least one byte
        raise UnexpectedPayload
    return p, x >> 1
