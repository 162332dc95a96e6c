"""The part of the protocol that handles channels: which requests to send, what each reply means,
and the position of each channel. There is no I/O and no clock here.

Two flags of a channel record whether the application wants it and whether the server has confirmed
it. Channels whose flags differ are subscribed or unsubscribed, several in each request, with one
request in flight at a time.

Invariant: a channel resumes after the last message that was queued, so queued messages are not
delivered twice. The exception is a channel that has no replay id, or whose position was refused: it
continues from another position, which is reported as a `Gap`. Only the application's store records
which messages were processed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from sfpubsub.errors import LocalProtocolError, ReplayIdRejectedError, SfPubSubError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Call, Command, Message, path_of
from sfpubsub.streaming.failures import BayeuxError, error_for
from sfpubsub.streaming.pending import Pending
from sfpubsub.streaming.positions import NEW_EVENTS, as_replay_id
from sfpubsub.types import Gap, GapReason

logger = logging.getLogger("sfpubsub.streaming")

# Bytes reserved in a subscribe request for everything except channel and filter; a client id has
# about 30.
_ROOM = 500


@dataclass(eq=False)
class Channel:
    """A channel that is or was subscribed, and its position."""

    name: str
    """The channel as the caller wrote it, with its filter; the key in a store."""
    position: int = NEW_EVENTS
    """Where to subscribe: first the start position, then the replay id of the last queued message.
    """
    call: Call | None = None
    """The call that waits for the first subscribe or for the unsubscribe."""
    is_wanted: bool = False
    """Whether the application wants to receive the channel's events."""
    is_active: bool = False
    """Whether the server has confirmed the subscription in this session."""
    asked: Message | None = None
    """The subscribe or unsubscribe message in flight, if any."""
    is_live: bool = False
    """Whether the channel's events are accepted: from the server's confirmation until the next
    subscribe is sent, even after the session has ended.
    """

    def gap(self, reason: GapReason, error_code: str | None = None) -> Gap:
        """Return a `Gap` which reports that the channel cannot continue from its position."""
        after = as_replay_id(self.position) if self.position >= 0 else None
        return Gap(reason, self.name, after=after, error_code=error_code)

    @property
    def is_settled(self) -> bool:
        """Whether the channel is in the state that the application wants, with nothing in flight.

        This can also be true for an unsubscribed channel, which is kept to remember its position.
        """
        return self.asked is None and self.is_wanted == self.is_active

    def answer(self, error: SfPubSubError | None = None) -> None:
        """Settle the waiting call, if there is one and its result is known.

        With *error*, the call fails. Without it, the call succeeds if `is_settled` is true, and
        keeps waiting otherwise.
        """
        if self.call is not None and (error is not None or self.is_settled):
            self.call.settle(error)
            self.call = None


