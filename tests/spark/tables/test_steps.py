"""Step plans and table identities survive a round trip through JSON. Needs no Spark session."""

from __future__ import annotations

import json

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.batches import RawBatch
from sfpubsub.spark.records.step import StepPlan
from sfpubsub.spark.tables.identity import Identity, event_names

PLAN = StepPlan(
    7,
    "rows",
    batches=(RawBatch("b1", "2026-11-21"), RawBatch("b2", "2026-11-22")),
    last=RawBatch("b2", "2026-11-22"),
    version="12",
    names=("AccountChangeEvent",),
    applied_seq=41,
    schema_ids=("s1", "s2"),
    types=("Order_Event__e",),
    rows=3,
    size=400,
    undecodable=True,
)
PLACE = Destination.of_tables("/data/tables", "delta")


def test_a_step_plan_survives_a_round_trip_through_json():
    """Another process may repeat a step from its plan, so no field of the plan may be lost."""
    assert StepPlan.from_json(PLAN.to_json(), "here") == PLAN
    first = StepPlan(1, "rebuild")
    assert StepPlan.from_json(first.to_json(), "here") == first
    assert first.attempt != StepPlan(1, "rebuild").attempt


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"batches": "b1"}, {"more": 1}, {"last": {"id": "b2"}}],
)
def test_a_plan_of_another_version_is_rejected(change):
    """A plan with unknown or invalid fields raises an error instead of being partly executed."""
    record = {**json.loads(PLAN.to_json()), **change}
    with pytest.raises(ConfigurationError, match="the steps of here cannot be read"):
        StepPlan.from_json(json.dumps(record), "here")
    with pytest.raises(ConfigurationError, match="the steps of here cannot be read"):
        StepPlan.from_json("{", "here")


ROWS = Identity("parquet", "/data/raw", "topic /event/A__e")


@pytest.mark.parametrize(
    ("now", "is_there", "refusal"),
    [
        (ROWS, False, None),  # same path: its batches are not checked
        (Identity("parquet", "/data/../data/raw", ROWS.id), False, None),
        (Identity("parquet", "/moved", ROWS.id), True, None),
        (Identity("parquet", "/moved", ROWS.id), False, "does not contain the last batch"),
        (
            Identity("parquet", "/data/raw", "topic /event/B__e"),
            True,
            "an earlier table at /data/raw",
        ),
        (Identity("delta", "/data/raw", ROWS.id), True, "are built from /data/raw"),
        (Identity("parquet", "/data/raw", ROWS.id, ("Account",)), True, "built for all objects"),
    ],
)
def test_tables_resume_only_with_the_same_raw_table_and_objects(now, is_there, refusal):
    """The raw table may have moved if it still contains the last processed batch.

    A different format, source or choice of objects is rejected.
    """
    kept = Identity.from_record(json.loads(json.dumps(ROWS.record())), PLACE)
    assert kept == ROWS
    if refusal is None:
        kept.check(now, lambda: is_there)
    else:
        with pytest.raises(ConfigurationError, match=refusal):
            kept.check(now, lambda: is_there)


@pytest.mark.parametrize("record", [{}, {**ROWS.record(), "v": 9}])
def test_an_identity_of_another_version_is_rejected(record):
    """Tables created by another version raise an error instead of being extended."""
    with pytest.raises(ConfigurationError, match="this version of sfpubsub cannot use the tables"):
        Identity.from_record(record, PLACE)


def test_object_and_event_names_select_event_types():
    """The name of an object selects its change event, and the name of an event type selects that
    type.
    """
    assert event_names(["Account", "My__c", "Order_Event__e"]) >= {
        "AccountChangeEvent",
        "My__ChangeEvent",
        "Order_Event__e",
    }
