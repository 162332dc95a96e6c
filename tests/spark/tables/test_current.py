"""Current tables, history tables and the queue in a table format, against a slow reading."""

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
from sfpubsub.spark.tables.current import entity_of
from sfpubsub.spark.tables.engine import EventTables
from sfpubsub.spark.tables.queue import QUEUE_NAME
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.change_streams import Org, Published, arrivals
from tests.spark.tables.record_world import World

ACCOUNT, ORDER = "AccountChangeEvent", "Order__ChangeEvent"


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path, TABLE_FORMAT)


def stream(seed: int, count: int) -> list[tuple[str, Published]]:
    """A stream about two objects."""
    rng = random.Random(seed)
    accounts = [(ACCOUNT, event) for event in arrivals(Org(seed, records=12), count)]
    orders = [(ORDER, event) for event in arrivals(Org(seed + 1, "Order__c"), count // 4)]
    found = []
    while accounts or orders:
        rest = rng.choice([each for each in (accounts, orders) if each])
        found.append(rest.pop(0))
    return found


def test_the_names_of_objects():
    """A table is named like the object, as SOQL names it."""
    assert entity_of("AccountChangeEvent") == "Account"
    assert entity_of("Order__ChangeEvent") == "Order__c"
    assert entity_of("shop__Order__ChangeEvent") == "shop__Order__c"
    assert entity_of("Order_Event__e") is None


@pytest.mark.slow
def test_tables_of_any_steps_are_those_of_a_slow_reading(world):
    """Random streams of two objects, cut into random steps: current, history and queue are those
    computed from all events in one go. Schemas grow, and a field changes its type.
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


class Died(BaseException):
    """In place of a kill: nothing catches it."""


@contextmanager
def death_at(moment: int, tables: EventTables) -> Iterator[None]:
    """Die before or after a commit of a step: 2 n is before the n-th, 2 n + 1 after it."""
    kind = type(tables.target.table("any"))
    calls: list[str] = []

    def dying(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            number = 2 * (len(calls) - 1)
            if number == moment:
                raise Died
            result = real(*args, **kwargs)
            if number + 1 == moment:
                raise Died
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("append", "merge"):
            patch.setattr(kind, name, dying(name, getattr(kind, name)))
        yield


# The commits of a step about one object: plan, typed, queue, history, current.
@pytest.mark.parametrize(
    "moments", [(5, 7, 8), pytest.param(range(16), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_step_can_die_between_its_commits(world, moments):
    """The next start does the rest of it, and nothing twice: current, history and queue are those
    computed from all events in one go. Each death is one of another step.
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
        with suppress(Died), world.tables() as tables, death_at(moment, tables):
            list(tables.run())
    with world.tables() as tables:
        list(tables.run())
    world.check(ACCOUNT, "Account")
    if len(moments) == 16:
        world.check(ORDER, "Order__c")


@pytest.mark.slow
def test_an_event_that_cannot_be_decoded_makes_all_records_doubtful(world):
    """Nobody can say which record it is about: those that are known when it arrives are marked, by
    one cue, until an event says all of them; the others are not written again.
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
def test_tables_that_have_missed_steps_are_not_begun(world):
    """Current tables are made from the first event on; begun later, each record would look like one
    that is older than the table.
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