@dataclass(eq=False)
class Subscriptions:
    """The channels of one client, and the queue of their events."""

    dumps: Callable[[Any], str]
    """Encodes the JSON of requests."""
    fallback: int | None
    """Where a channel continues if its position is refused; None to report an error."""
    pending: Pending
    """The messages and errors for the application."""
    out: list[Command] = field(default_factory=list)
    """Commands for the driver, including those added by `StreamingProtocol`."""
    has_replay: bool = True
    """Whether the server supports replay in this session."""
    _by_path: dict[str, Channel] = field(default_factory=dict)
    # Events that arrived before the reply to their channel's subscribe. They are held back until
    # then, because the reply may come with older events.
    _early: list[Message] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """The subscribed channels, with their filters, including those that are being resumed."""
        # A copy, because the application's threads read this without the driver's lock.
        channels = self._by_path.copy().values()
        return {item.name for item in channels if item.is_wanted == (item.call is None)}

    @property
    def are_complete(self) -> bool:
        """Whether `Channel.is_settled` is true for all channels."""
        return all(item.is_settled for item in self._by_path.values())

    @property
    def are_full(self) -> bool:
        """Whether fetching must pause.

        It must if too many messages are queued, or if events are being held back until the server
        replies to their channel's subscribe message.
        """
        # Without the first condition, the number of early events would be unlimited.
        return bool(self._early) or self.pending.is_full

    def subscribe(self, name: str, start: int, call: Call, *, rewind: bool, resumes: bool) -> None:
        """Mark a channel as wanted.

        Args:
            name: The channel, optionally with a filter.
            start: The start position; not used if the channel is already subscribed.
            call: The caller's operation. It is settled when the server has replied, or immediately
                if the channel is already subscribed.
            rewind: Whether the caller requires *start*, so that it is an error if the channel is
                already subscribed.
            resumes: Whether a channel that was unsubscribed continues after its last queued
                message, rather than at *start*, so that no queued message is delivered twice.

        Raises:
            LocalProtocolError: The channel is not valid, has too long a filter, is subscribed with
                another filter, or is already subscribed and *rewind* is true; or another call for
                it is in progress.
        """
        channel, path = self._find(name), path_of(name)
        if not channel.is_wanted:
            if len(self.dumps([name, path]).encode()) > bayeux.MAX_REQUEST - _ROOM:
                raise LocalProtocolError(
                    f"the filter of {path[:100]} is too long for a request: use a shorter one"
                )
            if path.startswith(("/event/", "/data/")):
                logger.info("%s can be read through the Pub/Sub API, with PubSubClient", path)
            left = channel.position if resumes else NEW_EVENTS
            self._by_path[path] = Channel(name, start if left < 0 else left, call, is_wanted=True)
        elif rewind:
            raise LocalProtocolError(f"{name} is already subscribed: unsubscribe it first")
        else:
            call.settle()

    def unsubscribe(self, name: str, call: Call) -> None:
        """Mark a channel as no longer wanted.

        The call is settled by the server's reply, or immediately if the channel is not subscribed.

        Raises:
            LocalProtocolError: The channel is not valid, is subscribed with another filter, or
                another call for it is in progress.
        """
        channel = self._find(name)
        channel.is_wanted, channel.call = False, call
        channel.answer()

    def _find(self, name: str) -> Channel:
        """Return the known channel with this name and filter, or a new one.

        Raises:
            LocalProtocolError: As for `unsubscribe`.
        """
        path = path_of(name)
        if len(path) < 2 or path[0] != "/" or path.startswith(("/meta/", "/service/")):
            kinds = "/topic/NAME, /u/NAME, /event/NAME__e or /data/NAME"
            raise LocalProtocolError(f"{name!r} is not a channel: use {kinds}")
        channel = self._by_path.get(path) or Channel(name)
        if channel.call is not None:
            raise LocalProtocolError(
                f"{path} is already being subscribed or unsubscribed: wait for that call to return"
            )
        if channel.name == name:
            return channel
        if channel.is_wanted or not channel.is_settled:
            raise LocalProtocolError(
                f"{path} is subscribed as {channel.name}: unsubscribe that first, or use another "
                f"client"
            )
        return Channel(name)  # the one with another filter was unsubscribed

    # Requests and answers.

    def requests(self, message: Callable[..., Message]) -> list[Message]:
        """Return the subscribe and unsubscribe messages for the next request, as many as fit.
        Call this only when no such request is in flight.

        Args:
            message: Creates a message for the session; takes a meta channel, and the message's
                other fields as keyword arguments.
        """
        asked: list[Message] = []
        size = 0
        for path, channel in self._by_path.items():
            if channel.is_settled:
                continue
            kind = bayeux.SUBSCRIBE if channel.is_wanted else bayeux.UNSUBSCRIBE
            made = message(kind, subscription=channel.name)
            if channel.is_wanted:
                made["ext"] = {"replay": {path: channel.position}}
            size += len(self.dumps([made]).encode())
            if asked and size > bayeux.MAX_REQUEST:
                break
            asked.append(made)
            channel.asked = made
            if channel.is_wanted:
                if channel.is_live and (channel.position == NEW_EVENTS or not self.has_replay):
                    self._report(channel.gap("unanchored"))
                channel.is_live = False
        return asked

    def replied(self, asked: Message, refusal: BayeuxError | None) -> None:
        """Handle the reply to a subscribe or unsubscribe message.

        Args:
            asked: The message that was sent.
            refusal: Why the server refused it; None if the server confirmed it. Refusals that
                concern the whole session are not passed to this method.
        """
        channel = self._by_path[path_of(asked["subscription"])]
        if channel.asked is not asked:
            return  # the caller gave up, and the channel was subscribed again
        channel.asked = None
        is_subscribe = asked["channel"] == bayeux.SUBSCRIBE
        if refusal is None:
            logger.info(
                "the server confirmed %s for %s, position %d",
                asked["channel"],
                channel.name,
                channel.position,
            )
            channel.is_active, channel.is_live = is_subscribe, True
        elif not is_subscribe:
            channel.is_wanted = True
            channel.answer(error_for(f"unsubscribing {channel.name}", refusal))
        elif channel.is_wanted:
            self._handle_refusal(channel, refusal)
        channel.answer()

    def _handle_refusal(self, channel: Channel, refusal: BayeuxError) -> None:
        error = error_for(f"subscribing to {channel.name}", refusal)
        if isinstance(error, ReplayIdRejectedError):
            error.gap = channel.gap("rejected", refusal.error_code)
            if self.fallback is not None and self.fallback != channel.position:
                self._report(error.gap)
                channel.position = self.fallback
                return
        del self._by_path[path_of(channel.name)]
        if channel.call is None:  # no caller waits, so the error goes into the queue
            self.pending.fail(error)
        channel.answer(error)

    def lost(self) -> None:
        """Handle the loss of the session: all channels must be subscribed again."""
        for channel in self._by_path.values():
            channel.is_active, channel.asked = False, None
            channel.answer()

    def give_up(self, error: SfPubSubError, call: Call | None = None) -> None:
        """Fail all waiting calls, or only *call*, with *error*, and mark their channels as not
        wanted.
        """
        for channel in self._by_path.values():
            if channel.call is not None and call in (None, channel.call):
                channel.is_wanted = False
                channel.answer(error)

    def _report(self, gap: Gap) -> None:
        logger.warning("%s", gap)
        self.out.append(gap)

    # Events.

    def arrived(self, events: list[Message]) -> None:
        """Queue the events of one response, and advance the positions of their channels."""
        events, self._early = events + self._early, []
        for path, group in groupby(events, itemgetter("channel")):
            channel = self._by_path.get(path_of(path)) or Channel(path, is_live=True)
            if channel.is_live:
                last = self.pending.put(channel.name, list(group))
                channel.position = channel.position if last is None else last
            elif channel.asked is not None:  # otherwise, the server sends them again
                self._early += group
