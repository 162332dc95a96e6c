"""The programs that read one subscription of the Pub/Sub API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from tests.simulation.kernel import Machine
from tests.simulation.oracle import GRACE_S, Broken, Reader, Skip
from tests.simulation.process import PATIENCE_S, Program, machine_of
from tests.simulation.world import SETTINGS, TOPIC, Login, World


class Disk(ReplayStore):
    """A replay store that survives kills. A kill during a write leaves the old or the new value.

    Args:
        world: The world.
        readers: What must be true of each topic or channel, by name.
        number: Returns the position in a replay id as a number; None if it has none any more.

    Attributes:
        kept: The position on the disk, by topic or channel.
    """

    def __init__(
        self,
        world: World,
        readers: Mapping[str, Reader],
        number: Callable[[ReplayId], int | None],
    ) -> None:
        self.kept: dict[str, ReplayId] = {}
        self._world = world
        self._readers = readers
        self._number = number

    def get(self, topic: str) -> StartPosition | None:
        position = self.kept.get(topic)
        return None if position is None else StartPosition.after(position)

    def set(self, topic: str, replay_id: ReplayId) -> None:
        kernel, chance = self._world.kernel, self._world.chance
        if machine_of(kernel).dead:
            return
        reader, position = self._readers[topic], self._number(replay_id)
        if position is not None and position in reader.truth.by_position:
            reader.committed(position, "stored")
        if chance.random() < 0.5:
            self.kept[topic] = replay_id
        kernel.sleep(chance.choice((0.001, 0.02, 1.0)))
        self.kept[topic] = replay_id


class Subscriber(Program):
    """Reads one subscription of the Pub/Sub API.

    Args:
        world: The world.
        name: Of the program; for a managed one, of its subscription.
        kind: ``managed``, ``latest`` (managed, with the defaultReplay LATEST), ``stored`` (plain,
            with a replay store), or ``plain``.
        records: Whether the client may read the subscription's record.
    """

    def __init__(self, world: World, name: str, kind: str, *, records: bool = False) -> None:
        super().__init__(world, name)
        self.kind, self.records = kind, records
        self.managed = kind in ("managed", "latest")
        truth = world.truths[TOPIC]
        self.reader = Reader(self, truth, world.kernel, kind != "plain", self._exception)
        if kind in ("managed", "stored"):
            self.reader.floor = 0
        self.disk = Disk(world, {TOPIC: self.reader}, lambda at: world.org.bus.ids.read(bytes(at)))
        self._fallback: str | None = None
        self._lost_at = -1.0  # when the org last dropped the position
        self._moved_at = -1.0  # when it did so because it was moved
        self._began = [0.0, 0.0]  # when the last two subscription objects began
        self._subscription: Any = None  # of the last life
        self._is_new = True  # whether it is the first of its process
        self._expired = False  # whether the position had expired when it began
        self._has_committed = False  # since the position was lost
        self._settled_at = -1e9  # when it had
        self._is_anchored = False  # whether a position was committed when it began, or since
        if self.managed:
            world.on_commit.append(self._committed)

    def _ended(self, error: BaseException | None) -> None:
        self._fallback = "earliest" if isinstance(error, ReplayIdRejectedError) else None

    def _may_end_with(self, error: SfPubSubError) -> bool:
        if isinstance(error, SubscriptionStoppedError):
            return self._lost_at >= 0
        if isinstance(error, SubscriptionNotFoundError):
            return self.kernel.now < 2 * SETTINGS.propagation_s
        if isinstance(error, ReplayIdRejectedError):
            return self._moved_at >= 0 or self.reader.truth.expired() > 0
        if isinstance(error, (CommitError, SubscriptionBusyError)):
            return True  # moods of the service may last longer than the budgets for them
        if isinstance(error, LocalProtocolError):
            return False
        was_open = self._subscription is not None and self._subscription.health().responses > 0
        return not was_open or self.world.troubled_for() >= PATIENCE_S

    def _work(self) -> None:
        chance, world = self.chance, self.world
        record_of = self._record if self.records else None
        machine = machine_of(self.kernel)
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
                self._take_time()
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
                self._take_time()
                self.reader.finish(number, number)
                if self.leaving or self.chance.random() < 0.002:
                    break  # perhaps within a batch

    def _run(self, subscription: Any) -> None:
        def handle(event: Any) -> None:
            number = self.reader.given(event.id)
            self._take_time()
            self.reader.finish(number, number)
            if self.leaving:
                subscription.stop()

        subscription.run(handle)

    def _gap(self, machine: Machine, gap: Gap) -> None:
        if machine.dead:
            return
        self.world.tell(f"{machine.name} is told: {gap}")
        self.world.reach(f"gap: {gap.reason}")
        is_lost = self._is_lost or self.reader.truth.expired() > 0
        if gap.reason == "repositioned" and not is_lost:
            raise Broken(f"{machine.name} was told of a gap, but nothing had moved: {gap}")
        self.reader.told(gap.reason)

    @property
    def _is_lost(self) -> bool:
        """Whether the org has dropped the position, and what that means may still be told."""
        is_settled = self._has_committed and self.kernel.now - self._settled_at > GRACE_S
        return self._lost_at >= 0 and not is_settled

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

    def check(self) -> None:
        self.reader.check()
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
        if skip.last < self.reader.truth.expired():
            return "expired while reading" if self.machine else "expired while away"
        was_away = self._is_new and self._lost_at < self._began[1]
        if self._lost_at >= self._began[0] and (was_away or not self.records):
            return "stopped"
        if self.kind == "latest" and self._moved_at >= self._began[0] and self._is_lost:
            return "moved"
        if self.kind == "latest" and not self._is_anchored:
            return "not committed yet"
        return None

    def _begin(self) -> None:
        self._began = [self._began[1], self.kernel.now]
        self._expired = False
        least = 0
        self._is_anchored = False
        if self.managed:
            bus, record = self.world.org.bus, self.world.org.managed.get(self.name)
            committed = record.committed if record is not None else None
            if committed is not None and bus.is_alive(committed):
                least = self.reader.truth.up_to(committed)
                self._is_anchored = True
            elif committed is not None:
                self._expired = True
            elif self.kind == "latest" and self._is_new:
                self.reader.forget()
        self.reader.begin(least)

    def _committed(self, name: str, position: int) -> None:
        if name == self.name:
            if not self._has_committed:
                self._settled_at = self.kernel.now
            self._has_committed = self._is_anchored = True
            self.reader.committed(position, "committed")

    @property
    def behind(self) -> str:
        reader, count = self.reader, len(self.reader.truth)
        if reader.floor is not None and reader.floor < count:
            return f"{reader.floor} of {count} events"
        if not self.managed or reader.floor is None:
            return ""
        record = self.world.org.managed.get(self.name)
        if record is None or record.committed is None:
            return "no commit"
        committed = reader.truth.up_to(record.committed)
        return "" if committed == count else f"{committed} of {count} events committed"
