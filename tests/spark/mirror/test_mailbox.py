"""Signals to a running mirror: durable, in order, at least once, and once where an id says so."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from sfpubsub.spark.tables.target import Place
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT


def mailbox(directory: Path) -> Mailbox:
    return Mailbox(None, Place.parse(directory, TABLE_FORMAT))


def test_signals_wait_in_order_until_they_are_done(tmp_path: Path):
    """What was put is there for whoever looks later, as it was; a mark takes it away."""
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


def test_later_signals_come_later():
    """Ids that nobody gives are in order of time, and never the same."""
    made = [Signal("pause").id for _ in range(1000)]
    assert [name.partition("-")[0] for name in made] == sorted(
        name.partition("-")[0] for name in made
    )
    assert len(set(made)) == len(made)


def test_a_signal_that_is_put_again_is_one_signal(tmp_path: Path):
    """By its id, while it waits and after it was done: who is not sure may put it again."""
    box, signal = mailbox(tmp_path), Signal("pause")
    box.put(signal)
    box.put(signal)
    assert box.waiting() == [signal]
    box.done([signal.id])
    box.put(signal)
    assert box.waiting() == []
    # Nor is it there when its mark is no more.
    assert [path.name for path in (tmp_path / "_mailbox").iterdir()] == [f"{signal.id}.done"]


def test_a_death_between_mark_and_removal_leaves_it_done(tmp_path: Path):
    """The mark counts, whatever is beside it."""
    box, signal = mailbox(tmp_path), Signal("pause")
    box.put(signal)
    (tmp_path / "_mailbox" / f"{signal.id}.done").touch()
    assert box.waiting() == []


def test_marks_are_kept_for_a_while_and_not_for_ever(tmp_path: Path):
    """A mailbox does not grow with every signal that it ever had."""
    box = mailbox(tmp_path)
    box.put(Signal("pause", id="0000"))
    for number in range(0, 400, 100):
        box.done(f"{each:04d}" for each in range(number, number + 100))
    names = sorted(path.name for path in (tmp_path / "_mailbox").iterdir())
    assert names == [f"{number:04d}.done" for number in range(200, 400)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "dance"}', '{"kind": "reread"}'])
def test_a_file_that_is_no_signal_is_told_and_left_alone(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """One of a newer version does not end the job, nor does it vanish."""
    box = mailbox(tmp_path)
    box.put(Signal("resume", id="b"))
    (tmp_path / "_mailbox" / "a.json").write_text(text)
    (tmp_path / "_mailbox" / "c.json.1234.tmp").write_text("{")  # a draft of one who was killed
    assert [each.id for each in box.waiting()] == ["b"]
    assert [each.id for each in box.waiting()] == ["b"]
    assert [record.message.count("a.json") for record in caplog.records] == [1]
    assert (tmp_path / "_mailbox" / "a.json").exists()


def test_an_id_that_is_no_name_of_a_file_is_refused(tmp_path: Path):
    """Nothing is written outside of the mailbox."""
    with pytest.raises(ConfigurationError, match="not a valid signal id"):
        mailbox(tmp_path).put(Signal("pause", id="../x"))


def test_another_file_system_needs_a_session():
    """Said at once, with the place."""
    with pytest.raises(ConfigurationError, match=r"s3a://bucket/lake .*needs a Spark session"):
        Mailbox(None, Place.parse("s3a://bucket/lake", "delta"))


def test_signals_of_one_moment_stay_in_order(tmp_path: Path):
    """The newest of a pause and a resume counts, however quickly one follows the other."""
    box, signals = mailbox(tmp_path), [Signal("pause") for _ in range(50)]
    for signal in reversed(signals):
        box.put(signal)
    assert box.waiting() == signals


def test_a_file_system_of_spark_has_a_mailbox_as_well(spark: SparkSession, lake: Path):
    """The same through Spark's own files, which reach object stores."""
    box = Mailbox(spark, Place.parse("viewfs://lake/tables/mirrored", TABLE_FORMAT))
    first, second = Signal("reread", "Account", "Name = 'x'"), Signal("pause")
    assert box.waiting() == []
    box.put(first)
    box.put(second)
    assert box.waiting() == [first, second]
    box.done([first.id])
    box.put(first)
    assert box.waiting() == [second]
    assert (lake / "mirrored" / "_mailbox").is_dir()


def _lines(path: Path) -> list[str]:
    """Whole lines of a file; the process that writes it may be killed in the middle of one."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _killed(side: str, directory: Path, log: Path, more: int) -> None:
    """Run one side, and kill it once it has written so many lines more."""
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
    """SIGKILL of who puts and of who takes: each signal that was put is acted on, or waits."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    rng = random.Random(seed)
    put, taken = tmp_path / "put.log", tmp_path / "taken.log"
    for _ in range(2):
        _killed("put", tmp_path, put, rng.randint(10, 60))
        _killed("take", tmp_path, taken, rng.randint(1, 8))
    box = mailbox(tmp_path)
    left = [each.id for each in box.waiting()]
    assert left == sorted(left)
    assert set(_lines(put)) <= {*_lines(taken), *left}
    # The signal of a kill may be there without its line, or acted on twice: no more than that.
    assert len({*_lines(taken), *left} - set(_lines(put))) <= 2
    assert len(_lines(taken)) - len(set(_lines(taken))) <= 2
    box.done(left)
    assert box.waiting() == []
