"""The asyncio client gives the same guarantees as the sync client, and a cancellation leaves no
task or thread behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sfpubsub import AsyncPubSubClient, AsyncReplayStore, PubSubClient, ReplayStore
from sfpubsub.auth.session import Session
from sfpubsub.client.aio import POOL_SIZE
from sfpubsub.config import Timings
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    CommitError,
    ConfigurationError,
    DecodeError,
    LocalProtocolError,
    PermissionDeniedError,
    ReplayIdRejectedError,
    StreamUnavailableError,
    SubscriptionClosedError,
    TopicNotFoundError,
)
from sfpubsub.protocol.events import Failure, FailureKind, Response
from sfpubsub.transports.memory import MemoryCall, MemoryTransport
from sfpubsub.types import RawEvent, ReplayId, StartPosition

from ..conftest import PATIENCE, QUICK, until
from .test_managed import ACCOUNT, NAME, TOPIC, committed, numbers, orders

SCHEMA = '{"type": "record", "name": "Tick__e", "fields": [{"name": "n", "type": "int"}]}'
# The hash of the schema: an answer under another id is fetched once more.
SCHEMA_ID = "Cva4kLeW--7EgQarSv0hMQ"
SESSION = Session("00D000000000001!x", "https://example.com")

OURS = ("sfpubsub-read", "sfpubsub-renew", "sfpubsub-alarm", "sfpubsub-aio")


def our_threads() -> list[str]:
    """Return the names of the running threads that a client has started."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(OURS)]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run *main* with a time limit, and check that it leaves no task, thread or executor behind."""

    async def guarded() -> Any:
        result = await asyncio.wait_for(main, 3 * PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert getattr(asyncio.get_running_loop(), "_default_executor", None) is None
        return result

    result = asyncio.run(guarded())
    until(lambda: not our_threads(), f"the end of {our_threads()}")
    return result


def client_of(emulator: Any, **arguments: Any) -> AsyncPubSubClient:
    """Return an asyncio client of *emulator* with short timings."""
    session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
    arguments = {"timings": QUICK, "insecure": "1", "endpoint": emulator.grpc_target, **arguments}
    return AsyncPubSubClient(session, **arguments)


async def eventually(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Let the event loop run until *condition* returns a true value, and return that value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {PATIENCE} s"
        await asyncio.sleep(0.005)  # polls again until the deadline
    return value


def consumed(plan: FaultPlan) -> bool:
    """Return whether every fault of *plan* has happened."""
    try:
        plan.assert_consumed()
    except AssertionError:
        return False
    return True


async def collect(subscription: Any, count: int) -> list[int]:
    """Read batches until they contain at least *count* events, and return the events' numbers."""
    seen: list[int] = []
    while len(seen) < count:
        batch = await subscription.next_batch(PATIENCE)
        assert batch is not None, f"{len(seen)} of {count}: {subscription.health()}"
        seen += numbers([batch])
    return seen


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel *task*, and check that awaiting it raises CancelledError."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Call(MemoryCall):
    """A fake stream that ends when the client half-closes it, as the service would."""

    def half_close(self):
        super().half_close()
        self.end()


class Script(MemoryTransport):
    """A scripted service with one schema; a test can make its GetSchema wait or fail."""

    def __init__(self) -> None:
        super().__init__(schemas={SCHEMA_ID: SCHEMA}, topics={"/event/Tick__e": SCHEMA_ID})
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.fetches = 0
        self.errors: list[Exception] = []

    def open_stream(self, target, opening):
        self._calls.put(call := Call(target, opening))
        return call

    def get_schema(self, schema_id):
        self.fetches += 1
        assert self.may_answer.wait(PATIENCE)
        if self.errors:
            raise self.errors.pop(0)
        return super().get_schema(schema_id)

    def client(self, **arguments: Any) -> AsyncPubSubClient:
        return AsyncPubSubClient(SESSION, transport=self, **{"timings": QUICK, **arguments})


def ticks(*values: int, pending: int = 90) -> Response:
    """Return a response with one event for each of *values*, which must be below 64 to fit into one
    byte of Avro.
    """
    events = tuple(
        RawEvent(f"id{value}", SCHEMA_ID, bytes([2 * value]), ReplayId(b"r%d" % value))
        for value in values
    )
    return Response(events, events[-1].replay_id, pending)


def values(batch: Any) -> list[int]:
    """Return the number in each event of *batch*."""
    return [event.value["n"] for event in batch]


class DictStore(ReplayStore):
    """A replay store in a dict, which records the threads that call it."""

    def __init__(self, start: StartPosition | None = None) -> None:
        self.start = start
        self.positions: dict[str, ReplayId] = {}
        self.threads: set[int] = set()

    def get(self, topic):
        self.threads.add(threading.get_ident())
        return StartPosition.after(self.positions[topic]) if self.positions else self.start

    def set(self, topic, replay_id):
        self.threads.add(threading.get_ident())
        self.positions[topic] = replay_id


class AsyncDictStore(AsyncReplayStore):
    """An async replay store in a dict; a test can make its calls wait."""

    def __init__(self, start: StartPosition | None = None) -> None:
        self.start = start
        self.positions: dict[str, ReplayId] = {}
        self.calls: list[str] = []
        self.hold: asyncio.Event | None = None
        self.busy = 0

    async def get(self, topic):
        self.calls.append("get")
        await self.pause()
        return StartPosition.after(self.positions[topic]) if self.positions else self.start

    async def set(self, topic, replay_id):
        self.calls.append("set")
        self.busy += 1
        try:
            assert self.busy == 1, "two calls at a time"
            await self.pause()
            self.positions[topic] = replay_id
        finally:
            self.busy -= 1

    async def pause(self):
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()


# Receiving.


def test_each_event_is_delivered_once_despite_drops(run_emulator):
    """A plain subscription delivers all events in order while its stream drops five times."""
    plan = FaultPlan([Fault("drop_stream", after_responses=2, times=5)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=10))
    emulator.publish(TOPIC, orders(300))

    async def main():
        seen = []
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            async for batch in subscription:
                seen += numbers([batch])
                if len(seen) >= 300:
                    break
            assert subscription.health().reconnects == 5
        return seen

    assert run(main()) == list(range(300))
    plan.assert_consumed()


def test_order_holds_when_iterations_over_events_are_left(run_emulator):
    """After ``break``, the next iteration goes on with the event that follows, whether or not the
    generator that was left has been finalised.
    """
    emulator = run_emulator(settings=Settings(events_per_response=3))
    emulator.publish(TOPIC, orders(9))

    async def main():
        seen, left = [], []
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            while len(seen) < 9:
                events = subscription.events()
                left.append(events)  # keeps it from being finalised
                async for event in events:
                    seen.append(int(event.value["Order_Number__c"]))
                    break
            for events in left:
                await events.aclose()
        return seen

    assert run(main()) == list(range(9))


def test_asking_for_the_next_batch_acks_the_previous_one(run_emulator):
    """Asking for a batch acks the one before it, and closing the subscription commits the acks.

    The last batch, which was never acked, is redelivered to the next subscription.
    """
    plan = FaultPlan([Fault("drop_stream", after_responses=3, times=2)])
    emulator = run_emulator(faults=plan, settings=Settings(events_per_response=10))
    results = emulator.publish(TOPIC, orders(100))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe_managed(NAME) as subscription,
        ):
            assert await collect(subscription, 90) == list(range(90))
        assert committed(emulator) == results[79].replay_id
        async with client_of(emulator) as client, client.subscribe_managed(NAME) as subscription:
            assert await collect(subscription, 20) == list(range(80, 100))

    run(main())
    plan.assert_consumed()


def test_manual_acks_and_commit(run_emulator):
    """Only the contiguous prefix of acked events is committed.

    A commit before any ack raises an error.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(10))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe_managed(NAME, ack="manual") as subscription,
        ):
            with pytest.raises(LocalProtocolError, match="nothing to commit"):
                await subscription.commit()
            events = list(await subscription.next_batch(PATIENCE))
            for index in (9, 2, 0, 1, 5):
                events[index].ack()
            receipt = await subscription.commit()
            assert receipt.replay_id == events[2].replay_id == subscription.health().committed

    run(main())


def test_timeout_returns_none_and_does_not_end_the_subscription(run_emulator):
    """`next_batch` returns None after its timeout, and a later call returns the next event."""
    emulator = run_emulator()

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            assert await subscription.next_batch(0) is None
            assert await subscription.next_batch(0.05) is None
            emulator.publish(TOPIC, orders(1))
            assert await collect(subscription, 1) == [0]

    run(main())


def test_slow_schema_fetch_does_not_block_the_loop():
    """A slow GetSchema delays only the batch that needs it, and several calls share one fetch."""
    script = Script()
    script.may_answer.clear()

    async def main():
        async with script.client() as client, client.subscribe("/event/Tick__e") as subscription:
            script.next_call().respond(ticks(1))
            task = asyncio.create_task(subscription.next_batch())
            await eventually(lambda: script.fetches == 1, "the fetch")
            assert await subscription.next_batch(0) is None  # the same fetch, not a second one
            script.may_answer.set()  # set by the loop, which must not be blocked
            assert values(await task) == [1]
            assert script.fetches == 1

    run(main())


def test_ready_batches_do_not_starve_other_tasks(run_emulator):
    """Other tasks of the loop run between batches, even if the next batch is always ready."""
    emulator = run_emulator(settings=Settings(events_per_response=1))
    emulator.publish(TOPIC, orders(50))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            await eventually(lambda: subscription.pending_count == 50)
            await collect(subscription, 1)  # fetches the schema, so all others are ready
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            async for batch in subscription:
                time.sleep(0.002)  # noqa: ASYNC251  # handling it blocks the loop
                if batch.raw_events[-1].replay_id == subscription.health().last_position:
                    break
            assert turns >= 48
            await cancelled(task)

    run(main())


def test_back_pressure_reaches_the_stream(run_emulator):
    """The client does not read ahead of its consumer: pending and requested events stay bounded."""
    emulator = run_emulator(settings=Settings(events_per_response=10))
    emulator.publish(TOPIC, orders(2000))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest", max_pending_count=50) as subscription,
        ):
            await eventually(lambda: subscription.pending_count >= 50)
            bound, seen = 50 + 100, []
            while len(seen) < 2000:
                health = subscription.health()
                assert health.pending_count + health.outstanding <= bound + 1, health
                seen += numbers([await subscription.next_batch(PATIENCE)])
            assert seen == list(range(2000))

    run(main())


def test_no_events_are_requested_while_the_limit_is_reached():
    """While too many events are waiting, no more are requested.

    Once all batches have been read, requests resume.
    """
    script = Script()

    async def main():
        async with (
            script.client() as client,
            client.subscribe("/event/Tick__e", max_pending_count=60) as subscription,
        ):
            call = script.next_call()
            call.respond(ticks(*range(50), pending=50))
            call.respond(ticks(*range(50), pending=50))
            call.respond(ticks(*range(50), pending=0))
            await eventually(lambda: subscription.pending_count == 150)
            assert subscription.health().outstanding == 0
            for _ in range(3):
                with pytest.raises(queue.Empty):
                    call.next_request(0)
                assert values(await subscription.next_batch(PATIENCE)) == list(range(50))
            assert call.next_request().num_requested == 60

    run(main())


def test_many_subscriptions_in_one_loop(run_emulator):
    """Each of 64 subscriptions receives all events in order, and they share a small thread pool."""
    emulator = run_emulator(settings=Settings(events_per_response=10))
    emulator.publish(TOPIC, orders(40))

    async def consume(client):
        async with client.subscribe(TOPIC, replay="earliest") as subscription:
            return await collect(subscription, 40)

    async def main():
        async with client_of(emulator) as client:
            seen = await asyncio.gather(*(consume(client) for _ in range(64)))
            pool = [name for name in our_threads() if name.startswith("sfpubsub-aio")]
            assert len(pool) <= POOL_SIZE
            return seen

    assert run(main()) == [list(range(40))] * 64


# Failures.


def test_errors_keep_their_type_and_gaps_are_reported_in_the_loop(run_emulator):
    """Errors have the same types as in the sync client, and `on_gap` is called in the loop's
    thread.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))

    async def main():
        gaps = []

        def on_gap(gap):
            gaps.append((gap.reason, threading.get_ident()))

        async with client_of(emulator) as client:
            with pytest.raises(TopicNotFoundError, match="Nothing__e"):
                async with client.subscribe("/event/Nothing__e") as subscription:
                    await subscription.next_batch(PATIENCE)
            with pytest.raises(ReplayIdRejectedError) as caught:
                async with client.subscribe(TOPIC, replay="00ff") as subscription:
                    await anext(subscription)
            assert caught.value.gap.after == ReplayId(b"\x00\xff")
            async with client.subscribe(
                TOPIC, replay="00ff", replay_fallback="earliest", on_gap=on_gap
            ) as subscription:
                assert await collect(subscription, 3) == [0, 1, 2]
            await eventually(lambda: gaps)
            assert gaps == [("rejected", threading.get_ident())]
            with pytest.raises(PermissionDeniedError):
                await client.publish("/data/AccountChangeEvent", [ACCOUNT])
            with pytest.raises(ConfigurationError, match="ack"):
                client.subscribe(TOPIC, ack="sometimes")
            with pytest.raises(ValueError, match="nowhere"):
                client.subscribe(TOPIC, replay="nowhere")

    run(main())


