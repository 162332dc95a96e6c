"""A model of a mirror's job: a raw table, a log of reads, tables with commits, and crashes. All
decisions are made by the code under test.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime

from sfpubsub.rest.grants import Finding, Grant, Held, checked
from sfpubsub.spark.records import merging, reads
from sfpubsub.spark.records.fold import Change, Cue, ObjectCue, Reason, Record
from sfpubsub.spark.records.merging import Mirrored, Outcome
from sfpubsub.spark.records.reads import AsOf, DurableState, Entry, Read, Row
from sfpubsub.spark.records.rows import start_of
from tests.spark.records.org_model import LONGEST, OVERFLOW_ID, Org, Sent, time_of

# Maximum staleness of responses, in ticks: equal to the margin, the worst case for the rules.
STALENESS = 3

# Earlier than every stamp.
_BEFORE = time_of(-200)

# Id ranges of the two pieces in which an object is read.
PIECES = (("", "001004"), ("001004", "~"))


@dataclass(frozen=True)
class Request:
    """A read request in flight: for records by id, or for one piece (id range) of the object."""

    sent: int
    as_of: AsOf
    epoch: int
    ids: tuple[str, ...] = ()
    piece: int | None = None
    stamps_from: datetime | None = None  # for a read of changed records: their lowest stamp


@dataclass(frozen=True)
class Answer:
    """The org's response to a request: its rows, and the read to which they belong."""

    request: Request
    read: Read
    rows: dict[str, Row]


@dataclass(frozen=True)
class Version:
    """A row of the history table."""

    record: Record
    start: datetime | None
    end: datetime | None
    from_read: bool


@dataclass(frozen=True)
class Tables:
    """The state that a commit makes durable."""

    mirrored: dict[str, Mirrored] = field(default_factory=dict)
    history: dict[str, tuple[Version, ...]] = field(default_factory=dict)
    queue: frozenset[Entry] = frozenset()
    position: int = 0  # number of raw rows that were applied
    merged: int = 0  # number of answers that were merged
    through: datetime = _BEFORE  # when the last merged read of changed records was sent
    pieces: dict[int, Read] = field(default_factory=dict)  # the newest merged read of each piece


def seen_in(known: Mirrored | None) -> tuple[object, ...] | None:
    """Return what readers of a table see of a record."""
    return None if known is None else (known.record.is_deleted, *known.record.values)


def continued(
    versions: tuple[Version, ...],
    outcome: Outcome,
    before: Mirrored | None,
    read: Read | None = None,
) -> tuple[Version, ...]:
    """Return the versions of a record after an outcome."""
    for record in outcome.versions:
        start = start_of(record, outcome, before, read)
        if versions:
            times = [each for each in (versions[-1].start, start) if each is not None]
            versions = (*versions[:-1], replace(versions[-1], end=max(times)))
        versions = (*versions, Version(record, start, None, read is not None))
    return versions


