"""Interrupts a subscription thousands of times, and checks that nothing hangs, stalls or is lost.

A managed subscription reads numbered events from an emulator process, in each way in turn: batches
that are acked automatically, batches that are acked and committed, and single events. Meanwhile a
signal arrives every 0.05 to 4 ms, and its handler raises KeyboardInterrupt, which is caught, as in
a notebook. Run ``python -m tests.faults.interrupts``; the last line is the report as JSON.

The handler raises only if it has interrupted the client. An interrupt between the return of a call
and the caller's assignment would be the caller's: no library could tell that from a lost result.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import sfpubsub
from sfpubsub import PubSubClient
from sfpubsub.client.batch import Event
from sfpubsub.client.subscription import ManagedSubscription
from tests.faults.soak import MANAGED, TOPIC, Emulator

# Seconds between two signals.
SHORTEST, LONGEST = 50e-6, 4e-3

# Events that are published ahead of the reader, and events per publish call.
AHEAD, PART = 4_000, 200

# Seconds without a new event after which the run has stalled. The service closes a stream that asks
# for nothing after 60 s, so a lost request for events would stall a stream for about 50 s.
STALL = 20.0

# Seconds after which a call that does not return is reported with the stacks of all threads.
HANG = 60.0

OURS = str(Path(sfpubsub.__file__).parent)

T = TypeVar("T")


class Interrupts:
    """Raises KeyboardInterrupt at random moments within calls of the client."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.raised = 0
        """Number of interrupts that were raised in the client."""
        self.outside = 0
        """Number of signals that arrived outside of the client, and were ignored."""

    @contextmanager
    def running(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._on_signal)
        self._arm()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(SHORTEST, LONGEST))

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        self._arm()
        while frame is not None and frame.f_code.co_filename != __file__:
            if frame.f_code.co_filename.startswith(OURS):
                self.raised += 1
                raise KeyboardInterrupt
            frame = frame.f_back
        self.outside += 1


def again(call: Callable[[], T]) -> T:
    """Return the result of *call*, repeated while it is interrupted."""
    while True:
        try:
            return call()
        except KeyboardInterrupt:
            continue


