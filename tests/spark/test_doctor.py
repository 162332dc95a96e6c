"""Tests of ``sfpubsub doctor --spark``."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from sfpubsub.cli.main import run
from tests.spark.conftest import TABLE_FORMAT


def test_what_works_in_a_session_is_told_and_what_does_not(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
):
    """Each check has one line; a format or file system without jars is a warning with its reason.

    Nobody is signed in: the command needs no org.
    """
    assert run(["doctor", "--spark", "--json"]) == 0
    found = {line["check"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert f"Spark {spark.version}, a classic session" in found["spark"]["detail"]
    assert found[f"format {TABLE_FORMAT}"]["detail"] == "works in this session"
    assert found["file system s3a"]["result"] == "warning"
    assert found["own session"]["result"] == "ok"
    if TABLE_FORMAT == "delta":
        assert "format iceberg has no jars for pyspark 4.2" in found["format iceberg"]["detail"]
