"""Random walks of the ledger and of a slow, simple one, which must agree after each step.

A walk mixes responses of any size, redeliveries, duplicates within a response, reused positions,
keepalives, acks and confirmations in any order, and new streams at any time. A failed walk prints
its seed; the environment variable ``SFPUBSUB_WALK_SEED`` sets the first seed.
"""

from __future__ import annotations

import os
import random

import pytest

from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.run import FULL
from sfpubsub.types import RawEvent
from tests.protocol.plain_ledger import PlainLedger
from tests.protocol.scripted import event, rid

SEED = int(os.environ.get("SFPUBSUB_WALK_SEED", "20260801"))


class Walk:
    """Applies random operations of an application and of a service to both ledgers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ledger, self.plain = Ledger(), PlainLedger()
        self.log: list[RawEvent] = []  # all received events
        self.seq = 1
        self.new_stream()

    def new_stream(self) -> None:
        self.ledger.new_stream()
        self.plain.new_stream()

    def receive(self) -> None:
        """Receive a response, possibly with redelivered events, duplicates and reused positions."""
        chance = self.chance
        fresh = [event(len(self.log) + n) for n in range(chance.choice((0, 1, 1, 2, 5, 30)))]
        events = list(fresh)
        # Redeliver some events, before or after the new ones.
        if self.log and (not fresh or chance.random() < 0.3):
            start = chance.randrange(len(self.log))
            again = self.log[start : start + chance.choice((1, 3, 20))]
            events = [*again, *fresh] if chance.random() < 0.7 else [*fresh, *again]
        if chance.random() < 0.05:
            events += events[-1:]
        if self.log and chance.random() < 0.08:  # reuse a position, as after a reset
            other = chance.choice(self.log)._replace(id=f"twin{chance.randrange(5)}")
            events.insert(chance.randrange(len(events) + 1), other)
        if not events:
            return
        new = self.ledger.add(tuple(events), self.seq)
        assert new == self.plain.add(tuple(events), self.seq)
        self.seq += len(new)
        self.log += [one for one in new if one not in self.log]

    def keepalive(self) -> None:
        """Receive a keepalive."""
        position = rid(10_000 + self.plain.orders)
        self.ledger.add_keepalive(position)
        self.plain.add_keepalive(position)

    def ack(self) -> None:
        """Ack a range of sequence numbers at or near the oldest unacked event."""
        open_ones = [one.seq for one in self.plain.positions if not one.acked]
        near = open_ones[0] if open_ones else 0
        first = near + self.chance.choice((-3, 0, 0, 0, 0, 1, 4, 40))
        last = first + self.chance.choice((0, 0, 0, 1, 7, 50))
        assert self.ledger.ack(first, last) == self.plain.ack(first, last)

    def confirm(self) -> None:
        """Confirm a random position in both ledgers: one that can be committed, or one near it."""
        ready = self.plain.prefix
        order = self.chance.choice(ready).order if ready else 0
        order += self.chance.choice((0, 0, 0, 0, -1, 1, 60))
        self.ledger.confirm(order)
        self.plain.confirm(order)

    def step(self) -> None:
        """Apply one random operation, and compare both ledgers."""
        (what,) = self.chance.choices(
            (self.receive, self.keepalive, self.ack, self.confirm, self.new_stream),
            weights=(30, 8, 40, 12, 3),
        )
        what()
        self.compare()

    def compare(self) -> None:
        """Check that both ledgers agree, and that the tested ledger stays small."""
        ledger, facts = self.ledger, self.plain.facts()
        assert {name: getattr(ledger, name) for name in facts} == facts
        order = self.chance.randrange(self.plain.orders + 2)
        assert ledger.event_after(order) == self.plain.event_after(order)
        if self.log:
            one = self.chance.choice(self.log)
            held = any(position.is_event(one) for position in self.plain.positions)
            assert ledger.holds(one) == held
        # Confirmed entries use memory only in a run that has others too, and neighbours share runs.
        keepalives = sum(one.event_id is None for one in self.plain.positions)
        assert len(ledger._runs) <= 2 + keepalives + len(self.plain.positions) // FULL
        assert len(ledger._by_position) + len(ledger._twins) == (
            len(self.plain.positions) - keepalives
        )


@pytest.mark.parametrize("number", range(60))
def test_ledger_agrees_with_a_simple_implementation(number: int) -> None:
    """The ledger, which groups its entries into runs, agrees with a simple one that keeps an entry
    per position, after each of 150 random steps.
    """
    walk = Walk(SEED + number)
    try:
        for _ in range(150):
            walk.step()
    except BaseException:
        print(f"SFPUBSUB_WALK_SEED={SEED + number}")
        raise
