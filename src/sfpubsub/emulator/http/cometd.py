"""The Streaming API: Bayeux messages over HTTP, including connect requests that are held open.

This module handles messages only. `org.cometd.sessions` stores the connected clients, and
`org.cometd.channels` the channels and their events.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call
from sfpubsub.emulator.org.cometd.sessions import Session, Subscription
from sfpubsub.emulator.org.cometd.texts import Refusal
from sfpubsub.emulator.org.mailbox import Mailbox
from sfpubsub.emulator.org.world import World

_COOKIE = "BAYEUX_BROWSER"
_BODY_BYTES = 32_768
"""Requests with bodies of this many bytes or more are refused. Documented."""

_OLDEST, _RETIRED, _NEWEST = 23.0, 37.0, 67.0
"""API versions: the oldest that exists, the oldest that is supported, and the newest."""

_PAGE = "<html><head><title>Error</title></head><body>The server cannot answer.</body></html>\n"

Message = dict[str, Any]


class _Instead(Exception):  # noqa: N818 - an answer, not a bug
    """Raised to send a different HTTP response instead of the replies to the Bayeux messages."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__()


def answer(call: Call) -> Answer:
    """POST /cometd/<version>: handle the messages of a request in order, and return the replies."""
    return _Exchange(call).answer()


