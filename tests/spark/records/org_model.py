"""A small model of an org: records that change, their change events, and stale responses.

It shares no code with the package except dataclasses of the interface. Time is measured in ticks.
"""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sfpubsub.spark.records.fold import Change, Fields
from sfpubsub.spark.records.reads import Row

# PhotoUrl never changes. No event carries the last column, which is a formula.
COLUMNS = ("Phone", "Size", "Note__c", "PhotoUrl", "Rank__c")
PLACES = {name: (place,) for place, name in enumerate(COLUMNS[:4])}
FIELDS = Fields(COLUMNS, {n: p for n, p in PLACES.items() if n != "PhotoUrl"}, {}, (3, 4))
# For an org whose events carry PhotoUrl, and whose formula counts as reported, as if there were
# none: a record is then complete without a read.
ALL_REPORTED = Fields(COLUMNS, PLACES, {})
NAMED = 4  # number of columns before the formula
CHANGED = 3  # number of columns that users change

# Longest time that a transaction takes, in ticks.
LONGEST = 2

OVERFLOW_ID = "000000000000000AAA"

_EPOCH = datetime(2026, 11, 21, tzinfo=UTC)


def time_of(tick: int) -> datetime:
    """Return the commit timestamp of a tick."""
    return _EPOCH + timedelta(seconds=tick)


@dataclass(frozen=True)
class Sent:
    """A change event on the event bus."""

    record_ids: tuple[str, ...]
    change_type: str
    timestamp: datetime
    number: int
    sequence: int
    values: tuple[Any, ...] = (None,) * len(COLUMNS)
    changed: tuple[str, ...] = ()
    diffs: tuple[str, ...] = ()

    def change(self, ingest_seq: int) -> Change:
        place = (self.timestamp, self.number, self.sequence, ingest_seq)
        return Change(self.change_type, *place, self.values, self.changed, self.diffs)


@dataclass(frozen=True)
class State:
    """The stored fields of a record, and whether the record is in the Recycle Bin."""

    fields: tuple[Any, ...]
    in_bin: bool = False
    stamp: int = -100
    """SystemModstamp, in ticks: at most `LONGEST` before the transaction is committed."""


