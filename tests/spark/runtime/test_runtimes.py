"""Tests of the jars and settings that each table format needs, and of the errors without them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime import runtimes, session
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.runtimes import RUNTIMES, runtime_for, session_settings
from sfpubsub.spark.runtime.session import spark_session
from tests.spark.conftest import TABLE_FORMAT

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def test_each_format_and_pyspark_version_has_its_maven_coordinate():
    """The coordinate depends on PySpark's minor version, such as 4.2."""
    assert runtime_for("delta", "4.2.0").coordinate == DELTA
    assert runtime_for("delta", "4.1.4").coordinate == DELTA.replace("4.2_", "4.1_")
    assert runtime_for("iceberg", "4.1.4").coordinate == ICEBERG
    assert all(r.tested is None or r.tested.startswith(f"{r.pyspark}.") for r in RUNTIMES)
    assert all(r.coordinate == r.modules[0] for r in RUNTIMES)


@pytest.mark.parametrize(("format_", "version"), [("iceberg", "4.2.0"), ("delta", "4.3.0")])
def test_a_format_without_jars_for_this_pyspark_raises_an_error(format_: str, version: str):
    """The error names the installed PySpark and all supported ones with their coordinates."""
    with pytest.raises(ConfigurationError) as caught:
        runtime_for(format_, version)
    text = str(caught.value)
    assert f"format {format_} has no jars for pyspark {version}" in text
    known = [r for r in RUNTIMES if r.format == format_]
    assert all(f"pyspark {r.pyspark} with {r.coordinate}" in text for r in known)


def test_a_format_without_jars_is_rejected_before_spark_starts(monkeypatch):
    """`spark_session` raises an error for a format without known jars before it starts a JVM."""
    known = [runtime for runtime in RUNTIMES if runtime.format != "delta"]
    monkeypatch.setattr(runtimes, "RUNTIMES", known)
    monkeypatch.setattr(session, "_start_java", _must_not_start)
    with (
        pytest.raises(ConfigurationError, match="format delta has no jars"),
        spark_session(format="delta"),
    ):
        pass


def _must_not_start(settings):
    """Raise an error; used in place of `_start_java` where Spark must not be started."""
    raise AssertionError("spark was started")


@pytest.mark.parametrize("broken", [None, "missing", "cut off"])
def test_cached_jars_are_not_downloaded_again(tmp_path: Path, monkeypatch, broken):
    """Cached jars are used if all of them are there and intact; otherwise Spark downloads them."""
    monkeypatch.setattr(runtimes, "runtime_for", lambda _format: RUNTIMES[0])
    (tmp_path / "jars").mkdir()
    for module in RUNTIMES[0].modules:
        group, artifact, version = module.split(":")
        jar = tmp_path / "jars" / f"{group}_{artifact}-{version}.jar"
        with zipfile.ZipFile(jar, "w") as file:
            file.writestr("x", "x")
    if broken == "missing":
        jar.unlink()
    elif broken:
        jar.write_bytes(jar.read_bytes()[:-10])
    settings = session_settings(
        "delta", {"spark.jars.ivy": str(tmp_path), "spark.sql.extensions": "mine.Extension"}
    )
    assert ("spark.jars" in settings) == (broken is None)
    assert settings.get("spark.jars.packages") == (None if broken is None else DELTA)
    assert settings["spark.sql.extensions"].startswith("mine.Extension,io.delta.")


def test_a_parquet_session_needs_no_settings():
    """Parquet needs neither jars nor other settings."""
    assert session_settings("parquet", {}) == {}


@pytest.mark.parametrize("key", ["spark.delta.logStore.class", "delta.logStore.file.impl"])
def test_a_log_store_of_the_user_is_kept(monkeypatch, key: str):
    """Delta rejects a session with two log stores, so a user's log store is not replaced."""
    monkeypatch.setattr(runtimes, "runtime_for", lambda _format: RUNTIMES[0])
    ours = "spark.delta.logStore.file.impl"
    assert session_settings("delta", {})[ours] == "io.delta.storage.LocalLogStore"
    assert ours not in session_settings("delta", {key: "mine.LogStore"})


def test_a_session_without_jars_raises_an_error_with_the_coordinate(spark):
    """The error names the Maven coordinate of the missing format."""
    missing = "delta" if TABLE_FORMAT == "iceberg" else "iceberg"
    with pytest.raises(ConfigurationError) as caught:
        check_session(spark, missing)
    known = [r.coordinate for r in RUNTIMES if r.format == missing]
    assert any(coordinate in str(caught.value) for coordinate in known)
    check_session(spark, TABLE_FORMAT)


class Session:
    """A fake Spark session that has the sources of all formats, but neither settings nor SQL."""

    def __init__(self, said: str) -> None:
        self.read = self.conf = self
        self.said = said

    def format(self, _name: str) -> Session:
        return self

    def load(self, _path: str) -> None:
        raise AnalysisException("[PATH_NOT_FOUND]")

    def get(self, _key: str, default: str) -> str:
        return default

    def sql(self, _statement: str) -> None:
        raise AnalysisException(self.said)


def test_jars_alone_are_not_enough_for_delta():
    """Without its extension, Delta would fail at the first write; the error names the setting."""
    with pytest.raises(ConfigurationError, match=r"lacks its settings.*--conf spark\.sql\.ext"):
        check_session(Session("[TABLE_OR_VIEW_NOT_FOUND] The table `DETAIL`"), "delta")


def test_delta_that_is_built_in_needs_no_setting():
    """On Databricks, Delta's statements are understood, although no setting names the extension."""
    check_session(Session("[DELTA_MISSING_DELTA_TABLE] `file:///x` is not a Delta table"), "delta")
