"""The state machine of one client's session with a Bayeux server. It makes all decisions and
performs no actions.

`tick` handles an input and returns the commands to execute. There is no I/O, clock or thread here.
Not thread-safe; the driver serialises all calls.

A session cannot be trusted once a response may have been lost: the server forgets events after
sending them, so continuing in the same session could skip some. In that case a new session is
opened, and every channel is subscribed again after its last queued event, so that lost events are
sent again. A channel without a known replay id cannot resume; that is reported as a `Gap`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

from sfpubsub import errors
from sfpubsub.backoff import Backoff
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Answer, Call, Command, Cut, Lane, Message, Send
from sfpubsub.streaming.failures import BayeuxError, Next, concerns_session, error_for, what_next
from sfpubsub.streaming.subscriptions import Subscriptions

logger = logging.getLogger("sfpubsub.streaming")

# Held connects in a row, each in a new session, that may be answered with something unreadable.
# After that, the client stops: a new session resumes at the same position, so the same response
# would come for ever. A proxy's error page rarely comes three times between good handshakes.
_UNREADABLE = 3


@dataclass(frozen=True)
class Pace:
    """Timeouts and delays of a Streaming API client, in seconds. Tests use shorter ones."""

    request: float = 20.0
    """Timeout of every request except a held connect, including its response; responses usually
    take less than a second.
    """
    sign_in: float = 60.0
    """Time allowed for fetching a session before a handshake; most sign-in flows take a few
    seconds.
    """
    held: float = 110.0
    """How long the server may hold a connect before it has advised a timeout; Salesforce advises
    110 s.
    """
    held_factor: float = 1.2
    """The timeout of a held connect is the time that the server may hold it times this factor, but
    at least `request`.
    """
    close: float = 5.0
    """How long closing waits for each thread of the client; one of them sends the disconnect."""
    backoff_initial: float = 1.0
    """Upper bound of the first random delay after a failure, and the least interval between
    connects that are not held. A session that lasted less than this is replaced after a delay.
    """
    backoff_max: float = 60.0
    """Limit of the upper bound, which doubles with each failure."""
    busy: float = 120.0
    """Upper bound of the delay after the server was too busy or a limit of the org was reached; the
    service asks to wait for "a few minutes".
    """
    reorder: float = 1.0
    """How long events wait for the response to another request that was in flight when they
    arrived, because it may carry earlier events. With 0, they are delivered in order of arrival.
    """
    renewed: float = 60.0
    """If a session is refused and its replacement is also refused within this time, before a held
    connect was answered, the client stops, because too many sign-ins lock a user out.
    """


@dataclass(eq=False, repr=False)
class StreamingProtocol:
    """The state machine of a client. It runs from `open` until `over` is true."""

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
    further period of this length. With None or 0, it never does.
    """
    over: bool = True
    """Whether the protocol has stopped, or has not been opened yet."""
    # Private; not for the constructor.
    _now: float = 0.0  # time of the current input
    _opener: Call = field(default_factory=Call)  # done when the client has connected once
    # The session.
    _ids: Iterator[int] = field(default_factory=lambda: count(1))  # message ids
    _client_id: str = ""  # empty while there is no session
    _in_flight: dict[Lane, Send] = field(default_factory=dict)  # the requests in flight
    _connected_at: float | None = None  # when the first connect of this session was answered
    _next_at: float = inf  # when the next handshake or connect may be sent
    _refused: Any = None  # the last session that was refused, if any
    _refused_at: float = -inf  # when that was; reset once a new session has worked
    _unreadable: int = 0  # held connects in a row whose response could not be read
    # The current outage.
    _trouble: errors.SfPubSubError | None = None  # the last failure
    _report_at: float = inf  # when to report to the application

    def __post_init__(self) -> None:
        # The server's advice; later values replace earlier ones.
        self._advice: dict[str, Any] = {"interval": 0.0, "timeout": self.pace.held}
        self.channels.reorder = self.pace.reorder
        self._backoff = Backoff(self.pace.backoff_initial, self.pace.backoff_max)
        self._patience = self.connection_timeout or inf

    # Inputs, to be passed to `tick`. Inputs that concern channels are methods of `channels`.

    def open(self, call: Call) -> None:
        """Start connecting. *call* is settled when the first connect request succeeds, or when the
        client cannot connect.
        """
        self._opener, self.over, self._next_at = call, False, -inf

    def abandon(self, call: Call) -> None:
        """Give up *call*, because its caller is no longer waiting.

        If *call* is opening the client, the client is closed.
        """
        if call is self._opener:
            self.close()
        else:
            self.channels.give_up(errors.LocalProtocolError("the caller was interrupted"), call)

    def close(self) -> None:
        """Stop; if there is a session, send a disconnect request without awaiting its outcome."""
        self.stop()
        if self._client_id:
            self._send(Lane.ASK, [self._message(bayeux.DISCONNECT)])
            self._client_id = ""
            self._in_flight.clear()

    def stop(self, error: errors.SfPubSubError | None = None) -> None:
        """Stop without sending a disconnect request. If *error* is given, report it to the
        application.
        """
        self.over, self._connected_at = True, None
        self.channels.release()
        self._next_at = self._report_at = inf
        self._cut()
        reason = error or errors.LocalProtocolError("the client was closed")
        if not self._opener.is_done:
            self._opener.settle(reason)
        elif error is not None:
            self.channels.pending.fail(error)
        self.channels.give_up(reason)

    def handle_outcome(self, request: Send, outcome: Answer | errors.SfPubSubError) -> None:
        """Handle the outcome of a request: a response or an error."""
        del self._in_flight[request.lane]
        events, replies = ([], {}) if isinstance(outcome, errors.SfPubSubError) else outcome
        for advice in map(bayeux.advice_of, replies.values()):
            if advice.get("timeout") == 0 and self._advice["timeout"]:
                logger.warning(
                    "the server answers connect requests immediately, so the client sends them at "
                    "short intervals: the server may be mistaking several clients for one browser"
                )
            self._advice |= advice
        # Replies are handled first, so that a channel is active before the events that arrive with
        # its subscribe reply.
        if not request.is_cut:
            if isinstance(outcome, errors.SfPubSubError):
                self._fail(self._judged(request, outcome))
            elif any(channel == bayeux.DISCONNECT for channel, _ in replies):
                # The replies belong to the ended session.
                error = errors.StreamUnavailableError("the server ended the session")
                self._fail(error, Next.HANDSHAKE)
            else:
                self._handle(request, replies)
        is_answered = not isinstance(outcome, errors.SfPubSubError)
        others = self._in_flight.values()
        self.channels.arrived(request, events, others, self._now, is_answered=is_answered)

    def tick(self, now: float, input_: Callable[[], None] = lambda: None) -> list[Command]:
        """Handle an input or the passage of time, and return the commands to execute.

        Call this without *input_* at `deadline`, and when the queue has room again.

        Args:
            now: Time on a monotonic clock, in seconds.
            input_: Calls one of the input methods of this class or of `channels`; by default, none.

        Raises:
            LocalProtocolError: The input is not allowed; nothing has changed.
        """
        self._now = now
        input_()
        if now >= self._due():
            self._fail(errors.StreamUnavailableError("the server did not answer in time"))
        if now >= self.channels.release_at:
            self.channels.release()
        if now >= self._report_at:
            self._report_outage()
        self._send_requests()
        out, self.channels.out = self.channels.out, []
        return out

    @property
    def deadline(self) -> float:
        """The value of *now* at which to call `tick` next; infinite if no call is needed."""
        times = (self._report_at, self.channels.release_at, self._advance_at(), self._due())
        return min(times)

    # Requests.

    def _due(self) -> float:
        """When the next request in flight times out; infinite if none is in flight."""
        return min((request.due for request in self._in_flight.values()), default=inf)

    def _advance_at(self) -> float:
        """When to send the next handshake or connect request; infinite while none can be sent."""
        if self._connected_at is None:
            waits = bool(self._in_flight)
        else:
            waits = Lane.POLL in self._in_flight or self.channels.are_full
        return inf if waits else self._next_at

    def _send_requests(self) -> None:
        """Send the requests that can be sent now."""
        if self._now >= self._advance_at():
            if self._client_id:
                self._connect()
            else:
                self._handshake()
        if self._connected_at is None or Lane.ASK in self._in_flight:
            return
        if asked := self.channels.requests(self._message, self._in_flight):
            self._send(Lane.ASK, asked)

    def _message(self, channel: str, **fields: Any) -> Message:
        """Return a message, with the client id of the session if there is one."""
        session = {"clientId": self._client_id} if self._client_id else {}
        return {"channel": channel, "id": str(next(self._ids)), **session, **fields}

    def _handshake(self) -> None:
        offer = {"supportedConnectionTypes": ["long-polling"], "ext": {"replay": True}}
        message = self._message(bayeux.HANDSHAKE, version="1.0", minimumVersion="1.0", **offer)
        self._send(Lane.ASK, [message])

    def _connect(self) -> None:
        """Send a connect request.

        The server may hold the request until there is an event, unless it is the first connect
        request of the session.
        """
        message = self._message(bayeux.CONNECT, connectionType="long-polling")
        held = 0.0 if self._connected_at is None else self._advice["timeout"]
        if not held:
            message["advice"] = {"timeout": 0}  # asks the server not to hold it
        self._send(Lane.POLL, [message], held)

    def _send(self, lane: Lane, messages: Sequence[Message], held: float = 0.0) -> None:
        """Send a request that the server may hold for up to *held* seconds."""
        timeout = max(held * self.pace.held_factor, self.pace.request)
        # A token may have to be fetched before a handshake.
        before = 0.0 if self._client_id else self.pace.sign_in
        due = self._now + before + timeout
        body = self.channels.dumps(messages)
        self._in_flight[lane] = request = Send(lane, messages, body, timeout, due, self._refused)
        self.channels.sent(request)
        self.channels.out.append(request)

    def _cut(self) -> None:
        """Cancel the requests in flight."""
        for request in self._in_flight.values():
            if not request.is_cut:
                request.is_cut, request.due = True, inf
                self.channels.out.append(Cut(request))

    def _interval(self) -> float:
        """Return how many seconds to wait before the next connect request."""
        # Without this, connects that are not held would become a busy loop.
        least = 0.0 if self._advice["timeout"] else self.pace.backoff_initial
        return max(least, float(self._advice["interval"]))

    # Answers.

    def _handle(self, request: Send, replies: dict[tuple[str, str], Message]) -> None:
        """Handle the replies to a request's messages, up to the first one that ends the session."""
        for message in request.messages:
            channel = message["channel"]
            reply = replies.get((channel, message["id"]), {})
            if "successful" not in reply:
                self._fail(bayeux.broken(f"no reply to {channel}"))
                return
            refusal = None if reply["successful"] is True else BayeuxError(reply)
            if "subscription" in message and (refusal is None or not concerns_session(refusal)):
                self.channels.replied(message, refusal)
            elif refusal is not None:
                self._refuse(channel, refusal, request)
                return
            elif channel == bayeux.HANDSHAKE:
                self._handshaken(reply)
            else:
                self._connected(reply, request)
        if self._connected_at is not None and self.channels.are_complete:  # the outage is over
            self._trouble, self._report_at = None, inf
            self._backoff.reset()

    def _handshaken(self, reply: Message) -> None:
        client_id = reply.get("clientId")
        if isinstance(client_id, str) and client_id:
            self._client_id = client_id
            self.channels.has_replay = bool(bayeux.part_of(reply, "ext", "replay"))
        else:
            self._fail(bayeux.broken("a handshake without a client id"))

    def _connected(self, reply: Message, request: Send) -> None:
        self._next_at = self._now + self._interval()
        if self._connected_at is None:
            self._connected_at = self._now
            self._opener.settle()
            logger.info("connected to the Streaming API")
        else:
            self._refused_at = -inf  # the token works: a held connect was answered
            self._unreadable = 0
        # A server can end the session although the connect succeeded.
        if bayeux.advice_of(reply).get("reconnect") in ("handshake", "none"):
            self._refuse("the next connect", BayeuxError(reply), request)

    # Failures.

    def _refuse(self, what: str, refusal: BayeuxError, request: Send) -> None:
        error, step = error_for(what, refusal), what_next(refusal)
        if what == bayeux.HANDSHAKE and isinstance(error, errors.SessionExpiredError):
            # Whatever the server advises, repeating the handshake with this token is useless.
            step = Next.RENEW
        if step is Next.RENEW:
            if self._now < self._refused_at + self.pace.renewed:
                step, cause = Next.STOP, error
                error = errors.AuthenticationError(f"a renewed session is refused as well: {cause}")
                error.__cause__ = cause
            self._refused, self._refused_at = request.session, self._now
        self._fail(error, step)

    def _judged(self, request: Send, error: errors.SfPubSubError) -> errors.SfPubSubError:
        """Return the failure of a request, as an error that stops the client if a response cannot
        be read again and again.
        """
        is_held = request.lane is Lane.POLL and self._connected_at is not None
        if not is_held or not isinstance(error, errors.RemoteProtocolError):
            return error
        self._unreadable += 1
        if self._unreadable < _UNREADABLE:
            return error
        final = errors.RemoteProtocolError(
            f"{error}, in {self._unreadable} sessions in a row: subscribe after the event that "
            f"cannot be read, and report it to Salesforce"
        )
        final.__cause__ = error
        return final

    def _fail(self, error: errors.SfPubSubError, step: Next | None = None) -> None:
        """Recover from a failure, or stop.

        The client stops if it cannot recover. While it is being opened, it recovers only by
        renewing the token.

        Args:
            error: The failure.
            step: How to recover. None opens a new session, or stops if *error* is not retryable.
        """
        if step is None and not error.retryable:
            step = Next.STOP
        if step is Next.STOP or (not self._opener.is_done and step is not Next.RENEW):
            self.stop(error)
            return
        if self._trouble is None:  # an outage starts
            self._report_at = self._now + self._patience
        self._trouble = error
        delay = self._interval()
        age = self._now - (self._connected_at or self._now)  # of the session, if there is one
        lived = age >= self.pace.backoff_initial
        if not (step is Next.RENEW or (step is Next.HANDSHAKE and lived)):
            jitter = 0.5 + self.chance() / 2
            is_busy = step in (Next.BUSY, Next.LIMIT)
            delay = max(delay, self.pace.busy * jitter if is_busy else self._backoff.next(jitter))
        logger.info("%s; trying again in %.1f s", error, delay)
        self._next_at = self._now + delay
        if step is not Next.RETRY or self._connected_at is None:  # give up the session
            self._client_id, self._connected_at = "", None
            self._cut()
            self.channels.lost()

    def _report_outage(self) -> None:
        self._report_at = self._now + self._patience
        error = errors.StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._trouble}"
        )
        error.__cause__ = self._trouble
        # At most one such error is queued.
        if errors.StreamUnavailableError not in map(type, self.channels.pending.errors):
            self.channels.pending.fail(error)
        self.channels.give_up(error)
