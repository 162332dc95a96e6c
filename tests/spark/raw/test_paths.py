"""Tests of how tables and targets are spelled: as a path, a URL, or a name in a catalog."""

from __future__ import annotations

import pathlib
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.runtime.paths import kind_of, local_path

SPELLINGS = {
    "./out": "directory",
    "out/": "directory",
    "dir/out": "directory",
    "dir/raw.orders": "directory",
    "/data/out": "directory",
    "/": "directory",
    "../out": "directory",
    ".": "directory",
    "..": "directory",
    "~": "directory",
    "~/out": "directory",
    "./out.parquet": "directory",
    "./my-out 1": "directory",
    "file:/data/out": "directory",
    "file:///data/out": "directory",
    "FILE:/data/out": "directory",
    "s3a://lake/out": "url",
    "S3A://lake/out": "url",
    "abfss://container@account/out": "url",
    "dbfs:/out": "url",
    "schema.out": "name",
    "catalog.schema.out": "name",
    "out.parquet": "name",
    "_a._b": "name",
    "spark_catalog.größe": "name",
}


@pytest.mark.parametrize("what", ["table", "schema"])
@pytest.mark.parametrize(("spelling", "kind"), SPELLINGS.items())
def test_a_path_has_a_slash_and_a_name_in_a_catalog_has_a_dot(spelling: str, kind: str, what):
    """The spelling alone decides, in the same way for tables and for targets of tables."""
    assert kind_of(spelling, what) == kind


@pytest.mark.parametrize(
    ("spelling", "what", "message"),
    [
        (
            "out",
            "schema",
            "out could be a directory or a schema: write ./out for the directory, or catalog.out "
            "for the schema (the default catalog is spark_catalog)",
        ),
        (
            "out",
            "table",
            "out could be a directory or a table: write ./out for the directory, or schema.out "
            "for the table",
        ),
        ("my-out", "schema", "write ./my-out for the directory, or catalog.schema"),
        ("my-out.orders", "table", "write ./my-out.orders for the directory, or schema.table"),
        (".hidden", "table", "write ./.hidden for the directory"),
        ("out.", "table", "write ./out. for the directory"),
        ("a..b", "table", "write ./a..b for the directory"),
        ("out.2024", "schema", "write ./out.2024 for the directory"),
        ("s3a:out", "table", "write ./s3a:out for the directory"),
        ("a.b\n", "table", "neither a path"),
        ("", "table", "empty"),
    ],
)
def test_any_other_spelling_is_refused(spelling: str, what, message: str):
    """A bare name, and a name that Spark SQL would not accept without quotes, is refused. The
    error names the spelling of a directory and of a name in a catalog.
    """
    with pytest.raises(ConfigurationError) as raised:
        kind_of(spelling, what)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["out", "raw.orders", "my-out"])
def test_a_path_object_is_always_a_path(name: str, tmp_path: Path, monkeypatch):
    """A `pathlib.Path` names a directory, however it is spelled, as a table and as a target."""
    monkeypatch.chdir(tmp_path)
    for path in (Path(name), pathlib.PurePosixPath(name)):
        assert kind_of(path, "table") == kind_of(path, "schema") == "directory"
        assert Destination.of_tables(path, "delta").local == tmp_path / name
        for format_ in ("parquet", "delta", "iceberg"):
            assert Destination.parse(path, format_).local == tmp_path / name


def test_a_bare_name_is_refused_in_every_format():
    """Whether a name is a directory does not depend on the format."""
    for format_ in ("parquet", "delta", "iceberg"):
        with pytest.raises(ConfigurationError, match=r"write \./out for the directory"):
            Destination.parse("out", format_)
    for format_ in ("delta", "iceberg"):
        with pytest.raises(ConfigurationError, match=r"write \./out for the directory"):
            Destination.of_tables("out", format_)


def test_a_parquet_table_is_not_in_a_catalog():
    """A name in a catalog is refused for Parquet, with the spelling of the directory."""
    with pytest.raises(ConfigurationError, match=r"write \./out\.parquet for the directory"):
        Destination.parse("out.parquet", "parquet")


def test_local_paths_and_file_urls_name_the_same_directory(tmp_path: Path, monkeypatch):
    """Absolute paths, relative paths and `file:` URLs are equivalent. An empty path and a URL of
    another machine are rejected.
    """
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / "a b"
    assert local_path("a b") == local_path(tmp_path / "a b") == expected
    assert (
        local_path(f"file://{tmp_path}/a%20b") == local_path(f"file:{tmp_path}/a%20b") == expected
    )
    for text, message in (("", "empty"), ("file://host/x", "is not on this machine")):
        with pytest.raises(ConfigurationError, match=message):
            local_path(text)


def test_home_and_the_working_directory_are_paths(tmp_path: Path, monkeypatch):
    """`~` and `~/x` are in the home directory; `.` and a relative path in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert local_path("~") == tmp_path / "home"
    assert local_path("~/x") == tmp_path / "home" / "x"
    assert local_path(".") == tmp_path
    assert Destination.parse("./x", "delta").address == str(tmp_path / "x")
