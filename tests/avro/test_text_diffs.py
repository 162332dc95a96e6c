"""Tests of diffs of large texts, and of applying them to the known text."""

from __future__ import annotations

import difflib
import hashlib
import random

import pytest

from sfpubsub import TextDiff


def diff_of(old: str, new: str, *, lines: int = 3) -> TextDiff:
    """Return a diff in the service's form, made with Python's `difflib`."""
    made = difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=lines)
    digest = hashlib.sha256(new.encode()).hexdigest()
    hunks = "\n".join(list(made)[2:])
    found = TextDiff.parse(f"--- \n+++ {digest}\n{hunks}")
    assert found is not None
    return found


def test_apply_returns_the_new_text():
    """For random changes of random texts, `apply` returns exactly the new text."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        old = [rng.choice(["", "a", "b", " c", "-d", "+e", "@@", "\\"]) for _ in range(12)]
        new = list(old)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(new) + 1)
            new[place : place + rng.randint(0, 2)] = rng.choice([[], ["x"], ["", "z"]])
        before, after = "\n".join(old), "\n".join(new)
        if before != after:
            diff = diff_of(before, after, lines=rng.choice([0, 1, 3]))
            assert diff.apply(before) == after, f"seed {seed}"


def test_applying_a_diff_to_another_text_returns_none():
    """`apply` returns None for any text other than the one that the diff was made from.

    The diff's hash reveals the difference even if the lines fit.
    """
    diff = diff_of("a\nb\nc", "a\nB\nc")
    assert diff.apply("a\nb\nc") == "a\nB\nc"
    assert diff.apply("a\nb\nc\nd") is None, "the diff fits, but the hash differs"
    longer = diff_of("\n".join("abcdefghi"), "\n".join("abcdeXghi"))
    assert longer.apply("\n".join("Abcdefghi")) is None, "a line outside the diff differs"
    assert longer.apply("") is None


@pytest.mark.parametrize(
    "hunks",
    [
        "",
        "nonsense",
        "@@ -9,1 +9,1 @@\n-a\n+b",
        "@@ -1,3 +1,3 @@\n-a",
        "@@ -2 +2 @@\n b\n@@ -1 +1 @@\n a",
    ],
)
def test_applying_a_broken_diff_returns_none(hunks):
    """`apply` returns None, and raises no error, if hunks are missing, invalid or out of order."""
    diff = TextDiff.parse(f"--- \n+++ 00\n{hunks}")
    assert diff is not None
    assert diff.apply("a\nb") is None
