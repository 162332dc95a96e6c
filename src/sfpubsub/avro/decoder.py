"""Generate, for one schema, the Python function that decodes its payloads.

A function that knows the schema needs no look-up per field and no call per byte; that makes it
faster than fastavro's C code, which reads every byte through a file object.

The source text depends on the shape of the schema only. Names, symbols and sizes come from the
network, so they never enter it: they are handed in as values of globals. The function decides
nothing that is rare: for whatever it does not expect it raises, and the caller reads the payload
again with the guard and fastavro (`sfpubsub.avro.codec`). So what it returns is right, or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

# Values in the flattened schema. An object of Salesforce has at most some 900 fields; compiling
# takes about 0.1 ms for each. Named types are flattened too, so a small hostile schema could
# otherwise grow without end.
MAX_NODES = 4000

# Types inside one another; a recursive type goes beyond. CPython takes 20 nested loops and 100
# levels of indentation.
MAX_DEPTH = 9

# Fields in a run of nulls that are stepped over at once, and how many fields a record has where
# that pays: large objects, of which an UPDATE carries a few fields.
RUN = 8
RUN_FROM = 24

_ODD = 0x81  # of a first byte: the number goes on, or is negative


class Unsupported(Exception):  # noqa: N818 - an answer, not an error: fastavro takes it then
    """This schema is not for the generated decoder."""


class Odd(Exception):  # noqa: N818 - see above
    """The payload has something that the generated decoder leaves to the careful reading."""


def generate(schema: Any, named: Mapping[str, Any]) -> Callable[[bytes], Any]:
    """Return a function that decodes a payload of *schema*.

    The function raises an exception of any type for a payload that it cannot take. Its time and
    memory are bounded by the payload's size. Every number that it returns is finite.

    Args:
        schema: A record, as `fastavro.parse_schema` returns it.
        named: The named types by full name.

    Raises:
        Unsupported: The schema is recursive, too large, or uses a type that has to be converted.
    """
    source = _Source(named)
    source.value(schema, "result = {}", "    ", 0)
    text = "\n".join(
        [
            "def decode(b):",
            "    p = 0",
            *source.lines,
            "    if p != len(b):",
            "        raise Odd",
            "    return result",
        ]
    )
    exec(compile(text, "<decoder>", "exec"), source.globals)  # noqa: S102 - see the module's text
    decode: Callable[[bytes], Any] = source.globals["decode"]
    return decode


class _Source:
    """The source text of one decoder, and the values of its globals.

    In the text: ``b`` payload, ``p`` position, ``q`` end of a text, ``x`` a first byte.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.named = named
        self.lines: list[str] = []
        self.nodes = 0
        self.empty: dict[str, bool] = {}
        self.constants: dict[str, str] = {}
        self.globals: dict[str, Any] = {
            "__builtins__": {"len": len, "range": range},
            "Odd": Odd,
            "span": _span,
            "long": _long,
            "block": _block,
            "sizes": _SIZES,
            "sizes_and_1": _SIZES_AND_1,
            "booleans": (False, True),
            "float_at": struct.Struct("<f").unpack_from,
            "double_at": struct.Struct("<d").unpack_from,
            "nulls": bytes(RUN),
        }

    def value(self, schema: Any, store: str, pad: str, depth: int, *, at: int = 0) -> None:
        """Write the lines that read one value and *store* it.

        Args:
            schema: Of the value.
            store: A statement with ``{}`` for the value.
            pad: Indentation.
            depth: Of types inside one another.
            at: The value begins this many bytes behind ``p``: 1 behind a union's branch, so that
                ``p`` moves once for both.
        """
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise Unsupported
        if isinstance(schema, dict) and "logicalType" in schema:
            raise Unsupported  # fastavro makes decimals, dates and more of these
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, str) and kind in _SCALARS[at]:
            self.add(pad, *_SCALARS[at][kind], end=store)
            return
        if at:
            self.add(pad, f"p += {at}")
        if isinstance(schema, list):
            self.union(schema, store, pad, depth)
        elif kind == "record":
            self.record(schema, store, pad, depth)
        elif kind in ("array", "map"):
            self.items(schema, store, pad, depth)
        elif kind == "enum":
            self.add(pad, *_ENUM, end=store, symbols=self.constant(tuple(schema["symbols"])))
        elif kind == "fixed":
            self.add(pad, *_FIXED, end=store, size=self.constant(schema["size"]))
        elif kind in self.named:  # last, because a type may have been given the name of a builtin
            self.value(self.named[kind], store, pad, depth)
        else:
            raise Unsupported

    def record(self, schema: Mapping[str, Any], store: str, pad: str, depth: int) -> None:
        fields = schema["fields"]
        record = f"d{depth}"
        # Starting from a copy with all keys makes a null free to store, and keeps the order.
        template = dict.fromkeys(field["name"] for field in fields)
        if len(template) != len(fields):
            raise Unsupported  # the last of two fields of one name has to win
        self.add(pad, f"{record} = {self.constant(template.copy)}()")
        index = 0
        while index < len(fields):
            run = fields[index : index + RUN]
            deeper = pad
            if len(fields) < RUN_FROM or len(run) < RUN or not all(map(_null_first, run)):
                run = run[:1]
            else:
                self.add(pad, f"if b[p : p + {RUN}] == nulls:", f"    p += {RUN}", "else:")
                deeper += "    "
            for field in run:
                key = f"{record}[{self.constant(field['name'])}]"
                self.value(field["type"], f"{key} = {{}}", deeper, depth + 1)
            index += len(run)
        self.add(pad, store.format(record))

    def union(self, branches: list[Any], store: str, pad: str, depth: int) -> None:
        if not branches or len(branches) > 60:  # so that the branch is one byte
            raise Unsupported
        templated = store.startswith("d") and not store.endswith(")")  # null is there already
        self.add(pad, "x = b[p]")
        if branches[0] == "null" and len(branches) == 2 and templated:
            self.add(pad, "if x == 2:")
            self.value(branches[1], store, pad + "    ", depth + 1, at=1)
            self.add(pad, "elif x:", "    raise Odd", "else:", "    p += 1")
            return
        self.add(pad, "p += 1")
        for index, branch in enumerate(branches):
            self.add(pad, f"{'elif' if index else 'if'} x == {index * 2}:")
            if branch == "null" and templated:
                self.add(pad, "    pass")
            else:
                self.value(branch, store, pad + "    ", depth + 1)
        self.add(pad, "else:", "    raise Odd")

    def items(self, schema: Mapping[str, Any], store: str, pad: str, depth: int) -> None:
        is_map = schema["type"] == "map"
        item = schema["values" if is_map else "items"]
        if not is_map and self.may_be_empty(item):
            raise Unsupported  # a count says nothing about bytes then; the guard has an allowance
        found, left = f"a{depth}", f"c{depth}"
        self.add(
            pad,
            f"{found} = {'{}' if is_map else '[]'}",
            f"{left} = b[p]",
            "p += 1",
            f"while {left}:",
            f"    if {left} & {_ODD}:",
            f"        p, {left} = block(b, p)",
            "    else:",
            f"        {left} >>= 1",
            f"    for _ in range({left}):",
        )
        inside = pad + "        "
        if is_map:
            self.add(inside, *_SCALARS[0]["string"], end=f"k{depth} = {{}}")
            self.value(item, f"{found}[k{depth}] = {{}}", inside, depth + 1)
        else:
            self.value(item, f"{found}.append({{}})", inside, depth + 1)
        self.add(pad + "    ", f"{left} = b[p]", "p += 1")
        self.add(pad, store.format(found))

    def may_be_empty(self, schema: Any) -> bool:
        """Whether a value of *schema* may take no byte."""
        if isinstance(schema, list):
            return False
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            name = schema["name"]
            if name not in self.empty:
                self.empty[name] = True  # while it is looked at: a record of itself has no byte
                self.empty[name] = all(self.may_be_empty(f["type"]) for f in schema["fields"])
            return self.empty[name]
        if kind == "fixed":
            return not schema["size"]
        if kind in _SCALARS[0] or kind in ("array", "map", "enum"):
            return bool(kind == "null")
        return kind not in self.named or self.may_be_empty(self.named[kind])

    def constant(self, value: Any) -> str:
        name = f"g{len(self.globals)}"
        if isinstance(value, str):  # field names repeat: State of every address
            name = self.constants.setdefault(value, name)
        self.globals[name] = value
        return name

    def add(self, pad: str, *lines: str, end: str = "", **names: str) -> None:
        """Add lines; in the last one, ``{}`` takes the value that the lines have read."""
        for line in lines:
            for name, text in names.items():
                line = line.replace(f"<{name}>", text)
            code = line.lstrip()
            if code.startswith("= "):
                line = line[: -len(code)] + end.format(code[2:])
            self.lines.append(pad + line)


