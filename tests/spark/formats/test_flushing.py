"""What commits have added to a local table is flushed to the disk, and nothing else.

A kill does not show this, because the kernel still has what a killed process wrote. These tests
record which files and directories are flushed, and compare them with those that have changed. They
do not show that a disk keeps what it was told to keep.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats import flushing
from sfpubsub.spark.formats.flushing import (
    Flusher,
    Mark,
    delta_added,
    delta_newest,
    iceberg_added,
    iceberg_newest,
    vector_path,
)
from sfpubsub.spark.formats.target import parquet_of
from sfpubsub.spark.tables import open_target
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.sample_events import NOW, TOPIC, batch_of

VECTOR = "ab^-aqEH.-t@S}K{vb[*k^"


class Record:
    """The files and directories that were flushed, and how often a whole file system was."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.whole = 0


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Record what this process flushes."""
    record = Record()
    fsync, flush_all = os.fsync, flushing.sync_file_system

    def one(descriptor: int) -> None:
        record.paths.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def everything(path: Path) -> None:
        record.whole += 1
        flush_all(path)

    monkeypatch.setattr(os, "fsync", one)
    monkeypatch.setattr(flushing, "sync_file_system", everything)
    return record


def in_log(table: Path, version: int, *actions: dict[str, Any]) -> Path:
    """Add a commit with *actions* to the log of a Delta table."""
    commit = table / "_delta_log" / f"{version:020d}.json"
    commit.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"commitInfo": {"operation": "WRITE"}}, *actions]
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return commit


def add(path: str, vector: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"add": {"path": path, "deletionVector": vector}}


def test_deletion_vectors_are_found_by_their_encoded_names():
    """The name in the log is decoded as in the example of Delta's specification."""
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert vector_path(VECTOR) == f"ab/{name}"
    assert vector_path(VECTOR[2:]) == name


def test_a_delta_log_tells_what_its_commits_have_added(tmp_path: Path):
    """These are the files of rows, deletes and changes, the commits, and a new checkpoint."""
    table = tmp_path / "t"
    log = table / "_delta_log"
    old = in_log(table, 0, {"metaData": {}}, add("old.parquet"))
    since = delta_newest(table)
    assert delta_added(table, since) == ([], since)
    first = in_log(
        table, 1,
        add("day=a%20b/x.parquet"), {"remove": {"path": "old.parquet"}},
        add(f"file://{tmp_path}/other/y.parquet", {"storageType": "u", "pathOrInlineDv": VECTOR}),
    )  # fmt: skip
    vector = {"storageType": "p", "pathOrInlineDv": f"file:{tmp_path}/v%20w.bin"}
    second = in_log(table, 2, add("z.parquet", vector), {"cdc": {"path": "_change_data/c.parquet"}})
    (log / "_last_checkpoint").write_text(json.dumps({"version": 2, "parts": 2}))
    found = delta_added(table, since)
    assert found is not None
    files, newest = found
    assert files == [
        table / "day=a b" / "x.parquet",
        tmp_path / "other" / "y.parquet",
        table / vector_path(VECTOR),
        first,
        log / f"{1:020d}.crc",
        table / "z.parquet",
        tmp_path / "v w.bin",
        table / "_change_data" / "c.parquet",
        second,
        log / f"{2:020d}.crc",
        log / f"{2:020d}.checkpoint.0000000001.0000000002.parquet",
        log / f"{2:020d}.checkpoint.0000000002.0000000002.parquet",
        log / "_last_checkpoint",
    ]
    assert newest == delta_newest(table)
    assert delta_added(table, newest) == ([], newest)
    second.unlink()
    assert delta_added(table, newest) is None
    old.unlink()
    assert delta_added(table, Mark()) is None
    assert delta_added(tmp_path, Mark()) == ([], Mark())


