"""The programs that read channels over the Streaming API."""

from __future__ import annotations

from typing import Any

from sfpubsub.errors import (
    AuthenticationError,
    LocalProtocolError,
    ReplayIdRejectedError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming.client import StreamingClient
from sfpubsub.streaming.protocol import Pace
from sfpubsub.types import Gap
from tests.simulation.kernel import Machine
from tests.simulation.oracle import Broken, Reader, Skip
from tests.simulation.process import Program, machine_of
from tests.simulation.subscribers import Disk
from tests.simulation.world import NEWS, TOPIC, Login, World

ALL_EVENTS = -2


class Streamer(Program):
    """Reads a platform event and a generic channel with one CometD client.

    Args:
        world: The world.
        name: Unique.
        stored: Whether it keeps its positions in a replay store, and acks.
    """

    def __init__(self, world: World, name: str, *, stored: bool) -> None:
        super().__init__(world, name)
        self.stored = stored
        self.readers = {
            channel: Reader(self, world.truths[channel], world.kernel, stored, self._exception)
            for channel in (TOPIC, NEWS)
        }
        if stored:
            for reader in self.readers.values():
                reader.floor = 0
        self.disk = Disk(world, self.readers, lambda at: int.from_bytes(bytes(at), "big"))
        self._moved_at = -1.0
        self._began = 0.0  # when the last client was created
        self._client: Any = None  # of the last life
        self._was_open = False
        self._resumed: set[str] = set()  # the channels that had a stored position when it began

    # What it does.

    def _work(self) -> None:
        machine, chance = machine_of(self.kernel), self.chance
        self._was_open = False
        self._began = self.kernel.now
        self._resumed = set(self.disk.kept)
        for channel, reader in self.readers.items():
            reader.begin(0 if channel not in self.disk.kept else self._least(channel))
        client = self._client = StreamingClient(
            Login(self.world),
            replay=self.disk if self.stored else -1,
            replay_policy="manual",
            replay_fallback=chance.choice((None, ALL_EVENTS)),
            max_pending_count=chance.choice((1, 100)),
            on_gap=lambda gap: self._gap(machine, gap),
        )
        with client:
            self._was_open = True
            for channel in self.readers:
                self._subscribe(client, channel)
            while not self.leaving:
                self._receive(client)

    def _least(self, channel: str) -> int:
        position = int.from_bytes(bytes(self.disk.kept[channel]), "big")
        return self.readers[channel].truth.up_to(position)

    def _subscribe(self, client: StreamingClient, channel: str) -> None:
        start = ALL_EVENTS if self.stored and channel not in self.disk.kept else None
        try:
            self._until_connected(client, channel, start)
        except ReplayIdRejectedError as error:
            self._rejected(client, channel, error)

    def _until_connected(self, client: StreamingClient, channel: str, start: int | None) -> None:
        while True:
            try:
                return client.subscribe(channel, start)
            except StreamUnavailableError:
                if client.closed:
                    raise
                self.kernel.sleep(10.0)

    def _rejected(
        self, client: StreamingClient, channel: str, error: ReplayIdRejectedError
    ) -> None:
        """The position of a channel is refused, and the program goes on with all events."""
        self.world.reach("cometd: position rejected")
        reader = self.readers[channel]
        if self._moved_at < 0 and not reader.truth.expired():
            raise Broken(f"{self.name}: a position was rejected, but all are retained: {error}")
        reader.told("rejected")
        self._until_connected(client, channel, ALL_EVENTS)

    def _receive(self, client: StreamingClient) -> None:
        try:
            message = client.receive(self.chance.choice((1.0, 60.0, 4000.0)))
        except ReplayIdRejectedError as error:
            if client.closed:
                raise
            for channel in set(self.readers) - client.subscriptions:
                self._rejected(client, channel, error)
            return
        except StreamUnavailableError:
            if client.closed:
                raise
            self.world.reach("cometd: no connection")
            return
        if message is None:
            return
        data, channel = message.data, message.subscription
        key = data["payload"] if channel == NEWS else data["event"]["EventUuid"]
        number = self.readers[channel].given(key)
        self._take_time()
        self.readers[channel].finish(number, number)
        if self.stored:
            client.ack(message)

    def _gap(self, machine: Machine, gap: Gap) -> None:
        if machine.dead:
            return
        self.world.tell(f"{machine.name} is told: {gap}")
        self.world.reach(f"cometd: gap: {gap.reason}")
        self.readers[gap.subscription].told(gap.reason)

    # What must be true.

    def _may_end_with(self, error: SfPubSubError) -> bool:
        if isinstance(error, LocalProtocolError):
            return False
        if isinstance(error, AuthenticationError):
            # A refused sign-in, or two sessions that ended within the time of `Pace.renewed`.
            ended = self.kernel.now - self.world.sessions_ended_at
            return self.world.troubled_for() > 0 or ended < 2 * Pace().renewed
        return not self._was_open

    def _exception(self, skip: Skip) -> str | None:
        if skip.last < skip.first:
            return "again" if self._moved_at >= self._began else None
        channel = NEWS if skip.truth is self.readers[NEWS].truth else TOPIC
        if channel not in self._resumed and skip.last < skip.truth.expired():
            return "expired while away"
        return None

    def position_lost(self, *, moved: bool = False) -> None:
        if moved:
            self._moved_at = self.kernel.now
            for reader in self.readers.values():
                if reader.life is not None:
                    reader.life.least = 0

    def check(self) -> None:
        for reader in self.readers.values():
            reader.check()
        if self.machine is not None and self._client is not None:
            for channel in self._client._driver.protocol.channels._by_path.values():
                self.world.reach(f"cometd: {channel.state.value}")

    @property
    def behind(self) -> str:
        for channel, reader in self.readers.items():
            if reader.floor is not None and reader.floor < len(reader.truth):
                return f"{reader.floor} of {len(reader.truth)} events of {channel}"
        return ""
