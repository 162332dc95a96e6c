"""Tests of the window of dedupe keys, with real files and a simulated clock, and without Spark.

Recent keys are kept in memory and older ones in runs, which are sorted files on local disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfpubsub.errors import WriteError
from sfpubsub.spark.ingest import key_window
from sfpubsub.spark.ingest.key_run import (
    DamagedRunError,
    KeyQuery,
    KeyRun,
    RunWriter,
    sorted_records,
)
from sfpubsub.spark.ingest.key_window import Covered, KeyWindow, Known, hour_of

HOUR = 3600.0
LENGTH = 20 * HOUR
START = 1_790_000_000.0


def key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def mark(number: int, now: float) -> int:
    """Return a key's mark: *number* plus one, followed by 20 bits for the hour of *now*."""
    return (number + 1) << 20 | hour_of(now)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of a few keys only, so that a few hundred keys lead to many runs and merges."""
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(key_window, "_RECENT_KEYS", 8)
    patch.setattr(key_window, "_LOADED_KEYS", 32)


class Table:
    """The rows of a raw table in order: the reference for what was written."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, int, float]] = []

    def add(self, window: KeyWindow, numbers: list[int], now: float) -> None:
        """Write rows to the table, and then add them to the window."""
        new = [(key(n), mark(n, now), now) for n in numbers]
        self.rows += new
        window.add([k for k, _, _ in new], [m for _, m, _ in new], now, len(self.rows) - 1)

    def fill(self, window: KeyWindow, now: float, piece: int = 5) -> int:
        """Load the window after a start, up to *piece* rows at a time.

        Return how many rows had to be read from the table.
        """
        window.begin()
        covered = window.covered
        if covered is not None and not self.has(covered):
            window.clear()
            covered = None
        first = 0 if covered is None else covered.seq + 1
        since = window.oldest(now)
        rows = [row for row in self.rows[first:] if row[2] >= since]
        for time, alike in groupby(rows, key=lambda row: row[2]):
            keys = [k for k, _, _ in alike]
            for start in range(0, len(keys), piece):
                window.load(b"".join(keys[start : start + piece]), time)
        last = None
        if self.rows:
            k, _, time = self.rows[-1]
            last = Covered(len(self.rows) - 1, k.hex(), hour_of(time))
        window.loaded(last, since)
        return len(rows)

    def has(self, covered: Covered) -> bool:
        return covered.seq < len(self.rows) and self.rows[covered.seq][0].hex() == covered.key

    def check(self, window: KeyWindow, now: float) -> None:
        """Check that the window finds every key of the time that it covers, and no unknown key.

        The marks that it finds must be right, but may contain only the hour.
        """
        keys = [k for k, _, time in self.rows if time >= window.oldest(now)]
        strangers = [key(-n) for n in range(1, 200)]
        found = window.find([*keys, *strangers])
        assert set(keys) <= set(found)
        marks = {k: m for k, m, _ in self.rows}
        assert set(found) <= set(marks)
        for k, known in found.items():
            assert known.mark in (marks[k], hour_of_row(marks[k])), "a wrong mark"


def hour_of_row(of: int) -> int:
    return of & ((1 << 20) - 1)


# One run.


def run_of(directory: Path, records: np.ndarray) -> KeyRun:
    """Write records to a run in two steps, and return the run."""
    writer = RunWriter(directory / "one.keys", len(records))
    ordered = sorted_records(records)
    middle = len(ordered) // 3
    writer.write(ordered[:middle])
    writer.write(ordered[middle:])
    return writer.finish()


def records_of(keys: list[bytes], marks: list[int]) -> np.ndarray:
    records = np.empty((len(keys), 3), np.uint64)
    records[:, :2] = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
    records[:, 2] = marks
    return records


