"""Tests of the synchronous and asyncio clients, except for reading events.

They cover arguments, lifecycle, settings, pushing, and keeping secrets hidden.
"""

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

from ..auth.servers import REMOTE, connect_proxy
from ..cli.test_cli import point_at
from ..client.test_faces import asyncio_name, callables, members, parameters
from ..conftest import PATIENCE, told_during_a_wait, until
from .conftest import TOPIC, numbered
from .faces import QUICK, Current, session_of
from .fake import fake_bayeux


def org(emulator):
    """Return a REST client for the emulator's org."""
    return OrgClient(CurrentSession(StaticSession(session_of(emulator))), HttpClient())


# Interfaces and names.


def test_the_sync_and_the_asyncio_client_have_the_same_interface():
    """Both clients have the same members in the same order, with the same arguments and defaults.

    Of the asyncio client's methods, exactly those that may have to wait are coroutines.
    """
    assert [
        asyncio_name(name, AsyncStreamingClient) for name in members(StreamingClient)
    ] == members(AsyncStreamingClient)
    for name, function in callables(StreamingClient).items():
        other = getattr(AsyncStreamingClient, asyncio_name(name, AsyncStreamingClient))
        assert parameters(function) == parameters(other), name
    waits = {
        name
        for name, function in callables(AsyncStreamingClient).items()
        if inspect.iscoroutinefunction(function) and not name.startswith("__")
    }
    assert waits == {"open", "close", "subscribe", "unsubscribe", "receive", "ack", "push"}


@pytest.mark.parametrize("name", sfpubsub.streaming.__all__)
def test_every_public_name_resolves(name):
    """Every name in `__all__` can be imported lazily and is listed by dir(); a misspelled one
    raises.
    """
    assert getattr(sfpubsub.streaming, name) is not None
    assert name in dir(sfpubsub.streaming)
    with pytest.raises(AttributeError, match="StreamingClinet"):
        _ = sfpubsub.streaming.StreamingClinet


def test_the_package_imports_neither_grpc_nor_spark():
    """The streaming clients load without grpc, fastavro, pyspark and pyarrow.

    Importing the package alone does not even load requests.
    """
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
def test_invalid_arguments_are_rejected(emulator, arguments):
    """Both clients reject an invalid argument with a ConfigurationError when they are
    constructed.
    """
    for kind in (StreamingClient, AsyncStreamingClient):
        with pytest.raises(ConfigurationError):
            kind(session_of(emulator), **arguments)


def test_positions_of_the_pubsub_api_are_rejected():
    """A ten-byte replay id, which comes from the Pub/Sub API, is rejected.

    One of eight bytes is converted to a number.
    """
    eight, ten = ReplayId(bytes(7) + b"\x05"), ReplayId(bytes(9) + b"\x05")
    assert as_number(eight) == as_number(StartPosition.after(eight)) == 5
    with pytest.raises(ConfigurationError, match="is not a position of the Streaming API"):
        as_number(ten, TOPIC)


# Lifecycle.


def test_methods_raise_unless_the_client_is_open(face, emulator):
    """Methods that need an open client raise an error before `open`, and so does a second `open`.

    A second `close`, or unsubscribing from an unknown channel, does nothing.
    """
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


def test_a_signal_whose_arrival_ends_no_wait_is_handled_soon(emulator):
    """`receive` notices within about a second a signal that another thread received."""
    with StreamingClient(session_of(emulator)) as client:
        client.subscribe(TOPIC)
        with told_during_a_wait():
            client.receive(PATIENCE)


def test_a_with_block_closes_the_client_and_does_not_hide_errors(emulator):
    """An error inside a client's `with` or `async with` block propagates to the caller."""
    with pytest.raises(KeyError), StreamingClient(session_of(emulator)) as client:
        raise KeyError
    assert client.closed

    async def fail() -> None:
        async with AsyncStreamingClient(session_of(emulator)):
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(fail())


def test_a_cancelled_receive_loses_no_message(emulator):
    """If a receive() is cancelled by its caller's timeout, the next receive() returns the next
    message.
    """

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


def test_a_cancelled_open_leaves_no_threads_behind(emulator):
    """If open() is cancelled, the client closes and its threads end."""
    emulator.faults.add(Fault("drip_answer", rpc="/meta/handshake", seconds=1.0))

    async def cancel() -> AsyncStreamingClient:
        client = AsyncStreamingClient(session_of(emulator))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.open(), 0.1)
        return client

    client = asyncio.run(cancel())
    until(lambda: client.closed)
    until(lambda: not threads_of_clients())


def test_a_cancelled_subscribe_is_undone(emulator):
    """A subscribe that is cancelled leaves no subscription, and can be repeated at once."""

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


def test_a_subscribe_survives_a_reopen_while_the_store_is_read(emulator):
    """If the client is closed and opened again while the store is read, subscribe() uses the new
    connection.
    """

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
    """Return the names of the live threads that belong to streaming clients."""
    names = ("sfpubsub-poll", "sfpubsub-ask", "sfpubsub-streaming")
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def test_a_client_can_be_reopened_after_a_hook_failed_in_open(face, emulator):
    """If a JSON hook raises during open(), the client is closed, and can be opened again."""
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
def test_reading_a_full_queue_lets_other_tasks_run(emulator, how):
    """Other asyncio tasks run while a task reads a long queue, even though no read has to wait."""

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


def test_a_slow_store_does_not_block_the_event_loop(emulator):
    """The event loop keeps running while a synchronous store writes a position slowly."""
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