def test_batches_received_before_a_failure_are_delivered_first():
    """Batches that arrived before the stream failed are delivered.

    After them, each call raises the failure.
    """
    script = Script()

    async def main():
        async with script.client() as client:
            subscription = client.subscribe("/event/Tick__e")
            call = script.next_call()
            call.respond(ticks(1))
            call.respond(ticks(2))
            call.end(Failure(FailureKind.STOP, TopicNotFoundError("deleted")))
            await eventually(lambda: subscription.health().state == "closed")
            assert values(await anext(subscription)) == [1]
            assert values(await anext(subscription)) == [2]
            for _ in range(2):
                with pytest.raises(TopicNotFoundError, match="deleted"):
                    await anext(subscription)

    run(main())


def test_schema_fetch_is_retried_after_a_temporary_failure():
    """GetSchema is retried after a temporary failure, and no error is raised.

    An event whose schema the service does not know is delivered, as an undecodable one.
    """
    script = Script()
    script.errors = [StreamUnavailableError("down"), StreamUnavailableError("down")]

    async def main():
        async with script.client() as client, client.subscribe("/event/Tick__e") as subscription:
            call = script.next_call()
            call.respond(ticks(1))
            assert values(await subscription.next_batch(PATIENCE)) == [1]
            assert script.fetches == 3
            call.respond(Response((RawEvent("x", "other", b"", ReplayId(b"x")),), pending=50))
            batch = await subscription.next_batch(PATIENCE)
            assert batch is not None
            with pytest.raises(DecodeError, match="has no schema other"):
                _ = batch[0].value
            subscription.abort()
            with pytest.raises(SubscriptionClosedError):
                await subscription.next_batch()

    run(main())


