"""The emulator for a whole pytest run: one process for all workers.

The first process that needs the emulator starts it under a file lock, and saves the line of JSON
that the emulator prints when it is ready. The other processes read the saved line. `lifeline`
creates the directory for these files, and stops the emulator when the run ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from sfpubsub.config.sources import ENVIRONMENT_PREFIX, NOT_SETTINGS
from sfpubsub.emulator.org.accounts import DEFAULT_APP, DEFAULT_USER
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.remote import RemoteEmulator
from sfpubsub.emulator.server import EmulatorServer

KEPT = frozenset(ENVIRONMENT_PREFIX + name for name in NOT_SETTINGS)
"""Environment variables that do not select an org."""

_START_S = 60.0
"""Longest wait until the emulator is ready, in seconds. It normally takes one second, and more on a
busy machine.
"""


class RunningEmulator(RemoteEmulator):
    """The emulator of the run: a `RemoteEmulator` with its addresses and environment variables.

    Args:
        ready: The parsed line of JSON that the emulator printed when it was ready.

    Attributes:
        grpc_target: Host and port of the Pub/Sub API.
        instance_url, tenant_id: Header values that clients send with the token.
        ca_file: PEM file of the certificate authority to trust; None without TLS.
        environment: Environment variables for clients in this process or its children.
    """

    def __init__(self, ready: Mapping[str, str]) -> None:
        self.ca_file = Path(ready["ca_file"]) if "ca_file" in ready else None
        super().__init__(ready["http"], ready["access_token"], ca_file=self.ca_file)
        self.grpc_target = ready["grpc"]
        self.instance_url = ready["instance_url"]
        self.tenant_id = ready["tenant_id"]
        self.environment = environment_of(self)


def environment_of(emulator: EmulatorServer | RunningEmulator) -> dict[str, str]:
    """Return the environment variables that point clients to an emulator.

    Clients sign in with the access token. The credentials of the default connected app and user are
    included for tests of other sign-in flows.
    """
    trust = {"INSECURE": "1"}
    if emulator.ca_file:
        trust = dict.fromkeys(("CA_FILE", "EMULATOR_CA_FILE"), str(emulator.ca_file))
    values = {
        "EMULATOR_URL": emulator.http_url,
        "EMULATOR_TOKEN": emulator.access_token,
        "ENDPOINT": emulator.grpc_target,
        "AUTH": "token",
        "ACCESS_TOKEN": emulator.access_token,
        "INSTANCE_URL": emulator.instance_url,
        "TENANT_ID": emulator.tenant_id,
        "LOGIN_URL": emulator.http_url,
        "CLIENT_ID": DEFAULT_APP["client_id"],
        "CLIENT_SECRET": DEFAULT_APP["client_secret"],
        "USERNAME": DEFAULT_USER["username"],
        "PASSWORD": DEFAULT_USER["password"],
        **trust,
    }
    return {ENVIRONMENT_PREFIX + name: value for name, value in values.items()}


def start_or_find(directory: Path, options: Sequence[str]) -> RunningEmulator:
    """Return the emulator of the run, starting it if necessary.

    Args:
        directory: Directory of the run's `EmulatorRun`.
        options: Options of `sfpubsub emulator`; ignored if the emulator is already running.

    Raises:
        EmulatorProblem: The emulator did not start (the message contains its output), or the
            directory is on another machine.
    """
    if not directory.is_dir():
        raise EmulatorProblem(
            f"{directory} is not on this machine: workers that share the run's emulator must run"
            " on the machine of the xdist controller"
        )
    ready = directory / "ready.json"
    with _alone(directory / "lock"):
        if not ready.exists():
            ready.write_text(_start(directory, options))
    return RunningEmulator(json.loads(ready.read_text()))


def _start(directory: Path, options: Sequence[str]) -> str:
    """Start the emulator, and return the line of JSON that it prints when it is ready."""
    command = [sys.executable, "-m", "sfpubsub", "emulator", "--until-stdin-closes"]
    places = ["--grpc-port", "0", "--http-port", "0", "--data-dir", str(directory / "data")]
    log = directory / "emulator.log"
    with log.open("wb") as errors, (directory / "lifeline").open("rb") as lifeline:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, *places, *options],
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=errors,
            # Ctrl-C is meant for pytest; the emulator exits when its stdin closes.
            start_new_session=True,
        )
    if process.stdout is None:
        raise AssertionError("bug in sfpubsub: the emulator's stdout is not a pipe")
    with process.stdout as output:
        line = _first_line(output)
    if not line:
        process.kill()
        process.wait()
        raise EmulatorProblem(f"the emulator did not start: {log.read_text().strip()}")
    # Suppress the ResourceWarning: the parent deliberately does not wait for the process.
    process.returncode = 0
    return line


def _first_line(output: IO[bytes]) -> str:
    """Return the first line of the emulator's output.

    The line is empty if the emulator exits first, or writes nothing within `_START_S` seconds. The
    emulator writes the whole line at once, so reading does not block once output has arrived.
    """
    waiting, _, _ = select.select([output], [], [], _START_S)
    return output.readline().decode() if waiting else ""


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file *path* in the ``with`` block."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
