"""One stream of events: flow control, order, keepalives, and how it ends. Does not import grpc.

`EventStream` is the base class for the two RPCs that deliver events. `PlainStream` implements
Subscribe; ManagedSubscribe is in managed_stream. A stream is run by one thread, which reads
requests from the mailbox and yields replies; only that thread changes the stream's attributes.

Invariants: 0 <= pending <= max_outstanding; events are sent in the order of their positions, each
once; events and keepalives are sent only while requested events are pending; the position of a
keepalive is never beyond an event that is still to be sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from sfpubsub.emulator.faults.refusals import Dropped, Refused
from sfpubsub.emulator.grpc.pages import NO_EVENTS, Page, Pages
from sfpubsub.emulator.org.bus import Topic
from sfpubsub.emulator.org.counters import Count
from sfpubsub.emulator.org.mailbox import Arrival, Mailbox
from sfpubsub.emulator.org.world import World

Preset = Literal["LATEST", "EARLIEST", "CUSTOM"]

_SILENT = "first request"
"""The key under which streams without a request are registered with `Bells`; no topic has this
name.
"""


@dataclass(frozen=True)
class Fetch:
    """A FetchRequest, decoded; `preset` is None if the request contains a number that the enum
    ReplayPreset does not define.
    """

    topic: str
    preset: Preset | None
    replay_id: bytes
    num_requested: int


@dataclass(frozen=True)
class CommitAnswer:
    """A CommitReplayResponse. `error` is empty on success; `received_at` is in seconds since the
    epoch.
    """

    request_id: str
    replay_id: bytes
    error: str
    received_at: float


@dataclass(frozen=True)
class Reply:
    """A FetchResponse or ManagedFetchResponse; a field that is None is omitted."""

    page: Page = NO_EVENTS
    latest: bytes | None = None
    pending: int | None = None
    answer: CommitAnswer | None = None


R = TypeVar("R")


class EventStream(ABC, Generic[R]):
    """One Subscribe or ManagedSubscribe call, from its first request to its end.

    Args:
        world: The emulator's state.
        mailbox: Receives the requests of this call.
        token: The access token of the call.
        pages: Supplies the events.
    """

    rpc: str

    def __init__(self, world: World, mailbox: Mailbox[R], token: str, pages: Pages) -> None:
        self.world = world
        self.mailbox = mailbox
        self._token = token
        self._pages = pages
        self.pending = 0
        self.position = 0
        self.responses = 0
        self.target = ""
        self.topic: Topic
        self.count: Count
        self._last_sent = 0.0  # time of the last reply, from which keepalives are timed
        self._idle_since = 0.0  # time of the last reply that counts for the 60 s idle rule
        self._moves = 0
        self._username = ""  # of the token; determines which change events are delivered
        self._activates_at: float | None = None  # set while a fault delays the start
        # Hold events until there are this many, or until this time.
        self._merge: tuple[int, float] | None = None

    def run(self) -> Iterator[Reply]:
        """Yield replies until the call ends.

        Raises:
            Refused: The service ends the call.
            Dropped: A fault ends the call, `Positions.reset` or `Positions.move` was called, or a
                request cannot be parsed.
        """
        arrivals, half_closed = self._first()
        if not arrivals:
            return
        self._last_sent = self._idle_since = self.world.clock.now()
        self._moves = self.world.bus.moves
        user = self.world.sessions.user_of(self._token) or ""
        self._username = self.world.accounts.holder(user).username
        self.open(arrivals[0])
        keys = self.keys()
        for key in keys:
            self.world.bus.bells.listen(key, self.mailbox.wake)
        self.world.streams.add(self, self._last_sent)
        try:
            for arrival in arrivals[1:]:
                self.accept(arrival)
            yield from self._serve(half_closed)
        finally:
            self.world.streams.remove(self)
            for key in keys:
                self.world.bus.bells.forget(key, self.mailbox.wake)

    # Overridden by the two kinds of streams.

    @abstractmethod
    def open(self, arrival: Arrival[R]) -> None:
        """Handle the first request: set the attributes `topic`, `target`, `count` and `position`,
        and add the requested events to `pending`.
        """

    @abstractmethod
    def accept(self, arrival: Arrival[R]) -> None:
        """Handle any request after a stream's first one: add the number of requested events to
        `pending`.
        """

    def keys(self) -> list[str]:
        """Return the keys under which this stream is registered with `Bells`, which wakes it."""
        return [self.topic.name]

    def check(self, now: float) -> None:
        """If the stream must end at the time *now*, raise the error that ends it."""

    def answer(self, now: float, half_closed: bool) -> Reply | None:
        """Return a commit response if one is due, otherwise None. Once the client has sent its last
        request (*half_closed*), all commit responses are due.
        """
        return None

    def deadline(self) -> float | None:
        """Return the time at which to call `check` or `answer` next, in seconds since the epoch;
        None if there is no such time.
        """
        return None

    def shown(self, positions: Sequence[int], end: int) -> None:
        """Record what a reply sends: the positions of its events, and *end*, the stream's new
        position.
        """

    # Shared by both kinds.

    def ask(self, num_requested: int) -> None:
        """Add *num_requested* to `pending`, the number of requested events that have not been sent
        yet. The excess above `Settings.max_outstanding` is discarded without an error.
        """
        limit = self.world.settings.max_outstanding
        self.pending = min(limit, self.pending + num_requested)

    def _first(self) -> tuple[list[Arrival[R]], bool]:
        """Wait for the call's first requests. Return them as a list, and whether the client has
        sent its last request. The list is empty if the stream must end.
        """
        clock, bells, sessions = self.world.clock, self.world.bus.bells, self.world.sessions
        patience = self.world.settings.first_request_s
        due = clock.now() + patience
        bells.listen(_SILENT, self.mailbox.wake)  # so that a jump of the clock wakes this stream
        try:
            while True:
                arrivals, half_closed = self.mailbox.collect()
                if arrivals or half_closed or self.mailbox.gone:
                    return arrivals, half_closed
                if sessions.has_expired(self._token):
                    self.world.faults.met(sessions.ended_by(self._token))
                    raise Refused("service.auth.error")
                if clock.now() >= due:
                    self._close_idle(patience)
                    return [], False
                expiry = sessions.expires_at(self._token)
                self.mailbox.wait(due if expiry is None else min(due, expiry))
        finally:
            bells.forget(_SILENT, self.mailbox.wake)

    def _serve(self, half_closed: bool) -> Iterator[Reply]:
        asked = True  # requests have come since the last delivery
        while not self.mailbox.gone:
            self._break()
            now = self.world.clock.now()
            self.check(now)
            reply = self.answer(now, half_closed)
            # A half-close may come together with the request before it, which is still served.
            if reply is None and (asked or not half_closed):
                reply, asked = self.deliver(now), False
            if reply is not None:
                if reply.answer is None or reply.page.positions:
                    self._idle_since = now
                self._last_sent = now
                self.responses += 1
                yield reply
                self._prepare(reply)
            else:
                if half_closed:  # `answer` has nothing more to send
                    return
                if self._idle_is_over(now):
                    return
                self.mailbox.wait(self._next_deadline())
            arrivals, ended = self.mailbox.collect()
            half_closed = half_closed or ended
            asked = asked or bool(arrivals)
            for arrival in arrivals:
                self.accept(arrival)

    def start_latest(self, now: float) -> int:
        """Return the position after which a stream with the preset LATEST starts: the org's newest
        position. A fault can delay the start.
        """
        fault = self.world.faults.take("activate_late", self.rpc, self.target)
        if fault:
            self._activates_at = now + fault.params["seconds"]
        return self.world.bus.tip()

    def deliver(self, now: float) -> Reply | None:
        """Return a reply with the next events, or a keepalive if one is due. Return None if there
        is nothing to send, or if no requested events are pending.
        """
        if self.pending == 0 or not self._is_active(now):
            return None
        settings, bus = self.world.settings, self.world.bus
        due = now >= self._last_sent + settings.keepalive_s
        if due:
            bus.freshen_tip()
        limit = min(self.pending, settings.events_per_response)
        page = self._page(limit)
        if bus.moves != self._moves:  # the bus has changed since the read; `_break` ends the stream
            return None
        if not page.positions:
            self._merge = None  # the held events have expired
            return self._keepalive(now, page) if due else None
        count = self._scripted(len(page.positions), limit, now)
        if not count:
            return None
        if count < len(page.positions):
            page = self._page(count)
            if not page.positions:  # they have expired in the meantime
                return None
        self.pending -= len(page.positions)
        self.count.sent(self.position, page.positions)
        bus.counters.usage.delivered(now, page.schemas)
        return self._reply(page, page.end)

    def _page(self, limit: int) -> Page:
        """Return a page with the next events that the stream's user may see, at most *limit*."""
        hidden = self.world.delivery.hidden(self._username, self.topic)
        if hidden is None:
            return self._pages.after(self.topic, self.position, limit)
        return self._pages.without(hidden, self.topic, self.position, limit)

    def _prepare(self, reply: Reply) -> None:
        """Build the next page while the client processes the page of *reply*, assuming that the
        client will request the same number of events again.
        """
        if reply.page.positions and not self.pending and not self.mailbox.gone:
            limit = min(len(reply.page.positions), self.world.settings.events_per_response)
            self._pages.after(self.topic, self.position, limit)

    def _keepalive(self, now: float, page: Page) -> Reply | None:
        if self.world.faults.take("withhold_keepalive", self.rpc, self.target):
            self._last_sent = now
            return None
        self.count.keepalives += 1
        return self._reply(page, self._keepalive_tip(page.end))

    def _reply(self, page: Page, position: int) -> Reply:
        self.position = position
        self.shown(page.positions, position)
        return Reply(page, self.world.bus.ids.mint(position), self.pending)

    def _is_active(self, now: float) -> bool:
        if self._activates_at is None:
            return True
        if now < self._activates_at:
            return False
        newest = self.world.bus.position_at(self._activates_at)
        self.position = max(self.position, newest or 0)
        self._activates_at = None
        return True

    def _scripted(self, count: int, limit: int, now: float) -> int:
        """Return how many of *count* events to send now: all of them, unless a fault splits the
        response or holds the events back.
        """
        faults = self.world.faults
        if self._merge is None:
            fault = faults.take("merge_responses", self.rpc, self.target)
            if fault:
                self._merge = fault.params["events"], now + fault.params["within_s"]
        if self._merge is not None:
            wanted, due = self._merge
            if count < min(wanted, limit) and now < due:
                return 0
            self._merge = None
        fault = faults.take("split_response", self.rpc, self.target)
        return min(count, fault.params["events"]) if fault else count

    def _keepalive_tip(self, position: int) -> int:
        """Return the position to send in a keepalive: *position*, unless a fault changes it."""
        bus, faults = self.world.bus, self.world.faults
        if not bus.is_alive(self.position):  # the last position is no longer valid
            return position
        fault = faults.take("move_keepalive_tip", self.rpc, self.target)
        if fault is None:
            return position
        if not fault.params["advance"]:
            return self.position
        return (
            bus.add_empty_positions(self.topic, self.position, fault.params["advance"]) or position
        )

    def _break(self) -> None:
        faults, bus, sessions = self.world.faults, self.world.bus, self.world.sessions
        if bus.moves != self._moves:
            faults.met(bus.moved_by)
            raise Dropped("UNAVAILABLE")
        if sessions.has_expired(self._token):
            faults.met(sessions.ended_by(self._token))
            raise Refused("service.auth.error")
        if not bus.has(self.topic):  # a channel that was deleted
            raise Refused("topic.not.found", tenant=bus.tenant, topic=self.topic.name)
        fault = faults.take("drop_stream", self.rpc, self.target, responses=self.responses)
        if fault:
            raise Dropped(fault.params["status"])
        fault = faults.take("fail_stream", self.rpc, self.target, responses=self.responses)
        if fault:
            raise Refused(fault.params["error_code"], status=fault.params["status"] or None)

    def _idle_is_over(self, now: float) -> bool:
        patience = self.world.settings.idle_close_s
        if self.pending or now < self._idle_since + patience:
            return False
        self._close_idle(patience)
        return True

    def _close_idle(self, seconds: float) -> None:
        """Raise Refused if `Settings.idle_close` is "error". Otherwise return, and the caller ends
        the stream normally.

        Args:
            seconds: The idle limit that was exceeded, in seconds; used in the message.
        """
        if self.world.settings.idle_close == "error":
            raise Refused("subscription.fetch.idle.timeout", seconds=f"{seconds:g}")

    def _next_deadline(self) -> float:
        settings = self.world.settings
        own = self.deadline()
        if self.pending and self._activates_at is not None:
            shared = self._activates_at
        elif self.pending and self._merge is not None:
            shared = self._merge[1]
        elif self.pending:
            shared = self._last_sent + settings.keepalive_s
        else:
            shared = self._idle_since + settings.idle_close_s
        expiry = self.world.sessions.expires_at(self._token)
        return min(due for due in (shared, own, expiry) if due is not None)