def test_a_run_finds_the_keys_that_were_written_and_no_others(tmp_path: Path):
    """A run finds exactly the keys in its file, with their marks, and can be reopened."""
    count = 5_000
    run = run_of(tmp_path, records_of([key(n) for n in range(count)], list(range(count))))
    asked = [key(n) for n in range(-20_000, count)]
    places, marks = run.find(KeyQuery(asked))
    assert dict(zip(places.tolist(), marks.tolist(), strict=True)) == {
        20_000 + n: n for n in range(count)
    }
    again = KeyRun.open(tmp_path, run.entry)
    assert len(again.find(KeyQuery(asked))[0]) == count


@settings(max_examples=40, deadline=None)  # files are flushed to disk, which may be slow
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40))
def test_keys_that_share_half_of_their_bytes_are_told_apart(pairs: list[tuple[int, int]]):
    """A key is found only if both of its halves match, even though the first half alone predicts
    its position.
    """
    keys = sorted({head.to_bytes(8, "little") + tail.to_bytes(8, "little") for head, tail in pairs})
    asked = [h.to_bytes(8, "little") + t.to_bytes(8, "little") for h in range(3) for t in range(4)]
    directory = Path(os.environ["PYTEST_TMP_RUNS"])
    (directory / "one.keys").unlink(missing_ok=True)
    run = run_of(directory, records_of(keys, list(range(len(keys)))))
    places, _ = run.find(KeyQuery(asked))
    assert {asked[place] for place in places.tolist()} == set(keys)


