"""What both faces do besides reading: arguments, lifecycle, settings, pushing, secrets."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import subprocess
import sys
import threading

import pytest

import sfpubsub.streaming
from sfpubsub import AsyncReplayStore, ReplayId, ReplayStore, StartPosition
from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, StaticSession
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    LocalProtocolError,
    PermissionDeniedError,
    RemoteProtocolError,
    StreamUnavailableError,
    TopicNotFoundError,
)
from sfpubsub.streaming import AsyncStreamingClient, PushTopics, StreamingClient, StreamingMessage
from sfpubsub.streaming.positions import as_number
from sfpubsub.tooling.pushtopics import rows_of

from ..auth.servers import connect_proxy
from ..cli.test_cli import point_at
from ..client.test_faces import callables, members, parameters, spelled
from ..conftest import PATIENCE, until
from .conftest import TOPIC, numbered
from .faces import QUICK, Current, session_of


def org(emulator):
    return OrgClient(CurrentSession(StaticSession(session_of(emulator))), HttpClient())


# Faces and names.


def test_the_faces_say_the_same_words():
    """Same names in the same order, same arguments and defaults; what waits is a coroutine."""
    assert [spelled(name, AsyncStreamingClient) for name in members(StreamingClient)] == members(
        AsyncStreamingClient
    )
    for name, function in callables(StreamingClient).items():
        other = getattr(AsyncStreamingClient, spelled(name, AsyncStreamingClient))
        assert parameters(function) == parameters(other), name
    waits = {
        name
        for name, function in callables(AsyncStreamingClient).items()
        if inspect.iscoroutinefunction(function) and not name.startswith("__")
    }
    assert waits == {"open", "close", "subscribe", "unsubscribe", "receive", "ack", "push"}


@pytest.mark.parametrize("name", sfpubsub.streaming.__all__)
def test_every_public_name_resolves(name):
    """And nothing else does."""
    assert getattr(sfpubsub.streaming, name) is not None
    assert name in dir(sfpubsub.streaming)
    with pytest.raises(AttributeError, match="StreamingClinet"):
        _ = sfpubsub.streaming.StreamingClinet


def test_it_needs_neither_grpc_nor_spark():
    """Who reads PushTopics loads what that needs."""
    code = (
        "import sys, sfpubsub.streaming as s; lazy = 'requests' not in sys.modules;"
        "s.StreamingClient, s.AsyncStreamingClient;"
        "print(lazy, sorted({'grpc', 'fastavro', 'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"


# Arguments.


@pytest.mark.parametrize(
    "arguments",
    [
        {"replay": 5.5},
        {"replay": None},
        {"replay": True},
        {"replay": -3},
        {"replay": 1 << 64},
        {"replay": "yesterday"},
        {"replay": Fault},
        {"replay_fallback": object()},
        {"replay_policy": "sometimes"},
        {"api_version": "1.0"},
        {"ca_file": "/no/such/file"},
    ],
)
def test_wrong_arguments_are_refused(emulator, arguments):
    """A3: by a ConfigurationError, before anything is asked of a server."""
    for kind in (StreamingClient, AsyncStreamingClient):
        with pytest.raises(ConfigurationError):
            kind(session_of(emulator), **arguments)


def test_positions_of_the_other_api_are_refused():
    """Ten bytes are a position of the Pub/Sub API; nothing is guessed from them."""
    eight, ten = ReplayId(bytes(7) + b"\x05"), ReplayId(bytes(9) + b"\x05")
    assert as_number(eight) == as_number(StartPosition.after(eight)) == 5
    with pytest.raises(ConfigurationError, match="is not a position of the Streaming API"):
        as_number(ten, TOPIC)


# Life.


def test_what_needs_an_open_client_says_so(face, emulator):
    """C1, C2, C4, D1: before open and after close; twice is once."""
    client = face(emulator, is_open=False)
    assert client.closed
    assert (client.subscriptions, client.pending_count) == (set(), 0)
    client.close()
    for call in (client.subscribe, client.unsubscribe):
        with pytest.raises(LocalProtocolError, match="closed"):
            call(TOPIC)
    with pytest.raises(LocalProtocolError, match="closed"):
        client.receive()
    client.open()
    assert not client.closed
    assert "open" in repr(client.client)
    with pytest.raises(LocalProtocolError, match="already open"):
        client.open()
    client.subscribe(TOPIC)
    assert client.subscriptions == {TOPIC}
    client.unsubscribe(TOPIC)
    client.unsubscribe("/u/Other")
    assert client.subscriptions == set()
    client.close()
    client.close()
    assert "closed" in repr(client.client)


def test_the_block_closes_and_lets_errors_out(emulator):
    """C3: on both faces."""
    with pytest.raises(KeyError), StreamingClient(session_of(emulator)) as client:
        raise KeyError
    assert client.closed

    async def fail() -> None:
        async with AsyncStreamingClient(session_of(emulator)):
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(fail())


def test_a_wait_can_be_cancelled(emulator):
    """E5: receive() under a timeout of the caller's; the next message is not lost."""

    async def read() -> int | None:
        async with AsyncStreamingClient(session_of(emulator), replay={}) as client:
            await client.subscribe(TOPIC)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.receive(), 0.05)
            assert await client.receive(0.01) is None
            emulator.publish_streaming(TOPIC, numbered(1))
            message = await client.receive()
            return message and message.delivery_seq

    assert asyncio.run(read()) == 1


