"""Sidecar files are stored beside the table's directory."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw import destination, sidecar_paths
from sfpubsub.spark.raw.destination import check_sources, sidecar_directory
from sfpubsub.spark.raw.ownership import check_destination, claim_table
from sfpubsub.spark.raw.sources import Source
from tests.spark.sample_events import TOPIC as TOPIC_NAME

TOPIC = (Source("topic", TOPIC_NAME),)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made = tmp_path / "orders"
    made.mkdir()
    return made


def test_a_new_parquet_table_contains_no_sidecars(table: Path):
    """A new Parquet table's sidecars are in a hidden directory beside it, even if it is opened
    through a link.

    A Delta table's sidecars are inside the table.
    """
    place = claim_table(table, TOPIC)
    assert place == table.parent / ".orders.sfpubsub"
    assert [path.name for path in table.iterdir()] == ["_table.json"]
    link = table.parent / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(table)
    assert sidecar_directory(Destination.parse(link, "parquet")) == place
    assert sidecar_directory(Destination.parse(table, "delta")) == table, (
        "its readers use the log, so other files do not matter"
    )


class Killed(BaseException):
    """Stand-in for SIGKILL: no `except Exception` in the package catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Patch `os` so that the *step*-th call that changes a file, from 1, raises `Killed`."""
    left = [step]

    def dying(function: Callable) -> Callable:
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return function(*arguments, **options)

        return call

    for name in ("rename", "replace", "mkdir", "rmdir", "unlink", "fsync"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))


def claim_completes(table: Path, step: int) -> bool:
    """Claim a table with a kill at *step*; return whether that step was never reached."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, step)
        try:
            claim_table(table, TOPIC)
        except Killed:
            return False
    return True


def tables(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield new table directories, each with the step at which to kill: 1, 2 and so on."""
    for step in count(1):
        table = directory / str(step) / "orders"
        table.mkdir(parents=True)
        yield table, step


def test_a_new_table_survives_a_kill_at_any_step(tmp_path: Path):
    """A start that is killed at any step while it creates the table does not block the next one."""
    for table, step in tables(tmp_path):
        survived = claim_completes(table, step)
        place = claim_table(table, TOPIC)
        assert place.is_dir()
        assert json.loads((table / "_table.json").read_text())["layout"] == 1
        if survived:
            assert step > 10
            return


def test_a_chosen_staging_directory_is_stored_in_the_table(table: Path, tmp_path: Path):
    """Readers and later starts find the chosen directory without an option.

    Another directory is rejected until the sidecars have been moved there.
    """
    other = tmp_path / "other"
    place = claim_table(table, TOPIC, other)
    assert place == other / ".orders.sfpubsub"
    assert sidecar_directory(Destination.parse(table, "parquet")) == place
    assert claim_table(table, TOPIC) == place
    third = tmp_path / "third"
    with pytest.raises(ConfigurationError, match=f"are in {place}: omit --staging"):
        check_destination(table, TOPIC, staging=third)
    third.mkdir()
    os.rename(place, third / place.name)
    assert claim_table(table, TOPIC, third) == third / place.name
    assert sidecar_directory(Destination.parse(table, "parquet")) == third / place.name


def test_two_tables_cannot_share_a_sidecar_directory(table: Path, tmp_path: Path):
    """A directory that holds the sidecars of one table is rejected for another.

    Once the first table has been deleted, the directory can be reused.
    """
    other = tmp_path / "other"
    claim_table(table, TOPIC, other)
    namesake = tmp_path / "more" / "orders"
    namesake.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=f"belongs to the table {table}"):
        claim_table(namesake, TOPIC, other)
    assert list(namesake.iterdir()) == []
    shutil.rmtree(table)
    claim_table(namesake, TOPIC, other)


def test_a_staging_directory_inside_the_table_is_rejected(table: Path):
    """A staging directory inside the table is rejected, even under a hidden name.

    Readers that scan the table's directory would find its files.
    """
    for inside in (table, table / ".staging"):
        place = Destination.parse(table, "parquet", inside)
        with pytest.raises(ConfigurationError, match="is inside the table"):
            check_sources(place, TOPIC)


def test_a_staging_directory_on_another_file_system_is_rejected(table: Path, monkeypatch):
    """Different devices are detected up front, and a bind mount by its first failed rename; the
    table is left unchanged.
    """
    shared_memory = Path("/dev/shm")  # another file system on most machines
    if shared_memory.is_dir() and shared_memory.stat().st_dev != table.stat().st_dev:
        with pytest.raises(ConfigurationError, match=r"different file systems.*--staging"):
            check_sources(Destination.parse(table, "parquet", shared_memory / "x"), TOPIC)

    def refuse(source, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    # As for a bind mount, which has the same device.
    monkeypatch.setattr(sidecar_paths.os, "rename", refuse)
    with pytest.raises(ConfigurationError, match="a mount point, write to a directory inside it"):
        claim_table(table, TOPIC)
    assert list(table.iterdir()) == []
    assert [path.name for path in (table.parent / ".orders.sfpubsub").iterdir()] == ["table.json"]


def test_a_read_only_parent_directory_is_rejected(table: Path, monkeypatch):
    """The error names the directory and suggests --staging."""
    real = os.access
    monkeypatch.setattr(
        destination.os, "access", lambda path, mode: path != table.parent and real(path, mode)
    )
    with pytest.raises(ConfigurationError, match=rf"{table.parent} is not writable.*--staging"):
        check_destination(table, TOPIC)


def test_a_staging_directory_is_rejected_for_delta():
    """Only Parquet tables stage files and rename them, so only they accept a staging directory."""
    with pytest.raises(ConfigurationError, match="has no staging directory"):
        Destination.parse("/data/orders", "delta", "/data/staging")
