"""Tests of the mailbox: signals are durable, ordered, and processed at least once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT


def mailbox(directory: Path) -> Mailbox:
    """Return a mailbox in a local directory."""
    return Mailbox(None, Destination.of_tables(directory, TABLE_FORMAT))


def test_signals_wait_in_order_until_they_are_done(tmp_path: Path):
    """Signals stay readable, unchanged and in the order they were put, until marked as done."""
    given = [
        Signal("reread", "Account", "Name LIKE 'A%'"), Signal("pause"), Signal("add", "Order__c"),
        Signal("resume"),
    ]  # fmt: skip
    for number, signal in enumerate(given):
        mailbox(tmp_path).put(Signal(signal.kind, signal.entity, signal.where, f"s-{number}"))
    found = mailbox(tmp_path).waiting()
    assert [(each.kind, each.entity, each.where) for each in found] == [
        (each.kind, each.entity, each.where) for each in given
    ]
    mailbox(tmp_path).done(["s-0", "s-2"])
    assert [each.id for each in mailbox(tmp_path).waiting()] == ["s-1", "s-3"]


def test_generated_signal_ids_are_unique_and_in_order():
    """Signals created without an id receive unique ids that sort by time."""
    made = [Signal("pause").id for _ in range(1000)]
    assert [name.partition("-")[0] for name in made] == sorted(
        name.partition("-")[0] for name in made
    )
    assert len(set(made)) == len(made)


def test_putting_a_signal_again_has_no_effect(tmp_path: Path):
    """Putting a signal again has no effect, even after it is done, so that a sender can retry."""
    box, signal = mailbox(tmp_path), Signal("pause")
    box.put(signal)
    box.put(signal)
    assert box.waiting() == [signal]
    box.done([signal.id])
    box.put(signal)
    assert box.waiting() == []
    # Only the mark is left, so the signal cannot return when its mark is deleted.
    assert [path.name for path in (tmp_path / "_mailbox").iterdir()] == [f"{signal.id}.done"]


def test_marked_signal_is_done_although_its_file_remains(tmp_path: Path):
    """A signal already marked as done is ignored, even if a kill left its file in place."""
    box, signal = mailbox(tmp_path), Signal("pause")
    box.put(signal)
    (tmp_path / "_mailbox" / f"{signal.id}.done").touch()
    assert box.waiting() == []


def test_only_the_newest_marks_are_kept(tmp_path: Path):
    """Old marks of completed signals are deleted, so that a mailbox does not grow without bound."""
    box = mailbox(tmp_path)
    box.put(Signal("pause", id="0000"))
    for number in range(0, 400, 100):
        box.done(f"{each:04d}" for each in range(number, number + 100))
    names = sorted(path.name for path in (tmp_path / "_mailbox").iterdir())
    assert names == [f"{number:04d}.done" for number in range(200, 400)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "dance"}', '{"kind": "reread"}'])
def test_invalid_signal_file_is_logged_once_and_kept(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """An invalid signal file, for example from a newer version, is logged once and kept.

    It does not block other signals.
    """
    box = mailbox(tmp_path)
    box.put(Signal("resume", id="b"))
    (tmp_path / "_mailbox" / "a.json").write_text(text)
    (tmp_path / "_mailbox" / "c.json.1234.tmp").write_text("{")  # left by a sender that was killed
    assert [each.id for each in box.waiting()] == ["b"]
    assert [each.id for each in box.waiting()] == ["b"]
    assert [record.message.count("a.json") for record in caplog.records] == [1]
    assert (tmp_path / "_mailbox" / "a.json").exists()


def test_signal_id_that_is_not_a_file_name_is_rejected(tmp_path: Path):
    """A signal id that contains a path is rejected, as it could write outside the mailbox."""
    with pytest.raises(ConfigurationError, match="not a valid signal id"):
        mailbox(tmp_path).put(Signal("pause", id="../x"))


def test_mailbox_on_an_object_store_requires_a_spark_session():
    """Without a session, a mailbox on an object store raises an error that names the place."""
    with pytest.raises(ConfigurationError, match=r"s3a://bucket/lake .*pass a Spark session"):
        Mailbox(None, Destination.of_tables("s3a://bucket/lake", "delta"))


def test_signals_created_in_one_moment_stay_in_order(tmp_path: Path):
    """Signals are read in the order they were created, not the order they were put.

    The order matters: the later of a pause and a resume takes effect.
    """
    box, signals = mailbox(tmp_path), [Signal("pause") for _ in range(50)]
    for signal in reversed(signals):
        box.put(signal)
    assert box.waiting() == signals


def test_mailbox_on_a_hadoop_file_system(spark: SparkSession, lake: Path):
    """A mailbox on a file system accessed through Spark works like one in a local directory."""
    box = Mailbox(spark, Destination.of_tables("viewfs://lake/tables/mirrored", TABLE_FORMAT))
    first, second = Signal("reread", "Account", "Name = 'x'"), Signal("pause")
    assert box.waiting() == []
    box.put(first)
    box.put(second)
    assert box.waiting() == [first, second]
    box.done([first.id])
    box.put(first)
    assert box.waiting() == [second]
    assert (lake / "mirrored" / "_sidecars").is_dir()


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file, whose writer may have been killed in mid-line."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _run_and_kill(side: str, directory: Path, log: Path, more: int) -> None:
    """Run a process that puts or takes signals, until it has added *more* lines to its log.

    Then kill the process.
    """
    before = len(_lines(log))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.mirror.mailbox_process", side, str(directory), str(log)]
    )
    try:
        until(
            lambda: len(_lines(log)) >= before + more or process.poll() is not None,
            "the other side's progress",
        )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_signals_survive_kills_of_both_sides(tmp_path: Path):
    """No signal is lost when the processes that put and take signals are killed.

    Each kill duplicates at most one signal.
    """
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # pytest shows it if the test fails
    rng = random.Random(seed)
    put, taken = tmp_path / "put.log", tmp_path / "taken.log"
    for _ in range(2):
        _run_and_kill("put", tmp_path, put, rng.randint(10, 60))
        _run_and_kill("take", tmp_path, taken, rng.randint(1, 8))
    box = mailbox(tmp_path)
    left = [each.id for each in box.waiting()]
    assert left == sorted(left)
    assert set(_lines(put)) <= {*_lines(taken), *left}
    # Each kill may leave one signal that was put without its line, or one that was taken twice.
    assert len({*_lines(taken), *left} - set(_lines(put))) <= 2
    assert len(_lines(taken)) - len(set(_lines(taken))) <= 2
    box.done(left)
    assert box.waiting() == []
