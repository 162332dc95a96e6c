"""Tests of the checks of a raw table's destination and owner, without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError, OtherOrgError
from sfpubsub.spark.formats import check_raw_format
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw import ownership
from sfpubsub.spark.raw.destination import check_sources
from sfpubsub.spark.raw.layout import LAYOUT
from sfpubsub.spark.raw.ownership import (
    check_destination,
    claim_table,
    make_table_directory,
    sources_of,
)
from sfpubsub.spark.raw.sources import Source

TOPIC = (Source("topic", "/event/A__e"),)


@pytest.mark.parametrize(
    "url", ["s3a://bucket/x", "hdfs://host/x", "gs://b/x", "abfss://c@a/x", "dbfs:/x"]
)
def test_a_destination_without_rename_is_refused(url: str):
    """Parquet needs an atomic rename; without it, readers could see part of a batch."""
    with pytest.raises(ConfigurationError, match="one rename"):
        Destination.parse(url, "parquet")


def test_a_file_or_broken_link_is_rejected_as_destination(tmp_path: Path):
    """A file, a path below a file, and a broken link are not valid destinations."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="is not a directory"):
        check_destination(tmp_path / "file", TOPIC)
    with pytest.raises(ConfigurationError, match=r"cannot be written|is not a directory"):
        check_destination(tmp_path / "file" / "below", TOPIC)
    with pytest.raises(ConfigurationError, match="link"):
        check_destination(tmp_path / "link", TOPIC)


def test_a_directory_without_permission_is_refused(tmp_path: Path, monkeypatch):
    """If the destination's nearest existing directory is not writable, the error names it.

    Root may write anywhere, so the access check is replaced.
    """
    monkeypatch.setattr(ownership.os, "access", lambda path, mode: False)
    with pytest.raises(ConfigurationError, match="is not writable"):
        check_destination(tmp_path, TOPIC)
    with pytest.raises(ConfigurationError, match=f"{tmp_path} is not writable"):
        check_destination(tmp_path / "new" / "er", TOPIC)


def test_a_read_only_file_system_is_refused(tmp_path: Path, monkeypatch):
    """The error contains the reason given by the operating system."""

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigurationError, match="Read-only file system"):
        make_table_directory(tmp_path / "new")
    monkeypatch.setattr(ownership, "replace_file", refuse)
    with pytest.raises(ConfigurationError, match="Read-only file system"):
        claim_table(tmp_path, TOPIC)


def test_checking_a_destination_creates_nothing(tmp_path: Path):
    """`check_destination` creates neither the directory nor files in it."""
    check_destination(tmp_path / "new", TOPIC)
    check_destination(tmp_path, TOPIC)
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_rows_can_be_claimed_for_another_topic(tmp_path: Path):
    """A mistyped topic in the first run does not make the directory unusable."""
    claim_table(tmp_path, [Source("topic", "/event/Typo__e")])
    claim_table(tmp_path, TOPIC)
    (tmp_path / "_position").write_text("")
    check_destination(tmp_path, TOPIC)


@pytest.mark.parametrize("written", ["ingest_date=2026-11-20", "_position"])
def test_a_table_belongs_to_its_first_source(tmp_path: Path, written: str):
    """Once a table has data, starting with another source is rejected; the error names both."""
    claim_table(tmp_path, TOPIC)
    (tmp_path / written).mkdir()
    claim_table(tmp_path, TOPIC)
    other = [Source("managed", "My_Sub")]
    with pytest.raises(ConfigurationError) as caught:
        claim_table(tmp_path, other)
    assert "topic /event/A__e" in str(caught.value)
    assert "managed subscription My_Sub" in str(caught.value)
    assert "choose another destination" in str(caught.value)


def test_a_table_belongs_to_one_org(tmp_path: Path):
    """Once a table has data, the session of another org is rejected, and the error names both orgs.

    The 15- and the 18-character id of an org are the same, and an unknown org is accepted.
    """
    claim_table(tmp_path, TOPIC, org_id="00D000000000003EAA")
    claim_table(tmp_path, TOPIC, org_id="00D000000000001")
    (tmp_path / "ingest_date=2026-11-20").mkdir()
    for same in ("00D000000000001", "00D000000000001EAA", None):
        claim_table(tmp_path, TOPIC, org_id=same)
    with pytest.raises(OtherOrgError) as caught:
        claim_table(tmp_path, TOPIC, org_id="00D000000000002")
    assert "00D000000000001EAA, not of 00D000000000002EAA" in str(caught.value)
    assert ownership.org_of(tmp_path) == "00D000000000001EAA"


