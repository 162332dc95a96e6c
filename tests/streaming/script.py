"""A script that drives the streaming protocol and plays the server, without I/O or a clock."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sfpubsub.errors import SfPubSubError, StreamUnavailableError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import (
    Call,
    Command,
    Cut,
    Lane,
    Message,
    Send,
    StreamingMessage,
    sorted_out,
)
from sfpubsub.streaming.pending import Pending
from sfpubsub.streaming.progress import Progress
from sfpubsub.streaming.protocol import Pace, StreamingProtocol
from sfpubsub.streaming.subscriptions import Subscriptions
from sfpubsub.types import Gap

CLIENT = "client-1"
TOPIC = "/topic/Accounts"
BROKEN = StreamUnavailableError("the connection broke")


def event(replay_id: Any, channel: str = TOPIC, **more: Any) -> dict[str, Any]:
    return {"channel": channel, "data": {"event": {"replayId": replay_id}, "sobject": {}}, **more}


class Recorded(Pending):
    """A queue that also records everything that was ever put into it."""

    def __init__(self, limit: int) -> None:
        super().__init__(1, limit)
        self.all: list[StreamingMessage | SfPubSubError] = []

    def put(self, channel: str, events: Sequence[Message], ids: Sequence[int | None]) -> None:
        self.all += [
            StreamingMessage(each, channel, number, 0)
            for each, number in zip(events, ids, strict=True)
        ]
        super().put(channel, events, ids)

    def fail(self, error: SfPubSubError) -> None:
        self.all.append(error)
        super().fail(error)


class Script:
    """Drives the streaming protocol, plays its server, and records its commands."""

    def __init__(
        self,
        *,
        fallback: int | None = None,
        max_pending_count: int = 100,
        connection_timeout: float | None = 10.0,
        pace: Pace | None = None,
        is_tracked: bool = False,
    ) -> None:
        self.now = 100.0
        self.chance = 1.0
        self.pending = Recorded(max_pending_count)
        self.progress: dict[str, Progress] = {}
        progress = self.progress if is_tracked else None
        channels = Subscriptions(json.dumps, fallback, self.pending, progress)
        self.protocol = StreamingProtocol(
            channels, pace or Pace(), lambda: self.chance, connection_timeout
        )
        self.calls: dict[object, Call] = {}
        self.session: object = "session"
        self.out: list[Command] = []
        self.flying: dict[Lane, Send] = {}
        self.sent: list[list[dict[str, Any]]] = []

    def tick(self, input_: Callable[[], None] = lambda: None) -> list[Command]:
        commands = self.protocol.tick(self.now, input_)
        for command in commands:
            if isinstance(command, Send):
                if not self.protocol.over:  # a disconnect is sent after the cancelled requests
                    assert command.lane not in self.flying, "two requests on one lane"
                assert len(command.body.encode()) < 32_768
                self.flying[command.lane] = command
                if command.refused == self.session:
                    self.session = f"renewed {self.session}"
                command.session = self.session
                self.sent.append(json.loads(command.body))
        self.out += commands
        return commands

    # Calls by the application.

    def call(self, name: object) -> Call:
        self.calls[name] = Call()
        return self.calls[name]

    def open(self) -> None:
        self.tick(partial(self.protocol.open, self.call("open")))

    def subscribe(
        self, name: str = TOPIC, start: int = -1, waiter: object = "", *, rewind: bool = False
    ) -> None:
        call = self.call(waiter or name)
        subscribe = partial(self.protocol.channels.subscribe, name, start, call)
        self.tick(partial(subscribe, rewind=rewind, resumes=False))

    def unsubscribe(self, name: str = TOPIC, waiter: object = "left") -> None:
        self.tick(partial(self.protocol.channels.unsubscribe, name, self.call(waiter)))

    def close(self) -> None:
        self.tick(self.protocol.close)

    def read(self, count: int | None = None) -> None:
        """Remove *count* items from the queue, or all of them if *count* is None."""
        for _ in range(len(self.pending) if count is None else count):
            self.pending.head()
            self.pending.take()
        self.tick()

    # Responses of the server.

    def messages(self, lane: Lane) -> list[dict[str, Any]]:
        return json.loads(self.flying[lane].body)

    def answer(self, lane: Lane, *messages: Any) -> list[Command]:
        return self.land(lane, sorted_out(list(messages)))

    def fail(self, lane: Lane, error: SfPubSubError = BROKEN) -> list[Command]:
        return self.land(lane, error)

    def land(self, lane: Lane, outcome: Any) -> list[Command]:
        return self.tick(partial(self.protocol.handle_outcome, self.flying.pop(lane), outcome))

    def confirm(self, lane: Lane, *others: Any, **more: Any) -> list[Command]:
        """Confirm every message of the request in flight on *lane*.

        The response begins with the messages *others*; *more* are additional fields of each
        confirmation.
        """
        replies = []
        for message in self.messages(lane):
            reply = {"channel": message["channel"], "id": message["id"], "successful": True}
            if message["channel"] == bayeux.HANDSHAKE:
                reply |= {"clientId": CLIENT, "ext": {"replay": True}}
            replies.append(reply | more)
        return self.answer(lane, *others, *replies)

    def refuse(self, lane: Lane, error: str = "", reconnect: str | None = None, reason: str = ""):
        """Refuse every message of the request in flight on *lane* with *error*.

        *reconnect* is the advised next step, and *reason* the failureReason; both are optional.
        """
        replies = []
        for message in self.messages(lane):
            reply = {"channel": message["channel"], "id": message["id"], "successful": False}
            reply["error"] = error
            if reconnect is not None:
                reply["advice"] = {"reconnect": reconnect}
            if reason:
                reply["ext"] = {"sfdc": {"failureReason": reason}}
            replies.append(reply)
        return self.answer(lane, *replies)

    def connected(self, *names: str, start: int = -1) -> Script:
        """Open the client, subscribe to the channels *names* from position *start*, and confirm
        every request.
        """
        self.open()
        self.confirm(Lane.ASK)
        self.confirm(Lane.POLL)
        for name in names:
            self.subscribe(name, start)
            self.confirm(Lane.ASK)
        return self

    def fail_cancelled(self) -> None:
        """Fail all cancelled requests, as the driver would."""
        for lane in [item for item in Lane if item in self.flying and self.was_cut(item)]:
            self.fail(lane)

    def was_cut(self, lane: Lane) -> bool:
        return any(cut.request is self.flying[lane] for cut in self.of(Cut))

    def reconnect(self) -> None:
        """Fail the cancelled requests, wait for the next attempt, and confirm its requests."""
        self.fail_cancelled()
        if Lane.ASK not in self.flying:
            self.wait()
        self.confirm(Lane.ASK)
        self.confirm(Lane.POLL)

    def wait(self, seconds: float | None = None) -> list[Command]:
        """Advance the time by *seconds*, or to the next deadline if None."""
        deadline = self.protocol.deadline
        if seconds is None:
            assert deadline < math.inf
            self.now = max(self.now, deadline)
        else:
            self.now += seconds
        return self.tick()

    # Results.

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.out if isinstance(command, kind)]

    @property
    def queued(self) -> list[StreamingMessage | SfPubSubError]:
        return self.pending.all

    @property
    def ids(self) -> list[int | None]:
        return [item.replay_id for item in self.queued if isinstance(item, StreamingMessage)]

    @property
    def errors(self) -> list[SfPubSubError]:
        return [item for item in self.queued if isinstance(item, SfPubSubError)]

    @property
    def gaps(self) -> list[tuple[str, str]]:
        return [(gap.reason, gap.subscription) for gap in self.out_gaps]

    @property
    def out_gaps(self) -> list[Gap]:
        return self.of(Gap)

    @property
    def renewals(self) -> int:
        """Number of distinct sessions for which the protocol has requested a replacement."""
        return len({command.refused for command in self.of(Send)} - {None})

    def outcome(self, waiter: object) -> Any:
        """Return the result of the call recorded as *waiter*: its error, "done" if it succeeded, or
        None while it is pending.
        """
        call = self.calls[waiter]
        return (call.error or "done") if call.is_done else None

    @property
    def positions(self) -> dict[str, int]:
        """Positions in the subscribe messages that were sent last, by channel."""
        found: dict[str, int] = {}
        for message in self.sent[-1]:
            if message["channel"] == bayeux.SUBSCRIBE:
                found |= message["ext"]["replay"]
        return found
