"""Publishing over gRPC streams and calls, with both clients, while the service misbehaves."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.client.aio import AsyncPubSubClient
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import LARGEST_EVENT, MAX_PUBLISH_EVENTS, Timings
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    EncodeError,
    LocalProtocolError,
    PermissionDeniedError,
    PublishError,
)
from sfpubsub.testing import Fault

from ..conftest import PATIENCE, QUICK, until
from .test_managed import TOPIC

USER = "005000000000001AAA"


class Later:
    """The result of a receipt, as an awaitable."""

    def __init__(self, receipt: Any) -> None:
        self.receipt = receipt

    def __await__(self):
        return asyncio.to_thread(self.receipt.result, PATIENCE).__await__()


class InTasks:
    """Sends events of an asyncio publisher in tasks, so that several are in flight."""

    def __init__(self, publisher: Any) -> None:
        self.publisher = publisher

    async def post(self, *arguments, **options):
        """Send an event without waiting for its result; return an awaitable for it."""
        return asyncio.ensure_future(self.publisher.send(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.publisher, name)


class Awaited:
    """Makes a blocking publisher awaitable, so that both clients can run the same scenarios."""

    def __init__(self, publisher: Any) -> None:
        self.publisher = publisher

    async def post(self, *arguments, **options):
        """Send an event without waiting for its result; return an awaitable for it."""
        return Later(await asyncio.to_thread(self.publisher.send, *arguments, **options))

    async def send(self, *arguments, **options):
        """Send an event, and return its result."""
        return await (await self.post(*arguments, **options))

    async def flush(self, timeout=None):
        await asyncio.to_thread(self.publisher.flush, timeout)

    async def close(self):
        await asyncio.to_thread(self.publisher.close)

    @property
    def counts(self):
        return self.publisher.counts


class Provider:
    """A session provider that signs in to an emulator again whenever its session expires."""

    def __init__(self, emulator: Any) -> None:
        self.emulator = emulator

    def get_session(self, expired: Session | None = None) -> Session:
        e = self.emulator
        if expired is not None:
            e.new_token()
        return Session(e.access_token, e.instance_url, e.tenant_id)


@asynccontextmanager
async def publisher_of(face: str, emulator: Any, *, timings: Timings = QUICK, **options):
    """Open a publisher of the client named by *face*: "sync" or "asyncio"."""
    options.setdefault("created_by", USER)
    settings = {"endpoint": emulator.grpc_target, "insecure": "1", "timings": timings}
    if face == "sync":
        with PubSubClient(Provider(emulator), **settings) as client:  # noqa: SIM117
            with client.open_publisher(TOPIC, **options) as publisher:
                yield Awaited(publisher)
        return
    async with AsyncPubSubClient(Provider(emulator), **settings) as client:  # noqa: SIM117
        async with client.open_publisher(TOPIC, **options) as publisher:
            yield InTasks(publisher)


async def posted_and_left(publisher, *arguments, **options) -> None:
    """Send an event, and wait until it was handed over; nothing asks for its result."""
    later = await publisher.post(*arguments, **options)
    if isinstance(later, asyncio.Task):
        async with asyncio.timeout(PATIENCE):
            # Looks at every turn of the loop, so that the task is cancelled before it has a result.
            while not sum(vars(publisher.counts).values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
        later.cancel()


def run(scenario):
    """Run the coroutine *scenario* with a timeout."""
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


def on_the_bus(emulator, connect) -> list[tuple[str, dict]]:
    """Return the id and value of every published event, in the order of publication."""
    found: list[tuple[str, dict]] = []
    with connect(emulator).subscribe(TOPIC, replay="earliest") as subscription:
        tip = emulator.bus.tip()
        while len(found) < tip:
            batch = subscription.next_batch(PATIENCE)
            assert batch is not None
            found += [(event.id, event.value) for event in batch]
    return found


FACES = pytest.mark.parametrize("face", ["sync", "asyncio"])


@FACES
@pytest.mark.parametrize("streamed", [True, False])
def test_events_arrive_once_and_in_order(face, streamed, run_emulator, connect):
    """With one request in flight, events are published exactly once and in order.

    Each receipt returns the result of its own event.
    """
    emulator = run_emulator()

    async def scenario():
        async with publisher_of(face, emulator, streamed=streamed, ordered=True) as publisher:
            receipts = [await publisher.post({"Amount__c": float(n)}) for n in range(450)]
            await publisher.flush()
            return [await receipt for receipt in receipts], publisher.counts

    results, counts = run(scenario())
    found = on_the_bus(emulator, connect)
    assert [value["Amount__c"] for _, value in found] == list(range(450))
    assert [result.correlation_key for result in results] == [name for name, _ in found]
    assert all(str(uuid.UUID(name)) == name for name, _ in found)
    assert (counts.accepted, counts.sent_again, counts.streams) == (450, 0, 1)


@FACES
@pytest.mark.parametrize("streamed", [True, False])
def test_no_event_is_lost_and_repeats_keep_their_id(face, streamed, run_emulator, connect):
    """No event is lost to lost responses, dropped calls, temporary rejections or an expired token.

    An event that is published again keeps its id and is counted as sent again.
    """
    emulator = run_emulator()
    rpc = "PublishStream" if streamed else "Publish"
    faults = [
        Fault("drop_call", rpc=rpc, times=2),
        Fault("lose_answer", rpc=rpc, times=2),
        Fault("lose_answer", rpc=rpc, status="RESET", after_responses=1 if streamed else 0),
        Fault("refuse_event", times=3),
        Fault("refuse", rpc=rpc, error_code="service.protection.triggered"),
    ]
    for fault in faults:
        emulator.faults.add(fault)

    async def scenario():
        async with publisher_of(face, emulator, streamed=streamed) as publisher:
            ids = [f"order-{n}" for n in range(1000)]
            for n, event_id in enumerate(ids):
                await publisher.post({"Amount__c": float(n)}, event_id=event_id)
                if n == 500:
                    emulator.faults.add(Fault("expire_token"))
            await publisher.flush()
            return ids, publisher.counts

    ids, counts = run(scenario())
    emulator.faults.assert_consumed()
    found = Counter(name for name, _ in on_the_bus(emulator, connect))
    assert sorted(found) == sorted(ids)
    repeats = sum(found.values()) - len(found)
    assert 0 < repeats <= counts.sent_again
    assert (counts.accepted, counts.failed, counts.pending) == (1000, 0, 0)


@FACES
def test_changed_schema_loses_no_event(face, run_emulator, connect):
    """An event that is rejected for its old schema is encoded with the new one and sent again with
    the same id.
    """
    emulator = run_emulator(settings=Settings(accept_old_schemas=False))

    async def scenario():
        async with publisher_of(face, emulator) as publisher:
            first = await publisher.send({"City__c": "Bern"}, event_id="a")
            change_schema(emulator)
            second = await publisher.send({"City__c": "Chur"}, event_id="b")
            # By now the publisher knows the new schema.
            third = await publisher.send({"New__c": "x"}, event_id="c")
            return [result.ok for result in (first, second, third)], publisher.counts

    oks, counts = run(scenario())
    assert oks == [True] * 3
    found = on_the_bus(emulator, connect)
    assert [name for name, _ in found] == ["a", "b", "c"]
    assert found[1][1]["City__c"] == "Chur"
    assert found[1][1]["New__c"] is None
    assert counts.sent_again == 1


def test_events_that_expire_during_a_schema_fetch_fail_alone(run_emulator, connect):
    """Events that time out while the schema is fetched fail; later ones are published."""
    emulator = run_emulator(settings=Settings(accept_old_schemas=False))
    with connect(emulator).open_publisher(TOPIC, created_by=USER, timeout=1.0) as publisher:
        change_schema(emulator)
        # All three are sent before the first answer, so that two wait for the schema together.
        emulator.faults.add(Fault("delay_call", rpc="PublishStream", seconds=0.3))
        emulator.faults.add(Fault("delay_call", rpc="GetSchema", seconds=2.5))
        late = [publisher.send({"City__c": "Chur"}) for _ in range(3)]
        errors = [str(receipt.exception(PATIENCE)) for receipt in late]
        assert all("no result within" in error for error in errors)
        assert publisher.send({"New__c": "x"}).result(PATIENCE).ok
        threads = publisher._outbound.driver._threads
        until(lambda: not any("encode" in t.name and t.is_alive() for t in threads), "all threads")
        assert publisher.send({"New__c": "y"}).result(PATIENCE).ok
        publisher.flush()  # the receipts have told the failures


@FACES
def test_added_field_can_be_set_at_once(face, run_emulator, connect):
    """A value with a newly added field makes the publisher fetch the new schema, and only once."""
    emulator = run_emulator()

    async def scenario():
        async with publisher_of(face, emulator, ordered=True) as publisher:
            await publisher.send({"City__c": "Bern"})
            change_schema(emulator)
            for rpc in ("GetTopic", "GetSchema"):  # counts the calls, and delays none
                emulator.faults.add(Fault("delay_call", rpc=rpc, seconds=0.0, times=9))
            await publisher.send({"New__c": "x"})
            await publisher.send({"New__c": "y"})
            with pytest.raises(EncodeError, match="Nope"):
                await publisher.send({"Nope": 1})
            # How often the topic is fetched depends on the time between the values.
            assert emulator.faults.report()[1]["happened"] == 1

    run(scenario())
    found = [value.get("New__c") for _, value in on_the_bus(emulator, connect)]
    assert found == [None, "x", "y"]


def change_schema(emulator) -> None:
    """Add the field New__c to the topic's schema."""
    schema = json.loads(emulator.bus.schema(emulator.bus.topic(TOPIC).schema_id).text)
    schema["fields"].append({"name": "New__c", "type": ["null", "string"], "default": None})
    emulator.change_schema(TOPIC, json.dumps(schema))


