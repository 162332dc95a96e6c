"""A smoke test of the commands with the compiled decoder, where it is installed.

``scripts/test.sh`` runs all other tests with the Python decoder, which every installation has;
``scripts/native.sh --test`` runs this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub import native
from sfpubsub.cli.main import run
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.cli.test_cli import environment
from tests.client.test_managed import TOPIC, orders
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World
from tests.spark.readers import read_table


@pytest.mark.skipif(not native.is_installed(), reason="sfpubsub-native is not installed, or off")
def test_subscribe_ingest_and_mirror_work_with_the_compiled_decoder(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """With the compiled decoder, the lines, the raw table and the mirror have what the org has."""

    @contextmanager
    def ours(*_arguments: Any, **_options: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", ours)
    raw = tmp_path / "raw"
    numbers = [row["Order_Number__c"] for row in orders(5)]
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        assert run(["--version"]) == 0
        assert "compiled decoder" in capsys.readouterr().out
        emulator.publish(TOPIC, orders(5))
        start = [f"--topic={TOPIC}", "--replay=earliest"]
        assert run(["subscribe", *start, "--max-events=5"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["payload"]["Order_Number__c"] for line in lines] == numbers
        options = ["--once", "--idle-timeout=60", "--fallback=earliest"]
        assert run(["ingest", f"--topic={TOPIC}", f"--to={raw}", *options]) == 0
        texts = read_table(raw, "parquet")["payload_json"].to_pylist()
        assert [json.loads(text)["Order_Number__c"] for text in texts] == numbers
        world = World(spark, tmp_path, emulator, TABLE_FORMAT)
        made = world.create(2)
        with world.mirror() as mirror:
            world.settle(mirror)
            world.update(made[0], Phone="1")
            world.settle(mirror)
            world.check()
