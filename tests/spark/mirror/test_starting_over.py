"""`sfpubsub tables rebuild` on the target of a mirror, which then reads its objects again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.cli.main import run
from sfpubsub.errors import WriteError
from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.records.queue import QUEUE_NAME
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.raw_world import ACCOUNT, Raw


def test_a_mirror_whose_newest_plan_was_lost_starts_over(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """If the newest plan is gone from `_steps`, a mirror refuses to start, and the command that the
    error names works once it is confirmed: it needs no answer of the org, queues all objects, and
    the next start goes on after the raw rows so far.
    """
    raw = Raw(spark, tmp_path / "raw", TABLE_FORMAT)
    raw.write((ACCOUNT, 3, 0))

    def describe(name: str) -> ObjectDescription:
        raise AssertionError(f"{name} was described")

    def follower(target: Target) -> MirrorTables:
        return MirrorTables(target, describe, "mark")

    mirror = {"mirror": True, "followers": [follower]}
    with raw.tables(objects=["Account"], **mirror) as tables:
        list(tables.run())
        tables.target.table("_steps").delete("step = 1", 2, 0)
    with pytest.raises(WriteError, match=r"step 1 was removed .* sfpubsub tables rebuild"):
        raw.tables(**mirror)

    @contextmanager
    def ours(*arguments: Any, **options: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", ours)
    command = ["tables", "rebuild", f"--from={raw.path}", f"--to={raw.typed}"]
    command.append(f"--format={TABLE_FORMAT}")
    assert run(command) == 2
    assert "asks for confirmation in a terminal: use --yes" in capsys.readouterr().err
    assert raw.read(QUEUE_NAME).count() == 0
    assert run([*command, "--yes"]) == 0
    printed = capsys.readouterr()
    assert "read again by the next sfpubsub mirror run" in printed.err
    assert json.loads(printed.out)["objects"] == ["Account"]
    (entry,) = raw.read(QUEUE_NAME).toArrow().to_pylist()
    assert (entry["entity_name"], entry["record_id"], entry["reason"]) == ("Account", None, "gap")
    with raw.tables(**mirror) as tables:
        assert tables.newest.applied_seq == 2
        assert list(tables.run()) == []
    assert raw.seqs("AccountChangeEvent") == [0, 1, 2]