def test_an_opening_that_is_cancelled_leaves_nothing_behind(emulator):
    """No thread goes on polling for a client that nobody holds."""
    emulator.faults.add(Fault("drip_answer", rpc="/meta/handshake", seconds=1.0))

    async def cancel() -> AsyncStreamingClient:
        client = AsyncStreamingClient(session_of(emulator))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.open(), 0.1)
        return client

    client = asyncio.run(cancel())
    until(lambda: client.closed)
    until(lambda: not threads_of_clients())


def test_a_subscribe_that_is_cancelled_is_taken_back(emulator):
    """Its caller does not want the channel any more, and may ask for it again at once."""

    async def cancel() -> set[str]:
        async with AsyncStreamingClient(session_of(emulator), pace=QUICK) as client:
            emulator.faults.add(Fault("drip_answer", rpc="/meta/subscribe", seconds=0.5))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.subscribe(TOPIC), 0.05)
            left = client.subscriptions
            await client.subscribe(TOPIC, -2)
            emulator.publish_streaming(TOPIC, numbered(1))
            assert await client.receive(PATIENCE) is not None
            return left

    assert asyncio.run(cancel()) == set()


def test_opening_again_while_the_store_is_asked(emulator):
    """The subscribe goes to the connection of now, not to the one that it began with."""

    class Slow(AsyncReplayStore):
        async def get(self, topic):
            at_work.set()
            await go_on.wait()

        async def set(self, topic, replay_id):
            pass

    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def reopen() -> set[str]:
        async with AsyncStreamingClient(session_of(emulator), replay=Slow()) as client:
            subscribing = asyncio.create_task(client.subscribe(TOPIC))
            await at_work.wait()
            await client.close()
            await client.open()
            go_on.set()
            await asyncio.wait_for(subscribing, PATIENCE)
            return client.subscriptions

    assert asyncio.run(reopen()) == {TOPIC}


def threads_of_clients() -> list[str]:
    names = ("sfpubsub-poll", "sfpubsub-ask", "sfpubsub-streaming")
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def test_a_hook_that_fails_at_the_start_leaves_nothing_behind(face, emulator):
    """The client can be closed, and opened again."""
    hooks = [ZeroDivisionError, None]

    def dumps(value):
        error = hooks.pop(0) if hooks else None
        if error is not None:
            raise error
        return json.dumps(value)

    client = face(emulator, is_open=False, json_dumps=dumps)
    with pytest.raises(StreamUnavailableError, match="ZeroDivisionError"):
        client.open()
    assert client.closed
    client.close()
    client.open()
    assert not client.closed


