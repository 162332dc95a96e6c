"""Tests of combining the batches of several sources into one write, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sfpubsub.errors import DecodeError, WriteError
from sfpubsub.spark.ingest import shared_writer as module
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.screening import Part
from sfpubsub.spark.ingest.shared_writer import SharedWriter, SourceWriter
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId
from tests.conftest import until
from tests.spark.sample_events import batch_of, replay_id

A, B, C = (Source("topic", f"/event/{name}__e") for name in "ABC")


class Writer:
    """A stand-in for the table writer that records its writes, and can block, fail, or leave out
    sources.
    """

    sources = (A, B, C)

    def __init__(self) -> None:
        self.writes: list[tuple[list[str], dict[str, ReplayId]]] = []
        self.positions: dict[str, ReplayId] = {}
        self.go = threading.Event()
        self.go.set()
        self.failure: Exception | None = None
        self.left_out: set[str] = set()

    def write_parts(
        self, parts: Sequence[Part], moves: Mapping[str, ReplayId] | None = None
    ) -> list[WriteResult | DecodeError]:
        assert self.go.wait(30.0), "the write was not released"
        if self.failure is not None:
            raise self.failure
        self.writes.append(([part.source for part in parts], dict(moves or {})))
        return [
            DecodeError(f"in {part.source}")
            if part.source in self.left_out
            else WriteResult(len(part.rows), 0, 0, "b", 0, part.rows.position)
            for part in parts
        ]

    def check(self) -> None:
        pass


@pytest.fixture
def writer() -> Writer:
    return Writer()


def rows_of(numbers: Sequence[int]) -> EventRows:
    """Return the raw rows of events with these numbers."""
    rows = EventRows()
    rows.extend(batch_of(list(map(_raw, numbers))), 0.0)
    return rows


def _raw(number: int):
    from tests.spark.sample_events import raw_event

    return raw_event(number)


def shared_of(writer: Writer, **options) -> SharedWriter:
    arguments = {"max_events": 10, "max_bytes": 10_000, "patience": 30.0} | options
    return SharedWriter(writer, **arguments)


def submit(pool: ThreadPoolExecutor, member: SourceWriter, numbers: Sequence[int]) -> Future:
    """Let *member* write events with these numbers in another thread, and return the future."""
    return pool.submit(member.write_collected, rows_of(numbers))


def test_batches_of_all_sources_are_written_together(writer: Writer):
    """The first source with a batch waits until the other sources have handed over theirs."""
    shared = shared_of(writer)
    one, two, three = map(shared.of, writer.sources)
    with ThreadPoolExecutor(3) as pool:
        first = submit(pool, one, [1, 2])
        until(lambda: two.flush_requested and three.flush_requested, "the gathering")
        assert not one.flush_requested, "a source that waits already is asked for its batch"
        second = submit(pool, two, [3])
        third = submit(pool, three, [4])
        assert [f.result(30).rows for f in (first, second, third)] == [2, 1, 1]
    assert [sorted(names) for names, _ in writer.writes] == [[A.name, B.name, C.name]]
    assert not two.flush_requested


def test_write_waits_briefly_for_idle_sources_and_never_for_ended_ones(writer: Writer):
    """A write waits for idle sources only as long as `patience`, and not at all for ended ones."""
    shared = shared_of(writer, patience=0.05)
    one, two, three = map(shared.of, writer.sources)
    assert one.write_collected(rows_of([1])).rows == 1
    shared = shared_of(writer)
    one, two, three = map(shared.of, writer.sources)
    two.leave()
    three.leave()
    began = time.monotonic()
    assert one.write_collected(rows_of([1])).rows == 1
    assert time.monotonic() - began < 20.0, "it waited for sources that had ended"
    assert [names for names, _ in writer.writes] == [[A.name]] * 2


@pytest.mark.parametrize(("most", "writes"), [(10_000, 2), (1, 3)])
def test_full_batch_is_written_without_waiting(writer: Writer, most: int, writes: int):
    """A full batch is written at once, so that quiet sources do not delay a backlog.

    Batches that arrive during its write are combined up to the byte limit.
    """
    shared = shared_of(writer, max_events=2, max_bytes=most)
    one, two, three = map(shared.of, writer.sources)
    writer.go.clear()
    with ThreadPoolExecutor(3) as pool:
        first = submit(pool, one, [1, 2])
        until(lambda: shared._writes.has_leader and not shared._writes._is_gathering, "the write")
        rest = [submit(pool, two, [3, 4]), submit(pool, three, [5, 6])]
        until(lambda: len(shared._writes._waiting) == 3, "the others")
        writer.go.set()
        assert all(f.result(30) for f in (first, *rest))
    assert writer.writes[0][0] == [A.name]
    assert len(writer.writes) == writes
    assert sorted(name for names, _ in writer.writes for name in names) == [A.name, B.name, C.name]


def test_failed_write_fails_for_all_its_sources(writer: Writer):
    """Every source of a failed write receives the error.

    The next write succeeds, and stores a position that the failed one should have stored.
    """
    shared = shared_of(writer, patience=0.2)
    one, two, _ = map(shared.of, writer.sources)
    writer.failure = WriteError("disk full")
    shared.of(C).move(replay_id(70))
    with ThreadPoolExecutor(2) as pool:
        both = [submit(pool, one, [1]), submit(pool, two, [2])]
        for future in both:
            with pytest.raises(WriteError, match="disk full"):
                future.result(30)
    writer.failure = None
    assert one.write_collected(rows_of([1])).rows == 1
    assert writer.writes == [([A.name], {C.name: replay_id(70)})], "the position was lost"


def test_source_with_an_undecodable_event_is_left_out(writer: Writer):
    """If one source has an undecodable event, only that source gets an error.

    The other sources of the same write are stored.
    """
    shared = shared_of(writer, patience=0.2)
    one, two, _ = map(shared.of, writer.sources)
    writer.left_out = {A.name}
    with ThreadPoolExecutor(2) as pool:
        bad, good = submit(pool, one, [1]), submit(pool, two, [2])
        with pytest.raises(DecodeError):
            bad.result(30)
        assert good.result(30).rows == 1


def test_position_without_events_is_stored_with_the_next_write(writer: Writer):
    """A position from a keepalive does not cause a commit of its own, but is stored with the next
    write. It is dropped if it is not newer than its source's events.
    """
    shared = shared_of(writer, patience=0.05)
    one, two, _ = map(shared.of, writer.sources)
    two.move(replay_id(70))
    two.check()
    assert writer.writes == []
    one.write_collected(rows_of([1]))
    assert writer.writes == [([A.name], {B.name: replay_id(70)})]
    one.move(replay_id(1))
    two.write_collected(rows_of([2]))
    assert writer.writes[1:] == [([B.name], {})], (
        "a position that was stored already is written again"
    )
    two.move(replay_id(71))
    two.write_collected(rows_of([3]))
    assert writer.writes[2:] == [([B.name], {})], (
        "a position older than the written events is stored"
    )


def test_position_without_events_is_stored_alone_after_a_delay(writer: Writer, monkeypatch):
    """A position without events is stored after a delay, or at once if its source ends.

    If the write fails, it is retried.
    """
    shared = shared_of(writer)
    one, two, _ = map(shared.of, writer.sources)
    one.move(replay_id(70))
    monkeypatch.setattr(module, "MOVE_AFTER", 0.0)
    writer.failure = WriteError("disk full")
    with pytest.raises(WriteError):
        two.check()
    writer.failure = None
    two.check()
    assert writer.writes == [([], {A.name: replay_id(70)})]
    monkeypatch.undo()
    two.move(replay_id(71))
    two.leave()
    assert writer.writes[1:] == [([], {B.name: replay_id(71)})]
