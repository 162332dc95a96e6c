"""Tests of the window of dedupe keys, with simulated times and without Spark or a table."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import textwrap
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from sfpubsub.spark.ingest import key_window
from sfpubsub.spark.ingest.key_window import KeyWindow, hour_of

HOUR = 3600.0
LENGTH = 20 * HOUR
START = 1_790_000_000.0


@cache
def key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def mark(number: int, now: float) -> int:
    """Return a key's mark: *number* plus one, followed by 20 bits for the hour of *now*."""
    return (number + 1) << 20 | hour_of(now)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only eight keys in the dictionary, so that a few hundred keys fill many blocks."""
    monkeypatch.setattr(key_window, "_RECENT_KEYS", 8)


class Table:
    """The rows of a raw table in order: the reference for what was written."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, int, float]] = []

    def add(self, window: KeyWindow, numbers: list[int], now: float) -> None:
        """Write rows to the table, and then add them to the window."""
        new = [(key(n), mark(n, now), now) for n in numbers]
        self.rows += new
        window.add([k for k, _, _ in new], [m for _, m, _ in new], now)

    def fill(self, window: KeyWindow, now: float, piece: int = 5) -> None:
        """Load the window after a start, up to *piece* rows at a time."""
        window.clear()
        since = window.oldest(now)
        rows = [row for row in self.rows if row[2] >= since]
        for time, alike in groupby(rows, key=lambda row: row[2]):
            keys = [k for k, _, _ in alike]
            for start in range(0, len(keys), piece):
                window.load(b"".join(keys[start : start + piece]), time)
        window.loaded(since)

    def check(self, window: KeyWindow, now: float) -> None:
        """Check that the window finds every key of the time that it covers, and no unknown key.

        The marks that it finds must be right, but may contain only the hour. A write may ask for
        no key at all.
        """
        assert window.find([]) == {}
        keys = [k for k, _, time in self.rows if time > window.oldest(now)]
        strangers = [key(-n) for n in range(1, 200)]
        found = window.find([*keys, *strangers])
        assert set(keys) <= set(found)
        marks = {k: m for k, m, _ in self.rows}
        assert set(found) <= set(marks)
        for k, known in found.items():
            assert known in (marks[k], hour_of_row(marks[k])), "a wrong mark"


def hour_of_row(of: int) -> int:
    return of & ((1 << 20) - 1)


def test_keys_that_differ_in_a_few_bytes_are_told_apart(small: None):
    """Keys are compared byte by byte, so those with the same beginning, or with zero bytes at the
    end, are different keys.
    """
    keys = [bytes(zeros) + b"\xff" * (16 - zeros) for zeros in range(17)]
    keys += [b"\xff" * (16 - zeros) + bytes(zeros) for zeros in range(1, 16)]
    for own in (keys[::2], keys[1::2]):
        window, marks = KeyWindow(), [mark(n, START) for n in range(len(own))]
        window.add(own, marks, START)
        assert len(window) == len(own)
        assert window.find(keys) == dict(zip(own, marks, strict=True))


def test_key_of_the_wrong_length_is_rejected():
    """A key that is not 16 bytes long raises an error, because it would shift all keys after it."""
    window = KeyWindow()
    with pytest.raises(ValueError, match="16 bytes"):
        window.find([key(1)[:8]])
    with pytest.raises(ValueError, match="16 bytes"):
        window.load(b"short", START)


@pytest.mark.parametrize(("length", "max_keys"), [(0.0, 5), (5.0, 0)])
def test_window_without_length_or_keys_is_rejected(length: float, max_keys: int):
    """A window length of 0 or a maximum of 0 keys raises an error, because such a window would find
    nothing.
    """
    with pytest.raises(ValueError, match="a dedupe window"):
        KeyWindow(length, max_keys)


