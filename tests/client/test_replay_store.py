"""Replay stores, which hold the caller's own position: each kind, and what survives a crash."""

from __future__ import annotations

import json
import os
import shelve
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

from sfpubsub import (
    DefaultMappingReplayStore,
    FileReplayStore,
    MappingReplayStore,
    PubSubClient,
    ReplayId,
    ReplayOption,
    Session,
    StartPosition,
)
from sfpubsub.config import Timings
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import ConfigurationError
from sfpubsub.protocol.events import Response
from sfpubsub.transports.calls import AT_ONCE
from sfpubsub.transports.memory import MemoryTransport
from sfpubsub.types import RawEvent

from ..conftest import PATIENCE, until
from .test_managed import TOPIC, collect, orders
from .test_plain import MemoryStore

SCHEMA = '{"type": "record", "name": "Tick__e", "fields": [{"name": "n", "type": "int"}]}'
ONE, TWO = ReplayId(b"\x00\x01\xff\n"), ReplayId(b"\x02")


def test_mapping_holds_bytes_under_the_topic():
    """A mapping such as a dict serves as a store, and replay ids stay opaque bytes."""
    kept: dict = {}
    store = MappingReplayStore(kept)
    assert store.get(TOPIC) is None
    store.set(TOPIC, ONE)
    assert kept == {TOPIC: bytes(ONE)}
    assert store.get(TOPIC) == StartPosition.after(ONE)
    assert MappingReplayStore({TOPIC: ONE}).get(TOPIC) == StartPosition.after(ONE)


@pytest.mark.parametrize("value", [-1, -2, 17, "00ff", b"", 1.5])
def test_mapping_with_an_invalid_position_is_rejected(value):
    """An invalid position, such as a number stored by another client, is rejected, so that no
    subscription starts at the wrong event.
    """
    with pytest.raises(ConfigurationError, match=TOPIC):
        MappingReplayStore({TOPIC: value}).get(TOPIC)


def test_default_position_applies_only_to_the_first_run():
    """The default applies until a position is stored; then the stored one is used."""
    store = DefaultMappingReplayStore({}, ReplayOption.ALL_EVENTS)
    assert store.get(TOPIC) == StartPosition.earliest()
    store.set(TOPIC, TWO)
    assert store.get(TOPIC) == StartPosition.after(TWO)


def test_positions_survive_reopening_the_file(tmp_path):
    """A reopened file returns the latest position of each topic, and None for an unknown topic."""
    path = tmp_path / "positions.json"
    with FileReplayStore(path, default="earliest") as store:
        assert store.get(TOPIC) == StartPosition.earliest()
        store.set(TOPIC, ONE)
        store.set("/event/Other__e", TWO)
        store.set(TOPIC, TWO)
    with FileReplayStore(path) as store:
        assert store.get(TOPIC) == StartPosition.after(TWO)
        assert store.get("/event/Other__e") == StartPosition.after(TWO)
        assert store.get("/event/New__e") is None


def test_forked_child_neither_writes_nor_unlocks_the_parents_file(tmp_path):
    """In the child `set` raises an error, and `close` does not release the parent's lock."""
    path = tmp_path / "positions.json"
    with FileReplayStore(path) as store:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # about forking a process with threads
            child = os.fork()
        if child == 0:  # pragma: no cover  # coverage does not see it
            refused = False
            try:
                store.set(TOPIC, ONE)
            except ConfigurationError:
                refused = True
            finally:
                store.close()
                os._exit(0 if refused else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(ConfigurationError, match="in use by another process"):
            FileReplayStore(path)


def test_file_has_one_owner(tmp_path):
    """A second store on the same file is rejected, because two consumers would
    corrupt the position.
    """
    path = tmp_path / "positions.json"
    with (
        FileReplayStore(path),
        pytest.raises(ConfigurationError, match="in use by another process"),
    ):
        FileReplayStore(path)
    FileReplayStore(path).close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"positions": []}',
        '{"positions": {"t": "zz"}}',
        '{"positions": {"t": 1}}',
    ],
)
def test_damaged_file_is_rejected_and_left_unchanged(tmp_path, text):
    """A damaged file does not count as an empty store, which would lose or repeat events."""
    path = tmp_path / "positions.json"
    path.write_text(text)
    for _ in range(2):  # the refusal leaves no lock behind
        with pytest.raises(ConfigurationError, match="is damaged"):
            FileReplayStore(path)
    assert path.read_text() == text