@FACES
@pytest.mark.parametrize(
    ("value", "options", "says"),
    [
        ({"Notes__c": "x" * LARGEST_EVENT}, {"event_id": "big"}, "event big has .* bytes"),
        ({}, {"headers": {"a": b"x" * LARGEST_EVENT}}, "including headers"),
        ({}, {"event_id": "x" * 37}, "1 to 36 characters"),
        ({}, {"event_id": ""}, "1 to 36 characters"),
        ({}, {"event_id": 7}, "1 to 36 characters"),
        ({}, {"headers": {"a": 1}}, "header 'a'"),
        ({}, {"headers": {1: "a"}}, "header 1"),
        ([], {}, "must be a mapping"),
    ],
)
def test_invalid_event_is_not_sent(face, value, options, says, run_emulator):
    """An invalid event raises an error that says what is wrong; the next event is published."""
    emulator = run_emulator()

    async def scenario():
        async with publisher_of(face, emulator) as publisher:
            with pytest.raises(EncodeError, match=says):
                await publisher.send(value, **options)
            assert (await publisher.send({}, headers={"trace": "1", "raw": b"\x00"})).ok

    run(scenario())
    assert emulator.bus.tip() == 1


@FACES
def test_send_waits_while_too_many_events_have_no_result(face, run_emulator):
    """With a limit of five pending events, sending a sixth waits until the service responds."""
    emulator = run_emulator(clock=ManualClock())
    emulator.faults.add(Fault("delay_call", rpc="PublishStream", seconds=5.0))

    async def scenario():
        async with publisher_of(face, emulator, max_pending_count=5) as publisher:
            for _ in range(5):
                await publisher.post({})
            await asyncio.to_thread(until, lambda: publisher.counts.pending == 5, "five events")
            sixth = asyncio.ensure_future(publisher.send({}))
            done, _ = await asyncio.wait({sixth}, timeout=0.1)
            assert not done
            assert publisher.counts.pending == 5
            with pytest.raises(PublishError, match=r"5 events have no result after 0\.01 s"):
                await publisher.flush(0.01)
            emulator.clock.jump(5)
            assert (await sixth).ok

    run(scenario())


