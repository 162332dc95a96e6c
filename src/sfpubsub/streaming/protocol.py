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
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Advice, Message, reconnect_of
from sfpubsub.streaming.commands import Command, Cut, Deliver, Lane, Renew, Send, Settle
from sfpubsub.streaming.failures import BayeuxError, Next, concerns_session, error_for, what_next
from sfpubsub.streaming.subscriptions import Channel, Stage, Subscriptions

logger = logging.getLogger("sfpubsub.streaming")


@dataclass(frozen=True)
class Pace:
    """Times in seconds. Scaled down by tests."""

    request: float = 20.0
    """How long anything but a held connect may take, its answer included; answers take a second."""
    poll: float = 130.0
    """How long a connect may take while the server has not advised a timeout: Salesforce holds it
    for up to 110 s."""
    poll_factor: float = 1.2
    """A held connect may take this many times the advised timeout, and a `request` at least."""
    close: float = 5.0
    """How long the goodbye to the server may take."""
    backoff_initial: float = 1.0
    """Ceiling of the first random delay after a failure."""
    backoff_max: float = 60.0
    """Ceiling that the doubling stops at."""
    busy: float = 120.0
    """Ceiling of the delay after "too busy" and after a limit: the service asks for "a few
    minutes"."""
    renewed: float = 60.0
    """A session that is refused again so soon after its renewal, before it was of any use, is not
    renewed again: too many sign-ins lock a user out."""


class State(enum.Enum):
    """Of the session with the server."""

    WAITING = "no session; the next try comes when its time has come"
    RENEWING = "a token is being fetched"
    HANDSHAKING = "a handshake is in flight"
    CONNECTING = "the first connect is in flight"
    CONNECTED = "polling, or resting because the queue is full"
    CLOSING = "the goodbye is in flight, or about to be"
    STOPPED = "over"


