"""The CometD sessions of clients, with their subscriptions.

A session stores its position in each channel to which the client is subscribed. It exists while a
connect message is pending, and for some time after the last response. An event that was put into a
response is not sent again, even if the client did not receive the response. To get the event, the
client must subscribe again from an earlier replay id, as on the real service.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sfpubsub.emulator.org.bus import Bus, Topic
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.cometd.channels import Channels
from sfpubsub.emulator.org.cometd.texts import Refusal
from sfpubsub.emulator.org.delivery import Delivery
from sfpubsub.emulator.org.mailbox import Mailbox
from sfpubsub.emulator.org.settings import Settings

BELL = "cometd"
"""The key under which all sessions are registered with `Bells`, so that `ring_all` also wakes
sessions without subscriptions.
"""


@dataclass
class Subscription:
    """The subscription of a session to one channel.

    Attributes:
        channel: The channel as the client named it, with its filter.
        topic: The topic or log that contains the channel's events.
        position: The position up to which `CometdSessions.collect` has read the channel.
        conditions: The filter, as returned by `Channels.conditions`.
    """

    channel: str
    topic: Topic
    position: int
    conditions: Sequence[tuple[str, str]]


@dataclass(eq=False)
class Session:
    """A client's session. `lock` guards the other attributes.

    `seen_at` is the time of the client's last request or response, in seconds since the epoch.
    """

    client_id: str
    cookie: str
    token: str
    user_id: str
    username: str
    seen_at: float
    mail: Mailbox[None] | None = None
    """The mailbox of the newest connect message; used to wake the thread that holds it."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """By channel, as the client named it."""
    connects: int = 0
    """Number of connect messages received. A pending one that is not the newest must end."""
    pending: int = 0
    """Number of pending connect messages."""
    is_gone: bool = False

    def wake(self) -> None:
        """Wake the thread that holds the session's newest connect message, so that it checks for
        changes. Do nothing if no connect message is held.
        """
        mail = self.mail
        if mail is not None:
            mail.wake()


class CometdSessions:
    """The CometD sessions of one org. Thread-safe.

    Args:
        bus: The source of events.
        channels: Converts events to the format of this API.
        clock: The org's clock.
        settings: Timeouts and limits.
        delivery: Tells which change events are withheld from a user.
    """

    def __init__(
        self,
        bus: Bus,
        channels: Channels,
        clock: Clock,
        settings: Settings,
        delivery: Delivery,
    ) -> None:
        self._bus = bus
        self._channels = channels
        self._clock = clock
        self._settings = settings
        self._delivery = delivery
        self._lock = threading.Lock()  # guards the two fields below
        self._sessions: dict[str, Session] = {}
        self.is_stopped: bool = False
        """Whether the emulator is stopping, which ends all pending connect messages."""

    def make(self, token: str, user_id: str, username: str, cookie: str) -> Session:
        """Create a session.

        Args:
            token: The client's access token.
            user_id: Id of the token's user; blank if the token is the emulator's own.
            username: Name of the user whose rights apply.
            cookie: The client's cookie; if blank, a new one is generated.
        """
        session = Session(
            secrets.token_hex(13),
            cookie or secrets.token_hex(8),
            token,
            user_id,
            username,
            self._clock.now(),
        )
        self.end_dead()
        self._bus.bells.listen(BELL, session.wake)
        with self._lock:
            self._sessions[session.client_id] = session
        return session

    def find(self, client_id: object, cookie: str) -> Session:
        """Return the session to which a message belongs.

        Args:
            client_id: The clientId of the message.
            cookie: The cookie of the HTTP request.

        Raises:
            Refusal: There is no such session, it has ended, or it has a different cookie.
        """
        if not isinstance(client_id, str) or not client_id:
            raise Refusal("no handshake", reconnect="handshake")
        with self._lock:
            session = self._sessions.get(client_id)
        if session is not None and self._has_died(session):
            self.end(session)
        if session is None or session.is_gone:
            raise Refusal("unknown client", reconnect="handshake")
        if cookie != session.cookie:
            raise Refusal("cookie", client=client_id)
        return session

    def end(self, session: Session) -> None:
        """End a session and its pending connect message."""
        with self._lock:
            if self._sessions.pop(session.client_id, None) is None:
                return
        with session.lock:
            session.is_gone = True
            subscriptions = list(session.subscriptions.values())
            session.subscriptions.clear()
        for item in subscriptions:
            self._bus.bells.forget(item.topic.name, session.wake)
        self._bus.bells.forget(BELL, session.wake)
        session.wake()

    def stop(self) -> None:
        """End all sessions and their pending connect messages."""
        self.is_stopped = True
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            self.end(session)

    def subscribe(self, session: Session, subscription: Subscription) -> None:
        """Subscribe a session to a channel, or replace its subscription to that channel."""
        with session.lock:
            is_new = subscription.channel not in session.subscriptions
            session.subscriptions[subscription.channel] = subscription
        if is_new:
            self._bus.bells.listen(subscription.topic.name, session.wake)
        session.wake()

    def unsubscribe(self, session: Session, channel: str) -> None:
        """Remove a session's subscription to a channel, if there is one."""
        with session.lock:
            found = session.subscriptions.pop(channel, None)
        if found is not None:
            self._bus.bells.forget(found.topic.name, session.wake)

    def collect(self, session: Session, only: str | None = None) -> list[dict[str, Any]]:
        """Return a session's next events as Bayeux messages, and advance its positions.

        Args:
            session: The session.
            only: The only channel to read, as the client named it; None reads all channels.

        Returns:
            At most `Settings.streaming_reply_events` messages for each channel. Messages of all
            channels are in the order of their positions on the bus.
        """
        found: list[tuple[int, dict[str, Any]]] = []
        with session.lock:
            for item in session.subscriptions.values():
                if only in (None, item.channel):
                    found += self._next(session, item)
        return [message for _, message in sorted(found, key=lambda pair: pair[0])]

    def _next(self, session: Session, item: Subscription) -> list[tuple[int, dict[str, Any]]]:
        """Return the next messages of a channel that the session receives, each with its position.
        None are left only if this is empty.
        """
        limit = self._settings.streaming_reply_events
        while events := self._bus.read(item.topic, item.position, limit)[0]:
            item.position = events[-1].position
            hidden = self._delivery.hidden(session.username, item.topic)
            wanted = [
                event
                for event in events
                if not (hidden is not None and hidden(event))
                and self._channels.is_for(item.topic, event, session.user_id, item.conditions)
            ]
            if not wanted:
                continue
            self._bus.counters.of_topic(item.topic.name).delivered += len(wanted)
            schemas = Counter(event.schema_id for event in wanted)
            self._bus.counters.usage.delivered(self._clock.now(), schemas)
            return [
                (event.position, self._channels.message(item.channel, item.topic, event))
                for event in wanted
            ]
        return []

    def users_of(self, path: str) -> set[str]:
        """Return the ids of the users who are subscribed to a channel."""
        self.end_dead()
        with self._lock:
            sessions = list(self._sessions.values())
        return {session.user_id for session in sessions if path in session.subscriptions}

    def count(self) -> int:
        """Return the number of sessions that have not expired."""
        self.end_dead()
        with self._lock:
            return len(self._sessions)

    def end_dead(self) -> None:
        """End the sessions that have expired. Their clients do not, and no thread waits for it."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            if self._has_died(session):
                self.end(session)

    def _has_died(self, session: Session) -> bool:
        with session.lock:
            if session.pending:
                return False
            return self._clock.now() >= session.seen_at + self._settings.streaming_session_s


@dataclass(frozen=True)
class Cometd:
    """The state of the Streaming API in one org. Thread-safe."""

    channels: Channels
    sessions: CometdSessions
