"""Tests of the parts of the emulator's model that need no gRPC or HTTP: replay IDs, counters,
settings, the clock, schemas, and the event bus.
"""

from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfpubsub.emulator.org.clock import Clock, ManualClock
from sfpubsub.emulator.org.counters import Count
from sfpubsub.emulator.org.replay_ids import ReplayIds
from sfpubsub.emulator.org.schemas import Schema, SchemaProblem
from sfpubsub.emulator.org.settings import REPLAY_ID_LENGTHS, Settings
from sfpubsub.emulator.org.store import Store

from .support import ACCOUNTS, CHANGES, ORDERS

POSITIONS = st.integers(0, 2**53 - 1)


@pytest.mark.parametrize("length", REPLAY_ID_LENGTHS)
@given(position=POSITIONS)
def test_replay_ids_are_a_bijection(length, position):
    """Every position maps to a replay ID of the configured length, and the ID maps back to the
    position.
    """
    ids = ReplayIds(length)
    assert len(ids.mint(position)) == length
    assert ids.read(ids.mint(position)) == position


@pytest.mark.parametrize("length", REPLAY_ID_LENGTHS)
def test_byte_order_is_never_arrival_order(length):
    """Among the first 100,000 replay IDs, no four consecutive ones are sorted as bytes, in
    ascending or descending order, so no client can rely on their byte order.
    """
    ids = ReplayIds(length)
    minted = [ids.mint(position) for position in range(1, 100_001)]
    for start in range(len(minted) - 3):
        four = minted[start : start + 4]
        assert four != sorted(four)
        assert four != sorted(four, reverse=True)


@given(position=POSITIONS)
def test_ten_byte_replay_id(position):
    """A ten-byte replay ID is a number below 2**53 followed by two zero bytes, and its first eight
    bytes alone are accepted as well.
    """
    ids = ReplayIds(10)
    minted = ids.mint(position)
    assert minted[8:] == b"\x00\x00"
    assert int.from_bytes(minted[:8], "big") < 2**53
    assert ids.read(minted[:8]) == position


@given(garbage=st.binary(max_size=30))
def test_random_bytes_are_not_a_valid_position(garbage):
    """Random bytes are either rejected as a replay ID or map to a position above 1000."""
    position = ReplayIds(10).read(garbage)
    assert position is None or position > 1000


@pytest.mark.parametrize("length", [12, 24])
def test_long_ids_cannot_be_shortened(length):
    """Replay IDs of 12 and 24 bytes contain 0xff and 0x00, and are rejected if they are shortened
    or altered.
    """
    ids = ReplayIds(length)
    minted = ids.mint(5)
    assert minted[8:10] == b"\xff\x00"
    assert ids.read(minted[:8]) is None
    assert ids.read(minted[:-1] + bytes([minted[-1] ^ 1])) is None


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=30),
    st.sets(st.integers(1, 60), min_size=5),
)
def test_redelivered_count_equals_that_of_a_set(responses, topic):
    """The redelivery counter, which stores ranges, counts the same as a set of all delivered
    positions.
    """
    positions = sorted(topic)
    count, seen, redelivered = Count(), set(), 0
    for after, size in responses:
        sent = [p for p in positions if p > after][:size]
        if sent:
            redelivered += sum(p in seen for p in sent)
            seen |= set(sent)
            count.sent(after, sent)
            assert count.redelivered == redelivered


@pytest.mark.parametrize(
    "values",
    [
        {"keepalive_s": 271},
        {"keepalive_s": 0},
        {"keepalive_s": float("nan")},
        {"max_outstanding": 0},
        {"replay_id_bytes": 9},
        {"idle_close": "maybe"},
        {"tip_refresh_s": 3, "retention_s": 5},
        {"statuses": {"nothing": "OK"}},
        {"statuses": {"service.auth.error": "OK"}},
        {"events_per_response": True},
    ],
)
def test_invalid_settings(values):
    """An invalid value raises `ValueError` with a message that contains the setting's name."""
    with pytest.raises(ValueError, match=next(iter(values))):
        Settings.from_mapping(values)


