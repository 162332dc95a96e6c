"""The merge rule of a mirror converges, and without any one of its parts it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sfpubsub.spark.mirror import merging, reads
from sfpubsub.spark.mirror.merging import Mirrored, lay, merge_absence, merge_row
from sfpubsub.spark.mirror.reads import AsOf, Entry, Noted, Read, Row, heals
from sfpubsub.spark.tables.records import Change, Cue, Reason
from tests.spark.mirror.mirror_model import DivergedError, MirrorMachine
from tests.spark.mirror.org_model import FIELDS, Org, time_of

X = "001001"


# The same lives in every run. Any counterexample will do, so none is made smaller.
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
    """Once the org rests, the events are consumed and a margin has passed, one round of reads
    empties the queue, and the mirror equals the org but for formulas and silent purges; after a
    refresh and a sweep in these, too. Whatever happened before.
    """

    settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@pytest.mark.slow
def test_the_mirror_converges_in_long_lives():
    """The same, of lives of more steps, and many of them."""
    many = settings(max_examples=1500, stateful_step_count=100, deadline=None)
    run_state_machine_as_test(MirrorMachine, settings=many)


def test_the_lives_have_everything():
    """The model is about all that it says: every reason for a read but a restored table occurs."""

    class Machine(MirrorMachine):
        seen: ClassVar[set[Reason]] = set()

    run_state_machine_as_test(Machine, settings=settings(BOUNDED, max_examples=200))
    assert Machine.seen == set(Reason) - {Reason.RESTORED}


def _anything(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> bool:
    return False


class NoMargin(MirrorMachine):
    """As-of is what is durable when the request is sent."""

    margin = 0


# The part that takes thousands of steps to be missed.
RARE = "older reads"

# Part of the rule -> the machine without it, and what stands in the rule's place.
WITHOUT: dict[str, tuple[type[MirrorMachine], list[tuple[Any, str, Callable[..., bool]]]]] = {
    "margin": (NoMargin, []),
    "cues": (MirrorMachine, [(reads, "heals", _anything), (merging, "heals", _anything)]),
    "absence": (MirrorMachine, [(merging, "proves_deletion", _anything)]),
    RARE: (MirrorMachine, [(merging, "is_outdated", _nothing)]),
}


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.slow if part == RARE else ()) for part in WITHOUT],
)
def test_without_a_part_of_the_rule_the_mirror_diverges(part: str, monkeypatch: pytest.MonkeyPatch):
    """The model is strong enough to see each part missing, and no part stands in for another."""
    machine, patches = WITHOUT[part]
    for module, name, instead in patches:
        monkeypatch.setattr(module, name, instead)
    with pytest.raises(DivergedError):
        run_state_machine_as_test(machine, settings=BOUNDED)


# One promise each, in a few steps.


def read(seq: int, *, asked: int = 0, since: int | None = None, until: int = 100) -> Read:
    begun = None if since is None else (time_of(since), 0, 0)
    return Read(AsOf(seq, asked), begun, time_of(until))


def update(seq: int, phone: str, *, tick: int | None = None) -> Change:
    when = time_of(seq if tick is None else tick)
    return Change("UPDATE", when, seq, 1, seq, (phone, None, None, None), ["Phone"])


def change(kind: str, seq: int, *values: Any) -> Change:
    return Change(kind, time_of(seq), seq, 1, seq, values or (None,) * 4)


def diffs(*lines: str) -> tuple[list[Change], list[str]]:
    """Changes that add lines to a text, numbered from 1, and the text before and after each."""
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
    """A record that a CREATE made known."""
    created = lay(FIELDS, X, None, [change("CREATE", seq, phone, None, None, None)], [])
    assert created.mirrored is not None
    return created.mirrored


def test_an_as_of_is_what_was_durable_a_margin_before():
    """Not what is durable when the request is sent; and before a margin there is none."""
    notes = [Noted(10.0, AsOf(5)), Noted(12.0, AsOf(7)), Noted(14.0, AsOf(7, 1))]
    assert reads.as_of(notes, 15.0, 3.0) == AsOf(7)
    assert reads.as_of(notes, 17.0, 3.0) == AsOf(7, 1)
    assert reads.as_of(notes, 12.9, 3.0) is None


def test_an_event_since_the_as_of_is_laid_over_an_older_row():
    """A row that lags behind the bus takes nothing back."""
    changes = [update(6, "6"), update(7, "7")]
    before = lay(FIELDS, X, known("1", 1), changes, []).mirrored
    after = merge_row(FIELDS, X, before, read(5), Row(("1", "s", "n", "f")), changes, [])
    assert after.mirrored is not None
    assert after.mirrored.record.values == ["7", "s", "n", "f"]
    assert after.added == ()


def test_a_read_from_before_a_cue_leaves_it_open():
    """The row is marked until a read has come that began a margin after the gap event."""
    gap = change("GAP_UPDATE", 6)
    first = lay(FIELDS, X, known("1", 1), [gap], [])
    (entry,) = first.added
    row = Row(("2", None, None, None))
    early = merge_row(FIELDS, X, first.mirrored, read(5), row, [gap], [entry])
    assert (early.added, early.healed) == ((), ())
    assert early.mirrored is not None
    assert early.mirrored.record.reread_reason is Reason.GAP
    late = merge_row(FIELDS, X, early.mirrored, read(6), row, [], [entry])
    assert late.healed == (entry,)
    assert late.mirrored is not None
    assert late.mirrored.record.reread_reason is None


def test_raw_rows_do_not_tell_when_something_was_asked_for():
    """Between a read and a later refresh there may be no event at all; their numbers differ."""
    entry = Entry(None, Cue(Reason.FORMULA, None, None, 5), asked=2)
    assert not heals(read(5, asked=1), entry)
    assert heals(read(5, asked=2), entry)
    pieces = [read(5, asked=2), read(9, asked=1)]
    assert reads.healed_by_object([entry], pieces) == ()
    assert reads.healed_by_object([entry], pieces[:1]) == (entry,)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_diff_within_a_read_is_laid_once_and_queues_nothing(place: int):
    """Whichever of the texts the row has, the last one comes out, and the queue stays as it is."""
    changes, texts = diffs("a", "b", "c")
    row = Row(("p1", None, texts[place], None))
    after = merge_row(FIELDS, X, None, read(0), row, changes, [])
    assert after.mirrored is not None
    assert after.mirrored.record.values[2] == texts[-1]
    assert after.added == ()


def test_a_diff_after_a_read_that_does_not_fit_is_queued():
    """A text that is not what the service has shows at its next diff, and is read again."""
    changes, _ = diffs("a")
    row = Row(("p1", None, "another text", None))
    base = merge_row(FIELDS, X, None, read(0, until=0), row, [], []).mirrored
    (entry,) = lay(FIELDS, X, base, changes, []).added
    assert entry.cue.reason is Reason.DIFF


def test_a_record_that_changes_all_the_time_leaves_the_queue():
    """A text that is changed once a tick, and read once a margin: each read closes the entry that
    there was, and gives no other one.
    """
    changes, texts = diffs(*"abcdefghij")
    first = lay(FIELDS, X, None, changes[:1], [])
    entries, mirrored = list(first.added), first.mirrored
    for now in (4, 7, 10):
        mirrored = lay(FIELDS, X, mirrored, changes[now - 3 : now], []).mirrored
        row = Row(("p1", None, texts[now], None))  # has what came within the margin, too
        since = changes[now - 3 : now]
        outcome = merge_row(FIELDS, X, mirrored, read(now - 3, until=now), row, since, entries)
        entries = [each for each in (*entries, *outcome.added) if each not in outcome.healed]
        mirrored = outcome.mirrored
        assert entries == []
        assert mirrored is not None
        assert mirrored.record.reread_reason is None
        assert mirrored.record.values[2] == texts[now]


def test_absence_proves_deletion_after_the_last_event_only():
    """A record created since the as-of is kept; one without an event since is gone."""
    created = known("1", 6)
    kept = merge_absence(X, created, read(5), [])
    assert kept.mirrored == created
    gone = merge_absence(X, created, read(6), []).mirrored
    assert gone is not None
    assert gone.record.is_deleted
    assert gone.record.values[0] == "1"


def test_absence_proves_nothing_against_a_late_event():
    """An event that was late is not laid, and is an event about the record all the same."""
    late = Entry(X, Cue(Reason.LATE, "UNDELETE", time_of(3), 7))
    created = known("1", 6)
    assert merge_absence(X, created, read(6), [late]).mirrored == created
    gone = merge_absence(X, created, read(7), [late])
    assert gone.healed == (late,)
    assert gone.mirrored is not None
    assert gone.mirrored.record.is_deleted


def test_an_older_read_changes_nothing():
    """A piece of a long Bulk job that arrives after a newer read takes nothing back."""
    newer = merge_row(FIELDS, X, None, read(9), Row(("9", None, None, None)), [], []).mirrored
    row = Row(("5", None, None, None))
    changes = [update(6, "6")]
    assert merge_row(FIELDS, X, newer, read(5), row, changes, []).mirrored == newer
    assert merge_absence(X, newer, read(5), []).mirrored == newer


@pytest.mark.parametrize("seed", range(8))
def test_an_older_read_brings_no_record_back(seed: int):
    """A record that no event was about, that an overflow deleted, and that a newer read of the
    object does not return, stays unknown when an answer from before that comes at last.
    """
    life = MirrorMachine()
    life.begin(seed=seed, records=2, is_read=False)
    life.wait(ticks=3)
    life.send(what="both")
    life.wait(ticks=1)
    life.write_badly(kind="OVERFLOW", which=0)  # deletes the first
    life.write_badly(kind="PURGE", which=0)
    life.rest(redrives=True, answers=False)
    assert X not in life.job.tables.mirrored
    life.teardown()


def test_a_late_event_takes_nothing_back_that_an_overflow_did():
    """An update that cannot be decoded, an overflow, a read that heals both, and then the update:
    the record is newer than it, although none of its own events says so.
    """
    life = MirrorMachine()
    life.begin(seed=0, records=1, is_read=True)
    life.write(kind="UPDATE", which=0, is_next=True)
    life.fail_to_decode(is_again=False)
    life.write_badly(kind="OVERFLOW", which=0)
    life.rest(redrives=False, answers=True)
    life.teardown()


def test_a_late_create_brings_no_record_back():
    """A CREATE that is decoded when a read has shown already that the record is gone."""
    life = MirrorMachine()
    life.begin(seed=0, records=0, is_read=False)
    life.write(kind="CREATE", which=0, is_next=True)
    life.fail_to_decode(is_again=False)
    life.write_badly(kind="PURGE", which=0)
    life.write(kind="CREATE", which=0, is_next=True)
    life.rest(redrives=False, answers=True)
    life.teardown()


def test_a_change_older_than_the_read_is_late():
    """An event decoded after all is not laid over a row that an overflow had made newer."""
    changed = Row(("by the overflow", None, None, None))
    base = merge_row(FIELDS, X, known("1", 1), read(9, since=8), changed, [], []).mirrored
    redriven = update(10, "older", tick=5)
    after = lay(FIELDS, X, base, [redriven], [])
    assert after.mirrored is not None
    assert after.mirrored.record.values[0] == "by the overflow"
    assert [entry.cue.reason for entry in after.added] == [Reason.LATE]


def test_a_create_keeps_what_no_event_names():
    """The formula of a row that was read stays when the CREATE is laid over it."""
    created = change("CREATE", 6, "1", None, None, None)
    row = Row(("1", None, None, "formula"))
    after = merge_row(FIELDS, X, None, read(5), row, [created], []).mirrored
    assert after is not None
    assert after.record.values == ["1", None, None, "formula"]


def test_a_refresh_marks_no_row():
    """A row whose formulas are to be refreshed is as sound as before; one with a gap is not."""
    for reason, mark in ((Reason.FORMULA, None), (Reason.GAP, Reason.GAP)):
        entry = Entry(None, Cue(reason, None, None, 5), asked=1)
        row = Row(("1", None, None, None))
        after = merge_row(FIELDS, X, None, read(5), row, [], [entry]).mirrored
        assert after is not None
        assert after.record.reread_reason is mark
