"""The simulated world: the emulator's org, the network and the login host."""

from __future__ import annotations

import bisect
import contextlib
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

from sfpubsub.auth.session import Session
from sfpubsub.emulator.grpc.servicer import PubSubServicer
from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.bus import Topic
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import StreamUnavailableError
from sfpubsub.streaming import client as streaming  # noqa: F401 - loads what `replaced` changes
from tests.simulation.kernel import Kernel, Machine, replaced
from tests.simulation.network import Channel, Network
from tests.simulation.oracle import Truth

TOPIC = "/event/Order_Event__e"

HOUR = 3600.0
DAY = 24 * HOUR

PAUSE_S = 180.0
"""Pause between two troubles that a client may not notice, in seconds: it backs off up to 60 s."""

# The service's own times, as observed or documented; the emulator's defaults are quicker.
SETTINGS = Settings(
    keepalive_s=270.0,
    slot_release_s=1.0,
    propagation_s=60.0,
    state_delay_s=2.0,
    commit_answer_delay_s=1.0,
    token_lifetime_s=2 * HOUR,
)


class World:
    """Everything outside of the programs.

    Args:
        kernel: Runs everything.
        directory: For the org's database.
    """

    def __init__(self, kernel: Kernel, directory: Path) -> None:
        self.kernel = kernel
        self.chance = kernel.chance
        self.service = Machine("service")
        self.story: deque[str] = deque(maxlen=2000)
        self.reached: Counter[str] = Counter()
        self.acts: list[tuple[str, int]] = []  # what the actors did, in order
        self.truth = Truth()
        self.org: EmulatorServer
        self.network: Network
        self._directory = directory
        self.login_down = 0.0  # until when sign-ins fail, in seconds since the start
        self.login_failure: Callable[[], Exception] = _no_answer
        self._troubles: list[tuple[float, float]] = []  # when they began and ended
        self.on_commit: list[Callable[[str, int], None]] = []

    def tell(self, text: str) -> None:
        """Add a line to the story of the run."""
        days, rest = divmod(self.kernel.now, DAY)
        self.story.append(f"{days:4.0f} d {rest / HOUR:7.4f} h  {text}")

    def reach(self, state: str) -> None:
        """Count that a rare state was reached."""
        self.reached[state] += 1

    def trouble(self, seconds: float) -> float:
        """Sign-ins or calls are refused from now on for some seconds; return when that ends."""
        end = self.kernel.now + seconds
        self._troubles.append((self.kernel.now, end))
        return end

    def troubled_for(self) -> float:
        """Return for how long there has been trouble, in seconds; 0 if there is none.

        A client notices the end of one only at its next attempt, so short pauses do not count.
        """
        began, reached = 0.0, -1e9
        for start, end in self._troubles:
            if start > reached + PAUSE_S:
                began = start
            reached = max(reached, end)
        now = self.kernel.now
        return now - began if now <= reached + PAUSE_S else 0.0

    def build(self) -> None:
        """Create the org. Called in a task of the service's machine."""
        seed = seeds.load(seeds.DEFAULT_SEED)
        self.org = EmulatorServer(self._directory, settings=SETTINGS, seed=seed)
        world = self.org._world
        self.network = Network(self.kernel, PubSubServicer(world), self.service)
        self.org.bus.on_append(self._appended)
        managed, commit = world.managed, world.managed.commit

        def committed(subscription_id: str, position: int) -> None:
            record = managed.by_id(subscription_id)
            if record is not None and record.state == "RUN":
                for listener in self.on_commit:
                    listener(record.developer_name, position)
            commit(subscription_id, position)

        managed.commit = committed  # type: ignore[method-assign]

    def _appended(self, topic: Topic, count: int) -> None:
        if topic.name != TOPIC:
            return
        bus, truth = self.org.bus, self.truth
        after = truth.positions[-1] if truth.positions else 0
        events, _ = bus.read(topic, after, count + 1000)
        for event in events:
            truth.add(event.event_id, event.position, self.kernel.now)

    def renumbered(self) -> None:
        """Read the positions again, after the org was moved."""
        bus, truth = self.org.bus, self.truth
        topic, after = bus.topic(TOPIC), 0
        first: int | None = None
        truth.by_position.clear()
        while True:
            events, _ = bus.read(topic, after, 1000)
            if not events:
                break
            for event in events:
                number = truth.numbers[event.event_id]
                first = number if first is None else first
                truth.positions[number] = event.position
            after = events[-1].position
        # Positions of events that are gone: before all others, in order.
        for number in range(len(truth) if first is None else first):
            truth.positions[number] = min(truth.positions[number], number - len(truth))

    def expired(self) -> int:
        """Return how many events are no longer retained."""
        return bisect.bisect_right(self.truth.times, self.kernel.now - SETTINGS.retention_s)

    def publish(self, count: int) -> None:
        """Publish some events, as the org itself does."""
        number = len(self.truth)
        rows = [{"Order_Number__c": str(number + index)} for index in range(count)]
        self.org.publish(TOPIC, rows)


def _no_answer() -> Exception:
    return StreamUnavailableError("the login host did not answer")


class Login:
    """A `SessionProvider` of one machine, which signs in at the org's login host."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_session(self, expired: Session | None) -> Session:
        world, kernel = self._world, self._world.kernel
        kernel.sleep(world.network.delay() * 4)
        if kernel.now < world.login_down:
            world.reach("renewal failed" if expired is not None else "sign-in failed")
            raise world.login_failure()
        if not world.network.is_up:
            raise StreamUnavailableError("the login host cannot be reached")
        sessions = world.org._world.sessions
        token = sessions.issue("user@example.com")
        if expired is not None:
            world.reach("session renewed")
        return Session(token, "https://org.example.com", world.org.tenant_id)


@contextlib.contextmanager
def simulated(seed: int, luck: int = 0) -> Iterator[World]:
    """Yield a world, whose programs run in virtual time within the block."""
    kernel = Kernel(seed, luck)
    with tempfile.TemporaryDirectory(prefix="sfpubsub-simulation-") as directory:
        world = World(kernel, Path(directory))
        with replaced(
            kernel,
            client_connection__open_channel=lambda *_a, **_k: Channel(world.network),
            # Only signals need shorter waits, and there are none.
            process__LONGEST_WAIT=DAY,
        ):
            built = kernel.spawn(world.service, "build", world.build)
            kernel.run(lambda: not built.alive)
            if kernel.failures:
                raise kernel.failures[0][1]
            yield world
