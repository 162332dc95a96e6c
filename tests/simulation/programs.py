"""The programs of the customer: what a reader of each kind does, and how it is started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sfpubsub import PubSubClient
from sfpubsub.errors import (
    CommitError,
    LocalProtocolError,
    ReplayIdRejectedError,
    SfPubSubError,
    StreamUnavailableError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
)
from sfpubsub.stores.replay_store import ReplayStore
from sfpubsub.types import Gap, ReplayId, StartPosition
from tests.simulation.kernel import Kernel, Machine
from tests.simulation.oracle import Broken, Reader, Skip
from tests.simulation.world import SETTINGS, TOPIC, Login, World

PATIENCE_S = 500.0
"""For how long a working subscription must bear refusals, in seconds: a little less than the
`Timings.session_budget`, which begins with the first refusal that it sees.
"""


class Disk(ReplayStore):
    """A replay store that survives kills. A kill during a write leaves the old or the new value.

    Attributes:
        kept: The position on the disk, by topic.
    """

    def __init__(self, world: World, reader: Reader) -> None:
        self.kept: dict[str, ReplayId] = {}
        self._world = world
        self._reader = reader

    def get(self, topic: str) -> StartPosition | None:
        position = self.kept.get(topic)
        return None if position is None else StartPosition.after(position)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        kernel, chance = self._world.kernel, self._world.chance
        machine = _machine(kernel)
        if machine.dead:
            return
        position = self._world.org.bus.ids.read(bytes(replay_id))
        if position is not None and position in self._world.truth.by_position:
            self._reader.committed(position, "stored")
        if chance.random() < 0.5:
            self.kept[topic] = replay_id
        kernel.sleep(chance.choice((0.001, 0.02, 1.0)))
        self.kept[topic] = replay_id


def _machine(kernel: Kernel) -> Machine:
    assert kernel.current is not None
    return kernel.current.machine


class Program:
    """A reader, which runs until it is stopped, and is started again.

    Args:
        world: The world.
        name: Of the reader; for a managed one, of its subscription.
        kind: ``managed``, ``latest`` (managed, with the defaultReplay LATEST), ``stored`` (plain,
            with a replay store), or ``plain``.
        records: Whether the client may read the subscription's record.

    Attributes:
        machine: Its process; None while none runs.
        errors: What ended its subscriptions, by name of the error.
    """

    def __init__(self, world: World, name: str, kind: str, *, records: bool = False) -> None:
        self.world, self.kernel, self.chance = world, world.kernel, world.chance
        self.name, self.kind, self.records = name, kind, records
        self.managed = kind in ("managed", "latest")
        self.reader = Reader(name, world.truth, world.kernel, kind != "plain", self._exception)
        if kind in ("managed", "stored"):
            self.reader.floor = 0
        self.disk = Disk(world, self.reader)
        self.machine: Machine | None = None
        self.errors: dict[str, int] = {}
        self.leaving = False
        self._lives = 0
        self._fallback: str | None = None
        self._lost_at = -1.0  # when the org last dropped the position
        self._moved_at = -1.0  # when it did so because it was moved
        self._began = [0.0, 0.0]  # when the last two subscription objects began
        self._subscription: Any = None  # of the last life
        self._is_new = True  # whether it is the first of its process
        self._expired = False  # whether the position had expired when it began
        self._has_committed = False
        if self.managed:
            world.on_commit.append(self._committed)

    # What an operator does.

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.machine is not None:
            return
        self._lives += 1
        self.leaving = False
        machine = self.machine = Machine(f"{self.name}.{self._lives}")
        machine.drift = self.chance.choice((0.0, -3.0, 40.0, 7200.0, -86400.0))
        self.world.tell(f"{machine.name} starts")
        self.kernel.spawn(machine, "main", lambda: self._main(machine))

    def kill(self) -> None:
        """Kill the process where it stands."""
        machine = self.machine
        if machine is None:
            return
        self.world.tell(f"{machine.name} is killed")
        self.machine = None
        self.kernel.kill(machine)
        self.world.network.hang_up(machine)

    def leave(self) -> None:
        """Ask the process to end by itself, after its next event."""
        self.leaving = True

    # The process.

    def _main(self, machine: Machine) -> None:
        error: BaseException | None = None
        try:
            self._read()
        except SfPubSubError as failure:
            error = failure
        if self.machine is machine:
            self.machine = None
        name = type(error).__name__ if error is not None else "no error"
        self.errors[name] = self.errors.get(name, 0) + 1
        self.world.tell(f"{machine.name} ended with {name}: {error or ''}")
        self.world.reach(f"ended: {name}")
        if error is not None and not self._may_end_with(error):
            raise Broken(
                f"{machine.name} ended with {name}, after trouble of"
                f" {self.world.troubled_for():.0f} s: {error}"
            )
        self._fallback = "earliest" if isinstance(error, ReplayIdRejectedError) else None
        # As a supervisor does.
        if not self.leaving:
            self.kernel.at(self.kernel.now + self.chance.choice((1.0, 30.0, 600.0)), self.start)

    def _may_end_with(self, error: SfPubSubError) -> bool:
        """Return whether the world is such that an error may end the subscription."""
        if isinstance(error, SubscriptionStoppedError):
            return self._lost_at >= 0
        if isinstance(error, SubscriptionNotFoundError):
            return self.kernel.now < 2 * SETTINGS.propagation_s
        if isinstance(error, ReplayIdRejectedError):
            return self._moved_at >= 0 or self.world.expired() > 0
        if isinstance(error, (CommitError, SubscriptionBusyError)):
            return True  # moods of the service may last longer than the budgets for them
        if isinstance(error, LocalProtocolError):
            return False
        was_open = self._subscription is not None and self._subscription.health().responses > 0
        return not was_open or self.world.troubled_for() >= PATIENCE_S

    def _read(self) -> None:
        chance, world = self.chance, self.world
        record_of = self._record if self.records else None
        machine = _machine(self.kernel)
        with PubSubClient(Login(world), record_of=record_of) as client:
            self._is_new = True
            while True:
                self._begin()
                try:
                    self._use(self._open(client, lambda gap: self._gap(machine, gap)))
                except SubscriptionStoppedError:
                    self.world.reach("stopped")
                    if chance.random() < 0.5:
                        raise
                else:
                    return
                self.kernel.sleep(chance.choice((1.0, 60.0, 4000.0)))
                self._is_new = False

    def _open(self, client: PubSubClient, on_gap: Callable[[Gap], None]) -> Any:
        if self.managed:
            return client.subscribe_managed(self.name, on_gap=on_gap)
        if self.kind == "plain":
            replay = self.chance.choice(("latest", "earliest"))
            return client.subscribe(TOPIC, replay=replay, on_gap=on_gap)
        return client.subscribe(
            TOPIC,
            replay="earliest",
            replay_store=self.disk,
            replay_fallback=self._fallback,
            on_gap=on_gap,
        )

    def _use(self, subscription: Any) -> None:
        self._subscription = subscription
        style = self.chance.choice((self._batches, self._events, self._run))
        style(subscription)

    def _batches(self, subscription: Any) -> None:
        chance = self.chance
        with subscription:
            while not self.leaving:
                batch = subscription.next_batch(chance.choice((1.0, 100.0, 4000.0)))
                if batch is None:
                    continue
                numbers = [self.reader.given(event.id) for event in batch]
                self._work()
                # From here on: the next request acks the batch, and so does a drain with commit().
                for number in numbers:
                    self.reader.finish(number, number)
                if chance.random() < 0.02:
                    subscription.pause()
                    self.kernel.sleep(chance.choice((1.0, 100.0, 2000.0)))
                    subscription.resume()

    def _events(self, subscription: Any) -> None:
        with subscription:
            for event in subscription.events():
                number = self.reader.given(event.id)
                self._work()
                self.reader.finish(number, number)
                if self.leaving:
                    break

    def _run(self, subscription: Any) -> None:
        def handle(event: Any) -> None:
            number = self.reader.given(event.id)
            self._work()
            self.reader.finish(number, number)
            if self.leaving:
                subscription.stop()

        subscription.run(handle)

    def _work(self) -> None:
        """Take some time, as a program does; sometimes long."""
        number = self.chance.random()
        if number < 0.3:
            self.kernel.sleep(0.2 * number)
        elif number > 0.999:
            self.kernel.sleep(self.chance.choice((30.0, 250.0)))

    def _gap(self, machine: Machine, gap: Gap) -> None:
        if machine.dead:
            return
        self.world.tell(f"{machine.name} is told: {gap}")
        self.world.reach(f"gap: {gap.reason}")
        is_lost = self._lost_at >= self._began[0] or self.world.expired() > 0
        if gap.reason == "repositioned" and not is_lost:
            raise Broken(f"{machine.name} was told of a gap, but nothing had moved: {gap}")
        self.reader.told(gap.reason)

    def _record(self, name: str) -> object:
        """What the subscription's record says, by an HTTP request."""
        world = self.world
        self.kernel.sleep(world.network.delay() * 4)
        if not world.network.is_up:
            raise StreamUnavailableError("the org did not answer")
        record = world.org.managed.get(name)
        if record is None:
            raise StreamUnavailableError("there is no such record")
        return record.state, record.default_replay, record.modified_at

    def look(self) -> None:
        """Count in which state the subscription is, and what it is in doubt about."""
        if self.machine is None or self._subscription is None:
            return
        protocol = self._subscription._delivery.driver._protocol
        self.world.reach(f"state: {protocol.state.value}")
        if protocol._managed is not None and protocol._managed._commits.in_doubt:
            self.world.reach("commit in doubt")
        if protocol.stopped is not None:
            self.world.reach("a stop is to be told")

    # What the oracle must know.

    def position_lost(self, *, moved: bool = False) -> None:
        """The org drops the position: a stop or, if *moved*, a move to another instance."""
        if moved:
            self._moved_at = self.kernel.now
        self._lost_at = self.kernel.now
        self._has_committed = False
        if self.reader.life is not None:
            self.reader.life.least = 0

    def _exception(self, skip: Skip) -> str | None:
        if skip.last < skip.first:
            return "again" if self._lost_at >= self._began[0] or self._expired else None
        if not self.managed:
            return None
        if skip.last < self.world.expired():
            return "expired while reading" if self.machine else "expired while away"
        was_away = self._is_new and self._lost_at < self._began[1]
        if self._lost_at >= self._began[0] and (was_away or not self.records):
            return "stopped"
        if self.kind == "latest" and self._moved_at >= self._began[0]:
            return "moved"
        if self.kind == "latest" and self._is_new and not self._has_committed:
            return "not committed yet"
        return None

    def _begin(self) -> None:
        self._began = [self._began[1], self.kernel.now]
        self._expired = False
        least = 0
        if self.managed:
            bus, record = self.world.org.bus, self.world.org.managed.get(self.name)
            committed = record.committed if record is not None else None
            if committed is not None and bus.is_alive(committed):
                least = self.world.truth.up_to(committed)
            elif committed is not None:
                self._expired = True
            elif self.kind == "latest":
                self.reader.forget()
        self.reader.begin(least)

    def _committed(self, name: str, position: int) -> None:
        if name == self.name:
            self._has_committed = True
            self.reader.committed(position, "committed")

    @property
    def is_caught_up(self) -> bool:
        """Whether everything was delivered and, for a managed subscription, committed."""
        world, count = self.world, len(self.world.truth)
        if self.reader.floor is not None and self.reader.floor < count:
            return False
        if not self.managed or self.reader.floor is None:
            return True
        record = world.org.managed.get(self.name)
        return (
            record is not None
            and record.committed is not None
            and world.truth.up_to(record.committed) == count
        )