def test_message_numbers_continue_after_a_reopen(face, emulator):
    """Message numbers continue after the client is closed and reopened.

    Acking an old message therefore does not keep newer positions from being stored.
    """
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


def test_an_event_without_an_id_does_not_stop_a_client_with_a_store(face):
    """An event without a replay id is delivered, no position is stored for it, and reading
    continues.
    """
    replay: dict = {}
    bare = {"channel": TOPIC, "data": "text"}
    with fake_bayeux() as fake:
        client = face(fake.session, TOPIC, replay=replay)
        fake.polls.put([bare])
        assert client.receive() == StreamingMessage(bare, TOPIC, None, 1)
        assert replay == {}
        fake.polls.put([{"channel": TOPIC, "data": {"event": {"replayId": 5}}}])
        assert client.ids(1) == [5]
        assert replay == {TOPIC: (5).to_bytes(8, "big")}


def test_open_reports_why_it_failed(face, emulator):
    """open() raises an error that states why it failed.

    The causes are a wrong token, a refused connection, plain HTTP to a remote host, a failed
    sign-in and an HTTP error.
    """
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


def test_a_refused_channel_raises_the_matching_error(face, emulator):
    """If the server refuses a channel as missing or restricted, the error is of the matching type.

    The client itself refuses a second subscription to a channel with another filter.
    """
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
    """If the application's on_gap callback raises, the reader receives an error and the client is
    closed.
    """

    def broken(gap):
        raise ZeroDivisionError

    client = face(emulator, TOPIC, on_gap=broken)
    emulator.faults.add(Fault("end_cometd_session"))
    with pytest.raises(StreamUnavailableError, match="ZeroDivisionError"):
        client.receive()
    assert client.closed
    assert "the streaming client failed" in caplog.text


def test_subscribing_to_a_pubsub_api_channel_logs_a_hint(face, emulator, caplog):
    """A hint is logged for a channel that the Pub/Sub API also carries, but not for other
    channels.
    """
    caplog.set_level(logging.INFO, "sfpubsub.streaming")
    client = face(emulator, TOPIC)
    assert "Pub/Sub API" not in caplog.text
    client.subscribe("/event/Order_Event__e")
    assert "/event/Order_Event__e can be read through the Pub/Sub API" in caplog.text


def test_connection_events_are_logged_at_their_levels(face, emulator, caplog):
    """Connecting, subscribing and retrying are logged at INFO, and a lost position at WARNING."""
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


def test_no_log_or_error_contains_the_token(face, emulator, caplog):
    """The token appears in no log line, error or repr, even if the server repeats it in an
    error.
    """
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


def test_client_works_over_tls(face, run_emulator, tmp_path):
    """The client works over TLS if it is given the certificate authority, and fails without it."""
    emulator = run_emulator(tls=True)
    with pytest.raises(StreamUnavailableError, match="SFPUBSUB_CA_FILE"):
        face(emulator)
    found = emulator.publish_streaming(TOPIC, numbered(1))
    client = face(emulator, TOPIC, replay=-2, ca_file=str(emulator.ca_file))
    assert client.ids(1) == found
    client.close()


def test_requests_go_through_the_configured_proxy(face, run_emulator, monkeypatch):
    """Handshake, poll and subscribe all reach the TLS endpoint through the proxy in the
    settings.
    """
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    emulator = run_emulator(tls=True, advertise=REMOTE)
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


def test_from_env_reads_the_settings(emulator, monkeypatch):
    """from_env() reads the org's settings and the API version, and rejects a version below 37.0."""
    point_at(emulator, monkeypatch, SFPUBSUB_STREAMING_API_VERSION="60.0")
    with StreamingClient.from_env(replay=-2) as client:
        client.subscribe(TOPIC)
        assert client._driver._transport._path == "/cometd/60.0"
    with pytest.raises(ConfigurationError, match="37"):
        StreamingClient.from_env({"streaming_api_version": "9.0"})


# PushTopics and generic channels as records of the org.


def test_pushing_to_a_generic_channel(face, emulator):
    """A push to everyone returns -1; a push to named users returns how many it reached.

    A missing channel or an invalid argument raises an error.
    """
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


def test_pushtopics_can_be_created_listed_shown_and_deleted(emulator):
    """A PushTopic keeps the attributes it was created with until it is deleted.

    Looking up an unknown or invalid name raises an error.
    """
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
def test_a_malformed_query_response_is_an_error(answer):
    """A query response that does not have the documented form raises a RemoteProtocolError."""
    with pytest.raises(RemoteProtocolError):
        rows_of(answer)


class MalformedOrg:
    """An org that answers queries with the given record, and POST requests with the given
    response.
    """

    def __init__(self, row, posted=None):
        self.row, self.posted = row, posted

    def get(self, path, query=None):
        return {"records": [self.row], "done": True}

    def post(self, path, body):
        return self.posted


def test_malformed_records_are_errors():
    """A malformed query result or push response raises a RemoteProtocolError."""
    from sfpubsub.tooling.pushtopics import GenericChannels

    good = "0M6000000000001AAA"
    for row, posted in (({"Id": "../x"}, None), ({"Id": good}, None), ({"Id": good}, [{}])):
        with pytest.raises(RemoteProtocolError):
            GenericChannels(MalformedOrg(row, posted), "67.0").push("/u/News", "x")
    with pytest.raises(RemoteProtocolError, match="PushTopic with a missing or malformed field"):
        PushTopics(MalformedOrg({"Id": good}), "67.0").show("Leads")


def test_clients_share_one_session_and_its_renewal(run_emulator):
    """Two clients that share a session renew a revoked token only once."""
    # The server checks the token only at the start of a poll, so polls have to be short.
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
