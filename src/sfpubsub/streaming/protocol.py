"""The state machine of one client's session with a Bayeux server. It makes all decisions and
performs no actions.

After each input, `tick` returns the commands to execute. There is no I/O, clock or thread here. Not
thread-safe; the driver serialises all calls.

A session cannot be trusted once a response may have been lost: the server forgets events after
sending them, so continuing in the same session could skip some. In that case a new session is
opened, and every channel is subscribed again after its last queued event, so that lost events are
sent again. A channel without a known replay id cannot resume; that is reported as a `Gap`.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sfpubsub import errors
from sfpubsub.protocol.backoff import Backoff
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Answer, Call, Command, Cut, Lane, Message, Send
from sfpubsub.streaming.failures import BayeuxError, Next, concerns_session, error_for, what_next
from sfpubsub.streaming.pace import Pace
from sfpubsub.streaming.subscriptions import Subscriptions

logger = logging.getLogger("sfpubsub.streaming")


class State(enum.Enum):
    """The state of the session."""

    CONNECTING = "waiting for the next attempt, or one is in flight"
    CONNECTED = "polling, or paused because the queue is full"
    CLOSING = "the disconnect is in flight, or about to be sent"
    STOPPED = "over"


_ENDING = (State.CLOSING, State.STOPPED)


@dataclass(eq=False, repr=False)
class StreamingProtocol:
    """The protocol state of one client."""

    channels: Subscriptions
    """The channels and the queue of messages."""
    pace: Pace
    """Timeouts and delays."""
    chance: Callable[[], float]
    """Returns a random number from 0 to 1, which determines half of each delay, so that many
    clients do not reconnect at the same time.
    """
    connection_timeout: float | None
    """Seconds without a connection after which the application gets an error, repeated after each
    further period of this length; None or 0 for never.
    """
    state: State = State.CONNECTING
    # Private; not for the constructor.
    _now: float = 0.0  # time of the current input
    _opener: Call | None = None
    # The session.
    _ids: Iterator[int] = field(default_factory=lambda: count(1))  # message ids
    _client_id: str = ""  # empty while there is no session
    _flying: dict[Lane, Send] = field(default_factory=dict)  # the requests in flight
    _connected_at: float = math.inf  # when this session was connected; infinite if it is not
    # When the next handshake or connect may be sent; while closing, when to stop anyway.
    _next_at: float = math.inf
    _refused: Any = None  # the last session that was refused, if any
    _refused_at: float = -math.inf  # when that was; reset once a new session has worked
    # The current outage.
    _trouble: errors.SfPubSubError | None = None  # the last failure
    _report_at: float = math.inf  # when to report to the application

    def __post_init__(self) -> None:
        # The server's advice; later values replace earlier ones.
        self._advice: dict[str, Any] = {"interval": 0.0, "timeout": self.pace.held}
        self._advice["multiple-clients"] = False
        self._backoff = Backoff(self.pace.backoff_initial, self.pace.backoff_max)
        self._patience = self.connection_timeout or math.inf

    # Inputs. Those about channels are methods of `channels`.

    def open(self, call: Call, now: float) -> None:
        """Start; the call is settled when the first connect is answered."""
        self._opener, self._next_at = call, now

    def abandon(self, call: Call, now: float) -> None:
        """Undo what *call* asked for, because nobody waits for it any more."""
        if call is self._opener:
            self.close(now)
        else:
            self.channels.give_up(errors.LocalProtocolError("the caller was interrupted"), call)

    def close(self, now: float) -> None:
        """Disconnect from the server, then stop."""
        if self.state not in _ENDING:
            self.state, self._next_at = State.CLOSING, now + self.pace.close
            if not self._client_id:
                self.stop()

    def stop(self, error: errors.SfPubSubError | None = None) -> None:
        """Stop without a disconnect, and report *error* to the application if there is one."""
        self.state, self._next_at = State.STOPPED, math.inf
        self._cut()
        reason = error or errors.LocalProtocolError("the client was closed")
        if self._opener is not None:
            self._opener.settle(reason)
        elif error is not None:
            self.channels.items.append(error)
        self.channels.give_up(reason)

    def landed(self, request: Send, outcome: Answer | errors.SfPubSubError, now: float) -> None:
        """Handle the outcome of a request: a response or an error."""
        self._now = now
        del self._flying[request.lane]
        events, replies = ([], {}) if isinstance(outcome, errors.SfPubSubError) else outcome
        for advice in map(bayeux.advice_of, replies.values()):
            if advice.get("multiple-clients") and not self._advice["multiple-clients"]:
                logger.warning("the server sees several clients with one cookie: it holds no polls")
            self._advice |= advice
        # Replies are handled first, so that a channel is active before the events that arrive with
        # its subscribe reply.
        if not request.is_cut and self.state not in _ENDING:
            if isinstance(outcome, errors.SfPubSubError):
                self._fail(outcome)
            elif any(channel == bayeux.DISCONNECT for channel, _ in replies):
                # The replies belong to the ended session.
                error = errors.StreamUnavailableError("the server ended the session")
                self._fail(error, Next.HANDSHAKE)
            else:
                self._handle(request, replies)
        self.channels.arrived(events)
        if self.state is State.CLOSING and request.messages[0]["channel"] == bayeux.DISCONNECT:
            self.stop()

    def tick(self, now: float) -> list[Command]:
        """Return the commands to execute. Call it after an input, at `deadline`, and when the queue
        has room again.
        """
        self._now = now
        if self.state is State.CLOSING and now >= self._next_at:
            self.stop()
        if self.state not in _ENDING:
            if any(now >= due for due in self._due()):
                self._fail(errors.StreamUnavailableError("the server did not answer in time"))
            if now >= self._report_at:
                self._report_outage()
        self._advance()
        out, self.channels.out = self.channels.out, []
        return out

    @property
    def deadline(self) -> float:
        """When to call `tick`, on the same clock; infinite for never."""
        if self.state in _ENDING:
            return self._next_at
        next_at = self._next_at if self._may_advance() else math.inf
        return min(self._report_at, next_at, *self._due())

    # Requests.

    def _due(self) -> list[float]:
        return [request.due for request in self._flying.values() if not request.is_cut]

    def _may_advance(self) -> bool:
        if self.state is State.CONNECTING:
            return not self._flying
        rests = Lane.POLL in self._flying or self.channels.are_full
        return self.state is State.CONNECTED and not rests

    def _advance(self) -> None:
        """Send the requests that can be sent now."""
        if self._may_advance() and self._now >= self._next_at:
            if self.state is State.CONNECTED:
                self._connect()
            else:
                self._handshake()
        if self._client_id and Lane.ASK not in self._flying:
            if self.state is State.CLOSING:
                self._send(Lane.ASK, [self._message(bayeux.DISCONNECT)])
                self._client_id = ""
            elif self.state is State.CONNECTED and (asked := self.channels.requests(self._message)):
                self._send(Lane.ASK, asked)

    def _message(self, channel: str, **fields: Any) -> Message:
        """Return a message of this session; without a session, it has no client id."""
        session = {"clientId": self._client_id} if self._client_id else {}
        return {"channel": channel, "id": str(next(self._ids)), **session, **fields}

    def _handshake(self) -> None:
        message = self._message(
            bayeux.HANDSHAKE,
            version="1.0",
            minimumVersion="1.0",
            supportedConnectionTypes=["long-polling"],
            ext={"replay": True},
        )
        self._send(Lane.ASK, [message])

    def _connect(self) -> None:
        """Send a connect, which the server may hold unless it is the first one of the session."""
        message = self._message(bayeux.CONNECT, connectionType="long-polling")
        held = self._advice["timeout"] if self.state is State.CONNECTED else 0.0
        if not held or self._advice["multiple-clients"]:
            message["advice"] = {"timeout": 0}  # asks the server not to hold it
        self._send(Lane.POLL, [message], held)

    def _send(self, lane: Lane, messages: Sequence[Message], held: float = 0.0) -> None:
        """Send a request that the server may hold for *held* seconds."""
        timeout = max(held * self.pace.held_factor, self.pace.request)
        # A token may have to be fetched before a handshake.
        before = 0.0 if self._client_id else self.pace.sign_in
        due = self._now + before + timeout
        body = self.channels.dumps(messages)
        self._flying[lane] = request = Send(lane, messages, body, timeout, due, self._refused)
        self.channels.out.append(request)

    def _cut(self) -> None:
        """Cancel the requests in flight."""
        for request in self._flying.values():
            if not request.is_cut:
                request.is_cut = True
                self.channels.out.append(Cut(request))

    @property
    def _interval(self) -> float:
        """Seconds to wait before the next connect."""
        # Connects that are not held must not turn into a busy loop.
        least = self.pace.backoff_initial if self._advice["multiple-clients"] else 0.0
        return max(least, float(self._advice["interval"]))

    # Answers.

    def _handle(self, request: Send, replies: dict[tuple[str, str], Message]) -> None:
        """Handle the replies to a request's messages, up to the first one that ends the session."""
        for message in request.messages:
            channel = message["channel"]
            reply = replies.get((channel, message["id"]), {})
            if "successful" not in reply:
                self._fail(bayeux.broken(f"no answer to {channel}"))
                return
            is_about_channel = "subscription" in message
            refusal = None if reply["successful"] is True else BayeuxError(reply)
            if refusal is not None and (not is_about_channel or concerns_session(refusal)):
                self._refuse(channel, refusal, request)
                return
            if is_about_channel:
                self.channels.replied(message, refusal)
            elif channel == bayeux.HANDSHAKE:
                self._handshaken(reply)
            else:
                self._connected(reply, request)
        if self.state is State.CONNECTED and self.channels.are_complete:  # no outage
            self._trouble, self._report_at = None, math.inf
            self._backoff.reset()

    def _handshaken(self, reply: Message) -> None:
        client_id = reply.get("clientId")
        if not isinstance(client_id, str) or not client_id:
            self._fail(bayeux.broken("a handshake without a client id"))
            return
        self._client_id = client_id
        self.channels.has_replay = bool(bayeux.part_of(reply, "ext", "replay"))
        self._connect()

    def _connected(self, reply: Message, request: Send) -> None:
        self._next_at = self._now + self._interval
        if self.state is State.CONNECTED:
            self._refused_at = -math.inf  # the token works: a held connect was answered
        else:
            self.state, self._connected_at = State.CONNECTED, self._now
            logger.info("connected to the Streaming API")
        if self._opener is not None:
            self._opener.settle()
            self._opener = None
        # A server can end the session although the connect succeeded.
        if bayeux.advice_of(reply).get("reconnect") in ("handshake", "none"):
            self._refuse("the next connect", BayeuxError(reply), request)

    # Failures.

    def _refuse(self, what: str, refusal: BayeuxError, request: Send) -> None:
        error, step = error_for(what, refusal), what_next(refusal)
        if step is Next.RENEW:
            if self._now < self._refused_at + self.pace.renewed:
                step, cause = Next.STOP, error
                error = errors.AuthenticationError(f"a renewed session is refused as well: {cause}")
                error.__cause__ = cause
            self._refused, self._refused_at = request.session, self._now
        self._fail(error, step)

    def _fail(self, error: errors.SfPubSubError, step: Next | None = None) -> None:
        """Recover from a failure: as the server advises, or else with a new session."""
        if step is None and not error.retryable:
            step = Next.STOP
        if step is Next.STOP or (self._opener is not None and step is not Next.RENEW):
            self.stop(error)
            return
        if self._trouble is None:  # an outage starts
            self._report_at = self._now + self._patience
        self._trouble = error
        delay = self._interval
        lived = self._now >= self._connected_at + self.pace.backoff_initial
        if not (step is Next.RENEW or (step is Next.HANDSHAKE and lived)):
            jitter = 0.5 + self.chance() / 2
            is_busy = step in (Next.BUSY, Next.LIMIT)
            delay = max(delay, self.pace.busy * jitter if is_busy else self._backoff.next(jitter))
        logger.info("%s; trying again in %.1f s", error, delay)
        self._next_at = self._now + delay
        if step is not Next.RETRY or self.state is not State.CONNECTED:  # give up the session
            self.state, self._client_id, self._connected_at = State.CONNECTING, "", math.inf
            self._cut()
            self.channels.lost()

    def _report_outage(self) -> None:
        self._report_at = self._now + self._patience
        error = errors.StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._trouble}"
        )
        error.__cause__ = self._trouble
        # One is enough if nobody receives messages. A copy, because another thread removes items.
        if errors.StreamUnavailableError not in map(type, self.channels.items.copy()):
            self.channels.items.append(error)
        self.channels.give_up(error)
