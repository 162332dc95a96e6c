"""The key window, alone: no Spark, no files, a clock of its own."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.spark.ingest import dedupe
from sfpubsub.spark.ingest.dedupe import BoundedWindow, KeyWindow, Window, drop_repeats, drop_stored


def key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def test_a_key_is_found_for_the_length_of_the_window_and_forgotten_an_hour_later():
    """Nothing is forgotten early, and memory does not grow for ever."""
    window = KeyWindow(7200.0)
    window.add(key(1), 1000.0)
    window.expire(1000.0 + 7200.0)
    assert key(1) in window
    window.expire(1000.0 + 7200.0 + 3600.0)
    assert key(1) not in window
    assert len(window) == 0


def test_a_generation_expires_by_its_newest_key():
    """A key that came at the end of a generation is not forgotten with its first."""
    window = KeyWindow(7200.0)
    window.add(key(1), 0.0)
    window.add(key(2), 3599.0)
    window.expire(7201.0)
    assert key(2) in window


def test_a_clock_that_was_set_back_forgets_nothing():
    """Keys that arrive under an earlier time stay as long as those around them."""
    window = KeyWindow(7200.0)
    window.add(key(1), 50_000.0)
    window.add(key(2), 10_000.0)
    window.expire(50_000.0 + 7200.0)
    assert key(1) in window
    assert key(2) in window


def test_two_keys_side_by_side_are_not_a_third():
    """Bytes that span the border of two stored keys are no key."""
    window = KeyWindow(10.0)
    first = b"\x01\x02" + b"\x01\x02" * 7
    second = b"\x01\x02" + b"\xff" * 14
    window.add(first + second, 0.0)
    spanning = (first + second)[2:18]
    assert spanning[:2] == b"\x01\x02", "the same shard"
    assert spanning in (first + second)
    assert (spanning in window) == (spanning in {first, second})
    shifted = (first + second)[10:26]
    assert shifted not in window


def test_parts_of_a_key_are_refused():
    """A key of another length would shift every one after it."""
    with pytest.raises(ValueError, match="16 bytes"):
        KeyWindow(10.0).add(b"short", 0.0)


def test_a_window_of_no_length_is_refused():
    """It would find nothing."""
    with pytest.raises(ValueError, match="longer than 0"):
        KeyWindow(0.0)


@pytest.mark.parametrize("count", [131_073, 200_000, 262_144])
def test_a_key_costs_at_most_forty_bytes(count: int):
    """The promise of bounded memory, counted: just after the window grew, and just before."""
    window = KeyWindow(100.0)
    window.add(b"".join(map(key, range(count))), 0.0)
    assert key(0) in window
    held = sum(map(sys.getsizeof, (window._keys, window._older, window._places)))
    assert held / count <= 40


def test_keys_on_the_same_place_are_told_apart():
    """Four bytes choose the place; only all sixteen make a key."""
    window = KeyWindow(10.0)
    alike = [b"\x01\x02\x03\x04" + bytes([n]) * 12 for n in range(20)]
    window.add(b"".join(alike[:10]), 0.0)
    assert window.known(alike) == set(alike[:10])
    window.add(b"".join(alike[10:15]), 0.0)
    assert window.known(alike) == set(alike[:15])


def test_a_window_grows_and_still_knows_every_key():
    """Past its first size, in one step and in many."""
    window = KeyWindow(10.0)
    keys = [key(n) for n in range(150_000)]
    window.add(b"".join(keys[:100_000]), 0.0)
    for start in range(100_000, len(keys), 10_000):
        assert not window.known(keys[start : start + 10_000])
        window.add(b"".join(keys[start : start + 10_000]), 0.0)
    assert window.known(keys) == set(keys)


def test_keys_that_were_never_looked_for_expire_like_others():
    """A window read in from an old table, and expired before its first look-up."""
    window = KeyWindow(7200.0)
    window.add(key(1) + key(2), 0.0)
    window.add(key(3), 7200.0)
    window.expire(7201.0)
    assert window.known([key(1), key(2), key(3)]) == {key(3)}
    assert len(window) == 1


def test_numbering_starts_over_before_four_bytes_are_full():
    """A job that runs for years does not end with an overflow, and forgets nothing."""
    window = KeyWindow(7200.0)
    window._expired = dedupe._LAST_NUMBER - 2
    window.add(key(1), 0.0)
    assert key(1) in window
    window.add(b"".join(map(key, range(2, 7))), 0.0)
    assert window.known([key(n) for n in range(9)]) == {key(n) for n in range(1, 7)}


@pytest.mark.parametrize(
    "make", [KeyWindow, lambda n: BoundedWindow(n, 9, lambda keys, since: set())]
)
def test_part_of_a_key_is_not_looked_up(make):
    """It would be compared with the beginnings of keys."""
    window: Window = make(10.0)
    window.add(key(1), 0.0)
    with pytest.raises(ValueError, match="16 bytes"):
        window.known([key(1)[:8]])


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.floats(0, 4000, allow_nan=False)), min_size=1, max_size=60
    ),
    st.floats(1, 20_000),
    st.sampled_from([7, dedupe._LAST_NUMBER]),
)
def test_the_window_holds_what_a_set_with_times_holds(
    steps: list[tuple[int, float]], length: float, last_number: int
):
    """Against a model: a key younger than the window is found; one never added is not.

    With few numbers, so that numbering starts over again and again, and with all of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedupe, "_LAST_NUMBER", last_number)
        walk(KeyWindow(length), steps, length)


