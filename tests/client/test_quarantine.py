"""Tests of undecodable events: how each policy handles them, and that none is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sfpubsub import FileQuarantine, MappingReplayStore, Quarantine, QuarantinedEvent
from sfpubsub.avro.codec import NoCodec
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.client.undecodable import codec_of
from sfpubsub.emulator.org.bus import Draft
from sfpubsub.errors import (
    ConfigurationError,
    DecodeError,
    PermissionDeniedError,
    SchemaNotFoundError,
    StreamUnavailableError,
    SubscriptionClosedError,
    WriteError,
)
from sfpubsub.stores import file_quarantine as module
from sfpubsub.types import RawEvent, ReplayId, SchemaInfo

from ..conformance.faces import AsyncFace, Face, Held, numbers
from ..conformance.targets import NAME, TOPIC, EmulatorTarget
from ..conftest import until

BAD = b"\xff\xff\xff"


class Service(EmulatorTarget):
    """An emulator that also accepts undecodable payloads, which are numbered like other events."""

    def publish_valid(self, count: int) -> None:
        """Publish *count* decodable events."""
        self.publish(count)

    def publish_undecodable(self, *payloads: bytes, schema_id: str | None = None) -> None:
        """Publish events with these payloads; by default, a single undecodable one."""
        schema_id = schema_id or self.emulator.bus.topic(TOPIC).schema_id
        drafts = [Draft(payload, schema_id) for payload in payloads or (BAD,)]
        self._ids += [done.replay_id for done in self.emulator.publish_raw(TOPIC, drafts)]

    @property
    def total(self) -> int:
        return len(self._ids)


Start = Callable[..., tuple[Service, Face]]


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an emulator and a sync or asyncio client."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[Service, Face]:
            service = Service(tmp_path / "data", **settings)
            stack.callback(service.close)
            face = request.param(**service.arguments())
            stack.callback(face.close)
            return service, face

        yield make


@pytest.fixture
def quarantine(tmp_path: Path) -> FileQuarantine:
    """Return an empty file quarantine in a temporary directory."""
    return FileQuarantine(tmp_path / "quarantine")


def collect(held: Held, count: int) -> list[int]:
    """Receive *count* events, check that no other arrives, and return their numbers."""
    seen = held.collect(count)
    assert held.next(0.3) is None
    return seen


def test_fail_policy_raises_when_the_undecodable_event_is_read(start: Start):
    """By default, the error names the event and its position.

    Events before it can be acked and committed, and events after it can be read.
    """
    service, face = start()
    service.publish_valid(2)
    service.publish_undecodable()
    service.publish_valid(1)
    held = face.managed(NAME, ack="manual")
    events = list(held.batch())
    for event in events[:2]:
        assert event.value["Order_Number__c"]
        event.ack()
    with pytest.raises(DecodeError) as caught:
        _ = events[2].value
    for what in (events[2].id, service.replay_id(2).hex(), NAME, events[2].schema_id):
        assert what in str(caught.value)
    assert events[3].value["Order_Number__c"] == "3"
    assert events[2].payload == BAD, "the raw payload is available"
    held.commit()
    assert service.committed() == 1
    assert (held.health().quarantined, held.health().skipped) == (0, 0)


def test_quarantine_policy_stores_undecodable_events_and_continues(
    start: Start, quarantine: FileQuarantine
):
    """Undecodable events are stored in order, with schema and reason; others are delivered once."""
    service, face = start()
    service.publish_valid(2)
    service.publish_undecodable(BAD, b"")
    service.publish_valid(2)
    service.publish_undecodable(b"\x01")
    held = face.managed(NAME, on_undecodable="quarantine", quarantine=quarantine)
    assert collect(held, 4) == [0, 1, 4, 5]
    until(lambda: service.committed() == service.total - 1, "the commit of all")
    assert held.health().quarantined == 3
    found = list(quarantine.entries())
    assert [entry.raw.payload for entry in found] == [BAD, b"", b"\x01"]
    assert [entry.raw.replay_id for entry in found] == [service.replay_id(n) for n in (2, 3, 6)]
    first = found[0]
    schema = service.emulator.bus.topic(TOPIC).schema_id
    assert (first.subscription, first.topic, first.raw.schema_id) == (NAME, TOPIC, schema)
    assert first.raw.id
    assert first.schema_json == service.emulator.bus.schema(schema).text
    assert "does not fit" in first.reason
    assert first.reason.count(first.raw.replay_id.hex()) == 0, (
        "the reason does not repeat the position"
    )
    held.drain()


def test_quarantine_is_never_written_in_the_event_loops_thread(start: Start):
    """A slow flush would block the loop's other tasks."""
    service, face = start()
    service.publish_undecodable()
    service.publish_valid(1)
    threads: set[int] = set()

    class DurableState(Quarantine):
        def put(self, _events: Sequence[QuarantinedEvent]) -> None:
            threads.add(threading.get_ident())

    held = face.managed(NAME, on_undecodable="quarantine", quarantine=DurableState())
    assert collect(held, 1) == [1]
    assert len(threads) == 1
    if face.name == "asyncio":
        assert face.loop_thread not in threads
    held.drain()


