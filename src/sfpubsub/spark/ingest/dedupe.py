"""Decide which events are new, which are duplicates, and which only share another event's id.

An event is identified by its dedupe key. The window (key_window.py) contains the keys of recent
events, each with a *mark*: hashes of the event's payload, schema and topic. If a second event with
the same key has a different payload, the marks show whether its schema or topic differs too. If so,
the event is a duplicate that was re-encoded. If not, it may be a *conflict*: another event with the
same id. Events that the marks cannot classify are looked up in the table, all of them in one
lookup. This module uses only keys, rows and times: no Spark, no files, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pyarrow as pa

from sfpubsub.spark.ingest.key_window import HOUR, HOUR_BITS, hour_of
from sfpubsub.spark.raw.layout import LONGEST_PARTITION
from sfpubsub.spark.raw.table import StoredRow

# Longest time for which the service is assumed to retain an event, in seconds: 72 h (Salesforce
# documentation), doubled because the service purges late. An older event time cannot be right.
KEPT = 144 * 3600.0

# Seconds by which an event's time may be after the recorded time of its row's write: publishers set
# it with their own clocks, and the writer's clock may have been behind. An event that may have been
# written before the window, by its time less this margin, is looked up in the table.
_CLOCK_MARGIN = 24 * 3600.0

# Layout of a mark, from the lowest of its 64 bits: 20 bits for the hour, 12 for schema and topic,
# and 32 for the payload.
_CONTEXT_BITS = 12
_CONTEXT_MASK = (1 << _CONTEXT_BITS) - 1
_PAYLOAD_SHIFT = HOUR_BITS + _CONTEXT_BITS
_HOUR_MASK = (1 << HOUR_BITS) - 1

_PAYLOAD = hashlib.blake2b(digest_size=4, person=b"sfpubsub mark")

Span: TypeAlias = tuple[float, float]
LookUp: TypeAlias = Callable[[Sequence[bytes], Sequence[Span]], Mapping[bytes, StoredRow]]


class Window(Protocol):
    """The part of a `KeyWindow` that `judge` needs."""

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, int]:
        """Return a mapping from those *keys* that are in the window to their marks."""
        ...

    def oldest(self, now: float) -> float:
        """Return the start of the window's time span, in seconds since the epoch.

        The window contains the key of every row that was written after that time.
        """
        ...


class Marker:
    """Computes marks: 64-bit fingerprints of rows.

    The bits of a mark hold the hour of the write, and hashes of schema, topic and payload.
    """

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str], int] = {}

    def marks(self, rows: pa.Table, now: float) -> list[int]:
        """Return the mark of each row.

        The payload's part of a mark is never 0, because 0 is used for a key that was loaded from
        the table without its payload.

        Args:
            rows: Rows of a raw table.
            now: Time of the write, in seconds since the epoch.
        """
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
    """An event that has the id, schema and topic of another event, but a different payload."""

    index: int
    """Index of the event's row in the write."""
    stored: StoredRow
    """The earlier row with the same id, in the table or in the same write."""


@dataclass(frozen=True)
class Verdict:
    """Classification of the events of a write. Events in none of the lists are plain duplicates."""

    new: list[int]
    """Indexes of the events to write."""
    reencoded: list[int] = field(default_factory=list)
    """Indexes of duplicates whose payload differs, because they were encoded with another schema or
    enriched by another channel.
    """
    conflicts: list[Conflict] = field(default_factory=list)
    """Events with the id, schema and topic of an earlier event, but a different payload."""


def judge(
    rows: pa.Table,
    marks: Sequence[int],
    window: Window,
    look_up: LookUp,
    *,
    now: float,
    is_live: bool,
) -> Verdict:
    """Classify *rows* as new, duplicates or conflicts.

    1. An event whose key is in the window is a duplicate or a conflict, whatever its own time. It
       is looked up in the table only if the marks do not suffice to say which.
    2. An event whose key is not in the window is looked up only if its row may have been written
       before the window's time span. Its own time only limits how far back its row can be: to a day
       before that time, if it has one, and to the service's retention (`KEPT`), if *is_live*. An
       event without a row is new.
    3. Of several rows with the same new key, the first one is new, and the others are compared with
       it.

    Args:
        rows: Rows of a raw table.
        marks: One mark per row.
        window: The keys of recent rows.
        look_up: Returns the table's rows with the given keys in the given time spans.
        now: Time of the write, in seconds since the epoch.
        is_live: Whether the service has just delivered the rows. If so, no event is older than the
            service's retention (`KEPT`). Other rows may be of any age.
    """
    keys = rows["dedupe_key"].to_pylist()
    known = window.find(keys)
    asked = _to_ask(rows, keys, marks, known, window.oldest(now), now if is_live else None)
    if not known and not asked and len(set(keys)) == len(keys):
        return Verdict(list(range(len(keys))))  # the usual case: all events are new
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
        elif key in known:
            mark = known[key]
            if _is_settled(mark, marks[index]) and not _same_payload(mark, marks[index]):
                reencoded.append(index)
        else:
            first[key] = index
            new.append(index)
    return Verdict(new, reencoded, conflicts)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Sort time spans, and merge those that overlap or are adjacent."""
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
    known: Mapping[bytes, int],
    oldest: float,
    live_at: float | None,
) -> dict[bytes, Span]:
    """Return the keys to look up in the table, each with the time span in which to search."""
    asked: dict[bytes, Span] = {}
    times = rows["event_time"].cast(pa.int64()).to_pylist()
    for key, mark, time in zip(keys, marks, times, strict=True):
        found = known.get(key)
        if found is not None:
            if not _is_settled(found, mark):
                written = (found & _HOUR_MASK) * HOUR
                # For keys read from the table, only the end of their partition is known.
                before = HOUR if _has_payload(found) else LONGEST_PARTITION
                asked[key] = (written - before, written + HOUR)
            continue
        start = 0.0 if time is None else max(0.0, time / 1_000_000 - _CLOCK_MARGIN)
        if live_at is not None:
            start = max(start, live_at - KEPT - _CLOCK_MARGIN)
        if start <= oldest:
            asked[key] = (start, oldest)
    return asked


def _is_settled(known: int, mark: int) -> bool:
    """Return whether an event's *mark* and the known mark of its key suffice to classify it."""
    if not _has_payload(known):
        return False
    return _same_payload(known, mark) or (known ^ mark) >> HOUR_BITS & _CONTEXT_MASK != 0


def _has_payload(mark: int) -> bool:
    """Return whether a mark was computed from a payload; marks loaded from the table were not."""
    return mark >> HOUR_BITS != 0


def _same_payload(one: int, other: int) -> bool:
    return one >> _PAYLOAD_SHIFT == other >> _PAYLOAD_SHIFT


def _context_bits(schema_id: str | None, topic: str | None) -> int:
    text = f"{schema_id}\0{topic}".encode()
    digest = hashlib.blake2b(text, digest_size=2, person=b"sfpubsub mark").digest()
    return (int.from_bytes(digest, "big") & _CONTEXT_MASK) << HOUR_BITS


def _row(rows: pa.Table, index: int) -> StoredRow:
    row = {name: rows[name][index].as_py() for name in StoredRow.COLUMNS}
    return StoredRow(**row | {"ingest_seq": None})  # not numbered yet