@FACES
def test_a_refused_event_raises_once(face, run_emulator):
    """A refused event raises `PublishError` with its result where the result is asked for; then
    neither `flush` nor closing raises it again.
    """
    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_event", text="no such record"))

    async def scenario():
        async with publisher_of(face, emulator) as publisher:
            with pytest.raises(PublishError, match=r"event bad failed: no such record") as raised:
                await publisher.send({}, event_id="bad")
            assert [result.correlation_key for result in raised.value.results] == ["bad"]
            assert not raised.value.retryable
            assert (await publisher.send({}, event_id="good")).ok
            await publisher.flush()

    run(scenario())
    assert emulator.bus.tip() == 1


def test_flush_raises_the_failure_of_a_receipt_that_was_not_asked_once(run_emulator, connect):
    """After `flush` has raised a failure, neither another flush nor closing raises it again; the
    receipt still does.
    """
    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_event", text="no such record"))
    with connect(emulator).open_publisher(TOPIC, created_by=USER) as publisher:
        receipt = publisher.send({}, event_id="bad")
        with pytest.raises(PublishError, match=r"1 event failed.*bad.*no such record"):
            publisher.flush()
        publisher.flush()
        with pytest.raises(PublishError, match="event bad failed"):
            receipt.result(PATIENCE)