class Job:
    """A simulated job that mirrors one object.

    Args:
        org: The org.
        margin: Maximum staleness of responses that the job assumes, in ticks.
        twice: Whether a record must be absent twice.
        most: Number of rows that a merge may delete by absence; more are parked.
        overlap: Longest transaction that the job assumes, in ticks.
        ties: Whether a page can begin among records with the same stamp.
    """

    def __init__(
        self,
        org: Org,
        margin: int,
        *,
        twice: bool = True,
        most: int = 1,
        overlap: int = LONGEST,
        ties: bool = True,
    ) -> None:
        self.org, self.margin, self.twice, self.most = org, margin, twice, most
        self.held = Held(Grant.of([str(org.grant)]))  # durable
        self.number = 0  # of the newest entry without an event
        self.left_out: dict[str, bool] = {}  # ids that one response lacks; whether it was sent
        self.raw: list[tuple[Sent, bool]] = []  # events, and whether they can be decoded
        self.undecoded: list[Sent] = []
        self.delivered = 0
        self.answers: list[Answer] = []  # durable
        self.tables = self.durable = Tables()
        self.notes: list[DurableState] = []
        self.requests: list[Request] = []
        self.overlap, self.ties = overlap, ties
        self.seen = reads.Seen()
        self.ask(Reason.ASKED)

    # The stream.

    def record_state(self) -> None:
        """Record which raw rows and requests are durable at the current time; called after every
        change.
        """
        self.notes.append(DurableState(self.org.now, AsOf(len(self.raw) - 1, self.number)))

    def deliver(self, count: int, *, decoded: bool = True) -> None:
        """Append the next *count* events to the raw table.

        If *decoded* is false, all of them except overflow events are undecodable.
        """
        for event in self.org.bus[self.delivered : self.delivered + count]:
            is_good = decoded or event.change_type == "GAP_OVERFLOW"
            self.raw.append((event, is_good))
            self.delivered += 1
            if not is_good:
                self.undecoded.append(event)
        self.record_state()

    def redrive(self) -> None:
        """Append the undecodable events again, now decoded, and request reads of their records.

        The reads are needed because an earlier read may be newer than these late events.
        """
        again, self.undecoded = self.undecoded, []
        self.raw += [(event, True) for event in again]
        self.record_state()
        for record_id in sorted({each for event in again for each in event.record_ids}):
            self.ask(Reason.ASKED, record_id)

    def lose_position(self) -> None:
        """Lose the position and continue after the newest event; undelivered events are lost, and a
        gap is reported.
        """
        self.delivered = len(self.org.bus)
        self.ask(Reason.GAP)

    # The queue.

    def ask(self, reason: Reason, record_id: str | None = None) -> None:
        """Durably queue a reread of one record, or of all records if *record_id* is None."""
        cue = Cue(reason, None, None, len(self.raw) - 1)
        self.number += 1
        entry = Entry(record_id, cue, self.number)
        self.tables = replace(self.tables, queue=self.tables.queue | {entry})
        self.durable = replace(self.durable, queue=self.durable.queue | {entry})
        self.record_state()

    def sweep(self) -> None:
        """Compare the ids of live records with the org's, and queue a reread of each that only one
        side has.
        """
        live = {i for i, each in self.tables.mirrored.items() if not each.record.is_deleted}
        for each in sorted(nominated(live, set(self.org.ids()))):
            self.ask(Reason.SWEEP, each)

    def entries_about(self, record_id: str) -> list[Entry]:
        """Return the open queue entries that concern a record."""
        return [each for each in self.tables.queue if each.concerns(record_id)]

    # The user's right to see every record.

    def check_rights(self) -> None:
        """Check the right, and have all records read again if it was withdrawn for some time."""
        now = Grant.of([str(self.org.grant)] if self.org.grant else [])
        finding, held = checked(self.held, now)
        if finding is Finding.LOST:
            self.held = held
            finding, held = checked(held, now)
        if finding is Finding.BACK:
            for name in ("tables", "durable"):
                found: Tables = getattr(self, name)
                queue = {each for each in found.queue if not each.cue.reason.is_about_absence}
                setattr(self, name, replace(found, queue=frozenset(queue)))
            self.ask(Reason.GAP)
        self.held = held

    def confirm(self) -> None:
        """Confirm that the parked records may be deleted."""
        for each in [each for each in self.tables.queue if each.cue.reason is Reason.PARKED]:
            self.ask(Reason.CONFIRMED, each.record_id)

    def leave_out(self, record_id: str) -> None:
        """Let one response lack a record that exists, once in the life of the job.

        The record must be known to exist: of others, only a sweep finds that a read lacked them.
        """
        self.left_out.setdefault(record_id, False)

    # Reads.

    def send(self, *, ids: tuple[str, ...] = (), pieces: tuple[int, ...] = ()) -> bool:
        """Send requests to read records by id, or to read pieces (id ranges) of the object.

        Returns:
            False if nothing was sent, because no recorded state is at least `margin` ticks old yet,
            or because the user may not see every record.
        """
        now = self.org.now
        if self.is_reading_changes:
            return False
        self.check_rights()
        as_of = reads.as_of(self.notes, now, self.margin)
        if as_of is None or not self.held.grant:
            return False
        epoch = self.held.epoch
        found = [Request(now, as_of, epoch, piece=each) for each in pieces]
        self.requests += found or [Request(now, as_of, epoch, ids)]
        return True

    def send_for_queue(self) -> bool:
        """Send one request for all queued records by id; return False if `send` did not send it."""
        queued = {
            each.record_id
            for each in self.tables.queue
            if each.record_id and not each.is_about_all and each.cue.reason is not Reason.PARKED
        }
        return self.send(ids=tuple(sorted(queued)))

    def send_for_changes(self) -> None:
        """Send a request for all records that have changed since the last such read."""
        if self.requests or self.tables.merged < len(self.answers):
            return  # the reads of an object follow each other
        first = reads.changed_from(self.tables.through, self.overlap, self.margin)
        if self.send():
            self.requests[-1] = replace(self.requests[-1], stamps_from=first)

    @property
    def is_reading_changes(self) -> bool:
        """Whether a read of changed records is in flight."""
        return any(each.stamps_from is not None for each in self.requests)

    def _changed(self, request: Request, rng: random.Random) -> dict[str, Row | None]:
        """Return the changed records, in pages of two, each as of another time."""
        found: dict[str, Row | None] = {}
        last: tuple[datetime | None, str] = (request.stamps_from, "")
        while True:
            rows = {i: self.org.row(i, request.sent, STALENESS, rng) for i in self.org.past}
            there = sorted((row.stamp, i, row) for i, row in rows.items() if row is not None)
            page = [each for each in there if each[:2] > last][:2]
            for stamp, record_id, row in page:
                key = repr((row.values, row.is_deleted)).encode()
                if self.seen.is_new(record_id, key, stamp):
                    found[record_id] = row
            if len(page) < 2:
                return found
            last = page[-1][:2] if self.ties else (page[-1][0], "~")

    def answer(self, request: Request, rng: random.Random) -> None:
        """Respond to a request as the org would, possibly with stale rows, and store the response
        durably.
        """
        ids = list(request.ids)
        if request.piece is not None:
            first, end = PIECES[request.piece]
            ids = [each for each in self.org.past if first <= each < end]
        rows = {i: self.org.row(i, request.sent, STALENESS, rng) for i in ids}
        if request.stamps_from is not None:
            rows = self._changed(request, rng)
        left_out = {} if request.stamps_from is not None else self.left_out
        for each, was_sent in left_out.items():
            if each in rows and not was_sent and self._is_live(each):
                self.left_out[each], rows[each] = True, None
        found = {i: row for i, row in rows.items() if row is not None}
        if (
            request.piece is None and request.stamps_from is None
        ):  # a read by id does not return deleted records
            found = {i: row for i, row in found.items() if not row.is_deleted}
        known = [event for event, good in self.raw[: request.as_of.ingest_seq + 1] if good]
        since = max((event.change(0).order for event in known), default=None)
        read = Read(request.as_of, since, time_of(self.org.now))
        self.answers.append(Answer(request, read, found))
        self.requests.remove(request)

    def _is_live(self, record_id: str) -> bool:
        """Return whether the tables have a record that counts as existing, even after a crash."""
        found = [each.mirrored.get(record_id) for each in (self.tables, self.durable)]
        return all(each is not None and not each.record.is_deleted for each in found)

    # Merging.

    def apply_rows(self, end: int) -> None:
        """Apply to the tables all raw rows from their position up to *end* (exclusive)."""
        start = self.tables.position
        if end <= start:
            return
        cues = self._about_all(start, end)
        queue = {Entry(f"{each.prefix}*" if each.prefix else None, each.cue) for each in cues}
        queue |= self.tables.queue
        named = {i for event, good in self.raw[start:end] if good for i in event.record_ids}
        mirrored, history = dict(self.tables.mirrored), dict(self.tables.history)
        named = {each for each in named if not each.endswith("*")}
        for record_id in sorted({*named, *mirrored} - {OVERFLOW_ID}):
            marks = [each.cue for each in cues if record_id.startswith(each.prefix)]
            changes = self._changes(record_id, start, end)
            known = mirrored.get(record_id)
            outcome = merging.apply_changes(
                self.org.fields, record_id, known, changes, marks, self._newest(record_id)
            )
            queue |= set(outcome.added)
            if outcome.mirrored is not None:
                mirrored[record_id] = outcome.mirrored
            history[record_id] = continued(history.get(record_id, ()), outcome, known)
        self.tables = replace(
            self.tables,
            mirrored=mirrored,
            history=history,
            queue=frozenset(queue),
            position=end,
        )

    def _about_all(self, start: int, end: int) -> list[ObjectCue]:
        found = []
        for seq, (event, good) in enumerate(self.raw[start:end], start):
            if not good:
                found.append(ObjectCue("", Cue(Reason.GAP, None, None, seq)))
                continue
            cue = Cue(Reason.GAP, event.change_type, event.timestamp, seq)
            entries_about = [ObjectCue.of(each, cue) for each in event.record_ids]
            found += [each for each in entries_about if each is not None]
        return found

    def _changes(self, record_id: str, start: int, end: int) -> list[Change]:
        rows = enumerate(self.raw[start:end], start)
        return [
            event.change(i) for i, (event, good) in rows if good and record_id in event.record_ids
        ]

    def merge(self) -> None:
        """Merge the next stored response into the tables."""
        answer = self.answers[self.tables.merged]
        since = answer.read.as_of.ingest_seq + 1
        self.apply_rows(since)
        self.check_rights()
        stands = bool(self.held.grant) and answer.request.epoch == self.held.epoch
        by_id = answer.request.piece is None
        changed = answer.request.stamps_from is not None
        if by_id and not stands and not changed:
            self.tables = replace(self.tables, merged=self.tables.merged + 1)
            return
        ids = set(answer.request.ids) | answer.rows.keys()
        if not by_id and stands:
            first, end = PIECES[answer.request.piece or 0]
            ids |= {each for each in self.tables.mirrored if first <= each < end}
        mirrored, queue = dict(self.tables.mirrored), set(self.tables.queue)
        outcomes: dict[str, Outcome] = {}
        for record_id in sorted(ids):
            known, entries = mirrored.get(record_id), self.entries_about(record_id)
            row, newest = answer.rows.get(record_id), self._newest(record_id)
            if row is None:
                outcome = merging.merge_absence(
                    record_id, known, answer.read, entries, newest, by_id=by_id, twice=self.twice
                )
            else:
                changes = self._changes(record_id, since, self.tables.position)
                outcome = merging.merge_row(
                    self.org.fields, record_id, known, answer.read, row, changes, entries, newest
                )
            outcomes[record_id] = outcome
        too_many = sum(each.by_absence for each in outcomes.values()) > self.most
        self.number += 1
        history = dict(self.tables.history)
        for record_id, made in outcomes.items():
            is_parked = made.by_absence and too_many
            outcome = merging.parked(record_id, made) if is_parked else made
            added = {reads.numbered(each, self.number) for each in outcome.added}
            queue = (queue | added) - set(outcome.healed)
            known, new = self.tables.mirrored.get(record_id), outcome.mirrored
            assert len(outcome.versions) == (new is not None and seen_in(known) != seen_in(new))
            if new is not None:
                mirrored[record_id] = new
            history[record_id] = continued(history.get(record_id, ()), outcome, known, answer.read)
        self.record_state()
        pieces = dict(self.tables.pieces)
        if answer.request.piece is not None and stands:
            known_read = pieces.setdefault(answer.request.piece, answer.read)
            if known_read.as_of < answer.read.as_of:
                pieces[answer.request.piece] = answer.read
        if len(pieces) == len(PIECES):
            queue -= set(healed_by_object(queue, list(pieces.values())))
        merged = self.tables.merged + 1
        through = self.tables.through
        if changed and stands:
            through = max(through, time_of(answer.request.sent))
        self.tables = replace(
            self.tables,
            mirrored=mirrored,
            history=history,
            queue=frozenset(queue),
            merged=merged,
            through=through,
            pieces=pieces,
        )

    def _newest(self, record_id: str) -> Read | None:
        """Return the newest merged read of the record's piece (id range), or None without one."""
        for number, (first, end) in enumerate(PIECES):
            if first <= record_id < end and number in self.tables.pieces:
                return self.tables.pieces[number]
        return None

    def commit(self) -> None:
        """Make the current tables durable."""
        self.durable = self.tables

    def crash(self, *, with_queue: bool) -> None:
        """Simulate a crash: discard the requests in flight and everything that is not committed.

        Args:
            with_queue: Whether the queue entries of the next commit had already been written.
        """
        added = self.tables.queue - self.durable.queue if with_queue else frozenset()
        self.tables = replace(self.durable, queue=self.durable.queue | added)
        self.durable = self.tables
        self.requests, self.notes, self.seen = [], [], reads.Seen()
        self.record_state()

    def check_history(self) -> None:
        """Check that the last version of each record is what its row shows, and that versions
        follow each other without a hole.
        """
        for record_id, known in self.tables.mirrored.items():
            versions = self.tables.history[record_id]
            assert seen_in(Mirrored(versions[-1].record)) == seen_in(known)
            assert versions[-1].end is None
            for one, next_one in itertools.pairwise(versions):
                assert one.end is not None
                assert next_one.start is not None
                assert one.start is None or one.start <= one.end
                # Only a commit that arrives after a read of an object without events is earlier.
                assert one.end == next_one.start or one.from_read


def healed_by_object(entries: Iterable[Entry], pieces: Sequence[Read]) -> tuple[Entry, ...]:
    """Return those *entries* that a read of the whole object has closed.

    Args:
        entries: Open entries. Those about a single record are ignored, even if the read closed
            them.
        pieces: The merged pieces, which together contain every record of the object. An entry is
            closed only if every piece closes it.
    """
    return tuple(
        each
        for each in entries
        if each.is_about_all and all(reads.heals(read, each) for read in pieces)
    )


def nominated(live: AbstractSet[str], swept: AbstractSet[str]) -> AbstractSet[str]:
    """Return the ids of the records to read: those in the sweep or the table, but not in both.

    A sweep alone proves nothing: it has no as-of, takes a long time, and may miss records that its
    user cannot see. So these records are then read by id.

    Args:
        live: Ids of the table's records that are not deleted.
        swept: Ids of the org's records.
    """
    return live ^ swept
