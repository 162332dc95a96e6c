"""Generate a Python function that decodes the payloads of one schema.

A function generated for one schema needs no look-up per field and no call per byte. This makes it
faster than fastavro's C code, which reads every byte through a file object.

The source text depends only on the structure of the schema. Names, symbols and sizes come from the
network, so they never become part of the text: they are passed in as values of globals. The
function does not handle rare cases: it raises an exception for anything unexpected, and the caller
(`sfpubsub.avro.codec`) then checks the payload with `sfpubsub.avro.guard` and decodes it with
fastavro. So any result that the function returns is correct.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sfpubsub.avro.decoder_lines import (
    ENUM,
    FIXED,
    ODD,
    SCALARS,
    SIZES,
    SIZES_AND_1,
    SKIPPED,
    UnexpectedPayload,
    block,
    long,
    span,
)

# Maximum number of values in the flattened schema. A Salesforce object has about 900 fields at
# most; compiling takes about 0.1 ms for each. Named types are flattened too, so without a limit a
# small hostile schema could become huge.
MAX_NODES = 4000

# Maximum nesting of types; a recursive type exceeds it. CPython allows 20 nested loops and 100
# levels of indentation.
MAX_DEPTH = 9

# Number of consecutive null fields that are skipped together, and the number of fields from which a
# record benefits from this: an UPDATE of a large object contains only a few fields.
RUN = 8
RUN_FROM = 24


class Unsupported(Exception):  # noqa: N818 - not an error: fastavro is used instead
    """The generated decoder does not support this schema."""


def generate(
    schema: Any, named: Mapping[str, Any], wanted: Collection[str] | None = None
) -> Callable[[bytes], Any]:
    """Return a function that decodes a payload of *schema*.

    The function may raise any exception for a payload that it does not support, so callers must
    catch `Exception`. Its time and memory are bounded by the payload's size. Every number that it
    returns is finite.

    Args:
        schema: A record, as `fastavro.parse_schema` returns it.
        named: The named types by full name.
        wanted: Names of the fields to return; None for all. The others are skipped: the payload
            must still match the schema, but skipped strings are not checked for valid UTF-8.

    Raises:
        Unsupported: The schema is recursive, too large, or uses a type that needs conversion.
    """
    source = _Source(named)
    source.value(schema, "result = {}", "    ", 0, wanted=wanted)
    text = "\n".join(
        [
            "def decode(b):",
            "    p = 0",
            *source.lines,
            "    if p != len(b):",
            "        raise UnexpectedPayload",
            "    return result",
        ]
    )
    exec(compile(text, "<decoder>", "exec"), source.globals)  # noqa: S102 - see module docstring
    decode: Callable[[bytes], Any] = source.globals["decode"]
    return decode


class _Source:
    """The source text of one decoder, and the values of its globals.

    The text uses these variables: ``b`` is the payload, ``p`` the position in it, ``q`` the length
    of a string, and ``x`` a number or its first byte.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.named = named
        self.lines: list[str] = []
        self.nodes = 0
        self.empty: dict[str, bool] = {}
        self.constants: dict[str, str] = {}
        self.globals: dict[str, Any] = {
            "__builtins__": {"len": len, "range": range},
            "UnexpectedPayload": UnexpectedPayload,
            "span": span,
            "long": long,
            "block": block,
            "sizes": SIZES,
            "sizes_and_1": SIZES_AND_1,
            "booleans": (False, True),
            "float_at": struct.Struct("<f").unpack_from,
            "double_at": struct.Struct("<d").unpack_from,
            "nulls": bytes(RUN),
        }

    def value(
        self,
        schema: Any,
        store: str | None,
        pad: str,
        depth: int,
        *,
        at: int = 0,
        wanted: Collection[str] | None = None,
    ) -> None:
        """Add the lines that read one value and *store* it.

        Args:
            schema: The value's schema.
            store: A statement with ``{}`` for the value; None to skip the value.
            pad: The indentation.
            depth: The nesting depth of types.
            at: The value starts this many bytes after ``p``. It is 1 after the branch index of a
                union, so that ``p`` is advanced only once for index and value.
            wanted: For a record: the fields to read; None for all.
        """
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise Unsupported
        if isinstance(schema, dict) and "logicalType" in schema:
            raise Unsupported  # fastavro converts these to decimals, dates and other types
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, str) and kind in SCALARS[at]:
            if store is None:
                self.add(pad, *SKIPPED[at][kind])
            else:
                self.add(pad, *SCALARS[at][kind], end=store)
            return
        if at:
            self.add(pad, f"p += {at}")
        if isinstance(schema, list):
            self.union(schema, store, pad, depth)
        elif kind == "record":
            self.record(schema, store, pad, depth, wanted)
        elif kind in ("array", "map"):
            self.items(schema, store, pad, depth)
        elif kind == "enum":
            symbols = self.constant(tuple(schema["symbols"]))
            self.add(pad, *ENUM, end="{}" if store is None else store, symbols=symbols)
        elif kind == "fixed":
            lines = FIXED[1:] if store is None else FIXED
            self.add(pad, *lines, end=store or "", size=self.constant(schema["size"]))
        elif kind in self.named:  # last, because a named type may have the name of a builtin type
            self.value(self.named[kind], store, pad, depth)
        else:
            raise Unsupported

    def record(
        self,
        schema: Mapping[str, Any],
        store: str | None,
        pad: str,
        depth: int,
        wanted: Collection[str] | None,
    ) -> None:
        fields = schema["fields"]
        record = f"d{depth}"
        names = dict.fromkeys(field["name"] for field in fields)
        if len(names) != len(fields):
            raise Unsupported  # with two fields of the same name, the last one must win
        if wanted is not None:
            names = {name: None for name in names if name in wanted}
        if store is not None:
            # Starting from a copy with all keys set to None makes nulls free, and keeps the order.
            self.add(pad, f"{record} = {self.constant(names.copy)}()")
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
                keep = None
                if store is not None and field["name"] in names:
                    keep = f"{record}[{self.constant(field['name'])}] = {{}}"
                self.value(field["type"], keep, deeper, depth + 1)
            index += len(run)
        if store is not None:
            self.add(pad, store.format(record))

    def union(self, branches: list[Any], store: str | None, pad: str, depth: int) -> None:
        if not branches or len(branches) > 60:  # so that the branch index is one byte
            raise Unsupported
        # Whether a null needs no code: it is already stored, or not wanted.
        templated = store is None or (store.startswith("d") and not store.endswith(")"))
        self.add(pad, "x = b[p]")
        if branches[0] == "null" and len(branches) == 2 and templated:
            self.add(pad, "if x == 2:")
            self.value(branches[1], store, pad + "    ", depth + 1, at=1)
            self.add(pad, "elif x:", "    raise UnexpectedPayload", "else:", "    p += 1")
            return
        self.add(pad, "p += 1")
        for index, branch in enumerate(branches):
            self.add(pad, f"{'elif' if index else 'if'} x == {index * 2}:")
            before = len(self.lines)
            if branch != "null" or not templated:
                self.value(branch, store, pad + "    ", depth + 1)
            if len(self.lines) == before:
                self.add(pad, "    pass")
        self.add(pad, "else:", "    raise UnexpectedPayload")

    def items(self, schema: Mapping[str, Any], store: str | None, pad: str, depth: int) -> None:
        is_map = schema["type"] == "map"
        item = schema["values" if is_map else "items"]
        if not is_map and self.may_be_empty(item):
            # Items may take no bytes, so only the guard limits their number.
            raise Unsupported
        found, left = f"a{depth}", f"c{depth}"
        if store is not None:
            self.add(pad, f"{found} = {'{}' if is_map else '[]'}")
        self.add(
            pad,
            f"{left} = b[p]",
            "p += 1",
            f"while {left}:",
            f"    if {left} & {ODD}:",
            f"        p, {left} = block(b, p)",
            "    else:",
            f"        {left} >>= 1",
            f"    for _ in range({left}):",
        )
        inside = pad + "        "
        if is_map:
            self.value("string", None if store is None else f"k{depth} = {{}}", inside, depth)
        keep = f"{found}[k{depth}] = {{}}" if is_map else f"{found}.append({{}})"
        self.value(item, None if store is None else keep, inside, depth + 1)
        self.add(pad + "    ", f"{left} = b[p]", "p += 1")
        if store is not None:
            self.add(pad, store.format(found))

    def may_be_empty(self, schema: Any) -> bool:
        """Return whether a value of *schema* can be encoded in zero bytes."""
        if isinstance(schema, list):
            return False
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            name = schema["name"]
            if name not in self.empty:
                # Assumed while the record is being checked, in case the record contains itself.
                self.empty[name] = True
                self.empty[name] = all(self.may_be_empty(f["type"]) for f in schema["fields"])
            return self.empty[name]
        if kind == "fixed":
            return not schema["size"]
        if kind in SCALARS[0] or kind in ("array", "map", "enum"):
            return bool(kind == "null")
        return kind not in self.named or self.may_be_empty(self.named[kind])

    def constant(self, value: Any) -> str:
        name = f"g{len(self.globals)}"
        if isinstance(value, str):  # field names repeat, such as State in every address
            name = self.constants.setdefault(value, name)
        self.globals[name] = value
        return name

    def add(self, pad: str, *lines: str, end: str = "", **names: str) -> None:
        """Append *lines*, indented by *pad*.

        A line ``= VALUE`` becomes the statement *end*, with VALUE in place of its ``{}``. In all
        lines, ``<NAME>`` is replaced by the keyword argument NAME.
        """
        for line in lines:
            for name, text in names.items():
                line = line.replace(f"<{name}>", text)
            code = line.lstrip()
            if code.startswith("= "):
                line = line[: -len(code)] + end.format(code[2:])
            self.lines.append(pad + line)


def _null_first(field: Mapping[str, Any]) -> bool:
    return isinstance(field["type"], list) and field["type"][:1] == ["null"]
