"""Tests of the thread that reads the org, and of the pieces that wait to be merged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

from sfpubsub.spark.mirror.fetching import _AHEAD, Fetching, StoppedError
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.pieces import Pieces
from sfpubsub.spark.records.reads import AsOf
from tests.conftest import until


def piece(number: int, *, is_last: bool = False) -> Marker:
    """Return the marker of a piece of the read that begins with piece 1."""
    return Marker(1, "object", AsOf(0, 0), is_last=is_last, piece=number)


def test_read_that_is_given_up_ends_between_two_requests():
    """It returns the pieces that it has stored before, and its error says why it ended. After that,
    another read can begin.
    """
    with Fetching(threading.Event()) as fetching:

        def endless() -> Iterator[Marker]:
            yield piece(1)
            while True:
                fetching.check_stop()

        fetching.start("Account", endless)
        assert until(lambda: (fetching.news() or ("", []))[1], "a piece") == [piece(1)]
        fetching.give_up()
        name, markers, result = until(lambda: ended(fetching), "the end")
        assert (name, markers) == ("Account", [])
        assert isinstance(result.exception(), StoppedError)
        assert fetching.news() is None
        fetching.start("Account", lambda: iter([piece(1, is_last=True)]))
        _, markers, result = until(lambda: ended(fetching), "the end of the next read")
        assert result.exception() is None


def test_read_pauses_while_many_pieces_wait():
    """A read does not run ahead of the merges without limit, whether its pieces were taken or not:
    it stores none while as many as the limit wait, and goes on once they are merged.
    """
    made: list[int] = []

    def endless() -> Iterator[Marker]:
        for number in count(1):
            made.append(number)
            yield piece(number)

    with Fetching(threading.Event()) as fetching:
        fetching.unmerged = _AHEAD - 2
        fetching.start("Account", endless)
        until(lambda: fetching._stored.qsize() == 2, "the pause")
        assert made == [1, 2]
        fetching.unmerged = 0
        until(lambda: fetching._stored.qsize() == _AHEAD, "the next pause")
        assert len(made) == _AHEAD


def ended(fetching: Fetching):
    """Return the news of a read that has ended; None before."""
    news = fetching.news()
    return news if news is not None and news[2] is not None else None


def test_pieces_of_one_read_are_merged_together():
    """All waiting pieces of the oldest read are merged at once; what is dropped leaves those of
    other objects, and is not resumed.
    """
    pieces = Pieces()
    pieces.left("Contact", [piece(1), piece(2)], 1)
    pieces.stored("Account", piece(1))
    pieces.stored("Account", piece(2))
    assert pieces.unfinished("Contact") == piece(2)
    assert pieces.first() == ("Contact", [piece(2)])
    pieces.merged(1)
    assert pieces.first() == ("Account", [piece(1), piece(2)])
    pieces.drop("Account")
    assert (len(pieces), pieces.has("Account"), pieces.unfinished("Account")) == (0, False, None)