class StreamingProtocol:
    """The state of one client.

    Args:
        pace: Times.
        dumps: Makes JSON.
        chance: Returns a random number from 0 to 1: half of each delay is left to it, so that many
            clients do not come back together.
        pending: Returns how many messages wait for the application.
        connection_timeout: Seconds without a connection after which the application is told, and
            told again; None or 0 for never.
        max_pending_count: No connect is sent while so many messages wait; 0 or less for no bound.
        fallback: Where a channel goes on whose position is refused; None to tell the application.
    """

    def __init__(
        self,
        pace: Pace,
        dumps: Callable[[Any], str],
        chance: Callable[[], float],
        pending: Callable[[], int],
        *,
        connection_timeout: float | None = 10.0,
        max_pending_count: int = 100,
        fallback: int | None = None,
    ) -> None:
        self.state = State.WAITING
        self._pace = pace
        self._dumps = dumps
        self._chance = chance
        self._pending = pending
        self._patience = connection_timeout
        self.max_pending_count = max_pending_count
        self._out: list[Command] = []
        self._subscriptions = Subscriptions(dumps, fallback, self._out)
        self._opener: object | None = None
        self._now = 0.0  # of the input that is being taken
        self._numbers = 0
        self._client_id = ""  # empty while there is no session
        self._has_replay = True
        self._advice = Advice()
        self._flying: dict[Lane, Send] = {}
        self._next_at = 0.0  # of the next renewal or handshake, or of the next connect
        self._must_renew = False
        self._renewed_at: float | None = None
        self._close_by = 0.0
        self._failures = 0  # since everything was well
        self._failure: SfPubSubError | None = None  # the last of them
        self._told_at = 0.0  # when the outage began, or the application was told of it last

    # What the application wants.

    def open(self, waiter: object, now: float) -> list[Command]:
        """Begin; the waiter hears when the first connect was answered."""
        self._opener, self._next_at = waiter, now
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

    def close(self, now: float) -> list[Command]:
        """Say goodbye to the server, then stop."""
        if self.state not in (State.CLOSING, State.STOPPED):
            self.state, self._close_by = State.CLOSING, now + self._pace.close
            if not self._client_id:
                self._stop(None)
        return self._commands(now)

    def abort(self, error: SfPubSubError, now: float) -> list[Command]:
        """Stop without a goodbye, and tell the application why."""
        self._stop(error)
        return self._commands(now)

    @property
    def subscriptions(self) -> set[str]:
        """The channels that the server has confirmed, or that are being resumed."""
        return self._subscriptions.names

    # What happens.

    def answered(self, request: Send, messages: Sequence[Any], now: float) -> list[Command]:
        """Take the messages of an answer."""
        self._land(request, now)
        events: list[Message] = []
        replies: list[Message] = []
        for message in messages:
            if type(message) is not dict or type(message.get("channel")) is not str:
                return self._broke(request, _broken("something that is no message"))
            # Ids are no help: some servers give events their own.
            if "data" in message and "successful" not in message:
                events.append(message)
            else:
                replies.append(message)
        failures = self._failures
        for reply in replies:
            self._advice = self._advice.merged(reply.get("advice"))
        is_goodbye = (
            bool(self._client_id)
            and self.state is not State.CLOSING
            and any(reply["channel"] == bayeux.DISCONNECT for reply in replies)
        )
        # Replies first, so that the events beside a subscribe's are those of an active channel.
        if is_goodbye:  # the others are about a session that is over; one may even advise "none"
            logger.info("the server said goodbye: making another session")
        else:
            self._hear(request, replies)
        found = self._subscriptions.arrived(events)
        if found:
            self._out.append(Deliver(found))
        if is_goodbye:
            self._start_anew()
        is_well = not self._subscriptions.at(Stage.WANTED, Stage.ASKED)
        if self.state is State.CONNECTED and self._failures == failures and is_well:
            self._failures, self._failure = 0, None
        return self._commands(now, len(found))

    def failed(self, request: Send, error: SfPubSubError, now: float) -> list[Command]:
        """Take a request's failure."""
        self._land(request, now)
        return self._broke(request, error)

    def renewed(self, error: SfPubSubError | None, now: float) -> list[Command]:
        """Take the end of a `Renew`; *error* is why there is no session."""
        self._now = now
        if self.state is State.RENEWING:
            self._must_renew = error is not None
            if error is None:
                self._renewed_at = now
                self._start_anew()
            else:
                self._fail(error)
        return self._commands(now)

    def tick(self, now: float) -> list[Command]:
        """A deadline has come, perhaps, or there is room in the queue."""
        self._now = now
        if self.state is State.CLOSING:
            if now >= self._close_by:
                self._stop(None)
        else:
            if any(now >= item.due and not item.is_cut for item in self._flying.values()):
                self._fail(StreamUnavailableError("the server did not answer in time"))
            if self._tell_at is not None and now >= self._tell_at:
                self._tell_of_outage()
        return self._commands(now)

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, in the same seconds; None for never."""
        if self.state is State.CLOSING:
            return self._close_by
        times = [request.due for request in self._flying.values() if not request.is_cut]
        if self._may_go_on():
            times.append(self._next_at)
        if self._tell_at is not None:
            times.append(self._tell_at)
        return min(times, default=None)

    # Requests.

    def _commands(self, now: float, arrived: int = 0) -> list[Command]:
        self._now = now
        if self.state is not State.STOPPED:
            self._go_on(arrived)
        out = self._out.copy()
        self._out.clear()  # the list is shared with the subscriptions
        return out

    def _may_go_on(self, arrived: int = 0) -> bool:
        if self.state is State.WAITING:
            return not self._flying
        is_full = 0 < self.max_pending_count <= self._pending() + arrived
        # What waits for a subscribe's answer is in no queue that has a bound.
        rests = is_full or self._subscriptions.are_overtaken or Lane.POLL in self._flying
        return self.state is State.CONNECTED and not rests

    def _go_on(self, arrived: int) -> None:
        """Send what can be sent now."""
        if self._may_go_on(arrived) and self._now >= self._next_at:
            if self.state is State.CONNECTED:
                timeout = self._advice.timeout
                held = self._pace.poll if timeout is None else timeout * self._pace.poll_factor
                self._connect(max(held, self._pace.request), at_once=self._advice.is_shared)
            elif self._must_renew:
                self.state = State.RENEWING
                self._out.append(Renew())
            else:
                self.state = State.HANDSHAKING
                self._send(Lane.ASK, [(self._handshake(), None)])
        if self._client_id and Lane.ASK not in self._flying:
            if self.state is State.CONNECTED:
                messages = self._subscriptions.requests(self._message, has_replay=self._has_replay)
                if messages:
                    self._send(Lane.ASK, messages)
            elif self.state is State.CLOSING:
                self._send(Lane.ASK, [(self._message(bayeux.DISCONNECT), None)])
                self._client_id = ""

    def _handshake(self) -> Message:
        return {
            "channel": bayeux.HANDSHAKE,
            "id": self._number(),
            "version": "1.0",
            "minimumVersion": "1.0",
            "supportedConnectionTypes": ["long-polling"],
            "ext": {"replay": True},
        }

    def _message(self, channel: str, **fields: Any) -> Message:
        return {"channel": channel, "id": self._number(), "clientId": self._client_id, **fields}

    def _number(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    def _connect(self, timeout: float, *, at_once: bool) -> None:
        message = self._message(bayeux.CONNECT, connectionType="long-polling")
        if at_once:  # asks the server not to hold it
            message["advice"] = {"timeout": 0}
        self._send(Lane.POLL, [(message, None)], timeout)

    def _send(
        self,
        lane: Lane,
        messages: Sequence[tuple[Message, Channel | None]],
        timeout: float | None = None,
    ) -> None:
        timeout = self._pace.request if timeout is None else timeout
        asked = {(message["channel"], message["id"]): about for message, about in messages}
        body = self._dumps([message for message, _ in messages])
        self._flying[lane] = Send(lane, body, timeout, self._now + timeout, asked)
        self._out.append(self._flying[lane])

    def _land(self, request: Send, now: float) -> None:
        self._now = now
        del self._flying[request.lane]
        is_goodbye = any(channel == bayeux.DISCONNECT for channel, _ in request.asked)
        if is_goodbye and self.state is State.CLOSING:
            self._stop(None)

    # Answers.

    def _hear(self, request: Send, replies: Sequence[Message]) -> None:
        heard = {
            (reply["channel"], str(reply.get("id"))): reply
            for reply in replies
            if "successful" in reply
        }
        for key, channel in request.asked.items():
            if self._is_over_for(request):
                return  # perhaps because of the reply before
            reply = heard.get(key)
            if reply is None:
                self._fail(_broken(f"no answer to {key[0]}"))
            elif channel is None and reply["successful"] is not True:
                self._refused(key[0], reply)
            elif key[0] == bayeux.HANDSHAKE:
                self._shaken(reply)
            elif channel is None:
                self._connected(reply)
            elif reply["successful"] is not True and concerns_session(BayeuxError(reply)):
                self._refused(f"{key[0]} of {channel.name}", reply)
            else:
                self._subscriptions.heard(channel, reply)

    def _is_over_for(self, request: Send) -> bool:
        """Whether nobody cares any more how a request fares."""
        return request.is_cut or self.state in (State.WAITING, State.CLOSING, State.STOPPED)

    def _shaken(self, reply: Message) -> None:
        client_id, ext = reply.get("clientId"), reply.get("ext")
        if not isinstance(client_id, str) or not client_id:
            self._fail(_broken("a handshake without a client id"))
            return
        self._client_id = client_id
        self._has_replay = isinstance(ext, dict) and bool(ext.get("replay"))
        self.state = State.CONNECTING
        self._connect(self._pace.request, at_once=True)

    def _connected(self, reply: Message) -> None:
        # Connects that are not held must not become a loop.
        least = self._pace.backoff_initial if self._advice.is_shared else 0.0
        self._next_at = self._now + max(self._advice.interval, least)
        if self.state is State.CONNECTED:
            self._renewed_at = None  # the token is good: a held connect was answered
        self.state = State.CONNECTED
        if self._opener is not None:
            self._out.append(Settle(self._opener))
            self._opener = None
        if reconnect_of(reply) == "handshake":
            self._start_anew(self._advice.interval)
        elif reconnect_of(reply) == "none":
            self._stop(error_for("going on", BayeuxError(reply)))

    # Failures.

    def _refused(self, what: str, reply: Message) -> None:
        refusal = BayeuxError(reply)
        error, step = error_for(what, refusal), what_next(refusal)
        logger.info("%s; next: %s", error, step.value)
        if step is Next.RENEW:
            if self._renewed_at is not None and self._now < self._renewed_at + self._pace.renewed:
                twice = AuthenticationError(f"a renewed session is refused as well: {error}")
                twice.__cause__ = error
                self._stop(twice)
            else:
                self._must_renew = True
                self._start_anew()
        elif step is Next.STOP or self._opener is not None:
            self._stop(error)
        else:
            is_first = self._failures == 0
            delay = self._delay(error, is_busy=step is Next.WAIT)
            if step is Next.HANDSHAKE and is_first:
                delay = 0.0
            delay = max(delay, self._advice.interval)
            if step is Next.RETRY and self.state is State.CONNECTED:
                self._next_at = self._now + delay
            else:
                self._start_anew(delay)

    def _broke(self, request: Send, error: SfPubSubError) -> list[Command]:
        """A request has no answer."""
        if not self._is_over_for(request):
            self._fail(error)
        return self._commands(self._now)

    def _fail(self, error: SfPubSubError) -> None:
        if self._opener is not None or not error.retryable:
            self._stop(error)
            return
        delay = self._delay(error)
        logger.info("%s; trying again in %.1f s", error, delay)
        self._start_anew(delay)

    def _delay(self, error: SfPubSubError, *, is_busy: bool = False) -> float:
        """Note a failure; return the seconds to wait."""
        if self._failure is None:
            self._told_at = self._now
        self._failure = error
        doubled = self._pace.backoff_initial * 2 ** min(self._failures, 30)
        self._failures += 1
        ceiling = self._pace.busy if is_busy else min(self._pace.backoff_max, doubled)
        return ceiling * (0.5 + self._chance() / 2)

    @property
    def _tell_at(self) -> float | None:
        """When the application is to be told of an outage; None while there is none."""
        return self._told_at + self._patience if self._failure and self._patience else None

    def _tell_of_outage(self) -> None:
        self._told_at = self._now
        error = StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._failure}"
        )
        error.__cause__ = self._failure
        self._out.append(Deliver([error]))
        self._subscriptions.give_up(error)

    def _start_anew(self, delay: float = 0.0) -> None:
        """Give the session with the server up, and make another after the delay."""
        self._client_id = ""
        self._cut()
        self._subscriptions.lost()
        self.state, self._next_at = State.WAITING, self._now + delay

    def _stop(self, error: SfPubSubError | None) -> None:
        self.state, self._client_id, self._failure = State.STOPPED, "", None
        self._cut()
        reason = error or LocalProtocolError("the client was closed")
        if self._opener is not None:
            self._out.append(Settle(self._opener, reason))
        elif error is not None:
            self._out.append(Deliver([error]))
        self._subscriptions.give_up(reason)

    def _cut(self) -> None:
        for request in self._flying.values():
            if not request.is_cut:
                request.is_cut = True
                self._out.append(Cut(request))


def _broken(what: str) -> RemoteProtocolError:
    # Proxies and restarting servers send such things: worth another try.
    return RemoteProtocolError(f"the server sent {what}", retryable=True)
