"""Fixtures and helpers for all tests: emulators in this process, and clients for them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.client.subscription import ManagedSubscription, Subscription
from sfpubsub.config import RestTimings, Timings
from sfpubsub.emulator.server import EmulatorServer

# Longest wait for a condition, in seconds. A passing test waits milliseconds, or a few seconds on a
# busy machine.
PATIENCE = 60.0

# Timings for a service on loopback: short retry delays, otherwise the defaults.
QUICK = Timings(backoff_initial=0.02, backoff_max=0.1, slot_initial=0.02, slot_max=0.1)

# A shell that starts a run in the background has it ignore Ctrl-C, and all of its processes too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ModuleNotFoundError):  # not installed in Iceberg's environment
    import hypothesis

    # No deadline, because an example may be slow on a busy machine.
    hypothesis.settings.register_profile(
        "sfpubsub", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("sfpubsub")


@pytest.fixture(scope="session", autouse=True)
def quick_retries() -> Iterator[None]:
    """Shorten the delays before a request to an org is sent again."""
    quick = partial(RestTimings, backoff_initial=0.001)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sfpubsub.auth.rest.RestTimings", quick)
        yield


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that run an emulator in this process."""
    if "run_emulator" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.emulator)


def pytest_report_header() -> str:
    """Return a line with the versions of Python, gRPC and protobuf for the report's header."""
    import grpc
    from google import protobuf

    return (
        f"python {sys.version.split()[0]}, grpc {grpc.__version__}, protobuf {protobuf.__version__}"
    )


@pytest.fixture(scope="session", autouse=True)
def _own_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary directory for status files, in child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFPUBSUB_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def run_emulator(tmp_path: Path) -> Iterator[Callable[..., EmulatorServer]]:
    """Return a function that runs an emulator in this process until the end of the test."""
    with contextlib.ExitStack() as stack:

        def start(**arguments: Any) -> EmulatorServer:
            arguments.setdefault("data_dir", tmp_path / "emulator")
            return stack.enter_context(EmulatorServer(**arguments))

        yield start


class KeepingClient(PubSubClient):
    """A client that references its subscriptions, so that they are not garbage-collected."""

    def subscribe(self, *arguments: Any, **options: Any) -> Subscription:
        return self._keep(super().subscribe(*arguments, **options))

    def subscribe_managed(self, *arguments: Any, **options: Any) -> ManagedSubscription:
        return self._keep(super().subscribe_managed(*arguments, **options))

    def _opened(self) -> None:
        self.kept: list[Subscription] = []

    def _keep(self, subscription: Any) -> Any:
        self.kept.append(subscription)
        return subscription


@pytest.fixture
def connect() -> Iterator[Callable[..., PubSubClient]]:
    """Return a function that creates clients of an emulator, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(emulator: EmulatorServer, **arguments: Any) -> PubSubClient:
            arguments.setdefault("timings", QUICK)
            arguments.setdefault("insecure", "1")
            return stack.enter_context(
                KeepingClient(
                    Session(emulator.access_token, emulator.instance_url, emulator.tenant_id),
                    endpoint=emulator.grpc_target,
                    **arguments,
                )
            )

        yield make


def wait_for_exit(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until a process exits, and return its remaining stdout and stderr.

    A process that does not exit is aborted. If it runs with ``-X faulthandler``, it then prints the
    stacks of its threads.
    """
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        _, errors = process.communicate(timeout=PATIENCE)
        pytest.fail(f"the process did not exit: {errors}")


class ToldError(Exception):
    """Raised by the signal handler of `told_during_a_wait`."""


@contextlib.contextmanager
def told_during_a_wait() -> Iterator[None]:
    """Expect the block, which waits in this thread, to be ended by a signal that another thread
    receives. As with one that arrives just before a wait, its arrival does not end the wait.
    """

    def tell(*_: object) -> None:
        raise ToldError

    before = signal.signal(signal.SIGTERM, tell)
    sender = threading.Timer(0.2, signal.raise_signal, [signal.SIGTERM])
    began = time.monotonic()
    sender.start()
    try:
        with pytest.raises(ToldError):
            yield
    finally:
        sender.join()
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - began < PATIENCE / 2


def until(condition: Callable[[], Any], what: str = "the condition", patience: float = PATIENCE):
    """Wait until *condition* returns a true value, and return that value.

    After *patience* seconds, fail with a message that contains *what*.
    """
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: timed out after {patience} s"
        time.sleep(0.005)  # until the deadline
    return value
