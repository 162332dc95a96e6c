"""Makes the messages of a session, and keeps what is in flight. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Command, Cut, Lane, Message, Send
from sfpubsub.streaming.pace import Pace

if TYPE_CHECKING:
    from sfpubsub.streaming.subscriptions import Channel


class Outbox:
    """What is sent to the server.

    Args:
        pace: Times.
        dumps: Makes JSON.
        out: Where commands go.
    """

    def __init__(self, pace: Pace, dumps: Callable[[Any], str], out: list[Command]) -> None:
        self._pace = pace
        self._dumps = dumps
        self._out = out
        self._ids = count(1)
        self.client_id = ""
        """Of the session; empty while there is none."""
        self.refused: Any = None
        """The last session of the org that was refused, if there was one."""
        self.advice: dict[str, Any] = {}
        """What the server has advised; later parts replace earlier ones."""
        self.flying: dict[Lane, Send] = {}
        """The requests whose end was not told yet."""

    @property
    def is_shared(self) -> bool:
        """Whether the server sees several clients behind the cookies: then it holds no connect."""
        return self.advice.get("multiple-clients") is True

    @property
    def interval(self) -> float:
        """Seconds to wait before the next connect."""
        interval: float = self.advice.get("interval", 0.0)
        # Connects that are not held must not become a loop.
        return max(interval, self._pace.backoff_initial) if self.is_shared else interval

    @property
    def due(self) -> list[float]:
        """When the requests that matter are late."""
        return [request.due for request in self.flying.values() if not request.is_cut]

    def message(self, channel: str, **fields: Any) -> Message:
        """Return a message of this session; outside of one, it has no client id."""
        session = {"clientId": self.client_id} if self.client_id else {}
        return {"channel": channel, "id": str(next(self._ids)), **session, **fields}

    def handshake(self, now: float) -> None:
        """Ask for a session."""
        message = self.message(
            bayeux.HANDSHAKE,
            version="1.0",
            minimumVersion="1.0",
            supportedConnectionTypes=["long-polling"],
            ext={"replay": True},
        )
        self.send(Lane.ASK, [(message, None)], now, before=self._pace.sign_in)

    def connect(self, now: float, *, is_first: bool) -> None:
        """Poll."""
        message = self.message(bayeux.CONNECT, connectionType="long-polling")
        if is_first or self.is_shared:
            message["advice"] = {"timeout": 0}  # asks the server not to hold it
        advised = self.advice.get("timeout")
        held = self._pace.poll if advised is None else advised * self._pace.poll_factor
        timeout = self._pace.request if is_first else max(held, self._pace.request)
        self.send(Lane.POLL, [(message, None)], now, timeout)

    def send(
        self,
        lane: Lane,
        asked: Sequence[tuple[Message, Channel | None]],
        now: float,
        timeout: float | None = None,
        before: float = 0.0,
    ) -> None:
        """Send a request; *before* is what fetching a session may take."""
        timeout = self._pace.request if timeout is None else timeout
        body = self._dumps([message for message, _ in asked])
        due = now + before + timeout
        self.flying[lane] = Send(lane, body, timeout, due, asked, self.refused)
        self._out.append(self.flying[lane])

    def cut(self) -> None:
        """Give up what is in flight."""
        for request in self.flying.values():
            if not request.is_cut:
                request.is_cut = True
                self._out.append(Cut(request))
