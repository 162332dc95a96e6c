"""The emulator's life cycle: restart, kill, TLS, keepalive pings, and the conditions under which it
refuses to start.
"""

from __future__ import annotations

import ast
import contextlib
import queue
import socket
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import pytest

import sfpubsub.emulator
from sfpubsub.emulator import server
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

from .support import MANAGED, ORDERS, WAIT_S, Client, commit, until


def orders(count):
    return [{"Order_Number__c": str(i)} for i in range(count)]


def test_restart_keeps_everything(tmp_path):
    """After a restart, events, replay IDs, the committed position, the access token and the org's
    ID are the same.
    """
    with EmulatorServer(tmp_path) as first:
        published = first.publish(ORDERS, orders(5))
        client = Client(first.grpc_target, first.metadata)
        stream = client.managed()
        stream.events(5)
        stream.send(commit(published[2].replay_id))
        stream.answer()
        client.close()
        token, tenant, record = first.access_token, first.tenant_id, first.managed.get(MANAGED)
    with EmulatorServer(tmp_path) as second:
        assert (second.access_token, second.tenant_id) == (token, tenant)
        assert second.managed.get(MANAGED) == record
        client = Client(second.grpc_target, second.metadata)
        replay_ids = [e.replay_id for e in client.managed().events(2)]
        assert replay_ids == [p.replay_id for p in published[3:]]
        (new,) = second.publish(ORDERS, orders(1))
        assert new.replay_id not in {p.replay_id for p in published}
        client.close()


def test_a_refreshed_org_has_another_id(tmp_path):
    """With another org id, a directory becomes a refreshed sandbox: the records are the same; the
    events and their replay ids, the committed position and the tokens are gone.
    """
    with EmulatorServer(tmp_path, org_id="00DSB0000000007") as first:
        assert first.tenant_id.startswith("00DSB0000000007")
        record = first.records.create("Account", {"Name": "one"}, first.accounts.holder(""))
        (event,) = first.publish(ORDERS, orders(1))
        first.managed.commit(first.managed.get(MANAGED).subscription_id, first.bus.tip())
        token = first.access_token
    with EmulatorServer(tmp_path) as same:
        assert (same.tenant_id, same.access_token) == (first.tenant_id, token)
    with EmulatorServer(tmp_path, org_id="00DSB0000000008") as second:
        assert second.tenant_id.startswith("00DSB0000000008")
        assert second.access_token.startswith("00DSB0000000008!")
        assert second.records.get("Account", record)["Name"] == "one"
        assert second.managed.get(MANAGED).committed is None
        client = Client(second.grpc_target, second.metadata)
        refused = {"replay_preset": pb.CUSTOM, "replay_id": event.replay_id}
        assert client.subscribe(**refused).refusal() == "subscription.fetch.replayid.corrupted"
        assert client.subscribe().silent()
        client.close()
        old = Client(second.grpc_target, first.metadata)
        assert old.subscribe().refusal() == "service.auth.error"
        old.close()
    with pytest.raises(EmulatorProblem, match="15 characters"):
        EmulatorServer(tmp_path, org_id="00D")


def test_kill_loses_no_acknowledged_events(spawn):
    """After `kill -9`, the next process still has every acknowledged publish and commit.

    The access token stays the same.
    """
    process = spawn().wait_ready()
    client = process.client()
    schema_id = client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).schema_id
    payload = b"\x02\x02x" + b"\x00" * 7  # CreatedDate 1, CreatedById "x", seven nulls
    event = pb.ProducerEvent(schema_id=schema_id, payload=payload)
    request = pb.PublishRequest(topic_name=ORDERS, events=[event] * 200)
    published = []
    for _ in range(10):
        published += client.call("Publish", request).results
    stream = client.managed()
    for _ in range(10):
        got = stream.events(100)
        stream.send(commit(got[-1].replay_id))
        stream.answer()
        stream.send(pb.ManagedFetchRequest(num_requested=100))
    process.kill()
    client.close()
    again = spawn().wait_ready()
    assert again.ready["access_token"] == process.ready["access_token"]
    client = again.client()
    assert got[-1].replay_id == published[999].replay_id
    stream = client.managed()
    rest = stream.events(100)
    while len(rest) < 1000:
        stream.send(pb.ManagedFetchRequest(num_requested=100))
        rest += stream.events(100)
    # Events that the killed process had sent, but the client had not committed, are sent again.
    assert [e.replay_id for e in rest] == [p.replay_id for p in published[1000:]]
    client.close()