def test_stream_failure_is_raised_while_a_schema_is_missing():
    """If the stream fails while a batch waits for its schema, the failure is raised."""
    script = Script()
    script.errors = [StreamUnavailableError("down")] * 100

    async def main():
        async with script.client() as client:
            subscription = client.subscribe("/event/Tick__e")
            call = script.next_call()
            call.respond(ticks(1))
            call.end(Failure(FailureKind.STOP, PermissionDeniedError("no longer")))
            await eventually(lambda: subscription.health().state == "closed")
            with pytest.raises(PermissionDeniedError, match="no longer"):
                await subscription.next_batch(PATIENCE)

    run(main())


def test_sync_client_raises_stream_failure_while_a_schema_is_missing():
    """The sync client, too, raises a stream failure while a batch waits for its schema."""
    script = Script()
    script.errors = [StreamUnavailableError("down")] * 100
    with PubSubClient(SESSION, transport=script, timings=QUICK) as client:
        subscription = client.subscribe("/event/Tick__e")
        call = script.next_call()
        call.respond(ticks(1))
        call.end(Failure(FailureKind.STOP, PermissionDeniedError("no longer")))
        until(lambda: subscription.health().state == "closed")
        with pytest.raises(PermissionDeniedError, match="no longer"):
            next(subscription)