class _Exchange:
    """One HTTP request, which contains one or more Bayeux messages."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._world: World = call.world
        self._sessions = call.world.cometd.sessions
        self._channels = call.world.cometd.channels
        self._settings = call.world.settings
        self._cookie = _cookie_of(call)
        self._token = call.bearer or _bare_token(call)
        self._headers: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def answer(self) -> Answer:
        try:
            messages = json.loads(self._call.body)
        except (ValueError, RecursionError):
            return Answer(HTTPStatus.BAD_REQUEST, "text/html", _PAGE)
        messages = messages if isinstance(messages, list) else [messages]
        if not all(isinstance(item, dict) for item in messages):
            return Answer(HTTPStatus.BAD_REQUEST, "text/html", _PAGE)
        # A large request is refused as a whole, whatever it contains.
        is_large = len(self._call.body) >= _BODY_BYTES
        replies: list[Message] = []
        try:
            for message in messages:
                replies += (
                    self._handle_refusal(message, Refusal("size"))
                    if is_large
                    else self._one(message)
                )
        except _Instead as instead:
            return instead.answer
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_large else HTTPStatus.OK
        drip = self._fault("drip_answer", str(messages[-1].get("channel")) if messages else "")
        return Answer(
            status,
            "application/json;charset=UTF-8",
            json.dumps(replies),
            self._headers,
            drip_s=drip["seconds"] if drip else 0.0,
        )

    def _one(self, message: Message) -> list[Message]:
        kinds: dict[str, Callable[[Message], list[Message]]] = {
            "/meta/handshake": self._handshake,
            "/meta/connect": self._connect,
            "/meta/subscribe": self._subscribe,
            "/meta/unsubscribe": self._unsubscribe,
            "/meta/disconnect": self._disconnect,
        }
        channel = str(message.get("channel"))
        page = self._fault("answer_with_page", channel)
        if page is not None:
            raise _Instead(Answer(HTTPStatus(page["status"]), "text/html", _PAGE))
        fault = self._fault("refuse_message", channel)
        if fault is not None:
            refusal = Refusal(fault["text"], reconnect=fault["reconnect"], reason=fault["reason"])
            return self._handle_refusal(message, refusal)
        if channel not in kinds:  # Salesforce does not support publishing over CometD
            return self._handle_refusal(message, Refusal("restricted"))
        try:
            return kinds[channel](message)
        except Refusal as refusal:
            return self._handle_refusal(message, refusal)

    # The kinds of messages.

    def _handshake(self, message: Message) -> list[Message]:
        self._check_version()
        sessions, token = self._world.sessions, self._token
        user = sessions.user_of(token)
        if user is None:
            self._world.faults.met(sessions.ended_by(token))
            reason = (
                "401::Authentication invalid" if token else "401::Request requires authentication"
            )
            raise Refusal("handshake", reconnect="none", reason=reason)
        if "long-polling" not in message.get("supportedConnectionTypes", ()):
            kinds = message.get("supportedConnectionTypes")
            raise Refusal("connection type", reconnect="none", type=kinds)
        account = self._world.accounts.user(user)
        session = self._sessions.make(
            token,
            account.user_id if account else "",
            self._world.accounts.holder(user).username,
            self._cookie,
        )
        self._headers["Set-Cookie"] = f"{_COOKIE}={session.cookie}; Path=/cometd; HttpOnly"
        reply = self._reply(message, clientId=session.client_id)
        reply.update(
            version="1.0",
            minimumVersion="1.0",
            supportedConnectionTypes=["long-polling"],
            ext={"replay": True, "payload.format": True},
        )
        return [reply]

    def _connect(self, message: Message) -> list[Message]:
        session = self._session(message)
        if message.get("connectionType") != "long-polling":
            kind = message.get("connectionType")
            raise Refusal("connection type", reconnect="none", type=kind)
        self._check_token(session, self._world.sessions.knows(self._token))
        with session.lock:
            session.connects += 1
            number = session.connects
            session.pending += 1
            session.wake()  # ends an older connect
            mail: Mailbox[None] = Mailbox(self._world.clock)
            session.mail = mail
        try:
            advice = message.get("advice")
            at_once = isinstance(advice, dict) and advice.get("timeout") == 0
            events = self._hold(session, mail, number, at_once=at_once or number == 1)
        finally:
            with session.lock:
                session.pending -= 1
                session.seen_at = self._world.clock.now()
        reply = self._reply(message, clientId=session.client_id)
        settings = self._settings
        if settings.streaming_advice == "always" or (
            settings.streaming_advice == "first" and number == 1
        ):
            reply["advice"] = {
                "reconnect": "retry",
                "interval": int(settings.streaming_interval_s * 1000),
                "timeout": int(settings.streaming_timeout_s * 1000),
            }
        return [*events, reply] if settings.streaming_events_first else [reply, *events]

    def _hold(
        self, session: Session, mail: Mailbox[None], number: int, *, at_once: bool
    ) -> list[Message]:
        """Hold a connect message until events are pending or its timeout has passed.

        Args:
            session: The session of the client.
            mail: Wakes this thread when the session changes.
            number: Number of this connect message in its session, counted from 1.
            at_once: Whether to return immediately, even without events.

        Returns:
            The messages to send together with the reply to the connect message.

        Raises:
            _Instead: Another HTTP response must be sent, because of a newer connect message or a
                fault, or because the emulator is stopping.
            Refusal: The session or the token has ended.
        """
        deadline = self._world.clock.now() + self._settings.streaming_timeout_s
        self._call.hold(self._settings.streaming_timeout_s)
        while True:
            mail.collect()
            self._break_off(session, number)
            lose = self._peek("cut_poll")
            events = self._sessions.collect(session)
            if lose is not None and (events or not lose["with_events"]):
                self._fault("cut_poll", "/meta/connect")
                raise _Instead(Answer(HTTPStatus.OK, reset=True))
            if self._fault("say_goodbye", "/meta/connect") is not None:
                self._sessions.end(session)
                goodbye = {"channel": "/meta/disconnect", "clientId": session.client_id}
                return [*self._stamped(events, session), goodbye]
            if events or at_once or self._world.clock.now() >= deadline:
                return self._stamped(events, session)
            mail.wait(deadline)

    def _break_off(self, session: Session, number: int) -> None:
        """Raise the exception that ends a held connect message, if the emulator is stopping, the
        session or its token has ended, or a newer connect message has arrived.
        """
        if self._sessions.is_stopped:
            raise _Instead(Answer(HTTPStatus.OK, reset=True))
        if self._fault("end_cometd_session", "/meta/connect") is not None:
            self._sessions.end(session)
        if session.is_gone:
            raise Refusal("unknown client", reconnect="handshake")
        if session.connects != number:
            # The CometD project's server answers the older of two connects like this.
            raise _Instead(Answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/html", _PAGE))
        self._check_token(session, not self._world.sessions.has_expired(self._token))

    def _subscribe(self, message: Message) -> list[Message]:
        session = self._session(message)
        name = message.get("subscription")
        if not isinstance(name, str) or not name:
            raise Refusal("channel name")
        if not name.startswith("/"):
            raise Refusal("channel slash")
        if name.startswith(("/meta/", "/service/")):
            raise Refusal("restricted")
        if not re.fullmatch(r"[/\w.-]+", name.partition("?")[0], re.ASCII):
            raise Refusal("cannot create", channel=name)
        path, _, text = name.partition("?")
        topic = self._channels.topic(path)
        conditions = self._channels.conditions(path, text)
        ext = message.get("ext")
        replay = ext.get("replay") if isinstance(ext, dict) else None
        wanted = replay.get(path) if isinstance(replay, dict) else None
        if isinstance(replay, dict) and replay and path not in replay:
            given = ", ".join(f"{channel}={number}" for channel, number in replay.items())
            raise Refusal("replay map", channel=path, map=given)
        position = self._channels.position(topic, wanted)
        self._sessions.subscribe(session, Subscription(name, topic, position, conditions))
        reply = self._reply(message, clientId=session.client_id)
        if self._settings.streaming_events_on_subscribe:
            return [reply, *self._stamped(self._sessions.collect(session, name), session)]
        return [reply, *self._flushed(session)]

    def _unsubscribe(self, message: Message) -> list[Message]:
        session = self._session(message)
        name = message.get("subscription")
        if not isinstance(name, str) or not name:
            raise Refusal("channel name")
        self._sessions.unsubscribe(session, name)
        return [self._reply(message, clientId=session.client_id), *self._flushed(session)]

    def _disconnect(self, message: Message) -> list[Message]:
        session = self._session(message)
        self._sessions.end(session)
        return [self._reply(message, clientId=session.client_id)]

    # Shared by all kinds of messages.

    def _session(self, message: Message) -> Session:
        self._check_version()
        session = self._sessions.find(message.get("clientId"), self._cookie)
        with session.lock:
            session.seen_at = self._world.clock.now()
        return session

    def _check_version(self) -> None:
        text = self._call.parts.get("version") or ""
        if not text:
            raise Refusal("version missing", reconnect="none")
        version = float(text)
        retired = _OLDEST <= version < _RETIRED
        if retired and self._settings.streaming_old_versions == "newest":
            return
        if not _RETIRED <= version <= _NEWEST:
            raise Refusal("version", reconnect="none", version=text)

    def _check_token(self, session: Session, good: bool) -> None:
        if not good:
            sessions = self._world.sessions
            self._world.faults.met(sessions.ended_by(self._token))
            self._sessions.end(session)
            raise Refusal("authentication", reconnect="none")

    def _flushed(self, session: Session) -> list[Message]:
        """Return the pending events of all channels, if such a response may include them."""
        if not self._settings.streaming_flush_anywhere:
            return []
        return self._stamped(self._sessions.collect(session), session)

    def _stamped(self, events: list[Message], session: Session) -> list[Message]:
        for event in events:
            event["clientId"] = session.client_id
            # Some servers do this. The ids are counted separately from those of the client's
            # requests, so the same id can occur in both.
            if self._settings.streaming_event_ids:
                event["id"] = str(next(self._numbers))
        return events

    def _reply(self, message: Message, **more: Any) -> Message:
        reply = {"channel": message.get("channel"), "successful": True, **more}
        for name in ("id", "subscription"):
            if name in message:
                reply[name] = message[name]
        return reply

    def _handle_refusal(self, message: Message, refusal: Refusal) -> list[Message]:
        reply = {**self._reply(message), "successful": False, "error": refusal.text}
        if refusal.reconnect:
            reply["advice"] = {"reconnect": refusal.reconnect, "interval": 0}
        if refusal.reason:
            reply["ext"] = {
                "sfdc": {"failureReason": refusal.reason},
                "replay": True,
                "payload.format": True,
            }
        return [reply]

    def _fault(self, kind: str, channel: str) -> Any:
        found = self._world.faults.take(kind, channel)
        return found.params if found else None

    def _peek(self, kind: str) -> Any:
        """Return the parameters of the next fault of a kind, without consuming the fault; None if
        no such fault is pending.
        """
        found = self._world.faults.next(kind, "/meta/connect")
        return found.params if found else None


def _bare_token(call: Call) -> str:
    """Return an Authorization header without a scheme, as EMP-Connector sends it; blank if the
    header is missing or has a scheme.
    """
    header = str(call.headers.get("Authorization", "")).strip()
    return "" if " " in header else header


def _cookie_of(call: Call) -> str:
    try:
        found = SimpleCookie(call.headers.get("Cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