def test_torn_write_leaves_the_old_positions(tmp_path):
    """A crash before the rename leaves only a temporary file, which is ignored."""
    path = tmp_path / "positions.json"
    with FileReplayStore(path) as store:
        store.set(TOPIC, ONE)
    (tmp_path / "positions.json.0123.tmp").write_text('{"positions": {"/event/Or')
    with FileReplayStore(path) as store:
        assert store.get(TOPIC) == StartPosition.after(ONE)


def test_kill_leaves_the_last_stored_position_or_the_next(tmp_path):
    """After a kill, the file holds the last position for which `set` returned, or the next one."""
    path = tmp_path / "positions.json"
    code = (
        "import sys; from sfpubsub import FileReplayStore, ReplayId\n"
        "store = FileReplayStore(sys.argv[1])\n"
        "for n in range(1, 1 << 20):\n"
        "    store.set('t', ReplayId(n.to_bytes(4, 'big')))\n"
        "    print(n, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    with process.stdout:
        confirmed = [int(process.stdout.readline()) for _ in range(40)]
        os.kill(process.pid, signal.SIGKILL)
        confirmed += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait(PATIENCE)
    kept = int.from_bytes(bytes(FileReplayStore(path).get("t").replay_id), "big")
    assert confirmed[-1] <= kept <= confirmed[-1] + 1


def test_file_that_cannot_be_written_is_an_error(tmp_path):
    """Opening a store in a missing directory raises an error, as does a write that fails.

    A failed write leaves the old positions readable, and a closed store refuses to write.
    """
    with pytest.raises(ConfigurationError, match="nowhere"):
        FileReplayStore(tmp_path / "nowhere" / "positions.json")
    path = tmp_path / "positions.json"
    store = FileReplayStore(path)
    store.set(TOPIC, ONE)
    os.rename(tmp_path, tmp_path.with_name("moved"))
    with pytest.raises(ConfigurationError, match="cannot be written"):
        store.set(TOPIC, TWO)
    os.rename(tmp_path.with_name("moved"), tmp_path)
    assert store.get(TOPIC) == StartPosition.after(ONE)
    store.close()
    with pytest.raises(ConfigurationError, match="is closed"):
        store.set(TOPIC, TWO)
    assert json.loads(path.read_text())["positions"] == {TOPIC: ONE.hex()}


@pytest.mark.parametrize("form", ["dict", "file", "shelve"])
def test_each_run_resumes_after_the_acked_events(run_emulator, connect, tmp_path, form):
    """Each of three runs receives ten new events. The store is a dict, a file or a shelf."""
    emulator = run_emulator(settings=Settings(events_per_response=5))
    emulator.publish(TOPIC, orders(30))
    client = connect(emulator)
    shared: dict = {}
    seen: list[int] = []
    for _ in range(3):
        if form == "dict":
            store, close = DefaultMappingReplayStore(shared, "earliest"), lambda: None
        elif form == "file":
            store = FileReplayStore(tmp_path / "positions.json", default="earliest")
            close = store.close
        else:
            mapping = shelve.open(str(tmp_path / "positions"))  # noqa: SIM115  # closed below
            store, close = DefaultMappingReplayStore(mapping, "earliest"), mapping.close
        with client.subscribe(TOPIC, replay=store) as subscription:
            seen += collect(subscription, 10)
            subscription.next_batch(0)  # acks what was taken
        close()
    assert seen == list(range(30))


def test_empty_dict_starts_at_latest(run_emulator, connect):
    """Without a position in the dict, only events published after the start are delivered; then
    the dict holds the position of the last one.
    """
    emulator = run_emulator(settings=Settings(keepalive_s=0.05))
    emulator.publish(TOPIC, orders(1))
    kept: dict = {}
    with connect(emulator).subscribe(TOPIC, replay=kept) as subscription:
        until(lambda: subscription.health().responses, "a keepalive, so the stream has its start")
        (last,) = emulator.publish(TOPIC, orders(1, first=1))
        assert collect(subscription, 1) == [1]
        subscription.next_batch(0)
    assert kept == {TOPIC: last.replay_id}


def test_plain_dict_is_accepted_as_a_store(run_emulator, connect):
    """The subscription resumes at the dict's position and writes the new one into it."""
    emulator = run_emulator()
    client = connect(emulator)
    kept: dict = {TOPIC: bytes(ReplayId(emulator.publish(TOPIC, orders(1))[0].replay_id))}
    emulator.publish(TOPIC, orders(2, first=1))
    with client.subscribe(TOPIC, replay=kept) as subscription:
        assert collect(subscription, 2) == [1, 2]
        subscription.next_batch(0)
    assert kept[TOPIC] == bytes(subscription.health().last_position)


@pytest.mark.parametrize("option", list(ReplayOption))
def test_replay_options_of_the_streaming_api_are_accepted(run_emulator, connect, option):
    """NEW_EVENTS starts at LATEST, and ALL_EVENTS starts at EARLIEST."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    with connect(emulator).subscribe(TOPIC, replay=option) as subscription:
        batch = subscription.next_batch(0.2 if option is ReplayOption.NEW_EVENTS else PATIENCE)
    assert (batch is None) == (option is ReplayOption.NEW_EVENTS)


def test_threads_share_a_file_store_without_losing_topics(tmp_path):
    """One store may serve many subscriptions, each in a thread of its own."""
    path = tmp_path / "positions.json"
    with FileReplayStore(path) as store:
        threads = [
            threading.Thread(target=lambda n=n: [store.set(f"t{n}-{i}", ONE) for i in range(10)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(json.loads(path.read_text())["positions"]) == 40


class Flaky(MemoryStore):
    """A replay store whose first write fails."""

    def __init__(self) -> None:
        super().__init__(StartPosition.earliest())
        self.broken = True

    def set(self, topic, replay_id):
        if self.broken:
            self.broken = False
            raise OSError("disk full")
        super().set(topic, replay_id)


def test_position_that_could_not_be_stored_is_stored_later(run_emulator, connect):
    """The ack raises the store's error, and the acked position is stored when the subscription is
    closed.
    """
    emulator = run_emulator()
    results = emulator.publish(TOPIC, orders(3))
    store = Flaky()
    with connect(emulator).subscribe(TOPIC, replay=store, ack="manual") as subscription:
        batch = subscription.next_batch(PATIENCE)
        with pytest.raises(OSError, match="disk full"):
            batch.ack()
    assert bytes(store.positions[TOPIC]) == results[-1].replay_id


def test_failing_store_does_not_hide_the_applications_error(run_emulator, connect):
    """The application's exception is raised, and the subscription is closed."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(3))
    client = connect(emulator)
    store = Flaky()
    subscription = client.subscribe(TOPIC, replay=store, ack="manual")

    def application():
        with subscription:
            batch = subscription.next_batch(PATIENCE)
            subscription._delivery.driver.ack(
                batch.first_seq, batch.first_seq
            )  # stored by the drain
            raise KeyError("of the application")

    with pytest.raises(KeyError, match="of the application"):
        application()
    assert subscription.health().state == "closed"


def test_a_batch_that_is_ready_waits_for_no_thread_although_positions_are_stored():
    """Requests for batches that were received do not wait until the client's threads have noted
    the acks of earlier ones, except when a position is due to be stored.
    """
    service = MemoryTransport({"tick": SCHEMA})
    kept: dict[str, bytes] = {}
    session = Session("00D000000000001!token", "https://example.my.salesforce.com")
    timings = Timings(store_interval=1000.0)
    with PubSubClient(session, transport=service, timings=timings) as client:
        subscription = client.subscribe(TOPIC, replay="earliest", replay_store=kept)
        call = service.next_call(PATIENCE)
        for number in range(1, 7):
            event = RawEvent(f"e{number}", "tick", bytes([2 * number]), ReplayId(b"r%d" % number))
            call.respond(Response((event,), event.replay_id, 50, "rpc"))
        until(lambda: subscription.health().pending_count == 6, "the events")
        for _ in range(2):
            assert subscription.next_batch(PATIENCE) is not None
        assert kept == {TOPIC: b"r1"}
        held = threading.Event()
        driver = subscription._delivery.driver
        driver._alarm.post(lambda: held.wait(PATIENCE))
        began = time.monotonic()
        try:
            for number in range(3, 7):
                batch = subscription.next_batch(PATIENCE)
                assert batch is not None
                assert [event.value["n"] for event in batch] == [number]
            assert time.monotonic() - began < AT_ONCE
        finally:
            held.set()
        subscription.next_batch(0.0)  # nothing more: what is acked is stored
        assert kept == {TOPIC: b"r6"}
