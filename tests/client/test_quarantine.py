"""Events that cannot be decoded: what each policy does, and that nothing is lost on the way."""

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
    """The emulator, which also takes what nobody can decode; numbers count these as well."""

    def good(self, count: int) -> None:
        self.publish(count)

    def bad(self, *payloads: bytes, schema_id: str | None = None) -> None:
        schema_id = schema_id or self.emulator.bus.topic(TOPIC).schema_id
        drafts = [Draft(payload, schema_id) for payload in payloads or (BAD,)]
        self._ids += [done.replay_id for done in self.emulator.publish_raw(TOPIC, drafts)]

    @property
    def total(self) -> int:
        return len(self._ids)


Start = Callable[..., tuple[Service, Face]]


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Make an emulator, and a client of either face."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[Service, Face]:
            service = Service(tmp_path / "data", **settings)
            stack.callback(service.close)
            face = request.param(**service.arguments())
            stack.callback(face.close)
            return service, face

        yield make


@pytest.fixture
def kept(tmp_path: Path) -> FileQuarantine:
    return FileQuarantine(tmp_path / "quarantine")


def collect(held: Held, count: int) -> list[int]:
    """Return the numbers of *count* events; then nothing more may come."""
    seen = held.collect(count)
    assert held.next(0.3) is None
    return seen


def test_fail_raises_where_the_event_is_and_what_is_before_it_can_be_acked(start: Start):
    """The default. The error names event and position; nothing of the event is acked."""
    service, face = start()
    service.good(2)
    service.bad()
    service.good(1)
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
    assert events[2].payload == BAD, "the raw form is at hand"
    held.commit()
    assert service.committed() == 1
    assert (held.health().quarantined, held.health().skipped) == (0, 0)


def test_quarantine_keeps_it_and_goes_on(start: Start, kept: FileQuarantine):
    """Everything that was received is durable, in order; the good ones are handed out once."""
    service, face = start()
    service.good(2)
    service.bad(BAD, b"")
    service.good(2)
    service.bad(b"\x01")
    held = face.managed(NAME, on_undecodable="quarantine", quarantine=kept)
    assert collect(held, 4) == [0, 1, 4, 5]
    until(lambda: service.committed() == service.total - 1, "the commit of all")
    assert held.health().quarantined == 3
    found = list(kept.entries())
    assert [entry.raw.payload for entry in found] == [BAD, b"", b"\x01"]
    assert [entry.raw.replay_id for entry in found] == [service.replay_id(n) for n in (2, 3, 6)]
    first = found[0]
    schema = service.emulator.bus.topic(TOPIC).schema_id
    assert (first.subscription, first.topic, first.raw.schema_id) == (NAME, TOPIC, schema)
    assert first.raw.id
    assert first.schema_json == service.emulator.bus.schema(schema).text
    assert "does not fit" in first.reason
    assert first.reason.count(first.raw.replay_id.hex()) == 0, "the reason alone"
    held.drain()


def test_a_quarantine_is_never_written_in_the_loop(start: Start):
    """The loop serves everybody, and a flush may take long."""
    service, face = start()
    service.bad()
    service.good(1)
    threads: set[int] = set()

    class Noted(Quarantine):
        def put(self, _events: Sequence[QuarantinedEvent]) -> None:
            threads.add(threading.get_ident())

    held = face.managed(NAME, on_undecodable="quarantine", quarantine=Noted())
    assert collect(held, 1) == [1]
    assert len(threads) == 1
    if face.name == "asyncio":
        assert face.loop_thread not in threads
    held.drain()


def test_skip_counts_and_logs(start: Start, caplog):
    """What was asked for: it is gone, and the log says which it was."""
    service, face = start()
    service.good(1)
    service.bad()
    service.good(1)
    held = face.managed(NAME, on_undecodable="skip")
    assert collect(held, 2) == [0, 2]
    until(lambda: service.committed() == service.total - 1, "the commit of all")
    assert (held.health().skipped, held.health().quarantined) == (1, 0)
    assert f"at position {service.replay_id(1).hex()} of {NAME} is skipped" in caplog.text


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_responses_of_nothing_else_are_passed_over(start: Start, kept: FileQuarantine, policy):
    """A wait goes on behind them and its timeout holds; their position is committed."""
    service, face = start(events_per_response=2)
    service.bad(*[BAD] * 5)
    options = {"quarantine": kept} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    until(lambda: held.next(0.01) is None and service.committed() == 4, "the commit of all")
    service.good(1)
    assert numbers(held.batch()) == [5]


