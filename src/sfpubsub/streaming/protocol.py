"""One client's session with a Bayeux server: decides everything, does nothing.

Inputs are method calls with the time; after each, `tick` says what is to be done. There is no I/O,
clock or thread here. Not thread-safe; the driver serialises.

A session is in doubt as soon as an answer may have been lost: the server forgets events once it has
sent them, so going on in the same session could skip some. Then a new one is made, every channel is
subscribed again after its last queued event, and what was lost comes again. A channel without any
known id has nothing to go on from; that is a `Gap`.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from sfpubsub.errors import (
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Call, Command, Cut, Lane, Message, Send, advice_of
from sfpubsub.streaming.failures import BayeuxError, Next, concerns_session, error_for, what_next
from sfpubsub.streaming.subscriptions import Channel, Items, Subscriptions

logger = logging.getLogger("sfpubsub.streaming")


@dataclass(frozen=True)
class Pace:
    """Times in seconds. Scaled down by tests."""

    request: float = 20.0
    """How long anything but a held connect may take, its answer included; answers take a second."""
    sign_in: float = 60.0
    """How long fetching a session may take before a handshake; most ways take some seconds."""
    poll: float = 130.0
    """How long a connect may take while the server has not advised a timeout: Salesforce holds it
    for up to 110 s."""
    poll_factor: float = 1.2
    """A held connect may take this many times the advised timeout, and a `request` at least."""
    close: float = 5.0
    """How long the goodbye to the server may take."""
    backoff_initial: float = 1.0
    """Ceiling of the first random delay after a failure; a session that has lived for less is not
    replaced at once."""
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
    OPENING = "a handshake or the first connect is in flight"
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
        connection_timeout: Seconds without a connection after which the application is told, and
            told again; None or 0 for never.
        max_pending_count: No connect is sent while so many messages wait; 0 or less for no bound.
        fallback: Where a channel goes on whose position is refused; None to tell the application.
        order: Numbers messages in their order of arrival.
    """

    def __init__(
        self,
        pace: Pace,
        dumps: Callable[[Any], str],
        chance: Callable[[], float],
        *,
        connection_timeout: float | None = 10.0,
        max_pending_count: int = 100,
        fallback: int | None = None,
        order: Iterator[int] | None = None,
    ) -> None:
        self.state = State.WAITING
        self.items = Items()
        """What waits for the application, which takes from the left."""
        self.max_pending_count = max_pending_count
        self._out: list[Command] = []
        self.channels = Subscriptions(dumps, fallback, order or count(1), self.items, self._out)
        self._pace = pace
        self._dumps = dumps
        self._chance = chance
        self._patience = connection_timeout
        self._opener: Call | None = None
        self._now = 0.0  # of the input that is being taken
        self._ids = count(1)
        self._client_id = ""  # empty while there is no session
        self._connected_at = math.inf
        self._has_replay = True
        self._advice: dict[str, Any] = {}
        self._flying: dict[Lane, Send] = {}
        self._next_at = math.inf  # when the next handshake, or the next connect, may be sent
        self._close_by = math.inf
        self._refused: Any = None  # the last session that was refused, if there was one
        self._refused_at = -math.inf  # when; set back once a new one was of use
        self._failures = 0  # since everything was well
        self._failure: SfPubSubError | None = None  # the last of them
        self._tell_at = math.inf  # when the application is to be told of the outage
        self._outage: SfPubSubError | None = None  # what it was told last

    # Inputs. The application's other ones are those of `channels`.

    def open(self, call: Call, now: float) -> None:
        """Begin; the call is settled when the first connect was answered."""
        self._opener, self._next_at = call, now

    def close(self, now: float) -> None:
        """Say goodbye to the server, then stop."""
        if self.state not in (State.CLOSING, State.STOPPED):
            self.state, self._close_by = State.CLOSING, now + self._pace.close
            if not self._client_id:
                self.stop()

    def stop(self, error: SfPubSubError | None = None) -> None:
        """Stop without a goodbye, and tell the application why if there is an error."""
        self.state, self._client_id, self._failure = State.STOPPED, "", None
        self._cut()
        reason = error or LocalProtocolError("the client was closed")
        if self._opener is not None:
            self._opener.settle(reason)
        elif error is not None:
            self.items.append(error)
        self.channels.give_up(reason)

    def landed(self, request: Send, outcome: Sequence[Any] | SfPubSubError, now: float) -> None:
        """Take the messages of an answer, or why there is none."""
        self._now = now
        del self._flying[request.lane]
        if isinstance(outcome, SfPubSubError):
            if not self._is_over_for(request):
                self._fail(outcome)
        else:
            self._answered(request, outcome)
        if self.state is State.CLOSING and request.asked[0][0]["channel"] == bayeux.DISCONNECT:
            self.stop()

    def tick(self, now: float) -> list[Command]:
        """Return what is to be done now.

        To be called after every input, at `deadline`, and when the queue has room again.
        """
        self._now = now
        if self.state is State.CLOSING and now >= self._close_by:
            self.stop()
        if self.state not in (State.CLOSING, State.STOPPED):
            if any(now >= item.due and not item.is_cut for item in self._flying.values()):
                self._fail(StreamUnavailableError("the server did not answer in time"))
            if self._failure is not None and now >= self._tell_at:
                self._tell_of_outage()
        if self.state is not State.STOPPED:
            self._go_on()
        out = self._out.copy()
        self._out.clear()  # the list is shared with the channels
        return out

    @property
    def deadline(self) -> float:
        """When to call `tick`, in the same seconds; infinite for never."""
        if self.state is State.CLOSING:
            return self._close_by
        times = [request.due for request in self._flying.values() if not request.is_cut]
        if self._may_go_on():
            times.append(self._next_at)
        if self._failure is not None:
            times.append(self._tell_at)
        return min(times, default=math.inf)

    # Requests.

    def _may_go_on(self) -> bool:
        if self.state is State.WAITING:
            return not self._flying
        is_full = 0 < self.max_pending_count <= len(self.items)
        # What waits for a subscribe's answer is in no queue that has a bound.
        rests = is_full or self.channels.are_overtaken or Lane.POLL in self._flying
        return self.state is State.CONNECTED and not rests

    def _go_on(self) -> None:
        """Send what can be sent now."""
        if self._may_go_on() and self._now >= self._next_at:
            if self.state is State.CONNECTED:
                self._connect()
            else:
                self.state = State.OPENING
                self._handshake()
        if self._client_id and Lane.ASK not in self._flying:
            if self.state is State.CONNECTED:
                asked = self.channels.requests(self._message, has_replay=self._has_replay)
                if asked:
                    self._send(Lane.ASK, asked, self._pace.request)
            elif self.state is State.CLOSING:
                goodbye = self._message(bayeux.DISCONNECT)
                self._send(Lane.ASK, [(goodbye, None)], self._pace.request)
                self._client_id = ""

    def _handshake(self) -> None:
        message = {
            "channel": bayeux.HANDSHAKE,
            "id": str(next(self._ids)),
            "version": "1.0",
            "minimumVersion": "1.0",
            "supportedConnectionTypes": ["long-polling"],
            "ext": {"replay": True},
        }
        self._send(Lane.ASK, [(message, None)], self._pace.request, before=self._pace.sign_in)

    def _connect(self) -> None:
        message = self._message(bayeux.CONNECT, connectionType="long-polling")
        timeout = self._pace.request
        if self.state is State.OPENING or self._is_shared:
            message["advice"] = {"timeout": 0}  # asks the server not to hold it
        if self.state is State.CONNECTED:
            advised = self._advice.get("timeout")
            held = self._pace.poll if advised is None else advised * self._pace.poll_factor
            timeout = max(held, timeout)
        self._send(Lane.POLL, [(message, None)], timeout)

    @property
    def _is_shared(self) -> bool:
        # The server sees several clients behind the cookies; then it holds no connect.
        return self._advice.get("multiple-clients") is True

    @property
    def _interval(self) -> float:
        interval: float = self._advice.get("interval", 0.0)
        # Connects that are not held must not become a loop.
        return max(interval, self._pace.backoff_initial) if self._is_shared else interval

    def _message(self, channel: str, **fields: Any) -> Message:
        number = str(next(self._ids))
        return {"channel": channel, "id": number, "clientId": self._client_id, **fields}

    def _send(
        self,
        lane: Lane,
        asked: Sequence[tuple[Message, Channel | None]],
        timeout: float,
        before: float = 0.0,
    ) -> None:
        body = self._dumps([message for message, _ in asked])
        due = self._now + before + timeout
        self._flying[lane] = Send(lane, body, timeout, due, asked, self._refused)
        self._out.append(self._flying[lane])

    def _is_over_for(self, request: Send) -> bool:
        """Whether nobody cares any more how a request fares."""
        return request.is_cut or self.state not in (State.OPENING, State.CONNECTED)

    # Answers.

    def _answered(self, request: Send, messages: Sequence[Any]) -> None:
        failures = self._failures
        is_over = self._is_over_for(request)
        events: list[Message] = []
        replies: dict[tuple[str, str], Message] = {}
        for message in messages:
            if type(message) is not dict or type(message.get("channel")) is not str:
                if not is_over:
                    self._fail(_broken("something that is no message"))
                return
            # Ids alone are no help: some servers give events their own.
            if "data" in message and "successful" not in message:
                events.append(message)
            else:
                self._advice |= advice_of(message)
                replies[message["channel"], str(message.get("id"))] = message
        # Replies first, so that the events beside a subscribe's are those of an active channel. A
        # goodbye goes before them: they are about a session that is over.
        if any(channel == bayeux.DISCONNECT for channel, _ in replies) and not is_over:
            self._fail(StreamUnavailableError("the server said goodbye"), Next.HANDSHAKE)
        else:
            self._hear(request, replies)
        self.channels.arrived(events)
        is_well = self.state is State.CONNECTED and self.channels.are_complete
        if is_well and self._failures == failures:
            self._failures, self._failure = 0, None

    def _hear(self, request: Send, replies: dict[tuple[str, str], Message]) -> None:
        for message, about in request.asked:
            if self._is_over_for(request):
                return  # perhaps because of the reply before
            channel = message["channel"]
            reply = replies.get((channel, message["id"]), {})
            if "successful" not in reply:
                self._fail(_broken(f"no answer to {channel}"))
            elif about is not None:
                refusal = None if reply["successful"] is True else BayeuxError(reply)
                if refusal is not None and concerns_session(refusal):
                    self._refuse(f"{channel} of {about.name}", refusal, request)
                else:
                    self.channels.heard(about, reply)
            elif reply["successful"] is not True:
                self._refuse(channel, BayeuxError(reply), request)
            elif channel == bayeux.HANDSHAKE:
                self._shaken(reply)
            else:
                self._connected(reply)

    def _shaken(self, reply: Message) -> None:
        client_id, ext = reply.get("clientId"), reply.get("ext")
        if not isinstance(client_id, str) or not client_id:
            self._fail(_broken("a handshake without a client id"))
            return
        self._client_id = client_id
        self._has_replay = isinstance(ext, dict) and bool(ext.get("replay"))
        self._connect()

    def _connected(self, reply: Message) -> None:
        self._next_at = self._now + self._interval
        if self.state is State.CONNECTED:
            self._refused_at = -math.inf  # the token is good: a held connect was answered
        else:
            self.state, self._connected_at = State.CONNECTED, self._now
        if self._opener is not None:
            self._opener.settle()
            self._opener = None
        reconnect = advice_of(reply).get("reconnect")
        if reconnect == "handshake":
            error = StreamUnavailableError("the server wants another handshake")
            self._fail(error, Next.HANDSHAKE)
        elif reconnect == "none":
            self.stop(error_for("going on", BayeuxError(reply)))

    # Failures.

    def _refuse(self, what: str, refusal: BayeuxError, request: Send) -> None:
        error, step = error_for(what, refusal), what_next(refusal)
        if step is Next.RENEW:
            if self._now < self._refused_at + self._pace.renewed:
                step, refused = Next.STOP, error
                error = AuthenticationError(f"a renewed session is refused as well: {refused}")
                error.__cause__ = refused
            self._refused, self._refused_at = request.session, self._now
        self._fail(error, step)

    def _fail(self, error: SfPubSubError, step: Next | None = None) -> None:
        """Go on after a failure, as the answer wants it; after none, with another session."""
        if step is None:
            is_end = self._opener is not None or not error.retryable
        else:
            is_end = step is Next.STOP or (self._opener is not None and step is not Next.RENEW)
        if is_end:
            self.stop(error)
            return
        if self._failure is None and self._patience:
            self._tell_at = self._now + self._patience
        self._failure = error
        delay = self._delay(step)
        logger.info("%s; trying again in %.1f s", error, delay)
        if step is Next.RETRY and self.state is State.CONNECTED:
            self._next_at = self._now + delay
        else:
            self._start_anew(delay)

    def _delay(self, step: Next | None) -> float:
        lived = self._now >= self._connected_at + self._pace.backoff_initial
        if step is Next.RENEW or (step is Next.HANDSHAKE and lived):
            return self._interval
        doubled = self._pace.backoff_initial * 2 ** min(self._failures, 30)
        self._failures += 1
        ceiling = self._pace.busy if step is Next.WAIT else min(self._pace.backoff_max, doubled)
        return max(self._interval, ceiling * (0.5 + self._chance() / 2))

    def _tell_of_outage(self) -> None:
        self._tell_at = self._now + (self._patience or math.inf)
        error = StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._failure}"
        )
        error.__cause__ = self._failure
        if self._outage is None or self._outage not in self.items:  # one is enough, if nobody reads
            self.items.append(error)
            self._outage = error
        self.channels.give_up(error)

    def _start_anew(self, delay: float) -> None:
        """Give the session with the server up, and make another after the delay."""
        self._client_id, self._connected_at = "", math.inf
        self._cut()
        self.channels.lost()
        self.state, self._next_at = State.WAITING, self._now + delay

    def _cut(self) -> None:
        for request in self._flying.values():
            if not request.is_cut:
                request.is_cut = True
                self._out.append(Cut(request))


def _broken(what: str) -> RemoteProtocolError:
    # Proxies and restarting servers send such things: worth another try.
    return RemoteProtocolError(f"the server sent {what}", retryable=True)
