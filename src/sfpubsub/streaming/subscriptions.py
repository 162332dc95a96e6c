"""The protocol's half that is about channels: which to ask for, what each answer means, how far
each has come. As the other half it has no I/O and no clock.

What is wanted and what is active at the server are two flags of a channel; whatever is needed to
make them equal is asked for, one request at a time.

Invariant: a channel resumes after the last message that was put into the queue, so that what is
queued and not yet read does not come twice. Only the application's store says what was read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sfpubsub.errors import LocalProtocolError, ReplayIdRejectedError, SfPubSubError
from sfpubsub.streaming.bayeux import MAX_REQUEST, SUBSCRIBE, UNSUBSCRIBE, Call, Command, Message
from sfpubsub.streaming.failures import BayeuxError, error_for
from sfpubsub.streaming.message import StreamingMessage
from sfpubsub.streaming.positions import NEW_EVENTS, as_replay_id
from sfpubsub.types import Gap, GapReason

logger = logging.getLogger("sfpubsub.streaming")

# Room for what else is in a subscribe, in bytes; a client id has about 30.
_ROOM = 500

Items = deque[StreamingMessage | SfPubSubError]


@dataclass(eq=False)
class Channel:
    """One subscription."""

    name: str
    """As the caller wrote it, with its filter; the key in a store."""
    path: str
    """Without the filter; what positions and events are about."""
    position: int
    """Where to subscribe from: its start, then the id of the last message put into the queue."""
    call: Call | None
    """Who waits for the first subscribe, or for the unsubscribe."""
    is_wanted: bool = True
    is_active: bool = False
    """Whether it is subscribed in this session."""
    asked: Message | None = None
    """The message about it that is in flight."""
    is_live: bool = False
    """Whether its events count: from the server's yes until the next subscribe is sent, and so
    beyond the end of the session."""
    early: list[Message] = field(default_factory=list)
    """Events that came before the yes, which may carry older ones; dropped if it is lost."""

    def gap(self, reason: GapReason, error_code: str | None = None) -> Gap:
        """Return what is given up if the channel continues from somewhere else."""
        after = as_replay_id(self.position) if self.position >= 0 else None
        return Gap(reason, self.name, after=after, error_code=error_code)

    @property
    def is_gone(self) -> bool:
        """Whether it is over, at the server as well. It is kept for its position."""
        return not (self.is_wanted or self.is_active or self.asked)

    def tell(self, error: SfPubSubError | None = None) -> None:
        """Settle the call that waits, if there is one."""
        if self.call is not None:
            self.call.settle(error)
            self.call = None


@dataclass(eq=False)
class Subscriptions:
    """The channels of one client, asked for and answered."""

    dumps: Callable[[Any], str]
    """Makes JSON."""
    fallback: int | None
    """Where a channel continues if its position is refused; None to tell the application."""
    order: Iterator[int]
    """Numbers messages in their order of arrival."""
    items: Items
    """The application's queue."""
    out: list[Command]
    """Where gaps go."""
    has_replay: bool = True
    """Whether the server of this session continues from a position."""
    _by_path: dict[str, Channel] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The channels that the server has confirmed, or that are being resumed."""
        channels = self._by_path.copy().values()  # for the application's threads
        return {item.name for item in channels if item.is_wanted == (item.call is None)}

    @property
    def are_complete(self) -> bool:
        """Whether all that are wanted are active."""
        return all(item.is_active or not item.is_wanted for item in self._by_path.values())

    @property
    def are_overtaken(self) -> bool:
        """Whether events wait for the answer of a subscribe."""
        return any(item.early for item in self._by_path.values())

    def subscribe(
        self, name: str, start: int, call: Call, *, rewind: bool, resumes: bool = False
    ) -> None:
        """Want a channel.

        Args:
            name: The channel, perhaps with a filter.
            start: Where; not looked at for a channel that is subscribed already.
            call: Hears of the server's answer.
            rewind: Whether the caller insists on *start*.
            resumes: Whether a channel that was unsubscribed continues where it was left, so that
                what is still queued does not come twice.

        Raises:
            LocalProtocolError: It is not a channel, or is subscribed in another way.
        """
        channel, path = self._find(name), name.partition("?")[0]
        if channel is None or not (channel.is_wanted or channel.call):
            if len(self.dumps([name, path]).encode()) > MAX_REQUEST - _ROOM:
                raise LocalProtocolError(f"the filter of {path[:100]} is too long for a request")
            left = channel.position if channel is not None and resumes else NEW_EVENTS
            self._by_path[path] = Channel(name, path, start if left < 0 else left, call)
        elif rewind or channel.call is not None:
            raise LocalProtocolError(f"{name} is subscribed already: unsubscribe it first")
        else:
            call.settle()

    def unsubscribe(self, name: str, call: Call) -> None:
        """Want a channel no longer; of one that is not subscribed there is nothing to do.

        Raises:
            LocalProtocolError: It is not a channel, or another call about it is under way.
        """
        channel = self._find(name)
        if channel is None:
            call.settle()
        elif channel.call is not None:
            raise LocalProtocolError(f"{name} is being subscribed or unsubscribed: wait for that")
        else:
            channel.is_wanted, channel.call = False, call
            self._forget(channel)

    def _find(self, name: str) -> Channel | None:
        path = name.partition("?")[0]
        if len(path) < 2 or path[0] != "/" or path.startswith(("/meta/", "/service/")):
            kinds = "/topic/NAME, /u/NAME, /event/NAME__e or /data/NAME"
            raise LocalProtocolError(f"{name!r} is not a channel: use {kinds}")
        channel = self._by_path.get(path)
        if channel is not None and channel.name != name:
            if channel.is_gone:
                return None
            held = f"{path} is subscribed as {channel.name}, and has one position"
            raise LocalProtocolError(f"{held}: use another client for {name}")
        return channel

    # Asking and hearing.

    def requests(self, message: Callable[..., Message]) -> list[Message]:
        """Return what to ask for now: as many messages as fit into one request."""
        asked: list[Message] = []
        size = 0
        for channel in self._by_path.values():
            if channel.asked is not None or channel.is_wanted == channel.is_active:
                continue
            made = message(
                SUBSCRIBE if channel.is_wanted else UNSUBSCRIBE, subscription=channel.name
            )
            if channel.is_wanted:
                made["ext"] = {"replay": {channel.path: channel.position}}
            size += len(self.dumps([made]).encode())
            if asked and size > MAX_REQUEST:
                break
            asked.append(made)
            channel.asked = made
            if channel.is_wanted:
                if channel.is_live and (channel.position == NEW_EVENTS or not self.has_replay):
                    self._report(channel.gap("unanchored"))
                channel.is_live, channel.early = False, []
        return asked

    def heard(self, asked: Message, refusal: BayeuxError | None) -> None:
        """Take the answer to a subscribe or unsubscribe, if it is not about the session."""
        channel = self._by_path.get(asked["subscription"].partition("?")[0])
        if channel is None or channel.asked is not asked:
            return  # given up, and perhaps subscribed anew meanwhile
        channel.asked = None
        is_subscribe = asked["channel"] == SUBSCRIBE
        if refusal is None:
            logger.info("%s: %s, from %d", asked["channel"], channel.name, channel.position)
            channel.is_active = is_subscribe
            channel.is_live = channel.is_live or is_subscribe
            if is_subscribe and channel.is_wanted:
                channel.tell()
            self._forget(channel)
        elif is_subscribe:
            self._refused(channel, refusal)
        else:
            channel.is_wanted = True
            channel.tell(error_for(f"unsubscribing {channel.name}", refusal))

    def _refused(self, channel: Channel, refusal: BayeuxError) -> None:
        gap = channel.gap("rejected", refusal.error_code)
        error = error_for(f"subscribing to {channel.name}", refusal, gap)
        is_aged = isinstance(error, ReplayIdRejectedError)
        if not channel.is_wanted:
            self._forget(channel)
        elif is_aged and self.fallback is not None and self.fallback != channel.position:
            self._report(gap)
            channel.position = self.fallback
        else:
            del self._by_path[channel.path]
            if channel.call is None:  # nobody waits, so the reader must see it
                self.items.append(error)
            channel.tell(error)

    def lost(self) -> None:
        """The session is gone: everything is to be asked for again."""
        for channel in self._by_path.values():
            channel.is_active, channel.asked = False, None
            self._forget(channel)

    def give_up(self, error: SfPubSubError, call: Call | None = None) -> None:
        """Have callers wait no longer, or one of them; what they want must not happen later."""
        for channel in self._by_path.values():
            if channel.call is not None and call in (None, channel.call):
                channel.is_wanted = False
                channel.tell(error)

    def _forget(self, channel: Channel) -> None:
        """Tell who unsubscribes that the server does not have the channel any more."""
        if channel.is_gone:
            channel.tell()

    def _report(self, gap: Gap) -> None:
        logger.warning("%s", gap)
        self.out.append(gap)

    # Events.

    def arrived(self, events: list[Message]) -> None:
        """Put events into the queue, and note how far they reach.

        Args:
            events: Of one answer; what came before a subscribe's answer follows them.
        """
        for item in self._by_path.values():
            if item.early and item.is_live:
                events, item.early = events + item.early, []
        path = None  # of the event before
        put, make, order = self.items.append, tuple.__new__, self.order  # there are many events
        for event in events:
            if event["channel"] != path:
                path = event["channel"]
                channel = self._by_path.get(path.partition("?")[0])
                name = path if channel is None else channel.name
                early = None if channel is None or channel.is_live else channel.early
            if early is not None:
                early.append(event)
                continue
            try:
                number = event["data"]["event"]["replayId"]
            except (KeyError, TypeError):
                number = None
            if type(number) is not int or number < 0:  # True is an int to isinstance
                number = None
            elif channel is not None:
                channel.position = number
            put(make(StreamingMessage, (event, name, number, next(order))))
