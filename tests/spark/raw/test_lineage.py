"""Tests of `moves`, which reports the batches added to or removed from a table since a version."""

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
        # Restored twice, with a batch in between: only that batch has vanished.
        (
            [*grown("a", "b"), Commit(2, restored=0), Commit(3, batch="c"), Commit(4, restored=1)],
            3,
            "c",
            "b",
        ),
        # Restored to a version that was itself the result of a restore.
        ([*grown("a", "b"), Commit(2, restored=0), Commit(3, restored=2)], 1, "b", ""),
        # Compaction, and transactions without rows.
        ([*grown("a"), Commit(1), Commit(2, batch="b")], 0, "", "b"),
    ],
)
def test_moves_reports_vanished_and_added_batches(commits, since, vanished, added):
    """`moves` reports the batches that were removed from and added to a table since a version."""
    found = moves(commits, since)
    assert (found.vanished, found.added) == (frozenset(vanished), frozenset(added))
    assert found.went_back == any(c.restored is not None and c.version > since for c in commits)


def test_moves_agrees_with_a_simple_model():
    """In random histories, `moves` agrees with a model that keeps a full list for each version."""
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


def test_commits_before_the_retained_log_are_ignored():
    """If the given version is the oldest one that the log retains, no batches are reported as
    removed or added.
    """
    assert moves([Commit(7, batch="h")], 7) == Moves()