@pytest.mark.parametrize("how", ["receive", "iterate"])
def test_other_tasks_have_their_turn_while_messages_are_there(emulator, how):
    """A full queue is no reason to keep the loop for oneself."""

    async def read() -> int:
        async with AsyncStreamingClient(session_of(emulator), replay=-2) as client:
            await client.subscribe(TOPIC)
            until(lambda: client.pending_count == 500)
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            if how == "receive":
                for _ in range(500):
                    await client.receive()
            else:
                async for message in client:
                    if message.delivery_seq == 500:
                        break
            task.cancel()
            return turns

    emulator.publish_streaming(TOPIC, numbered(500))
    assert asyncio.run(read()) >= 2


def test_a_store_that_waits_does_not_stop_the_loop(emulator):
    """`may_wait`: asyncio applications go on while a position is flushed to a disk."""
    at_work, go_on = threading.Event(), threading.Event()

    class Slow(ReplayStore):
        def get(self, topic):
            return None

        def set(self, topic, replay_id):
            at_work.set()
            go_on.wait(PATIENCE)

    async def read() -> bool:
        async with AsyncStreamingClient(session_of(emulator), replay=Slow()) as client:
            await client.subscribe(TOPIC)
            emulator.publish_streaming(TOPIC, numbered(1))
            receiving = asyncio.create_task(client.receive())
            await asyncio.to_thread(at_work.wait, PATIENCE)
            loop_runs = not receiving.done()
            go_on.set()
            await receiving
            return loop_runs

    assert asyncio.run(asyncio.wait_for(read(), 2 * PATIENCE))


def test_messages_are_numbered_over_the_whole_life_of_a_client(face, emulator):
    """An older message that is acked after a close and open does not hold newer positions back."""
    replay: dict = {}
    client = face(emulator, TOPIC, replay=replay, replay_policy="manual")
    emulator.publish_streaming(TOPIC, numbered(3))
    old = client.collect(3)
    client.close()
    client.open()
    client.ack(old[2])
    client.subscribe(TOPIC)
    (found,) = emulator.publish_streaming(TOPIC, numbered(1))
    (new,) = client.collect(1)
    client.ack(new)
    assert new.delivery_seq == 4
    assert replay == {TOPIC: found.to_bytes(8, "big")}


def test_an_event_without_an_id_does_not_stop_a_client_that_keeps_positions(face, emulator):
    """There is nothing to keep of it, and the next one has an id again."""
    replay: dict = {}
    client = face(emulator, TOPIC, replay=replay)
    bare = {"channel": TOPIC, "data": "text"}
    client.client._driver.pending.put(TOPIC, [bare])
    assert client.receive() == StreamingMessage(bare, TOPIC, None, 1)
    found = emulator.publish_streaming(TOPIC, numbered(1))
    assert client.ids(1) == found
    assert replay == {TOPIC: found[0].to_bytes(8, "big")}


def test_opening_fails_with_the_reason(face, emulator):
    """C1: the wrong token, nobody there, a sign-in that fails."""
    wrong = Session("wrong", emulator.instance_url, emulator.tenant_id)
    with pytest.raises(AuthenticationError):
        face(StaticSession(wrong))
    nowhere = Session(emulator.access_token, "http://127.0.0.1:9", emulator.tenant_id)
    with pytest.raises(StreamUnavailableError, match="connection was refused"):
        face(StaticSession(nowhere))
    plain = Session(emulator.access_token, "http://example.com", emulator.tenant_id)
    with pytest.raises(ConfigurationError, match="plaintext"):
        face(StaticSession(plain))

    class Locked:
        def get_session(self, expired):
            raise AuthenticationError("locked out")

    with pytest.raises(AuthenticationError, match="locked out"):
        face(Locked())
    emulator.faults.add(Fault("answer_with_page", status=401))
    with pytest.raises(StreamUnavailableError, match="401"):
        face(emulator)