class Check:
    """Checks what is handed out, in the reading thread, and what is committed, in another."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self.next = 0
        self.handed: dict[str, int] = {}
        """The number of each event that was handed out, by its position."""
        self.committed = -1
        self.wrong: list[str] = []
        self.longest = 0.0
        self.last = time.monotonic()
        """When the last event was handed out."""

    def hand_out(self, event: Event) -> None:
        number = int(again(lambda: event.value)["Order_Number__c"])
        if number != self.next:
            self.wrong.append(f"{number} after {self.next - 1}")
        self.handed[again(lambda: event.replay_id.hex())] = number
        self.next = number + 1
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last)
        self.last = now
        faulthandler.dump_traceback_later(HANG, exit=True)

    def confirm(self, position: str | None) -> None:
        """Check a committed position, in hex."""
        if position is None:
            return
        found = self.handed.get(position)
        if found is None:
            self.wrong.append(f"{position} was committed before its event was handed out")
        else:
            self.committed = max(self.committed, found)

    def look(self) -> None:
        """Check the position that the service knows. Called by another thread."""
        record = self._emulator.admin("/health")["managed_subscriptions"][MANAGED]
        self.confirm(record["committed_replay_id"])


def batches(subscription: ManagedSubscription, check: Check) -> Iterator[None]:
    """Read batches, each of which is acked by the request for the next one."""
    while True:
        batch = again(lambda: subscription.next_batch(HANG))
        assert batch is not None
        for event in again(lambda: list(batch)):  # noqa: B023  # called at once
            check.hand_out(event)
        yield


def committed(subscription: ManagedSubscription, check: Check) -> Iterator[None]:
    """Read batches, ack each, and commit it."""
    while True:
        batch = again(lambda: subscription.next_batch(HANG))
        assert batch is not None
        for event in again(lambda: list(batch)):  # noqa: B023  # called at once
            check.hand_out(event)
        again(batch.ack)
        receipt = again(subscription.commit)
        check.confirm(again(lambda: receipt.replay_id.hex()))  # noqa: B023  # called at once
        yield


def events(subscription: ManagedSubscription, check: Check) -> Iterator[None]:
    """Read single events; an interrupted iteration is begun anew."""
    each = again(subscription.events)

    def next_event() -> Event:
        nonlocal each
        try:
            return next(each)
        except KeyboardInterrupt:
            each = again(subscription.events)
            raise

    while True:
        check.hand_out(again(next_event))
        yield


WAYS: dict[str, tuple[Callable[[ManagedSubscription, Check], Iterator[None]], str]] = {
    "next_batch": (batches, "auto"),
    "commit": (committed, "manual"),
    "events": (events, "auto"),
}


class Publisher(threading.Thread):
    """Publishes numbered events, a little ahead of the reader; looks at the committed position."""

    def __init__(self, client: PubSubClient, check: Check) -> None:
        super().__init__(name="publisher", daemon=True)
        self._client = client
        self._check = check
        self.published = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            if self.published - self._check.next < AHEAD:
                numbers = range(self.published, self.published + PART)
                rows = [{"Order_Number__c": str(number)} for number in numbers]
                self._client.publish(TOPIC, rows, created_by="005000000000001AAA")
                self.published += PART
            else:
                self._check.look()
                self.over.wait(0.02)


def run(count: int, seconds: float, seed: int) -> dict[str, Any]:
    """Run all ways, each with its share of *count* interrupts, and return the report."""
    interrupts = Interrupts(random.Random(seed))
    began = time.monotonic()
    shares: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sfpubsub-interrupts-") as directory:
        emulator = Emulator(Path(directory) / "emulator")
        check = Check(emulator)
        try:
            with PubSubClient(**emulator.client_arguments()) as publishing:
                publisher = Publisher(publishing, check)
                publisher.start()
                for place, (name, (way, ack)) in enumerate(WAYS.items(), 1):
                    until = began + seconds * place / len(WAYS)
                    shares[name] = _one(
                        emulator, interrupts, check, way, ack, count * place // len(WAYS), until
                    )
                publisher.over.set()
                publisher.join(HANG)
            check.look()
        finally:
            emulator.close()
            faulthandler.cancel_dump_traceback_later()
    return {
        "interrupts": interrupts.raised,
        "outside": interrupts.outside,
        "events": check.next,
        "committed": check.committed + 1,
        "longest_s": round(check.longest, 3),
        "seconds": round(time.monotonic() - began, 1),
        "ways": shares,
        "wrong": check.wrong[:10],
        "threads_left": [t.name for t in threading.enumerate() if t.name.startswith("sfpubsub")],
        "seed": seed,
    }


def _one(
    emulator: Emulator,
    interrupts: Interrupts,
    check: Check,
    way: Callable[[ManagedSubscription, Check], Iterator[None]],
    ack: Any,
    count: int,
    until: float,
) -> dict[str, Any]:
    """Read in one way until *count* interrupts were raised in total, or until a time."""
    before, first = interrupts.raised, check.next
    faulthandler.dump_traceback_later(HANG, exit=True)
    with PubSubClient(**emulator.client_arguments()) as client:
        subscription = client.subscribe_managed(MANAGED, ack=ack)
        check.last = time.monotonic()
        with interrupts.running():
            for _ in way(subscription, check):
                if interrupts.raised >= count or time.monotonic() >= until:
                    break
        # The last batch was processed, so it is acked, as a program does that ends by itself.
        if ack == "auto":
            subscription.commit()
        closing = time.monotonic()
        subscription.drain()
        closed = time.monotonic() - closing
    if check.committed > check.next - 1:
        check.wrong.append("more is committed than was handed out")
    return {
        "interrupts": interrupts.raised - before,
        "events": check.next - first,
        "reconnects": subscription.health().reconnects,
        "close_s": round(closed, 3),
    }


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="interrupts in the client")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest time")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    report = run(options.count, options.seconds, options.seed)
    print(json.dumps(report))
    right = (
        not report["wrong"]
        and not report["threads_left"]
        and report["interrupts"] >= options.count
        and report["longest_s"] < STALL
        and report["committed"] == report["events"]
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