def test_kill_during_a_publish(spawn):
    """After a kill while four threads publish, every acknowledged event is still there, in order.

    Of a request that was in flight, all events are there or none, and their payloads are complete.
    """
    process = spawn().wait_ready()
    client = process.client()
    schema_id = client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).schema_id
    event = pb.ProducerEvent(schema_id=schema_id, payload=b"\x02\x02x" + b"\x00" * 7)
    request = pb.PublishRequest(topic_name=ORDERS, events=[event] * 50)
    acknowledged: list[list[list[bytes]]] = [[] for _ in range(4)]

    def publish(answers):
        with contextlib.suppress(grpc.RpcError):
            while True:
                results = client.call("Publish", request).results
                answers.append([result.replay_id for result in results])

    threads = [threading.Thread(target=publish, args=(answers,)) for answers in acknowledged]
    for thread in threads:
        thread.start()
    until(lambda: all(len(answers) >= 10 for answers in acknowledged))
    process.kill()
    for thread in threads:
        thread.join(WAIT_S)
    client.close()
    client = spawn().wait_ready().client()
    last = pb.PublishRequest(topic_name=ORDERS, events=[event])
    end = client.call("Publish", last).results[0].replay_id
    stream = client.subscribe()
    got: list[bytes] = []
    while end not in got[-1:]:
        events = stream.next().events
        got += [e.replay_id for e in events]
        assert {e.event.payload for e in events} == {event.payload}
        stream.send(pb.FetchRequest(num_requested=len(events)))
    got.pop()
    assert len(got) % 50 == 0
    kept = [got[start : start + 50] for start in range(0, len(got), 50)]
    for answers in acknowledged:
        places = [kept.index(answer) for answer in answers]
        assert places == sorted(places)
    client.close()


def test_tls(start, tmp_path):
    """A client that trusts `ca_file` can connect, the CA stays the same after a restart, and its
    key is readable only by its owner.
    """
    emulator, client = start(tls=True)
    request = pb.TopicRequest(topic_name=ORDERS)
    assert client.call("GetTopic", request).topic_name == ORDERS
    authority = emulator.ca_file.read_bytes()
    emulator.stop()
    emulator, client = start(tls=True, data_dir=tmp_path / "data")
    assert emulator.ca_file.read_bytes() == authority
    assert client.call("GetTopic", request).topic_name == ORDERS
    assert (emulator.data_dir / "ca-key.pem").stat().st_mode & 0o077 == 0