def test_closing_the_sync_client_during_a_fetch_ends_iteration():
    """The iterating thread ends normally, without raising the closed channel's error."""
    script = Script()
    script.may_answer.clear()
    script.errors = [StreamUnavailableError("channel closed")]
    batches: list[Any] = []
    client = PubSubClient(SESSION, transport=script, timings=QUICK)
    subscription = client.subscribe("/event/Tick__e")
    script.next_call().respond(ticks(1))
    consumer = threading.Thread(target=lambda: batches.extend(subscription))
    consumer.start()
    until(lambda: script.fetches, "the fetch")
    client.close()
    script.may_answer.set()
    consumer.join(PATIENCE)
    assert not consumer.is_alive()
    assert batches == []


# Cancellation.


def test_a_cancelled_next_batch_loses_nothing(run_emulator):
    """Each event is delivered once and in order, no matter when calls to `next_batch`
    are cancelled.
    """
    emulator = run_emulator(settings=Settings(events_per_response=5))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            seen, attempts = [], 0
            emulator.publish(TOPIC, orders(500))
            while len(seen) < 500:
                attempts += 1
                task = asyncio.create_task(subscription.next_batch())
                for _ in range(attempts % 7):
                    await asyncio.sleep(0)
                if attempts % 3 == 0:
                    await asyncio.sleep(0.0005)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    seen += numbers([await task])
            assert seen == list(range(500))
            assert attempts > 100

    run(main())


def test_cancellation_after_arrival_keeps_the_batch():
    """If `next_batch` is cancelled after a batch has arrived, the next call returns that batch."""
    script = Script()

    async def main():
        async with script.client() as client, client.subscribe("/event/Tick__e") as subscription:
            task = asyncio.create_task(subscription.next_batch())
            call = script.next_call()
            await asyncio.sleep(0.01)
            call.respond(ticks(1))
            until(lambda: subscription.pending_count == 1)  # blocks the loop
            await cancelled(task)
            assert subscription.pending_count == 1
            assert values(await subscription.next_batch(PATIENCE)) == [1]
            subscription.abort()

    run(main())


def test_cancellation_during_a_schema_fetch_keeps_the_batch():
    """The next call returns the batch that was waiting for its schema, and does not fetch
    the schema again.
    """
    script = Script()
    script.may_answer.clear()

    async def main():
        async with script.client() as client, client.subscribe("/event/Tick__e") as subscription:
            script.next_call().respond(ticks(1))
            for _ in range(3):
                task = asyncio.create_task(subscription.next_batch())
                await eventually(lambda: script.fetches, "the fetch")
                for _ in range(5):
                    await asyncio.sleep(0)  # so that later calls wait for it, too
                await cancelled(task)
            assert len(client._jobs) == 1
            script.may_answer.set()
            assert values(await subscription.next_batch(PATIENCE)) == [1]
            assert script.fetches == 1
            subscription.abort()

    run(main())


