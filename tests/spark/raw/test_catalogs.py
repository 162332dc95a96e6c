"""Raw tables in a catalog, including those that their owner created before the first write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark import EventWriter, read_sidecar
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import column_definitions, spark_schema
from sfpubsub.spark.formats.iceberg import check_catalog
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.layout import LAYOUT, STORED
from sfpubsub.spark.raw.schema import COMMENTS
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.sample_events import NOW, TOPIC, batch_of, replay_id

delta = pytest.mark.skipif(TABLE_FORMAT != "delta", reason="Delta runs with PySpark 4.2")


def test_a_name_with_a_dot_is_a_catalog_table_whatever_is_on_the_disk(tmp_path: Path, monkeypatch):
    """In Delta and Iceberg, a string with a dot and no slash is a catalog table, even if there is a
    table directory of that name. `./` or a `Path` names the directory.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.raw.orders" / "_delta_log").mkdir(parents=True)
    for format_ in ("delta", "iceberg"):
        for name in ("raw.orders", "main.raw.orders"):
            place = Destination.parse(name, format_)
            assert (place.in_catalog, place.address) == (True, name)
            assert Destination.parse(f"./{name}", format_).local == tmp_path / name
            assert Destination.parse(Path(name), format_).local == tmp_path / name


@delta
def test_a_missing_file_system_client_raises_an_error_with_its_package(spark: SparkSession):
    """The error suggests the hadoop-aws package that matches Spark's own Hadoop version."""
    with pytest.raises(ConfigurationError, match=r"--packages org\.apache\.hadoop:hadoop-aws:3\."):
        EventWriter(spark, "s3a://lake/raw/orders", format="delta", topic=TOPIC)


@pytest.mark.parametrize("told", [("type", "hadoop"), ("catalog-impl", "x.HadoopCatalog")])
def test_a_file_based_catalog_in_an_object_store_is_rejected(spark: SparkSession, told):
    """A catalog that keeps its tables in files is accepted on HDFS and rejected on S3.

    Its commits need a rename that never overwrites, which object stores lack.
    """
    session = spark.newSession()
    place = Destination.parse("depot.raw.orders", "iceberg")
    session.conf.set(f"spark.sql.catalog.depot.{told[0]}", told[1])
    session.conf.set("spark.sql.catalog.depot.warehouse", "hdfs://lake/warehouse")
    check_catalog(session, place)
    session.conf.set("spark.sql.catalog.depot.warehouse", "s3a://lake/warehouse")
    with pytest.raises(ConfigurationError, match="use a catalog of type jdbc or rest"):
        check_catalog(session, place)


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Create a schema in the session's catalog, and drop it with its tables after the test."""
    name = f"s_{tmp_path.name.replace('-', '_')}"
    spark.sql(f"CREATE SCHEMA {name} LOCATION 'file://{tmp_path}/schema'")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def open_writer(spark: SparkSession, table: str, **options) -> EventWriter:
    return EventWriter(spark, table, format="delta", topic=TOPIC, clock=lambda: NOW, **options)


@delta
def test_a_delta_table_in_a_catalog_keeps_its_guarantees(spark: SparkSession, schema: str):
    """Across restarts, each event is stored once, and position, schemas, properties and column
    comments are kept; new batches can be listed, and an older writer is rejected.
    """
    table = f"{schema}.orders"
    kept = {"delta.logRetentionDuration": "interval 60 days", "team": "o'brien"}
    with open_writer(spark, table, table_properties=kept) as older:
        assert older.write(batch_of(range(3))).rows == 3
        with open_writer(spark, f"spark_catalog.{table}") as newer:
            assert newer.position == replay_id(2)
            result = newer.write(batch_of(range(5)))
            assert (result.rows, result.duplicates, result.first_seq) == (2, 3, 3)
        with pytest.raises(Exception, match="taken over by another writer"):
            older.write(batch_of([9]))
    rows = spark.table(table)
    assert [row["event_id"] for row in rows.orderBy("ingest_seq").collect()] == [
        f"event-{n}" for n in range(5)
    ]
    assert {field.name: field.metadata.get("comment") for field in rows.schema} == {
        name: COMMENTS[name] for name in STORED.names
    }
    properties = {
        row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()
    }
    assert kept.items() <= properties.items()
    assert [row["schema_id"] for row in read_sidecar(spark, table, "schemas").collect()] == [
        "schema-1"
    ]
    raw = RawBatches(spark, Destination.parse(table, "delta"))
    version = raw.version()
    found = raw.after(None, version)
    assert len(found) == 2
    assert raw.rows(found[1:]).count() == 2
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList
    version = raw.version()  # which is in the history that Spark reads with a small job
    before = jobs(None).size()
    assert raw.after(found[1], version) == []
    assert jobs(None).size() == before, "no Spark job runs if there is no new version"
    assert raw.after(found[0], version) == found[1:]
    with open_writer(spark, table) as writer:
        writer.write(batch_of([7]))
    assert len(raw.after(found[1], raw.version())) == 1
    named = RawBatches(spark, Destination.parse(f"spark_catalog.{table}", "delta"))
    assert named.identity() == raw.identity()
    assert not named.is_restored_since(version), "its history is read, with the catalog's name too"