def test_batches_stay_consecutive_and_ack_what_they_hold(start: Start, kept: FileQuarantine):
    """An event between two quarantined ones holds the position until it is acked itself."""
    service, face = start()
    service.bad()
    service.good(1)
    service.bad()
    service.good(2)
    held = face.managed(NAME, ack="manual", on_undecodable="quarantine", quarantine=kept)
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


def test_a_plain_position_passes_it_only_after_it_was_kept(start: Start, kept: FileQuarantine):
    """The store learns of the position when the event is durable, and before it was not."""
    service, face = start()
    positions: dict[str, bytes] = {TOPIC: bytes(ReplayId(_anchor(service)))}
    before = positions[TOPIC]
    seen: list[bytes] = []

    class Watched(Quarantine):
        def put(self, events: Sequence[QuarantinedEvent]) -> None:
            seen.append(positions[TOPIC])
            kept.put(events)

    service.bad()
    held = face.plain(
        TOPIC,
        replay=MappingReplayStore(positions),
        on_undecodable="quarantine",
        quarantine=Watched(),
    )
    until(lambda: held.next(0.05) is None and len(kept) == 1, "the entry")
    assert seen == [before]
    assert positions[TOPIC] == bytes(service.replay_id(1))


def _anchor(service: Service) -> bytes:
    service.good(1)
    return bytes(service.replay_id(0))


def test_a_schema_that_the_service_does_not_know_is_undecodable(start: Start, kept: FileQuarantine):
    """It is kept without a schema; with fail the error names it and its neighbours can be read."""
    service, face = start()
    service.good(1)
    service.bad(schema_id="AAAAAAAAAAAAAAAAAAAAAA")
    service.good(1)
    held = face.managed(NAME, ack="manual")
    events = list(held.batch())
    assert events[2].value["Order_Number__c"] == "2"
    with pytest.raises(DecodeError, match=r"at position .* has no schema AAAAAAAAAA"):
        _ = events[1].value
    assert (events[1].event_name, events[1].payload) == ("", BAD)
    held.abort()
    held = face.plain(TOPIC, replay="earliest", on_undecodable="quarantine", quarantine=kept)
    assert collect(held, 2) == [0, 2]
    (entry,) = kept.entries()
    assert (entry.schema_json, entry.topic) == (None, TOPIC)
    assert "has no schema AAAAAAAAAAAAAAAAAAAAAA" in entry.reason


@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_a_schema_that_cannot_be_had_for_now_is_waited_for(
    start: Start, kept: FileQuarantine, policy
):
    """A transient failure of GetSchema never quarantines and never skips."""
    service, face = start()
    service.good(2)
    service.plan("refuse", rpc="GetSchema", times=3)
    service.plan("drop_call", rpc="GetSchema", times=2)
    options = {"quarantine": kept} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    assert collect(held, 2) == [0, 1]
    until(service.is_consumed)
    assert (held.health().quarantined, held.health().skipped, len(kept)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"kind": "refuse", "error_code": "schema.meta.permission"}, PermissionDeniedError),
        ({"kind": "drop_call", "status": "NOT_FOUND"}, SchemaNotFoundError),
    ],
)
@pytest.mark.parametrize("policy", ["quarantine", "skip"])
def test_what_says_nothing_about_the_schema_passes_nothing(
    start: Start, kept: FileQuarantine, policy, fault, error
):
    """No permission, or a NOT_FOUND that is not the service's word: an error, and they come again.

    The next call tries again.
    """
    service, face = start()
    service.good(2)
    fault = dict(fault)
    service.plan(fault.pop("kind"), rpc="GetSchema", **fault)
    options = {"quarantine": kept} if policy == "quarantine" else {}
    held = face.managed(NAME, on_undecodable=policy, **options)
    with pytest.raises(error):
        held.next()
    assert service.committed() is None
    assert collect(held, 2) == [0, 1]
    assert (held.health().quarantined, held.health().skipped, len(kept)) == (0, 0, 0)