def test_abort_discards_a_batch_that_waits_for_its_schema():
    """The waiting call raises SubscriptionClosedError even if the schema arrives later."""
    script = Script()
    script.may_answer.clear()

    async def main():
        async with script.client() as client:
            subscription = client.subscribe("/event/Tick__e")
            script.next_call().respond(ticks(1))
            task = asyncio.create_task(subscription.next_batch())
            await eventually(lambda: script.fetches, "the fetch")
            subscription.abort()
            script.may_answer.set()
            with pytest.raises(SubscriptionClosedError, match="Tick__e is closed"):
                await task

    run(main())


def test_a_cancelled_commit_leaves_no_waiter(run_emulator):
    """The late response to a cancelled commit does no harm, and a later commit succeeds."""
    emulator = run_emulator(settings=Settings(commit_answer_delay_s=0.2))
    emulator.publish(TOPIC, orders(2))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe_managed(NAME, ack="manual") as subscription,
        ):
            batch = await subscription.next_batch(PATIENCE)
            batch.ack()
            task = asyncio.create_task(subscription.commit())
            await asyncio.sleep(0)
            await cancelled(task)
            with pytest.raises(CommitError, match=r"not confirmed within 0\.01 s"):
                await subscription.commit(timeout=0.01)
            receipt = await subscription.commit()
            assert receipt.replay_id == batch.last_replay_id
            await eventually(lambda: not subscription._delivery.driver._tickets, "no ticket left")

    run(main())


def test_cancellation_commits_finished_batches_only(run_emulator):
    """Cancelling a task inside the block commits the finished batches, but not the current one."""
    settings = Settings(events_per_response=5, commit_answer_delay_s=0.1)
    emulator = run_emulator(settings=settings)
    results = emulator.publish(TOPIC, orders(20))

    async def main():
        handling = asyncio.Event()
        held = []

        async def consume(client):
            async with client.subscribe_managed(NAME) as subscription:
                held.append(subscription)
                async for batch in subscription:
                    if numbers([batch])[0] == 10:
                        handling.set()
                        await asyncio.Event().wait()

        async with client_of(emulator) as client:
            task = asyncio.create_task(consume(client))
            await handling.wait()
            await cancelled(task)
            assert held[0].health().state == "closed"
            assert committed(emulator) == results[9].replay_id

    run(main())


def test_a_second_cancellation_aborts(run_emulator):
    """A second cancellation ends the drain without waiting for the response to its commit."""
    plan = FaultPlan([Fault("leave_commit_unanswered")])
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(3))

    async def main():
        held = []

        async def consume(client):
            async with client.subscribe_managed(NAME, ack="manual") as subscription:
                held.append(subscription)
                (await subscription.next_batch(PATIENCE)).ack()
                await asyncio.Event().wait()

        timings = Timings(drain_timeout=60.0)
        async with client_of(emulator, timings=timings) as client:
            task = asyncio.create_task(consume(client))
            await eventually(lambda: consumed(plan), "a commit on its way")
            task.cancel()
            await eventually(lambda: held[0].health().state == "draining")
            assert not task.done()
            await cancelled(task)
            assert held[0].health().state == "closed"

    run(main())


def test_cancelled_drain_can_be_repeated(run_emulator):
    """After a cancelled `drain`, another `drain` waits until the commit is confirmed."""
    emulator = run_emulator(settings=Settings(commit_answer_delay_s=0.2))
    results = emulator.publish(TOPIC, orders(3))

    async def main():
        async with client_of(emulator) as client:
            subscription = client.subscribe_managed(NAME, ack="manual")
            (await subscription.next_batch(PATIENCE)).ack()
            task = asyncio.create_task(subscription.drain())
            await asyncio.sleep(0)
            await cancelled(task)
            await subscription.drain()
            assert committed(emulator) == results[2].replay_id
            await subscription.join(PATIENCE)

    run(main())


def test_failing_drain_does_not_hide_the_cancellation(run_emulator):
    """The task ends as cancelled even if its last commit could not be confirmed."""
    plan = FaultPlan([Fault("leave_commit_unanswered")])
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(3))

    async def main():
        acked = asyncio.Event()

        async def consume(client):
            async with client.subscribe_managed(NAME, ack="manual") as subscription:
                (await subscription.next_batch(PATIENCE)).ack()
                acked.set()
                await asyncio.Event().wait()

        async with client_of(emulator, timings=Timings(drain_timeout=0.2)) as client:
            task = asyncio.create_task(consume(client))
            await acked.wait()
            await cancelled(task)

    run(main())
    plan.assert_consumed()


