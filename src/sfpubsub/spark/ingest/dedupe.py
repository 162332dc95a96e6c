"""Which events are new, which came before, and which only have another one's id.

An event is known by its dedupe key. With each key the window keeps a mark, made of the payload and
of where it came from, so that two events of one id with different payloads are distinguished: they
are a conflict, or one event that was encoded anew. What a mark leaves open is asked of the table,
once for all events of a write. Knows keys, rows and times; not Spark, not files, and no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pyarrow as pa

from sfpubsub.spark.ingest.key_run import HOUR, HOUR_BITS
from sfpubsub.spark.ingest.key_window import Known, hour_of
from sfpubsub.spark.raw.layout import LONGEST_PARTITION
from sfpubsub.spark.raw.table import StoredRow

# Seconds that the service is taken to keep an event at most: 72 h (Salesforce documentation), and
# as much again, since it purges late. What says to be older does not say when it happened.
KEPT = 144 * 3600.0

# Seconds that an event may say to be younger than it was when it arrived: publishers set its time
# themselves, with their own clocks. A look-up in the table begins so much earlier.
_CLOCK_MARGIN = 24 * 3600.0

# Of a mark's 64 bits: the hour, then 12 of the schema and the topic, then 32 of the payload.
_CONTEXT_BITS = 12
_CONTEXT_MASK = (1 << _CONTEXT_BITS) - 1
_PAYLOAD_SHIFT = HOUR_BITS + _CONTEXT_BITS
_HOUR_MASK = (1 << HOUR_BITS) - 1

_PAYLOAD = hashlib.blake2b(digest_size=4, person=b"sfpubsub mark")

Span: TypeAlias = tuple[float, float]
LookUp: TypeAlias = Callable[[Sequence[bytes], Sequence[Span]], Mapping[bytes, StoredRow]]


class Window(Protocol):
    """What is asked of a `KeyWindow`."""

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, Known]:
        """Return what is known of those of *keys* that are in the window."""
        ...

    def oldest(self, now: float) -> float:
        """Return the time since which every key is in the window."""
        ...


class Marker:
    """Makes the marks of rows."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str], int] = {}

    def marks(self, rows: pa.Table, now: float) -> list[int]:
        """Return a mark for each row, to be written at *now*. None is that of an unknown row."""
        hour = hour_of(now)
        contexts = self._contexts
        marks = []
        columns = (rows[name].to_pylist() for name in ("payload", "schema_id", "topic"))
        for payload, *context in zip(*columns, strict=True):
            digest = _PAYLOAD.copy()
            digest.update(payload or b"")
            context_bits = contexts.get((context[0], context[1]))
            if context_bits is None:
                context_bits = contexts[context[0], context[1]] = _context_bits(*context)
            payload_bits = int.from_bytes(digest.digest(), "big") or 1
            marks.append(payload_bits << _PAYLOAD_SHIFT | context_bits | hour)
        return marks


@dataclass(frozen=True)
class Conflict:
    """An event with the id of another one, of the same schema and channel, and another payload."""

    index: int
    """Its place among the rows."""
    stored: StoredRow
    """The row that has the id."""


@dataclass(frozen=True)
class Verdict:
    """What the events of a write are."""

    new: list[int]
    """The places of those that are new."""
    reencoded: list[int] = field(default_factory=list)
    """Those that came before, encoded with another schema or enriched by another channel."""
    conflicts: list[Conflict] = field(default_factory=list)


