"""Fixtures for tests that read records: an org that they all share, and readers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.rest import OrgReader
from tests.auth.servers import Host, Reply, Request, https_host
from tests.emulator.records.support import fill_orders

from .support import QUICK, reader_of

ORDERS = 20_000


@pytest.fixture(scope="session")
def org(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorServer]:
    """Start an emulator with 20,000 order records, each with a text of 1,000 characters."""
    with EmulatorServer(tmp_path_factory.mktemp("org")) as emulator:
        fill_orders(emulator, ORDERS, "x" * 1000)
        yield emulator


@pytest.fixture
def reader(org: EmulatorServer) -> OrgReader:
    """Return a reader of the org with 20,000 orders."""
    return reader_of(org)


@pytest.fixture
def told() -> Iterator[Callable[[Callable[[Request], Reply]], tuple[Host, OrgReader]]]:
    """Return a function that starts a host with a given request handler.

    The function returns the host, and an `OrgReader` for it that uses short delays.
    """
    with contextlib.ExitStack() as stack:

        def make(answer: Callable[[Request], Reply], **arguments: Any) -> tuple[Host, OrgReader]:
            host = stack.enter_context(https_host(answer))
            session = Session("00D000000000001!TopSecretToken", host.url, "00D000000000001AAA")
            arguments.setdefault("timings", QUICK)
            return host, OrgReader(session, **arguments)

        yield make
