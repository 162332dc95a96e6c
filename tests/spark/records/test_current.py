"""Current tables, history tables and the reread queue equal those of a simple reference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.records.follower import entity_of
from sfpubsub.spark.records.queue import QUEUE_NAME
from sfpubsub.spark.tables.engine import EventTables
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.change_streams import Org, Published, arrivals
from tests.spark.tables.record_world import World

ACCOUNT, ORDER = "AccountChangeEvent", "Order__ChangeEvent"


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path, TABLE_FORMAT)


def stream(seed: int, count: int) -> list[tuple[str, Published]]:
    """Return *count* account events and a quarter as many order events, randomly interleaved."""
    rng = random.Random(seed)
    accounts = [(ACCOUNT, event) for event in arrivals(Org(seed, records=12), count)]
    orders = [(ORDER, event) for event in arrivals(Org(seed + 1, "Order__c"), count // 4)]
    found = []
    while accounts or orders:
        rest = rng.choice([each for each in (accounts, orders) if each])
        found.append(rest.pop(0))
    return found


def test_table_names_are_object_names():
    """The table of a change event type has the object's API name; other events have none."""
    assert entity_of("AccountChangeEvent") == "Account"
    assert entity_of("Order__ChangeEvent") == "Order__c"
    assert entity_of("shop__Order__ChangeEvent") == "shop__Order__c"
    assert entity_of("Order_Event__e") is None


def test_an_event_without_a_schema_marks_every_record_it_may_be_about(world):
    """If the service does not know an event's schema, its object is not known either. So the rows
    of all objects are marked and queued; an entry without an object stands for any other one.
    """
    events = [(ACCOUNT, each) for each in arrivals(Org(1, records=4), 6)]
    events += [(ORDER, each) for each in arrivals(Org(2, "Order__c", records=4), 6)]
    world.write(events)
    with world.tables(history=False, current=True) as tables:
        list(tables.run())
        seq = len(world.written)
        world.write(events[:1], unknown=[seq])
        list(tables.run())
    for name in ("Account", "Order__c"):
        assert {row["_reread"] for row in world.rows(name)} == {True}
    queued = [row for row in world.rows(QUEUE_NAME) if row["since_seq"] == seq]
    assert {(row["entity_name"], row["record_id"], row["reason"]) for row in queued} == {
        ("Account", None, "gap"),
        ("Order__c", None, "gap"),
        (None, None, "gap"),
    }


@pytest.mark.slow
def test_tables_equal_the_reference_for_steps_of_any_size(world):
    """Random events, processed in steps of random size, yield the rows that `SlowTables` computes
    from all events together.

    The current, history and queue tables all match, even if a schema changes.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    events = stream(seed, 900)
    cuts = sorted(random.Random(seed).sample(range(1, len(events)), 11))
    for start, end in itertools.pairwise([0, *cuts, len(events)]):
        world.write(events[start:end])
        with world.tables() as tables:
            assert sum(report.batches for report in tables.run()) == 1
    world.check(ACCOUNT, "Account")
    world.check(ORDER, "Order__c")


class Killed(BaseException):
    """Simulates SIGKILL: no `except Exception` in the product catches it."""


@contextmanager
def kill_at(moment: int, tables: EventTables) -> Iterator[None]:
    """Raise `Killed` before or after the commit with the index *moment* // 2 (counted from 0).

    An even *moment* kills before the commit, an odd one after it.
    """
    kind = type(tables.target.table("any"))
    calls: list[str] = []

    def killing(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            number = 2 * (len(calls) - 1)
            if number == moment:
                raise Killed
            result = real(*args, **kwargs)
            if number + 1 == moment:
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("append", "merge", "insert", "delete"):
            patch.setattr(kind, name, killing(name, getattr(kind, name)))
        yield


# A step about one object has five commits: plan, typed, queue, history and current table.
@pytest.mark.parametrize(
    "moments", [(5, 7, 8), pytest.param(range(16), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_step_killed_between_commits_is_completed_by_the_next_start(world, moments):
    """No commit is repeated, so the tables equal those computed from all events at once.

    Each step is killed at a different moment.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    events = stream(seed, 60 * (len(moments) + 1))
    if len(moments) < 16:
        events = [each for each in events if each[0] == ACCOUNT]
    size = len(events) // (len(moments) + 1) + 1
    parts = [events[start : start + size] for start in range(0, len(events), size)]
    for part, moment in itertools.zip_longest(parts, moments, fillvalue=-1):
        if part == -1:
            break
        world.write(part)
        with suppress(Killed), world.tables() as tables, kill_at(moment, tables):
            list(tables.run())
    with world.tables() as tables:
        list(tables.run())
    world.check(ACCOUNT, "Account")
    if len(moments) == 16:
        world.check(ORDER, "Order__c")


@pytest.mark.slow
def test_an_undecodable_event_marks_all_records_for_rereading(world):
    """An undecodable event may be about any record, so one queue entry marks all existing ones.

    A later event with all fields of a record removes that record's mark. A rebuild creates the same
    marks.
    """
    org = Org(0)
    one, two = org.ids[:2]
    created = [(ACCOUNT, org._event("CREATE", [each], {"Phone": "1"})) for each in (one, two)]
    world.write(created)
    with world.tables() as tables:
        list(tables.run())
        again = (ACCOUNT, org._event("UNDELETE", [one], {"Phone": "2"}))
        world.write([(ACCOUNT, org._event("UPDATE", [one], {}, ["Phone"])), again], bad=[2])
        list(tables.run())
        found = {row["record_id"]: row for row in world.rows("Account")}
        assert (found[one]["Phone"], found[one]["_reread"]) == ("2", False)
        assert (found[two]["Phone"], found[two]["_reread_reason"]) == ("1", "gap")
        (cue,) = world.rows(QUEUE_NAME)
        assert (cue["record_id"], cue["reason"], cue["since_seq"]) == (None, "gap", 2)
        tables.rebuild()
        assert [world.rows(name) for name in ("Account", "Account_history", QUEUE_NAME)] == [[]] * 3
        list(tables.run())
    assert {row["record_id"]: row["_reread"] for row in world.rows("Account")} == {
        one: False,
        two: True,
    }


@pytest.mark.slow
def test_current_tables_cannot_be_added_later_without_a_rebuild(world):
    """Enabling current tables where tables exist without them is an error that advises a rebuild.

    Without the earlier events, existing records would look incomplete.
    """
    org = Org(0)
    for number in (1, 2):
        world.write([(ACCOUNT, org._event("CREATE", [f"001{number}"], {"Phone": "1"}))])
        with world.tables(history=False) as tables:
            list(tables.run())
    world.write([(ACCOUNT, org._event("DELETE", ["0011"]))])
    with (
        world.tables(current=True) as tables,
        pytest.raises(ConfigurationError, match=r"has no current tables.* rebuild --current"),
    ):
        list(tables.run())


def test_a_rebuild_adds_history_tables(world):
    """Tables that were built without history have it after a rebuild that asks for it."""
    world.write(stream(1, 20))
    with world.tables(history=False, current=True) as tables:
        list(tables.run())
    with world.tables() as tables:
        tables.rebuild()
        list(tables.run())
    world.check(ACCOUNT, "Account")
