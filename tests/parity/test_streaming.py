"""Tests of what no source confirms about the Streaming API. They publish some events to the org's
topic, and change nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ..emulator.bayeux import ALL, NEW, Bayeux
from ..emulator.support import until
from .test_pubsub import publish

HELD_S = 150.0
"""Longer than a connect is held, which is 110 s by the documentation."""


@pytest.fixture
def bayeux(org: Any) -> Iterator[Bayeux]:
    """A client with a session, which ends after the test."""
    where = SimpleNamespace(http_url=org.instance_url, access_token=org.access_token)
    found = Bayeux(where, timeout_s=HELD_S).ready()
    yield found
    found.ask("disconnect")


def test_the_older_of_two_connects_is_cancelled(org, bayeux, event, seen):
    """While a connect is held, another one is held in its place, and the first is answered with
    status 500.
    """
    assert bayeux.subscribe(org.topic, NEW)["successful"]
    message = {
        "channel": "/meta/connect",
        "clientId": bayeux.client_id,
        "connectionType": "long-polling",
    }
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(bayeux.post(message)), daemon=True)
        for _ in range(2)
    ]
    threads[0].start()
    threads[0].join(2.0)  # the first is held
    threads[1].start()
    threads[0].join(5.0)
    first = list(answers)
    publish(org, event())  # ends the other one
    until(lambda: not any(thread.is_alive() for thread in threads), HELD_S)
    seen(first=first[0][0] if first else "held")
    assert [status for status, _ in first] == [500]


@pytest.mark.parametrize(
    ("replay", "accepted"), [({"/event/Another__e": ALL}, False), ({}, True)], ids=["other", "none"]
)
def test_a_replay_map(org, bayeux, seen, replay, accepted):
    """A replay map without the channel is refused; an empty one is accepted."""
    (reply,) = bayeux.ask("subscribe", subscription=org.topic, ext={"replay": replay})
    seen(accepted=reply["successful"], error=reply.get("error"))
    assert reply["successful"] == accepted


def test_where_events_are(org, bayeux, event, seen):
    """Retained events are not in the answer to a subscribe. They come before the answer to the next
    connect, and have no message id.
    """
    publish(org, event(), event())
    asked = bayeux.ask("subscribe", subscription=org.topic, ext={"replay": {org.topic: ALL}})
    messages = bayeux.connect()
    events = [item for item in asked + messages if "data" in item]
    seen(
        on_subscribe=sum("data" in item for item in asked),
        first="data" in messages[0],
        ids=any("id" in item for item in events),
    )
    assert len(asked) == 1
    assert len(events) >= 2
    assert "data" in messages[0]
    assert not any("id" in item for item in events)