# Stores.


def test_async_store_holds_the_acked_position(run_emulator):
    """The store is read before the stream opens, and written only after a batch is acked."""
    emulator = run_emulator(settings=Settings(events_per_response=5))
    results = emulator.publish(TOPIC, orders(15))
    store = AsyncDictStore(StartPosition.earliest())

    async def main():
        async with client_of(emulator) as client:
            subscription = client.subscribe(TOPIC, replay=store)
            assert store.calls == []
            assert subscription.health().state == "new"
            async with subscription:
                assert store.calls == ["get"]
                await subscription.next_batch(PATIENCE)
                assert store.positions == {}
                await subscription.next_batch(PATIENCE)
                assert bytes(store.positions[TOPIC]) == results[4].replay_id
            assert bytes(store.positions[TOPIC]) == results[4].replay_id
            async with client.subscribe(TOPIC, replay=store, ack="manual") as subscription:
                (await subscription.next_batch(PATIENCE)).ack()
            assert bytes(store.positions[TOPIC]) == results[9].replay_id
            subscription = client.subscribe(TOPIC, replay=store)  # opened by the first call
            assert await collect(subscription, 5) == list(range(10, 15))
            await subscription.drain()

    run(main())


def test_async_store_is_read_once_by_concurrent_tasks(run_emulator):
    """If two tasks open a subscription concurrently, its position is read only once.

    A subscription that is never opened reads nothing.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    store = AsyncDictStore(StartPosition.earliest())

    async def main():
        async with client_of(emulator) as client:
            store.hold = asyncio.Event()
            subscription = client.subscribe(TOPIC, replay=store)
            tasks = [asyncio.create_task(subscription.__aenter__()) for _ in range(2)]
            await eventually(lambda: store.calls)
            store.hold.set()
            await asyncio.gather(*tasks)
            assert await collect(subscription, 3) == [0, 1, 2]
            assert store.calls == ["get"]
            await subscription.drain()
            late = client.subscribe(TOPIC, replay=store)
            await late.drain()  # never opened, so there is nothing to read
            with pytest.raises(SubscriptionClosedError):
                await late.next_batch()
            assert store.calls.count("get") == 1

    run(main())


def test_cancelled_store_calls_are_retried(run_emulator):
    """The next call retries a cancelled read, and the drain retries a cancelled write."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(3))
    store = AsyncDictStore(StartPosition.earliest())

    async def main():
        async with client_of(emulator) as client:
            store.hold = asyncio.Event()
            subscription = client.subscribe(TOPIC, replay=store)
            task = asyncio.create_task(subscription.next_batch())
            await eventually(lambda: store.calls == ["get"])
            await cancelled(task)
            assert subscription.health().state == "new"
            store.hold.set()
            await collect(subscription, 3)
            store.hold.clear()
            task = asyncio.create_task(subscription.next_batch())
            await eventually(lambda: "set" in store.calls)
            await cancelled(task)
            assert store.positions == {}
            store.hold.set()
            await subscription.drain()
            assert bytes(store.positions[TOPIC]) == results[2].replay_id

    run(main())


@pytest.mark.parametrize("make", [AsyncDictStore, DictStore])
def test_position_that_could_not_be_stored_is_stored_later(run_emulator, make):
    """`next_batch` raises the error of the store, and the drain stores the acked position."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(3))
    store = make(StartPosition.earliest())
    whole = store.set

    def fail(_topic, _replay_id):
        store.set = whole
        raise OSError("disk full")

    async def main():
        async with client_of(emulator) as client:
            subscription = client.subscribe(TOPIC, replay=store)
            assert await collect(subscription, 3) == [0, 1, 2]
            store.set = fail
            with pytest.raises(OSError, match="disk full"):
                await subscription.next_batch(PATIENCE)
            assert store.positions == {}
            await subscription.drain()
            assert bytes(store.positions[TOPIC]) == results[2].replay_id

    run(main())


def test_async_store_calls_never_overlap(run_emulator):
    """A drain waits for a store call that is still running, and the newest position is stored."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(3))
    store = AsyncDictStore(StartPosition.earliest())

    async def main():
        async with client_of(emulator) as client:
            subscription = client.subscribe(TOPIC, replay=store)
            await collect(subscription, 3)
            store.hold = asyncio.Event()
            task = asyncio.create_task(subscription.next_batch())
            await eventually(lambda: store.busy, "a call of the store")
            draining = asyncio.create_task(subscription.drain())
            await eventually(lambda: subscription.health().state == "closed")
            await asyncio.sleep(0.01)
            store.hold.set()  # the store itself asserts that it has one call at a time
            await draining
            with pytest.raises(SubscriptionClosedError):
                await task
            assert bytes(store.positions[TOPIC]) == results[2].replay_id

    run(main())


