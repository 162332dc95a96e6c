"""How far the application has got with the messages of one channel, and which position that allows
to store.

A position may be stored only if every message up to it is acked, in order of arrival, and if no
event below it can still be on its way (`received.Mark`). Messages without a replay id cannot be
acked, and count as acked.

One thread may call `arrived` and `sealed`, another the other methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Storable(NamedTuple):
    """A position that may be stored."""

    seq: int
    """Number of the last message that it covers."""
    position: int
    """The replay id."""


class _Run(NamedTuple):
    """Messages that were queued together, with consecutive numbers."""

    first: int
    ids: Sequence[int | None]
    is_ordered: bool


class Progress:
    """The acks of one channel's messages.

    Args:
        first: The lowest ``delivery_seq`` that a message of this subscription can have. Acks of
            earlier messages, which belong to an earlier subscription, are ignored.
    """

    def __init__(self, first: int) -> None:
        self._runs: deque[_Run] = deque()  # those that are not fully acked
        self._seals: deque[Storable] = deque()
        self._first = first
        self._sealed: Storable | None = None  # the last one
        self._next = first  # all messages before this number are acked
        self._early: set[int] = set()  # numbers of acked messages after one that is not
        self._newest = self._stored = Storable(0, -1)
        self._arrived = self._done = 0  # counts; each is changed by one thread only

    # For the thread that queues messages.

    def arrived(self, first: int, ids: Sequence[int | None], *, is_ordered: bool) -> None:
        """Record messages, before they can be received.

        Args:
            first: ``delivery_seq`` of the first; the others are numbered consecutively.
            ids: Their replay ids.
            is_ordered: Whether each position may be stored as soon as its message and all before
                are acked; otherwise, `sealed` says what may be stored.
        """
        self._arrived += len(ids)
        self._runs.append(_Run(first, ids, is_ordered))

    def sealed(self, seq: int, position: int) -> None:
        """Record that *position* may be stored when the messages up to number *seq* are acked."""
        seal = Storable(seq, position)
        if seq >= self._first and position >= 0 and seal != self._sealed:
            self._sealed = seal
            self._seals.append(seal)

    @property
    def unacked(self) -> int:
        """The number of messages that are not in the acked prefix."""
        return self._arrived - self._done

    # For the thread that receives and acks.

    def ack(self, seq: int) -> None:
        """Ack the message with number *seq*. Can be repeated."""
        if seq >= self._next:
            self._early.add(seq)

    def storable(self) -> Storable | None:
        """Return the newest position that may be stored; None if it is stored already."""
        self._advance()
        while self._seals and self._seals[0].seq < self._next:
            seal = self._seals.popleft()
            if seal.seq >= self._newest.seq:
                self._newest = seal
        return None if self._newest.position == self._stored.position else self._newest

    def stored(self, stored: Storable) -> None:
        """Record that a position has been stored."""
        self._stored = stored

    def _advance(self) -> None:
        while self._runs:
            first, ids, is_ordered = self._runs[0]
            # Other channels' messages may come between two runs.
            self._next = max(self._next, first)
            while (place := self._next - first) < len(ids):
                number = ids[place]
                if number is not None:
                    if self._next not in self._early:
                        return
                    self._early.remove(self._next)
                    if is_ordered:
                        self._newest = Storable(self._next, number)
                self._next += 1
                self._done += 1
            self._runs.popleft()
