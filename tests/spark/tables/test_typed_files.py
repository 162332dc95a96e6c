"""Whose a directory of typed tables is. Needs no Spark session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.tables.typed_files import claim_typed


def claim_for(path: Path, raw: Path | str, format: str = "parquet") -> None:  # noqa: A002
    claim_typed(path, Destination.parse(raw, format))


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "typed").mkdir()
    claim_for(tmp_path / "typed", tmp_path / "raw")
    return tmp_path / "typed"


@pytest.mark.parametrize("left", ["_lease", "_staging", "_typed.json.0123.tmp"])
def test_a_claim_without_a_table_is_given_up(typed, left):
    """A mistyped source or format does not keep a path: whoever comes next has it."""
    (typed / left).mkdir()
    claim_for(typed, typed.parent / "raw", "delta")
    claim_for(typed, typed.parent / "other")
    (typed / "Order_Event__e").mkdir()
    with pytest.raises(ConfigurationError, match=r"is derived from .*/other \(parquet\)"):
        claim_for(typed, typed.parent / "raw")
    claim_for(typed, typed.parent / "other")


@pytest.mark.parametrize("name", ["_derived", "_ready", "_undecodable", "Order_Event__e"])
def test_what_was_derived_stays_its_sources(typed, name):
    """Typed tables of two raw tables are never mixed; the same one goes on by any path to it."""
    (typed / name).mkdir()
    for raw, format_ in (("raw", "delta"), ("other", "parquet")):
        with pytest.raises(ConfigurationError, match="is derived from"):
            claim_for(typed, typed.parent / raw, format_)
    os.symlink(typed.parent / "raw", typed.parent / "link")
    for same in ("raw", "raw/../raw", "link"):
        claim_for(typed, f"{typed.parent}/{same}")


def test_a_staging_that_nobody_claimed_is_foreign(tmp_path):
    """It would be removed."""
    (tmp_path / "_staging").mkdir()
    with pytest.raises(ConfigurationError, match="'_staging'"):
        claim_for(tmp_path, tmp_path.parent / "raw")