def test_skip_policy_counts_and_logs_the_event(start: Start, caplog):
    """With `on_undecodable="skip"`, an undecodable event is counted and dropped.

    The log names its position.
    """
    service, face = start()
    service.publish_valid(1)
    service.publish_undecodable()
    service.publish_valid(1)
    held = face.managed(NAME, on_undecodable="skip")
    assert collect(held, 2) == [0, 2]
    until(lambda: service.committed() == service.total - 1, "the commit of all")
    assert (held.health().skipped, held.health().quarantined) == (1, 0)
    assert f"at position {service.replay_id(1).hex()} of {NAME} is skipped" in caplog.text


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_responses_with_only_undecodable_events_are_skipped(
    start: Start, quarantine: FileQuarantine, policy
):
    """Responses without decodable events produce no batches, but their position is committed."""
    service, face = start(events_per_response=2)
    service.publish_undecodable(*[BAD] * 5)
    options = {"quarantine": quarantine} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    until(lambda: held.next(0.01) is None and service.committed() == 4, "the commit of all")
    service.publish_valid(1)
    assert numbers(held.batch()) == [5]


def test_unacked_event_between_quarantined_ones_holds_back_the_commit(
    start: Start, quarantine: FileQuarantine
):
    """Quarantined events split a response into batches.

    If only the later batch is acked, nothing is committed.
    """
    service, face = start()
    service.publish_undecodable()
    service.publish_valid(1)
    service.publish_undecodable()
    service.publish_valid(2)
    held = face.managed(NAME, ack="manual", on_undecodable="quarantine", quarantine=quarantine)
    first, second = held.batch(), held.batch()
    assert [[event.delivery_seq - first.first_seq for event in b] for b in (first, second)] == [
        [0],
        [2, 3],
    ]
    second.ack()
    held.commit()
    assert service.committed() == 0
    first.ack()
    held.commit()
    assert service.committed() == 4


def test_plain_position_is_stored_only_after_the_event_is_quarantined(
    start: Start, quarantine: FileQuarantine
):
    """When the quarantine is written, the replay store still has the previous position."""
    service, face = start()
    positions: dict[str, bytes] = {TOPIC: bytes(ReplayId(_anchor(service)))}
    before = positions[TOPIC]
    seen: list[bytes] = []

    class Watched(Quarantine):
        def put(self, events: Sequence[QuarantinedEvent]) -> None:
            seen.append(positions[TOPIC])
            quarantine.put(events)

    service.publish_undecodable()
    held = face.plain(
        TOPIC,
        replay=MappingReplayStore(positions),
        on_undecodable="quarantine",
        quarantine=Watched(),
    )
    until(lambda: held.next(0.05) is None and len(quarantine) == 1, "the entry")
    assert seen == [before]
    assert positions[TOPIC] == bytes(service.replay_id(1))


def _anchor(service: Service) -> bytes:
    """Publish one event, and return its replay id as a position to start from."""
    service.publish_valid(1)
    return bytes(service.replay_id(0))


