"""Fixtures: an emulator with change events for all objects of the default seed, and a user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import select


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `org`, which a test advances by hand."""
    return ManualClock()


@pytest.fixture
def org(request, tmp_path, clock) -> Iterator[EmulatorServer]:
    """An emulator that has not been started: only its state, without a server.

    A test may give other settings as the parameter.
    """
    settings = getattr(request, "param", None)
    emulator = EmulatorServer(tmp_path / "org", clock=clock, settings=settings)
    for name in ("Contact", "Opportunity", "Order__c"):
        select(emulator, name)
    yield emulator
    emulator.stop()


@pytest.fixture
def user(org):
    """The default user of `org`."""
    return org.accounts.user("user@example.com")