@FACES
def test_close_raises_failures_that_were_not_reported(face, run_emulator):
    """Closing a publisher raises the failure of an event whose receipt was never read."""
    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_event", text="no such record"))

    async def scenario():
        with pytest.raises(PublishError, match="no such record"):
            async with publisher_of(face, emulator) as publisher:
                await posted_and_left(publisher, {})
        with pytest.raises(LocalProtocolError, match="closed"):
            await publisher.send({})

    run(scenario())


@FACES
def test_permission_error_ends_the_publisher(face, run_emulator):
    """If the user may not publish, the receipt reports the error, and the next `send` raises it."""
    emulator = run_emulator()
    emulator.faults.add(Fault("refuse", rpc="PublishStream", error_code="topic.meta.permission"))

    async def scenario():
        with pytest.raises(PermissionDeniedError):  # noqa: PT012
            async with publisher_of(face, emulator) as publisher:
                with pytest.raises(PublishError, match="may have been published") as raised:
                    await publisher.send({})
                assert "topic.meta.permission" in str(raised.value)
                assert isinstance(raised.value.__cause__, PermissionDeniedError)
                assert not raised.value.retryable
                with pytest.raises(PermissionDeniedError):
                    await publisher.send({})

    run(scenario())


@FACES
def test_event_without_a_result_fails_after_its_timeout(face, run_emulator):
    """An event with no result before the timeout fails with a retryable error.

    The error says that the event may have been published.
    """
    emulator = run_emulator()
    emulator.faults.add(Fault("lose_answer", times=10_000))

    async def scenario():
        with pytest.raises(PublishError, match=r"no result within 0\.5 s") as raised:
            async with publisher_of(face, emulator, timeout=0.5) as publisher:
                await posted_and_left(publisher, {}, event_id="a")
        assert "may have been published" in raised.value.results[0].error
        assert raised.value.retryable

    run(scenario())


@FACES
def test_an_exception_in_the_block_closes_without_waiting(face, run_emulator):
    """An exception in the `with` block closes the publisher without waiting for results.

    The receipt of a pending event reports that the publisher was closed before a result arrived.
    """
    emulator = run_emulator(clock=ManualClock())
    emulator.faults.add(Fault("delay_call", rpc="PublishStream", seconds=5.0))
    receipts = []

    async def scenario():
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with publisher_of(face, emulator) as publisher:
                receipts.append(await publisher.post({}))
                await asyncio.to_thread(until, lambda: publisher.counts.pending, "the event")
                raise ZeroDivisionError
        with pytest.raises(PublishError, match="closed before a result"):
            await receipts[0]

    run(scenario())


@FACES
def test_idle_stream_is_closed_by_the_client_and_reopened(face, run_emulator, connect):
    """The client closes an idle stream before the service would; the next event opens a new one."""
    emulator = run_emulator(settings=Settings(publish_stream_idle_s=PATIENCE / 2))
    timings = Timings(publish_idle=0.05, backoff_initial=0.02)

    async def scenario():
        async with publisher_of(face, emulator, timings=timings) as publisher:
            for count in (1, 2):
                assert (await publisher.send({})).ok
                assert publisher.counts.streams == count
                await asyncio.to_thread(
                    until, lambda: not is_reading(TOPIC), "the end of the idle stream"
                )

    run(scenario())
    assert emulator.bus.tip() == 2


def is_reading(topic: str) -> bool:
    """Return whether a thread is still reading a stream of *topic*."""
    return any(thread.name == f"sfpubsub-read {topic}" for thread in threading.enumerate())


