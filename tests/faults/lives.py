"""Opens, aborts, closes and drops subscriptions at random from six threads of one process.

Subscriptions to a topic and to a managed subscription live for some responses or none, and end in
every way: drained, closed, aborted, dropped without any of these, or with their client; each is
also used by another thread meanwhile. An emulator process publishes without a pause. Run
``python -m tests.faults.lives``; the last line is the report as JSON. No call may hang, no event
may be lost or misplaced, and neither threads nor memory may remain.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import random
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from sfpubsub import PubSubClient
from sfpubsub.client.subscription import Subscription
from sfpubsub.config import Timings
from sfpubsub.errors import SubscriptionClosedError
from tests.faults.soak import MANAGED, TOPIC, Emulator, rss

THREADS = 6

# Events per publish call, and seconds between two calls.
PART, PAUSE = 50, 0.05

# Seconds without a finished life after which the run hangs, and is ended with all stacks.
HANG = 120.0

# Seconds in which the threads of ended clients must have ended.
PATIENCE = 30.0

# Ways in which a life ends.
ENDS = ("drain", "close", "abort", "with", "drop", "client")


class Lives:
    """What all threads share: counts, faults, and the emulator."""

    def __init__(self, emulator: Emulator, until: float) -> None:
        self.emulator = emulator
        self.until = until
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)
        faulthandler.dump_traceback_later(HANG, exit=True)


class Liver(threading.Thread):
    """Lives one subscription after another."""

    def __init__(self, lives: Lives, seed: int) -> None:
        super().__init__(name=f"liver {seed}", daemon=True)
        self._lives = lives
        self._chance = random.Random(seed)

    def run(self) -> None:
        lives = self._lives
        while time.monotonic() < lives.until:
            try:
                self._with_client()
            except Exception as error:  # noqa: BLE001  # reported
                lives.wrong.append(f"{type(error).__name__}: {error}")

    def _with_client(self) -> None:
        """Use one client for some lives; some end with it."""
        timings = Timings(backoff_initial=0.05, backoff_max=0.2, slot_initial=0.05)
        client = PubSubClient(**self._lives.emulator.client_arguments(), timings=timings)
        try:
            while time.monotonic() < self._lives.until and self._chance.random() > 0.1:
                if self._live(client) == "client":
                    break
        finally:
            client.close()

    def _live(self, client: PubSubClient) -> str:
        chance = self._chance
        is_managed = chance.random() < 0.3
        end = chance.choice(ENDS)
        if is_managed:
            subscription: Subscription = client.subscribe_managed(MANAGED)
        else:
            replay = chance.choice(["earliest", "latest"])
            subscription = client.subscribe(TOPIC, replay=replay)
        other = threading.Thread(target=self._disturb, args=(subscription, chance.random()))
        other.start()
        try:
            self._read(subscription, chance.randrange(4), is_managed)
            if end == "with":
                with subscription:
                    pass
            elif end == "client":
                client.close()
            elif end != "drop":
                getattr(subscription, end)()
        except SubscriptionClosedError:
            pass  # the other thread was faster
        other.join()
        with warnings.catch_warnings():
            # Of a subscription that is dropped; that it is said is tested elsewhere.
            warnings.simplefilter("ignore", ResourceWarning)
            del subscription
        self._lives.count(end, "managed" if is_managed else "plain")
        return end

    def _read(self, subscription: Subscription, batches: int, is_managed: bool) -> None:
        """Read some batches; their numbers must follow each other."""
        last: int | None = None
        for _ in range(batches):
            batch = subscription.next_batch(self._chance.choice([0.0, 0.05, 0.5]))
            for event in batch or ():
                number = int(event.value["Order_Number__c"])
                if last is not None and number != last + 1:
                    self._lives.wrong.append(f"{number} after {last}, managed: {is_managed}")
                last = number

    def _disturb(self, subscription: Subscription, number: float) -> None:
        """Use the subscription from another thread, for a moment."""
        try:
            subscription.health()
            if number < 0.1:
                subscription.abort()
            elif number < 0.2:
                subscription.drain()
            elif number < 0.3:
                subscription.pause()
                subscription.resume()
            elif number < 0.4:
                subscription.stop()
        except SubscriptionClosedError:
            pass
        except Exception as error:  # noqa: BLE001  # reported
            self._lives.wrong.append(f"other thread: {type(error).__name__}: {error}")


def publish(client: PubSubClient, first: int, until: float) -> int:
    """Publish events numbered from *first* until a time, and return the next number."""
    published = first
    while time.monotonic() < until:
        rows = [{"Order_Number__c": str(published + index)} for index in range(PART)]
        client.publish(TOPIC, rows, created_by="005000000000001AAA")
        published += PART
        time.sleep(PAUSE)
    return published


def left() -> list[str]:
    """Return the names of the client's threads."""
    return [each.name for each in threading.enumerate() if each.name.startswith("sfpubsub")]


def run(seconds: float, seed: int) -> dict[str, Any]:
    """Run for *seconds*, and return the report."""
    began = time.monotonic()
    faulthandler.dump_traceback_later(HANG, exit=True)
    logging.getLogger("sfpubsub").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="sfpubsub-lives-") as directory:
        emulator = Emulator(Path(directory) / "emulator")
        try:
            lives = Lives(emulator, began + seconds)
            livers = [Liver(lives, seed + number) for number in range(THREADS)]
            with PubSubClient(**emulator.client_arguments()) as client:
                for liver in livers:
                    liver.start()
                published = publish(client, 0, began + seconds / 4)
                before = rss()
                published = publish(client, published, lives.until)
                for liver in livers:
                    liver.join()
            gc.collect()
            deadline = time.monotonic() + PATIENCE
            while left() and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            emulator.close()
            faulthandler.cancel_dump_traceback_later()
    return {
        "lives": lives.counts["managed"] + lives.counts["plain"],
        "ended": dict(lives.counts),
        "published": published,
        "rss_kib": [before, rss()],
        "seconds": round(time.monotonic() - began, 1),
        "wrong": lives.wrong[:10],
        "threads_left": left(),
        "seed": seed,
    }


def main() -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    report = run(options.seconds, options.seed)
    print(json.dumps(report))
    return 0 if not report["wrong"] and not report["threads_left"] else 1


if __name__ == "__main__":
    sys.exit(main())
