"""Tests of the cache of schemas by id: each is fetched once, and their number is limited."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.errors import SchemaError, SchemaNotFoundError, StreamUnavailableError
from sfpubsub.types import SchemaInfo

from ..conftest import PATIENCE, until
from .schemas import ORDER


def test_a_schema_is_fetched_once():
    """The second request for a schema returns the cached codec without a call."""
    calls = []
    cache = SchemaCache(lambda id_: calls.append(id_) or SchemaInfo(id_, ORDER))
    assert cache.get("a") is cache.get("a")
    assert calls == ["a"]


def test_many_threads_share_one_fetch():
    """Eight threads that need the same schema at once cause one call."""
    gate, calls = threading.Event(), []

    def fetch(schema_id):
        calls.append(schema_id)
        assert gate.wait(PATIENCE)
        return SchemaInfo(schema_id, ORDER)

    cache = SchemaCache(fetch)
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: calls)
    gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(found) == 8
    assert calls == ["a"]


@pytest.fixture
def waiting(monkeypatch) -> list[str]:
    """Return a list to which a thread adds its name before it waits for another thread's fetch."""
    threads: list[str] = []

    class Watched(Future):
        def result(self, timeout=None):
            threads.append(threading.current_thread().name)
            return super().result(timeout)

    monkeypatch.setattr("sfpubsub.avro.schema_cache.Future", Watched)
    return threads


def test_a_failed_fetch_fails_for_all_that_wait_for_it(waiting):
    """Eight threads that need the same schema at once share one call, and all get its error."""
    gate, calls = threading.Event(), []
    down = StreamUnavailableError("down")

    def fetch(schema_id):
        calls.append(schema_id)
        assert gate.wait(PATIENCE)
        raise down

    cache = SchemaCache(fetch)
    outcomes = []

    def ask():
        try:
            outcomes.append(cache.get("a"))
        except StreamUnavailableError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(waiting) == 7, "seven threads that wait for the eighth")
    gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes == [down] * 8
    assert calls == ["a"]


def test_a_failed_fetch_is_not_cached():
    """After a failed fetch, the next request fetches the schema again."""
    answers = [StreamUnavailableError("down"), SchemaInfo("a", ORDER)]

    def fetch(_schema_id):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = SchemaCache(fetch)
    with pytest.raises(StreamUnavailableError):
        cache.get("a")
    assert cache.get("a").name == "Order_Event__e"


def test_an_unknown_or_broken_schema_raises_a_typed_error():
    """A schema that is unknown or can't be parsed raises an error, and is not cached."""
    calls = []

    def missing(schema_id):
        calls.append(schema_id)
        raise SchemaNotFoundError(schema_id)

    unknown = SchemaCache(missing)
    for _ in range(2):
        with pytest.raises(SchemaNotFoundError):
            unknown.get("a")
    assert (calls, len(unknown)) == (["a", "a"], 0)
    broken = SchemaCache(lambda id_: SchemaInfo(id_, "{"))
    with pytest.raises(SchemaError):
        broken.get("a")
    assert len(broken) == 0


def test_the_cache_drops_the_least_recently_used_schema():
    """A full cache drops the schema that has gone unused the longest."""
    calls = []
    cache = SchemaCache(lambda id_: calls.append(id_) or SchemaInfo(id_, ORDER), max_schemas=2)
    for schema_id in ("a", "b", "a", "c", "a", "b"):
        cache.get(schema_id)
    assert len(cache) == 2
    assert calls == ["a", "b", "c", "b"]


def test_an_interrupted_fetch_can_be_retried_by_other_threads(waiting):
    """If Ctrl-C interrupts the thread that fetches a schema, a thread waiting for the result gets a
    retryable error.
    """
    gate, asked = threading.Event(), threading.Event()

    def fetch(_schema_id):
        asked.set()
        assert gate.wait(PATIENCE)
        raise KeyboardInterrupt

    cache = SchemaCache(fetch)
    outcomes = []

    def ask():
        try:
            cache.get("a")
        except (KeyboardInterrupt, SchemaError) as error:
            outcomes.append(error)

    first, second = threading.Thread(target=ask), threading.Thread(target=ask)
    first.start()
    assert asked.wait(PATIENCE)
    second.start()
    until(lambda: waiting, "the second thread")
    gate.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert {type(error) for error in outcomes} == {KeyboardInterrupt, SchemaError}
    assert all(error.retryable for error in outcomes if isinstance(error, SchemaError))