def test_other_checkpoints_of_delta_are_flushed_with_their_parts(tmp_path: Path):
    """A checkpoint is one file, or, in its second version, a file with sidecars."""
    table = tmp_path / "t"
    log = table / "_delta_log"
    in_log(table, 0)
    since = delta_newest(table)
    for text, files in (
        ({"version": 0}, [f"{0:020d}.checkpoint.parquet"]),
        (
            {"version": 0, "v2Checkpoint": {"path": "a.json", "sidecarFiles": [{"path": "b"}]}},
            ["a.json", "_sidecars/b"],
        ),
    ):
        (log / "_last_checkpoint").write_text(json.dumps(text))
        found = delta_added(table, since)
        assert found is not None
        assert found[0] == [log / each for each in [*files, "_last_checkpoint"]]


def avro(path: Path, rows: list[dict[str, Any]], kinds: dict[str, Any]) -> Path:
    """Write an Avro file with a row for each of *rows*."""
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows)
    return path


def snapshot(table: Path, number: int, manifests: list[tuple[Path, int]]) -> dict[str, Any]:
    """Return a snapshot with the number *number* as its id, and write its list of manifests."""
    rows = [{"manifest_path": f"file:{path}", "added_snapshot_id": by} for path, by in manifests]
    kinds = {"manifest_path": "string", "added_snapshot_id": "long"}
    listed = avro(table / "metadata" / f"snap-{number}.avro", rows, kinds)
    return {"snapshot-id": number, "sequence-number": number, "manifest-list": f"file://{listed}"}


def manifest(table: Path, name: str, *entries: tuple[int, str]) -> Path:
    """Write a manifest with a status and a file for each of *entries*."""
    rows = [{"status": s, "data_file": {"file_path": f"{table}/data/{f}"}} for s, f in entries]
    file = {"type": "record", "name": "f", "fields": [{"name": "file_path", "type": "string"}]}
    return avro(table / "metadata" / name, rows, {"status": "int", "data_file": file})


def in_metadata(table: Path, version: int, snapshots: list[dict[str, Any]], *, last: int) -> Path:
    """Write the metadata of an Iceberg table."""
    path = table / "metadata" / f"v{version}.metadata.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"format-version": 2, "last-sequence-number": last, "snapshots": snapshots}
    path.write_text(json.dumps(kept))
    (path.parent / "version-hint.text").write_text(str(version))
    return path


def test_iceberg_metadata_tell_what_commits_have_added(tmp_path: Path):
    """These are the metadata, and of each new snapshot its manifests and the files it has added.

    Nobody can tell what a snapshot has added that has expired since.
    """
    table = tmp_path / "t"
    one = manifest(table, "m1.avro", (1, "a.parquet"))
    first = snapshot(table, 1, [(one, 1)])
    in_metadata(table, 1, [], last=0)
    created = iceberg_newest(table)
    in_metadata(table, 2, [first], last=1)
    since = iceberg_newest(table)
    assert iceberg_added(table, since) == ([], since)
    two = manifest(table, "m2.avro", (0, "a.parquet"), (1, "b.parquet"), (2, "c.parquet"))
    second = snapshot(table, 2, [(one, 1), (two, 2)])
    third = in_metadata(table, 3, [first, second], last=2)
    found = iceberg_added(table, since)
    assert found is not None
    files, newest = found
    assert [file for file in files if file.exists() or file.parent.name == "data"] == [
        table / "metadata" / "version-hint.text",
        third,
        table / "metadata" / "snap-2.avro",
        two,
        table / "data" / "b.parquet",
    ]
    assert newest == iceberg_newest(table)
    in_metadata(table, 4, [second], last=2)
    assert iceberg_added(table, created) is None
    assert iceberg_newest(tmp_path) == Mark()


