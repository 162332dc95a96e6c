"""Tests of the callbacks of `Publisher.send`, which are code of the application."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, as_completed, wait

import pytest

from sfpubsub.errors import PublishError
from sfpubsub.types import PublishResult

from ..conftest import PATIENCE, until
from .scripted_publishing import TOPIC, Bus, client_of


def test_a_callback_may_send_while_the_publisher_is_full():
    """A callback that sends an event does not wait for room, which only it could make."""
    bus = Bus()
    bus.answers.clear()
    with client_of(bus) as client, client.open_publisher(TOPIC, max_pending_count=2) as publisher:
        second: list[Future[PublishResult]] = []
        first = publisher.send({"n": 1})
        first.add_done_callback(lambda _receipt: second.append(publisher.send({"n": 3})))
        first.add_done_callback(lambda _receipt: second.append(publisher.send({"n": 4})))
        publisher.send({"n": 2})
        bus.answers.set()
        until(lambda: len(second) == 2, "the events sent by the callbacks", patience=20.0)
        assert second[1].result(PATIENCE).ok
    assert len(bus.ids) == 4


def test_a_callback_may_exceed_the_limit_up_to_twice():
    """A callback that sends more events than twice the limit gets an error instead of a wait."""
    bus = Bus()
    with client_of(bus) as client, client.open_publisher(TOPIC, max_pending_count=3) as publisher:
        sent: list[Future[PublishResult]] = []
        failed: list[Exception] = []

        def send_many(_receipt: Future[PublishResult]) -> None:
            bus.answers.clear()
            try:
                for number in range(100):
                    sent.append(publisher.send({"n": number}))  # noqa: PERF401  # it raises
            except PublishError as error:
                failed.append(error)

        publisher.send({"n": 0}).add_done_callback(send_many)
        until(lambda: failed, "the error")
        assert len(sent) == 6
        assert "twice the limit" in str(failed[0])
        bus.answers.set()
        publisher.flush(PATIENCE)


def test_a_slow_callback_delays_nothing_but_callbacks():
    """While a callback runs, results arrive, events are sent, and deadlines are met."""
    bus = Bus()
    released = threading.Event()
    with client_of(bus, publish_idle=0.01) as client, client.open_publisher(TOPIC) as publisher:
        begun = threading.Event()

        def be_slow(_receipt: Future[PublishResult]) -> None:
            begun.set()
            assert released.wait(PATIENCE)

        publisher.send({"n": 1}).add_done_callback(be_slow)
        assert begun.wait(PATIENCE)
        assert publisher.send({"n": 2}).result(PATIENCE).ok
        publisher.flush(PATIENCE)
        # The timer of the client ends the idle stream, so that the next event opens another.
        first = publisher.counts.streams

        def is_reopened() -> bool:
            assert publisher.send({"n": 3}).result(PATIENCE).ok
            return publisher.counts.streams > first

        until(is_reopened, "another stream")
        released.set()


def test_close_waits_for_callbacks():
    """Leaving the block returns after the last callback has returned."""
    done: list[int] = []
    released = threading.Event()
    with client_of(Bus()) as client:
        with client.open_publisher(TOPIC) as publisher:
            publisher.send({"n": 0}).add_done_callback(lambda _receipt: released.wait(PATIENCE))
            for number in range(50):
                receipt = publisher.send({"n": number})
                receipt.add_done_callback(lambda _receipt, number=number: done.append(number))
            threading.Timer(0.05, released.set).start()
        assert done == list(range(50))


def test_close_names_the_callback_that_hangs():
    """A callback that does not return within the publisher's timeout is named by the error."""
    released = threading.Event()

    def never_returns(_receipt: Future[PublishResult]) -> None:
        released.wait(PATIENCE)

    with client_of(Bus()) as client:
        publisher = client.open_publisher(TOPIC, timeout=0.2)
        publisher.send({"n": 1}, event_id="one").add_done_callback(never_returns)
        with pytest.raises(PublishError, match=r"callback .*never_returns of event one has not"):
            publisher.close()
        released.set()
        publisher.close()


