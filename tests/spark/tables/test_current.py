"""Current tables, history tables and the queue in a table format, against a slow reading."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.tables.current import entity_of
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


@pytest.mark.parametrize(
    ("count", "steps"), [(240, 3), pytest.param(900, 12, marks=pytest.mark.slow)]
)
def test_tables_of_any_steps_are_those_of_a_slow_reading(world, count, steps):
    """Random streams of two objects, cut into random steps: current, history and queue are those
    computed from all events in one go. Schemas grow, and a field changes its type.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    events = stream(seed, count)
    cuts = sorted(random.Random(seed).sample(range(1, len(events)), steps - 1))
    for start, end in itertools.pairwise([0, *cuts, len(events)]):
        world.write(events[start:end])
        with world.tables() as tables:
            assert sum(report.batches for report in tables.run()) == 1
    world.check(ACCOUNT, "Account")
    world.check(ORDER, "Order__c")
