"""The ManagedSubscribe RPC: a stream whose position the service stores. Does not import grpc.

`ManagedStream` extends `EventStream` with the subscription's slot (which only one stream at a time
can occupy), commits and their responses, and the commit deadline.

Unless a fault changes this, a commit is (1) validated, (2) made durable, (3) answered in a later
response without events. If consecutive accepted commits are waiting for a response, they get a
single one, with the request id, Replay ID and time of the latest commit. Each refused commit gets a
response of its own. After a failure between (2) and (3), the position is committed although the
client received no response, so a new stream may start later than the client expects.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sfpubsub.emulator.faults.refusals import Dropped, Refused
from sfpubsub.emulator.grpc.pages import Pages
from sfpubsub.emulator.grpc.stream import CommitAnswer, EventStream, Reply
from sfpubsub.emulator.org.mailbox import Arrival, Mailbox
from sfpubsub.emulator.org.managed import ManagedSubscription
from sfpubsub.emulator.org.world import World

_PREFIX = "managed.subscription."


@dataclass(frozen=True)
class Commit:
    """A CommitReplayRequest, decoded."""

    request_id: str
    replay_id: bytes


@dataclass(frozen=True)
class ManagedFetch:
    """A ManagedFetchRequest, decoded; `commit` is None if the request contains no commit."""

    subscription_id: str
    developer_name: str
    num_requested: int
    auth_refresh: str
    commit: Commit | None


class ManagedStream(EventStream[ManagedFetch]):
    """One ManagedSubscribe call. Used by one thread, except for `release`, which is thread-safe."""

    rpc = "ManagedSubscribe"

    def __init__(
        self, world: World, mailbox: Mailbox[ManagedFetch], token: str, pages: Pages
    ) -> None:
        super().__init__(world, mailbox, token, pages)
        self.record: ManagedSubscription | None = None
        # Positions that may be committed: those of the topic's events in the range `_sent` (first
        # and last event sent on this stream), and the keepalive positions after the committed one.
        # A range takes constant memory, however many events are sent before the commit deadline.
        self._sent: tuple[int, int] | None = None
        self._tips: list[int] = []
        self._answers: list[CommitAnswer] = []
        self._answers_due = 0.0
        self._wanted_answers = 1
        self._with_events = False  # the next commit response is sent with events
        self._last_commit = 0.0
        self._endings = 0

    def release(self) -> None:
        """Release the subscription's slot, so that another stream can use the subscription. Called
        when the connection ends, even while the stream's thread is still running.
        """
        if self.record is not None:
            self.world.managed.release(self.record, self)

    def open(self, arrival: Arrival[ManagedFetch]) -> None:
        """Handle the first request.

        Raises:
            Refused: The request is not valid or names no running subscription, or the
                subscription's slot is not free.
        """
        fetch = arrival.request
        if fetch.auth_refresh:
            raise Refused(_PREFIX + "fetch.request.auth.request.restricted")
        if fetch.commit is not None:
            raise Refused(_PREFIX + "fetch.request.commit.request.restricted")
        self._check_request(fetch)
        managed = self.world.managed
        record = managed.find(fetch.subscription_id, fetch.developer_name)
        managed.running(record.subscription_id)
        managed.acquire(record, self)
        self.record = record
        if self.mailbox.gone:  # the connection ended before the slot was acquired
            self.release()
        self._endings = managed.endings(record.subscription_id)
        # Read the record again: the previous holder of the slot may have committed in the meantime.
        record = managed.running(record.subscription_id)
        self.target = record.developer_name
        self.topic = self.world.bus.topic(record.topic)
        self.count = self.world.bus.counters.of_managed(record.subscription_id)
        preset = managed.start_preset(record)
        if preset is not None and record.committed is not None:
            self.world.faults.met(self.world.bus.dead_by(record.committed))
        late = preset == "LATEST"
        self.position = self.start_latest(arrival.at) if late else managed.start_position(record)
        self._last_commit = arrival.at
        self.ask(fetch.num_requested)

    def accept(self, arrival: Arrival[ManagedFetch]) -> None:
        """Handle a request that is not the stream's first. It may request events, commit a
        position, or both.

        Raises:
            Refused: The request is not valid.
            Dropped: A fault ended the stream between a commit and its response.
        """
        fetch = arrival.request
        self._check_request(fetch)
        if not self._is_ours(fetch):
            raise Refused(
                _PREFIX + "fetch.request.invalid",
                text="The request names a different managed subscription than the stream's first"
                " request.",
            )
        self.ask(fetch.num_requested)
        if fetch.commit is not None:
            self._commit(fetch.commit, arrival.at)

    def keys(self) -> list[str]:
        """Return the keys with which `Bells` wakes this stream: topic name and subscription id."""
        return [self.topic.name, self._record.subscription_id]

    def check(self, now: float) -> None:
        """Raise Refused if the commit deadline has passed. Also raise it once
        `Settings.state_delay_s` has passed since the subscription was stopped or deleted.
        """
        managed, record = self.world.managed, self._record
        end = managed.end_of(record.subscription_id, self._endings)
        if end is not None and now >= end:
            raise managed.end(record)
        limit = self.world.settings.commit_deadline_s
        if now >= self._last_commit + limit:
            raise Refused(_PREFIX + "commit.deadline.exceeded", seconds=f"{limit:g}")

    def answer(self, now: float, half_closed: bool) -> Reply | None:
        """Return the next commit response if one is due, otherwise None. Once the client has sent
        its last request (*half_closed*), all commit responses are due.
        """
        if not self._answers:
            return None
        complete = 1 < self._wanted_answers <= len(self._answers)
        if now < self._answers_due and not complete and not half_closed:
            return None
        answered = self._take_answer()
        settings, bus = self.world.settings, self.world.bus
        shape = {"pending": settings.commit_answer_pending, "tip": settings.commit_answer_tip}
        fault = self.world.faults.take("shape_commit_answer", self.rpc, self.target)
        if fault:
            shape.update(fault.params)
        tip = {"none": None, "sent": self.position, "org": bus.tip()}[str(shape["tip"])]
        return Reply(
            latest=None if tip is None else bus.ids.mint(tip),
            pending=self.pending if shape["pending"] else None,
            answer=answered,
        )

    def deliver(self, now: float) -> Reply | None:
        """Return the reply of `EventStream.deliver`. If it contains events, and a fault has held a
        commit response back until the next events, add that commit response to the reply.
        """
        reply = super().deliver(now)
        if reply is None or not reply.page.positions or not self._with_events:
            return reply
        return replace(reply, answer=self._take_answer())

    def deadline(self) -> float | None:
        """Return the time of the next commit response, the commit deadline or the end of a stopped
        subscription, whichever comes first, in seconds since the epoch.
        """
        due = self._last_commit + self.world.settings.commit_deadline_s
        if self._answers:
            due = min(due, self._answers_due)
        end = self.world.managed.end_of(self._record.subscription_id, self._endings)
        return due if end is None else min(due, end)

    def shown(self, positions: Sequence[int], end: int) -> None:
        """Record which positions the client may commit: the *positions* of the events in a reply
        or, if the reply is a keepalive, the position *end*.
        """
        if positions:
            first = positions[0] if self._sent is None else self._sent[0]
            self._sent = first, positions[-1]
        elif not self._tips or self._tips[-1] < end:
            self._tips.append(end)

    @property
    def _record(self) -> ManagedSubscription:
        if self.record is None:
            raise AssertionError("the stream is not open")
        return self.record

    def _is_ours(self, fetch: ManagedFetch) -> bool:
        own_id = self._record.subscription_id
        same_id = fetch.subscription_id in ("", own_id, own_id[:15])
        return same_id and fetch.developer_name in ("", self._record.developer_name)

    def _check_request(self, fetch: ManagedFetch) -> None:
        if fetch.num_requested < 0:
            raise Refused(_PREFIX + "fetch.request.events.invalid")
        if not (fetch.num_requested or fetch.commit or fetch.auth_refresh):
            raise Refused(_PREFIX + "fetch.request.invalid")

    def _commit(self, commit: Commit, at: float) -> None:
        world, record = self.world, self._record
        self._last_commit = at
        if world.settings.commits_reset_idle:
            self._idle_since = at
        failed = world.faults.take("fail_commit", self.rpc, self.target)
        position = world.bus.position(commit.replay_id)
        error = failed.params["message"] if failed else self._problem(commit, position)
        if error:
            self.count.commits_refused += 1
        else:
            if position is not None:  # None: already committed, and expired since then
                world.managed.commit(record.subscription_id, position)
                world.commits.note(record.subscription_id, position, at)
                del self._tips[: bisect.bisect_right(self._tips, position)]
            self.count.commits_accepted += 1
            fault = world.faults.take("drop_before_commit_answer", self.rpc, self.target)
            if fault:
                raise Dropped(fault.params["status"])
            if world.faults.take("leave_commit_unanswered", self.rpc, self.target):
                return
        self._queue_answer(CommitAnswer(commit.request_id, commit.replay_id, error, at))

    def _problem(self, commit: Commit, position: int | None) -> str:
        """Return why a commit is refused, or an empty string if it is accepted."""
        bus, managed, own = self.world.bus, self.world.managed, self._record.subscription_id
        record = managed.by_id(own)
        if record is None or managed.end_of(own, self._endings) is not None:
            return "The managed subscription was stopped or deleted."
        committed = record.committed
        if not commit.replay_id:
            return "The commit has no Replay ID."
        if committed is not None and bus.ids.read(commit.replay_id) == committed:
            return ""
        if position is None:
            return "The Replay ID to commit is invalid or older than the event retention period."
        if committed is not None and position < committed:
            return "A later Replay ID is already committed."
        if not self._was_shown(position):
            return "The Replay ID to commit was not delivered on this stream."
        return ""

    def _was_shown(self, position: int) -> bool:
        index = bisect.bisect_left(self._tips, position)
        if self._tips[index : index + 1] == [position]:
            return True
        if self._sent is None or not self._sent[0] <= position <= self._sent[1]:
            return False
        events, _ = self.world.bus.read(self.topic, position - 1, 1)
        return bool(events) and events[0].position == position

    def _take_answer(self) -> CommitAnswer:
        """Remove and return the next commit response. Consecutive accepted commits share the
        response to the latest of them; each refused commit has a response of its own.
        """
        count = next((i for i, item in enumerate(self._answers) if item.error), len(self._answers))
        answered = self._answers[: max(1, count)]
        del self._answers[: max(1, count)]
        self._with_events = False
        self._answers_due = 0.0  # the remaining responses are due as well
        if not self._answers:
            self._wanted_answers = 1
        return answered[-1]

    def _queue_answer(self, answer: CommitAnswer) -> None:
        settings, faults = self.world.settings, self.world.faults
        if not self._answers:
            self._answers_due = answer.received_at + settings.commit_answer_delay_s
            fault = faults.take("coalesce_commits", self.rpc, self.target)
            if fault:
                self._wanted_answers = fault.params["count"]
                self._answers_due = answer.received_at + fault.params["within_s"]
            fault = faults.take("answer_with_events", self.rpc, self.target)
            if fault:
                self._with_events = True
                self._answers_due = answer.received_at + fault.params["within_s"]
        self._answers.append(answer)
