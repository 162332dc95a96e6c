"""The part of the protocol that handles channels: which requests to send, what each reply means,
and which events are queued, in which order. There is no I/O and no clock here.

What happens to a channel is a table (`states`). Several channels are subscribed or unsubscribed in
each request, with one request in flight at a time.

A server may send the events of any channel with any response. Two requests can be in flight, and
their responses can overtake each other, so events wait for the other response, for a limited time.
Invariants: a channel resumes where no event can have been lost (`received`), and what had been
queued since is not queued again. The exception is a channel that has no replay id, or whose
position was refused: it continues from another position, which is reported as a `Gap`. Only the
application's store records which messages were processed (`progress`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any

from sfpubsub.errors import LocalProtocolError, ReplayIdRejectedError, SfPubSubError
from sfpubsub.streaming import bayeux, states
from sfpubsub.streaming.bayeux import Call, Command, Lane, Message, Send, path_of, replay_id_of
from sfpubsub.streaming.failures import BayeuxError, error_for
from sfpubsub.streaming.pending import Pending
from sfpubsub.streaming.positions import NEW_EVENTS, as_replay_id
from sfpubsub.streaming.progress import Progress
from sfpubsub.streaming.received import Received
from sfpubsub.streaming.states import Signal, State
from sfpubsub.types import Gap, GapReason, ReplayId

logger = logging.getLogger("sfpubsub.streaming")

# Bytes reserved in a subscribe request for everything except channel and filter; a client id has
# about 30.
_ROOM = 500

# Unacked messages of one channel after which the application is told: their ids stay in memory, and
# the stored position does not move. Far more than anybody processes at a time.
_UNACKED = 10_000


@dataclass(eq=False)
class Channel:
    """A channel that is or was subscribed."""

    name: str
    """The channel as the caller wrote it, with its filter; the key in a store."""
    received: Received
    """The ids received, and the position that follows from them."""
    progress: Progress | None = None
    """The acks; None if no positions are stored."""
    call: Call | None = None
    """The call that waits for the first subscribe or for the unsubscribe."""
    state: State = State.LEFT
    """See `states`."""
    seq: int = 0
    """``delivery_seq`` of the last message that was queued."""
    has_been_late: bool = False
    """Whether events have arrived after those with higher ids."""

    def handle(self, signal: Signal) -> None:
        """Change the state, and settle the waiting call if its result is known."""
        self.state = states.step(self.state, signal)
        self.answer()

    def gap(self, reason: GapReason, error_code: str | None = None, before: int = -1) -> Gap:
        """Return a `Gap` which reports that the channel cannot continue from its position.

        Args:
            reason: Why not.
            error_code: The service's error code, if there is one.
            before: Where it continues; negative if unknown.
        """
        return Gap(
            reason,
            self.name,
            after=_replay_id(self.received.position),
            before=_replay_id(before),
            error_code=error_code,
        )

    def answer(self, error: SfPubSubError | None = None) -> None:
        """Settle the waiting call, if there is one and its result is known.

        With *error*, the call fails. Without it, the call succeeds if the channel is settled, and
        keeps waiting otherwise.
        """
        if self.call is not None and (error is not None or self.state in states.SETTLED):
            self.call.settle(error)
            self.call = None

    def seal(self) -> None:
        """Let the position be stored once the messages that it covers are acked."""
        if self.progress is not None:
            # All messages that it covers have been queued by now, perhaps after later ones.
            self.progress.sealed(self.seq, self.received.position)


@dataclass(eq=False)
class Subscriptions:
    """The channels of one client, and the queue of their events."""

    dumps: Callable[[Any], str]
    """Encodes the JSON of requests."""
    fallback: int | None
    """Where a channel continues if its position is refused; None to report an error."""
    pending: Pending
    """The messages and errors for the application."""
    progress: dict[str, Progress] | None = None
    """The acks by channel, if positions are stored. Shared with the application's thread."""
    reorder: float = 0.0
    """Seconds for which events wait for another response that may carry earlier ones."""
    out: list[Command] = field(default_factory=list)
    """Commands for the driver, including those added by `StreamingProtocol`."""
    has_replay: bool = True
    """Whether the server supports replay in this session."""
    late: int = 0
    """Number of events queued after an event of the same channel with a higher id."""
    release_at: float = inf
    """When the events that wait for another response are queued without it."""
    _by_path: dict[str, Channel] = field(default_factory=dict)
    # Events that arrived before the reply to their channel's subscribe. They are held back until
    # then, because the reply may come with older events.
    _early: list[Message] = field(default_factory=list)
    # Events that wait for other responses, and the requests that these belong to.
    _held: list[list[Message]] = field(default_factory=list)
    _awaited: list[Send] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """The subscribed channels, with their filters, including those that are being resumed."""
        # A copy, because the application's threads read this without the driver's lock.
        channels = self._by_path.copy().values()
        return {
            item.name for item in channels if (item.state in states.WANTED) == (item.call is None)
        }

    @property
    def are_complete(self) -> bool:
        """Whether all channels are as the application wants them."""
        return all(item.state in states.SETTLED for item in self._by_path.values())

    @property
    def are_full(self) -> bool:
        """Whether fetching must pause.

        It must if too many messages are queued, if events are being held back until a reply, or if
        too many have arrived while one request has been in flight.
        """
        # Without the first conditions, the number of events held back would be unlimited.
        return (
            bool(self._early or self._held)
            or self.pending.is_full
            or any(item.received.is_full for item in self._by_path.values())
        )

    def subscribe(self, name: str, start: int, call: Call, *, rewind: bool, resumes: bool) -> None:
        """Mark a channel as wanted.

        Args:
            name: The channel, optionally with a filter.
            start: The start position; not used if the channel is already subscribed.
            call: The caller's operation. It is settled when the server has replied, or immediately
                if the channel is already subscribed.
            rewind: Whether the caller requires *start*, so that it is an error if the channel is
                already subscribed.
            resumes: Whether a channel that was unsubscribed continues where it stopped, rather than
                at *start*, so that no queued message is delivered twice.

        Raises:
            LocalProtocolError: The channel is not valid, has too long a filter, is subscribed with
                another filter, or is already subscribed and *rewind* is true; or another call for
                it is in progress.
        """
        channel, path = self._find(name), path_of(name)
        if channel.state in states.WANTED:
            if rewind:
                raise LocalProtocolError(f"{name} is already subscribed: unsubscribe it first")
            call.settle()
            return
        if len(self.dumps([name, path]).encode()) > bayeux.MAX_REQUEST - _ROOM:
            raise LocalProtocolError(
                f"the filter of {path[:100]} is too long for a request: use a shorter one"
            )
        if path.startswith(("/event/", "/data/")):
            logger.info("%s can be read through the Pub/Sub API, with PubSubClient", path)
        if not resumes or channel.received.position < 0:
            channel.received, channel.seq = Received(start), self.pending.next_seq - 1
            channel.progress = None if self.progress is None else Progress(self.pending.next_seq)
        if self.progress is not None and channel.progress is not None:
            self.progress[name] = channel.progress
        channel.call = call
        self._by_path[path] = channel
        channel.handle(Signal.WANT)

    def unsubscribe(self, name: str, call: Call) -> None:
        """Mark a channel as no longer wanted.

        The call is settled by the server's reply, or immediately if the channel is not subscribed.

        Raises:
            LocalProtocolError: The channel is not valid, is subscribed with another filter, or
                another call for it is in progress.
        """
        channel = self._find(name)
        channel.call = call
        channel.handle(Signal.LEAVE)

    def _find(self, name: str) -> Channel:
        """Return the known channel with this name and filter, or a new one.

        Raises:
            LocalProtocolError: As for `unsubscribe`.
        """
        path = path_of(name)
        if len(path) < 2 or path[0] != "/" or path.startswith(("/meta/", "/service/")):
            kinds = "/topic/NAME, /u/NAME, /event/NAME__e or /data/NAME"
            raise LocalProtocolError(f"{name!r} is not a channel: use {kinds}")
        channel = self._by_path.get(path) or Channel(name, Received(NEW_EVENTS))
        if channel.call is not None:
            raise LocalProtocolError(
                f"{path} is already being subscribed or unsubscribed: wait for that call to return"
            )
        if channel.name == name:
            return channel
        if channel.state is not State.LEFT:
            raise LocalProtocolError(
                f"{path} is subscribed as {channel.name}: unsubscribe that first, or use another "
                f"client"
            )
        # The one with another filter was unsubscribed.
        return Channel(name, Received(NEW_EVENTS))

    # Requests and answers.

    def requests(self, message: Callable[..., Message], in_flight: Iterable[Lane]) -> list[Message]:
        """Return the subscribe and unsubscribe messages for the next request, as many as fit.
        Call this only when no such request is in flight.

        Args:
            message: Creates a message for the session; takes a meta channel, and the message's
                other fields as keyword arguments.
            in_flight: The lanes of the requests in flight.
        """
        asked: list[Message] = []
        size, lanes = 0, list(in_flight)
        for path, channel in self._by_path.items():
            if channel.state in states.SETTLED:
                continue
            subscribes = channel.state in states.SUBSCRIBES
            kind = bayeux.SUBSCRIBE if subscribes else bayeux.UNSUBSCRIBE
            made = message(kind, subscription=channel.name)
            position = channel.received.resumes_at
            if subscribes:
                made["ext"] = {"replay": {path: position}}
            size += len(self.dumps([made]).encode())
            if asked and size > bayeux.MAX_REQUEST:
                break
            asked.append(made)
            if subscribes:
                known = channel.received.position != NEW_EVENTS
                if channel.state is State.LOST and not (known and self.has_replay):
                    self._report(channel.gap("unanchored", before=position))
                channel.received.resume(lanes)
            channel.handle(Signal.SENT)
        return asked

    def sent(self, request: Send) -> None:
        """Handle the sending of a request, which may be answered with events of any channel."""
        for channel in self._by_path.values():
            channel.received.sent(request.lane)

    def replied(self, asked: Message, refusal: BayeuxError | None) -> None:
        """Handle the reply to a subscribe or unsubscribe message.

        Args:
            asked: The message that was sent.
            refusal: Why the server refused it; None if the server confirmed it. Refusals that
                concern the whole session are not passed to this method.
        """
        channel = self._by_path[path_of(asked["subscription"])]
        is_subscribe = asked["channel"] == bayeux.SUBSCRIBE
        if refusal is None:
            logger.info(
                "the server confirmed %s for %s, position %d",
                asked["channel"],
                channel.name,
                channel.received.position,
            )
            channel.handle(Signal.SUBSCRIBED if is_subscribe else Signal.UNSUBSCRIBED)
        elif not is_subscribe:
            channel.answer(error_for(f"unsubscribing {channel.name}", refusal))
            channel.handle(Signal.KEPT)
        elif channel.state is State.SUBSCRIBING:
            self._handle_refusal(channel, refusal)
        else:
            channel.handle(Signal.REFUSED)
            self._forget_events(channel)

    def _handle_refusal(self, channel: Channel, refusal: BayeuxError) -> None:
        error = error_for(f"subscribing to {channel.name}", refusal)
        if isinstance(error, ReplayIdRejectedError):
            error.gap = channel.gap("rejected", refusal.error_code)
            if self.fallback is not None and self.fallback != channel.received.position:
                self._report(error.gap)
                # Ids of another numbering may be known ids of this one, so nothing is known.
                channel.received = Received(self.fallback)
                channel.handle(Signal.MOVED)
                return
        self._forget_events(channel)
        del self._by_path[path_of(channel.name)]
        if channel.call is None:  # no caller waits, so the error goes into the queue
            self.pending.fail(error)
        channel.answer(error)
        channel.handle(Signal.REFUSED)

    def lost(self) -> None:
        """Handle the loss of the session: all channels must be subscribed again."""
        self.release()
        for channel in self._by_path.values():
            channel.handle(Signal.SESSION_LOST)
        early, self._early = self._early, []
        self._deliver([early])

    def give_up(self, error: SfPubSubError, call: Call | None = None) -> None:
        """Fail all waiting calls, or only *call*, with *error*, and mark their channels as not
        wanted.
        """
        for channel in self._by_path.values():
            if channel.call is not None and call in (None, channel.call):
                channel.answer(error)
                channel.handle(Signal.LEAVE)

    def _report(self, gap: Gap) -> None:
        logger.warning("%s", gap)
        self.out.append(gap)

    # Events.

    def arrived(
        self,
        request: Send,
        events: list[Message],
        others: Iterable[Send],
        now: float,
        *,
        is_answered: bool,
    ) -> None:
        """Handle the events of a response, or the end of a request without one.

        Args:
            request: The request.
            events: The events that came with the response.
            others: The other requests in flight.
            now: The current time, in seconds.
            is_answered: Whether there was a response; otherwise, it may be lost.
        """
        self._awaited = [other for other in self._awaited if other is not request]
        if events:
            self._held.append(events)
            # The others may be answered with earlier events, if they are answered at all.
            self._awaited = [other for other in others if not other.is_cut]
            self.release_at = min(self.release_at, now + self.reorder)
        if not self._awaited or now >= self.release_at:
            self.release(request.lane)
        for channel in self._by_path.values():
            if is_answered:
                channel.received.answered(request.lane)
            else:
                channel.received.lost(request.lane)
            channel.seal()

    def release(self, lane: Lane | None = None) -> None:
        """Queue the events that wait for other responses.

        Args:
            lane: The lane of the response that is being handled, if any.
        """
        responses = [*self._held, self._early] if self._early else self._held
        self._held, self._early, self._awaited, self.release_at = [], [], [], inf
        self._deliver(responses, lane)

    def _deliver(self, responses: Sequence[list[Message]], lane: Lane | None = None) -> None:
        for path, events in _by_channel(responses):
            channel = self._by_path.get(path_of(path))
            if channel is None:
                self.pending.put(path, events, [replay_id_of(event) for event in events])
            elif channel.state in states.WAITING:
                self._early += events
            elif channel.state in states.ACCEPTING or (
                # Other events are sent again, because the channel is about to be subscribed.
                channel.call is None and channel.received.position == NEW_EVENTS
            ):
                self._queue(channel, events, lane)

    def _queue(self, channel: Channel, events: list[Message], lane: Lane | None) -> None:
        ids = [replay_id_of(event) for event in events]
        received, position = channel.received, channel.received.position
        is_safe = received.is_complete_but_for(lane)
        arrival = received.arrived(ids)
        if arrival.reset_at is not None:
            after, before = _replay_id(position), _replay_id(arrival.reset_at)
            self._report(Gap("reset", channel.name, after=after, before=before))
        if arrival.places is not None:
            events = [events[place] for place in arrival.places]
            ids = [ids[place] for place in arrival.places]
        if arrival.late:
            self.late += arrival.late
            level = logging.INFO if channel.has_been_late else logging.WARNING
            channel.has_been_late = True
            text = "%d events of %s arrived after events with higher replay ids"
            logger.log(level, text, arrival.late, channel.name)
        if not events:
            return
        first = self.pending.next_seq
        channel.seq = first + len(events) - 1
        progress = channel.progress
        if progress is not None:
            unacked = progress.unacked
            progress.arrived(first, ids, is_ordered=is_safe and not arrival.late)
            if unacked < _UNACKED <= progress.unacked:
                logger.warning(
                    "%d messages of %s are not acked, so its stored position does not move: ack "
                    "every message",
                    progress.unacked,
                    channel.name,
                )
        self.pending.put(channel.name, events, ids)

    def _forget_events(self, channel: Channel) -> None:
        """Drop events that are held back, because the server has refused their subscription."""
        path = path_of(channel.name)
        for events in (self._early, *self._held):
            events[:] = [event for event in events if path_of(event["channel"]) != path]
        self._held = [events for events in self._held if events]


def _replay_id(position: int) -> ReplayId | None:
    return as_replay_id(position) if position >= 0 else None


def _by_channel(responses: Sequence[list[Message]]) -> Iterator[tuple[str, list[Message]]]:
    """Yield the events of responses by channel; those of several responses in order of their ids.

    Events without an id stay behind the one before them.
    """
    if len(responses) == 1:
        for path, group in groupby(responses[0], itemgetter("channel")):
            yield path, list(group)
        return
    found: dict[str, list[tuple[int, Message]]] = {}
    for events in responses:
        for event in events:
            known = found.setdefault(path_of(event["channel"]), [])
            number = replay_id_of(event)
            known.append((known[-1][0] if number is None and known else number or 0, event))
    for path, pairs in found.items():
        yield path, [event for _, event in sorted(pairs, key=itemgetter(0))]
