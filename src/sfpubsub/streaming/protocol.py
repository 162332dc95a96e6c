"""One client's session with a Bayeux server: decides everything, does nothing.

After each input, `tick` says what is to be done. There is no I/O, clock or thread here. Not
thread-safe; the driver serialises.

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
from itertools import count
from typing import Any

from sfpubsub.errors import (
    AuthenticationError,
    LocalProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import (
    Call,
    Command,
    Lane,
    Message,
    Send,
    advice_of,
    broken,
    sorted_out,
)
from sfpubsub.streaming.failures import BayeuxError, Next, concerns_session, error_for, what_next
from sfpubsub.streaming.outbox import Outbox
from sfpubsub.streaming.pace import Pace, Trouble
from sfpubsub.streaming.subscriptions import Items, Subscriptions

logger = logging.getLogger("sfpubsub.streaming")


class State(enum.Enum):
    """Of the session."""

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
        self._outbox = Outbox(pace, dumps, self._out)
        self._trouble = Trouble(pace, chance, connection_timeout)
        self._pace = pace
        self._opener: Call | None = None
        self._now = 0.0  # of the input that is being taken
        self._connected_at = math.inf  # when this session was
        self._next_at = math.inf  # when the next handshake, or the next connect, may be sent
        self._close_by = math.inf
        self._refused_at = -math.inf  # when a token was; set back once a new one was of use
        self._outage: SfPubSubError | None = None  # what the application was told last

    # Inputs. The application's other ones are those of `channels`.

    def open(self, call: Call, now: float) -> None:
        """Begin; the call is settled when the first connect was answered."""
        self._opener, self._next_at = call, now

    def close(self, now: float) -> None:
        """Say goodbye to the server, then stop."""
        if self.state not in (State.CLOSING, State.STOPPED):
            self.state, self._close_by = State.CLOSING, now + self._pace.close
            if not self._outbox.client_id:
                self.stop()

    def stop(self, error: SfPubSubError | None = None) -> None:
        """Stop without a goodbye, and tell the application why if there is an error."""
        self.state = State.STOPPED
        self._outbox.cut()
        self._trouble.clear()
        reason = error or LocalProtocolError("the client was closed")
        if self._opener is not None:
            self._opener.settle(reason)
        elif error is not None:
            self.items.append(error)
        self.channels.give_up(reason)

    def landed(self, request: Send, outcome: Sequence[Any] | SfPubSubError, now: float) -> None:
        """Take the messages of an answer, or the error that came instead."""
        self._now = now
        del self._outbox.flying[request.lane]
        found = outcome if isinstance(outcome, SfPubSubError) else sorted_out(outcome)
        if not isinstance(found, SfPubSubError):
            self._answered(request, *found)
        elif not self._is_over_for(request):
            self._fail(found)
        if self.state is State.CLOSING and request.asked[0][0]["channel"] == bayeux.DISCONNECT:
            self.stop()

    def tick(self, now: float) -> list[Command]:
        """Return what is to be done: after an input, at `deadline`, when there is room again."""
        self._now = now
        if self.state is State.CLOSING and now >= self._close_by:
            self.stop()
        if self.state not in (State.CLOSING, State.STOPPED):
            if any(now >= due for due in self._outbox.due):
                self._fail(StreamUnavailableError("the server did not answer in time"))
            if now >= self._trouble.tell_at:
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
        times = [self._trouble.tell_at, *self._outbox.due]
        if self._may_go_on():
            times.append(self._next_at)
        return min(times)

    # Requests.

    def _may_go_on(self) -> bool:
        if self.state is State.WAITING:
            return not self._outbox.flying
        is_full = 0 < self.max_pending_count <= len(self.items)
        # What waits for a subscribe's answer is in no queue that has a bound.
        rests = is_full or self.channels.are_overtaken or Lane.POLL in self._outbox.flying
        return self.state is State.CONNECTED and not rests

    def _go_on(self) -> None:
        """Send what can be sent now."""
        outbox = self._outbox
        if self._may_go_on() and self._now >= self._next_at:
            if self.state is State.CONNECTED:
                outbox.connect(self._now, is_first=False)
            else:
                self.state = State.OPENING
                outbox.handshake(self._now)
        if outbox.client_id and Lane.ASK not in outbox.flying:
            if self.state is State.CONNECTED:
                if asked := self.channels.requests(outbox.message):
                    outbox.send(Lane.ASK, asked, self._now)
            elif self.state is State.CLOSING:
                goodbye = outbox.message(bayeux.DISCONNECT)
                outbox.send(Lane.ASK, [(goodbye, None)], self._now)
                outbox.client_id = ""

    def _is_over_for(self, request: Send) -> bool:
        """Whether nobody cares any more how a request fares."""
        return request.is_cut or self.state not in (State.OPENING, State.CONNECTED)

    # Answers.

    def _answered(
        self, request: Send, events: list[Message], replies: dict[tuple[str, str], Message]
    ) -> None:
        failures = self._trouble.count
        for reply in replies.values():
            self._outbox.advice |= advice_of(reply)
        # Replies first, so that the events beside a subscribe's are those of an active channel. A
        # goodbye goes before them: they are about a session that is over.
        is_goodbye = any(channel == bayeux.DISCONNECT for channel, _ in replies)
        if is_goodbye and not self._is_over_for(request):
            self._fail(StreamUnavailableError("the server said goodbye"), Next.HANDSHAKE)
        else:
            self._hear(request, replies)
        self.channels.arrived(events)
        is_well = self.state is State.CONNECTED and self.channels.are_complete
        if is_well and self._trouble.count == failures:
            self._trouble.clear()

    def _hear(self, request: Send, replies: dict[tuple[str, str], Message]) -> None:
        for message, about in request.asked:
            if self._is_over_for(request):
                return  # perhaps because of the reply before
            channel = message["channel"]
            reply = replies.get((channel, message["id"]), {})
            if "successful" not in reply:
                self._fail(broken(f"no answer to {channel}"))
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
            self._fail(broken("a handshake without a client id"))
            return
        self._outbox.client_id = client_id
        self.channels.has_replay = isinstance(ext, dict) and bool(ext.get("replay"))
        self._outbox.connect(self._now, is_first=True)

    def _connected(self, reply: Message) -> None:
        self._next_at = self._now + self._outbox.interval
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
            self._outbox.refused, self._refused_at = request.session, self._now
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
        self._trouble.note(error, self._now)
        delay = self._outbox.interval
        lived = self._now >= self._connected_at + self._pace.backoff_initial
        if not (step is Next.RENEW or (step is Next.HANDSHAKE and lived)):
            delay = max(delay, self._trouble.delay(is_busy=step is Next.WAIT))
        logger.info("%s; trying again in %.1f s", error, delay)
        if step is Next.RETRY and self.state is State.CONNECTED:
            self._next_at = self._now + delay
        else:  # the session is given up
            self._outbox.client_id, self._connected_at = "", math.inf
            self._outbox.cut()
            self.channels.lost()
            self.state, self._next_at = State.WAITING, self._now + delay

    def _tell_of_outage(self) -> None:
        error = self._trouble.told(self._now)
        if self._outage is None or self._outage not in self.items:  # one is enough, if nobody reads
            self.items.append(error)
            self._outage = error
        self.channels.give_up(error)
