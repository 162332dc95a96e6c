"""A Hypothesis state machine that tests the mirror with random changes, faults and undecodable or
incomplete events.
"""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sfpubsub.spark.records.fold import Reason
from tests.spark.records.job_model import STALENESS, Job
from tests.spark.records.org_model import (
    ALL_REPORTED,
    CHANGED,
    FIELDS,
    LONGEST,
    NAMED,
    Org,
    photo_of,
)

# Changes that events report, at least as a gap of a record, and changes that they do not report.
TOLD = ("CREATE", "UPDATE", "DIFF", "BOTH", "NULL", "GAP", "DELETE", "UNDELETE")
SILENT = ("CREATE", "UPDATE", "UPDATE", "TOUCH", "DELETE")
UNTOLD = ("GAP_CREATE", "GAP_DELETE", "OVERFLOW", "PURGE", "RATE", "MOVE", "LOSE", "WILD")


class DivergedError(AssertionError):
    """The mirror differs from the org."""


class MirrorMachine(RuleBasedStateMachine):
    """Makes changes and injects faults; at each `rest`, the mirror must equal the org."""

    margin = STALENESS
    twice = True
    overlap = LONGEST
    ties = True
    has_stamps = True
    seen: ClassVar[set[Reason]] = set()
    """Reasons of all queue entries that were open at any `rest`, in all examples."""

    @initialize(
        seed=st.integers(0, 2**16),
        records=st.integers(0, 4),
        is_read=st.booleans(),
        all_reported=st.booleans(),
        moves_stamps=st.booleans(),
    )
    def begin(
        self,
        seed: int,
        records: int,
        is_read: bool,
        all_reported: bool = False,
        moves_stamps: bool = True,
    ) -> None:
        """Create an org with some records and its mirror.

        If *is_read* is True, read the whole object once. *all_reported*: see `ALL_REPORTED`;
        *moves_stamps*: see `Org.moves_stamps`.
        """
        self.rng = random.Random(seed)
        self.org = Org(ALL_REPORTED if all_reported else FIELDS)
        self.org.has_stamps, self.org.moves_stamps = self.has_stamps, moves_stamps
        for _ in range(records):
            self.org.create(before=True)
        self.job = Job(
            self.org,
            self.margin,
            twice=self.twice,
            most=seed % 2,
            overlap=self.overlap,
            ties=self.ties,
        )
        if is_read:  # otherwise the first read happens at some later step
            self.org.now += self.margin
            self.job.send(pieces=(0, 1))
            self.answer_all()

    @invariant()
    def versions_follow_each_other(self) -> None:
        """The history shows what the tables showed; see `Job.check_history`."""
        if hasattr(self, "job"):
            self.job.check_history()

    # The org.

    def pick(self, which: int, *, in_bin: bool = False) -> str | None:
        """Return the id of an existing record, chosen by *which*, or None if there is none.

        If *in_bin* is True, choose among the records in the Recycle Bin.
        """
        ids = sorted(self.org.ids(in_bin))
        return ids[which % len(ids)] if ids else None

    @rule(
        kind=st.sampled_from(TOLD),
        which=st.integers(0, 3),
        is_next=st.booleans(),
    )
    def write(self, kind: str, which: int, is_next: bool) -> None:
        """Create, update, delete or undelete records, each reported by an event."""
        if is_next:
            self.org.commit()
        value = f"v{len(self.org.bus)}"
        live, binned = self.pick(which), self.pick(which, in_bin=True)
        if kind == "CREATE" or (live is None and kind != "UNDELETE"):
            self.org.create()
        elif kind == "UNDELETE":
            if binned is not None:
                self.org.undelete(binned)
        else:
            assert live is not None
            self.change(kind, live, value, which)

    def change(self, kind: str, live: str, value: str, which: int) -> None:
        if kind == "UPDATE":
            self.org.update([live], value, which % CHANGED)
        elif kind == "BOTH":
            self.org.update(self.org.ids()[:2], value, 1)
        elif kind == "NULL":
            self.org.update([live], None, 1 + which % 2)
        elif kind == "DIFF":
            self.org.update_by_diff(live, value)
        elif kind == "GAP":
            self.org.update([live], value, which % CHANGED, "GAP_UPDATE")
        else:
            self.org.delete(live)

    @rule(
        kind=st.sampled_from(UNTOLD),
        which=st.integers(0, 3),
    )
    def write_with_incomplete_events(self, kind: str, which: int) -> None:
        """Make a change that events report incompletely or not at all."""
        self.org.commit(moved=kind == "MOVE")
        live, value = self.pick(which), f"v{len(self.org.bus)}"
        if kind == "OVERFLOW":
            self.org.overflow(value)
        elif kind == "RATE":
            self.org.rates.append((self.org.now, len(self.org.rates) + 1))
        elif kind == "LOSE":
            self.job.lose_position()
        elif kind == "GAP_CREATE":
            self.org.create(kind="GAP_CREATE")
        elif live is not None and kind == "GAP_DELETE":
            self.org.delete(live, "GAP_DELETE")
        elif live is not None and kind == "WILD":
            before = len(self.org.bus)
            for each in self.org.ids():
                self.org.update([each], value, 0, "GAP_UPDATE")
            del self.org.bus[before:]
            self.org.send("GAP_UPDATE", "001*")
        elif kind == "PURGE":
            gone = self.pick(which, in_bin=True) or live
            if gone is not None:
                self.org.purge(gone)

    @rule(
        kind=st.sampled_from(SILENT),
        which=st.integers(0, 3),
        duration=st.integers(0, LONGEST),
    )
    def write_silently(self, kind: str, which: int, duration: int = 0) -> None:
        """Make a change that no event tells, in a transaction of *duration* ticks."""
        self.org.commit()
        self.org.duration = duration
        self.org.change_silently(
            kind, self.pick(which), f"s{self.org.now}.{self.org.number}", which % CHANGED
        )
        self.org.duration = 0

    @rule(
        which=st.integers(0, 3),
        is_told=st.booleans(),
        then=st.sampled_from(["", "read", "read", "write"]),
    )
    def find_silent_change(self, which: int, is_told: bool, then: str) -> None:
        """Make a change that no event tells, and read it.

        Args:
            which: Chooses the record and the field.
            is_told: Whether an event has changed the same field before.
            then: Whether to read the record by id at once, or to change it again.
        """
        if is_told:
            self.write("UPDATE", which, is_next=True)
            self.deliver(len(self.org.bus), is_applied=True)
            self.org.now += 1
        self.write_silently("UPDATE", which)
        self.answer_all()
        self.send(what="changes")
        self.answer_all()
        if then == "write":
            self.write_silently("UPDATE", which)
        elif then == "read":
            self.job.ask(Reason.ASKED, self.pick(which))
            self.job.send_for_queue()
            self.answer_all()

    @rule(turns=st.integers(1, 2), is_checked=st.booleans())
    def turn_rights(self, turns: int, is_checked: bool) -> None:
        """Withdraw View All from the mirror's user, or grant it again, or both."""
        for _ in range(turns):
            self.org.turn_rights()
        if is_checked:
            self.job.check_rights()

    @rule(which=st.integers(0, 3))
    def leave_out(self, which: int) -> None:
        """Let a response lack a record for no reason."""
        live = self.pick(which)
        if live is not None:
            self.job.leave_out(live)

    # The mirror.

    @rule(ticks=st.integers(1, STALENESS + 1))
    def wait(self, ticks: int) -> None:
        self.org.now += ticks

    @rule(count=st.integers(1, 5), is_applied=st.booleans())
    def deliver(self, count: int, is_applied: bool) -> None:
        self.job.deliver(count)
        if is_applied:
            self.job.apply_rows(len(self.job.raw))

    @rule(is_again=st.booleans())
    def fail_to_decode(self, is_again: bool) -> None:
        """Deliver an event that cannot be decoded, or if *is_again*, redrive earlier ones."""
        if is_again:
            self.job.redrive()
        else:
            self.job.deliver(1, decoded=False)

    @rule(what=st.sampled_from(["queue", "0", "1", "both", "both", "changes", "changes"]))
    def send(self, what: str) -> None:
        if what == "queue":
            self.job.send_for_queue()
        elif what == "changes":
            if self.has_stamps:
                self.job.send_for_changes()
        else:
            self.job.send(pieces=(0, 1) if what == "both" else (int(what),))

    @rule(which=st.integers(0, 2), merge=st.booleans())
    def answer(self, which: int, merge: bool) -> None:
        if self.job.requests:
            request = self.job.requests[which % len(self.job.requests)]
            self.job.answer(request, self.rng)
        if merge:
            self.merge_all()

    @rule(is_crash=st.booleans(), with_queue=st.booleans())
    def commit_or_crash(self, is_crash: bool, with_queue: bool) -> None:
        if is_crash:
            self.job.crash(with_queue=with_queue)
        else:
            self.job.commit()

    @rule(what=st.sampled_from(["sweep", "formulas", "again"]), which=st.integers(0, 3))
    def ask(self, what: str, which: int) -> None:
        if what == "sweep":
            self.job.sweep()
        elif what == "formulas":
            self.job.ask(Reason.FORMULA)
        else:
            self.job.ask(Reason.ASKED, self.pick(which))

    def merge_all(self) -> None:
        while self.job.tables.merged < len(self.job.answers):
            before = self.deleted()
            self.job.merge()
            wrong = (self.deleted() - before) & self.org.always_live()
            if wrong:
                raise DivergedError(f"{sorted(wrong)} were never deleted, but count as deleted")

    def answer_all(self) -> None:
        for request in list(self.job.requests):
            self.job.answer(request, self.rng)
        self.merge_all()

    def deleted(self) -> set[str]:
        """Return the ids of the rows that count as deleted."""
        rows = self.job.tables.mirrored
        return {each for each, row in rows.items() if row.record.is_deleted}

    # The end.

    @rule(redrives=st.booleans(), answers=st.booleans())
    def rest(self, redrives: bool, answers: bool) -> None:
        """Deliver all events, process the queue, and compare the mirror with the org.

        Args:
            redrives: Whether undecodable events are redriven before the queue is processed.
            answers: Whether requests in flight get their responses now rather than later.
        """
        if not self.org.grant:
            self.org.turn_rights()
        self.job.check_rights()
        self.job.deliver(len(self.org.bus))
        if redrives:
            self.job.redrive()
        self.job.apply_rows(len(self.job.raw))
        self.check_complete_rows()
        waiting = [] if answers or self.job.is_reading_changes else self.job.requests
        if not answers:
            self.job.requests = []
        self.answer_all()
        self.process_queue()
        self.compare(NAMED, leave_out=self.org.silent | self.org.drifted)
        if self.has_stamps:
            self.job.send_for_changes()
            self.answer_all()
            self.process_queue()
            self.compare(NAMED, leave_out=self.org.silent)
            self.org.drifted.clear()
        self.job.ask(Reason.FORMULA)
        self.job.sweep()
        self.process_queue()
        self.compare(NAMED + 1)
        self.job.requests = waiting
        # A late answer or event may bring a purged record back until the next sweep.
        if not waiting and not self.job.undecoded:
            self.org.silent.clear()

    def teardown(self) -> None:
        if hasattr(self, "job"):
            self.rest(redrives=True, answers=True)

    def process_queue(self) -> None:
        """Read every record in the queue, and confirm deletions; the queue must then be empty."""
        for _ in range(4):  # an absence needs two rounds, and two more if it has to be confirmed
            self.org.now += STALENESS
            queue = self.job.tables.queue
            type(self).seen |= {each.cue.reason for each in queue}
            if any(not each.is_about_all for each in queue):
                self.job.send_for_queue()
            if any(each.is_about_all for each in queue):
                self.job.send(pieces=(0, 1))
            self.answer_all()
            self.job.confirm()
        if self.job.tables.queue:
            raise DivergedError(f"the queue still has {self.job.tables.queue}")

    def check_complete_rows(self) -> None:
        """Raise DivergedError if a complete row lacks the field that no event carries."""
        for each, known in self.job.tables.mirrored.items():
            row = known.record
            if row.is_complete and not row.is_deleted and row.values[NAMED - 1] != photo_of(each):
                raise DivergedError(f"{each}: {row} is called complete")

    def compare(self, columns: int, leave_out: AbstractSet[str] = frozenset()) -> None:
        """Raise DivergedError if the rows of the mirror differ from the records of the org."""
        rows = {i: each.record for i, each in self.job.tables.mirrored.items()}
        live = {i: row for i, row in rows.items() if not row.is_deleted and i not in leave_out}
        truth = set(self.org.ids()) - leave_out
        if live.keys() != truth:
            raise DivergedError(f"{sorted(live)} is not {sorted(truth)}")
        for each, row in live.items():
            told, there = tuple(row.values[:columns]), self.org.value(each)[:columns]
            if told != there or row.reread_reason is not None or not row.is_complete:
                raise DivergedError(f"{each}: {row} is not {there}")
