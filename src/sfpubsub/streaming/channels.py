"""The channels of one client, and where each would go on: the bookkeeping of replay.

Invariant: a channel resumes after the last message that was put into the queue, so that what is
queued and not yet read does not come twice. Only the application's store says what was read.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sfpubsub.errors import LocalProtocolError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Message
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.positions import NEW_EVENTS, as_replay_id, check_channel
from sfpubsub.types import Gap, GapReason, ReplayId


class Stage(enum.Enum):
    """How far a channel is."""

    WANTED = "to be subscribed, at first or again"
    ASKED = "a subscribe is in flight"
    ACTIVE = "subscribed"
    LEAVING = "to be unsubscribed"
    LEFT = "an unsubscribe is in flight"


@dataclass
class Channel:
    """One subscription."""

    name: str
    """As the caller wrote it, with its filter; the key in a store."""
    path: str
    """Without the filter; what positions and events are about."""
    start: int
    """Where it started: -1, -2 or an id."""
    waiter: object | None
    """Whom to tell of the first subscribe, or of the unsubscribe."""
    stage: Stage = Stage.WANTED
    last: int | None = None
    """The id of the last message put into the queue."""
    was_active: bool = False
    """Whether a subscribe has ever succeeded: then the next one resumes."""
    early: list[Message] = field(default_factory=list)
    """Events that came while the subscribe was in flight, whose answer may carry older ones."""

    @property
    def position(self) -> int:
        """Where to subscribe from."""
        return self.start if self.last is None else self.last

    @property
    def is_anchored(self) -> bool:
        """Whether a new session can go on where the old one ended."""
        return self.position != NEW_EVENTS

    def request(self, number: str, client_id: str) -> Message:
        """Return the message that the channel's stage asks for."""
        if self.stage is Stage.LEAVING:
            return bayeux.unsubscribe(number, client_id, self.name)
        return bayeux.subscribe(number, client_id, self.name, self.path, self.position)

    def gap(self, reason: GapReason, error_code: str | None = None) -> Gap:
        """Return what is given up if the channel goes on from somewhere else."""
        return Gap(reason, self.name, after=self._known(), error_code=error_code)

    def _known(self) -> ReplayId | None:
        return as_replay_id(self.position) if self.position >= 0 else None


class Channels:
    """The channels by their paths, and the messages that arrive on them."""

    def __init__(self) -> None:
        self._by_path: dict[str, Channel] = {}
        self._arrived = 0

    def __iter__(self) -> Iterator[Channel]:
        return iter(list(self._by_path.values()))

    def at(self, *stages: Stage) -> list[Channel]:
        """Return the channels at one of these stages, in the order of subscribing."""
        return [channel for channel in self._by_path.values() if channel.stage in stages]

    def find(self, name: str) -> Channel | None:
        """Return the subscription of that name and filter.

        Raises:
            LocalProtocolError: It is no channel, or is subscribed with another filter.
        """
        channel = self._by_path.get(check_channel(name))
        if channel is not None and channel.name != name:
            raise LocalProtocolError(
                f"{channel.path} is subscribed as {channel.name} already, and its positions are "
                f"one: use another client for {name}"
            )
        return channel

    def add(self, channel: Channel) -> None:
        """Take a new channel in."""
        self._by_path[channel.path] = channel

    def remove(self, channel: Channel) -> None:
        """Let a channel go."""
        del self._by_path[channel.path]

    def lost(self) -> list[Channel]:
        """The session is gone: subscribe everything again. Return what was about to leave."""
        leaving = self.at(Stage.LEAVING, Stage.LEFT)
        for channel in leaving:
            self.remove(channel)
        for channel in self:
            channel.stage = Stage.WANTED
            channel.early = []  # the answer that they waited for is lost, and may have had older
        return leaving

    def early(self) -> list[Message]:
        """Take the events that waited for the answer of a subscribe which has come."""
        found: list[Message] = []
        for channel in self.at(Stage.ACTIVE):
            found += channel.early
            channel.early = []
        return found

    def arrived(self, events: Iterable[Message]) -> list[StreamingMessage]:
        """Return what can be queued of the events of one answer, and note how far it reaches."""
        found: list[StreamingMessage] = []
        new, count = tuple.__new__, self._arrived  # spares a call for each of many events
        path: str | None = None
        name, channel = "", None
        for event in events:
            if event["channel"] != path:
                path = event["channel"]
                channel = self._by_path.get(path) or self._by_path.get(path.partition("?")[0])
                name = path if channel is None else channel.name
            if channel is not None and channel.stage is Stage.ASKED:
                channel.early.append(event)
                continue
            try:
                replay_id = event["data"]["event"]["replayId"]
            except (KeyError, TypeError):
                replay_id = None
            if type(replay_id) is not int:  # a boolean is an int to isinstance
                replay_id = None
            elif channel is not None:
                channel.last = replay_id
            count += 1
            found.append(new(StreamingMessage, (event, name, replay_id, count)))
        self._arrived = count
        return found