class PlainStream(EventStream[Fetch]):
    """One Subscribe call, for which the client keeps track of the position."""

    rpc = "Subscribe"

    def open(self, arrival: Arrival[Fetch]) -> None:
        """Handle the first request.

        Raises:
            Refused: The topic is unknown or cannot be subscribed to, no events are requested, or
                the position is not valid.
        """
        fetch = arrival.request
        self.topic = self.world.bus.topic(fetch.topic)
        if not self.topic.can_subscribe:
            raise Refused("subscription.topic.cannot.subscribe", topic=fetch.topic)
        self.target = self.topic.name
        self.count = self.world.bus.counters.of_topic(self.topic.name)
        self._ask(fetch.num_requested)
        self.position = self._start(fetch, arrival.at)

    def accept(self, arrival: Arrival[Fetch]) -> None:
        """Handle any request after a stream's first one. The request's preset and replay id are
        ignored.

        Raises:
            Refused: The request names another topic, or requests no events.
        """
        fetch = arrival.request
        if fetch.topic not in ("", self.topic.name):
            raise Refused(
                "subscription.fetch.topic.mismatch", topic=fetch.topic, expected=self.topic.name
            )
        self._ask(fetch.num_requested)

    def _ask(self, num_requested: int) -> None:
        if num_requested <= 0:
            raise Refused("subscription.fetch.requested.events.invalid")
        self.ask(num_requested)

    def _start(self, fetch: Fetch, now: float) -> int:
        bus = self.world.bus
        if fetch.preset == "LATEST":
            return self.start_latest(now)
        if fetch.preset == "EARLIEST":
            return 0
        if fetch.preset is None:
            raise Refused(
                "subscription.fetch.request.invalid",
                text="The replay preset is not LATEST, EARLIEST or CUSTOM.",
            )
        if not fetch.replay_id:
            raise Refused("subscription.fetch.replayid.validation.failed")
        position = bus.position(fetch.replay_id)
        if position is None:
            self.world.faults.met(bus.dead_by(bus.ids.read(fetch.replay_id)))
            raise Refused("subscription.fetch.replayid.corrupted")
        return position