def test_an_interrupted_first_start_does_not_block_the_next(tmp_path: Path):
    """Files left behind by an interrupted first start are not mistaken for foreign files."""
    (tmp_path / "_lease").write_text("")
    (tmp_path / "_table.json.123.tmp").write_text("{")
    claim_table(tmp_path, TOPIC)


def test_a_table_of_a_newer_layout_is_not_written(tmp_path: Path):
    """A table of a newer layout is rejected, because its new columns would silently stay empty."""
    claim_table(tmp_path, TOPIC)
    file = tmp_path / "_table.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "layout": LAYOUT + 1}))
    with pytest.raises(ConfigurationError, match=f"layout {LAYOUT + 1}, which a newer version"):
        check_destination(tmp_path, TOPIC)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ('{"layout": 1, "sources": [], "id": "x"}', "cannot be read"),
        ('{"layout": 0, "sources": [["topic", "x"]], "id": "x"}', "unknown layout 0"),
    ],
)
def test_an_unreadable_table_identity_is_rejected(tmp_path: Path, text: str, reason: str):
    """A damaged `_table.json` raises an error and is not replaced."""
    (tmp_path / "_table.json").write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        check_destination(tmp_path, TOPIC)


def test_an_unknown_table_format_is_rejected():
    """The error lists the formats that exist."""
    with pytest.raises(ConfigurationError, match="use one of parquet, delta, iceberg"):
        check_raw_format("csv")


def test_delta_and_iceberg_accept_urls_and_catalog_tables(tmp_path: Path):
    """Delta and Iceberg accept URLs and the dotted names of catalog tables.

    A path such as `./sales.orders` is a directory. Parquet rejects URLs other than `file:`.
    """
    url = Destination.parse("s3a://bucket/a/orders/", "delta")
    assert (url.address, url.local, url.name) == ("s3a://bucket/a/orders", None, "orders")
    named = Destination.parse("shop.sales.orders", "iceberg")
    assert (named.in_catalog, named.local, named.name) == (True, None, "orders")
    assert Destination.parse("shop.sales.orders", "delta").in_catalog
    assert Destination.parse("sales.orders", "iceberg").in_catalog, (
        "a table of the session's catalog"
    )
    assert Destination.parse("./sales.orders", "delta").local is not None
    assert Destination.parse(f"file://{tmp_path}/a%20b", "delta").local == tmp_path / "a b"
    with pytest.raises(ConfigurationError, match="table format: delta or iceberg"):
        Destination.parse("s3a://bucket/x", "parquet")


def test_a_table_of_another_format_is_rejected(tmp_path: Path):
    """A Delta log is accepted only for Delta, and a Parquet table only for Parquet."""
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    check_sources(Destination.parse(tmp_path / "delta", "delta"), TOPIC)
    for other in ("iceberg", "parquet"):
        with pytest.raises(ConfigurationError, match="nor an sfpubsub table"):
            check_sources(Destination.parse(tmp_path / "delta", other), TOPIC)
    (tmp_path / "parquet").mkdir()
    claim_table(tmp_path / "parquet", TOPIC)
    with pytest.raises(ConfigurationError, match="is a parquet table of topic"):
        check_sources(Destination.parse(tmp_path / "parquet", "delta"), TOPIC)


def test_sources_need_names_that_differ_in_more_than_case():
    """A table needs at least one source; repeated sources are merged.

    Sources of different kinds whose names differ only in case are rejected.
    """
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
    with pytest.raises(ConfigurationError, match="both channel /event/a__e and topic /event/A__e"):
        Source.several(None, "/event/A__e", "/event/a__e")


def test_a_new_source_needs_an_existing_one_to_join_a_table(tmp_path: Path):
    """A new source is accepted only if an existing source of the table is given with it.

    Given alone, it may mean that the destination was mistyped. Once added, it can be used alone.
    """
    claim_table(tmp_path, TOPIC)
    (tmp_path / "_position").mkdir()
    other = Source("topic", "/event/B__e")
    with pytest.raises(ConfigurationError, match="also name one of the existing sources"):
        claim_table(tmp_path, [other])
    claim_table(tmp_path, [other, *TOPIC])
    claim_table(tmp_path, [other])
    assert sources_of(tmp_path) == (*TOPIC, other)


def test_missing_directories_are_created(tmp_path: Path):
    """`make_table_directory` also creates missing parent directories."""
    make_table_directory(tmp_path / "a" / "b")
    assert os.path.isdir(tmp_path / "a" / "b")
