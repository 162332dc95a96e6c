"""The protocol's half that is about channels: which to ask for, what each answer means, how far
each has come. As the other half it has no I/O and no clock.

Invariant: a channel resumes after the last message that was put into the queue, so that what is
queued and not yet read does not come twice. Only the application's store says what was read.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby, repeat
from operator import itemgetter
from typing import Any

from sfpubsub.errors import LocalProtocolError, SfPubSubError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Message
from sfpubsub.streaming.commands import Command, Deliver, Report, Settle
from sfpubsub.streaming.failures import BayeuxError, error_for, is_replay_refused
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.positions import NEW_EVENTS, as_replay_id
from sfpubsub.types import Gap, GapReason

logger = logging.getLogger("sfpubsub.streaming")

# Room for what else is in a subscribe, in bytes; a client id has about 30.
_ROOM = 500


class Stage(enum.Enum):
    """How far a channel is."""

    WANTED = "to be subscribed, at first or again"
    ASKED = "a subscribe is in flight"
    ACTIVE = "subscribed"
    LEAVING = "to be unsubscribed"
    LEFT = "an unsubscribe is in flight"


@dataclass(eq=False)
class Channel:
    """One subscription."""

    name: str
    """As the caller wrote it, with its filter; the key in a store."""
    path: str
    """Without the filter; what positions and events are about."""
    position: int
    """Where to subscribe from: its start, then the id of the last message put into the queue."""
    waiter: object | None
    """Whom to tell of the first subscribe, or of the unsubscribe."""
    stage: Stage = Stage.WANTED
    was_active: bool = False
    """Whether a subscribe has ever succeeded: then the next one resumes."""
    early: list[Message] = field(default_factory=list)
    """Events that came while the subscribe was in flight, whose answer may carry older ones."""

    def gap(self, reason: GapReason, error_code: str | None = None) -> Gap:
        """Return what is given up if the channel goes on from somewhere else."""
        after = as_replay_id(self.position) if self.position >= 0 else None
        return Gap(reason, self.name, after=after, error_code=error_code)


class Subscriptions:
    """The channels of one client, asked for and answered.

    Args:
        dumps: Makes JSON.
        fallback: Where a channel goes on whose position is refused; None to tell the application.
        out: Where commands go.
    """

    def __init__(
        self, dumps: Callable[[Any], str], fallback: int | None, out: list[Command]
    ) -> None:
        self._dumps = dumps
        self._fallback = fallback
        self._out = out
        self._by_path: dict[str, Channel] = {}
        self._order = count(1)  # of arrival

    def at(self, *stages: Stage) -> list[Channel]:
        """Return the channels at one of these stages, in the order of subscribing."""
        return [channel for channel in self._by_path.values() if channel.stage in stages]

    @property
    def names(self) -> set[str]:
        """The channels that the server has confirmed, or that are being resumed."""
        leaving = (Stage.LEAVING, Stage.LEFT)
        channels = self._by_path.copy().values()  # for the application's threads
        return {item.name for item in channels if item.waiter is None or item.stage in leaving}

    @property
    def are_overtaken(self) -> bool:
        """Whether events wait for the answer of a subscribe."""
        return any(channel.early for channel in self._by_path.values())

    def subscribe(self, name: str, start: int, waiter: object, *, rewind: bool) -> None:
        """Want a channel; as `StreamingProtocol.subscribe`."""
        channel = self._find(name)
        if channel is None:
            path = name.partition("?")[0]
            if len(self._dumps([name, path]).encode()) > bayeux.MAX_REQUEST - _ROOM:
                raise LocalProtocolError(
                    f"the filter of {path[:100]} is too long: a request has at most "
                    f"{bayeux.MAX_REQUEST} bytes"
                )
            self._by_path[path] = Channel(name, path, start, waiter)
        elif rewind or channel.waiter is not None:
            raise LocalProtocolError(f"{name} is subscribed already: unsubscribe it first")
        else:
            self._out.append(Settle(waiter))

    def unsubscribe(self, name: str, waiter: object) -> None:
        """Want a channel no longer; as `StreamingProtocol.unsubscribe`."""
        channel = self._find(name)
        if channel is not None and channel.waiter is not None:
            raise LocalProtocolError(f"{name} is being subscribed or unsubscribed: wait for that")
        if channel is not None and channel.stage is Stage.ACTIVE:
            channel.stage, channel.waiter = Stage.LEAVING, waiter
        else:
            if channel is not None:  # between two sessions: it is just not subscribed again
                self._remove(channel)
            self._out.append(Settle(waiter))

    def _find(self, name: str) -> Channel | None:
        path = name.partition("?")[0]
        if len(path) < 2 or path[0] != "/" or path.startswith(("/meta/", "/service/")):
            raise LocalProtocolError(
                f"{name!r} is not a channel: use /topic/NAME, /u/NAME, /event/NAME__e or /data/NAME"
            )
        channel = self._by_path.get(path)
        if channel is not None and channel.name != name:
            raise LocalProtocolError(
                f"{path} is subscribed as {channel.name} already, and its positions are one: use "
                f"another client for {name}"
            )
        return channel

    # Asking and hearing.

    def requests(
        self, message: Callable[..., Message], *, has_replay: bool
    ) -> list[tuple[Message, Channel | None]]:
        """Return what to ask for now: as many messages as fit into one request."""
        messages: list[tuple[Message, Channel | None]] = []
        size = len("[]")
        for channel in self.at(Stage.WANTED, Stage.LEAVING):
            if channel.stage is Stage.LEAVING:
                made = message(bayeux.UNSUBSCRIBE, subscription=channel.name)
            else:
                replay = {"replay": {channel.path: channel.position}}
                made = message(bayeux.SUBSCRIBE, subscription=channel.name, ext=replay)
            size += len(self._dumps([made]).encode())
            if messages and size > bayeux.MAX_REQUEST:
                break
            messages.append((made, channel))
            if channel.stage is Stage.LEAVING:
                channel.stage = Stage.LEFT
                continue
            channel.stage = Stage.ASKED
            if channel.was_active and (channel.position == NEW_EVENTS or not has_replay):
                self._report(channel.gap("unanchored"))
                channel.was_active = False  # told; a second failure before the answer is one
        return messages

    def heard(self, channel: Channel, reply: Message) -> None:
        """Take the answer to a subscribe or unsubscribe, if it is not about the session."""
        is_leaving = channel.stage is Stage.LEFT
        if channel not in self._by_path.values():
            return  # given up meanwhile
        if reply["successful"] is True:
            if is_leaving:
                self._remove(channel)
            channel.stage, channel.was_active = Stage.ACTIVE, True
            logger.info("%s: %s, from %d", reply["channel"], channel.name, channel.position)
            self._tell(channel)
        elif is_leaving:
            channel.stage = Stage.ACTIVE
            self._tell(channel, error_for(f"unsubscribing {channel.name}", BayeuxError(reply)))
        else:
            self._refused(channel, BayeuxError(reply))

    def _refused(self, channel: Channel, refusal: BayeuxError) -> None:
        gap, fallback = channel.gap("rejected", refusal.error_code), self._fallback
        if is_replay_refused(refusal) and fallback is not None and fallback != channel.position:
            self._report(gap)
            channel.position, channel.was_active = fallback, False
            channel.stage = Stage.WANTED
            return
        error = error_for(f"subscribing to {channel.name}", refusal, gap)
        self._remove(channel)
        if channel.waiter is None:  # nobody waits, so whoever reads must see it
            self._out.append(Deliver([error]))
        self._tell(channel, error)

    def lost(self) -> None:
        """The session is gone: everything is to be asked for again, but for what was leaving."""
        for channel in list(self._by_path.values()):
            if channel.stage in (Stage.LEAVING, Stage.LEFT):
                self._remove(channel)
                self._tell(channel)
            channel.stage = Stage.WANTED
            channel.early = []  # the answer that they waited for is lost, and may have had older

    def give_up(self, error: SfPubSubError) -> None:
        """Callers have waited long enough: what they wait for is not subscribed later."""
        for channel in list(self._by_path.values()):
            if channel.waiter is not None:
                self._remove(channel)
                self._tell(channel, error)

    def _remove(self, channel: Channel) -> None:
        del self._by_path[channel.path]

    def _tell(self, channel: Channel, error: SfPubSubError | None = None) -> None:
        if channel.waiter is not None:
            self._out.append(Settle(channel.waiter, error))
            channel.waiter = None

    def _report(self, gap: Gap) -> None:
        logger.warning("%s", gap)
        self._out.append(Report(gap))

    # Events.

    def arrived(self, events: list[Message]) -> list[StreamingMessage]:
        """Return what can be queued now, and note how far it reaches.

        Args:
            events: Of one answer; what came before a subscribe's answer follows them.
        """
        for active in self.at(Stage.ACTIVE):
            if active.early:
                events, active.early = events + active.early, []
        found: list[StreamingMessage] = []
        for path, group in groupby(events, itemgetter("channel")):
            channel, run = self._by_path.get(path.partition("?")[0]), list(group)
            if channel is not None and channel.stage is Stage.ASKED:
                channel.early += run
                continue
            ids = [_replay_id(event) for event in run]
            name = path
            if channel is not None:
                name = channel.name
                known = (number for number in reversed(ids) if number is not None)
                channel.position = next(known, channel.position)
            # Without a call of ours for each, as there are many.
            found += map(_MAKE, zip(run, repeat(name), ids, self._order))
        return found


_MAKE = partial(tuple.__new__, StreamingMessage)


def _replay_id(event: Message) -> int | None:
    try:
        found = event["data"]["event"]["replayId"]
    except (KeyError, TypeError):
        return None
    return found if type(found) is int else None  # a boolean is an int to isinstance
