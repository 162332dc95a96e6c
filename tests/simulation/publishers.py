"""The program that publishes: with unary calls, or over streams, in order or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from sfpubsub import PubSubClient
from sfpubsub.errors import (
    AuthenticationError,
    EncodeError,
    LocalProtocolError,
    PublishError,
    SfPubSubError,
)
from sfpubsub.types import PublishResult
from tests.simulation.oracle import Broken
from tests.simulation.process import PATIENCE_S, Program, machine_of
from tests.simulation.world import HOUR, SENT, Login, World

BY = "005SB0000000001AAA"
"""Id of the user who publishes."""

TIMEOUT_S = 120.0
"""How long an event may wait for its result, in seconds: the default of the library."""

LATE_S = 60.0
"""By how much a result may be later than that, in seconds: an event may wait before it is sent, and
one request in flight before it has its answer.
"""


@dataclass
class Sent:
    """One event that was handed over.

    Attributes:
        life: Number of the publisher object.
        place: Its place in the order in which that publisher was given events.
        at: When it was handed over, in seconds since the start.
        result: What the publisher said: ``ok``, ``refused`` by the service, ``never sent``, or ``in
            doubt``; blank before it said anything, or if its process was killed.
    """

    life: int
    place: int
    at: float
    result: str = ""


class Publisher(Program):
    """Publishes events, and compares what it is told with what the org has.

    Args:
        world: The world.
        name: Unique.
        is_calm: Whether it publishes some twenty events a day, rather than thousands.
    """

    def __init__(self, world: World, name: str, *, is_calm: bool = False) -> None:
        super().__init__(world, name)
        self._pauses = (HOUR, 2 * HOUR) if is_calm else (0.1, 20.0, 600.0, 3000.0)
        self._batches = (1,) if is_calm else (1, 3, 40, 250)
        self._bursts = (1,) if is_calm else (1, 1, 5, 120)
        self._end = 0.5 if is_calm else 0.05  # probability that a stream ends after a burst
        self.sent: dict[str, Sent] = {}
        self._waiting: dict[str, Sent] = {}  # without a result, of the process that runs
        self._stored: Counter[str] = Counter()  # how often an event is in the org
        self._publishers = 0
        self._ordered: dict[int, int] = {}  # the place that the org had last, of ordered ones
        self._ordered_since: dict[int, int] = {}  # how many events had been refused by then
        self._failure: Callable[[], SfPubSubError | None] = lambda: None  # of the publisher itself
        self._has_answer = False  # whether the service has answered this publisher
        world.on_sent.append(self._appended)

    # What it does.

    def _work(self) -> None:
        self._waiting.clear()
        with PubSubClient(Login(self.world)) as client:
            while not self.leaving:
                style = self.chance.choice((self._unary, self._streamed))
                try:
                    style(client)
                except PublishError as error:
                    self.world.reach("publish error")
                    self.kernel.sleep(self.chance.choice((1.0, 60.0)))
                    if not error.retryable and self.chance.random() < 0.1:
                        return
                self.kernel.sleep(self.chance.choice(self._pauses))

    def _unary(self, client: PubSubClient) -> None:
        life = self._new_publisher(ordered=True)
        keys = [self._hand_over(life) for _ in range(self.chance.choice(self._batches))]
        for key in keys:  # the timeout of an event begins shortly before it is sent
            del self._waiting[key]
        try:
            results = client.publish(SENT, [{"Key__c": key} for key in keys], created_by=BY)
        except PublishError as error:
            results = list(error.results)
        except SfPubSubError:
            results = []
            for key in keys:  # no event was accepted
                self.sent[key].result = "in doubt"
            raise
        for key, result in zip(keys, results, strict=True):
            self._told(key, result)

    def _streamed(self, client: PubSubClient) -> None:
        chance, kernel = self.chance, self.kernel
        ordered = chance.random() < 0.5
        streamed = chance.random() < 0.8
        publisher = client.open_publisher(SENT, ordered=ordered, streamed=streamed, created_by=BY)
        self._failure = lambda: publisher._outbound.driver.failure
        machine = machine_of(kernel)
        life = self._new_publisher(ordered=ordered)

        def settled(key: str, receipt: Future[PublishResult]) -> None:
            if machine.dead:
                return
            error = receipt.exception()
            if isinstance(error, PublishError):
                self._told(key, error.results[0])
            elif error is None:
                self._told(key, receipt.result())
            else:
                kernel.failures.append((machine.name, error))

        with publisher:
            while not self.leaving and chance.random() > self._end:
                for _ in range(chance.choice(self._bursts)):
                    key = self._hand_over(life)
                    receipt = publisher.send({"Key__c": key})
                    self.sent[key].at = kernel.now
                    receipt.add_done_callback(partial(settled, key))
                if chance.random() < 0.2:
                    publisher.flush()
                kernel.sleep(chance.choice((0.0, 0.01, 1.0, 65.0, 80.0, 1500.0)))

    def _new_publisher(self, *, ordered: bool) -> int:
        self._publishers += 1
        self._has_answer = False
        if ordered:
            self._ordered[self._publishers] = -1
            self._ordered_since[self._publishers] = self._refusals()
        return self._publishers

    def _hand_over(self, life: int) -> str:
        key = str(len(self.sent))
        self.sent[key] = self._waiting[key] = Sent(life, len(self.sent), self.kernel.now)
        return key

    def _may_end_with(self, error: SfPubSubError) -> bool:
        if isinstance(error, (EncodeError, LocalProtocolError)):
            return False
        if isinstance(error, AuthenticationError) and error is self._failure() and self._has_answer:
            return self.world.troubled_for() >= PATIENCE_S
        return True  # a publisher gives up after a while; each event has its own result

    # What must be true.

    def _told(self, key: str, result: PublishResult) -> None:
        sent = self.sent[key]
        self._waiting.pop(key, None)
        if sent.result:
            raise Broken(f"{self.name}: event {key} has a second result")
        text = result.error or ""
        if result.ok:
            sent.result = "ok"
            self._has_answer = True
            self.delivered += 1
        elif "never sent" in text:
            sent.result = "never sent"
        elif "may have been published" in text:
            sent.result = "in doubt"
        else:
            sent.result = "refused"
        self.world.reach(f"result: {sent.result}")
        stored = self._stored[key]
        if sent.result == "ok" and not stored:
            raise Broken(f"{self.name}: event {key} was accepted, and the org does not have it")
        if sent.result in ("never sent", "refused") and stored:
            raise Broken(f"{self.name}: event {key} is in the org, but it was told: {text}")
        if sent.result == "in doubt":
            self.world.reach(f"in doubt, {'' if stored else 'not '}published")

    def _appended(self, key: str) -> None:
        sent = self.sent[key]
        self._stored[key] += 1
        if sent.result in ("never sent", "refused"):
            raise Broken(f"{self.name}: event {key} is published, although it is {sent.result}")
        if self._stored[key] > 1:
            self.duplicates += 1
            self.world.reach("published again")
        elif sent.life in self._ordered:
            last = self._ordered[sent.life]
            if sent.place < last:
                self._overtaken(key, sent)
            self._ordered[sent.life] = max(last, sent.place)

    def _overtaken(self, key: str, sent: Sent) -> None:
        """An event is published after a later one, although its publisher is ordered."""
        if sent.result == "in doubt":  # the service has handled a call long after its end
            self.world.reach("published late")
        elif self._refusals() > self._ordered_since[sent.life]:  # an event alone is sent again
            self.world.reach("overtaken after a refusal")
        else:
            raise Broken(f"{self.name}: event {key} is published after a later one")

    def _refusals(self) -> int:
        """Return how many events the service has refused."""
        report = self.world.org.faults.report()
        return sum(each["happened"] for each in report if each["kind"] == "refuse_event")

    def check(self) -> None:
        now = self.kernel.now
        if self.machine is None:
            self._waiting.clear()
        for key, sent in self._waiting.items():
            if now - sent.at <= TIMEOUT_S + LATE_S:
                break
            raise Broken(f"{self.name}: event {key} has no result after {now - sent.at:.0f} s")

    @property
    def behind(self) -> str:
        return f"{len(self._waiting)} events without a result" if self._waiting else ""
