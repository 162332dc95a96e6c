"""The four tables beside a raw table: durable, the same when written again, read by Spark."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import sfpubsub.spark
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.ingest import sidecars as module
from sfpubsub.spark.ingest.sidecars import Commit, Sidecars
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.files import HadoopFiles, LocalFiles
from sfpubsub.spark.raw.paths import EXACT_PATHS
from sfpubsub.spark.raw.sidecar_files import read_sidecar
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent
from sfpubsub.types import Gap, RawEvent
from tests.pages import blocks, page
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.sample_events import MANAGED, SCHEMA_JSON, TOPIC, raw_event, replay_id

NAMES = ("schemas", "quarantine", "gaps", "commits")

GAP = Gap("rejected", TOPIC, replay_id(1), error_code="corrupted", rpc_id="rpc-1")
BAD = QuarantinedEvent(
    RawEvent("event-1", "schema-1", b"\xff", replay_id(1), (("key", b"value"),)),
    MANAGED,
    TOPIC,
    "it does not fit",
    1.5,
    7,
    SCHEMA_JSON,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def commit(rows: int, first: int = 0) -> Commit:
    return Commit(MANAGED, "0a", rows, rows, 0, 0, 0, 1, first, first + rows - 1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def local(tmp_path: Path, clock: Clock) -> Sidecars:
    """Those of a table on this machine; they need no Spark."""
    made = Sidecars(None, Destination.parse(tmp_path / "orders", "parquet"), clock=clock)
    made.open()
    return made


def lines(directory: Path) -> list[dict]:
    files = sorted(directory.glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("place", ["local", "viewfs"])
def test_spark_reads_all_of_them(spark, lake: Path, tmp_path: Path, clock: Clock, place: str):
    """As tables, while they are empty and afterwards; on this machine and elsewhere."""
    name = f"sidecars-{tmp_path.name}"
    here = tmp_path / "orders [1] {a}"  # no pattern
    url = str(here) if place == "local" else f"viewfs://lake/tables/{name}"
    destination = Destination.parse(url, "delta")
    assert (destination.local is None) == (place == "viewfs")
    sidecars = Sidecars(spark, destination, clock=clock)
    sidecars.open()
    assert [read_sidecar(spark, url, name).count() for name in NAMES] == [0] * len(NAMES)

    sidecars.keep_schemas({"schema-1": SCHEMA_JSON})
    sidecars.keep_gaps([GAP])
    sidecars.quarantine.put([BAD, BAD])
    sidecars.keep_commit(commit(3))
    sidecars.keep_commit(commit(2, first=3))
    sidecars.close()
    # What a process that died leaves, and marks of other kinds, are no rows.
    directory = here if place == "local" else lake / name
    for sidecar in NAMES:
        (directory / f"_{sidecar}" / "x.json.0a.tmp").write_text("{")
        (directory / f"_{sidecar}" / f"{BAD.key}.done").write_text("{}")
    (row,) = read_sidecar(spark, url, "schemas").collect()
    assert (row["schema_id"], row["schema"]) == ("schema-1", SCHEMA_JSON)
    (row,) = read_sidecar(spark, url, "gaps").collect()
    assert row.asDict() == {
        "subscription": TOPIC,
        "reason": "rejected",
        "after": replay_id(1).hex(),
        "before": None,
        "error_code": "corrupted",
        "rpc_id": "rpc-1",
        "noted_at": 1000.0,
    }
    (row,) = read_sidecar(spark, url, "quarantine").collect()
    assert (row["event_id"], row["headers"]) == ("event-1", [["key", "dmFsdWU="]])
    assert (row["payload"], row["reason"], row["schema"]) == ("/w==", BAD.reason, SCHEMA_JSON)
    rows = read_sidecar(spark, url, "commits").orderBy("first_seq").collect()
    assert [(row["rows"], row["last_seq"]) for row in rows] == [(3, 2), (2, 4)]
    # The columns that are documented are all that there are.
    reader = spark.read.options(**EXACT_PATHS)
    found = reader.json(f"{url}/_commits", pathGlobFilter="*.json").columns
    assert sorted(found) == sorted(read_sidecar(spark, url, "commits").columns)
    assert sidecars.schemas.get("schema-1") == SCHEMA_JSON
    assert sidecars.schemas.get("schema-2") is None
    if place == "viewfs":  # and the same files are what people's tools read
        assert FileQuarantine(directory / "_quarantine").get(BAD.key) == BAD


def test_a_file_elsewhere_is_whole_and_is_replaced(spark, lake: Path, tmp_path: Path):
    """Nothing else is left; a place that cannot be written is an error of ours."""
    files = HadoopFiles(spark, f"viewfs://lake/tables/files-{tmp_path.name}")
    files.make()
    assert files.read("a.json") is None
    for text in ("{}\n", '{"ä": 1}\n'):
        files.replace("a.json", text)
        assert files.read("a.json") == text
    left = [path.name for path in (lake / f"files-{tmp_path.name}").iterdir()]
    assert [name for name in left if not name.endswith(".crc")] == ["a.json"]
    with pytest.raises(WriteError, match=r"viewfs://lake/elsewhere/x/a\.json was not written"):
        HadoopFiles(spark, "viewfs://lake/elsewhere/x").replace("a.json", "")
    with pytest.raises(ConfigurationError, match="cannot use the file system of nofs://x/y"):
        HadoopFiles(spark, "nofs://x/y")


def test_a_local_place_that_cannot_be_written(tmp_path: Path):
    """Errors of ours that name the place."""
    (tmp_path / "_gaps").write_text("in the way")
    files = LocalFiles(tmp_path / "_gaps")
    with pytest.raises(WriteError, match="_gaps cannot be created"):
        files.make()
    with pytest.raises(WriteError, match=r"_gaps/a\.json was not written"):
        files.replace("a.json", "")
    with pytest.raises(ConfigurationError, match=r"_gaps/a\.json cannot be read"):
        files.read("a.json")


def test_schemas_are_written_once_and_an_unknown_one_is_none(local, tmp_path: Path):
    """A schema id names its content for good."""
    local.keep_schemas({"schema-1": SCHEMA_JSON, "schema-2": ""})
    (file,) = (tmp_path / ".orders.sfpubsub" / "_schemas").iterdir()
    file.unlink()
    local.keep_schemas({"schema-1": SCHEMA_JSON})
    assert not file.exists(), "kept once a run; nobody else removes files"
    assert local.schemas.get("schema-1") is None


def test_a_gap_is_one_row_however_often_it_is_met(local, clock, tmp_path: Path):
    """A job that dies before it has passed a gap meets it again, under another call's id."""
    local.keep_gaps([GAP])
    clock.now += 60
    again = Sidecars(None, Destination.parse(tmp_path / "orders", "parquet"), clock=clock)
    again.keep_gaps([Gap("rejected", TOPIC, replay_id(1), error_code="corrupted", rpc_id="rpc-2")])
    (row,) = lines(tmp_path / ".orders.sfpubsub" / "_gaps")
    assert (row["rpc_id"], row["noted_at"]) == ("rpc-1", 1000.0)
    again.keep_gaps([Gap("rejected", TOPIC, replay_id(2), error_code="corrupted")])
    assert len(lines(tmp_path / ".orders.sfpubsub" / "_gaps")) == 2