def test_event_with_an_unknown_schema_is_undecodable(start: Start, quarantine: FileQuarantine):
    """By default, reading the event raises an error that names the schema.

    A quarantine stores the event without a schema.
    """
    service, face = start()
    service.publish_valid(1)
    service.publish_undecodable(schema_id="AAAAAAAAAAAAAAAAAAAAAA")
    service.publish_valid(1)
    held = face.managed(NAME, ack="manual")
    events = list(held.batch())
    assert events[2].value["Order_Number__c"] == "2"
    with pytest.raises(DecodeError, match=r"at position .* has no schema AAAAAAAAAA"):
        _ = events[1].value
    assert (events[1].event_name, events[1].payload) == ("", BAD)
    held.abort()
    held = face.plain(TOPIC, replay="earliest", on_undecodable="quarantine", quarantine=quarantine)
    assert collect(held, 2) == [0, 2]
    (entry,) = quarantine.entries()
    assert (entry.schema_json, entry.topic) == (None, TOPIC)
    assert "has no schema AAAAAAAAAAAAAAAAAAAAAA" in entry.reason


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_temporary_schema_failure_is_waited_out(start: Start, quarantine: FileQuarantine, policy):
    """A temporary failure of GetSchema never causes an event to be quarantined or skipped."""
    service, face = start()
    service.publish_valid(2)
    service.plan("refuse", rpc="GetSchema", times=3)
    service.plan("drop_call", rpc="GetSchema", times=2)
    options = {"quarantine": quarantine} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    assert collect(held, 2) == [0, 1]
    until(service.is_consumed)
    assert (held.health().quarantined, held.health().skipped, len(quarantine)) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_missing_permission_for_the_schema_skips_nothing(
    start: Start, quarantine: FileQuarantine, policy
):
    """A missing permission raises an error.

    Nothing is committed, and the next call delivers the events.
    """
    service, face = start()
    service.publish_valid(2)
    service.plan("refuse", rpc="GetSchema", error_code="schema.meta.permission")
    options = {"quarantine": quarantine} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    with pytest.raises(PermissionDeniedError):
        held.next()
    assert service.committed() is None
    assert collect(held, 2) == [0, 1]
    assert (held.health().quarantined, held.health().skipped, len(quarantine)) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_status_without_an_error_code_is_no_word_about_the_schema(
    start: Start, quarantine: FileQuarantine, policy
):
    """A NOT_FOUND without the service's own error code may come from an intermediary: the events
    wait, and are then delivered.
    """
    service, face = start()
    service.publish_valid(2)
    service.plan("drop_call", times=3, rpc="GetSchema", status="NOT_FOUND")
    options = {"quarantine": quarantine} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    assert collect(held, 2) == [0, 1]
    assert (held.health().quarantined, held.health().skipped, len(quarantine)) == (0, 0, 0)
    assert service.is_consumed()


def test_which_schema_failures_are_final():
    """An event whose schema is invalid or unknown to the service is treated as undecodable.

    Any other failure to fetch the schema is raised, such as a NOT_FOUND without the service's own
    error code.
    """

    def cache(answer: Any) -> SchemaCache:
        def fetch(schema_id: str) -> SchemaInfo:
            if isinstance(answer, Exception):
                raise answer
            return SchemaInfo(schema_id, answer)

        return SchemaCache(fetch)

    word = SchemaNotFoundError("no", error_code="sfdc.platform.eventbus.grpc.schema.not.found")
    for final in ("{", '{"type": "string"}', word):
        assert isinstance(codec_of(cache(final), "a"), NoCodec)
    for other in (
        StreamUnavailableError("down"),
        SchemaNotFoundError("bare"),
        SchemaNotFoundError("later", error_code="x", retryable=True),
    ):
        with pytest.raises(type(other)):
            codec_of(cache(other), "a")


def test_failed_quarantine_write_acks_nothing_and_is_repeated(
    start: Start, quarantine: FileQuarantine
):
    """No event of the response is handed out until the write succeeds, and none is lost."""
    service, face = start()
    service.publish_valid(1)
    service.publish_undecodable()
    service.publish_valid(1)

    class Full(Quarantine):
        failures = 2

        def put(self, events: Sequence[QuarantinedEvent]) -> None:
            if self.failures:
                self.failures -= 1
                raise WriteError("disk full")
            quarantine.put(events)

    held = face.managed(NAME, on_undecodable="quarantine", quarantine=Full())
    for _ in range(2):
        with pytest.raises(WriteError, match="disk full"):
            held.next()
        assert service.committed() is None
    assert collect(held, 2) == [0, 2]
    assert held.health().quarantined == len(quarantine) == 1