def judge(
    rows: pa.Table,
    marks: Sequence[int],
    window: Window,
    look_up: LookUp,
    *,
    now: float,
    is_live: bool,
) -> Verdict:
    """Return which of *rows* are new, and what the others are.

    1. The window knows the keys of its time. Where its mark says what the event is, that is all.
    2. Asked of the table are: rows whose mark is another one's, or not known; keys of an earlier
       process, whose rows may be gone; and events that happened before the window's time, or do not
       say when, since those may have been received before it.
    3. Within the rows the first of a key is the one that counts.

    Args:
        rows: Rows of a raw table.
        marks: One for each.
        window: Knows the keys of its time.
        look_up: Returns the rows with keys that the table has in one of some spans of time.
        now: Seconds since 1970 UTC.
        is_live: Whether the rows were delivered lately, so that the service kept them till then.
            Any others may have been written at any time after they happened.
    """
    keys = rows["dedupe_key"].to_pylist()
    known = window.find(keys)
    asked = _to_ask(rows, keys, marks, known, window.oldest(now), now if is_live else None)
    if not known and not asked and len(set(keys)) == len(keys):
        return Verdict(list(range(len(keys))))  # the usual write
    stored = look_up(list(asked), merged(asked.values())) if asked else {}
    first: dict[bytes, int] = {}
    new, reencoded, conflicts = [], [], []
    for index, key in enumerate(keys):
        other = stored.get(key)
        if other is None and key in first:
            other = _row(rows, first[key])
        if other is not None:
            mine = _row(rows, index)
            if mine.payload == other.payload:
                continue
            if (mine.schema_id, mine.topic) == (other.schema_id, other.topic):
                conflicts.append(Conflict(index, other))
            else:
                reencoded.append(index)
        elif key in known and (key not in asked or known[key].sure):
            mark = known[key].mark
            if _is_settled(known[key], marks[index]) and not _same_payload(mark, marks[index]):
                reencoded.append(index)
        else:
            first[key] = index
            new.append(index)
    return Verdict(new, reencoded, conflicts)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in their order, as few as cover the same."""
    found: list[Span] = []
    for start, end in sorted(set(spans)):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _to_ask(
    rows: pa.Table,
    keys: Sequence[bytes],
    marks: Sequence[int],
    known: Mapping[bytes, Known],
    oldest: float,
    live_at: float | None,
) -> dict[bytes, Span]:
    """Return the keys that the table is to be asked for, and when their rows were written."""
    asked: dict[bytes, Span] = {}
    times = rows["event_time"].cast(pa.int64()).to_pylist()
    limit = oldest * 1_000_000
    for key, mark, time in zip(keys, marks, times, strict=True):
        found = known.get(key)
        if found is not None:
            if not found.sure or not _is_settled(found, mark):
                written = (found.mark & _HOUR_MASK) * HOUR
                # What was read from the table is known by the end of its partition.
                before = HOUR if _has_payload(found.mark) else LONGEST_PARTITION
                asked[key] = (written - before, written + HOUR)
        elif time is None or time < limit:
            start = 0.0 if time is None else max(0.0, time / 1_000_000 - _CLOCK_MARGIN)
            if live_at is not None:
                start = max(start, live_at - KEPT - _CLOCK_MARGIN)
            asked[key] = (min(start, oldest), oldest)
    return asked


def _is_settled(known: Known, mark: int) -> bool:
    """Whether the marks alone say what an event of a known key is."""
    if not _has_payload(known.mark):
        return False
    return _same_payload(known.mark, mark) or (known.mark ^ mark) >> HOUR_BITS & _CONTEXT_MASK != 0


def _has_payload(mark: int) -> bool:
    """Whether a mark says more than the hour."""
    return mark >> HOUR_BITS != 0


def _same_payload(one: int, other: int) -> bool:
    return one >> _PAYLOAD_SHIFT == other >> _PAYLOAD_SHIFT


def _context_bits(schema_id: str | None, topic: str | None) -> int:
    text = f"{schema_id}\0{topic}".encode()
    digest = hashlib.blake2b(text, digest_size=2, person=b"sfpubsub mark").digest()
    return (int.from_bytes(digest, "big") & _CONTEXT_MASK) << HOUR_BITS


def _row(rows: pa.Table, index: int) -> StoredRow:
    row = {name: rows[name][index].as_py() for name in StoredRow.COLUMNS}
    return StoredRow(**row | {"ingest_seq": None})  # it has no number yet
