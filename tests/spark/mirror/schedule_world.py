"""A simulated mirror: an org, tables and a mailbox in memory, with a clock of their own.

All decisions are made by the schedule under test, in one thread. The world checks every action
against what it has done itself.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from sfpubsub.errors import RequestRefusedError, SfPubSubError, StreamUnavailableError
from sfpubsub.rest.grants import Grant, Held
from sfpubsub.spark.ingest.selection import Member, Selection, event_of
from sfpubsub.spark.ingest.sidecars import KeptGap
from sfpubsub.spark.mirror import actions
from sfpubsub.spark.mirror.deadlines import Now
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.mailbox import Signal
from sfpubsub.spark.mirror.mirror_state import Stored, TablesState
from sfpubsub.spark.mirror.notes import Ask, Merge, Note, Remove, Sweep
from sfpubsub.spark.mirror.progress import ObjectProgress
from sfpubsub.spark.mirror.schedule import Schedule
from sfpubsub.spark.mirror.settings import MirrorSettings
from sfpubsub.spark.mirror.stream_state import StreamState
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.described import Column
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.reads import AsOf, Entry, Read, heals
from sfpubsub.types import Gap, ReplayId

MARGIN = 64.0
DAY = 24 * 3600.0

# Actions after which the schedule must have had a moment with nothing to do.
MOST_ACTIONS = 3000

SETTINGS = MirrorSettings(margin=MARGIN, refresh_formulas=0.0, sweep=0.0, drift=0.0)

NAME = Column("Name", pa.string(), "Name", "", ("Name",))


class KilledError(Exception):
    """The process is killed before the action was carried out, or before it said so."""


@dataclass
class Reading:
    """A read that is running in the background."""

    begun: float
    action: actions.StartRead
    pieces: int
    number: int
    sent: float
    is_stopped: bool = False


class SimulatedMirror:
    """A mirror in memory. What is not in `schedule` or `running` survives a kill."""

    def __init__(self, seed: int, objects: list[str], settings: MirrorSettings = SETTINGS) -> None:
        print("seed", seed)
        self.rng = random.Random(seed)
        self.settings = settings
        self.objects = objects
        self.now = Now(0.0, 2.0**20)
        # The org.
        self.gone: set[str] = set()
        self.failing: set[str] = set()  # objects whose reads fail
        self.is_down = False
        self.grants = dict.fromkeys(objects, Grant.of(["a"]))
        self.members = {event_of(name): Member(name) for name in objects}
        self.sends: list[float] = []  # times of API calls
        self.stored_sends = 0  # how many of them a step has stored
        # The tables.
        self.raw: list[tuple[str, str | None] | None] = []  # rows: object and record to reread
        self.applied = 0
        self.number = 0
        self.is_between = False
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        self.added: dict[tuple[str, Entry], float] = {}  # when an entry became durable
        self.progress: dict[str, ObjectProgress] = {}
        self.pieces: Counter[str] = Counter()  # number of the newest piece in the log
        self.log: dict[str, list[Marker]] = defaultdict(list)
        self.kept_gaps: list[str] = []
        self.held: dict[str, Held] = {}
        self.known_members: dict[str, str | None] = {}
        self.mailbox: dict[str, Signal] = {}
        self.calls: list[tuple[float, int]] = []
        self.gaps: list[KeptGap] = []
        self.asks: list[Ask] = []
        self.closed: list[tuple[str, Entry, int]] = []  # with the number of reads begun meanwhile
        self.begun: list[tuple[float, str, str]] = []  # reads: when, of which object, and its kind
        self.merges_after: list[int] = []  # steps with events while pieces waited
        self.said: list[str] = []
        self.limit = 100_000
        """Number of API calls that the org allows in 24 hours."""
        self.most_pieces = 3
        """Largest number of pieces of a read, of which each takes an API call."""
        self.has_derived = False
        """Whether the objects have fields that no event reports."""
        self.silent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Changes without an event that no read has found: when they were committed, and stamps."""
        self.found: list[float] = []
        """How long the others took to be found, in seconds."""
        self.asked_from: dict[tuple[str, int], datetime | None] = {}
        """The lowest stamp of each read, by object and number; None for all records."""
        self.on_piece: Callable[[], object] | None = None
        """Called before a read stores a piece."""
        self.kill_in: int | None = None
        """Number of actions after which the process is killed; None for never."""
        self.open()

    # The process.

    def open(self, *, once: bool = False) -> None:
        """Start a process; only what is durable survives."""
        self.durable: list[tuple[float, AsOf]] = []
        self.running: Reading | None = None
        # By object: the right as last told, and how many pieces its log had by then.
        self.told: dict[str, tuple[Grant, int]] = {}
        self.is_looking = False
        self.events_in_a_row = 0
        stored = Stored(
            {name: replace(each) for name, each in self.progress.items()},
            self.held,
            self.known_members,
            self.kept_gaps,
            self.calls,
        )
        del self.sends[self.stored_sends :]  # a kill loses the count of calls since the last step
        self.began = len(self.sends)
        objects = dict.fromkeys([*self.objects, *self.progress])
        self.schedule = Schedule(self.settings, objects, self.objects, stored, self.now, looks=True)
        for name in self.schedule.objects:
            self.schedule.resume(name, self.log[name])
        if once:
            self.schedule.end_once_settled()

    def state(self) -> StreamState:
        """Return the state of the stream, which is always at its end."""
        written, gaps = len(self.raw), tuple(self.gaps)
        return StreamState(True, True, written, gaps, False, ReplayId(b"p"), "/data/X")

    def next(self) -> actions.Action | actions.Idle | actions.End:
        """Hand in the present state, and return what to do next."""
        reported = frozenset() if self.has_derived else frozenset({"name"})
        columns = {name: Columns(name, (NAME,), reported) for name in self.progress}
        tables = TablesState(
            self.applied - 1, self.number, self.is_between, False, dict(self.entries), columns
        )
        self.schedule.observe(self.state(), tables, len(self.sends) - self.began)
        return self.schedule.next(self.now)

    def work(self) -> float | None:
        """Carry out actions until there is nothing to do.

        Returns:
            The deadline of the schedule; None if it has ended.
        """
        for _ in range(MOST_ACTIONS):
            action = self.next()
            if isinstance(action, actions.End):
                return None
            if isinstance(action, actions.Idle):
                return action.until
            if self.kill_in is not None:
                self.kill_in -= 1
                if self.kill_in < 0 and self.rng.random() < 0.5:
                    raise KilledError
            try:
                result = self.carry_out(action)
            except SfPubSubError as error:
                self.schedule.failed(error)
            else:
                self.schedule.done(result)
            if self.kill_in is not None and self.kill_in < 0:
                raise KilledError
        raise AssertionError(f"the schedule is never idle; its last action is {action}")

    def pass_time(self, seconds: float) -> None:
        """Advance both clocks."""
        self.now = Now(self.now.clock + seconds, self.now.wall + seconds)

    def run(self, seconds: float, *, every: float = 0.0) -> bool:
        """Let the mirror work for some time, and its reads go on; return whether it has ended.

        At a random moment before each deadline, there must be nothing to do.

        Args:
            seconds: How long.
            every: Shortest time between two wake-ups of the process, as on a busy machine.
        """
        end = self.now.clock + seconds
        while (until := self.work()) is not None:
            if self.read_on() or self.look():
                if self.now.clock >= end:
                    return False
                continue
            left = min(until, end) - self.now.clock
            if left <= 0 and self.now.clock >= end:
                return False
            assert left > 0, "a deadline that has passed"
            self.pass_time(int(self.rng.random() * left * 8) / 8)
            idle = self.next()
            assert isinstance(idle, actions.Idle), f"{idle} is due before its deadline"
            until = min(max(until, self.now.clock + every), end)
            self.pass_time(until - self.now.clock)
        return True

    # The background.

    def read_on(self) -> bool:
        """Let the running read store a piece, or end. Return whether there is one."""
        reading = self.running
        if reading is None:
            return False
        action = reading.action
        name = action.wanted.entity
        error = self.error_of(name, reads=True)
        if reading.is_stopped or error is not None:
            self.schedule.read_ended(name, None if reading.is_stopped else error)
            self.running = None
            return True
        self.sends.append(self.now.wall)
        if self.on_piece is not None:
            self.on_piece()
        self.pieces[name] += 1
        reading.pieces -= 1
        kind = action.wanted.kind
        marker = Marker(
            reading.number,
            kind,
            action.as_of if action.last is None else action.last.as_of,
            is_last=reading.pieces == 0,
            rows=1,
            size=len(action.wanted.record_ids) or 1,
            selected=("Id", "Name", "SystemModstamp"),
            filled={} if kind == "sweep" else {"Name": 0},
            epoch=action.epoch,
            piece=self.pieces[name],
            after=" ".join(action.wanted.record_ids),
            through=reading.sent if kind in ("object", "changes") else None,
            at=action.at,
        )
        self.log[name].append(marker)
        self.schedule.piece_stored(name, marker)
        if marker.is_last:
            self.schedule.read_ended(name, None)
            self.running = None
        return True

    def look(self) -> bool:
        """Answer the look at the channel's members, and return whether there is one."""
        if not self.is_looking:
            return False
        self.is_looking = False
        self.sends.append(self.now.wall)
        down = StreamUnavailableError("down") if self.is_down else None
        self.schedule.members_found(down or Selection("ChangeEvents", dict(self.members)))
        return True

    def error_of(self, name: str, *, reads: bool = False) -> SfPubSubError | None:
        """Return the error of a read of an object, or of another request; None if it succeeds."""
        if self.is_down:
            return StreamUnavailableError("down")
        if name in self.gone:
            return RequestRefusedError("gone", status=404, error_code="NOT_FOUND")
        if reads and name in self.failing:
            return RequestRefusedError("the job failed")
        return None

    # Actions.

    def ask_org(self, name: str | None) -> None:
        """Send a request about an object, or about none."""
        self.sends.append(self.now.wall)
        error = self.error_of(name or "")
        if error is not None:
            raise error

    def carry_out(self, action: actions.Action) -> Any:
        """Carry out an action, and return its result."""
        match action:
            case actions.Say(text):
                self.said.append(text)
            case actions.ApplyEvents():
                return self.apply_events()
            case actions.TakeStep(note, calls):
                assert not self.is_between
                self.calls, self.stored_sends = calls, len(self.sends)
                self.number += 1
                self.take(note)
                self.note_durable()
            case actions.Describe(name) | actions.CheckObject(name):
                self.ask_org(name)
                self.progress.setdefault(name, ObjectProgress())
            case actions.AddObject(name):
                self.progress.setdefault(name, ObjectProgress())
            case actions.RemoveObject(name):
                self.progress.pop(name)
                self.objects = [each for each in self.objects if each != name]
            case actions.ListSignals():
                return list(self.mailbox.values())
            case actions.MarkSignals(ids):
                for each in ids:
                    del self.mailbox[each]
            case actions.FindRecords(signal):
                self.ask_org(signal.entity)
                return ("found",)
            case actions.FindParked():
                return []
            case actions.ReadGrants(names):
                self.ask_org(None)
                self.told |= {name: (self.grants[name], len(self.log[name])) for name in names}
                return {name: self.grants[name] for name in names}
            case actions.FindLimit():
                self.ask_org(None)
                return self.limit
            case actions.LookAtMembers():
                assert not self.is_looking
                self.is_looking = True
            case actions.KeepRights(held, gaps):
                self.held, self.kept_gaps = dict(held), list(gaps or self.kept_gaps)
            case actions.KeepMembers(known):
                self.known_members = dict(known)
            case actions.KeepGaps(names):
                self.kept_gaps = list(names)
            case actions.StoreGap(gap):
                return self.store_gap(gap)
            case actions.StartRead():
                self.start(action)
            case actions.StopRead():
                assert self.running is not None
                self.running.is_stopped = True
            case actions.ClearLog(name):
                self.log[name] = []
        return None

    def store_gap(self, gap: Gap) -> list[str]:
        """Store a gap, and return its name."""
        name = f"{gap.reason} {gap.entity} {gap.occurrence}"
        if name not in [each.name for each in self.gaps]:
            self.gaps.append(KeptGap(name, gap.entity))
        return [name]

    def note_durable(self) -> None:
        now = self.now.clock
        old = [each for each in self.durable if each[0] + MARGIN <= now]
        self.durable = [*old[-1:], *self.durable[len(old) :]]
        self.durable.append((now, AsOf(self.applied - 1, self.number)))

    def apply_events(self) -> bool:
        """Apply the next rows, or complete a step; return whether there was one."""
        if not self.durable:
            self.note_durable()
        if self.is_between:
            self.is_between = False
        elif self.applied == len(self.raw):
            return False
        else:
            self.number += 1
            for row in self.raw[self.applied : self.applied + 50]:
                self.applied += 1
                if row is not None:
                    name, record = row
                    self.add(name, Entry(record, Cue(Reason.GAP, None, None, self.applied - 1)))
        self.note_durable()
        if self.schedule.pieces:
            self.events_in_a_row += 1
        return True

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry to the reread queue."""
        self.entries[name].append(entry)
        self.added[name, entry] = len(self.begun)

    def take(self, note: Note) -> None:
        """Perform the step of a note."""
        name = note.entity
        self.progress.setdefault(name, ObjectProgress()).take(note)
        if isinstance(note, Ask):
            self.asks.append(note)
            cue = Cue(note.reason, None, None, note.applied_seq)
            for record in note.record_ids or (None,):
                self.add(name, Entry(record, cue, self.number))
        elif isinstance(note, Remove):
            self.entries.pop(name, None)
        elif isinstance(note, (Merge, Sweep)):
            self.merges_after.append(self.events_in_a_row)
            self.events_in_a_row = 0
            if isinstance(note, Merge) and note.is_last:
                grant, pieces = self.told[name]
                assert grant, "absences count although the user may not see everything"
                assert pieces == len(self.log[name]), "the right was not checked after the read"
            if isinstance(note, Merge) and (note.is_last or note.kind == "ids"):
                self.close(note)
            if isinstance(note, Merge) and note.through is not None:
                self.find_silent(note, note.through)

    def close(self, note: Merge) -> None:
        """Close the entries that a read heals."""
        name = note.entity
        if not note.is_last:
            (piece,) = [each for each in self.log[name] if each.piece == note.last]
            ids = set((piece.after or "").split())
        left = []
        for entry in self.entries[name]:
            is_read = note.is_last or entry.record_id in ids
            if is_read and heals(Read(note.read.as_of, None, None), entry):
                self.closed.append((name, entry, len(self.begun) - self.added[name, entry]))
            else:
                left.append(entry)
        self.entries[name] = left

    def change_silently(self, name: str) -> None:
        """Change a record without an event; its stamp is up to a transaction's length earlier."""
        stamp = self.now.wall - int(self.rng.random() * self.settings.overlap)
        self.silent[name].append((self.now.wall, stamp))

    def find_silent(self, note: Merge, through: float) -> None:
        """Find the changes that a read contains, whose responses may have lagged by a margin."""
        (piece,) = [each for each in self.log[note.entity] if each.piece == note.last]
        first = self.asked_from[note.entity, piece.read]
        left = []
        for at, stamp in self.silent[note.entity]:
            is_asked = first is None or stamp >= first.timestamp()
            if is_asked and at <= through - self.rng.choice([0.0, MARGIN]):
                self.found.append(self.now.wall - at)
            else:
                left.append((at, stamp))
        self.silent[note.entity] = left

    def start(self, action: actions.StartRead) -> None:
        """Begin a read, if the rules allow it."""
        assert self.running is None, "two reads at a time"
        now = self.now.clock
        old = [each for at, each in self.durable if at + MARGIN <= now]
        assert old, "a read has begun before the margin was over"
        assert action.as_of == max(old), "a read is assumed to contain more than it does"
        most = self.settings.api_calls_per_day
        used = sum(at > self.now.wall - DAY for at in self.sends)
        assert most is None or used < most, "a read has begun although the budget is used up"
        name = action.wanted.entity
        assert self.told[name][0], "a read has begun although the user may not see everything"
        self.begun.append((now, name, action.wanted.kind))
        number = action.last.read if action.last is not None else 0
        if action.last is None:
            self.log[name] = [each for each in self.log[name] if each.piece > action.merged]
            number = self.pieces[name] + 1
        pieces = 1 if action.wanted.kind == "ids" else self.rng.randint(1, self.most_pieces)
        self.running = Reading(now, action, pieces, number, self.now.wall)
        self.asked_from[name, number] = action.wanted.stamps_from

    @property
    def is_equal(self) -> bool:
        """Whether nothing is left to be read from the org."""
        names = [name for name in self.schedule.objects if name not in self.gone]
        return self.applied == len(self.raw) and not any(self.entries[name] for name in names)