def test_a_callback_may_close_the_publisher():
    """A callback that closes its publisher does not wait for itself."""
    closed = threading.Event()
    with client_of(Bus()) as client:
        publisher = client.open_publisher(TOPIC)

        def close(_receipt: Future[PublishResult]) -> None:
            publisher.close()
            closed.set()

        publisher.send({"n": 1}).add_done_callback(close)
        assert closed.wait(PATIENCE)


def test_a_failing_callback_is_logged_and_the_others_run(caplog):
    """An exception in a callback is logged with its event; further callbacks are called."""
    called = threading.Event()
    with client_of(Bus()) as client, client.open_publisher(TOPIC) as publisher:
        receipt = publisher.send({"n": 1}, event_id="one")
        receipt.add_done_callback(lambda _receipt: 1 / 0)
        receipt.add_done_callback(lambda _receipt: called.set())
        assert called.wait(PATIENCE)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "callback of event one" in record.getMessage()


def test_a_callback_that_is_added_late_is_called():
    """A callback is called after its event has a result, and after the publisher was closed."""
    with client_of(Bus()) as client:
        publisher = client.open_publisher(TOPIC)
        receipt = publisher.send({"n": 1})
        receipt.result(PATIENCE)
        called: list[Future[PublishResult]] = []
        receipt.add_done_callback(called.append)
        publisher.close()
        assert called == [receipt]
        receipt.add_done_callback(called.append)
        assert called == [receipt] * 2


def test_a_receipt_is_a_future_for_the_standard_library():
    """`wait`, `as_completed` and `asyncio.wrap_future` work, and failures raise `PublishError`."""
    bus = Bus(refuses=lambda event_id: event_id == "bad")
    with client_of(bus) as client, client.open_publisher(TOPIC) as publisher:
        good = publisher.send({"n": 1})
        bad = publisher.send({"n": 2}, event_id="bad")
        assert not wait([good, bad], PATIENCE).not_done
        assert set(as_completed([good, bad], PATIENCE)) == {good, bad}
        assert not good.cancel()
        assert not good.cancelled()
        assert not good.running()
        assert good.exception() is None
        with pytest.raises(PublishError, match="event bad failed: refused"):
            bad.result()
        assert isinstance(bad.exception(), PublishError)

        async def awaited() -> PublishResult:
            return await asyncio.wrap_future(publisher.send({"n": 3}))

        assert asyncio.run(asyncio.wait_for(awaited(), PATIENCE)).ok


def test_a_receipt_without_a_result_times_out():
    """Waiting for a result with a timeout raises `TimeoutError`."""
    bus = Bus()
    bus.answers.clear()
    with client_of(bus) as client, client.open_publisher(TOPIC) as publisher:
        receipt = publisher.send({"n": 1}, event_id="one")
        assert receipt.running()
        with pytest.raises(TimeoutError, match="event one has no result yet"):
            receipt.result(0.01)
        bus.answers.set()


def test_results_without_a_correlation_key_reach_their_events(caplog):
    """If the service sends no correlation keys, results go by the order of the request; a result
    with an unknown key is logged.
    """
    bus = Bus(refuses=lambda event_id: event_id == "e1")
    bus.names = lambda _event_id: ""
    with client_of(bus) as client, client.open_publisher(TOPIC) as publisher:
        receipts = [publisher.send({"n": n}, event_id=f"e{n}") for n in range(3)]
        assert receipts[0].result(PATIENCE).correlation_key == "e0"
        with pytest.raises(PublishError, match="event e1 failed: refused"):
            receipts[1].result(PATIENCE)
        assert receipts[2].result(PATIENCE).correlation_key == "e2"
    bus.names = lambda _event_id: "who?"
    with client_of(bus) as client, client.open_publisher(TOPIC, timeout=0.05) as publisher:
        assert "no result within" in str(publisher.send({"n": 4}).exception(PATIENCE))
    assert "who?" in caplog.text
