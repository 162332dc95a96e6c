"""Tests that every kind of target applies each step to a table once, completely and in order.

They use the table format of the test session (conftest.py), with a path, a URL or a catalog as the
target.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServerConnection

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats.delta import APPLICATION_SETTING, NUMBER_SETTING, LocalDeltaStore
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.store import name_in_sql
from sfpubsub.spark.formats.target import LAST, TargetTable, parquet_of
from sfpubsub.spark.tables import open_target
from tests.spark.conftest import TABLE_FORMAT, jobs_begun

COLUMNS = pa.schema(
    [
        ("event_id", pa.string()),
        ("replay_id", pa.binary()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("ingest_seq", pa.int64()),
        ("Address", pa.struct([("City", pa.string())])),
        ("changed_fields", pa.list_(pa.string())),
    ]
)
WIDER = pa.schema(
    [
        *COLUMNS.remove(4),
        ("Address", pa.struct([("City", pa.string()), ("Zip", pa.string())])),
        ("Amount__c", pa.float64()),
    ]
)
SAME = "t.ingest_seq = s.ingest_seq"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def rows(*seqs: int, columns: pa.Schema = COLUMNS, **more: object) -> pa.Table:
    """Return one row for each number; *more* overrides column values."""
    found = [
        {
            "event_id": f"event-{seq}",
            "replay_id": b"%d" % seq,
            "event_time": NOON,
            "ingest_seq": seq,
            "Address": {"City": "Zürich", "Zip": "8000"},
            "changed_fields": ["Name", None],
            **more,
        }
        for seq in seqs
    ]
    return pa.Table.from_pylist(found, columns)


def seqs(table) -> list[int]:
    return sorted(row["ingest_seq"] for row in table.read().select("ingest_seq").collect())


@pytest.fixture(params=["a [1] #ü", "plain"] if TABLE_FORMAT == "delta" else ["a [1] #ü"])
def target(request, spark, tmp_path):
    """Open a target in a directory whose name contains special characters, or, with delta-rs, in
    one whose name does not.
    """
    with open_target(spark, tmp_path / request.param, TABLE_FORMAT) as opened:
        yield opened


@pytest.fixture
def fast_target(spark, tmp_path):
    """Open a target whose tables delta-rs writes."""
    with open_target(spark, tmp_path / "plain", TABLE_FORMAT) as opened:
        yield opened


def test_a_table_applies_each_step_once(target):
    """An append adds nothing unless its step number is higher than the last applied one."""
    table = target.table("Order_Event__e")
    assert not table.exists()
    assert table.step() == 0
    table.make(COLUMNS, {"kind": "typed"})
    assert (table.step(), table.facts(), table.columns()) == (0, {"kind": "typed"}, COLUMNS.names)
    table.append([parquet_of(rows(0, 1)), parquet_of(rows(2))], 3)
    table.append([parquet_of(rows(0, 1))], 3)
    table.append([parquet_of(rows(7))], 2)
    assert seqs(table) == [0, 1, 2]
    table.append([], 4)
    assert table.step() == 4
    target.finish(4)
    assert target.names() == ["Order_Event__e"]
    found = table.read().where("ingest_seq = 1").first()
    assert found["replay_id"] == b"1"
    hours = table.read().selectExpr("hour(event_time) as hour").distinct().collect()
    assert [row["hour"] for row in hours] == [NOON.hour]
    assert found["Address"]["City"] == "Zürich"
    assert found["changed_fields"] == ["Name", None]


def test_parts_of_a_step_come_once_and_in_order(target):
    """A table has a step when it has its last part; an earlier part is not made twice."""
    table = target.table("Account")
    table.make(COLUMNS, {"kind": "current"}, merged=True)
    assert (table.newest(), table.has(1, 0)) == ((0, LAST), False)
    assert table.append([parquet_of(rows(0))], 1, 0)
    assert not table.append([parquet_of(rows(0))], 1, 0)
    assert (table.newest(), table.step(), table.has(1, 0), table.has(1)) == ((1, 0), 0, True, False)
    source = target.spark.createDataFrame(rows(0, 1, 2, columns=WIDER, event_id="new"))
    more = {"replaced": {"event_id": "upper(s.event_id)"}, "added": "s.ingest_seq < 2"}
    table.make(WIDER)
    table.merge(source, SAME, 1, LAST - 1, **more)
    shown = sorted((row["ingest_seq"], row["event_id"]) for row in table.read().collect())
    assert shown == [(0, "NEW"), (1, "new")]
    table.delete("ingest_seq = 1", 1)
    assert (seqs(table), table.step(), table.has(1)) == ([0], 1, True)
    assert not table.append([parquet_of(rows(7))], 1, LAST - 1)
    assert not table.has(2, 0)


def test_columns_are_added_at_every_depth(target):
    """Older rows have null in new columns and nested fields.

    The facts stored with the table, such as its schema ids, are replaced as a whole, or kept if
    none are given.
    """
    table = target.table("AccountChangeEvent")
    table.make(COLUMNS, {"schema_ids": "a"})
    table.append([parquet_of(rows(0))], 1)
    table.make(WIDER, {"schema_ids": "a b"})
    table.make(WIDER)
    table.make(COLUMNS)
    assert table.facts() == {"schema_ids": "a b"}
    table.append([parquet_of(rows(1, columns=WIDER, Amount__c=2.5))], 2)
    table.append([parquet_of(rows(2))], 3)
    found = table.read().orderBy("ingest_seq").select("Address.Zip", "Amount__c").collect()
    assert [tuple(row) for row in found] == [(None, None), ("8000", 2.5), (None, None)]
    assert table.columns()[: len(COLUMNS)] == COLUMNS.names


def test_rows_are_merged_and_deleted_once(target):
    """Repeating a merge or delete with the same step number changes nothing."""
    table = target.table("Account")
    table.make(COLUMNS, merged=True)
    table.append([parquet_of(rows(0, 1, 2))], 1)

    def source(text: str):
        changed = rows(1, 9).set_column(0, "event_id", pa.array([text, text]))
        return target.spark.createDataFrame(changed)

    table.merge(source("new"), SAME, 2)
    table.merge(source("newer"), SAME, 2)
    found = {row["ingest_seq"]: row["event_id"] for row in table.read().collect()}
    assert found == {0: "event-0", 1: "new", 2: "event-2", 9: "new"}
    table.delete("ingest_seq in (0, 1)", 3)
    table.delete("true", 3)
    table.delete("ingest_seq = 77", 4)
    assert (seqs(table), table.step()) == ([2, 9], 4)
    part = target.spark.createDataFrame(rows(2, 9).select(["ingest_seq", "event_id"]))
    table.merge(part, SAME, 5)
    assert table.read().where("event_time is null").count() == 0
    table.merge(source("newest"), SAME, 6, replaced={"replay_id": "s.replay_id"})
    found = {row["ingest_seq"]: row["event_id"] for row in table.read().collect()}
    assert found == {1: "newest", 2: "event-2", 9: "event-9"}
    table.merge(part.limit(0), SAME, 7)
    assert (seqs(table), table.step()) == ([1, 2, 9], 7), "an empty merge also counts as a step"
    table.delete("true", 8)
    assert (seqs(table), table.step()) == ([], 8)


def test_rows_of_a_dataframe_are_inserted_once(target):
    """A repeated insert with the same step number adds nothing; columns are matched by name."""
    table = target.table("Account")
    table.make(COLUMNS, merged=True)
    source = target.spark.createDataFrame(rows(1, 9).select(["ingest_seq", "event_id"]))
    table.insert(source, 1)
    table.insert(source, 1)
    assert (seqs(table), table.step()) == ([1, 9], 1)
    table.insert(source.limit(0), 2)
    assert (seqs(table), table.step()) == ([1, 9], 2), "an empty insert also counts as a step"
    table.merge(source, SAME, 3)
    assert (seqs(table), table.step()) == ([1, 9], 3)


def test_a_url_or_a_catalog_schema_can_be_a_target(spark, lake):
    """Tables on another file system or in a catalog support the same steps as tables in a local
    directory.
    """
    places = ["viewfs://lake/tables/targets"]
    if TABLE_FORMAT == "iceberg":
        places.append("shop.sales")
    else:
        spark.sql("CREATE SCHEMA IF NOT EXISTS sales")
        places.append("spark_catalog.sales")
    for place in places:
        with open_target(spark, place, TABLE_FORMAT) as target:
            if "." in place:
                spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {place}")
            table = target.table("Order_Event__e")
            table.make(COLUMNS, {"kind": "typed"}, merged=True)
            table.append([parquet_of(rows(0, 1))], 1)
            table.make(WIDER, {"kind": "x"})
            more = rows(1, 2, columns=WIDER)
            table.merge(target.spark.createDataFrame(more), SAME, 2)
            table.insert(target.spark.createDataFrame(rows(3, columns=WIDER)), 3)
            assert seqs(table) == [0, 1, 2, 3]
            # Spark's own catalog stores names in lower case.
            names = [name.lower() for name in target.names()]
            assert (names, table.step()) == (["order_event__e"], 3)
            assert table.facts() == {"kind": "x"}


def test_a_table_created_by_another_tool_is_not_used(spark, target):
    """A table without our properties is neither listed nor written to; a target in use cannot be
    opened again.
    """
    table = target.table("Mine")
    name = name_in_sql(target.spark, table.place)
    target.spark.sql(f"CREATE TABLE {name} (x INT) USING {TABLE_FORMAT}")
    assert target.names() == []
    with pytest.raises(ConfigurationError, match="did not create"):
        table.make(COLUMNS)
    with pytest.raises(ConfigurationError, match="is being written by another process"):
        open_target(spark, target.place.local, TABLE_FORMAT)


def test_a_change_by_another_process_is_detected(spark, tmp_path):
    """A step that another writer has already applied is not applied again.

    Each write checks this, because only local paths have a lease that keeps other writers out.
    """
    with open_target(spark, tmp_path, TABLE_FORMAT) as target:
        first, second = (TargetTable(target, "T") for _ in range(2))
        first.make(COLUMNS)
        assert second.step() == 0
        first.append([parquet_of(rows(0))], 1)
        second.append([parquet_of(rows(0))], 1)
        assert seqs(first) == [0]
        with pytest.raises(WriteError, match="T was not written"):
            first.append([b"not a file"], 2)
        assert second.step() == 1


@pytest.mark.parametrize(
    ("text", "format_", "catalog", "local"),
    [
        ("spark_catalog.sales", "delta", True, False),
        ("main.sales", "iceberg", True, False),
        ("./sales", "delta", False, True),
        ("/data/sales", "iceberg", False, True),
        ("s3a://bucket/sales/", "delta", False, False),
        ("file:/data/sales", "delta", False, True),
    ],
)
def test_the_destination_of_a_target_is_parsed(text, format_, catalog, local):
    """A path with a slash is a directory or URL; a name with a dot is a schema in a catalog."""
    place = Destination.of_tables(text, format_)
    assert (place.in_catalog, place.local is not None) == (catalog, local)
    assert not place.table("T").address.endswith("//T")


def test_derived_tables_have_no_parquet_format():
    """Plain Parquet files cannot replace rows; the error says which formats can."""
    with pytest.raises(ConfigurationError, match=r"'parquet' is not .*: use one of delta, iceberg"):
        Destination.of_tables("/data/tables", "parquet")


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="what Delta does to write its log")
def test_a_commit_on_a_local_path_starts_few_processes(target):
    """Spark's commits on a local path use our log store and checkpoint file manager.

    Hadoop's own would start `chmod` and `readlink` processes for each file.
    """
    settings = target.spark.conf
    assert settings.get("spark.delta.logStore.file.impl").endswith(".LocalLogStore")
    manager = settings.get("spark.sql.streaming.checkpointFileManagerClass")
    assert target.spark._jvm.java.lang.Class.forName(manager).getSimpleName() in manager
    table = target.table("Order_Event__e")
    table.make(COLUMNS)
    table.insert(target.spark.createDataFrame(rows(0)), 1)
    log = target.place.local / table.name / "_delta_log"
    names = sorted(path.name for path in log.iterdir() if path.is_file())
    assert names == [f"{number:020d}.{kind}" for number in (0, 1) for kind in ("crc", "json")]


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="the number is in Delta's own conflict check")
def test_a_step_that_another_writer_commits_first_is_rejected(fast_target, monkeypatch):
    """If another writer commits after the step number was checked, the append fails and the rows
    exist only once.
    """
    table, other = fast_target.table("Order_Event__e"), TargetTable(fast_target, "Order_Event__e")
    table.make(COLUMNS)
    number_in = LocalDeltaStore._number_in

    def before_the_other(self, found):
        number = number_in(self, found)
        if self is table.store:
            monkeypatch.undo()
            other.append([parquet_of(rows(0))], 1)
        return number

    monkeypatch.setattr(LocalDeltaStore, "_number_in", before_the_other)
    with pytest.raises(WriteError, match="changed by another process at the same time"):
        table.append([parquet_of(rows(0))], 1)
    assert (table.step(), seqs(table)) == (1, [0])
    table.append([parquet_of(rows(1))], 2)
    assert table.step() == 2


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="the other format has one library")
def test_an_append_on_a_local_disk_needs_no_spark(fast_target, monkeypatch):
    """With forty tables per step, Spark would need seconds, so an append does without its JVM.

    Appends and Spark's own changes can follow each other.
    """
    table = fast_target.table("Order_Event__e")
    table.make(COLUMNS)
    calls, send, thread = [], ClientServerConnection.send_command, threading.get_ident()

    def counted(self, command):
        if threading.get_ident() == thread:  # another thread releases objects
            calls.append(command)
        return send(self, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    for number in (1, 2, 3):
        assert table.append([parquet_of(rows(number - 1))], number)
    assert calls == []
    assert not table.append([parquet_of(rows(2))], 3)
    table.delete("ingest_seq = 1", 4)
    assert not table.append([parquet_of(rows(2))], 4)
    table.append([parquet_of(rows(3))], 5)
    assert (table.step(), seqs(table)) == (5, [0, 2, 3])


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="features of Delta")
@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", False),
        ("SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')", False),
        ("SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", False),
        ("ADD CONSTRAINT positive CHECK (ingest_seq >= 0)", True),
    ],
)
def test_features_that_an_administrator_switched_on_are_kept(fast_target, change, is_kept):
    """Appends go on after the table got another feature: by delta-rs if it keeps the feature, else
    by Spark. A row that a constraint forbids is not written.
    """
    table = fast_target.table("Order_Event__e")
    table.make(COLUMNS)
    assert table.append([parquet_of(rows(0))], 1)
    name = name_in_sql(fast_target.spark, table.place)
    fast_target.spark.sql(f"ALTER TABLE {name} {change}")
    assert table.append([parquet_of(rows(1))], 2)
    assert not table.append([parquet_of(rows(1))], 2)
    assert (table.store._kept() is not None) == is_kept
    assert (table.step(), seqs(table)) == (2, [0, 1])
    assert TargetTable(fast_target, "Order_Event__e").step() == 2
    if is_kept:
        with pytest.raises(WriteError, match="was not written"):
            table.append([parquet_of(rows(-1))], 3)
        assert (table.step(), seqs(table)) == (2, [0, 1])


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="Iceberg's metadata has the number at once")
def test_the_first_step_into_a_new_table_runs_no_job(fast_target):
    """The first append to a new table runs no Spark job.

    Delta alone would run three jobs to compute the state of each new table.
    """
    table = fast_target.table("Order_Event__e")
    table.make(COLUMNS)
    before = jobs_begun(fast_target.spark)
    table.append([parquet_of(rows(0))], 1)
    assert table.step() == 1
    assert jobs_begun(fast_target.spark) == before
    assert (TargetTable(fast_target, "Order_Event__e").step(), seqs(table)) == (1, [0])


def test_the_step_number_of_one_table_is_not_used_for_another(target):
    """Adding columns to a table does not store the step number of a concurrent merge into another.

    Otherwise, later steps of the table with new columns would silently be skipped.
    """
    if TABLE_FORMAT != "delta":
        pytest.skip("other formats have a number with each snapshot that is staged")
    table = target.table("Order_Event__e")
    table.make(COLUMNS)
    widening = threading.Thread(target=table.make, args=(WIDER,), daemon=True)
    number = {APPLICATION_SETTING: "sfpubsub:tables", NUMBER_SETTING: "9"}
    with target.sessions.settings(number):
        widening.start()
        widening.join(300.0)
    assert "Amount__c" in table.columns()
    assert table.append([parquet_of(rows(1, columns=WIDER, Amount__c=1.0))], 1)
    assert (table.step(), seqs(table)) == (1, [1])
