"""Destinations that are refused, and why; no Spark is needed for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw import ownership
from sfpubsub.spark.raw.destination import Destination, check_format
from sfpubsub.spark.raw.ownership import (
    check_destination,
    claim_table,
    make_table_directory,
    sources_of,
)
from sfpubsub.spark.raw.paths import local_path
from sfpubsub.spark.raw.sources import Source

TOPIC = (Source("topic", "/event/A__e"),)


@pytest.mark.parametrize(
    "url", ["s3a://bucket/x", "hdfs://host/x", "gs://b/x", "abfss://c@a/x", "dbfs:/x", "file://h/x"]
)
def test_a_destination_without_rename_is_refused(url: str):
    """An object store has no atomic rename, so a batch could be seen in part."""
    with pytest.raises(ConfigurationError, match="one rename"):
        local_path(url)


def test_local_forms_name_the_same_directory(tmp_path: Path, monkeypatch):
    """A path, a relative path, and a URL of scheme file."""
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / "a b"
    assert local_path("a b") == local_path(tmp_path / "a b") == expected
    assert (
        local_path(f"file://{tmp_path}/a%20b") == local_path(f"file:{tmp_path}/a%20b") == expected
    )
    with pytest.raises(ConfigurationError, match="empty"):
        local_path("")


def test_a_file_is_no_destination(tmp_path: Path):
    """Nor is a path below one, nor a broken link."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="is not a directory"):
        check_destination(tmp_path / "file", TOPIC)
    with pytest.raises(ConfigurationError, match=r"cannot be written|is not a directory"):
        check_destination(tmp_path / "file" / "below", TOPIC)
    with pytest.raises(ConfigurationError, match="link"):
        check_destination(tmp_path / "link", TOPIC)


def test_a_directory_without_permission_is_refused(tmp_path: Path, monkeypatch):
    """It is named, before anything is started. (Root may write anywhere, so access is faked.)"""
    monkeypatch.setattr(ownership.os, "access", lambda path, mode: False)
    with pytest.raises(ConfigurationError, match="is not writable"):
        check_destination(tmp_path, TOPIC)
    with pytest.raises(ConfigurationError, match=f"{tmp_path} is not writable"):
        check_destination(tmp_path / "new" / "er", TOPIC)


def test_a_read_only_file_system_is_refused(tmp_path: Path, monkeypatch):
    """The system's reason is in the message."""

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigurationError, match="Read-only file system"):
        make_table_directory(tmp_path / "new")
    monkeypatch.setattr(ownership, "replace_file", refuse)
    with pytest.raises(ConfigurationError, match="Read-only file system"):
        claim_table(tmp_path, TOPIC)


def test_checking_changes_nothing(tmp_path: Path):
    """A destination that is only looked at stays as it is."""
    check_destination(tmp_path / "new", TOPIC)
    check_destination(tmp_path, TOPIC)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_was_never_written_may_change_hands(tmp_path: Path):
    """A mistyped topic does not keep the path."""
    claim_table(tmp_path, [Source("topic", "/event/Typo__e")])
    claim_table(tmp_path, TOPIC)
    (tmp_path / "_position").write_text("")
    check_destination(tmp_path, TOPIC)


@pytest.mark.parametrize("written", ["ingest_date=2026-11-20", "_position"])
def test_a_table_belongs_to_its_first_source(tmp_path: Path, written: str):
    """Another topic, or a managed subscription of any name, is refused; both are named."""
    claim_table(tmp_path, TOPIC)
    (tmp_path / written).mkdir()
    claim_table(tmp_path, TOPIC)
    other = [Source("managed", "My_Sub")]
    with pytest.raises(ConfigurationError) as caught:
        claim_table(tmp_path, other)
    assert "topic /event/A__e" in str(caught.value)
    assert "managed subscription My_Sub" in str(caught.value)
    assert "choose another destination" in str(caught.value)


def test_a_start_that_died_early_does_not_block_the_next(tmp_path: Path):
    """Our own first files are not a foreign directory's."""
    (tmp_path / "_lease").write_text("")
    (tmp_path / "_table.json.123.tmp").write_text("{")
    claim_table(tmp_path, TOPIC)