@pytest.fixture(autouse=True)
def _runs_of_hypothesis(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Provide a directory for a Hypothesis test, which cannot use `tmp_path`."""
    monkeypatch.setenv("PYTEST_TMP_RUNS", str(tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize("damage", ["shorter", "longer", "other", "missing", "foreign"])
def test_damaged_run_is_detected_when_it_is_opened(tmp_path: Path, damage: str):
    """A run file that is missing, truncated, extended, modified or overwritten with other data
    raises an error when it is opened, before any look-up.
    """
    run = run_of(tmp_path, records_of([key(n) for n in range(100)], list(range(100))))
    data = bytearray(run.path.read_bytes())
    if damage == "shorter":
        del data[-24:]
    elif damage == "longer":
        data += bytes(24)
    elif damage == "other":
        data[1000] ^= 1
    elif damage == "foreign":
        data = bytearray(random.Random(4).randbytes(len(data)))
    run.path.unlink()
    if damage != "missing":
        run.path.write_bytes(data)
    with pytest.raises(DamagedRunError):
        KeyRun.open(tmp_path, run.entry)


def test_key_of_the_wrong_length_is_rejected(tmp_path: Path):
    """A key that is not 16 bytes long raises an error, because it would shift all keys after it."""
    window = KeyWindow("t", tmp_path / "keys")
    with pytest.raises(ValueError, match="16 bytes"):
        window.find([key(1)[:8]])
    with pytest.raises(ValueError, match="16 bytes"):
        window.load(b"short", START)


@pytest.mark.parametrize(("length", "max_keys"), [(0.0, 5), (5.0, 0)])
def test_window_without_length_or_keys_is_rejected(tmp_path: Path, length: float, max_keys: int):
    """A window length of 0 or a maximum of 0 keys raises an error, because such a window would find
    nothing.
    """
    with pytest.raises(ValueError, match="a dedupe window"):
        KeyWindow("t", tmp_path / "keys", length, max_keys)


# The window.


def test_a_small_window_needs_no_disk(tmp_path: Path):
    """A window with few keys keeps them only in memory and creates no files."""
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    table.add(window, list(range(1000)), START)
    table.check(window, START)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("seed", range(5))
def test_window_agrees_with_a_model(tmp_path: Path, small: None, seed: int):
    """After random batches, pauses, restarts and writes of unknown outcome, the window finds the
    keys that the model expects, and no obsolete files remain.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    now, number, merged = START, 0, 0
    for _ in range(100):
        now += chance.choice([0, 0, 0, 0, 10, 10, 600, 3 * HOUR])
        window.expire(now)
        what = chance.random()
        if what < 0.8:
            count = chance.randrange(0, 30)
            table.add(window, list(range(number, number + count)), now)
            number += count
        elif what < 0.9:  # a write of unknown outcome
            if chance.random() < 0.5:
                table.rows.append((key(number), mark(number, now), now))
                number += 1
            table.fill(window, now, chance.randrange(1, 50))
        else:
            window.close()
            window = KeyWindow("t", tmp_path / "keys", LENGTH)
            window.expire(now)
            table.fill(window, now, chance.randrange(1, 50))
        table.check(window, now)
        merged += any(len(run) > 60 for run in window._runs)
    assert merged, "no runs were merged"
    assert len(window._runs) < 30
    files = {path.name for path in (tmp_path / "keys").glob("*.keys")}
    unfinished = {window._merge.output.path.name} if window._merge else set()
    assert files - unfinished == {run.entry.name for run in window._runs}, (
        "obsolete files were left"
    )


def test_restart_reads_only_rows_newer_than_the_runs(tmp_path: Path, small: None):
    """On a restart, only the rows of the last batches are read, however large the table is."""
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    for first in range(0, 1000, 7):
        table.add(window, list(range(first, first + 7)), START)
    window.close()
    window = KeyWindow("t", tmp_path / "keys", LENGTH)
    assert table.fill(window, START) <= 8
    table.check(window, START)


def test_keys_from_an_earlier_process_are_known_but_not_sure(tmp_path: Path, small: None):
    """Keys from an earlier process's runs are not `sure`, because their rows may have been deleted.

    Keys loaded from the table are `sure`, but their marks contain only the hour.
    """
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    table.add(window, list(range(8)), START)
    table.add(window, [8], START)
    assert window.find([key(1), key(8)]) == {
        key(1): Known(mark(1, START), True),
        key(8): Known(mark(8, START), True),
    }
    window.close()
    window = KeyWindow("t", tmp_path / "keys", LENGTH)
    assert table.fill(window, START) == 1
    assert window.find([key(1), key(8)]) == {
        key(1): Known(mark(1, START), False),
        key(8): Known(hour_of(START), True),
    }


def test_restored_table_is_loaded_again(tmp_path: Path, small: None):
    """If the table no longer has the rows that the runs cover, all keys are loaded from
    the table.
    """
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    for first in range(0, 100, 8):
        table.add(window, list(range(first, first + 8)), START)
    window.close()
    del table.rows[50:]
    table.rows += [(key(n), mark(n, START), START) for n in range(1000, 1100)]
    window = KeyWindow("t", tmp_path / "keys", LENGTH)
    assert table.fill(window, START) == 150
    table.check(window, START)


def test_keys_of_another_table_are_ignored(tmp_path: Path, small: None):
    """A window ignores keys in its directory that belong to another table, as in a copied
    directory.
    """
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    table.add(window, list(range(20)), START)
    window.close()
    window = KeyWindow("another", tmp_path / "keys", LENGTH)
    assert window.covered is None
    assert not window.find([key(n) for n in range(20)])


def test_expired_keys_are_deleted_with_their_files(tmp_path: Path, small: None):
    """Runs are deleted when all of their keys have expired, so that the window and its disk use are
    bounded.
    """
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    for hour in range(200):
        table.add(window, list(range(hour * 9, hour * 9 + 9)), START + hour * HOUR)
        window.expire(START + hour * HOUR)
    assert len(window) < 9 * (20 + 5 + 2), "too many expired keys"
    window.expire(START + 300 * HOUR)
    assert not list((tmp_path / "keys").glob("*.keys"))


def test_window_with_too_many_keys_covers_a_shorter_time(
    tmp_path: Path, small: None, caplog: pytest.LogCaptureFixture
):
    """At the configured maximum, the window drops its oldest keys, logs a warning, and reports the
    time from which it is complete, even after a restart.
    """
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH, max_keys=200), Table()
    table.fill(window, START)
    now = START
    assert window.oldest(now) == now - LENGTH
    for first in range(0, 1000, 10):
        now += 300.0
        table.add(window, list(range(first, first + 10)), now)
        assert len(window) <= 200
        table.check(window, now)
    oldest = window.oldest(now)
    assert now - LENGTH < oldest < now
    assert "more than 200 keys (window_keys)" in caplog.text
    window.close()
    window = KeyWindow("t", tmp_path / "keys", LENGTH, max_keys=200)
    assert window.oldest(now) == oldest
    table.fill(window, now)
    table.check(window, now)


