"""The key window, alone: no Spark, no files, a clock of its own."""

from __future__ import annotations

import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.spark.dedupe import KeyWindow, drop_repeats, drop_stored


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


def test_a_key_costs_at_most_forty_bytes():
    """The promise of bounded memory, counted: with few shards filled it is the fixed cost."""
    window = KeyWindow(100.0)
    count = 400_000
    window.add(b"".join(map(key, range(count))), 0.0)
    held = sum(map(sys.getsizeof, window._shards)) + sys.getsizeof(window._shards)
    held += sum(sys.getsizeof(generation.shards) for generation in window._generations)
    assert held / count <= 40


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.floats(0, 4000, allow_nan=False)), min_size=1, max_size=60
    ),
    st.floats(1, 20_000),
)
def test_the_window_holds_what_a_set_with_times_holds(
    steps: list[tuple[int, float]], length: float
):
    """Against a model: a key younger than the window is found; one never added is not."""
    window = KeyWindow(length)
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

    times = [1_000_000, 999_999, None, 5_000_000]
    kept = drop_stored([key(n) for n in range(4)], times, oldest=1000.0, stored=stored)
    assert asked == [key(1), key(2)]
    assert kept == [0, 2, 3]


def test_a_batch_of_young_events_does_not_read_the_table():
    """The usual batch costs no scan."""

    def stored(keys):
        raise AssertionError("not asked")

    assert drop_stored([key(1)], [2_000_000], oldest=1000.0, stored=stored) == [0]