def test_an_invalid_schema_is_undecodable_and_a_missing_answer_is_not():
    """Which failures are about the event for good."""

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


def test_a_quarantine_that_fails_acks_nothing_and_is_asked_again(
    start: Start, kept: FileQuarantine
):
    """The whole response waits: no event of it is handed out, none is lost."""
    service, face = start()
    service.good(1)
    service.bad()
    service.good(1)

    class Full(Quarantine):
        failures = 2

        def put(self, events: Sequence[QuarantinedEvent]) -> None:
            if self.failures:
                self.failures -= 1
                raise WriteError("disk full")
            kept.put(events)

    held = face.managed(NAME, on_undecodable="quarantine", quarantine=Full())
    for _ in range(2):
        with pytest.raises(WriteError, match="disk full"):
            held.next()
        assert service.committed() is None
    assert collect(held, 2) == [0, 2]
    assert held.health().quarantined == len(kept) == 1


def test_after_a_drain_nothing_that_was_set_apart_is_handed_out(start: Start, kept):
    """What was not handed out comes again, and what was kept is not kept twice."""
    service, face = start()
    service.good(1)
    service.bad()
    service.good(1)
    options = {"on_undecodable": "quarantine", "quarantine": kept}
    held = face.managed(NAME, **options)
    assert numbers(held.batch()) == [0]
    held.drain()
    with pytest.raises(SubscriptionClosedError):
        held.next(0.1)
    again = face.managed(NAME, **options)
    seen = again.collect(1)
    while seen[-1] != 2:
        seen += again.collect(1)
    assert len(kept) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"on_undecodable": "ignore"},
        {"on_undecodable": "quarantine"},
        {"on_undecodable": "skip", "quarantine": FileQuarantine("x")},
        {"quarantine": FileQuarantine("x")},
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(start: Start, options):
    """At once, and by both ways to subscribe."""
    _, face = start()
    with pytest.raises(ConfigurationError):
        face.managed(NAME, **options)
    with pytest.raises(ConfigurationError):
        face.plain(TOPIC, **options)


def test_values_are_the_same_however_often_they_are_read(start: Start):
    """A checked batch was decoded already; its events do not share what they hand out."""
    service, face = start()
    service.good(2)
    batch = face.managed(NAME, on_undecodable="skip").batch()
    first, second = [event.value for event in batch], [event.value for event in batch]
    assert first == second
    assert all(one is not two for one, two in zip(first, second, strict=True))


# The quarantine itself.


def entry(**changes: Any) -> QuarantinedEvent:
    raw = {"id": "e", "schema_id": "s", "payload": BAD, "replay_id": ReplayId(b"r")}
    raw |= {"headers": (("h", b"\x00\xff"),)}
    raw |= {name: changes.pop(name) for name in list(changes) if name in raw}
    rest = {"subscription": "S", "topic": "T", "reason": "why \u2028", "received_at": 1.25}
    return QuarantinedEvent(RawEvent(**raw), **{**rest, **changes})


def test_an_entry_is_read_as_it_was_put(kept: FileQuarantine):
    """All of it, bytes and words."""
    put = entry(schema_json='{"type": "é"}', delivery_seq=7)
    kept.put([put])
    assert kept.get(put.key) == put
    assert list(FileQuarantine(kept.directory).entries()) == [put]
    assert kept.get("0" * 32) is None


def test_the_same_event_is_kept_once(kept: FileQuarantine):
    """By subscription, id and bytes; without an id the position tells events apart."""
    one = entry()
    kept.put([one, one])
    kept.put([entry(received_at=99.0, reason="another time"), entry(replay_id=ReplayId(b"new"))])
    assert list(kept.entries()) == [one], "the first one stays as it is"
    others = [
        entry(subscription="S2"),
        entry(id="e2"),
        entry(payload=b"other"),
        entry(schema_id="s2"),
        entry(id=""),
        entry(id="", replay_id=ReplayId(b"r2")),
        entry(id="r"),
    ]
    kept.put(others)
    assert len(kept) == 1 + len(others)