@delta
def test_an_existing_empty_delta_table_is_used(spark: SparkSession, schema: str):
    """An empty Delta table that its owner created is used, whatever its clustering.

    The owner's own columns stay null, even one added between writes.
    """
    table = f"{schema}.orders"
    columns = column_definitions(spark_schema(STORED))
    spark.sql(f"CREATE TABLE {table} (note STRING, {columns}) USING delta CLUSTER BY (ingest_date)")
    with open_writer(spark, table) as writer:
        writer.write(batch_of(range(2)))
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS (more INT)")
        writer.write(batch_of(range(4)))
    with open_writer(spark, table) as writer:
        assert writer.write(batch_of(range(5))).duplicates == 4
    rows = spark.table(table).orderBy("ingest_seq").collect()
    assert [(row["event_id"], row["note"], row["more"]) for row in rows] == [
        (f"event-{n}", None, None) for n in range(5)
    ]


@pytest.mark.skipif(TABLE_FORMAT != "iceberg", reason="Iceberg runs with PySpark 4.1")
def test_an_existing_empty_iceberg_table_is_used(spark: SparkSession):
    """An empty Iceberg table that its owner created is used, and the owner's own columns stay null.

    A table without the required columns is rejected.
    """
    spark.sql("CREATE NAMESPACE IF NOT EXISTS shop.made")
    columns = column_definitions(spark_schema(STORED))
    spark.sql(f"CREATE TABLE shop.made.orders (note STRING, {columns}) USING iceberg")
    options = {"format": "iceberg", "topic": TOPIC, "clock": lambda: NOW}
    with EventWriter(spark, "shop.made.orders", **options) as writer:
        writer.write(batch_of(range(2)))
        spark.sql("ALTER TABLE shop.made.orders ADD COLUMNS (more INT)")
        writer.write(batch_of(range(4)))
    with EventWriter(spark, "shop.made.orders", **options) as writer:
        assert writer.write(batch_of(range(5))).duplicates == 4
    spark.catalog.refreshTable("shop.made.orders")
    rows = spark.table("shop.made.orders").orderBy("ingest_seq").collect()
    assert [(row["event_id"], row["note"], row["more"]) for row in rows] == [
        (f"event-{n}", None, None) for n in range(5)
    ]
    spark.sql("CREATE TABLE shop.made.other (note STRING) USING iceberg")
    with pytest.raises(ConfigurationError, match="event_id is missing"):
        EventWriter(spark, "shop.made.other", **options)


@delta
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("`ingest_date` date", "`ingest_date` string"), "ingest_date is string instead of date"),
        (("`org_id` string", "`org` string"), "org_id is missing"),
    ],
)
def test_an_existing_table_with_other_columns_is_rejected(
    spark: SparkSession, schema: str, change, reason
):
    """A table that lacks a column or has one of another type is rejected and left unchanged.

    The error names the column.
    """
    table = f"{schema}.orders"
    columns = column_definitions(spark_schema(STORED)).replace(*change)
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta")
    with pytest.raises(ConfigurationError, match=reason):
        open_writer(spark, table)
    assert spark.sql(f"DESCRIBE HISTORY {table}").count() == 1


@delta
def test_a_table_with_rows_from_another_writer_is_rejected(spark: SparkSession, schema: str):
    """A table containing rows that sfpubsub did not write is rejected, even if its columns fit."""
    table = f"{schema}.orders"
    spark.sql(f"CREATE TABLE {table} ({column_definitions(spark_schema(STORED))}) USING delta")
    spark.sql(f"INSERT INTO {table} (event_id) VALUES ('x')")
    with pytest.raises(ConfigurationError, match="has rows that sfpubsub did not write"):
        open_writer(spark, table)


@delta
def test_a_newer_layout_can_be_read_but_not_written(spark: SparkSession, schema: str):
    """A table whose layout is from a newer version of sfpubsub can be read but not written."""
    table = f"{schema}.orders"
    with open_writer(spark, table) as writer:
        writer.write(batch_of(range(2)))
        state = writer._table._state
    text = state.to_json().replace(f'"sfpubsub": {LAYOUT}', f'"sfpubsub": {LAYOUT + 1}')
    location = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]["location"]
    # Delta skips a commit that has neither rows nor a transaction number.
    options = {"userMetadata": text, "txnAppId": "newer", "txnVersion": "1"}
    empty = spark.table(table).limit(0).write.format("delta").mode("append")
    empty.options(**options).save(location)
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (novelty STRING)")
    with pytest.raises(ConfigurationError, match=f"layout {LAYOUT + 1}, which a newer"):
        open_writer(spark, table)
    raw = RawBatches(spark, Destination.parse(table, "delta"))
    assert raw.rows(raw.after(None)).columns == STORED.names