def test_a_refused_channel_raises_the_kind_of_error(face, emulator):
    """D1: what the server says decides."""
    client = face(emulator)
    with pytest.raises(TopicNotFoundError, match="does not exist"):
        client.subscribe("/topic/None")
    with pytest.raises(TopicNotFoundError):
        client.subscribe("/u/None")
    emulator.faults.add(
        Fault("refuse_message", rpc="/meta/subscribe", text="403::Restricted channel")
    )
    with pytest.raises(PermissionDeniedError):
        client.subscribe(TOPIC)
    client.subscribe(TOPIC)
    with pytest.raises(LocalProtocolError, match="another client"):
        client.subscribe(f"{TOPIC}?Name='a'")


def test_a_failing_callback_does_not_hang_the_reader(face, emulator, caplog):
    """on_gap is anyone's code: the reader is told, and the client is closed."""

    def broken(gap):
        raise ZeroDivisionError

    client = face(emulator, TOPIC, on_gap=broken)
    emulator.faults.add(Fault("end_cometd_session"))
    with pytest.raises(StreamUnavailableError, match="ZeroDivisionError"):
        client.receive()
    assert client.closed
    assert "the streaming client failed" in caplog.text


def test_channels_of_the_pubsub_api_are_pointed_out(face, emulator, caplog):
    """A log line for those that it carries, none for the others."""
    caplog.set_level(logging.INFO, "sfpubsub.streaming")
    client = face(emulator, TOPIC)
    assert "Pub/Sub API" not in caplog.text
    client.subscribe("/event/Order_Event__e")
    assert "/event/Order_Event__e can be read through the Pub/Sub API" in caplog.text


def test_the_log_says_what_happens(face, emulator, caplog):
    """L1: connecting, subscribing and retrying at INFO, a position that is given up at WARNING."""
    (old,) = emulator.publish_streaming(TOPIC, numbered(1))
    emulator.bus.age_out()
    caplog.set_level(logging.INFO, "sfpubsub.streaming")
    client = face(emulator, replay_fallback=-1)
    client.subscribe(TOPIC, old)
    emulator.faults.add(Fault("end_cometd_session"))
    until(lambda: caplog.text.count("connected") == 2)
    for level, text in (
        ("INFO", "connected"),
        ("INFO", f"the server confirmed /meta/subscribe for {TOPIC}, position -1"),
        ("INFO", "trying again in"),
        ("WARNING", f"position lost on {TOPIC} (rejected)"),
    ):
        found = {record.levelname for record in caplog.records if text in record.getMessage()}
        assert found == {level}, text


def test_the_token_is_nowhere(face, emulator, caplog):
    """Not in logs, not in errors, even where the server repeats it."""
    caplog.set_level(logging.DEBUG)
    client = face(emulator, TOPIC)
    echo = Fault(
        "refuse_message", rpc="/meta/subscribe", text=f"403::no access: {emulator.access_token}"
    )
    emulator.faults.add(echo)
    with pytest.raises(PermissionDeniedError) as refused:
        client.subscribe("/u/Other")
    shown = "".join([caplog.text, str(refused.value), repr(refused.value.__cause__.response)])
    assert "***" in shown
    assert emulator.access_token not in shown + repr(client.client)


def test_it_works_over_tls(face, run_emulator, tmp_path):
    """With the authority that is named, and not without."""
    emulator = run_emulator(tls=True)
    with pytest.raises(StreamUnavailableError, match="SFPUBSUB_CA_FILE"):
        face(emulator)
    found = emulator.publish_streaming(TOPIC, numbered(1))
    client = face(emulator, TOPIC, replay=-2, ca_file=str(emulator.ca_file))
    assert client.ids(1) == found
    client.close()


def test_it_goes_through_a_proxy(face, run_emulator, monkeypatch):
    """Both lanes, TLS end to end; the setting goes before the environment."""
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    emulator = run_emulator(tls=True)
    found = emulator.publish_streaming(TOPIC, numbered(1))
    with connect_proxy() as proxy:
        client = face(
            emulator, TOPIC, replay=-2, ca_file=str(emulator.ca_file), proxy=proxy.url, pace=QUICK
        )
        assert client.ids(1) == found
        client.close()
    port = emulator.http_url.rpartition(":")[2]
    assert len(proxy.asked) >= 3  # handshake, poll, subscribe
    assert {asked.rpartition(":")[2] for asked in proxy.asked} == {port}