def test_acks_from_threads_reach_the_store_in_the_loop(run_emulator):
    """A task that waits in `next_batch` stores the position that another thread acks meanwhile."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(3))

    async def main(store):
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay=store, ack="manual") as subscription,
        ):
            batch = await subscription.next_batch(PATIENCE)
            task = asyncio.create_task(subscription.next_batch())
            await asyncio.sleep(0.01)
            worker = threading.Thread(target=batch.ack)
            worker.start()
            await eventually(lambda: store.positions, "the position in the store")
            assert bytes(store.positions[TOPIC]) == results[2].replay_id
            worker.join(PATIENCE)
            await cancelled(task)

    run(main(AsyncDictStore(StartPosition.earliest())))
    run(main(DictStore(StartPosition.earliest())))


def test_blocking_store_is_never_called_in_the_loops_thread(run_emulator):
    """Neither reading nor storing a position blocks the event loop."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    store = DictStore(StartPosition.earliest())

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay_store=store) as subscription,
        ):
            batch = await subscription.next_batch(PATIENCE)
            assert await subscription.next_batch(0.01) is None  # no event, so it stores
            assert store.positions[TOPIC] == batch.last_replay_id

    run(main())
    assert store.threads
    assert threading.get_ident() not in store.threads


def test_nonblocking_store_is_called_in_the_loops_thread(run_emulator):
    """A store that never blocks may be a mapping such as a shelf, which works only in the thread
    that opened it.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    store = DictStore(StartPosition.earliest())
    store.may_wait = False  # as in MappingReplayStore

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay=store, ack="manual") as subscription,
        ):
            batch = await subscription.next_batch(PATIENCE)
            batch.ack()
            await subscription.next_batch(0.01)
            assert store.positions[TOPIC] == batch.last_replay_id

    run(main())
    assert store.threads == {threading.get_ident()}


def test_dict_is_accepted_as_a_replay_store(run_emulator):
    """As in the sync client, `replay` may be a dict of positions, which is read and updated."""
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(3))
    positions: dict[str, bytes] = {TOPIC: results[0].replay_id}

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay=positions) as subscription,
        ):
            assert await collect(subscription, 2) == [1, 2]
            await subscription.next_batch(0)
        assert positions[TOPIC] == results[2].replay_id

    run(main())


class HalfAsyncStore(DictStore):
    """A sync ReplayStore whose ``set`` is a coroutine by mistake."""

    async def set(self, topic, replay_id):
        super().set(topic, replay_id)


@pytest.mark.parametrize("make", [AsyncDictStore, HalfAsyncStore])
def test_sync_client_rejects_async_stores(run_emulator, connect, make):
    """The sync client rejects a store with a coroutine method; the asyncio client accepts it."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    store = make(StartPosition.earliest())
    with pytest.raises(ConfigurationError, match="AsyncPubSubClient"):
        connect(emulator).subscribe(TOPIC, replay=store)

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay=store) as subscription,
        ):
            await collect(subscription, 1)
            await subscription.next_batch(0)

    asyncio.run(main())
    assert TOPIC in store.positions


