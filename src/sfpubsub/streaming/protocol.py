"""The state machine of one client's session with a Bayeux server. Makes all decisions, performs no
actions.

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
from itertools import count
from typing import Any

from sfpubsub import errors
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Answer, Call, Command, Cut, Lane, Message, Send, advice_of
from sfpubsub.streaming.failures import BayeuxError, Next, concerns_session, error_for, what_next
from sfpubsub.streaming.pace import Pace
from sfpubsub.streaming.subscriptions import Items, Subscriptions

logger = logging.getLogger("sfpubsub.streaming")


class State(enum.Enum):
    """The state of the session."""

    WAITING = "no session; waiting for the next attempt"
    OPENING = "a handshake or the first connect is in flight"
    CONNECTED = "polling, or paused because the queue is full"
    CLOSING = "the disconnect is in flight, or about to be sent"
    STOPPED = "over"


_ENDING = (State.CLOSING, State.STOPPED)


class StreamingProtocol:
    """The protocol state of one client.

    Args:
        pace: Timeouts and delays.
        dumps: Encodes JSON.
        chance: Returns a random number from 0 to 1, which determines half of each delay, so that
            many clients do not reconnect at the same time.
        connection_timeout: Seconds without a connection after which the application gets an error,
            repeated after each further period of this length; None or 0 for never.
        max_pending_count: No connect is sent while this many messages are pending; 0 or less for no
            limit.
        fallback: Where a channel continues if its position is refused; None to report an error.
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
        """The queue of messages and errors for the application, which removes them from
        the left.
        """
        self.max_pending_count = max_pending_count
        self._out: list[Command] = []
        self.channels: Subscriptions = Subscriptions(
            dumps, fallback, order or count(1), self.items, self._out
        )
        self._pace, self._dumps, self._chance = pace, dumps, chance
        self._now = 0.0  # time of the current input
        self._opener: Call | None = None
        # The session.
        self._ids = count(1)  # message ids
        self._client_id = ""  # empty while there is no session
        self._advice: dict[str, Any] = {}  # the server's advice; later values replace earlier ones
        self._flying: dict[Lane, Send] = {}  # the requests in flight
        self._connected_at = math.inf  # when this session was connected
        self._next_at = math.inf  # when the next handshake, or the next connect, may be sent
        self._close_by = math.inf
        self._refused: Any = None  # the last session that was refused, if any
        self._refused_at = -math.inf  # when that was; reset once a new session has worked
        # The current outage.
        self._patience = connection_timeout or math.inf
        self._trouble: errors.SfPubSubError | None = None  # the last failure of the current outage
        self._delays = 0  # delays since the last outage ended
        self._tell_at = math.inf  # when to report to the application
        self._told: errors.SfPubSubError | None = None  # the error that was reported last

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
            self.state, self._close_by = State.CLOSING, now + self._pace.close
            if not self._client_id:
                self.stop()

    def stop(self, error: errors.SfPubSubError | None = None) -> None:
        """Stop without a disconnect, and report *error* to the application if there is one."""
        self.state, self._close_by = State.STOPPED, math.inf
        self._cut()
        reason = error or errors.LocalProtocolError("the client was closed")
        if self._opener is not None:
            self._opener.settle(reason)
        elif error is not None:
            self.items.append(error)
        self.channels.give_up(reason)

    def landed(self, request: Send, outcome: Answer | errors.SfPubSubError, now: float) -> None:
        """Handle the outcome of a request: a response or an error."""
        self._now = now
        del self._flying[request.lane]
        if not isinstance(outcome, errors.SfPubSubError):
            self._answered(request, *outcome)
        elif not self._is_over_for(request):
            self._fail(outcome)
        if self.state is State.CLOSING and request.messages[0]["channel"] == bayeux.DISCONNECT:
            self.stop()

    def tick(self, now: float) -> list[Command]:
        """Return the commands to execute. Call it after an input, at `deadline`, and when the queue
        has room again.
        """
        self._now = now
        if self.state is State.CLOSING and now >= self._close_by:
            self.stop()
        if self.state not in _ENDING:
            if any(now >= due for due in self._due()):
                self._fail(errors.StreamUnavailableError("the server did not answer in time"))
            if now >= self._tell_at:
                self._tell_of_outage()
        if self.state is not State.STOPPED:
            self._advance()
        out = self._out.copy()
        self._out.clear()  # the list is shared with the channels
        return out

    @property
    def deadline(self) -> float:
        """When to call `tick`, on the same clock; infinite for never."""
        if self.state in _ENDING:
            return self._close_by
        next_at = self._next_at if self._may_advance() else math.inf
        return min(self._tell_at, next_at, *self._due())

    # Requests.

    def _due(self) -> list[float]:
        return [request.due for request in self._flying.values() if not request.is_cut]

    def _may_advance(self) -> bool:
        if self.state is State.WAITING:
            return not self._flying
        is_full = 0 < self.max_pending_count <= len(self.items)
        # Events that wait for a subscribe's response are in a queue without a limit.
        rests = is_full or self.channels.are_overtaken or Lane.POLL in self._flying
        return self.state is State.CONNECTED and not rests

    def _advance(self) -> None:
        """Send the requests that can be sent now."""
        if self._may_advance() and self._now >= self._next_at:
            if self.state is State.CONNECTED:
                self._connect(is_first=False)
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
        self.state = State.OPENING
        message = self._message(
            bayeux.HANDSHAKE,
            version="1.0",
            minimumVersion="1.0",
            supportedConnectionTypes=["long-polling"],
            ext={"replay": True},
        )
        self._send(Lane.ASK, [message], before=self._pace.sign_in)

    def _connect(self, *, is_first: bool) -> None:
        message = self._message(bayeux.CONNECT, connectionType="long-polling")
        if is_first or self._is_shared:
            message["advice"] = {"timeout": 0}  # asks the server not to hold it
        advised = self._advice.get("timeout")
        held = self._pace.poll if advised is None else advised * self._pace.poll_factor
        self._send(Lane.POLL, [message], held=0.0 if is_first else held)

    def _send(
        self, lane: Lane, messages: Sequence[Message], *, held: float = 0.0, before: float = 0.0
    ) -> None:
        """Send a request that the server may hold for *held* seconds; *before* is the time allowed
        for fetching a token.
        """
        timeout = max(held, self._pace.request)
        due = self._now + before + timeout
        request = Send(lane, messages, self._dumps(messages), timeout, due, self._refused)
        self._flying[lane] = request
        self._out.append(request)

    def _cut(self) -> None:
        """Cancel the requests in flight."""
        for request in self._flying.values():
            if not request.is_cut:
                request.is_cut = True
                self._out.append(Cut(request))

    @property
    def _is_shared(self) -> bool:
        """Whether the server sees several clients with the same cookies; it then does not hold
        connects.
        """
        return self._advice.get("multiple-clients") is True

    @property
    def _interval(self) -> float:
        """Seconds to wait before the next connect."""
        # Connects that are not held must not turn into a busy loop.
        least = self._pace.backoff_initial if self._is_shared else 0.0
        interval: float = self._advice.get("interval", 0.0)
        return max(interval, least)

    # Answers.

    def _is_over_for(self, request: Send) -> bool:
        """Return whether the outcome of a request no longer matters."""
        return request.is_cut or self.state not in (State.OPENING, State.CONNECTED)

    def _answered(
        self, request: Send, events: list[Message], replies: dict[tuple[str, str], Message]
    ) -> None:
        delays, was_shared = self._delays, self._is_shared
        for reply in replies.values():
            self._advice |= advice_of(reply)
        if self._is_shared and not was_shared:
            logger.warning(
                "the server sees several clients with the same cookie and does not hold polls"
            )
        # Handle replies first, so that a channel is active before the events that arrive with its
        # subscribe reply. A disconnect from the server comes before the replies, which belong to
        # the ended session.
        is_goodbye = any(channel == bayeux.DISCONNECT for channel, _ in replies)
        if is_goodbye and not self._is_over_for(request):
            error = errors.StreamUnavailableError("the server ended the session")
            self._fail(error, Next.HANDSHAKE)
        else:
            self._hear(request, replies)
        self.channels.arrived(events)
        is_well = self.state is State.CONNECTED and self.channels.are_complete
        if is_well and self._delays == delays:
            self._trouble, self._delays, self._tell_at = None, 0, math.inf

    def _hear(self, request: Send, replies: dict[tuple[str, str], Message]) -> None:
        for message in request.messages:
            if self._is_over_for(request):
                return  # perhaps because of the previous reply
            channel = message["channel"]
            reply = replies.get((channel, message["id"]), {})
            if "successful" not in reply:
                self._fail(bayeux.broken(f"no answer to {channel}"))
                continue
            is_about_channel = "subscription" in message
            refusal = None if reply["successful"] is True else BayeuxError(reply)
            if refusal is not None and (not is_about_channel or concerns_session(refusal)):
                self._refuse(channel, refusal, request)
            elif is_about_channel:
                self.channels.heard(message, refusal)
            elif channel == bayeux.HANDSHAKE:
                self._shaken(reply)
            else:
                self._connected(reply, request)

    def _shaken(self, reply: Message) -> None:
        client_id, ext = reply.get("clientId"), reply.get("ext")
        if not isinstance(client_id, str) or not client_id:
            self._fail(bayeux.broken("a handshake without a client id"))
            return
        self._client_id = client_id
        self.channels.has_replay = isinstance(ext, dict) and bool(ext.get("replay"))
        self._connect(is_first=True)

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
        # Although the connect succeeded.
        if advice_of(reply).get("reconnect") in ("handshake", "none"):
            self._refuse("going on", BayeuxError(reply), request)

    # Failures.

    def _refuse(self, what: str, refusal: BayeuxError, request: Send) -> None:
        error, step = error_for(what, refusal), what_next(refusal)
        if step is Next.RENEW:
            if self._now < self._refused_at + self._pace.renewed:
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
            self._tell_at = self._now + self._patience
        self._trouble = error
        delay = self._interval
        lived = self._now >= self._connected_at + self._pace.backoff_initial
        if not (step is Next.RENEW or (step is Next.HANDSHAKE and lived)):
            delay = max(delay, self._delay(is_busy=step in (Next.BUSY, Next.LIMIT)))
        logger.info("%s; trying again in %.1f s", error, delay)
        self._next_at = self._now + delay
        if step is not Next.RETRY or self.state is not State.CONNECTED:  # give up the session
            self.state, self._client_id, self._connected_at = State.WAITING, "", math.inf
            self._cut()
            self.channels.lost()

    def _delay(self, *, is_busy: bool) -> float:
        """Return the next delay: its upper bound is doubled each time, and higher for a busy
        server.
        """
        doubled = self._pace.backoff_initial * 2 ** min(self._delays, 30)
        self._delays += 1
        ceiling = self._pace.busy if is_busy else min(self._pace.backoff_max, doubled)
        return ceiling * (0.5 + self._chance() / 2)

    def _tell_of_outage(self) -> None:
        self._tell_at = self._now + self._patience
        error = errors.StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._trouble}"
        )
        error.__cause__ = self._trouble
        # One is enough if nobody receives messages.
        if self._told is None or self._told not in self.items:
            self.items.append(error)
            self._told = error
        self.channels.give_up(error)
