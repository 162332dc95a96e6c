"""The part of the protocol that handles channels: which requests to send, what each reply means,
and the position of each channel. Like the rest of the protocol, it has no I/O and no clock.

Two flags record whether the application wants a channel and whether it is active at the server.
When they differ, a request is sent to make them equal, one at a time.

Invariant: a channel resumes after the last message that was queued, so queued messages are not
delivered twice. Only the application's store records what was processed.
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

# Bytes reserved in a subscribe request for everything except channel and filter; a client id has
# about 30.
_ROOM = 500

Items = deque[StreamingMessage | SfPubSubError]


@dataclass(eq=False)
class Channel:
    """One subscription."""

    name: str
    """The channel as the caller wrote it, with its filter; the key in a store."""
    path: str
    """The name without the filter, as in positions and events."""
    position: int
    """Where to subscribe from: first its start, then the replay id of the last queued message."""
    call: Call | None
    """The call that waits for the first subscribe or for the unsubscribe."""
    is_wanted: bool = True
    is_active: bool = False
    """Whether it is subscribed in this session."""
    asked: Message | None = None
    """The subscribe or unsubscribe message in flight."""
    is_live: bool = False
    """Whether its events are accepted: from the server's confirmation until the next subscribe is
    sent, including the time after the session has ended.
    """
    early: list[Message] = field(default_factory=list)
    """Events that arrived before the confirmation. They are held back, because the confirmation may
    come with older events, and dropped if it is lost.
    """

    def gap(self, reason: GapReason, error_code: str | None = None) -> Gap:
        """Return the gap that results if the channel continues from another position."""
        after = as_replay_id(self.position) if self.position >= 0 else None
        return Gap(reason, self.name, after=after, error_code=error_code)

    @property
    def is_gone(self) -> bool:
        """Whether the channel is also unsubscribed at the server. It is kept for its position."""
        return not (self.is_wanted or self.is_active or self.asked)

    def tell(self, error: SfPubSubError | None = None) -> None:
        """Settle the waiting call, if any."""
        if self.call is not None:
            self.call.settle(error)
            self.call = None


@dataclass(eq=False)
class Subscriptions:
    """The channels of one client, their requests and their replies."""

    dumps: Callable[[Any], str]
    """Encodes JSON."""
    fallback: int | None
    """Where a channel continues if its position is refused; None to report an error."""
    order: Iterator[int]
    """Numbers messages in their order of arrival."""
    items: Items
    """The application's queue."""
    out: list[Command]
    """The list to which gaps are added."""
    has_replay: bool = True
    """Whether the server supports replay in this session."""
    _by_path: dict[str, Channel] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The channels that are confirmed by the server or being resumed."""
        # A copy, because the application's threads call this.
        channels = self._by_path.copy().values()
        return {item.name for item in channels if item.is_wanted == (item.call is None)}

    @property
    def are_complete(self) -> bool:
        """Whether all wanted channels are active."""
        return all(item.is_active or not item.is_wanted for item in self._by_path.values())

    @property
    def are_overtaken(self) -> bool:
        """Whether events wait for the reply to a subscribe."""
        return any(item.early for item in self._by_path.values())

    def subscribe(
        self, name: str, start: int, call: Call, *, rewind: bool, resumes: bool = False
    ) -> None:
        """Mark a channel as wanted.

        Args:
            name: The channel, optionally with a filter.
            start: The start position; ignored if the channel is already subscribed.
            call: Settled by the server's reply.
            rewind: Whether the caller insists on *start*.
            resumes: Whether a channel that was unsubscribed continues after its last message, so
                that messages that are still queued are not delivered twice.

        Raises:
            LocalProtocolError: The channel is not valid, or is already subscribed in a different
                way.
        """
        channel, path = self._find(name), name.partition("?")[0]
        if channel is None or not (channel.is_wanted or channel.call):
            if len(self.dumps([name, path]).encode()) > MAX_REQUEST - _ROOM:
                raise LocalProtocolError(f"the filter of {path[:100]} is too long for a request")
            left = channel.position if channel is not None and resumes else NEW_EVENTS
            self._by_path[path] = Channel(name, path, start if left < 0 else left, call)
        elif rewind or channel.call is not None:
            raise LocalProtocolError(f"{name} is already subscribed: unsubscribe it first")
        else:
            call.settle()

    def unsubscribe(self, name: str, call: Call) -> None:
        """Mark a channel as no longer wanted. Does nothing if it is not subscribed.

        Raises:
            LocalProtocolError: The channel is not valid, or another call for it is in progress.
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

    # Requests and answers.

    def requests(self, message: Callable[..., Message]) -> list[Message]:
        """Return the subscribe and unsubscribe messages to send now, as many as fit into one
        request.
        """
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
        """Handle the reply to a subscribe or unsubscribe, unless it concerns the session."""
        channel = self._by_path.get(asked["subscription"].partition("?")[0])
        if channel is None or channel.asked is not asked:
            return  # given up, and perhaps subscribed again in the meantime
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
            if channel.call is None:  # no caller waits, so the error goes into the queue
                self.items.append(error)
            channel.tell(error)

    def lost(self) -> None:
        """Handle the loss of the session: all channels must be subscribed again."""
        for channel in self._by_path.values():
            channel.is_active, channel.asked = False, None
            self._forget(channel)

    def give_up(self, error: SfPubSubError, call: Call | None = None) -> None:
        """Fail all waiting calls, or one of them; what they asked for must not take
        effect later.
        """
        for channel in self._by_path.values():
            if channel.call is not None and call in (None, channel.call):
                channel.is_wanted = False
                channel.tell(error)

    def _forget(self, channel: Channel) -> None:
        """Settle a waiting unsubscribe if the server no longer has the channel."""
        if channel.is_gone:
            channel.tell()

    def _report(self, gap: Gap) -> None:
        logger.warning("%s", gap)
        self.out.append(gap)

    # Events.

    def arrived(self, events: list[Message]) -> None:
        """Queue events, and advance the positions of their channels.

        Args:
            events: The events of one response; earlier events that waited for a subscribe's reply
                are queued after them.
        """
        for item in self._by_path.values():
            if item.early and item.is_live:
                events, item.early = events + item.early, []
        path = None  # path of the previous event
        # Local names are faster: there are many events.
        put, make, order = self.items.append, tuple.__new__, self.order
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
            if type(number) is not int or number < 0:  # isinstance would accept True
                number = None
            elif channel is not None:
                channel.position = number
            put(make(StreamingMessage, (event, name, number, next(order))))