def test_commits_take_few_files_and_few_writes(local, clock, tmp_path: Path, monkeypatch):
    """A file is written again as it grows, at most every few seconds, and has an end."""
    monkeypatch.setattr(module, "COMMITS_A_FILE", 10)
    writes = []
    replace = LocalFiles.replace
    monkeypatch.setattr(
        LocalFiles, "replace", lambda self, *args: writes.append(args) or replace(self, *args)
    )
    for number in range(24):
        local.keep_commit(commit(1, first=number))
        clock.now += 1.0
    directory = tmp_path / ".orders.sfpubsub" / "_commits"
    assert len(writes) <= 7, "one in 5 s, and one for each full file"
    seen = len(lines(directory))
    assert 20 <= seen < 24, "the newest wait for their seconds"
    clock.now += 5.0
    local.flush_due()
    assert [row["first_seq"] for row in lines(directory)] == list(range(24))
    assert len(list(directory.iterdir())) == 3
    count = len(writes)
    local.flush_due()
    local.close()
    assert len(writes) == count, "nothing new, nothing written"


def test_the_last_commits_are_written_at_the_end(local, tmp_path: Path):
    """Without waiting."""
    for number in range(3):
        local.keep_commit(commit(1, first=number))
    local.close()
    rows = lines(tmp_path / ".orders.sfpubsub" / "_commits")
    assert [row["first_seq"] for row in rows] == [0, 1, 2]
    assert len({row["run"] for row in rows}) == 1


def test_the_quarantine_has_no_second_entry_elsewhere(spark, tmp_path: Path):
    """An event that comes again is there already, also for another writer."""
    place = Destination.parse(f"viewfs://lake/tables/q-{tmp_path.name}", "delta")
    for raw in (BAD.raw, BAD.raw, raw_event(2)):
        sidecars = Sidecars(spark, place)
        sidecars.open()
        sidecars.quarantine.put([QuarantinedEvent(raw, MANAGED, TOPIC, "why", 2.0)])
    assert read_sidecar(spark, place.address, "quarantine").count() == 2


@pytest.mark.skipif(TABLE_FORMAT != "iceberg", reason="only Iceberg has catalogs, with PySpark 4.1")
def test_those_of_a_catalog_s_table_are_at_its_location(spark):
    """Where the catalog keeps the table, which it must have made."""
    name = "shop.sidecars.orders"
    spark.sql(f"CREATE TABLE {name} (x INT) USING iceberg")
    sidecars = Sidecars(spark, Destination.parse(name, "iceberg"))
    assert isinstance(sidecars.quarantine, Quarantine), "handed out before the table exists"
    sidecars.open()
    sidecars.keep_gaps([GAP])
    sidecars.keep_schemas({"schema-1": SCHEMA_JSON})
    sidecars.quarantine.put([BAD])
    assert [read_sidecar(spark, name, sidecar).count() for sidecar in NAMES] == [1, 1, 1, 0]
    assert sidecars.schemas.get("schema-1") == SCHEMA_JSON


def test_there_are_four_of_them(spark, tmp_path: Path):
    """Another name is an error that lists them."""
    with pytest.raises(ConfigurationError, match="schemas, quarantine, gaps, commits"):
        read_sidecar(spark, tmp_path, "rows")


def test_the_program_of_the_page_runs(spark, local, tmp_path: Path, monkeypatch, capsys):
    """It shows all four tables."""
    local.keep_gaps([GAP])
    program, *_ = blocks(page("ingest"), "python")
    session = contextlib.nullcontext(spark)
    monkeypatch.setattr(sfpubsub.spark, "spark_session", lambda: session, raising=False)
    exec(compile(program.replace("/data/orders", str(tmp_path / "orders")), "page", "exec"), {})
    assert "rejected" in capsys.readouterr().out
