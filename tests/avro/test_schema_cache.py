"""Tests of the cache of schemas by id: each is fetched once, and their number is limited.

A wrong answer of the service is not used for long: see the tests at the end.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from sfpubsub.avro.codec import NoCodec
from sfpubsub.avro.schema_cache import SchemaCache, schema_id_of
from sfpubsub.client.undecodable import codec_of
from sfpubsub.errors import SchemaError, SchemaNotFoundError, StreamUnavailableError
from sfpubsub.types import SchemaInfo

from ..conftest import PATIENCE, until
from .schemas import ORDER

ORDER_ID = schema_id_of(ORDER)


def named(name: str) -> str:
    """Return the schema `ORDER` under another name."""
    return ORDER.replace("Order_Event__e", name)


def test_a_schema_is_fetched_once():
    """The second request for a schema returns the cached codec without a call."""
    calls = []
    cache = SchemaCache(lambda id_: calls.append(id_) or SchemaInfo(id_, ORDER))
    assert cache.get(ORDER_ID) is cache.get(ORDER_ID)
    assert calls == [ORDER_ID]


def test_many_threads_share_one_fetch():
    """Eight threads that need the same schema at once cause one call."""
    gate, calls = threading.Event(), []

    def fetch(schema_id):
        calls.append(schema_id)
        assert gate.wait(PATIENCE)
        return SchemaInfo(schema_id, ORDER)

    cache = SchemaCache(fetch)
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.get(ORDER_ID))) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: calls)
    gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(found) == 8
    assert calls == [ORDER_ID]


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
    answers = [StreamUnavailableError("down"), SchemaInfo(ORDER_ID, ORDER)]

    def fetch(_schema_id):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = SchemaCache(fetch)
    with pytest.raises(StreamUnavailableError):
        cache.get(ORDER_ID)
    assert cache.get(ORDER_ID).name == "Order_Event__e"


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
    known = {schema_id_of(text): text for text in (named("A"), named("B"), named("C"))}
    a, b, c = known
    cache = SchemaCache(lambda id_: calls.append(id_) or SchemaInfo(id_, known[id_]), max_schemas=2)
    for schema_id in (a, b, a, c, a, b):
        cache.get(schema_id)
    assert len(cache) == 2
    assert calls == [a, b, c, b]


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


class Service:
    """Answers GetSchema with the given texts, one after another; the last one is repeated."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, schema_id: str) -> SchemaInfo:
        self.calls += 1
        return SchemaInfo(schema_id, self.answers.pop(0) if self.answers[1:] else self.answers[0])


class Shelf(dict):
    """A durable store."""

    put = dict.__setitem__


@pytest.mark.parametrize("wrong", [named("Other__e"), "{"], ids=["other", "invalid"])
def test_a_wrong_answer_is_fetched_once_more(wrong):
    """If the first answer is another schema, the second is used and stored."""
    service, shelf = Service(wrong, ORDER), Shelf()
    cache = SchemaCache(service, store=shelf)
    assert cache.get(ORDER_ID).name == "Order_Event__e"
    assert service.calls == 2
    assert shelf == {ORDER_ID: ORDER}
    assert cache.mismatches == 0


def test_ids_that_are_no_hashes_are_used_and_not_stored(caplog):
    """A schema whose hash is not its id is used if the service repeats it; it is logged once,
    counted, and not stored, so that the next process asks the service again.
    """
    service, shelf = Service(ORDER), Shelf()
    cache = SchemaCache(service, store=shelf, max_schemas=1)
    for schema_id in ("a", ORDER_ID, "a"):
        assert cache.get(schema_id).name == "Order_Event__e"
    assert cache.get("a").is_doubtful
    assert cache.mismatches == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert shelf == {ORDER_ID: ORDER}
    assert service.calls == 5


def test_answers_that_differ_and_do_not_fit_are_not_used():
    """If the service sends two different schemas for an id that is the hash of neither, events are
    not decoded with either of them.
    """
    cache = SchemaCache(Service(named("One__e"), named("Two__e")))
    with pytest.raises(SchemaError, match="two different schemas") as caught:
        cache.get(ORDER_ID)
    assert not caught.value.retryable
    assert isinstance(codec_of(SchemaCache(Service(named("A"), named("B"))), ORDER_ID), NoCodec)


def test_a_stored_schema_with_another_hash_is_fetched_again(caplog):
    """A wrong schema in a durable store is not used, but replaced by the service's."""
    shelf = Shelf({ORDER_ID: named("Other__e")})
    assert SchemaCache(Service(ORDER), store=shelf).get(ORDER_ID).name == "Order_Event__e"
    assert shelf == {ORDER_ID: ORDER}
    assert "its hash is not its id" in caplog.text
