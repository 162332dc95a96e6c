"""Tests of the thread that reads the org: a read is given up without losing others' pieces."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from sfpubsub.spark.mirror.fetching import Fetching
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.records.reads import AsOf
from tests.conftest import until


def piece(number: int, *, is_last: bool = False) -> Marker:
    """Return the marker of a piece of the read that begins with piece 1."""
    return Marker(1, "object", AsOf(0, 0), is_last=is_last, piece=number)


def test_abandoned_read_ends_and_its_pieces_are_forgotten():
    """A running read is stopped between two requests, its pieces are not merged, and it is not
    resumed; pieces of other objects stay. After that, the object can be read again.
    """
    with Fetching(threading.Event()) as fetching:
        fetching.left("Contact", [piece(1, is_last=True)], 0)
        waiting = threading.Event()

        def endless() -> Iterator[Marker]:
            yield piece(1)
            waiting.set()
            while True:
                fetching.check_stop()

        fetching.start("Account", endless)
        assert waiting.wait(60)
        assert fetching.reads("Account")
        assert not fetching.abandon("Account")  # it is still ending
        ended = until(fetching.ended, "the end of the read")
        assert (ended.entity, ended.error) == ("Account", None)
        assert fetching.unfinished("Account") is not None
        assert fetching.abandon("Account")
        assert fetching.unfinished("Account") is None
        assert not fetching.reads("Account")
        assert fetching.take() == ("Contact", [piece(1, is_last=True)])
        assert fetching.is_idle
        fetching.start("Account", lambda: iter([piece(1, is_last=True)]))
        until(fetching.ended, "the end of the next read")
        assert fetching.take() == ("Account", [piece(1, is_last=True)])