@pytest.mark.parametrize("max_keys", [10_000_000, 500, 100, 3])
@pytest.mark.parametrize("seed", range(3))
def test_window_agrees_with_a_model(small: None, seed: int, max_keys: int):
    """After random batches, pauses, restarts and writes of unknown outcome, the window finds the
    keys that the model expects, within its maximum, and few expired ones.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)
    window, table = KeyWindow(LENGTH, max_keys), Table()
    table.fill(window, START)
    now, number, blocks = START, 0, 0
    for _ in range(80):
        now += chance.choice([0, 0, 0, 0, 10, 10, 600, 3 * HOUR])
        if chance.random() < 0.9:
            count = chance.randrange(0, 30)
            table.add(window, list(range(number, number + count)), now)
            number += count
        else:  # a restart, or a write of unknown outcome
            if chance.random() < 0.5:
                table.rows.append((key(number), mark(number, now), now))
                number += 1
            table.fill(window, now, chance.randrange(1, 50))
        table.check(window, now)
        assert len(window) <= max_keys
        if max_keys > number:
            assert window.oldest(now) == now - LENGTH
        kept = LENGTH + LENGTH / 8 + 2 * HOUR + 3 * HOUR  # a block, rounded, and the last pause
        written = {k: time for k, _, time in table.rows}
        old = [k for k in window.find(list(written)) if written[k] < now - kept]
        assert len(old) <= 8, "expired keys were kept"
        blocks = max(blocks, len(window._blocks))
    assert 1 < blocks < 20 or max_keys == 3


def test_key_is_found_for_the_length_of_the_window_and_not_much_longer(small: None):
    """Each key is found until the window's length has passed since its write. It may be found for
    some more hours, since keys expire in groups.
    """
    window = KeyWindow(LENGTH)
    for tenth in range(400):
        now = START + tenth * 600.0
        window.add([key(tenth)], [mark(tenth, now)], now)
        assert window.oldest(now) == now - LENGTH
        assert len(window) <= 6 * (20 + 4) + 8
        young = max(0, tenth - 6 * 20)
        assert len(window.find([key(n) for n in range(young, tenth + 1)])) == tenth + 1 - young


def test_keys_read_from_the_table_have_no_marks(small: None):
    """The mark of a key that was loaded from the table contains only the hour of its write."""
    window, table = KeyWindow(LENGTH), Table()
    table.fill(window, START)
    table.add(window, list(range(9)), START)
    assert window.find([key(1)]) == {key(1): mark(1, START)}
    table.fill(window, START)
    assert window.find([key(1), key(8)]) == {key(1): hour_of(START), key(8): hour_of(START)}


@pytest.mark.parametrize("loads", [False, True])
def test_window_with_too_many_keys_covers_a_shorter_time(
    small: None, loads: bool, caplog: pytest.LogCaptureFixture
):
    """At the configured maximum, the window drops its oldest keys, logs a warning that names the
    remedy, and reports the time from which it is complete, also while it is loaded.
    """
    window, table = KeyWindow(LENGTH, max_keys=200), Table()
    table.fill(window, START)
    now = START
    assert window.oldest(now) == now - LENGTH
    for first in range(0, 1000, 10):
        now += 300.0
        table.add(window, list(range(first, first + 10)), now)
        assert len(window) <= 200
        table.check(window, now)
    if loads:
        table.fill(window, now)
        assert len(window) <= 200
        table.check(window, now)
    # The window keeps most of its keys, those of 100 minutes; its times are rounded to hours.
    assert len(window) > 100
    assert now - 3 * HOUR < window.oldest(now) <= now
    assert "more than 200 dedupe keys (window_keys)" in caplog.text
    assert "allow more keys" in caplog.text


def test_one_day_with_too_many_keys_is_complete_from_now_on(small: None):
    """If a table's newest day, whose end is in the future, has too many rows, the window reports
    that it is complete from now on, rather than from the end of that day.
    """
    window = KeyWindow(LENGTH, max_keys=50)
    for first in range(0, 100, 10):
        window.load(b"".join(key(n) for n in range(first, first + 10)), START + 8 * HOUR)
    window.loaded(START - LENGTH)
    assert window.oldest(START) == START
    assert len(window) <= 50


def test_window_reports_only_what_was_loaded(small: None):
    """If rows older than a time were not loaded, the window says that it covers later rows only,
    until the others would have expired.
    """
    window, table = KeyWindow(LENGTH), Table()
    window.loaded(START - 2 * HOUR)
    table.add(window, list(range(10)), START)
    assert window.oldest(START) == START - 2 * HOUR
    assert window.oldest(START + LENGTH) == START


# Memory.

GROWN = """
    import json, os
    from sfpubsub.spark.ingest.key_window import DEFAULT_WINDOW, KeyWindow
    from sfpubsub.spark.ingest.settings import DEFAULT_WINDOW_KEYS
    from sfpubsub.spark.ingest.key_window import hour_of

    def resident(which):
        lines = open("/proc/self/status").read().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(which)))

    now, piece = 1_790_000_000.0, 131_072
    KeyWindow().find([bytes(16)])
    before = resident("VmRSS")
    window = KeyWindow()
    for first in range(0, DEFAULT_WINDOW_KEYS, piece):
        at = now - DEFAULT_WINDOW * (1 - first / DEFAULT_WINDOW_KEYS)
        window.load(os.urandom(16 * piece), at)
    window.loaded(now - DEFAULT_WINDOW)
    for batch in range(200):
        keys = [os.urandom(16) for _ in range(10_000)]
        window.add(keys, [hour_of(now)] * len(keys), now)
    print(json.dumps({"keys": len(window), "grown": resident("VmHWM") - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's figures")
def test_the_default_number_of_keys_takes_less_than_400_mb():
    """While the default number of keys is loaded and then exceeded, they take 24 bytes each, and
    the rest at most 160 MB at any time.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GROWN)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["keys"] > 8_000_000
    assert figures["grown"] <= 400e6