def test_only_what_was_added_is_flushed(tmp_path: Path, flushed: Record):
    """After the first time, that is the added files and their directories: of a table that has not
    changed, nothing. If a log has been cut short, everything is flushed once more.
    """
    table, other = tmp_path / "tables" / "t", tmp_path / "tables" / "other"
    in_log(table, 0)
    in_log(other, 0)
    flusher = Flusher("delta", tmp_path / "tables")
    flusher.flush([table, other])
    assert (flushed.whole, flushed.paths) == (1, set())
    flusher.flush([table, other])
    assert (flushed.whole, flushed.paths) == (1, set())
    data = table / "day=1" / "x.parquet"
    data.parent.mkdir()
    for path in (data, data.with_name(".x.parquet.crc"), table / "unknown"):
        path.write_text("")
    commit = in_log(table, 1, add("day=1/x.parquet"), add("gone.parquet"))
    new = tmp_path / "tables" / "new"
    first = in_log(new, 0)
    flusher.flush([table, other, new])
    assert flushed.paths == {
        *(data, data.with_name(".x.parquet.crc"), data.parent),
        *(commit, commit.parent, table),
        *(first, first.parent, new),
        tmp_path / "tables",
    }
    assert flushed.whole == 1
    commit.unlink()
    flusher.flush([table])
    assert flushed.whole == 2


def files_in(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def check(flushed: Record, directory: Path, before: set[Path]) -> None:
    """Check that exactly those files were flushed that are new, each with its directories."""
    new = files_in(directory) - before
    assert new
    assert new <= flushed.paths
    assert {parent for path in new for parent in path.parents} & {
        directory, *directory.rglob("*")
    } <= flushed.paths  # fmt: skip
    assert {path for path in flushed.paths if path.is_file()} & before <= overwritten(directory)
    assert all(path.is_relative_to(directory) for path in flushed.paths)
    assert flushed.whole == 0


def overwritten(directory: Path) -> set[Path]:
    """Return the files that commits replace."""
    names = ("version-hint.text", ".version-hint.text.crc", "_last_checkpoint")
    return {path for name in names for path in directory.rglob(name)}


def test_a_batch_is_flushed_before_its_write_returns(
    spark: SparkSession, tmp_path: Path, flushed: Record
):
    """Every file that the commit of a batch has added to a raw table is flushed, with its
    directories, and nothing outside of the table. So are the files of a new checkpoint.
    """
    raw = tmp_path / "raw"
    options = {"format": TABLE_FORMAT, "topic": TOPIC, "clock": lambda: NOW}
    if TABLE_FORMAT == "delta":
        options["table_properties"] = {"delta.checkpointInterval": "10"}
    with EventWriter(spark, raw, **options) as writer:
        writer.write(batch_of(range(2)))
        for first in range(2, 12 if TABLE_FORMAT == "delta" else 4):
            before = files_in(raw)
            flushed.paths, flushed.whole = set(), 0
            writer.write(batch_of(range(first, first + 1), first_seq=first))
            check(flushed, raw, before)
    checkpoints = [path for path in files_in(raw) if ".checkpoint." in path.name]
    assert checkpoints or TABLE_FORMAT != "delta"


def test_a_step_is_flushed_when_it_is_finished(
    spark: SparkSession, tmp_path: Path, lake: Path, flushed: Record
):
    """When `Target.finish` returns, every file that the step has added to a table in a local
    directory is flushed, also those of a new table, and of rows that were replaced or deleted. In
    an object store, nothing is flushed.
    """
    columns = pa.schema([("id", pa.string()), ("text", pa.string())])

    def rows(*ids: str) -> pa.Table:
        return pa.table({"id": list(ids), "text": ["x"] * len(ids)}, columns)

    for place in (tmp_path / "tables", "viewfs://lake/tables/flushed"):
        with open_target(spark, place, TABLE_FORMAT) as target:
            target.finish(0)
            for step, name in enumerate(("Account", "Account", "Contact"), 1):
                before = files_in(tmp_path)
                flushed.paths, flushed.whole = set(), 0
                table = target.table(name)
                table.make(columns, {}, merged=True)
                table.append([parquet_of(rows("1", "2", "3"))], step, 1)
                merged = target.spark.createDataFrame(rows("1", f"new-{step}"))
                table.merge(merged, "t.id = s.id", step, 2)
                table.delete("id = '2'", step)
                target.finish(step)
                if isinstance(place, Path):
                    check(flushed, place, before)
                else:
                    assert (flushed.paths, flushed.whole) == (set(), 0)
