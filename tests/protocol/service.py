"""A small model of the service, for test_walk.py. It shares no code with the protocol.

Positions are numbers on one event bus, to which other topics publish as well. Requests and
responses wait in `inbox` and `outbox` until the walk transfers them; the end of a call discards
both. Every rule that the client must follow is an assertion here.
"""

from __future__ import annotations

import bisect
import random
from collections import deque

from sfpubsub.protocol.commands import OpenStream, SendRequest
from sfpubsub.protocol.events import CommitAnswer, Response
from sfpubsub.types import ReplayId, ReplayPreset
from tests.protocol.scripted import event, rid

MOST_OUTSTANDING = 100
IDLE_LIMIT = 60.0
KEEPALIVE = 270.0


class Service:
    """A service with one topic and one managed subscription.

    Args:
        chance: Source of all random decisions.
        managed: Whether calls are ManagedSubscribe calls, rather than Subscribe calls.
        latest: Whether the defaultReplay is LATEST, rather than EARLIEST.
    """

    def __init__(self, chance: random.Random, *, managed: bool, latest: bool = False) -> None:
        self.forgets = latest  # until the first commit
        self.chance = chance
        self.managed = managed
        self.tip = 0
        self.log: list[int] = []  # positions of the events
        self.committed = 0
        self.earliest = 0  # events up to here are no longer retained
        self.stream = 0  # 0 without a call
        self.inbox: deque[SendRequest] = deque()
        self.outbox: deque[Response] = deque()
        self.deaf = False  # whether the network silently drops everything
        self.outstanding = 0
        self.cursor = 0
        self.seen: set[int] = set()  # positions sent on this call
        self.answers: list[CommitAnswer] = []
        self.asked_at = self.told_at = 0.0
        self.refusals = 0
        self.moves = 0  # number of times that the subscription was moved back
        self.most_refusals = 0.1

    def publish(self, count: int) -> None:
        """Publish *count* events, with events of other topics in between."""
        for _ in range(count):
            self.tip += self.chance.choice((1, 1, 1, 5))
            self.log.append(self.tip)

    def open(self, opening: OpenStream, now: float) -> None:
        """Handle the first request of a new call."""
        self.close()
        self.stream = opening.stream
        self.outstanding = opening.num_requested
        assert 1 <= self.outstanding <= MOST_OUTSTANDING
        if opening.start is None:
            assert self.managed
            self.cursor = self.tip if self.forgets else self.committed
        elif opening.start.preset is ReplayPreset.CUSTOM:
            assert opening.start.replay_id is not None
            self.cursor = position(opening.start.replay_id)
        else:
            earliest = opening.start.preset is ReplayPreset.EARLIEST
            self.cursor = self.earliest if earliest else self.tip
        self.asked_at = self.told_at = now

    def close(self, *, carry_out: bool = False) -> None:
        """End the call, and discard everything in transit.

        Args:
            carry_out: Whether to handle the requests in transit first.
        """
        while carry_out and self.inbox and not self.deaf:
            self.read(0.0)
        self.stream = 0
        self.deaf = False
        self.inbox.clear()
        self.outbox.clear()
        self.answers.clear()
        self.seen.clear()

    def read(self, now: float) -> None:
        """Handle the next request in the inbox."""
        request = self.inbox.popleft()
        self.asked_at = now
        assert request.num_requested or request.commit
        self.outstanding += request.num_requested
        assert self.outstanding <= MOST_OUTSTANDING, "the client requested more than 100 events"
        if request.commit is None:
            return
        assert self.managed
        wanted = position(request.commit.replay_id)
        assert wanted in self.seen or wanted == self.committed, (
            "the position was not sent on this stream"
        )
        assert wanted >= self.committed, "a commit must not move the position back"
        error = None
        if self.chance.random() < self.most_refusals:
            self.refusals += 1
            error = "the commit failed"
        else:
            self.committed = wanted
            self.forgets = False
        self.answers.append(
            CommitAnswer(request.commit.request_id, request.commit.replay_id, error, 1)
        )

    @property
    def backlog(self) -> list[int]:
        """The next events to send on this call, up to the number still requested."""
        if not self.stream:
            return []
        first = bisect.bisect_right(self.log, self.cursor)
        return self.log[first : first + self.outstanding]

    def deliver(self, now: float, most: int) -> bool:
        """Send up to *most* events, or a keepalive if there are none.

        Return False if there is no call, or if it has no requested events outstanding.
        """
        if not self.stream or not self.outstanding:
            return False
        numbers = self.backlog[:most]
        if not numbers and self.chance.random() < 0.5:
            self.tip += 1  # an event of another topic
        self.cursor = numbers[-1] if numbers else self.tip
        self.outstanding -= len(numbers)
        self.seen.update(numbers or [self.tip])
        found = tuple(event(number) for number in numbers)
        self._send(Response(found, rid(self.cursor), self.outstanding, "rpc"))
        self.told_at = now
        return True

    def answer(self) -> None:
        """Send the oldest pending commit response, send the newest and drop the rest, or drop all.

        The choice is random.
        """
        how = self.chance.random()
        if how < 0.1:
            self.answers.clear()
            return
        if how < 0.8:
            chosen = self.answers[-1]
            self.answers.clear()
        else:
            chosen = self.answers.pop(0)
        stale = self.chance.random() < 0.5
        self._send(Response((), rid(self.tip) if stale else None, 0, "rpc", chosen))

    def _send(self, response: Response) -> None:
        if not self.deaf:
            self.outbox.append(response)

    def check_idle(self, now: float) -> None:
        """Check that the call has not gone more than 60 s with no requested events outstanding."""
        idle = self.stream and not self.deaf and not self.outstanding
        assert not idle or now - self.told_at <= IDLE_LIMIT, "nothing was requested for 60 s"

    def keepalive_due(self, now: float) -> bool:
        """Return whether the service must send a keepalive now."""
        return bool(self.stream and self.outstanding) and (
            now - max(self.told_at, self.asked_at) >= KEEPALIVE
        )

    def move_back(self) -> None:
        """Move the committed position back, so that the next call begins earlier."""
        self.moves += 1
        self.committed = min(self.committed, self.chance.choice([0, *self.log[-30:]]))

    def expire(self, until: int) -> None:
        """Expire all events up to position *until*, and sometimes up to three more."""
        behind = [number for number in self.log if number > until][:3]
        self.earliest = self.chance.choice([until, *behind])


def position(replay_id: ReplayId) -> int:
    """Return the position that a replay id created by `rid` stands for."""
    return int.from_bytes(bytes(replay_id)[4:], "big")