def test_run_can_be_repeated_after_its_store_failed(run_emulator):
    """If reading the position fails, `run` raises the error and the subscription stays usable."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(2))
    store = AsyncDictStore(StartPosition.earliest())
    answer, handled = store.get, []

    async def fail(topic):
        store.get = answer
        raise OSError("the database is down")

    async def main():
        async with client_of(emulator) as client:
            subscription = client.subscribe(TOPIC, replay_store=store)
            store.get = fail

            async def handle(event):
                handled.append(event.id)
                if len(handled) == 2:
                    subscription.stop()

            with pytest.raises(OSError, match="database is down"):
                await subscription.run(handle)
            summary = await asyncio.wait_for(subscription.run(handle), PATIENCE)
            assert summary.handled == len(handled) == 2
            await subscription.drain()

    run(main())


# The client.


def test_unary_calls(run_emulator):
    """The sync client's unary calls can be awaited, and the events to publish can come
    from any iterable.
    """
    emulator = run_emulator()

    async def main():
        async with client_of(emulator) as client:
            await client.connect()
            topic = await client.get_topic(TOPIC)
            schema = await client.get_schema(topic.schema_id)
            assert "Order_Number__c" in schema.schema_json
            event = {"CreatedDate": 1, "CreatedById": "005000000000001AAA"}
            results = await client.publish(
                TOPIC, ({**event, "Order_Number__c": str(index)} for index in range(3))
            )
            assert [result.ok for result in results] == [True] * 3
            async with client.subscribe(TOPIC, replay="earliest") as subscription:
                assert await collect(subscription, 3) == [0, 1, 2]
            assert "sfpubsub-aio_0" in our_threads()
        assert "sfpubsub-aio_0" not in our_threads()  # closing waits for them

    run(main())


def test_closing_the_client_ends_its_subscriptions(run_emulator):
    """Waiting tasks get SubscriptionClosedError, and later calls say that the client is closed."""
    emulator = run_emulator(settings=Settings(keepalive_s=0.05))

    async def main():
        client = client_of(emulator)
        async with client:
            subscriptions = [client.subscribe(TOPIC), client.subscribe_managed(NAME)]
            tasks = [asyncio.create_task(each.next_batch()) for each in subscriptions]
            await eventually(
                lambda: all(each.health().state == "streaming" for each in subscriptions)
            )
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [SubscriptionClosedError] * 2
        for each in subscriptions:
            assert each.health().state == "closed"
            await each.drain()
        for call in (client.get_topic(TOPIC), client.connect(1)):
            with pytest.raises(LocalProtocolError, match="client is closed"):
                await call
        with pytest.raises(LocalProtocolError, match="client is closed"):
            client.subscribe(TOPIC)
        with pytest.raises(LocalProtocolError, match="client is closed"):
            client.subscribe_managed(NAME)
        await client.close()

    run(main())


def test_closing_during_a_fetch_does_not_cancel_the_waiting_task():
    """The task receives SubscriptionClosedError, not a cancellation or the channel's error."""
    script = Script()
    script.may_answer.clear()

    async def main():
        client = script.client()
        subscription = client.subscribe("/event/Tick__e")
        script.next_call().respond(ticks(1))
        task = asyncio.create_task(subscription.next_batch())
        await eventually(lambda: script.fetches, "the fetch")
        closing = asyncio.create_task(client.close())
        await eventually(lambda: subscription.health().state == "closed")
        script.errors = [StreamUnavailableError("channel closed")]
        script.may_answer.set()
        await closing
        with pytest.raises(SubscriptionClosedError):
            await task

    run(main())


def test_a_session_is_fetched_in_a_thread(run_emulator):
    """A session provider that waits for the network does not block the loop."""
    emulator = run_emulator()
    ready = threading.Event()
    threads = []

    class Provider:
        def get_session(self, expired):
            threads.append(threading.get_ident())
            assert ready.wait(PATIENCE)
            return Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)

    async def main():
        client = AsyncPubSubClient(Provider(), endpoint=emulator.grpc_target, insecure="1")
        async with client, client.subscribe(TOPIC, replay="earliest") as subscription:
            call = asyncio.create_task(client.get_topic(TOPIC))
            await eventually(lambda: threads)
            ready.set()
            assert (await call).topic_name == TOPIC
            emulator.publish(TOPIC, orders(1))
            assert await collect(subscription, 1) == [0]

    run(main())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_cancelled_calls_do_not_delay_later_calls():
    """Running calls finish in their threads; queued calls that were cancelled are never made."""
    script = Script()
    script.may_answer.clear()

    async def main():
        async with script.client() as client:
            calls = [
                asyncio.create_task(client.get_schema(SCHEMA_ID)) for _ in range(POOL_SIZE + 5)
            ]
            await eventually(lambda: script.fetches == POOL_SIZE, "a full pool")
            for call in calls:
                await cancelled(call)
            script.may_answer.set()
            assert (await client.get_schema(SCHEMA_ID)).schema_id == SCHEMA_ID
            assert script.fetches == POOL_SIZE + 1

    run(main())


def test_subscription_survives_the_early_close_of_its_loop(run_emulator):
    """The subscription's threads keep running and reconnect without a loop, and another loop can
    close the client.
    """
    plan = FaultPlan()
    emulator = run_emulator(faults=plan, settings=Settings(keepalive_s=0.05))
    held = []

    async def begin():
        client = client_of(emulator)
        subscription = client.subscribe(TOPIC, replay="earliest", on_gap=print)
        held.extend([client, subscription])
        await eventually(lambda: subscription.health().state == "streaming")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    client, subscription = held
    emulator.publish(TOPIC, orders(3))
    plan.add(Fault("drop_stream", after_responses=1))
    until(lambda: subscription.pending_count == 3, "events without a loop")
    emulator.publish(TOPIC, orders(1))
    until(lambda: subscription.health().reconnects == 1, "a reconnect without a loop")
    until(lambda: subscription.pending_count == 4, "events of the new stream")
    plan.assert_consumed()
    run(client.close())
    assert subscription.health().state == "closed"


def test_sync_and_asyncio_clients_share_a_process(run_emulator, connect):
    """A sync client and an asyncio client that are open at once read the same events."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(5))

    async def main():
        async with (
            client_of(emulator) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            return await collect(subscription, 5)

    client: PubSubClient = connect(emulator)
    with client.subscribe(TOPIC, replay="earliest") as subscription:
        assert asyncio.run(main()) == numbers([subscription.next_batch(PATIENCE)])