@dataclass
class Org:
    """An org with one object."""

    fields: Fields = FIELDS
    now: int = 0
    number: int = 1000
    sequence: int = 0
    made: int = 0
    rates: list[tuple[int, int]] = field(default_factory=lambda: [(-100, 1)])
    """Values that the formula depends on, with their ticks; no event reports their changes."""
    past: dict[str, list[tuple[int, State | None]]] = field(default_factory=dict)
    """States of each record, with their ticks; None if the record was purged."""
    bus: list[Sent] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    """Ids of records that were purged without an event while they were live."""
    drifted: set[str] = field(default_factory=set)
    """Ids of records that were changed without an event, although their stamps moved."""
    duration: int = 0
    """How many ticks before its commit a change sets the stamp."""
    has_stamps: bool = True
    moves_stamps: bool = True
    """Whether deletions and undeletions move the stamp."""
    rights: list[tuple[int, int]] = field(default_factory=lambda: [(-100, 1)])
    """Since when the mirror's user has which grant of View All, by tick; 0 stands for none."""

    def ids(self, in_bin: bool = False) -> list[str]:
        """Return the ids of all live records, or with *in_bin*, of those in the Recycle Bin."""
        newest = {each: states[-1][1] for each, states in self.past.items()}
        return [each for each, state in newest.items() if state and state.in_bin is in_bin]

    def always_live(self) -> set[str]:
        """Return the ids of all records that were never deleted."""
        return {
            each
            for each, states in self.past.items()
            if all(state is not None and not state.in_bin for _, state in states)
        }

    def value(self, record_id: str) -> tuple[Any, ...]:
        """Return a record's current values in all columns."""
        state = self.past[record_id][-1][1]
        assert state is not None
        return (*state.fields, photo_of(record_id), _rank(state, self.rates[-1][1]))

    @property
    def grant(self) -> int:
        """Identity of the user's present grant of View All; 0 without one."""
        return self.rights[-1][1]

    def turn_rights(self) -> None:
        """Withdraw View All from the user, or grant it again, with another identity."""
        grants = [each for _, each in self.rights]
        self.rights.append((self.now, 0 if grants[-1] else max(grants) + 1))

    def is_hidden(self, record_id: str, sent: int) -> bool:
        """Return whether a response to a request sent at tick *sent* may lack the record.

        It does if another user owns the record, and if the user had no right to see it at any time
        since then.
        """
        first = sum(tick <= sent for tick, _ in self.rights) - 1
        is_withdrawn = any(grant == 0 for _, grant in self.rights[first:])
        return is_withdrawn and int(record_id[3:]) % 2 == 0

    def row(self, record_id: str, sent: int, staleness: int, rng: random.Random) -> Row | None:
        """Return a record as it may appear in the response to a request sent at tick *sent*.

        This is its state at a random time, up to *staleness* ticks before the request, or later.
        None if the record did not exist at that time.
        """
        if self.is_hidden(record_id, sent):
            return None
        state = _random_state(self.past.get(record_id, []), sent - staleness, rng)
        rate = _random_state(self.rates, sent - staleness, rng)
        assert rate is not None
        if state is None:
            return None
        values = (*state.fields, photo_of(record_id), _rank(state, rate))
        stamp = time_of(state.stamp) if self.has_stamps else None
        return Row(values, state.in_bin, stamp=stamp)

    # Changes by users. Each call is one transaction.

    def commit(self, *, moved: bool = False) -> None:
        """Start a new transaction. If *moved* is true, the org first moves to another instance."""
        if moved:
            self.now += 1
            self.number = random.Random(self.now).randrange(100)
        self.number += 1
        self.sequence = 0

    def send(self, kind: str, *ids: str, **more: Any) -> None:
        self.sequence += 1
        if not self.grant:  # events are withheld from a user who may not see all records
            return
        self.bus.append(Sent(ids, kind, time_of(self.now), self.number, self.sequence, **more))

    def put(self, record_id: str, state: State | None) -> None:
        past = self.past.setdefault(record_id, [])
        if state is not None:
            tick, old = past[-1] if past else (-100, None)
            # A transaction begins to change a record after the previous one was committed.
            stamp = max(tick, self.now - self.duration)
            if old is not None and old.in_bin != state.in_bin and not self.moves_stamps:
                stamp = old.stamp
            state = replace(state, stamp=stamp)
        past.append((self.now, state))

    def change_silently(self, kind: str, record_id: str | None, value: str, place: int) -> None:
        """Make a change that no event tells, or move a stamp without a change (``TOUCH``)."""
        before = len(self.bus)
        if kind == "CREATE" or record_id is None:
            self.create()
            record_id = f"001{self.made:03}"
        elif kind == "DELETE":
            self.delete(record_id)
        elif kind == "TOUCH":
            self.put(record_id, State(self._fields(record_id)))
        else:
            self.update([record_id], value, place)
        del self.bus[before:]
        self.drifted.add(record_id)
        if kind == "DELETE" and not self.moves_stamps:
            self.silent.add(record_id)

    def create(self, *, before: bool = False, kind: str = "CREATE") -> None:
        """Create a record. If *before* is true, it predates the stream and has no event."""
        self.made += 1
        record_id = f"001{self.made:03}"
        state = State((f"p{self.made}", None, f"note {self.made}\n"))
        if before:
            self.past[record_id] = [(-100, state)]
            return
        self.put(record_id, state)
        self.send(kind, record_id, **({} if kind != "CREATE" else self._whole(record_id, state)))

    def update(self, ids: list[str], value: str | None, place: int, kind: str = "UPDATE") -> None:
        """Set a field of several records to the same value, with a single event for all of them."""
        for each in ids:
            self.put(each, State(_with(self._fields(each), place, value)))
        values = _with((None,) * len(COLUMNS), place, value)
        told = {"values": values, "changed": (COLUMNS[place],)} if kind == "UPDATE" else {}
        self.send(kind, *ids, **told)

    def update_by_diff(self, record_id: str, line: str) -> None:
        """Append a line to the long text, with a diff in the event if the text was not null."""
        fields = self._fields(record_id)
        old = fields[2]
        if old is None:
            self.update([record_id], line + "\n", 2)
            return
        self.put(record_id, State(_with(fields, 2, new := old + line + "\n")))
        # Without context lines, so that the short diff applies only to the old text.
        lines = difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=0)
        made = list(lines)[2:]
        sha = hashlib.sha256(new.encode()).hexdigest()
        text = "\n".join(["--- ", f"+++ {sha}", *made])
        values = _with((None,) * len(COLUMNS), 2, text)
        names = ("Note__c",)
        self.send("UPDATE", record_id, values=values, changed=names, diffs=names)

    def delete(self, record_id: str, kind: str = "DELETE") -> None:
        self.put(record_id, State(self._fields(record_id), in_bin=True))
        self.send(kind, record_id)

    def undelete(self, record_id: str) -> None:
        state = State(self._fields(record_id))
        self.put(record_id, state)
        self.send("UNDELETE", record_id, **self._whole(record_id, state))

    def purge(self, record_id: str) -> None:
        """Delete a record permanently, without an event.

        Only a sweep tells, unless events or a read told before that it was deleted.
        """
        if record_id in self.ids() or record_id in self.drifted:
            self.silent.add(record_id)
        self.put(record_id, None)

    def overflow(self, value: str) -> None:
        """Change all records, create one and delete one, with only an overflow event."""
        live = self.ids()
        for each in live:
            self.put(each, State(_with(self._fields(each), 0, value)))
        if len(live) > 1:
            self.put(live[0], State(self._fields(live[0]), in_bin=True))
        self.made += 1
        self.put(f"001{self.made:03}", State((value, None, None)))
        self.send("GAP_OVERFLOW", OVERFLOW_ID)

    def _whole(self, record_id: str, state: State) -> dict[str, Any]:
        photo = photo_of(record_id) if "PhotoUrl" in self.fields else None
        return {"values": (*state.fields, photo, None)}

    def _fields(self, record_id: str) -> tuple[Any, ...]:
        state = self.past[record_id][-1][1]
        assert state is not None
        return state.fields


def _with(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def photo_of(record_id: str) -> str:
    """Return a record's PhotoUrl."""
    return f"/photo/{record_id}"


def _rank(state: State, rate: int) -> str:
    return f"{state.fields[0]} at {rate}"


def _random_state(past: list[tuple[int, Any]], since: int, rng: random.Random) -> Any:
    """Return one of the states in *past* that applied at tick *since* or later, chosen at random.

    None stands for the time before the first state.
    """
    first = sum(tick <= since for tick, _ in past)
    # Mostly the oldest or the newest state, because these are the edge cases of the rules.
    pick: Callable[[list[int]], int] = rng.choice
    place = pick([first, first, len(past), rng.randint(first, len(past))])
    return past[place - 1][1] if place else None
