"""What several sources hand over is one write. No Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sfpubsub.errors import DecodeError, WriteError
from sfpubsub.spark.ingest import together as module
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.screening import Part
from sfpubsub.spark.ingest.together import Member, Together
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId
from tests.conftest import until
from tests.spark.sample_events import batch_of, replay_id

A, B, C = (Source("topic", f"/event/{name}__e") for name in "ABC")


class Writer:
    """Keeps what it was given, and can be held up."""

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
        assert self.go.wait(30.0), "nobody let the write go on"
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
    rows = EventRows()
    rows.extend(batch_of(list(map(_raw, numbers))), 0.0)
    return rows


def _raw(number: int):
    from tests.spark.sample_events import raw_event

    return raw_event(number)


def together_of(writer: Writer, **options) -> Together:
    arguments = {"max_events": 10, "max_bytes": 10_000, "patience": 30.0} | options
    return Together(writer, **arguments)


def started(pool: ThreadPoolExecutor, member: Member, numbers: Sequence[int]) -> Future:
    return pool.submit(member.write_read, rows_of(numbers))


def test_what_all_have_is_one_write(writer: Writer):
    """The first one waits for the others, and they see that it does."""
    together = together_of(writer)
    one, two, three = map(together.member, writer.sources)
    with ThreadPoolExecutor(3) as pool:
        first = started(pool, one, [1, 2])
        until(lambda: two.is_wanted and three.is_wanted, "the gathering")
        assert not one.is_wanted, "it has joined"
        second = started(pool, two, [3])
        third = started(pool, three, [4])
        assert [f.result(30).rows for f in (first, second, third)] == [2, 1, 1]
    assert [sorted(names) for names, _ in writer.writes] == [[A.name, B.name, C.name]]
    assert not two.is_wanted


def test_nobody_is_waited_for_who_has_nothing_or_has_ended(writer: Writer):
    """Patience has an end; and one that has left is not expected."""
    together = together_of(writer, patience=0.05)
    one, two, three = map(together.member, writer.sources)
    assert one.write_read(rows_of([1])).rows == 1
    together = together_of(writer)
    one, two, three = map(together.member, writer.sources)
    two.leave()
    three.leave()
    began = time.monotonic()
    assert one.write_read(rows_of([1])).rows == 1
    assert time.monotonic() - began < 20.0, "its patience is 30 s"
    assert [names for names, _ in writer.writes] == [[A.name]] * 2


@pytest.mark.parametrize(("most", "writes"), [(10_000, 2), (1, 3)])
def test_a_full_write_waits_for_nobody(writer: Writer, most: int, writes: int):
    """A source that reads a backlog is not slowed down by quiet ones; those that have waited
    during its write are one, as far as their bytes allow."""
    together = together_of(writer, max_events=2, max_bytes=most)
    one, two, three = map(together.member, writer.sources)
    writer.go.clear()
    with ThreadPoolExecutor(3) as pool:
        first = started(pool, one, [1, 2])
        until(lambda: together._is_led and not together._is_gathering, "the write")
        rest = [started(pool, two, [3, 4]), started(pool, three, [5, 6])]
        until(lambda: len(together._waiting) == 3, "the others")
        writer.go.set()
        assert all(f.result(30) for f in (first, *rest))
    assert writer.writes[0][0] == [A.name]
    assert len(writer.writes) == writes
    assert sorted(name for names, _ in writer.writes for name in names) == [A.name, B.name, C.name]


def test_a_failed_write_fails_for_all_of_it_and_for_nobody_else(writer: Writer):
    """None of it is acked; the table is asked again by the next write."""
    together = together_of(writer, patience=0.2)
    one, two, _ = map(together.member, writer.sources)
    writer.failure = WriteError("disk full")
    together.member(C).move(replay_id(70))
    with ThreadPoolExecutor(2) as pool:
        both = [started(pool, one, [1]), started(pool, two, [2])]
        for future in both:
            with pytest.raises(WriteError, match="disk full"):
                future.result(30)
    writer.failure = None
    assert one.write_read(rows_of([1])).rows == 1
    assert writer.writes == [([A.name], {C.name: replay_id(70)})], "nor is a position forgotten"


def test_one_whose_event_cannot_be_decoded_is_left_out(writer: Writer):
    """With the policy to fail it ends; the others are written without it."""
    together = together_of(writer, patience=0.2)
    one, two, _ = map(together.member, writer.sources)
    writer.left_out = {A.name}
    with ThreadPoolExecutor(2) as pool:
        bad, good = started(pool, one, [1]), started(pool, two, [2])
        with pytest.raises(DecodeError):
            bad.result(30)
        assert good.result(30).rows == 1


def test_a_position_without_events_goes_with_the_next_write(writer: Writer):
    """Twenty quiet topics do not commit for each keepalive; none is ahead of what is written."""
    together = together_of(writer, patience=0.05)
    one, two, _ = map(together.member, writer.sources)
    two.move(replay_id(70))
    two.check()
    assert writer.writes == []
    one.write_read(rows_of([1]))
    assert writer.writes == [([A.name], {B.name: replay_id(70)})]
    one.move(replay_id(1))
    two.write_read(rows_of([2]))
    assert writer.writes[1:] == [([B.name], {})], "the position of a write of its own is no news"
    two.move(replay_id(71))
    two.write_read(rows_of([3]))
    assert writer.writes[2:] == [([B.name], {})], "its events came later"


def test_a_position_without_events_is_written_before_long(writer: Writer, monkeypatch):
    """By itself, if nothing is written; and at the end."""
    together = together_of(writer)
    one, two, _ = map(together.member, writer.sources)
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
