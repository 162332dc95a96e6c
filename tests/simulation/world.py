"""The simulated world: the emulator's org, the network and the login host."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sfpubsub.auth.session import Session
from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.grpc.servicer import PubSubServicer
from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.bus import Topic
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import StreamUnavailableError
from sfpubsub.streaming import client as streaming  # noqa: F401 - loads what `replaced` changes
from tests.simulation.kernel import Kernel, Machine, replaced
from tests.simulation.network import Channel, Network
from tests.simulation.oracle import Truth
from tests.simulation.polling import Connection

TOPIC = "/event/Order_Event__e"
SENT = "/event/Audit_Event__e"
"""The topic of the publishers."""

NEWS = "/u/News"
"""A generic channel of the Streaming API."""

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
    # Not documented, and what a client must bear: events come with any response.
    streaming_flush_anywhere=True,
    streaming_events_on_subscribe=True,
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
        self.truths = {
            TOPIC: Truth(kernel, SETTINGS.retention_s),
            NEWS: Truth(kernel, SETTINGS.streaming_retention_s),
        }
        self.org: EmulatorServer
        self.network: Network
        self._directory = directory
        self.sessions_ended_at = -1e9
        self.login_down = 0.0  # until when sign-ins fail, in seconds since the start
        self.login_failure: Callable[[], Exception] = _no_answer
        self._troubles: list[tuple[float, float]] = []  # when they began and ended
        self.on_commit: list[Callable[[str, int], None]] = []
        self.on_sent: list[Callable[[str], None]] = []  # with the key of each event of `SENT`
        self.then_refuse: Fault | None = None  # what is sent again after the next request
        self._sent_up_to = 0

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
        topics = (*seed.topics, (SENT, audit_schema(1), True, True))
        self.org = EmulatorServer(
            self._directory, settings=SETTINGS, seed=replace(seed, topics=topics)
        )
        self.org.cometd.channels.create("StreamingChannel", NEWS, {})
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
        bus = self.org.bus
        if topic.name == SENT:
            if self.then_refuse is not None:
                self.org.faults.add(self.then_refuse)
                self.then_refuse = None
            events, _ = bus.read(topic, self._sent_up_to, count + 1000)
            for event in events:
                self._sent_up_to = event.position
                value = bus.schema(event.schema_id).decode(event.payload)
                for listener in self.on_sent:
                    listener(value["Key__c"])
        truth = self.truths.get(topic.name.removeprefix(_LOG))
        if truth is None:
            return
        after = truth.positions[-1] if truth.positions else 0
        events, _ = bus.read(topic, after, count + 1000)
        for event in events:
            truth.add(_key(topic, event), event.position)

    def end_sessions(self, *, expired: bool) -> None:
        """End all sessions: they expire, or are revoked."""
        self.sessions_ended_at = self.kernel.now
        self.org._world.sessions.end_all(expired=expired)

    def renumbered(self) -> None:
        """Read the positions again, after the org was moved."""
        bus = self.org.bus
        self._sent_up_to = bus.tip()
        for name, truth in self.truths.items():
            topic = bus.topic(_LOG + name if name == NEWS else name)
            found: dict[str, int] = {}
            after = 0
            while True:
                events, _ = bus.read(topic, after, 1000)
                if not events:
                    break
                found.update((_key(topic, event), event.position) for event in events)
                after = events[-1].position
            truth.moved(found)

    def publish(self, count: int) -> None:
        """Publish some events, as the org itself does."""
        number = len(self.truths[TOPIC])
        rows = [{"Order_Number__c": str(number + index)} for index in range(count)]
        self.org.publish(TOPIC, rows)

    def publish_news(self, count: int) -> None:
        """Publish some events on the generic channel."""
        first = len(self.truths[NEWS])
        for number in range(first, first + count):
            self.org.publish_streaming(NEWS, [{"payload": str(number)}])


def audit_schema(version: int) -> Schema:
    """Return a version of the schema of `SENT`: each has another field."""
    fields = [
        {"name": "CreatedDate", "type": "long", "doc": "CreatedDate:DateTime"},
        {"name": "CreatedById", "type": "string", "doc": "CreatedBy:EntityId"},
        {"name": "Key__c", "type": ["null", "string"], "doc": "Data:Text:1", "default": None},
        {
            "name": f"F{version}__c",
            "type": ["null", "string"],
            "doc": "Data:Text:2",
            "default": None,
        },
    ]
    name = SENT.rpartition("/")[2]
    about = {"name": name, "namespace": "com.sforce.eventbus", "type": "record", "fields": fields}
    return Schema(json.dumps(about))


_LOG = "cometd:"  # the prefix that the emulator gives to the logs of generic channels


def _key(topic: Topic, event: Event) -> str:
    """Return what identifies an event: its id; on a generic channel, which has none, its text."""
    if topic.name.startswith(_LOG):
        return str(json.loads(event.payload)["payload"])
    return event.event_id


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
            streaming_transport__HttpConnection=lambda _http, cookies, _most: Connection(
                world.network, world.org._world, cookies
            ),
            # Only signals need shorter waits, and there are none.
            process__LONGEST_WAIT=DAY,
        ):
            built = kernel.spawn(world.service, "build", world.build)
            kernel.run(lambda: not built.alive)
            if kernel.failures:
                raise kernel.failures[0][1]
            yield world