def walk(window: KeyWindow, steps: list[tuple[int, float]], length: float) -> None:
    added: dict[bytes, float] = {}
    now = 0.0
    for number, passed in steps:
        now += passed
        window.expire(now)
        if key(number) not in window:
            window.add(key(number), now)
            added[key(number)] = now
        for known, time in added.items():
            if time >= now - length:
                assert known in window
        for other in range(41, 45):
            assert key(other) not in window
    assert len(window) <= len(steps)


@given(st.lists(st.integers(0, 20), max_size=60), st.sets(st.integers(0, 20)))
def test_what_is_kept_is_the_first_of_each_key_that_the_window_lacks(
    numbers: list[int], known: set[int]
):
    """Within a batch the first copy wins; what the window holds is dropped; nothing else is."""
    window = KeyWindow(10.0)
    window.add(b"".join(map(key, known)), 0.0)
    kept = drop_repeats([key(number) for number in numbers], window)
    expected = [
        index
        for index, number in enumerate(numbers)
        if number not in known and number not in numbers[:index]
    ]
    assert kept == expected


def test_only_events_older_than_the_window_or_without_a_time_are_looked_up():
    """The table is asked for what the window cannot know, and for nothing else."""
    asked: list[bytes] = []

    def stored(keys):
        asked.extend(keys)
        return {key(1)}

    times = [1_000_000_000, 999_999_999, None, 5_000_000_000]
    kept = drop_stored([key(n) for n in range(4)], times, oldest=1000.0, stored=stored)
    assert asked == [key(1), key(2)]
    assert kept == [0, 2, 3]


def test_a_batch_of_young_events_does_not_read_the_table():
    """The usual batch costs no scan."""

    def stored(keys):
        raise AssertionError("not asked")

    assert drop_stored([key(1)], [2_000_000_000], oldest=1000.0, stored=stored) == [0]


class Table:
    """Rows with times, as a table holds them; says what it was asked."""

    def __init__(self) -> None:
        self.rows: dict[bytes, float] = {}
        self.asked: list[float] = []

    def write(self, keys: list[bytes], now: float) -> None:
        self.rows.update(dict.fromkeys(keys, now))

    def stored(self, keys: Collection[bytes], since: float) -> set[bytes]:
        self.asked.append(since)
        return {key for key in keys if key in self.rows and self.rows[key] >= since}


def test_a_bounded_window_asks_the_table_once_the_keys_are_too_many(caplog):
    """Memory is bounded by a number of keys; beyond it look-ups cover the window, and say so."""
    table = Table()
    window = BoundedWindow(7200.0, 3, table.stored)
    table.write([key(1), key(2), key(3)], 10_000.0)
    window.add(key(1) + key(2) + key(3), 10_000.0)
    assert drop_repeats([key(3), key(4)], window) == [1]
    assert not table.asked
    with caplog.at_level(logging.WARNING, "sfpubsub.spark"):
        table.write([key(4)], 10_100.0)
        window.add(key(4), 10_100.0)
        table.write([key(5)], 10_200.0)
        window.add(key(5), 10_200.0)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the dedupe window has more than 3 keys (window_keys)"
    ]
    assert window.in_table
    assert len(window) == 0, "nothing is held in memory any more"
    window.expire(17_300.0)
    batch = [key(4), key(5), key(6), key(6)]
    assert drop_repeats(batch, window) == [2], "4 and 5 are known, and 6 came twice"
    assert table.asked == [17_300.0 - 7200.0], "one look-up a batch, for the window alone"


def test_a_bounded_window_goes_back_to_memory_when_it_is_read_in_again():
    """A failed write reads the window from the table; by then it may fit."""
    table = Table()
    window = BoundedWindow(10.0, 1, table.stored)
    window.add(key(1) + key(2), 0.0)
    assert window.in_table
    window.clear()
    window.add(key(2), 0.0)
    assert window.known([key(1), key(2)]) == {key(2)}
    assert not table.asked


def test_a_bounded_window_holds_at_least_one_key():
    """None at all is a window that is always in the table."""
    with pytest.raises(ValueError, match="1 key or more"):
        BoundedWindow(10.0, 0, Table().stored)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 30), max_size=8), st.floats(0, 4000, allow_nan=False)),
        max_size=40,
    ),
    st.integers(1, 40),
)
def test_a_bounded_window_drops_what_a_window_in_memory_drops(
    batches: list[tuple[list[int], float]], max_keys: int
):
    """Wherever the keys are, the same events are new: exact in memory, in the table, and between.

    Only keys that the window in memory keeps for up to an hour longer may differ.
    """
    table = Table()
    bounded, memory = BoundedWindow(7200.0, max_keys, table.stored), KeyWindow(7200.0)
    now, added = 0.0, dict[bytes, float]()
    for numbers, passed in batches:
        now += passed
        keys = [key(number) for number in numbers]
        bounded.expire(now)
        memory.expire(now)
        kept = {w: [keys[i] for i in drop_repeats(keys, w)] for w in (bounded, memory)}
        in_doubt = {k for k in keys if now - 3600 - 7200 <= added.get(k, now) < now - 7200}
        certain = [[k for k in kept[w] if k not in in_doubt] for w in (bounded, memory)]
        assert certain[0] == certain[1]
        new = [k for k in kept[memory] if k in kept[bounded]]
        table.write(new, now)
        added.update(dict.fromkeys(new, now))
        for window in (bounded, memory):
            window.add(b"".join(new), now)
