"""Tests of access to the events of a batch."""

from __future__ import annotations

import pytest

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.types import RawEvent, ReplayId

from .scripted_publishing import SCHEMA


def test_events_of_a_batch_can_be_accessed_by_index():
    """An index and a slice give the same events as iterating, and acks work."""
    acked: list[tuple[int, int]] = []
    batch = EventBatch(
        subscription="name",
        topic=None,
        events=tuple(
            RawEvent(f"e{n}", "tick", bytes([2 * n]), ReplayId(b"r%d" % n)) for n in range(3)
        ),
        codecs={"tick": Codec("tick", SCHEMA)},
        first_seq=7,
        received_at=0.0,
        ack=lambda first, last: acked.append((first, last)),
        decoded={2: {"n": 2}},
    )
    assert batch[0].value == {"n": 0}
    assert batch[-1].value == {"n": 2}
    assert [event.id for event in batch[1:]] == ["e1", "e2"]
    batch[1].ack()
    assert acked == [(8, 8)]
    with pytest.raises(IndexError):
        batch[3]