def test_events_not_handed_out_before_a_drain_are_redelivered(start: Start, quarantine):
    """After a drain, the next subscription receives the events that the first one did not hand out.

    The undecodable event among them is quarantined only once.
    """
    service, face = start()
    service.publish_valid(1)
    service.publish_undecodable()
    service.publish_valid(1)
    options = {"on_undecodable": "quarantine", "quarantine": quarantine}
    held = face.managed(NAME, **options)
    assert numbers(held.batch()) == [0]
    held.drain()
    with pytest.raises(SubscriptionClosedError):
        held.next(0.1)
    again = face.managed(NAME, **options)
    seen = again.collect(1)
    while seen[-1] != 2:
        seen += again.collect(1)
    assert len(quarantine) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"on_undecodable": "ignore"},
        {"on_undecodable": "quarantine"},
        {"on_undecodable": "skip", "quarantine": FileQuarantine("x")},
        {"quarantine": FileQuarantine("x")},
    ],
)
def test_inconsistent_policy_options_are_rejected(start: Start, options):
    """Opening a plain or managed subscription with inconsistent options raises an error."""
    _, face = start()
    with pytest.raises(ConfigurationError):
        face.managed(NAME, **options)
    with pytest.raises(ConfigurationError):
        face.plain(TOPIC, **options)


def test_a_value_read_twice_is_equal_but_not_shared(start: Start):
    """Each read of `event.value` returns a new, equal object, even if "skip" has already decoded
    the event.
    """
    service, face = start()
    service.publish_valid(2)
    batch = face.managed(NAME, on_undecodable="skip").batch()
    first, second = [event.value for event in batch], [event.value for event in batch]
    assert first == second
    assert all(one is not two for one, two in zip(first, second, strict=True))


# The quarantine itself.


def entry(**changes: Any) -> QuarantinedEvent:
    """Return a quarantined event, with fields replaced by *changes*."""
    raw = {"id": "e", "schema_id": "s", "payload": BAD, "replay_id": ReplayId(b"r")}
    raw |= {"headers": (("h", b"\x00\xff"),)}
    raw |= {name: changes.pop(name) for name in list(changes) if name in raw}
    rest = {"subscription": "S", "topic": "T", "reason": "why \u2028", "received_at": 1.25}
    return QuarantinedEvent(RawEvent(**raw), **{**rest, **changes})


def test_stored_entry_is_read_back_unchanged(quarantine: FileQuarantine):
    """All fields survive, including bytes and unusual characters; an unknown key yields None."""
    put = entry(schema_json='{"type": "é"}', delivery_seq=7)
    quarantine.put([put])
    assert quarantine.get(put.key) == put
    assert list(FileQuarantine(quarantine.directory).entries()) == [put]
    assert quarantine.get("0" * 32) is None


def test_same_event_is_stored_once(quarantine: FileQuarantine):
    """Events with the same subscription, id, schema and payload are stored once.

    If they have no id, their positions are compared instead.
    """
    one = entry()
    quarantine.put([one, one])
    quarantine.put(
        [entry(received_at=99.0, reason="another time"), entry(replay_id=ReplayId(b"new"))]
    )
    assert list(quarantine.entries()) == [one], "the first one stays as it is"
    others = [
        entry(subscription="S2"),
        entry(id="e2"),
        entry(payload=b"other"),
        entry(schema_id="s2"),
        entry(id=""),
        entry(id="", replay_id=ReplayId(b"r2")),
        entry(id="r"),
    ]
    quarantine.put(others)
    assert len(quarantine) == 1 + len(others)