def test_clock_jumps():
    """A jump advances the current time and wakes listeners; a negative jump raises `ValueError`."""
    clock = Clock()
    woken = threading.Event()
    clock.on_jump(woken.set)
    before = clock.now()
    clock.jump(1000)
    assert 1000 <= clock.now() - before < 1010
    assert woken.is_set()
    with pytest.raises(ValueError, match="back"):
        clock.jump(-1)
    manual = ManualClock(5.0)
    manual.jump(2)
    assert (manual.now(), manual.timeout(7.0), manual.timeout(8.0)) == (7.0, 0.0, None)


@settings(max_examples=300)
@given(payload=st.binary(max_size=200))
def test_check_raises_only_schema_problems(payload):
    """For any bytes, `Schema.check` either succeeds or raises `SchemaProblem`, never an exception
    of fastavro's own.
    """
    schema = _account_schema()
    with contextlib.suppress(SchemaProblem):
        schema.check(payload)


def _account_schema(cache: list[Schema] = []) -> Schema:  # noqa: B006 - a cache on purpose
    """Return the schema of the default seed's account change events, which is loaded only once."""
    if not cache:
        from sfpubsub.emulator.org import seed

        cache.append(seed.load(seed.DEFAULT_SEED).topics[1][1])
    return cache[0]


def test_encode_rejects_invalid_values():
    """Encoding a value with an unknown field or a wrong type raises `SchemaProblem` with the name
    of the field or the schema; a valid value is accepted.
    """
    schema = _account_schema()
    with pytest.raises(SchemaProblem, match="does not have these fields: Nope"):
        schema.encode({"Nope": 1}, 0.0)
    with pytest.raises(SchemaProblem, match="AccountChangeEvent"):
        schema.encode({"Phone": 5}, 0.0)
    schema.check(schema.encode({"ShippingAddress": {"City": "Graz"}, "Name": "x"}, 0.0))


def test_retention(start):
    """An event expires after exactly 72 h on its topic and on the channels that include it,
    together with its replay ID; newer events stay.
    """
    emulator, _ = start(clock=ManualClock())

    def retained():
        topics = (emulator.bus.topic(name) for name in (ORDERS, ACCOUNTS, CHANGES))
        return [[e.position for e in emulator.bus.read(topic, 0, 10)[0]] for topic in topics]

    old = [*emulator.publish(ORDERS, [{}]), *emulator.publish(ACCOUNTS, [{}])]
    emulator.clock.jump(72 * 3600 - 1)
    emulator.publish(ORDERS, [{}])
    emulator.publish(ACCOUNTS, [{}])
    assert retained() == [[1, 3], [2, 4], [2, 4]]
    assert [emulator.bus.position(each.replay_id) for each in old] == [1, 2]
    emulator.clock.jump(1)
    assert retained() == [[3], [4], [4]]
    assert [emulator.bus.position(each.replay_id) for each in old] == [None, None]


def test_age_out(emulator):
    """`age_out` expires an event and all events before it; the ones after it stay valid."""
    published = emulator.publish(ORDERS, [{}, {}, {}])
    emulator.bus.age_out(published[1].replay_id)
    alive = [emulator.bus.position(p.replay_id) is not None for p in published]
    assert alive == [False, False, True]


def test_publishing_from_many_threads(emulator):
    """When ten threads publish at the same time, no event is lost and each gets a unique replay
    ID.
    """
    results = []
    threads = [
        threading.Thread(target=lambda: results.extend(emulator.publish(ORDERS, [{}] * 20)))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({r.replay_id for r in results}) == 200
    assert emulator.bus.tip() == 200


def test_a_transaction_inside_another_is_undone_alone_and_kept_together(tmp_path):
    """An exception in a transaction undoes what it contains, not the transaction around it; what
    both contain is committed together, or not at all.
    """
    store = Store(tmp_path / "bus.sqlite3")

    def keys():
        return [row[0] for row in store.rows("SELECT key FROM meta WHERE key < 'b' ORDER BY key")]

    with store.transaction():
        store.set_meta("a1", "")
        with contextlib.suppress(KeyError), store.transaction():
            store.set_meta("a2", "")
            raise KeyError
        with store.transaction():
            store.set_meta("a3", "")
    assert keys() == ["a1", "a3"]
    with contextlib.suppress(KeyError), store.transaction():
        with store.transaction():
            store.set_meta("a4", "")
        raise KeyError
    assert keys() == ["a1", "a3"]
    store.close()
