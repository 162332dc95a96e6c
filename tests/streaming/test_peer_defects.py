"""Tests of fifteen known defects, M1 to M15, of the asyncio client that this one replaces.

Each test shows that our client works where the other one ("the peer") failed. Tests that need a
server run on the emulator, the others on the protocol core without I/O.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    AuthenticationError,
    RemoteProtocolError,
    ReplayIdRejectedError,
    StreamUnavailableError,
)
from sfpubsub.streaming import AsyncStreamingClient, StreamingMessage
from sfpubsub.streaming.bayeux import Lane

from ..conftest import PATIENCE, until
from .conftest import TOPIC, numbered
from .faces import QUICK, AsyncFace, SyncFace, session_of
from .fake import fake_bayeux
from .script import BROKEN, Script, event

ASK, POLL = Lane.ASK, Lane.POLL
INVALID = "400::The replayId {7} you provided was invalid."
UNKNOWN = "403::Unknown client"
DEFECTS = range(1, 16)


def test_each_defect_has_exactly_one_test():
    """Each of the defects M1 to M15 has exactly one test function, named after its number."""
    assert [sum(name.startswith(f"test_m{n:02}_") for name in globals()) for n in DEFECTS] == [
        1
    ] * len(DEFECTS)


def test_m01_the_client_opens_on_this_python(emulator):
    """The asyncio client opens and receives an event; the peer cannot on Python 3.10 or newer."""

    async def first() -> StreamingMessage | None:
        async with AsyncStreamingClient(session_of(emulator), replay=-2, pace=QUICK) as client:
            await client.subscribe(TOPIC)
            emulator.publish_streaming(TOPIC, numbered(1))
            return await client.receive(5.0)

    message = asyncio.run(first())
    assert message is not None


@pytest.mark.parametrize("timeout", [3.0, 10.0])
def test_m02_the_connection_timeout_is_respected(timeout):
    """An outage is reported after connection_timeout, whereas a fork of the peer reports it at
    once.
    """
    script = Script(connection_timeout=timeout).connected(TOPIC)
    begun = script.now
    script.fail(POLL)
    while not script.errors:
        script.wait()
        if ASK in script.flying:
            script.fail(ASK)
    assert script.now - begun == pytest.approx(timeout)


def test_m03_a_rejected_position_on_resume_is_reported():
    """A position that is rejected on resuming causes an error, or a Gap if there is a fallback.

    The peer drops the channel silently.
    """
    for fallback in (None, -2):
        script = Script(fallback=fallback).connected(TOPIC)
        script.confirm(POLL, event(7))
        script.refuse(POLL, UNKNOWN, "handshake")
        script.reconnect()
        script.refuse(ASK, INVALID)
        if fallback is None:
            assert type(script.errors[0]) is ReplayIdRejectedError
        else:
            assert script.gaps == [("rejected", TOPIC)]
            assert script.positions == {TOPIC: -2}


def test_m04_prefetched_messages_are_not_delivered_twice(face, emulator):
    """After a reconnect, messages that were queued but not read are delivered only once.

    The peer resumes after the last message read, but keeps its queue.
    """
    store: dict = {}
    found = emulator.publish_streaming(TOPIC, numbered(4))
    client = face(emulator, replay=store)
    store[TOPIC] = (found[0]).to_bytes(8, "big")
    client.subscribe(TOPIC)
    until(lambda: client.pending_count == 3)
    emulator.faults.add(Fault("end_cometd_session"))
    until(lambda: emulator.faults.report()[0]["happened"] == 1)
    (new,) = emulator.publish_streaming(TOPIC, numbered(1))
    assert client.ids(4) == [*found[1:], new]
    assert client.rest() == []
    assert store[TOPIC] == new.to_bytes(8, "big")


def test_m05_a_reconnect_does_not_replay_all_events_again():
    """After a reconnect, a subscription from -2 (all retained events) resumes after its last event.

    The peer replays all retained events at each reconnect.
    """
    script = Script().connected(TOPIC, start=-2)
    script.confirm(POLL, event(1), event(2))
    script.fail(POLL)
    script.reconnect()
    assert script.positions == {TOPIC: 2}


def test_m06_a_reconnect_without_a_known_id_reports_a_gap():
    """If no event has arrived before a reconnect, a Gap is reported.

    The peer silently loses the events published meanwhile.
    """
    script = Script().connected(TOPIC)
    script.fail(POLL)
    script.reconnect()
    assert script.gaps == [("unanchored", TOPIC)]


def test_m07_the_advised_interval_is_in_milliseconds():
    """An advised interval of 3 means 3 ms; the peer waits 3 s."""
    script = Script().connected()
    script.confirm(POLL, advice={"reconnect": "retry", "interval": 3})
    assert script.protocol.deadline == pytest.approx(script.now + 0.003)


@pytest.mark.parametrize("kind", [SyncFace, AsyncFace])
def test_m08_close_ends_a_waiting_iteration(kind, emulator, caplog):
    """Closing ends a waiting iteration and logs no error.

    The peer leaves `async for` hanging, and logs a callback's exception.
    """
    from concurrent.futures import ThreadPoolExecutor

    client = kind(session_of(emulator))
    client.open()
    client.subscribe(TOPIC)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.iterate)
        until(waiting.running)
        client.stop() if kind is SyncFace else client.wait(client.client.close())
        assert waiting.result(PATIENCE) == []
    client.stop()
    assert not [record for record in caplog.records if record.levelno >= 40]


def test_m09_a_failed_sign_in_is_reported():
    """The reader gets the error of a failed sign-in; the peer reports only a timeout."""
    script = Script().connected(TOPIC)
    script.refuse(POLL, "401::Authentication invalid", "none")
    refused = AuthenticationError("invalid_grant: the user is locked out")
    script.fail(ASK, refused)
    assert script.errors == [refused]


def test_m10_new_advice_is_merged_with_earlier_advice():
    """An advised timeout stays in force when later advice names only the interval.

    The peer forgets it.
    """
    script = Script().connected()
    script.confirm(POLL, advice={"timeout": 110_000})
    script.confirm(POLL, advice={"reconnect": "retry", "interval": 0})
    assert script.flying[POLL].timeout == pytest.approx(132.0)


def test_m11_every_channel_has_its_own_fallback():
    """A channel's fallback still works after the client has subscribed to another channel.

    In the peer, the first successful subscribe uses up the only fallback.
    """
    script = Script(fallback=-2).connected()
    script.subscribe("/u/first", 7)
    script.subscribe(TOPIC, 7)
    script.confirm(ASK)
    script.refuse(ASK, INVALID)
    assert script.positions == {TOPIC: -2}


def test_m12_an_event_without_a_date_or_an_id_raises_our_errors_only(face):
    """An event without a date is acked normally, and acking one without an id raises our own error.

    The peer raises an AttributeError.
    """
    bare = {"channel": "/u/News", "data": {"event": {"replayId": 5}, "payload": "text"}}
    with fake_bayeux() as fake:
        fake.polls.put([bare, {"channel": "/u/News", "data": ""}])
        client = face(fake.session, "/u/News", replay={}, replay_policy="manual")
        message, other = client.collect(2)
        assert message.created_date is None
        client.ack(message)
        # The answer to the subscribe request may be on its way, and could have an older event.
        until(lambda: client.replay_store.get("/u/News") is not None)
        assert client.replay_store.get("/u/News").replay_id.hex() == "0000000000000005"
        with pytest.raises(RemoteProtocolError, match="has no replay id"):
            client.ack(other)


def test_m13_a_filtered_subscription_resumes_from_its_position(face, emulator):
    """A subscription with a filter resumes from its stored position.

    The peer sends the position under a name that includes the filter, and servers ignore it.
    """
    store: dict = {}
    name = f"{TOPIC}?Name='1'&Name='3'"
    found = emulator.publish_streaming(TOPIC, numbered(5))
    store[name] = found[1].to_bytes(8, "big")
    client = face(emulator, name, replay=store)
    (message,) = client.collect(1)
    assert (message.replay_id, message.subscription, message.channel) == (found[3], name, TOPIC)
    assert store == {name: found[3].to_bytes(8, "big")}


def test_m14_opening_does_not_wait_for_a_whole_poll(run_emulator):
    """The first connect asks the server to answer at once, so open() returns quickly.

    The peer's open() takes a whole poll on servers that hold the first connect.
    """
    script = Script()
    script.open()
    script.confirm(ASK)
    assert script.sent[-1][0]["advice"] == {"timeout": 0}
    emulator = run_emulator(settings=Settings(streaming_timeout_s=110.0))
    begun = time.monotonic()
    client = SyncFace(session_of(emulator))
    client.open()
    assert time.monotonic() - begun < PATIENCE
    client.stop()


def test_m15_a_subscribe_that_times_out_raises_our_error():
    """A subscribe that times out ends with StreamUnavailableError; the peer lets asyncio's
    TimeoutError escape.
    """
    script = Script(connection_timeout=0.5).connected()
    script.subscribe(TOPIC)
    script.wait()
    script.fail(ASK, BROKEN) if ASK in script.flying else None
    while script.outcome(TOPIC) is None:
        script.fail_cancelled()
        script.wait()
    assert type(script.outcome(TOPIC)) is StreamUnavailableError
    json.dumps(str(script.outcome(TOPIC)))