def test_entries_come_in_order_of_arrival(kept: FileQuarantine):
    """Not of their names."""
    events = [entry(id=f"e{n}", received_at=n // 3, delivery_seq=n) for n in range(12)]
    kept.put(events[6:])
    kept.put(events[:6])
    assert [event.raw.id for event in kept.entries()] == [f"e{n}" for n in range(12)]


def test_a_damaged_entry_is_an_error_that_hides_no_other(kept: FileQuarantine, caplog):
    """And is written again when its event comes again."""
    one, two = entry(id="one"), entry(id="two")
    kept.put([one, two])
    (kept.directory / f"{one.key}.json").write_text("{")
    found = kept.entries()
    assert next(found) == two
    with pytest.raises(ConfigurationError, match=f"{one.key}.json is damaged"):
        next(found)
    path = kept.directory / f"{two.key}.json"
    path.write_text(path.read_text().replace('"why', '"who'))
    with pytest.raises(ConfigurationError, match="is damaged"):
        kept.get(two.key)
    kept.put([one, two])
    assert {event.raw.id for event in kept.entries()} == {"one", "two"}
    assert "rewriting the entry" in caplog.text


def test_put_returns_when_file_and_name_are_durable(kept: FileQuarantine, monkeypatch):
    """Contents, then names, then the directory; also for an entry that was here already."""
    log: list[str] = []
    sync, replace = module.sync, os.replace
    kept.directory.mkdir()

    def watched_replace(source: Any, target: Any) -> None:
        log.append("name")
        replace(source, target)

    monkeypatch.setattr(
        module, "sync", lambda path: log.append("dir" if path.is_dir() else "file") or sync(path)
    )
    monkeypatch.setattr(module.os, "replace", watched_replace)
    kept.put([entry(), entry(id="two")])
    assert log == ["file", "file", "name", "name", "dir"]
    log.clear()
    kept.put([entry()])
    assert log == ["dir"]


def test_what_a_dead_process_left_is_removed_at_the_next_open(kept: FileQuarantine):
    """Drafts do not pile up; one that another process is just writing stays."""
    kept.put([entry(id="1")])
    old, young = (kept.directory / f"{name}.json.{name}.tmp" for name in ("old", "young"))
    for draft in (old, young):
        draft.write_text("{")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    again = FileQuarantine(kept.directory)
    assert len(again) == 1
    again.put([entry(id="2")])
    assert (old.exists(), young.exists()) == (False, True)
    assert len(again) == 2


def test_a_quarantine_that_cannot_be_written_is_a_typed_error(tmp_path, monkeypatch):
    """Nothing half-written is left."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="no events were acked"):
        FileQuarantine(tmp_path / "file").put([entry()])
    kept = FileQuarantine(tmp_path / "q")

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    kept.directory.mkdir()
    with monkeypatch.context() as broken:
        broken.setattr(module, "sync", full)
        with pytest.raises(WriteError, match="No space left"):
            kept.put([entry()])
    assert list(kept.directory.iterdir()) == []


def test_marks_survive_and_do_not_hide_entries(kept: FileQuarantine):
    """A redriven event that comes again is still redriven."""
    kept.put([entry(), entry(id="two")])
    kept.mark_redriven([entry().key], "stdout")
    kept.put([entry()])
    assert (kept.is_redriven(entry().key), kept.is_redriven(entry(id="two").key)) == (True, False)
    assert len(list(kept.entries())) == len(kept) == 2


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
def test_kill_9_between_quarantine_and_ack_loses_and_doubles_nothing(
    start: Start, kept: FileQuarantine, moment
):
    """The event is not committed, comes again, and is kept exactly once."""
    from ..cli.test_cli import environment

    service, face = start()
    service.bad()
    service.good(1)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, NAME, str(kept.directory), moment],
        env={**os.environ, **environment(service.emulator)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (done.stdout == "put\n") == (moment == "before the ack")
    assert len(kept) == (moment == "before the ack")
    assert service.committed() is None
    held = face.managed(NAME, on_undecodable="quarantine", quarantine=kept)
    assert collect(held, 1) == [1]
    until(lambda: service.committed() == 1, "the commit of all")
    (found,) = kept.entries()
    assert (found.raw.payload, found.raw.replay_id) == (BAD, service.replay_id(0))
    assert json.loads((kept.directory / f"{found.key}.json").read_text())["event_id"]
