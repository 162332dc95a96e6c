"""One client's session with a Bayeux server: decides everything, does nothing.

Inputs are method calls with the time; each returns commands, to be carried out in order. There is
no I/O, clock or thread here. Not thread-safe; the driver serialises.

A session is in doubt as soon as an answer may have been lost: the server forgets events once it has
sent them, so going on in the same session could skip some. Then a new one is made, every channel is
subscribed again after its last queued event, and what was lost comes again. A channel without any
known id has nothing to go on from; that is a `Gap`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Advice, Message, reconnect_of, refusal_of
from sfpubsub.streaming.channels import Channel, Channels
from sfpubsub.streaming.commands import (
    Command,
    Cut,
    Deliver,
    Lane,
    Renew,
    Send,
    Settle,
)
from sfpubsub.streaming.failures import (
    Next,
    concerns_session,
    error_for,
    twice_refused,
    what_next,
)
from sfpubsub.streaming.numbers import Pace
from sfpubsub.streaming.outage import Outage
from sfpubsub.streaming.subscriptions import Subscriptions

logger = logging.getLogger("sfpubsub.streaming")


class State(enum.Enum):
    """Of the session with the server."""

    NEW = "not opened"
    WAITING = "no session; the next try comes when its time has come"
    RENEWING = "a token is being fetched"
    HANDSHAKING = "a handshake is in flight"
    CONNECTING = "the first connect is in flight"
    CONNECTED = "polling, or resting because the queue is full"
    CLOSING = "the goodbye is in flight, or about to be"
    STOPPED = "over"


@dataclass
class _Request:
    ticket: int
    due: float
    asked: dict[tuple[str, str], Channel | None]
    """By channel and number of each message, the subscription that it is about."""
    is_cut: bool = False


class StreamingProtocol:
    """The state of one client.

    Args:
        pace: Times.
        dumps: Makes JSON.
        connection_timeout: Seconds without a connection after which the application is told, and
            told again; None for never.
        max_pending_count: No connect is sent while so many messages wait; 0 for no bound.
        fallback: Where a channel goes on whose position is refused; None to tell the application.
    """

    def __init__(
        self,
        pace: Pace,
        dumps: Callable[[Any], str],
        *,
        connection_timeout: float | None = 10.0,
        max_pending_count: int = 100,
        fallback: int | None = None,
    ) -> None:
        self.state = State.NEW
        self.is_full = False
        """Whether polling rests because the queue is full."""
        self._pace = pace
        self._dumps = dumps
        self._most = max(0, max_pending_count)
        self._outage = Outage(pace, connection_timeout or None)
        self._opener: object | None = None
        self._client_id = ""
        self._has_replay = True
        self._advice = Advice()
        self._flying: dict[Lane, _Request] = {}
        self._numbers = 0
        self._next_at = 0.0  # of the next renewal or handshake, or of the next connect
        self._must_renew = False
        self._renewed_at: float | None = None
        self._close_by: float | None = None
        self._out: list[Command] = []
        self._subscriptions = Subscriptions(dumps, fallback, self._out)

    @property
    def channels(self) -> Channels:
        """The subscriptions and how far each has come."""
        return self._subscriptions.channels

    # What the application wants.

    def open(self, waiter: object, now: float) -> list[Command]:
        """Begin; the waiter hears when the first connect was answered."""
        self._opener = waiter
        self._start_anew(now)
        return self._commands(now)

    def subscribe(
        self, name: str, start: int, waiter: object, now: float, *, rewind: bool = False
    ) -> list[Command]:
        """Subscribe to a channel.

        Args:
            name: The channel, perhaps with a filter.
            start: Where; not looked at for a channel that is subscribed already.
            waiter: Hears of the server's answer.
            now: Steady seconds.
            rewind: Whether the caller insists on *start*.

        Raises:
            LocalProtocolError: It is no channel, or is subscribed in another way.
        """
        self._subscriptions.subscribe(name, start, waiter, rewind=rewind)
        return self._commands(now)

    def unsubscribe(self, name: str, waiter: object, now: float) -> list[Command]:
        """Unsubscribe; of a channel that is not subscribed there is nothing to do.

        Raises:
            LocalProtocolError: It is no channel, or another call about it is under way.
        """
        self._subscriptions.unsubscribe(name, waiter)
        return self._commands(now)

    def room(self, now: float) -> list[Command]:
        """The queue has room again."""
        self.is_full = False
        return self._commands(now)

    def is_full_with(self, pending: int) -> bool:
        """Whether polling rests while so many messages wait."""
        return 0 < self._most <= pending

    def close(self, now: float) -> list[Command]:
        """Say goodbye to the server, then stop."""
        if self.state not in (State.CLOSING, State.STOPPED):
            self.state, self._close_by = State.CLOSING, now + self._pace.close
            if not self._client_id:
                self._stop(None)
        return self._commands(now)

    # What happens.

    def answered(
        self, ticket: int, messages: Sequence[Any], now: float, pending: int, chance: float
    ) -> list[Command]:
        """Take an answer.

        Args:
            ticket: Of the request.
            messages: What came, decoded.
            now: Steady seconds.
            pending: Messages that wait for the application.
            chance: A random number from 0 to 1, for delays.
        """
        request = self._land(ticket)
        events: list[Message] = []
        replies: list[Message] = []
        for message in messages:
            if type(message) is not dict or type(message.get("channel")) is not str:
                self._broke(request, _broken("something that is no message"), now, chance)
                return self._commands(now)
            if "data" in message and "successful" not in message:
                events.append(message)
            else:
                replies.append(message)
        failures = self._outage.failures
        for reply in replies:
            self._advice = self._advice.merged(reply.get("advice"))
        # Its other replies are about a session that is over; the connect may even advise "none".
        is_goodbye = bool(self._client_id) and any(
            reply["channel"] == bayeux.DISCONNECT for reply in replies
        )
        # Replies first, so that the events beside a subscribe's are those of an active channel.
        if not is_goodbye:
            self._hear(request, replies, now, chance)
        found = self.channels.arrived(events) + self.channels.arrived(self.channels.early())
        if found:
            self._out.append(Deliver(found))
        self.is_full = self.is_full_with(pending + len(found))
        if is_goodbye and self.state is not State.CLOSING:
            logger.info("the server said goodbye: making another session")
            self._start_anew(now)
        is_well = self.state is State.CONNECTED and self._subscriptions.are_well
        if self._outage.failures == failures and is_well:
            self._outage.is_over()
        return self._commands(now)

    def failed(self, ticket: int, error: SfPubSubError, now: float, chance: float) -> list[Command]:
        """Take a request's failure."""
        self._broke(self._land(ticket), error, now, chance)
        return self._commands(now)

    def renewed(self, error: SfPubSubError | None, now: float, chance: float) -> list[Command]:
        """Take the end of a `Renew`; *error* is why there is no session."""
        if self.state is State.RENEWING:
            self._must_renew = error is not None
            if error is None:
                self._renewed_at = now
                self._start_anew(now)
            else:
                self._fail(error, now, chance)
        return self._commands(now)

    def tick(self, now: float) -> list[Command]:
        """A deadline has come, perhaps."""
        late = [item for item in self._flying.values() if now >= item.due and not item.is_cut]
        if late and self.state is not State.CLOSING:
            self._fail(StreamUnavailableError("the server did not answer in time"), now, 1.0)
        if self._close_by is not None and now >= self._close_by:
            self._stop(None)
        tell_at = self._outage.tell_at
        if tell_at is not None and now >= tell_at and self.state is not State.CLOSING:
            self._tell_of_outage(now)
        return self._commands(now)

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, in the same seconds; None for never."""
        if self.state is State.CLOSING:
            return self._close_by
        times = [request.due for request in self._flying.values() if not request.is_cut]
        if self._may_go_on():
            times.append(self._next_at)
        if self._outage.tell_at is not None:
            times.append(self._outage.tell_at)
        return min(times, default=None)

    # Requests.

    def _commands(self, now: float) -> list[Command]:
        if self.state is not State.STOPPED:
            self._go_on(now)
        out = self._out.copy()
        self._out.clear()  # the list is shared with the subscriptions
        return out

    def _may_go_on(self) -> bool:
        if self.state is State.WAITING:
            return not self._flying
        rests = self.is_full or Lane.POLL in self._flying
        return self.state is State.CONNECTED and not rests

    def _go_on(self, now: float) -> None:
        """Send what can be sent now."""
        if self._may_go_on() and now >= self._next_at:
            if self.state is State.CONNECTED:
                timeout = self._advice.timeout
                held = self._pace.poll if timeout is None else timeout * self._pace.poll_factor
                self._connect(now, max(held, self._pace.request), at_once=self._advice.is_shared)
            elif self._must_renew:
                self.state = State.RENEWING
                self._out.append(Renew())
            else:
                self.state = State.HANDSHAKING
                self._send(Lane.ASK, [(bayeux.handshake(self._number()), None)], now)
        if self._client_id and Lane.ASK not in self._flying:
            if self.state is State.CONNECTED:
                messages = self._subscriptions.requests(
                    self._client_id, self._number, has_replay=self._has_replay
                )
                if messages:
                    self._send(Lane.ASK, messages, now)
            elif self.state is State.CLOSING:
                goodbye = bayeux.disconnect(self._number(), self._client_id)
                self._client_id = ""
                self._send(Lane.ASK, [(goodbye, None)], now)

    def _connect(self, now: float, timeout: float, *, at_once: bool) -> None:
        message = bayeux.connect(self._number(), self._client_id, at_once=at_once)
        self._send(Lane.POLL, [(message, None)], now, timeout)

    def _send(
        self,
        lane: Lane,
        messages: Sequence[tuple[Message, Channel | None]],
        now: float,
        timeout: float | None = None,
    ) -> None:
        timeout = self._pace.request if timeout is None else timeout
        asked = {(message["channel"], message["id"]): about for message, about in messages}
        ticket = int(self._number())
        self._flying[lane] = _Request(ticket, now + timeout, asked)
        body = self._dumps([message for message, _ in messages])
        self._out.append(Send(lane, ticket, body, timeout))

    def _number(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    def _land(self, ticket: int) -> _Request:
        for lane, request in self._flying.items():
            if request.ticket == ticket:
                return self._flying.pop(lane)
        raise AssertionError(f"no request {ticket} is in flight")

    # Answers.

    def _hear(
        self, request: _Request, replies: Sequence[Message], now: float, chance: float
    ) -> None:
        heard = {
            (reply["channel"], str(reply.get("id"))): reply
            for reply in replies
            if "successful" in reply
        }
        for key, channel in request.asked.items():
            if request.is_cut or self.state in (State.WAITING, State.STOPPED):
                return  # the session is given up, perhaps because of the reply before
            if self.state is State.CLOSING:
                if key[0] == bayeux.DISCONNECT:
                    self._stop(None)
                continue
            if key not in heard:
                self._fail(_broken(f"no answer to {key[0]}"), now, chance)
            elif key[0] == bayeux.HANDSHAKE:
                self._hear_handshake(heard[key], now, chance)
            elif key[0] == bayeux.CONNECT:
                self._hear_connect(heard[key], now, chance)
            elif channel is not None and channel in self.channels:
                reply = heard[key]
                if reply["successful"] is not True and concerns_session(refusal_of(reply)):
                    self._refused(f"{key[0]} of {channel.name}", reply, now, chance)
                else:
                    self._subscriptions.heard(channel, key[0], reply)

    def _hear_handshake(self, reply: Message, now: float, chance: float) -> None:
        client_id, ext = reply.get("clientId"), reply.get("ext")
        if reply["successful"] is not True:
            self._refused("the handshake", reply, now, chance)
        elif not isinstance(client_id, str) or not client_id:
            self._fail(_broken("a handshake without a client id"), now, chance)
        else:
            self._client_id = client_id
            self._has_replay = isinstance(ext, dict) and bool(ext.get("replay"))
            self.state = State.CONNECTING
            self._connect(now, self._pace.request, at_once=True)

    def _hear_connect(self, reply: Message, now: float, chance: float) -> None:
        if reply["successful"] is not True:
            self._refused("the connection", reply, now, chance)
            return
        # Connects that are not held must not become a loop.
        least = self._pace.backoff_initial if self._advice.is_shared else 0.0
        self._next_at = now + max(self._advice.interval, least)
        if self.state is State.CONNECTED:
            self._renewed_at = None  # the token is good: a held connect was answered
        self.state = State.CONNECTED
        if self._opener is not None:
            self._out.append(Settle(self._opener))
            self._opener = None
        if reconnect_of(reply) == "handshake":
            self._start_anew(now, self._advice.interval)
        elif reconnect_of(reply) == "none":
            self._stop(error_for("going on", refusal_of(reply)))

    # Failures.

    def _refused(self, what: str, reply: Message, now: float, chance: float) -> None:
        refusal = refusal_of(reply)
        error, step = error_for(what, refusal), what_next(refusal)
        logger.info("%s; next: %s", error, step.value)
        if step is Next.RENEW:
            if self._renewed_at is not None and now < self._renewed_at + self._pace.renewed:
                self._stop(twice_refused(error))
            else:
                self._must_renew = True
                self._start_anew(now)
        elif step is Next.STOP or self._opener is not None:
            self._stop(error)
        else:
            is_first = self._outage.failures == 0
            delay = self._outage.failed(error, now, chance, busy=step is Next.WAIT)
            if step is Next.HANDSHAKE and is_first:
                delay = 0.0
            delay = max(delay, self._advice.interval)
            if step is Next.RETRY and self.state is State.CONNECTED:
                self._next_at = now + delay
            else:
                self._start_anew(now, delay)

    def _broke(self, request: _Request, error: SfPubSubError, now: float, chance: float) -> None:
        """A request has no answer."""
        if self.state is State.CLOSING:
            if any(channel == bayeux.DISCONNECT for channel, _ in request.asked):
                self._stop(None)
        elif not request.is_cut:
            self._fail(error, now, chance)

    def _fail(self, error: SfPubSubError, now: float, chance: float) -> None:
        if self._opener is not None or not error.retryable:
            self._stop(error)
            return
        delay = self._outage.failed(error, now, chance)
        logger.info("%s; trying again in %.1f s", error, delay)
        self._start_anew(now, delay)

    def _start_anew(self, now: float, delay: float = 0.0) -> None:
        """Give the session with the server up, and make another after the delay."""
        self._client_id = ""
        self._cut()
        self._subscriptions.lost()
        self.state, self._next_at = State.WAITING, now + delay

    def _stop(self, error: SfPubSubError | None) -> None:
        self.state, self._client_id = State.STOPPED, ""
        self._cut()
        reason = error or LocalProtocolError("the client was closed")
        if self._opener is not None:
            self._out.append(Settle(self._opener, reason))
        elif error is not None:
            self._out.append(Deliver([error]))
        self._subscriptions.end(reason)

    def _cut(self) -> None:
        for lane, request in self._flying.items():
            if not request.is_cut:
                request.is_cut = True
                self._out.append(Cut(lane, request.ticket))

    def _tell_of_outage(self, now: float) -> None:
        error = self._outage.told(now)
        self._out.append(Deliver([error]))
        self._subscriptions.give_up(error)


def _broken(what: str) -> RemoteProtocolError:
    # Proxies and restarting servers send such things: worth another try.
    return RemoteProtocolError(f"the server sent {what}", retryable=True)