def test_maximum_of_keys_holds_while_a_table_is_loaded(tmp_path: Path, small: None):
    """A window loaded from a table with too many rows holds at most the maximum number of keys."""
    table = Table()
    times = [START + n * 60.0 for n in range(1000)]
    table.rows = [(key(n), mark(n, time), time) for n, time in enumerate(times)]
    window = KeyWindow("t", tmp_path / "keys", LENGTH, max_keys=200)
    table.fill(window, START + 1000 * 60.0)
    assert len(window) <= 200
    table.check(window, START + 1000 * 60.0)


def test_two_processes_do_not_share_a_directory(
    tmp_path: Path, small: None, caplog: pytest.LogCaptureFixture
):
    """If a directory is in use by another window, the second one uses a temporary directory.

    It logs a warning, and deletes the temporary directory when it is closed.
    """
    first, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(first, START)
    table.add(first, list(range(50)), START)
    second = KeyWindow("t", tmp_path / "keys", LENGTH)
    assert "cannot be used" in caplog.text
    table.fill(second, START)
    table.check(second, START)
    table.add(second, list(range(50, 100)), START)
    table.check(second, START)
    temporary = second._place.path
    assert temporary != tmp_path / "keys"
    assert temporary.exists()
    second.close()
    assert not temporary.exists()


def test_full_disk_raises_and_loses_no_keys(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
):
    """The error names the directory and says to free space, and the keys are loaded from the table
    again.
    """
    window, table = KeyWindow("t", tmp_path / "keys", LENGTH), Table()
    table.fill(window, START)
    table.add(window, list(range(30)), START)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sfpubsub.spark.ingest.key_run.sync", full)
        said = r"keys.*No space left on device.*free some disk space there"
        with pytest.raises(WriteError, match=said):
            table.add(window, list(range(30, 60)), START)
    table.fill(window, START)
    table.check(window, START)
    window.close()
    window = KeyWindow("t", tmp_path / "keys", LENGTH)
    table.fill(window, START)
    table.check(window, START)


# Changed settings and crashes.


def test_lengthened_window_reports_only_what_it_covers(tmp_path: Path, small: None):
    """A lengthened window reports only the time that its keys really cover.

    Older keys are looked up in the table.
    """
    window, table = KeyWindow("t", tmp_path / "keys", 2 * HOUR), Table()
    times = [START - n * 600.0 for n in reversed(range(60))]
    table.rows = [(key(n), mark(n, time), time) for n, time in enumerate(times)]
    table.fill(window, START)
    for after, length in ((0, LENGTH), (3, 2 * HOUR), (6, LENGTH)):
        window.close()
        window = KeyWindow("t", tmp_path / "keys", length)
        now = START + after * HOUR
        window.expire(now)
        table.fill(window, now)
        table.check(window, now)
        number = len(table.rows)
        table.add(window, list(range(number, number + 10)), now)
        table.check(window, now)
    assert START - 2 * HOUR <= window.oldest(now) <= START + 3 * HOUR


