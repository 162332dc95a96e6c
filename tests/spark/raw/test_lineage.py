"""What became of the batches of a table that was set back: the arithmetic, without a table."""

from __future__ import annotations

import random

import pytest

from sfpubsub.spark.raw.lineage import Commit, Moves, moves


def grown(*batches: str, start: int = 0) -> list[Commit]:
    return [Commit(start + number, batch=batch) for number, batch in enumerate(batches)]


@pytest.mark.parametrize(
    ("commits", "since", "vanished", "added"),
    [
        (grown("a", "b"), 1, "", ""),
        (grown("a", "b", "c"), 0, "", "bc"),
        ([*grown("a", "b", "c"), Commit(3, restored=0)], 2, "bc", ""),
        # Back, on, and to where it was: what came in between is gone, the rest is there again.
        (
            [*grown("a", "b"), Commit(2, restored=0), Commit(3, batch="c"), Commit(4, restored=1)],
            3,
            "c",
            "b",
        ),
        # Gone back to a version that itself came of going back.
        ([*grown("a", "b"), Commit(2, restored=0), Commit(3, restored=2)], 1, "b", ""),
        # Compaction, and transactions without rows.
        ([*grown("a"), Commit(1), Commit(2, batch="b")], 0, "", "b"),
    ],
)
def test_what_vanished_and_what_was_added(commits, since, vanished, added):
    """Whoever has the batches of a version learns which to remove and which to take."""
    found = moves(commits, since)
    assert (found.vanished, found.added) == (frozenset(vanished), frozenset(added))
    assert found.went_back == any(c.restored is not None and c.version > since for c in commits)


def test_the_same_as_a_list_that_is_cut():
    """Against a table that is a list of batches, for random histories and any version since."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        commits: list[Commit] = []
        tables: list[list[str]] = []
        for version in range(rng.randint(1, 12)):
            if tables and rng.random() < 0.3:
                back = rng.randrange(len(tables))
                commits.append(Commit(version, restored=back))
                tables.append(tables[back])
            else:
                commits.append(Commit(version, batch=f"b{version}"))
                tables.append([*(tables[-1] if tables else []), f"b{version}"])
        since = rng.randrange(len(tables))
        then, now = set(tables[since]), set(tables[-1])
        found = moves(commits, since)
        assert (found.vanished, found.added) == (then - now, now - then)


def test_a_log_that_is_not_kept_so_far_says_nothing():
    """What it does not tell of is neither removed nor taken."""
    assert moves([Commit(7, batch="h")], 7) == Moves()
