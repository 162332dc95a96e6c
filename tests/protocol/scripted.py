"""Functions that build inputs, and a script that drives one subscription with simulated time.

Only `Script.wait` advances the time `now`; nothing here sleeps. `rid` converts numbers to
positions, whose byte order differs from the order of the numbers.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import SfPubSubError, StreamUnavailableError
from sfpubsub.protocol.commands import (
    CancelStream,
    Command,
    CommitRequest,
    Deliver,
    Discard,
    Finish,
    OpenStream,
    ReportGap,
    SendRequest,
    SettleCommit,
)
from sfpubsub.protocol.commits import Commits
from sfpubsub.protocol.events import CommitAnswer, Failure, FailureKind, Response
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.types import Gap, RawEvent, ReplayId, StartPosition

C = TypeVar("C", bound=Command)

NAME = "/event/Order_Event__e"
# Without the pause between commits, which other tests cover, because most scripts do not wait.
TIMES = Timings(commit_pause=0.0)


def rid(number: int) -> ReplayId:
    """Return the position for *number*; the byte order differs from the order of numbers."""
    return ReplayId((number * 2_654_435_761 % 2**32).to_bytes(4, "big") + number.to_bytes(4, "big"))


def event(number: int, *, size: int = 1, event_id: str | None = None) -> RawEvent:
    """Return an event at position *number*."""
    return RawEvent(
        f"event-{number}" if event_id is None else event_id, "schema", b"x" * size, rid(number)
    )


def events(*numbers: int, pending: int = 50, size: int = 1) -> Response:
    """Return a response that contains the events at positions *numbers*."""
    found = tuple(event(number, size=size) for number in numbers)
    return Response(found, found[-1].replay_id, pending, f"rpc-{numbers[0]}")


def keepalive(number: int, *, pending: int = 100) -> Response:
    """Return a keepalive at position *number*."""
    return Response((), rid(number), pending, f"rpc-keepalive-{number}")


def answer(request: CommitRequest | str, error: str | None = None, **fields: Any) -> Response:
    """Return a response to the commit *request*, which may also be given by its id.

    The commit is rejected if *error* is given. By default, the response's latest position and
    pending count are stale.
    """
    request_id = request if isinstance(request, str) else request.request_id
    replay_id = None if isinstance(request, str) else request.replay_id
    commit = CommitAnswer(
        fields.pop("request_id", request_id), fields.pop("replay_id", replay_id), error, 1234
    )
    return Response(**{"latest_replay_id": rid(999_999), "pending": 0, **fields, "commit": commit})


def failure(kind: FailureKind = FailureKind.RETRY, error: SfPubSubError | None = None) -> Failure:
    """Return a failure that ends a stream."""
    return Failure(kind, error or StreamUnavailableError("connection reset"))


def of(kind: type[C], commands: list[Command]) -> list[C]:
    """Return the commands that are of the class *kind*."""
    return [command for command in commands if isinstance(command, kind)]


class Script:
    """Drives one subscription: plays the service, the application and the clock.

    Args:
        start: Start position; None for a managed subscription.
        limits: Memory limits.
        options: Other arguments of `SubscriptionProtocol`.
    """

    make = SubscriptionProtocol

    def __init__(
        self, start: StartPosition | None = None, *, limits: Limits | None = None, **options: Any
    ) -> None:
        options.setdefault("timings", TIMES)
        self.protocol = self.make(NAME, start=start, limits=limits, **options)
        self.now = 1000.0
        self.stream = 0
        self.inbox: deque[Deliver] = deque()
        self.delivered: list[int] = []  # numbers of all delivered events
        self.gaps: list[Gap] = []
        self.finish: Finish | None = None
        self.settled: dict[int, object] = {}
        self.seqs: dict[int, int] = {}  # number -> delivery_seq

    # Inputs. Each records the resulting commands and returns them.

    def start(self, position: StartPosition | None = None) -> list[Command]:
        return self.did(self.protocol.start(self.now, position))

    def respond(self, response: Response, *, stream: int | None = None) -> list[Command]:
        return self.did(
            self.protocol.response(self.stream if stream is None else stream, response, self.now)
        )

    def end(self, why: Failure | None = None, *, jitter: float = 0.5) -> list[Command]:
        return self.did(self.protocol.ended(self.stream, why, self.now, jitter))

    def take(self) -> list[Command]:
        """Let the application read one batch."""
        batch = self.inbox.popleft()
        return self.did(self.protocol.taken(len(batch.events), batch.size, self.now))

    def ack(self, *numbers: int) -> list[Command]:
        out: list[Command] = []
        for number in numbers:
            seq = self.seqs[number]
            out += self.did(self.protocol.acked(seq, seq, self.now))
        return out

    def read(self, response: Response) -> list[Command]:
        """Pass a response to the protocol, and let the application read its batch."""
        out = self.respond(response)
        return out + self.take()

    def commit(self) -> tuple[int, list[Command]]:
        ticket, commands = self.protocol.commit(self.now)
        return ticket, self.did(commands)

    def drain(self) -> list[Command]:
        return self.did(self.protocol.drain(self.now))

    def wait(self, seconds: float, *, jitter: float = 0.5) -> list[Command]:
        """Advance the time, and call the timer whenever it is due."""
        until = self.now + seconds
        out: list[Command] = []
        for _ in range(1000):
            due = self.protocol.deadline()
            if due is None or due > until:
                self.now = until
                return out
            self.now = max(self.now, due)
            out += self.did(self.protocol.timer(self.now, jitter))
        raise AssertionError(f"the timer spins in state {self.protocol.state}")

    def reopen(self, *, jitter: float = 0.5) -> OpenStream:
        """Break the stream, and return the command with which the client then opens a new one."""
        self.end(failure(), jitter=jitter)
        (opened,) = of(OpenStream, self.wait(TIMES.backoff_max, jitter=jitter))
        return opened

    def did(self, commands: list[Command]) -> list[Command]:
        assert self.finish is None or not commands, "a command follows Finish"
        for command in commands:
            if isinstance(command, OpenStream):
                assert command.stream == self.stream + 1
                self.stream = command.stream
            elif isinstance(command, Deliver):
                self.inbox.append(command)
                for seq, raw in enumerate(command.events, command.first_seq):
                    number = int.from_bytes(bytes(raw.replay_id)[4:], "big")
                    self.seqs[number] = seq
                    self.delivered.append(number)
            elif isinstance(command, Discard):
                self.inbox.clear()
            elif isinstance(command, ReportGap):
                self.gaps.append(command.gap)
            elif isinstance(command, SettleCommit):
                assert command.ticket not in self.settled, "a caller must be settled only once"
                self.settled[command.ticket] = command.outcome
            elif isinstance(command, (SendRequest, CancelStream)):
                assert command.stream == self.stream
            elif isinstance(command, Finish):
                self.finish = command
        return commands


def streaming(start: StartPosition | None = None, **options: Any) -> Script:
    """Return a script whose first stream has received a keepalive at position 1.

    For a managed subscription, the commit of that position has been confirmed.
    """
    script = Script(start, **options)
    script.start()
    script.respond(keepalive(1))
    if start is None:
        settle(script)
    return script


def settle(script: Script) -> None:
    """Confirm the commit that is in flight."""
    out = commits_of(script.protocol).unanswered
    assert out is not None
    script.respond(answer(CommitRequest(out.request_id, out.replay_id)))


def commits_of(protocol: SubscriptionProtocol) -> Commits:
    """Return the `Commits` object of a managed subscription."""
    assert protocol._managed is not None
    return protocol._managed._commits


def commits(commands: list[Command]) -> list[CommitRequest]:
    """Return the commit requests in *commands*."""
    return [sent.commit for sent in of(SendRequest, commands) if sent.commit is not None]


def credit(commands: list[Command]) -> int:
    """Return the number of events that *commands* request on an open stream."""
    return sum(sent.num_requested for sent in of(SendRequest, commands))