def test_publish_call_resends_unanswered_events(run_emulator, connect):
    """Only events without a result and temporarily refused ones are sent again, with the same ids.

    Results are in the order of the events.
    """
    emulator = run_emulator()
    emulator.faults.add(Fault("lose_answer", rpc="Publish"))
    emulator.faults.add(Fault("refuse_event", rpc="Publish", times=2))
    events = [{"Amount__c": float(n)} for n in range(300)]
    results = connect(emulator).publish(TOPIC, events, created_by=USER)
    emulator.faults.assert_consumed()
    found = on_the_bus(emulator, connect)
    by_id = {name: value["Amount__c"] for name, value in found}
    assert [by_id[result.correlation_key] for result in results] == list(range(300))
    # The first answer is lost, with a refusal of the first event in it; the second one refuses
    # this event again, and no other is sent a third time.
    first = MAX_PUBLISH_EVENTS
    times = Counter(name for name, _ in found)
    assert [times[result.correlation_key] for result in results] == (
        [1] + [2] * (first - 1) + [1] * (300 - first)
    )


def test_the_timeout_of_a_list_is_that_of_each_event(run_emulator, connect):
    """A list that takes longer than the timeout is published, as long as results arrive."""
    emulator = run_emulator()
    emulator.faults.add(Fault("delay_call", rpc="Publish", seconds=0.35, times=5))
    events = [{"Amount__c": float(n)} for n in range(5 * MAX_PUBLISH_EVENTS)]
    results = connect(emulator).publish(TOPIC, events, created_by=USER, timeout=1.5)
    emulator.faults.assert_consumed()
    assert all(result.ok for result in results)
    assert emulator.bus.tip() == len(events)


def test_a_list_is_not_sent_further_when_events_get_no_result(run_emulator, connect):
    """If events get no result in time, the events after them fail at once and were never sent."""
    emulator = run_emulator()
    emulator.faults.add(Fault("lose_answer", rpc="Publish", times=10_000))
    with pytest.raises(PublishError, match="no result within") as raised:
        connect(emulator).publish(TOPIC, [{}] * 1000, created_by=USER, timeout=0.3)
    assert len(raised.value.results) == 1000
    assert raised.value.retryable
    assert "never sent" in str(raised.value.results[-1].error)


def test_publish_call_reports_every_result(run_emulator, connect):
    """If one of three events is rejected, the error contains all three results.

    An event that cannot be encoded fails the call before anything is published.
    """
    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_event", text="no such record"))
    with pytest.raises(PublishError, match=r"1 of 3 events failed.*no such record") as raised:
        connect(emulator).publish(TOPIC, [{}] * 3, created_by=USER)
    assert sum(result.ok for result in raised.value.results) == 2
    assert not raised.value.retryable
    with pytest.raises(EncodeError, match="event 2 is not valid, so none was published"):
        connect(emulator).publish(TOPIC, [{}, {"Nope": 1}], created_by=USER)
    assert emulator.bus.tip() == 2


def test_publishing_an_empty_list_returns_no_results(run_emulator, connect):
    """An empty list of events is not an error, and no Publish call is made for it."""
    emulator = run_emulator()
    emulator.faults.add(Fault("delay_call", rpc="Publish", seconds=0.0))
    assert connect(emulator).publish(TOPIC, []) == []
    assert [fault["happened"] for fault in emulator.faults.report()] == [0]


def test_topic_and_schema_are_fetched_once(run_emulator, connect):
    """Calling `publish` again calls neither GetTopic nor GetSchema."""
    emulator = run_emulator()
    client = connect(emulator)
    client.publish(TOPIC, [{}], created_by=USER)
    for rpc in ("GetTopic", "GetSchema"):
        emulator.faults.add(Fault("refuse", rpc=rpc))
    client.publish(TOPIC, [{}], created_by=USER)
    assert [fault["happened"] for fault in emulator.faults.report()] == [0, 0]


def test_closing_the_client_ends_its_publishers(run_emulator, connect):
    """Closing the client closes its publishers, and no new ones can be opened.

    The receipt of a pending event reports that its publisher was closed before a result arrived.
    """
    emulator = run_emulator(clock=ManualClock())
    emulator.faults.add(Fault("delay_call", rpc="PublishStream", seconds=5.0))
    client = connect(emulator)
    publisher = client.open_publisher(TOPIC, created_by=USER)
    receipt = publisher.send({})
    client.close()
    assert "closed before a result" in str(receipt.exception(PATIENCE))
    with pytest.raises(LocalProtocolError, match="closed"):
        client.open_publisher(TOPIC)