@pytest.mark.parametrize("seed", range(8))
def test_window_is_correct_whatever_files_a_crash_leaves(tmp_path: Path, small: None, seed: int):
    """Files that are missing, truncated, left over or outdated are detected, and their keys are
    loaded from the table.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)
    directory = tmp_path / "keys"
    window, table = KeyWindow("t", directory, LENGTH), Table()
    table.fill(window, START)
    number, manifests = 0, [b""]
    for step in range(40):
        count = chance.randrange(1, 25)
        table.add(window, list(range(number, number + count)), START + step * 900.0)
        number += count
        if (directory / "keys.json").exists():
            manifests.append((directory / "keys.json").read_bytes())
    now = START + 40 * 900.0
    window.close()
    files = sorted(directory.glob("*.keys"))
    for _ in range(chance.randrange(1, 4)):
        victim = chance.choice(files)
        match chance.randrange(5):
            case 0:
                victim.unlink(missing_ok=True)
            case 1:
                victim.write_bytes(b"" if not victim.exists() else victim.read_bytes()[:-7])
            case 2:
                shutil.copy(files[0], directory / "left-over.keys") if files[0].exists() else None
            case 3:
                (directory / "keys.json").write_bytes(chance.choice(manifests))
            case 4:
                text = (directory / "keys.json").read_bytes()
                (directory / "keys.json").write_bytes(text[: chance.randrange(len(text) + 1)])
    window = KeyWindow("t", directory, LENGTH)
    table.fill(window, now)
    table.check(window, now)
    table.add(window, list(range(number, number + 50)), now)
    table.check(window, now)


KILLED = """
    import sys
    from pathlib import Path
    from sfpubsub.spark.ingest import key_window
    sys.path.insert(0, {root!r})
    from tests.spark.ingest.test_key_window import START, LENGTH, Table, key, mark
    key_window._RECENT_KEYS = 8
    window, table = key_window.KeyWindow("t", Path({directory!r}), LENGTH), Table()
    written = int(sys.argv[1])
    table.rows = [(key(n), mark(n, START), START) for n in range(written)]
    table.fill(window, START)
    table.check(window, START)
    print(written, flush=True)
    while True:
        table.add(window, list(range(written, written + 5)), START)
        written += 5
        print(written, flush=True)
"""


def test_window_is_correct_after_kills_at_any_moment(tmp_path: Path):
    """A process is killed with SIGKILL five times while it writes and merges runs, and the next
    process finds every key.
    """
    root = str(Path(__file__).parents[3])
    script = textwrap.dedent(KILLED).format(root=root, directory=str(tmp_path / "keys"))
    written, chance = 0, random.Random(7)
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(written)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(20, 120)):
                line = child.stdout.readline()
                assert line, "the process failed, because its keys were wrong"
                written = int(line)
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split("\n")
        # The rows after the last number that was read may have been added as well.
        written = max([written, *(int(number) for number in rest[:-1])])
    assert written > 100


# Memory.

GROWN = """
    import json, os, sys
    from pathlib import Path
    from sfpubsub.spark.ingest.key_window import Covered, KeyWindow, DEFAULT_WINDOW, hour_of
    def resident(which):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(which)))
    count, now, piece = 30_000_000, 1_790_000_000.0, 1_000_000
    warm = KeyWindow("w", Path(sys.argv[1], "warm"))
    warm.load(os.urandom(16), now)
    warm.loaded(None, now)
    warm.find([bytes(16)])
    before = resident("VmRSS")
    window = KeyWindow("t", Path(sys.argv[1], "keys"))
    for first in range(0, count, piece):
        window.load(os.urandom(16 * piece), now - DEFAULT_WINDOW * (1 - first / count))
    window.loaded(Covered(count - 1, bytes(16).hex(), hour_of(now)), now - DEFAULT_WINDOW)
    for batch in range(40):
        keys = [os.urandom(16) for _ in range(10_000)]
        assert not window.find(keys)
        window.add(keys, [hour_of(now)] * len(keys), now, count + 10_000 * (batch + 1) - 1)
    index = sum(run.index_bytes for run in window._runs)
    grown = resident("VmHWM") - before  # the most there ever was
    print(json.dumps({"keys": len(window), "grown": grown, "index": index}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's figures")
def test_300_million_keys_would_take_less_than_500_mb(tmp_path: Path):
    """300 million keys would take at most 500 MB, as extrapolated from 30 million.

    The estimate adds an eighth to the filters and indexes, for the filter that a merge builds.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GROWN), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1500,
    )
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["keys"] >= 30_000_000
    fixed = figures["grown"] - figures["index"]
    each = figures["index"] / figures["keys"]
    assert each <= 8.6 / 8
    assert fixed + 300e6 * each * 9 / 8 <= 500e6