def test_a_table_of_a_newer_layout_is_not_written(tmp_path: Path):
    """This version would leave its new columns empty, and nobody would see it."""
    (tmp_path / "_table.json").write_text('{"layout": 4, "format": "parquet", "topic": "x"}')
    with pytest.raises(ConfigurationError, match="layout 4, which a newer version of sfpubsub"):
        check_destination(tmp_path, TOPIC)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"layout": 0, "format": "parquet", "topic": "x"}', "{}"]
)
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, text: str):
    """A damaged file is not guessed at."""
    (tmp_path / "_table.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"version of sfpubsub cannot use"):
        check_destination(tmp_path, TOPIC)


def test_a_format_that_does_not_exist_names_those_that_do():
    """Before Spark is started."""
    with pytest.raises(ConfigurationError, match="use one of parquet, delta, iceberg"):
        check_format("csv")


def test_table_formats_take_urls_and_catalogs(tmp_path: Path):
    """A URL of any scheme; for iceberg a catalog's table; everything else is a directory."""
    url = Destination.parse("s3a://bucket/a/orders/", "delta")
    assert (url.address, url.local, url.name) == ("s3a://bucket/a/orders", None, "orders")
    named = Destination.parse("shop.sales.orders", "iceberg")
    assert (named.in_catalog, named.local, named.name) == (True, None, "orders")
    assert Destination.parse("shop.sales.orders", "delta").in_catalog
    assert Destination.parse("sales.orders", "iceberg").in_catalog, "of the session's catalog"
    assert Destination.parse("./sales.orders", "delta").local is not None
    assert Destination.parse(f"file://{tmp_path}/a%20b", "delta").local == tmp_path / "a b"
    with pytest.raises(ConfigurationError, match="table format: delta or iceberg"):
        Destination.parse("s3a://bucket/x", "parquet")


def test_a_table_of_one_format_is_refused_to_another(tmp_path: Path):
    """A log of the format is left to Spark to read; anything else that is there is a stranger's."""
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    Destination.parse(tmp_path / "delta", "delta").check(TOPIC)
    for other in ("iceberg", "parquet"):
        with pytest.raises(ConfigurationError, match="nor an sfpubsub table"):
            Destination.parse(tmp_path / "delta", other).check(TOPIC)
    (tmp_path / "parquet").mkdir()
    claim_table(tmp_path / "parquet", TOPIC)
    with pytest.raises(ConfigurationError, match="is a parquet table of topic"):
        Destination.parse(tmp_path / "parquet", "delta").check(TOPIC)


def test_sources_are_told_apart_by_their_names():
    """In a table's column and in its positions; by a catalog that knows no case as well."""
    assert Source.several("S") == (Source("managed", "S"),)
    assert Source.several(None, ["/event/A__e", "/event/A__e"]) == TOPIC
    assert Source.several("S", "/event/A__e", ["/topic/A", "/u/B"]) == (
        Source("managed", "S"),
        *TOPIC,
        Source("channel", "/topic/A"),
        Source("channel", "/u/B"),
    )
    for nothing in ((None, None), ("", None), ([], [])):
        with pytest.raises(ConfigurationError, match="needs at least one"):
            Source.several(*nothing)
    with pytest.raises(ConfigurationError, match="channel /event/a__e from topic /event/A__e"):
        Source.several(None, "/event/A__e", "/event/a__e")


def test_a_source_joins_in_the_company_of_one_of_the_table(tmp_path: Path):
    """By itself it may be there by a slip in the table's name; later it may come alone."""
    claim_table(tmp_path, TOPIC)
    (tmp_path / "_position").mkdir()
    other = Source("topic", "/event/B__e")
    with pytest.raises(ConfigurationError, match="also name one of the existing sources"):
        claim_table(tmp_path, [other])
    claim_table(tmp_path, [other, *TOPIC])
    claim_table(tmp_path, [other])
    assert sources_of(tmp_path) == (*TOPIC, other)


def test_a_table_of_one_source_of_an_older_version_goes_on(tmp_path: Path):
    """Its identity names the kind of its source."""
    text = '{"layout": 2, "format": "parquet", "topic": "/event/A__e"}'
    (tmp_path / "_table.json").write_text(text)
    (tmp_path / "_position").write_text("")
    claim_table(tmp_path, [*TOPIC, Source("managed", "S")])
    assert sources_of(tmp_path) == (*TOPIC, Source("managed", "S"))


def test_new_directories_are_made(tmp_path: Path):
    """With those above them."""
    make_table_directory(tmp_path / "a" / "b")
    assert os.path.isdir(tmp_path / "a" / "b")