def test_entries_are_listed_in_order_of_arrival(quarantine: FileQuarantine):
    """Entries are listed in order of arrival, even if they were written in a different order."""
    events = [entry(id=f"e{n}", received_at=n // 3, delivery_seq=n) for n in range(12)]
    quarantine.put(events[6:])
    quarantine.put(events[:6])
    assert [event.raw.id for event in quarantine.entries()] == [f"e{n}" for n in range(12)]


def test_damaged_entry_raises_and_hides_no_other(quarantine: FileQuarantine, caplog):
    """A damaged entry raises an error when it is read, and the other entries are still listed.

    Quarantining its event again rewrites the entry.
    """
    one, two = entry(id="one"), entry(id="two")
    quarantine.put([one, two])
    (quarantine.directory / f"{one.key}.json").write_text("{")
    found = quarantine.entries()
    assert next(found) == two
    with pytest.raises(ConfigurationError, match=f"{one.key}.json is damaged"):
        next(found)
    path = quarantine.directory / f"{two.key}.json"
    path.write_text(path.read_text().replace('"why', '"who'))
    with pytest.raises(ConfigurationError, match="is damaged"):
        quarantine.get(two.key)
    quarantine.put([one, two])
    assert {event.raw.id for event in quarantine.entries()} == {"one", "two"}
    assert "rewriting the entry" in caplog.text


def test_put_flushes_files_before_renaming_and_the_directory_last(
    quarantine: FileQuarantine, monkeypatch
):
    """`put` flushes the new files, renames them, and then flushes the directory.

    If the entry is already stored, only the directory is flushed.
    """
    log: list[str] = []
    sync, replace = module.sync, os.replace
    quarantine.directory.mkdir()

    def watched_replace(source: Any, target: Any) -> None:
        log.append("name")
        replace(source, target)

    monkeypatch.setattr(
        module, "sync", lambda path: log.append("dir" if path.is_dir() else "file") or sync(path)
    )
    monkeypatch.setattr(module.os, "replace", watched_replace)
    quarantine.put([entry(), entry(id="two")])
    assert log == ["file", "file", "name", "name", "dir"]
    log.clear()
    quarantine.put([entry()])
    assert log == ["dir"]


def test_only_its_owner_can_read_an_entry(quarantine):
    """The files with payloads are for their owner only, whatever the umask."""
    before = os.umask(0)
    try:
        quarantine.put([entry()])
    finally:
        os.umask(before)
    (file,) = quarantine.directory.glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600


def test_temporary_files_of_dead_processes_are_removed(quarantine: FileQuarantine):
    """Old temporary files are removed.

    A recent one is kept, because a running process may still be writing it.
    """
    quarantine.put([entry(id="1")])
    old, young = (quarantine.directory / f"{name}.json.{name}.tmp" for name in ("old", "young"))
    for draft in (old, young):
        draft.write_text("{")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    again = FileQuarantine(quarantine.directory)
    assert len(again) == 1
    again.put([entry(id="2")])
    assert (old.exists(), young.exists()) == (False, True)
    assert len(again) == 2


def test_a_failed_quarantine_write_raises_write_error(tmp_path, monkeypatch):
    """If an entry cannot be written, `put` raises WriteError and leaves no partly written file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="no events were acked"):
        FileQuarantine(tmp_path / "file").put([entry()])
    quarantine = FileQuarantine(tmp_path / "q")

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    quarantine.directory.mkdir()
    with monkeypatch.context() as broken:
        broken.setattr(module, "sync", full)
        with pytest.raises(WriteError, match="No space left"):
            quarantine.put([entry()])
    assert list(quarantine.directory.iterdir()) == []


def test_redriven_mark_survives_another_quarantine(quarantine: FileQuarantine):
    """A redriven event that is quarantined again is still marked as redriven."""
    quarantine.put([entry(), entry(id="two")])
    quarantine.mark_redriven([entry().key], "stdout")
    quarantine.put([entry()])
    assert (quarantine.is_redriven(entry().key), quarantine.is_redriven(entry(id="two").key)) == (
        True,
        False,
    )
    assert len(list(quarantine.entries())) == len(quarantine) == 2


# A process that is killed.

KILLED = """
import os, signal, sys
from sfpubsub import FileQuarantine, PubSubClient
from sfpubsub.stores import file_quarantine as module

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

class Killed(FileQuarantine):
    def put(self, events):
        if sys.argv[3] == "before the name":
            module.os.replace = die
        super().put(events)
        print("put", flush=True)
        die()

with PubSubClient.from_env() as client:
    subscription = client.subscribe_managed(
        sys.argv[1], on_undecodable="quarantine", quarantine=Killed(sys.argv[2])
    )
    while True:
        subscription.next_batch()
"""


@pytest.mark.parametrize("moment", ["before the name", "before the ack"])
def test_kill_between_quarantine_and_ack_loses_and_repeats_nothing(
    start: Start, quarantine: FileQuarantine, moment
):
    """If a process is killed just before or after it quarantines an event, nothing is committed.

    The event is redelivered and is stored exactly once.
    """
    from ..cli.test_cli import environment

    service, face = start()
    service.publish_undecodable()
    service.publish_valid(1)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, NAME, str(quarantine.directory), moment],
        env={**os.environ, **environment(service.emulator)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (done.stdout == "put\n") == (moment == "before the ack")
    assert len(quarantine) == (moment == "before the ack")
    assert service.committed() is None
    held = face.managed(NAME, on_undecodable="quarantine", quarantine=quarantine)
    assert collect(held, 1) == [1]
    until(lambda: service.committed() == 1, "the commit of all")
    (found,) = quarantine.entries()
    assert (found.raw.payload, found.raw.replay_id) == (BAD, service.replay_id(0))
    assert json.loads((quarantine.directory / f"{found.key}.json").read_text())["event_id"]
