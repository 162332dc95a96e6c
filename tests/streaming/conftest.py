"""Fixtures: emulators of the Streaming API, and synchronous and asyncio clients for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfpubsub.emulator.org.settings import Settings

from .faces import FACES, SyncFace, session_of

TOPIC = "/topic/Accounts"


@pytest.fixture
def emulator(run_emulator: Callable[..., Any]) -> Any:
    """An emulator with a PushTopic whose only event is no longer retained."""
    started = run_emulator(settings=Settings())
    started.publish_streaming(TOPIC, records("first"))
    started.bus.age_out()
    return started


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Iterator[Callable[..., SyncFace]]:
    """Return a factory for clients, which are opened by default and stopped when the test ends."""
    with contextlib.ExitStack() as stack:

        def make(target: Any, *channels: str, is_open: bool = True, **arguments: Any) -> SyncFace:
            session = session_of(target) if hasattr(target, "tenant_id") else target
            client = request.param(session, **arguments)
            stack.callback(client.stop)
            if is_open:
                client.open()
            for channel in channels:
                client.subscribe(channel)
            return client

        yield make


def records(*names: str) -> list[dict[str, Any]]:
    return [{"type": "created", "sobject": {"Id": f"001{name}", "Name": name}} for name in names]


def numbered(count: int) -> list[dict[str, Any]]:
    return records(*map(str, range(count)))