def test_frequent_pings_are_accepted(emulator):
    """A connection stays open although it sends pings much more often than a default gRPC server
    allows.

    A default server counts the pings that arrive within 5 minutes without data, and answers the
    third with GOAWAY. This test sends one every second, the shortest interval that a client
    supports.
    """
    channel = grpc.insecure_channel(
        emulator.grpc_target,
        options=[
            ("grpc.keepalive_time_ms", 1000),
            ("grpc.keepalive_timeout_ms", 2000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.enable_retries", 0),
        ],
    )
    requests: queue.Queue = queue.Queue()
    requests.put(pb.FetchRequest(topic_name=ORDERS, num_requested=10))
    stub = pb_grpc.PubSubStub(channel)
    call = stub.Subscribe(iter(requests.get, None), metadata=emulator.metadata)
    with pytest.raises(grpc.FutureTimeoutError):
        _ended(call).result(timeout=5.5)
    emulator.publish(ORDERS, orders(1))
    assert len(next(call).events) == 1
    requests.put(None)
    call.cancel()
    channel.close()


def _ended(call):
    """Return an object whose `result` waits until the call ends, and raises on a timeout."""

    class Ended:
        def result(self, timeout):
            done: queue.Queue = queue.Queue()
            call.add_callback(lambda: done.put(True))
            try:
                done.get(timeout=timeout)
            except queue.Empty:
                raise grpc.FutureTimeoutError from None

    return Ended()


def test_stop_ends_all_streams_promptly(start, monkeypatch):
    """Open idle streams do not delay a stop, and end with the status of a broken connection."""
    emulator, client = start()
    streams = [client.subscribe() for _ in range(10)] + [client.managed()]
    emulator.publish(ORDERS, orders(1))
    assert all(stream.events(1) for stream in streams)
    monkeypatch.setattr(server, "_STOP_S", 2 * WAIT_S)  # the longest that it would wait
    began = time.monotonic()
    emulator.stop()
    assert time.monotonic() - began < WAIT_S
    assert all(stream.end()[0] in ("UNAVAILABLE", "CANCELLED") for stream in streams)
    emulator.stop()


def test_directory_in_use(emulator):
    """A second emulator on the data directory of a running one is refused."""
    with pytest.raises(EmulatorProblem, match="in use by another emulator"):
        EmulatorServer(emulator.data_dir)


def test_directory_cannot_be_created(tmp_path):
    """If the data directory cannot be created because a file is in the way, the error names that
    file.
    """
    (tmp_path / "file").write_text("")
    with pytest.raises(EmulatorProblem, match=str(tmp_path / "file")):
        EmulatorServer(tmp_path / "file" / "data")


def test_unknown_database_is_refused(tmp_path):
    """If a database file is not the emulator's, an error names it.

    The lock on the directory is released.
    """
    (tmp_path / "bus.sqlite3").write_bytes(b"not a database, but long enough to be looked at" * 50)
    for _ in range(2):
        with pytest.raises(EmulatorProblem, match=r"bus\.sqlite3"):
            EmulatorServer(tmp_path)


@pytest.mark.parametrize("option", ["grpc_port", "http_port"])
def test_port_in_use(emulator, tmp_path, option):
    """A port that is already in use raises one clear error, and the data directory can be used
    again afterwards.
    """
    address = emulator.grpc_target if option == "grpc_port" else emulator.http_url
    server = EmulatorServer(tmp_path, **{option: int(address.rpartition(":")[2])})
    with pytest.raises(EmulatorProblem, match="cannot listen"):
        server.start()
    with EmulatorServer(tmp_path) as again:
        assert again.grpc_target


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6(tmp_path):
    """With an IPv6 loopback address as host, both ports listen on it."""
    with EmulatorServer(tmp_path, host="::1") as emulator:
        client = Client(emulator.grpc_target, emulator.metadata)
        assert client.call("GetTopic", pb.TopicRequest(topic_name=ORDERS)).topic_name == ORDERS
        assert urllib.request.urlopen(emulator.http_url + "/health", timeout=10).status == 200
        client.close()


def test_damaged_ca(tmp_path):
    """CA files that cannot be read raise an error that says to remove both of them."""
    (tmp_path / "ca.pem").write_text("x")
    (tmp_path / "ca-key.pem").write_text("x")
    with pytest.raises(EmulatorProblem, match="remove both"):
        EmulatorServer(tmp_path, tls=True)


def test_publish_raw_accepts_any_bytes(emulator, client):
    """`publish_raw` delivers bytes that no schema can decode to subscribers unchanged."""
    from sfpubsub.emulator.org.bus import Draft

    emulator.publish_raw(ORDERS, [Draft(b"\xff\xff", "no-such-schema", "e1")])
    (got,) = client.subscribe().events(1)
    assert (got.event.payload, got.event.schema_id) == (b"\xff\xff", "no-such-schema")


def test_imports():
    """The emulator imports no other part of sfpubsub, and no pyspark, click or requests."""
    found = set()
    for file in Path(sfpubsub.emulator.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.add(str(node.module))
    foreign = {
        name
        for name in found
        if (name.split(".")[0] == "sfpubsub" and not name.startswith("sfpubsub.emulator"))
        or name.split(".")[0] in ("pyspark", "click", "requests")
    }
    assert foreign == set()
