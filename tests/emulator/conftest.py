"""Fixtures: emulators under test, and clients for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.emulator.server import EmulatorServer

from .support import WAIT_S, Client, Process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[EmulatorServer, Client]]]:
    """Return a function that starts an emulator with the given arguments, and returns the
    emulator and a client.
    """
    with contextlib.ExitStack() as stack:

        def make(**arguments: Any) -> tuple[EmulatorServer, Client]:
            arguments.setdefault("data_dir", tmp_path / "data")
            emulator = stack.enter_context(EmulatorServer(**arguments))
            client = Client(emulator.grpc_target, emulator.metadata, emulator.ca_file)
            stack.callback(client.close)
            return emulator, client

        yield make


@pytest.fixture
def pair(start: Any) -> tuple[EmulatorServer, Client]:
    """An emulator with default settings, and a client for it."""
    return start()


@pytest.fixture
def emulator(pair: Any) -> EmulatorServer:
    """An emulator with default settings."""
    return pair[0]


@pytest.fixture
def client(pair: Any) -> Client:
    """A client for the fixture `emulator`."""
    return pair[1]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that runs `sfpubsub emulator` in a process until the test ends."""
    with contextlib.ExitStack() as stack:

        def make(*options: str, data_dir: Path | None = None, stdin: bool = False) -> Process:
            process = Process(data_dir or tmp_path / "data", *options, stdin=stdin)

            def end() -> None:
                if process.popen.poll() is None:
                    process.popen.kill()
                    process.popen.communicate(timeout=WAIT_S)
                for pipe in (process.popen.stdin, process.popen.stdout, process.popen.stderr):
                    if pipe is not None:
                        pipe.close()

            stack.callback(end)
            return process

        yield make
