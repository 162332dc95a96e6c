"""Publishing from Spark: stable event ids, checked options, and no credential in a plan."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark import PubSubDataSource
from sfpubsub.spark.stream.sink import (
    EventSink,
    EventStreamSink,
    Ids,
    Published,
    SinkOptions,
    field_value,
)
from sfpubsub.testing import Fault
from sfpubsub.types import PublishCounts
from tests.client.test_publisher import USER, on_the_bus
from tests.spark.source_world import TOPIC, settings_file


def test_event_ids_depend_on_the_rows_but_not_on_their_order():
    """A retried task produces the same ids; equal rows, other partitions and other writes
    produce different ones.
    """
    rows = [{"a": 1}, {"a": 2}, {"a": 1}]

    def made(write="w", partition=0, order=(0, 1, 2)):
        ids = Ids(write, partition)
        return sorted(ids.next(rows[index]) for index in order)

    assert len(set(made())) == 3
    assert made() == made(order=(2, 0, 1))
    assert not set(made()) & set(made(partition=1))
    assert not set(made()) & set(made(write="v"))
    assert all(len(event_id) == 36 for event_id in made())


def test_column_values_become_field_values():
    """Timestamps become milliseconds since 1970, decimals become doubles, and text is unchanged."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert field_value(at) == 1_767_323_045_678
    assert field_value(at.astimezone().replace(tzinfo=None)) == 1_767_323_045_678
    assert field_value(Decimal("1.5")) == 1.5
    assert field_value("x") == "x"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "option topic"),
        ({"topic": TOPIC, "accessToken": "s3cret"}, "looks like a credential"),
        ({"topic": TOPIC, "createdBy": "00D000000000001!s3cret"}, "looks like a credential"),
        ({"topic": "eyJhbGciOiJub25lIn0.s3cret"}, "looks like a credential"),
        ({"topic": TOPIC, "endpoint": "s3cret"}, "connection setting"),
        ({"topic": TOPIC, "idColum": "x"}, "did you mean idColumn"),
        ({"topic": TOPIC, "timeout": "soon"}, "option timeout"),
        ({"topic": TOPIC, "timeout": "nan"}, "option timeout"),
    ],
)
def test_options_are_checked_before_a_job_starts(options, says):
    """A missing, mistyped or invalid option, or a credential, raises an error that says why. The
    error does not contain the credential.
    """
    with pytest.raises(ConfigurationError, match=says) as caught:
        SinkOptions.parse(options)
    assert "s3cret" not in str(caught.value)


def test_only_append_mode_and_an_existing_id_column_are_accepted():
    """Only append mode is accepted, because published events cannot be overwritten.

    The column that the option `idColumn` names must exist.
    """
    source = PubSubDataSource({"topic": TOPIC})
    schema = type("Schema", (), {"names": ["a"]})()
    for make in (source.writer, source.streamWriter):
        with pytest.raises(ConfigurationError, match="append"):
            make(schema, True)
    with pytest.raises(ConfigurationError, match="idColumn"):
        EventSink(SinkOptions.parse({"topic": TOPIC, "idColumn": "b"}), ["a"], "w")


def test_the_pickled_sink_contains_no_credential(run_emulator, monkeypatch):
    """Executors load their own settings, so the sink that Spark sends them has no access token."""
    emulator = run_emulator()
    monkeypatch.setenv("SFPUBSUB_ACCESS_TOKEN", emulator.access_token)
    sink = EventSink(SinkOptions.parse({"topic": TOPIC, "createdBy": USER}), ["a"], "w")
    assert emulator.access_token.encode() not in pickle.dumps(sink)


@pytest.mark.spark
def test_rows_of_frames_and_queries_are_published(
    spark: SparkSession, run_emulator, connect, tmp_path
):
    """Batch writes and streaming queries publish every row, even if rows are equal.

    Retries reuse the event ids, and neither the plan nor the checkpoint contains the access token.
    """
    emulator = run_emulator()
    settings = settings_file(emulator, tmp_path / "sink.toml")
    spark.dataSource.register(PubSubDataSource)
    options = {"topic": TOPIC, "configFile": str(settings), "createdBy": USER}
    frame = spark.range(0, 600, 1, 2).select((sf.col("id") % 300).cast("string").alias("City__c"))

    # A frame, with two lost responses, as if an executor had been killed.
    emulator.faults.add(Fault("lose_answer", times=2))
    frame.write.format("sfpubsub").options(**options).mode("append").save()
    emulator.faults.assert_consumed()
    found = on_the_bus(emulator, connect)
    values = dict(found)
    assert len(found) > len(values) == 600
    assert set(Counter(value["City__c"] for value in values.values()).values()) == {2}

    # Ids from a column.
    with_ids = spark.range(3).select(
        sf.concat(sf.lit("row-"), "id").alias("key"), sf.lit("x").alias("City__c")
    )
    with_ids.write.format("sfpubsub").options(**options, idColumn="key").mode("append").save()
    assert {name for name, _ in on_the_bus(emulator, connect)} - set(values) == {
        "row-0",
        "row-1",
        "row-2",
    }

    # A query; then its last batch again, as after a crash before Spark's commit.
    frame.limit(50).write.parquet(str(tmp_path / "in"))
    checkpoint = tmp_path / "checkpoint"

    def run() -> set[str]:
        stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
        sink = stream.writeStream.format("sfpubsub").options(**options)
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()
        return {name for name, _ in on_the_bus(emulator, connect)}

    before = {name for name, _ in on_the_bus(emulator, connect)}
    once = run() - before
    assert len(once) == 50
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    tip = emulator.bus.tip()
    assert run() - before == once
    assert emulator.bus.tip() == tip + 50
    for secret in (emulator.access_token,):
        plan = frame._jdf.queryExecution().toString()
        assert secret not in plan
        for file in checkpoint.rglob("*"):
            assert not file.is_file() or secret.encode() not in file.read_bytes()


@pytest.mark.parametrize("streamed", [False, True])
def test_the_counts_of_all_tasks_are_added_and_logged(caplog, streamed):
    """The log says how many events all tasks of a write published, and how many they sent again."""
    tasks = [
        Published(PublishCounts(accepted=600, sent_again=200)),
        Published(PublishCounts(accepted=5)),
        None,
    ]
    options = SinkOptions(TOPIC)
    with caplog.at_level("INFO", "sfpubsub.spark"):
        if streamed:
            EventStreamSink(options, ["a"]).commit(tasks, 7)
        else:
            EventSink(options, ["a"], "w").commit(tasks)
    batch = "batch 7 to " if streamed else ""
    assert caplog.messages == [f"{batch}{TOPIC}: published 605 events, with 200 resends"]


def test_a_task_without_rows_does_not_sign_in(monkeypatch):
    """A task without rows does not sign in, because sign-ins count against the org's limits."""
    monkeypatch.delenv("SFPUBSUB_ACCESS_TOKEN", raising=False)
    published = EventSink(SinkOptions(TOPIC), ["City__c"], "w").write(iter(()))
    assert published.accepted == 0
