"""The commands reject another org's session or rows, so the data of two orgs is never mixed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.cli.main import run
from sfpubsub.emulator.server import EmulatorServer
from tests.cli.test_cli import environment
from tests.client.test_managed import TOPIC, orders


def test_the_data_of_two_orgs_is_never_mixed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """`ingest` rejects the session of another org before it reads an event, and `tables` rejects a
    raw table with rows of another org: the exit code is 2, and the error names both orgs.
    """

    @contextmanager
    def ours(*arguments: Any, **options: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", ours)
    raw, target = tmp_path / "raw", tmp_path / "typed"
    tables = ["tables", f"--from={raw}", f"--to={target}"]
    ids = "00D000000000001EAA, not of 00D000000000009EAA"

    def ingest(emulator: EmulatorServer) -> int:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        options = ["--once", "--idle-timeout=60", "--fallback=earliest"]
        return run(["ingest", f"--topic={TOPIC}", f"--to={raw}", *options])

    with (
        EmulatorServer(tmp_path / "one", org_id="00D000000000001") as one,
        EmulatorServer(tmp_path / "other", org_id="00D000000000009") as other,
    ):
        one.publish(TOPIC, orders(3))
        other.publish(TOPIC, orders(2))
        assert ingest(one) == 0
        assert run(tables) == 0
        before = one_line(capsys)
        assert ingest(other) == 2
        assert ids in capsys.readouterr().err
        assert run(tables) == 0
        assert one_line(capsys)["batches"] == 0

        identity = raw / "_table.json"  # as if a program had written the rows of another org
        identity.write_text(identity.read_text().replace("00D000000000001EAA", ""))
        assert ingest(other) == 0
        assert run(tables) == 2
        assert ids in capsys.readouterr().err
    assert before["rows"] == {"Order_Event__e": 3}


def one_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the last line of stdout, parsed as JSON."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found