def test_from_env_takes_the_settings(emulator, monkeypatch):
    """The same as for the gRPC client, and the API version."""
    point_at(emulator, monkeypatch, SFPUBSUB_STREAMING_API_VERSION="60.0")
    with StreamingClient.from_env(replay=-2) as client:
        client.subscribe(TOPIC)
        assert client._driver._transport._path == "/cometd/60.0"
    with pytest.raises(ConfigurationError, match="37"):
        StreamingClient.from_env({"streaming_api_version": "9.0"})


# Records of the org.


def test_pushing_to_a_generic_channel(face, emulator):
    """To everybody, or to a list; the count says how many."""
    emulator.publish_streaming("/u/News", [{"payload": "first"}])
    client = face(emulator, "/u/News")
    assert client.push("/u/News", "to all") == -1
    assert client.push("/u/News", "to nobody", ["005000000000001AAA"]) == 0
    assert [message.payload for message in client.collect(1)] == ["to all"]
    with pytest.raises(TopicNotFoundError, match="no generic channel"):
        client.push("/u/None", "x")
    for channel, payload, users in (
        ("/topic/X", "x", ()),
        ("/u/News' OR Name = '", "x", ()),
        ("/u/News", "x" * 3001, ()),
        ("/u/News", "x", ["me"]),
    ):
        with pytest.raises(LocalProtocolError):
            client.push(channel, payload, users)


def test_pushtopics_are_administered(emulator):
    """Create, list, show, delete."""
    topics = PushTopics(org(emulator), "67.0")
    made = topics.create("Leads", "SELECT Id, Name FROM Lead", operations=["create", "delete"])
    assert (made.name, made.api_version, made.is_active) == ("Leads", 67.0, True)
    assert made.operations == ("create", "delete")
    assert made.notify_for_fields == "Referenced"
    assert made in topics.list()
    assert topics.show("Leads") == made
    assert topics.delete("Leads") == made
    assert made not in topics.list()
    with pytest.raises(TopicNotFoundError, match="pushtopic list"):
        topics.show("Leads")
    with pytest.raises(ConfigurationError, match="not a valid PushTopic name"):
        topics.show("Leads' OR Name LIKE '%")


@pytest.mark.parametrize("answer", [None, {}, {"records": [1]}, {"records": [], "done": False}])
def test_an_odd_answer_of_the_org_is_an_error(answer):
    """It is believed only as far as it has the documented form."""
    with pytest.raises(RemoteProtocolError):
        rows_of(answer)


class Odd:
    """An org that answers oddly."""

    def __init__(self, row, posted=None):
        self.row, self.posted = row, posted

    def get(self, path, query=None):
        return {"records": [self.row], "done": True}

    def post(self, path, body):
        return self.posted


def test_odd_records_are_errors():
    """Without an id, without a field, without a count."""
    from sfpubsub.tooling.pushtopics import GenericChannels

    good = "0M6000000000001AAA"
    for row, posted in (({"Id": "../x"}, None), ({"Id": good}, None), ({"Id": good}, [{}])):
        with pytest.raises(RemoteProtocolError):
            GenericChannels(Odd(row, posted), "67.0").push("/u/News", "x")
    with pytest.raises(RemoteProtocolError, match="PushTopic with a missing or malformed field"):
        PushTopics(Odd({"Id": good}), "67.0").show("Leads")


def test_the_session_is_shared(run_emulator):
    """One sign-in for this client and the other, and one renewal."""
    # A poll that is held does not notice the revocation: the next one does.
    emulator = run_emulator(settings=Settings(streaming_timeout_s=0.2))
    emulator.publish_streaming(TOPIC, numbered(1))
    provider = Current(emulator)
    shared = CurrentSession(provider)
    first, second = StreamingClient(shared, pace=QUICK), StreamingClient(shared, pace=QUICK)
    with first, second:
        emulator.faults.add(Fault("revoke_token"))
        until(lambda: provider.renewals)
        for client in (first, second):
            client.subscribe(TOPIC)
    assert provider.renewals == 1
