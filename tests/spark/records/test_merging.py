"""Tests of a mirror's merge rule against a model of an org: the mirror converges, but no longer
does if any single part of the rule is removed. The as-of of a read says which events it certainly
contains, and the margin is the longest lag of the org's responses.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sfpubsub.rest.grants import Finding, Grant, Held
from sfpubsub.spark.records import merging, reads
from sfpubsub.spark.records.fold import Change, Cue, Reason, Record
from sfpubsub.spark.records.merging import (
    Mirrored,
    Outcome,
    apply_changes,
    merge_absence,
    merge_row,
)
from sfpubsub.spark.records.reads import AsOf, DurableState, Entry, Read, Row, heals
from sfpubsub.spark.records.rows import start_of
from tests.spark.records import job_model, mirror_model
from tests.spark.records.job_model import STALENESS, healed_by_object
from tests.spark.records.mirror_model import DivergedError, MirrorMachine
from tests.spark.records.org_model import ALL_REPORTED, FIELDS, Org, time_of

X = "001001"


# The same examples in every run. Any counterexample is sufficient, so none is shrunk.
BOUNDED = settings(
    max_examples=1000,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class TestMirror(MirrorMachine.TestCase):
    """Once the org is quiet, all events are applied and a margin has passed, one round of reads
    empties the queue, and the mirror equals the org except for formulas and records purged without
    an event. A refresh of formulas and a sweep (comparison of all ids) correct these as well.
    """

    settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@pytest.mark.slow
def test_mirror_converges_in_long_examples():
    """The convergence that `TestMirror` checks holds in many more and longer examples."""
    many = settings(max_examples=1500, stateful_step_count=100, deadline=None)
    run_state_machine_as_test(MirrorMachine, settings=many)


def test_examples_cover_every_reason_for_a_reread():
    """The model's examples cover every reason to reread a record, except a restored raw table
    and a value that does not fit its column.
    """

    class Machine(MirrorMachine):
        seen: ClassVar[set[Reason]] = set()

    run_state_machine_as_test(Machine, settings=settings(BOUNDED, max_examples=500))
    assert Machine.seen == set(Reason) - {Reason.UNFIT}


def _anything(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> bool:
    return False


class NoMargin(MirrorMachine):
    """A mirror without a margin: it assumes that a response contains everything that was durable
    when the read was requested.
    """

    margin = 0


class Once(MirrorMachine):
    """A mirror that deletes a row after one read that did not return it."""

    twice = False


class Reliable(Once):
    """The same, but no response lacks a record for no reason. So one read is enough, if it may
    count.
    """

    def leave_out(self, which: int) -> None:
        """Do nothing."""


class Calm(MirrorMachine):
    """A mirror whose events report every change completely, except for those without an event. So
    few reads happen that would correct a row by chance.
    """

    def write_with_incomplete_events(self, kind: str, which: int) -> None:
        """Do nothing."""

    def fail_to_decode(self, is_again: bool) -> None:
        """Do nothing."""

    def turn_rights(self, turns: int, is_checked: bool) -> None:
        """Do nothing."""

    def ask(self, what: str, which: int) -> None:
        """Do nothing."""


class NoStamps(MirrorMachine):
    """A mirror of an object without SystemModstamp, so that every change has an event."""

    has_stamps = False

    def write_silently(self, kind: str, which: int, duration: int = 0) -> None:
        """Do nothing."""

    def find_silent_change(self, which: int, is_told: bool, then: str) -> None:
        """Do nothing."""


class NoOverlap(MirrorMachine):
    """A mirror that assumes that a transaction is visible at once."""

    overlap = -STALENESS


class NoTies(MirrorMachine):
    """A mirror whose pages begin after the last stamp, not after the last record."""

    ties = False


def _is_new_stamp(seen: reads.Seen, record_id: str, _: bytes, stamp: datetime) -> bool:
    is_new = seen._rows.get(record_id) != (stamp, b"")
    seen._rows[record_id] = stamp, b""
    return is_new


def _held(held: Held, _: Grant) -> tuple[Finding, Held]:
    return Finding.HELD, held


# The part whose absence shows only after thousands of steps.
RARE = "older reads"

# Part of the rule -> the machine without it, and the replacements of functions.
WITHOUT: dict[str, tuple[type[MirrorMachine], list[tuple[Any, str, Any]]]] = {
    "margin": (NoMargin, []),
    "cues": (MirrorMachine, [(reads, "heals", _anything), (merging, "heals", _anything)]),
    "absence": (Reliable, [(merging, "proves_deletion", _anything)]),
    "rights": (MirrorMachine, [(job_model, "checked", _held)]),
    "twice": (Once, []),
    "stamps": (Calm, [(merging, "is_older", _nothing)]),
    "untold": (Calm, [(merging, "is_contained", _nothing)]),
    "overlap": (NoOverlap, []),
    "ties": (NoTies, []),
    "values": (Calm, [(reads.Seen, "is_new", _is_new_stamp)]),
    RARE: (NoStamps, [(merging, "is_outdated", _nothing)]),
    "unreported": (MirrorMachine, [(mirror_model, "FIELDS", replace(FIELDS, unreported=()))]),
}


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.slow if part == RARE else ()) for part in WITHOUT],
)
def test_the_mirror_diverges_if_any_part_of_the_rule_is_removed(
    part: str, monkeypatch: pytest.MonkeyPatch
):
    """If any single part of the merge rule is removed, the model finds an example in which the
    mirror differs from the org, so no part is redundant.
    """
    machine, patches = WITHOUT[part]
    for module, name, instead in patches:
        monkeypatch.setattr(module, name, instead)
    bounded = settings(BOUNDED, stateful_step_count=60) if part == RARE else BOUNDED
    with pytest.raises(DivergedError):
        run_state_machine_as_test(machine, settings=bounded)


# Single properties of the rule, in a few steps each.


def read(seq: int, *, asked: int = 0, since: int | None = None, until: int = 100) -> Read:
    """Return a read whose as-of is the raw row *seq* and the request number *asked*.

    It contains every change up to tick *since* and none after tick *until*. If *since* is None, no
    event was known before the read.
    """
    begun = None if since is None else (time_of(since), 0, 0)
    return Read(AsOf(seq, asked), begun, time_of(until))


def update(seq: int, phone: str, *, tick: int | None = None) -> Change:
    """Return an UPDATE of the phone number in raw row *seq*, made at *tick* (default: *seq*)."""
    when = time_of(seq if tick is None else tick)
    return Change("UPDATE", when, seq, 1, seq, (phone, *[None] * 4), ["Phone"])


def change(kind: str, seq: int, *values: Any) -> Change:
    """Return a change of the given *kind*, such as CREATE, at tick *seq*.

    Without *values*, all fields are null.
    """
    return Change(kind, time_of(seq), seq, 1, seq, values or (None,) * 5)


def diffs(*lines: str) -> tuple[list[Change], list[str]]:
    """Return numbered changes that each append a line to a text, and every version of that text."""
    org, texts = Org(), []
    org.create(before=True)
    for line in lines:
        texts.append(org.value(X)[2])
        org.now += 1
        org.commit()
        org.update_by_diff(X, line)
    texts.append(org.value(X)[2])
    found = [event.change(seq) for seq, event in enumerate(org.bus, 1)]
    return found, texts


def known(phone: str, seq: int) -> Mirrored:
    """Return a record that was created by an event at tick *seq*."""
    created = apply_changes(FIELDS, X, None, [change("CREATE", seq, phone, *[None] * 4)], [])
    assert created.mirrored is not None
    return created.mirrored


def test_as_of_is_what_was_durable_one_margin_earlier():
    """A read's as-of is the last state of the tables that was durable one margin (the longest lag
    of the org's responses) before the request. Until a margin has passed, a read has no as-of.
    """
    notes = [
        DurableState(10.0, AsOf(5)),
        DurableState(12.0, AsOf(7)),
        DurableState(14.0, AsOf(7, 1)),
    ]
    assert reads.as_of(notes, 15.0, 3.0) == AsOf(7)
    assert reads.as_of(notes, 17.0, 3.0) == AsOf(7, 1)
    assert reads.as_of(notes, 12.9, 3.0) is None


def test_event_after_the_as_of_is_applied_to_an_older_row():
    """A read's row may be older than the known events.

    The events after the read's as-of are applied to it, so nothing is reverted.
    """
    changes = [update(6, "6"), update(7, "7")]
    before = apply_changes(FIELDS, X, known("1", 1), changes, []).mirrored
    after = merge_row(FIELDS, X, before, read(5), Row(("1", "s", "n", "p", "f")), changes, [])
    assert after.mirrored is not None
    assert after.mirrored.record.values == ["7", "s", "n", "p", "f"]
    assert after.added == ()


def test_read_from_before_a_gap_event_leaves_its_entry_open():
    """The record stays marked for a reread until a read whose as-of includes the gap event is
    merged.
    """
    gap = change("GAP_UPDATE", 6)
    first = apply_changes(FIELDS, X, known("1", 1), [gap], [])
    (entry,) = first.added
    row = Row(("2", *[None] * 4))
    early = merge_row(FIELDS, X, first.mirrored, read(5), row, [gap], [entry])
    assert (early.added, early.healed) == ((), ())
    assert early.mirrored is not None
    assert early.mirrored.record.reread_reason is Reason.GAP
    late = merge_row(FIELDS, X, early.mirrored, read(6), row, [], [entry])
    assert late.healed == (entry,)
    assert late.mirrored is not None
    assert late.mirrored.record.reread_reason is None


def test_entry_is_not_closed_by_a_read_requested_before_it():
    """A queue entry without an event, such as a formula refresh, is closed only by a read whose
    as-of includes the entry's request number.

    An entry about all records is closed only if every part of the object's read meets that
    condition.
    """
    entry = Entry(None, Cue(Reason.FORMULA, None, None, 5), asked=2)
    assert not heals(read(5, asked=1), entry)
    assert heals(read(5, asked=2), entry)
    pieces = [read(5, asked=2), read(9, asked=1)]
    assert healed_by_object([entry], pieces) == ()
    assert healed_by_object([entry], pieces[:1]) == (entry,)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_diff_included_in_a_read_is_not_applied_twice(place: int):
    """Whichever version of a text a read returns, applying the diffs yields the last version, and
    no reread is queued.
    """
    changes, texts = diffs("a", "b", "c")
    row = Row(("p1", None, texts[place], None, None))
    after = merge_row(FIELDS, X, None, read(0), row, changes, [])
    assert after.mirrored is not None
    assert after.mirrored.record.values[2] == texts[-1]
    assert after.added == ()


def test_diff_that_does_not_match_queues_a_reread():
    """If the known text differs from the org's, the next diff does not match, and the record is
    queued for a reread.
    """
    changes, _ = diffs("a")
    row = Row(("p1", None, "another text", None, None))
    base = merge_row(FIELDS, X, None, read(0, until=0), row, [], []).mirrored
    (entry,) = apply_changes(FIELDS, X, base, changes, []).added
    assert entry.cue.reason is Reason.DIFF


def test_constantly_changing_record_leaves_the_queue():
    """If a text changes in every tick and the record is reread once per margin, each read closes
    the open entry and adds no new one.
    """
    changes, texts = diffs(*"abcdefghij")
    first = apply_changes(FIELDS, X, None, changes[:1], [])
    entries, mirrored = list(first.added), first.mirrored
    for now in (4, 7, 10):
        mirrored = apply_changes(FIELDS, X, mirrored, changes[now - 3 : now], []).mirrored
        row = Row(
            ("p1", None, texts[now], None, None)
        )  # also contains what changed within the margin
        since = changes[now - 3 : now]
        outcome = merge_row(FIELDS, X, mirrored, read(now - 3, until=now), row, since, entries)
        entries = [each for each in (*entries, *outcome.added) if each not in outcome.healed]
        mirrored = outcome.mirrored
        assert entries == []
        assert mirrored is not None
        assert mirrored.record.reread_reason is None
        assert mirrored.record.values[2] == texts[now]


def absent(known_row: Mirrored | None, by: Read, *entries: Entry, by_id: bool = True) -> Outcome:
    """Return the outcome of a read that did not return the record."""
    return merge_absence(X, known_row, by, entries, by_id=by_id)


def marked(row: Mirrored | None = None) -> tuple[Mirrored, Entry]:
    """Return a record that a first read, with the as-of 5, did not return, and its entry."""
    first = absent(row or known("1", 1), read(5))
    assert first.mirrored is not None
    assert not first.mirrored.record.is_deleted
    assert first.mirrored.record.reread_reason is Reason.ABSENT
    (entry,) = first.added
    return first.mirrored, reads.numbered(entry, 3)


def test_absence_counts_only_after_the_last_event():
    """A record that a read does not return is left alone if it has an event after the as-of."""
    created = known("1", 6)
    assert absent(created, read(5)).mirrored == created
    late = Entry(X, Cue(Reason.LATE, "UNDELETE", time_of(3), 7))
    assert absent(created, read(6), late).mirrored == created
    gone = absent(created, read(7), late)
    assert gone.healed == (late,)
    assert gone.mirrored is not None
    assert gone.mirrored.record.reread_reason is Reason.ABSENT


def test_a_record_left_out_of_a_whole_read_is_read_once_more():
    """A read of all records closes the entry about all, also for a record that it has left out. If
    an event keeps this absence from counting, only a further read can tell the record's values.
    """
    changed = known("1", 6)
    about_all = Entry(None, Cue(Reason.GAP, None, None, 4))
    found = absent(changed, read(5), about_all, by_id=False)
    assert found.mirrored == changed
    assert [(each.record_id, each.cue.reason) for each in found.added] == [(X, Reason.SWEEP)]
    assert absent(changed, read(5), by_id=False).added == ()


def test_a_row_is_deleted_by_absence_only_after_two_reads():
    """The first read only marks the row; the second must request the record by its id, and begin a
    margin after the mark was durable.
    """
    row, entry = marked()
    early = absent(row, read(5, asked=2), entry)
    assert (early.added, early.healed) == ((), ())
    assert early.mirrored is not None
    assert not early.mirrored.record.is_deleted
    again = absent(row, read(5, asked=3), entry, by_id=False)
    assert again.mirrored is not None
    assert not again.mirrored.record.is_deleted
    assert [each.cue.reason for each in again.added] == [Reason.ABSENT]
    gone = absent(row, read(5, asked=3), entry)
    assert gone.by_absence
    assert gone.healed == (entry,)
    assert gone.mirrored is not None
    record = gone.mirrored.record
    assert (record.is_deleted, record.reread_reason) == (True, None)
    assert record.is_complete == known("1", 1).record.is_complete
    assert record.values[0] == "1"


@pytest.mark.parametrize("by", ["event", "late event", "read", "create"])
def test_a_sign_of_life_voids_the_first_absence(by: str):
    """After an event about the record, or a read that returned it, two further reads are needed."""
    row, entry = marked()
    entries = [entry]
    if by == "read":
        found = Row(("2", *[None] * 4))
        new = merge_row(FIELDS, X, row, read(5, asked=2), found, [], entries).mirrored
    elif by == "late event":
        new = row
        entries.append(Entry(X, Cue(Reason.LATE, "UPDATE", time_of(3), 6)))
    else:
        event = update(6, "2") if by == "event" else change("CREATE", 6, "2", *[None] * 4)
        new = apply_changes(FIELDS, X, row, [event], []).mirrored
    after = absent(new, read(7, asked=3), *entries)
    assert after.mirrored is not None
    assert not after.mirrored.record.is_deleted
    assert [each.cue.reason for each in after.added] == [Reason.ABSENT]


def test_deletion_by_an_event_needs_no_second_read():
    """A row that an event deletes while it is marked is deleted, and complete if it was before."""
    whole = merge_row(FIELDS, X, None, read(4), Row(("1",) * 5), [], []).mirrored
    row, entry = marked(whole)
    deleted = apply_changes(FIELDS, X, row, [change("DELETE", 6)], []).mirrored
    assert deleted is not None
    assert (deleted.record.is_deleted, deleted.record.is_complete) == (True, True)
    after = absent(deleted, read(6, asked=3), entry)
    assert (after.by_absence, after.added, after.healed) == (False, (), (entry,))


def test_a_parked_row_is_deleted_only_when_confirmed():
    """No further read deletes it, until a user confirms, and a read after that misses it, too."""
    row, entry = marked()
    held = merging.parked(X, absent(row, read(5, asked=3), entry))
    assert held.mirrored is not None
    assert not held.mirrored.record.is_deleted
    kept = reads.numbered(held.added[0], 4)
    assert kept.cue.reason is Reason.PARKED
    again = absent(held.mirrored, read(5, asked=4), kept)
    assert again.mirrored is not None
    assert again.mirrored.record.reread_reason is Reason.PARKED
    assert [each.cue.reason for each in again.added] == [Reason.PARKED]
    confirmed = Entry(X, Cue(Reason.CONFIRMED, None, None, 5), asked=5)
    gone = absent(held.mirrored, read(5, asked=5), kept, confirmed)
    assert gone.mirrored is not None
    assert (gone.mirrored.record.is_deleted, gone.by_absence) == (True, False)
    back = merge_row(
        FIELDS, X, held.mirrored, read(5, asked=5), Row(("1",) * 5), [], [kept, confirmed]
    )
    assert back.mirrored is not None
    assert back.mirrored.record.reread_reason is None
    assert set(back.healed) == {kept, confirmed}


def test_an_older_read_changes_nothing():
    """A read that is merged after a newer one, such as part of a long Bulk job, neither changes nor
    deletes a record.
    """
    newer = merge_row(FIELDS, X, None, read(9), Row(("9", *[None] * 4)), [], []).mirrored
    row = Row(("5", *[None] * 4))
    changes = [update(6, "6")]
    assert merge_row(FIELDS, X, newer, read(5), row, changes, []).mirrored == newer
    assert absent(newer, read(5)).mirrored == newer


@pytest.mark.parametrize("seed", range(8))
def test_older_read_does_not_restore_a_record(seed: int):
    """If a record was deleted in an overflow, without an event of its own, and a newer read did not
    return it, a late response to an older read does not add it again.
    """
    machine = MirrorMachine()
    machine.begin(seed=seed, records=2, is_read=False)
    machine.wait(ticks=3)
    machine.send(what="both")
    machine.wait(ticks=1)
    machine.write_with_incomplete_events(kind="OVERFLOW", which=0)  # deletes the first record
    machine.write_with_incomplete_events(kind="PURGE", which=0)
    machine.rest(redrives=True, answers=False)
    assert X not in machine.job.tables.mirrored
    machine.teardown()


def test_late_update_does_not_revert_an_overflow():
    """If a read reflects an overflow, an earlier update that is decoded only after that read does
    not revert the row.

    The record has no newer event of its own that would show that the update is late.
    """
    machine = MirrorMachine()
    machine.begin(seed=0, records=1, is_read=True)
    machine.write(kind="UPDATE", which=0, is_next=True)
    machine.fail_to_decode(is_again=False)
    machine.write_with_incomplete_events(kind="OVERFLOW", which=0)
    machine.rest(redrives=False, answers=True)
    machine.teardown()


def test_late_create_does_not_restore_a_record():
    """A CREATE event that is decoded only after a read has shown that the record is gone does not
    add the record.
    """
    machine = MirrorMachine()
    machine.begin(seed=0, records=0, is_read=False)
    machine.write(kind="CREATE", which=0, is_next=True)
    machine.fail_to_decode(is_again=False)
    machine.write_with_incomplete_events(kind="PURGE", which=0)
    machine.write(kind="CREATE", which=0, is_next=True)
    machine.rest(redrives=False, answers=True)
    machine.teardown()


def test_event_older_than_the_read_is_late():
    """An event that is decoded after a newer read was merged is not applied, but queues a
    reread.
    """
    changed = Row(("by the overflow", *[None] * 4))
    base = merge_row(FIELDS, X, known("1", 1), read(9, since=8), changed, [], []).mirrored
    redriven = update(10, "older", tick=5)
    after = apply_changes(FIELDS, X, base, [redriven], [])
    assert after.mirrored is not None
    assert after.mirrored.record.values[0] == "by the overflow"
    assert [entry.cue.reason for entry in after.added] == [Reason.LATE]


def test_read_keeps_fields_that_it_did_not_select():
    """A read that did not select a field, because it was removed or hidden, leaves the values that
    known rows have in it; a row that is new has none.
    """
    row = Row(("2", None, None, "photo", None), unread=(1, 4))
    old = Mirrored(
        Record(("1", "s", "n", "p", "f"), False, True, None, None, None, None, 1, "READ")
    )
    after = merge_row(FIELDS, X, old, read(5), row, [], []).mirrored
    assert after is not None
    assert after.record.values == ["2", "s", None, "photo", "f"]
    new = merge_row(FIELDS, X, None, read(5), row, [], []).mirrored
    assert new is not None
    assert new.record.values == row.values


def test_value_that_does_not_fit_is_read_again_only_after_an_event():
    """A row with a value that does not fit its column is not complete. If an event had the value,
    the record is read once; a read with such a value asks for nothing, so that it does not repeat
    for ever, until an event reports another change of the record.
    """
    unfit = replace(change("CREATE", 1, "1", *[None] * 4), unfit=True)
    made = apply_changes(ALL_REPORTED, X, None, [unfit], [])
    (entry,) = made.added
    assert made.mirrored is not None
    record = made.mirrored.record
    assert (record.is_complete, record.reread_reason) == (False, Reason.UNFIT)
    row = Row(("1", *[None] * 4), unfit=True)
    found = merge_row(ALL_REPORTED, X, made.mirrored, read(1), row, [], [entry])
    assert (found.added, found.healed) == ((), (entry,))
    assert found.mirrored is not None
    assert not found.mirrored.record.is_complete
    after = apply_changes(ALL_REPORTED, X, found.mirrored, [update(2, "2")], [])
    assert [each.cue.reason for each in after.added] == [Reason.UNFIT]
    healed = merge_row(
        ALL_REPORTED, X, after.mirrored, read(2), replace(row, unfit=False), [], after.added
    )
    assert healed.mirrored is not None
    assert healed.mirrored.record.is_complete
    late = merge_row(ALL_REPORTED, X, None, read(1), row, [update(2, "2")], [])
    assert [each.cue.reason for each in late.added] == [Reason.UNFIT]


def test_create_keeps_fields_that_events_omit():
    """A CREATE event that is applied to a row from a read does not change the formula field, which
    it omits.
    """
    created = change("CREATE", 6, "1", *[None] * 4)
    row = Row(("1", None, None, "photo", "formula"))
    after = merge_row(FIELDS, X, None, read(5), row, [created], []).mirrored
    assert after is not None
    assert after.record.values == ["1", None, None, "photo", "formula"]


def test_created_row_is_complete_once_it_was_read():
    """If an object has fields that no event carries, a record made by a CREATE or UNDELETE event is
    queued for a read, and is not complete until then. An UNDELETE of a record that was complete
    keeps its values, and queues nothing.
    """
    for kind in ("CREATE", "UNDELETE"):
        made = apply_changes(FIELDS, X, None, [change(kind, 1, "1", *[None] * 4)], [])
        (entry,) = made.added
        assert made.mirrored is not None
        record = made.mirrored.record
        assert (entry.cue.reason, record.is_complete) == (Reason.UNREPORTED, False)
        assert record.reread_reason is None  # the fields that events carry are right
    row = Row(("1", None, None, "photo", "formula"))
    found = merge_row(FIELDS, X, made.mirrored, read(1), row, [], [entry])
    assert found.healed == (entry,)
    assert found.mirrored is not None
    assert found.mirrored.record.is_complete
    back = [change("DELETE", 2), change("UNDELETE", 3, "1", *[None] * 4)]
    after = apply_changes(FIELDS, X, found.mirrored, back, [])
    assert after.added == ()
    assert after.mirrored is not None
    assert after.mirrored.record.values == ["1", None, None, "photo", "formula"]
    assert after.mirrored.record.is_complete


def stamped(phone: str, tick: int, *, is_deleted: bool = False) -> Row:
    """Return a row whose stamp is *tick*."""
    return Row((phone, *[None] * 4), is_deleted, stamp=time_of(tick))


def test_a_row_never_replaces_one_with_a_later_stamp():
    """A read that began later may be answered from an older state. It leaves the row as it is, and
    if it closes an entry, another read is queued, because the entry may be about other fields.
    """
    entry = Entry(X, Cue(Reason.ASKED, None, None, 5), asked=1)
    newer = merge_row(FIELDS, X, None, read(5), stamped("new", 9), [], []).mirrored
    late = merge_row(FIELDS, X, newer, read(6, asked=1), stamped("old", 8), [], [entry])
    assert late.mirrored == newer
    assert late.healed == (entry,)
    assert [each.cue.reason for each in late.added] == [Reason.SWEEP]
    same = merge_row(FIELDS, X, newer, read(6), stamped("gone", 9, is_deleted=True), [], [])
    assert same.mirrored is not None
    assert same.mirrored.record.is_deleted


def test_a_version_that_a_read_finds_begins_when_the_record_changed():
    """A change without an event has the row's stamp, not the time of the event before it, from
    which the earlier version was valid. No version begins before the one that it follows.
    """
    first = known("1", 1)
    found = merge_row(FIELDS, X, first, read(5), stamped("2", 8), [], [])
    (version,) = found.versions
    assert start_of(version, found, first, read(5)) == time_of(8)
    formula = replace(stamped("2", 8), values=("2", None, None, None, "formula"))
    again = merge_row(FIELDS, X, found.mirrored, read(6), formula, [], [])
    (version,) = again.versions
    assert start_of(version, again, found.mirrored, read(6)) == time_of(8)
    after = apply_changes(FIELDS, X, again.mirrored, [update(10, "3")], [])
    (version,) = after.versions
    assert start_of(version, after, again.mirrored, None) == time_of(10)


def test_an_event_that_overtakes_a_change_without_one_queues_a_read():
    """An event that a row contains must not change it: otherwise a change without an event came
    after it, and the event has undone it. An event after the row's stamp queues nothing.
    """
    event, next_event = update(6, "told"), update(9, "told later")
    found = merge_row(FIELDS, X, known("1", 1), read(5), stamped("untold", 8), [event], [])
    (entry,) = found.added
    assert entry.cue.reason is Reason.UNTOLD
    assert found.mirrored is not None
    assert found.mirrored.record.reread_reason is Reason.UNTOLD
    healed = merge_row(FIELDS, X, found.mirrored, read(6), stamped("untold", 8), [], [entry])
    assert healed.healed == (entry,)
    assert healed.mirrored is not None
    after = apply_changes(FIELDS, X, healed.mirrored, [next_event], [])
    assert after.added == ()
    late = apply_changes(FIELDS, X, healed.mirrored, [update(7, "again", tick=8)], [])
    assert [each.cue.reason for each in late.added] == [Reason.UNTOLD]
    both = [update(6, "a"), update(7, "untold")]
    assert merge_row(FIELDS, X, None, read(5), stamped("untold", 8), both, []).added == ()


def test_fields_that_no_event_reports_are_as_old_as_the_last_read():
    """The time as of which they are known is that of the newest row that was read; an event, an
    absence or an older row does not change it.
    """
    row = replace(stamped("1", 8), derived_at=time_of(7))
    found = merge_row(FIELDS, X, known("1", 1), read(5), row, [], []).mirrored
    found = apply_changes(FIELDS, X, found, [update(10, "2")], []).mirrored
    older = replace(stamped("1", 6), derived_at=time_of(9))
    found = merge_row(FIELDS, X, found, read(10), older, [], []).mirrored
    found = absent(found, read(11)).mirrored
    assert found is not None
    assert found.derived_at == time_of(7)
    newer = replace(stamped("2", 10), derived_at=time_of(12))
    found = merge_row(FIELDS, X, found, read(12), newer, [], []).mirrored
    assert found is not None
    assert found.derived_at == time_of(12)


def test_rows_that_reads_of_changes_return_again_are_skipped_only_if_equal(
    monkeypatch: pytest.MonkeyPatch,
):
    """A row that is returned again is skipped, but not one with another value or stamp, nor one
    that was forgotten, or that came when the memory was full.
    """
    monkeypatch.setattr(reads, "MOST_SEEN", 2)
    seen = reads.Seen()
    news = [seen.is_new(X, b"a", time_of(1)), seen.is_new("001002", b"a", time_of(1))]
    news += [seen.is_new(X, b"a", time_of(1)), seen.is_new(X, b"b", time_of(1))]
    news += [seen.is_new("001003", b"a", time_of(1)), seen.is_new("001003", b"a", time_of(1))]
    assert news == [True, True, False, True, True, True]
    seen.forget_before(time_of(2))
    assert seen.is_new(X, b"b", time_of(1))


def test_formula_refresh_does_not_mark_rows():
    """Unlike a gap, a pending refresh of formulas does not mark the row for a reread."""
    for reason, mark in ((Reason.FORMULA, None), (Reason.GAP, Reason.GAP)):
        entry = Entry(None, Cue(reason, None, None, 5), asked=1)
        row = Row(("1", *[None] * 4))
        after = merge_row(FIELDS, X, None, read(5), row, [], [entry]).mirrored
        assert after is not None
        assert after.record.reread_reason is mark