def _null_first(field: Mapping[str, Any]) -> bool:
    return isinstance(field["type"], list) and field["type"][:1] == ["null"]


# By the byte that a length begins with: the bytes of it and of what follows, 0 where it goes on or
# is negative. A look-up is faster than the arithmetic.
_SIZES = tuple(0 if x & _ODD else (x >> 1) + 1 for x in range(256))
_SIZES_AND_1 = tuple(size and size + 1 for size in _SIZES)


# A time of today has six bytes. They are read without a call, which would take a third more.
# Each is looked at only after one that goes on, so that none behind the number is.
_SIX = (
    "    if (",
    "        (x1 := b[p]) > 127",
    "        and (x2 := b[p + 1]) > 127",
    "        and (x3 := b[p + 2]) > 127",
    "        and (x4 := b[p + 3]) > 127",
    "        and (x5 := b[p + 4]) < 128",
    "    ):",
    "        x += x1 * 0x80 + x2 * 0x4000 - 0x810204080",
    "        x += (x3 + x4 * 0x80 + x5 * 0x4000) * 0x200000",
    "        p += 5",
)


# NaN and the infinities have no word in JSON. What is returned has none of them, so that whoever
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
            "    q += p",
            f"    = b[p + {at + 1} : q]{decode}",
            "else:",
            f"    p, q = span(b, p + {at + 1})",
            f"    = b[p:q]{decode}",
            "p = q",
        )
    return found


_SCALARS = (_scalars(0), _scalars(1))
_ENUM = (
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
_FIXED = ("= b[p : p + <size>]", "p += <size>")


def _long(b: bytes, p: int) -> tuple[int, int]:
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


def _span(b: bytes, p: int) -> tuple[int, int]:
    # Begin and end of what follows the length whose first byte is before p.
    x = b[p - 1]
    if x > 127:
        byte = b[p]
        if byte < 128:
            x += (byte << 7) - 128
            p += 1
        else:
            p, x = _long(b, p)
    if x & 1:
        raise Odd
    return p, p + (x >> 1)


def _block(b: bytes, p: int) -> tuple[int, int]:
    # Where a block of an array or map begins, and its count, whose first byte is before p.
    x = b[p - 1]
    if x > 127:
        p, x = _long(b, p)
    if x & 1:  # negative: the size of the block in bytes follows
        x = x + 1
        p, _ = _long(b, p + 1) if b[p] > 127 else (p + 1, 0)
    if not 0 < x >> 1 <= len(b) - p:  # every item has a byte at least
        raise Odd
    return p, x >> 1
