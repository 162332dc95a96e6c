"""Tests of the sidecar tables: durable, idempotent, and readable by Spark."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sfpubsub.spark
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest import sidecars as module
from sfpubsub.spark.ingest.dedupe import Conflict
from sfpubsub.spark.ingest.sidecars import Commit, Sidecars
from sfpubsub.spark.raw.files import Files, LocalFiles, files_of
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.sidecar_files import read_sidecar
from sfpubsub.spark.raw.table import StoredRow
from sfpubsub.spark.runtime.paths import EXACT_PATHS
from sfpubsub.spark.runtime.session import own_session
from sfpubsub.stores.file_quarantine import FileQuarantine
from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent
from sfpubsub.types import Gap, RawEvent
from tests.pages import blocks, page
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.sample_events import MANAGED, SCHEMA_JSON, TOPIC, batch_of, raw_event, replay_id

NAMES = ("schemas", "quarantine", "gaps", "commits", "conflicts")

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
    """A clock that tests can set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def commit(rows: int, first: int = 0) -> Commit:
    """Return a commit record for *rows* rows, which are numbered from *first*."""
    return Commit(MANAGED, "0a", rows, rows, 0, 0, 0, 1, first, first + rows - 1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def local(tmp_path: Path, clock: Clock) -> Sidecars:
    """The sidecars of a table in a local directory, which need no Spark."""
    made = Sidecars(None, Destination.parse(tmp_path / "orders", "parquet"), clock=clock)
    made.open()
    return made


def lines(directory: Path) -> list[dict]:
    """Return the JSON objects in a sidecar's files, in order of the file names."""
    files = sorted(directory.glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("place", ["local", "viewfs"])
def test_spark_reads_all_sidecars(spark, lake: Path, tmp_path: Path, clock: Clock, place: str):
    """Spark can read every sidecar as a table, whether it is empty or not.

    This holds for a local directory and for another file system.
    """
    name = f"sidecars-{tmp_path.name}"
    here = tmp_path / "orders [1] {a}"  # these characters must not act as a pattern
    url = str(here) if place == "local" else f"viewfs://lake/tables/{name}"
    destination = Destination.parse(url, "delta")
    assert (destination.local is None) == (place == "viewfs")
    if place == "local":
        (here / "_delta_log").mkdir(parents=True)  # the sign of the table's format
    sidecars = Sidecars(spark, destination, clock=clock)
    sidecars.open()
    assert [read_sidecar(spark, url, name).count() for name in NAMES] == [0] * len(NAMES)

    sidecars.keep_schemas({"schema-1": SCHEMA_JSON})
    sidecars.keep_gaps([GAP])
    sidecars.quarantine.put([BAD, BAD])
    sidecars.keep_commit(commit(3))
    sidecars.keep_commit(commit(2, first=3))
    rows = EventRows()
    rows.extend(batch_of([3, 4]), 1000.0)
    stored = StoredRow(b"key", "schema-1", TOPIC, b"stored", bytes(replay_id(2)), 7)
    sidecars.keep_conflicts(rows.table(), [Conflict(1, stored)])
    sidecars.close()
    # Unfinished files of a killed process, and marks, are not rows.
    for sidecar in NAMES if place == "local" else ():
        (here / f"_{sidecar}" / "x.json.0a.tmp").write_text("{")
        (here / f"_{sidecar}" / f"{BAD.key}.done").write_text("{}")
    (row,) = read_sidecar(spark, url, "schemas").collect()
    assert (row["schema_id"], row["schema"]) == ("schema-1", SCHEMA_JSON)
    (row,) = read_sidecar(spark, url, "gaps").collect()
    assert row.asDict() == {
        "subscription": TOPIC,
        "reason": "rejected",
        "after": replay_id(1).hex(),
        "before": None,
        "entity": None,
        "error_code": "corrupted",
        "rpc_id": "rpc-1",
        "noted_at": 1000.0,
    }
    (row,) = read_sidecar(spark, url, "quarantine").collect()
    assert (row["event_id"], row["headers"]) == ("event-1", [["key", "dmFsdWU="]])
    assert (row["payload"], row["reason"], row["schema"]) == ("/w==", BAD.reason, SCHEMA_JSON)
    rows = read_sidecar(spark, url, "commits").orderBy("first_seq").collect()
    assert [(row["rows"], row["last_seq"]) for row in rows] == [(3, 2), (2, 4)]
    (row,) = read_sidecar(spark, url, "conflicts").collect()
    assert row.asDict() == {
        "subscription": TOPIC,
        "topic": TOPIC,
        "event_id": "event-4",
        "schema_id": "schema-1",
        "replay_id": replay_id(4).hex(),
        "payload": base64.b64encode(raw_event(4).payload).decode(),
        "stored_replay_id": replay_id(2).hex(),
        "stored_seq": 7,
        "noted_at": 1000.0,
    }
    assert sidecars.schemas.get("schema-1") == SCHEMA_JSON
    assert sidecars.schemas.get("schema-2") is None
    if place == "local":  # there are no undocumented columns, and other tools can read the files
        reader = spark.read.options(**EXACT_PATHS)
        found = reader.json(f"file://{url}/_commits", pathGlobFilter="*.json").columns
        assert sorted(found) == sorted(read_sidecar(spark, url, "commits").columns)
        assert FileQuarantine(here / "_quarantine").get(BAD.key) == BAD


@pytest.fixture
def table_files(spark, tmp_path: Path) -> Callable[[str], Files]:
    """Return a function that opens a directory of files on a file system that is not local."""
    place = Destination.parse(f"viewfs://lake/tables/files-{tmp_path.name}", TABLE_FORMAT)
    return lambda name: files_of(place, TABLE_FORMAT, name, own_session(spark))


def test_files_of_a_table_elsewhere_are_read_and_replaced_as_a_whole(table_files):
    """Two processes see each other's files; directories are apart; what is there is not added."""
    ours, theirs, others = table_files("_gaps"), table_files("_gaps"), table_files("_commits")
    assert (ours.read("a.json"), ours.names()) == (None, [])
    ours.make()
    theirs.make()
    for text in ("{}\n", '{"ä\\n": "it\'s 1"}\n'):
        ours.replace("a.json", text)
        assert theirs.read("a.json") == text
    theirs.add({"a.json": "another", "b.json": "new"})
    assert (ours.read("a.json"), ours.read("b.json")) == (text, "new")
    assert (ours.names(), others.names()) == (["a.json", "b.json"], [])
    ours.remove("a.json")
    assert theirs.names() == ["b.json"]


def test_files_elsewhere_that_cannot_be_written_raise(spark):
    """The error names the table and the file."""
    place = Destination.parse("viewfs://lake/elsewhere/x", TABLE_FORMAT)
    files = files_of(place, TABLE_FORMAT, "_gaps", own_session(spark))
    with pytest.raises(WriteError, match=r"viewfs://lake/elsewhere/x/_sidecars/_gaps/a\.json was"):
        files.replace("a.json", "")
    with pytest.raises(ConfigurationError, match="pass a Spark session"):
        files_of(place, TABLE_FORMAT, "_gaps", None)


def test_unusable_local_directory_raises(tmp_path: Path):
    """The error names the file or directory that cannot be created, written or read."""
    (tmp_path / "_gaps").write_text("in the way")
    files = LocalFiles(tmp_path / "_gaps")
    with pytest.raises(WriteError, match="_gaps cannot be created"):
        files.make()
    with pytest.raises(WriteError, match=r"_gaps/a\.json was not written"):
        files.replace("a.json", "")
    with pytest.raises(ConfigurationError, match=r"_gaps/a\.json cannot be read"):
        files.read("a.json")


def test_each_schema_is_written_once(local, tmp_path: Path):
    """Each run writes a schema once, because the schema of an id never changes.

    An empty schema is not written, and reading a missing one returns None.
    """
    local.keep_schemas({"schema-1": SCHEMA_JSON, "schema-2": ""})
    (file,) = (tmp_path / ".orders.sfpubsub" / "_schemas").iterdir()
    file.unlink()
    local.keep_schemas({"schema-1": SCHEMA_JSON})
    assert not file.exists(), "written again in the same run"
    assert local.schemas.get("schema-1") is None


def test_repeated_gap_is_one_row(local, clock, tmp_path: Path):
    """A gap that a restarted job meets again, with a different RPC id, keeps its first row.

    A different gap adds a second row.
    """
    local.keep_gaps([GAP])
    clock.now += 60
    again = Sidecars(None, Destination.parse(tmp_path / "orders", "parquet"), clock=clock)
    again.keep_gaps([Gap("rejected", TOPIC, replay_id(1), error_code="corrupted", rpc_id="rpc-2")])
    (row,) = lines(tmp_path / ".orders.sfpubsub" / "_gaps")
    assert (row["rpc_id"], row["noted_at"]) == ("rpc-1", 1000.0)
    again.keep_gaps([Gap("rejected", TOPIC, replay_id(2), error_code="corrupted")])
    assert len(lines(tmp_path / ".orders.sfpubsub" / "_gaps")) == 2


def test_gap_of_an_object_is_known_by_its_occurrence(local, tmp_path: Path):
    """After a crash, the gap of an object is found again with other positions, and in a quiet org
    two gaps have the same ones: what tells them apart is what has happened.
    """
    for occurrence, position in (("1", 1), ("1", 2), ("2", 2)):
        gap = Gap("rights", TOPIC, replay_id(position), entity="Account", occurrence=occurrence)
        local.keep_gaps([gap])
    assert len(lines(tmp_path / ".orders.sfpubsub" / "_gaps")) == 2


def test_commits_are_batched_into_few_files_and_writes(local, clock, tmp_path: Path, monkeypatch):
    """Commit records are written together every 5 s, or earlier once they fill a file.

    Nothing is written if there are no new records.
    """
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
    assert len(writes) <= 7, "more than one write per 5 s and per full file"
    seen = len(lines(directory))
    assert 20 <= seen < 24, "only commits of the last 5 s may wait"
    clock.now += 5.0
    local.flush_due()
    assert [row["first_seq"] for row in lines(directory)] == list(range(24))
    assert len(list(directory.iterdir())) == 3
    count = len(writes)
    local.flush_due()
    local.close()
    assert len(writes) == count, "written without new commits"


def test_close_writes_the_last_commits(local, tmp_path: Path):
    """Closing the sidecars writes the collected commits at once, with the id of this run."""
    for number in range(3):
        local.keep_commit(commit(1, first=number))
    local.close()
    rows = lines(tmp_path / ".orders.sfpubsub" / "_commits")
    assert [row["first_seq"] for row in rows] == [0, 1, 2]
    assert len({row["run"] for row in rows}) == 1


def test_quarantine_on_a_hadoop_file_system_has_no_duplicates(spark, tmp_path: Path):
    """An event that is quarantined again, even by another writer, is stored only once."""
    place = Destination.parse(f"viewfs://lake/tables/q-{tmp_path.name}", "delta")
    for raw in (BAD.raw, BAD.raw, raw_event(2)):
        sidecars = Sidecars(spark, place)
        sidecars.open()
        sidecars.quarantine.put([QuarantinedEvent(raw, MANAGED, TOPIC, "why", 2.0)])
    assert read_sidecar(spark, place.address, "quarantine").count() == 2


@pytest.mark.skipif(TABLE_FORMAT != "iceberg", reason="only Iceberg has catalogs, with PySpark 4.1")
def test_sidecars_of_a_catalog_table_are_at_its_location(spark):
    """The sidecars of a catalog table can be written and read using only the table's name."""
    name = "shop.sidecars.orders"
    spark.sql(f"CREATE TABLE {name} (x INT) USING iceberg")
    sidecars = Sidecars(spark, Destination.parse(name, "iceberg"))
    assert isinstance(sidecars.quarantine, Quarantine), "not available before `open`"
    sidecars.open()
    sidecars.keep_gaps([GAP])
    sidecars.keep_schemas({"schema-1": SCHEMA_JSON})
    sidecars.quarantine.put([BAD])
    assert [read_sidecar(spark, name, sidecar).count() for sidecar in NAMES] == [1, 1, 1, 0, 0]
    assert sidecars.schemas.get("schema-1") == SCHEMA_JSON


def test_unknown_sidecar_is_rejected(spark, tmp_path: Path):
    """Reading an unknown sidecar raises an error that lists the valid names."""
    with pytest.raises(ConfigurationError, match="schemas, quarantine, gaps, commits, conflicts"):
        read_sidecar(spark, tmp_path, "rows")


def test_documented_program_runs(spark, local, tmp_path: Path, monkeypatch, capsys):
    """The first Python program on the documentation page runs and prints a recorded gap."""
    local.keep_gaps([GAP])
    program, *_ = blocks(page("ingest"), "python")
    session = contextlib.nullcontext(spark)
    monkeypatch.setattr(sfpubsub.spark, "spark_session", lambda: session, raising=False)
    exec(compile(program.replace("/data/orders", str(tmp_path / "orders")), "page", "exec"), {})
    assert "rejected" in capsys.readouterr().out
