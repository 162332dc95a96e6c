"""Python programs of others read from the emulator, in their published form.

Run with `-m foreign`. Each has an environment of its own in the cache directory, which is made
once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfpubsub.emulator.server import EmulatorServer

from ..streaming.test_foreign import CACHE
from .test_foreign_clients import LONGEST_S, run

pytestmark = pytest.mark.foreign

HERE = Path(__file__).parent / "foreign"
CHANNEL = "/topic/Accounts"

OLD_PYTHON = next((name for name in ("python3.9", "python3.8") if shutil.which(name)), "")
"""A Python for a package of 2019, whose dependency fails from Python 3.10 on: `Semaphore.__init__()
got an unexpected keyword argument 'loop'`."""


def environment(package: str, *more: str, python: str = sys.executable) -> str:
    """Install a package in an environment of its own if necessary, and return its Python.

    Args:
        package: The package and its version.
        more: Versions of what it requires, for which the installer would search long.
        python: The Python of the environment.
    """
    venv = CACHE / package.replace("==", "-")
    if not (venv / "done").exists():
        shutil.rmtree(venv, ignore_errors=True)
        run(python, "-m", "venv", str(venv))
        run(str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", package, *more)
        (venv / "done").touch()
    return str(venv / "bin" / "python")


@pytest.mark.parametrize(
    ("module", "package", "python"),
    [
        pytest.param(
            "aiosfstream",
            "aiosfstream==0.5.0",
            OLD_PYTHON,
            marks=pytest.mark.skipif(not OLD_PYTHON, reason="there is no Python 3.8 or 3.9"),
        ),
        ("aiosfstream_ng", "aiosfstream-ng==0.7.5", sys.executable),
    ],
)
def test_aiosfstream(tmp_path, module, package, python):
    """aiosfstream and aiosfstream-ng sign in with a password, replay a PushTopic from its first
    event, and receive a new one, at an address with a name. At an IP address they keep no cookie,
    and the emulator says so.
    """
    interpreter = environment(package, python=python)
    program = str(HERE / "aiosfstream_client.py")
    with EmulatorServer(tmp_path / "named", advertise="localhost") as emulator:
        found = emulator.publish_streaming(CHANNEL, [{"sobject": {"Name": name}} for name in "ab"])
        with subprocess.Popen(
            [interpreter, program, module, emulator.http_url, CHANNEL, "3"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert [int(process.stdout.readline()) for _ in found] == found
            found += emulator.publish_streaming(CHANNEL, [{"sobject": {"Name": "c"}}])
            assert int(process.stdout.readline()) == found[-1]
        assert process.returncode == 0
    with EmulatorServer(tmp_path / "numbers") as emulator:
        done = subprocess.run(
            [interpreter, program, module, emulator.http_url, CHANNEL, "1"],
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
    assert done.returncode != 0
    assert "no BAYEUX_BROWSER cookie present" in done.stderr


@pytest.mark.parametrize("api", ["REST", "BULK"])
def test_tap_salesforce(tmp_path, api):
    """tap-salesforce signs in with a refresh token, discovers the objects, and reads the records of
    one by REST. Its BULK mode uses the Bulk API 1.0, which the emulator does not offer: it ends
    because the limits do not name its batches.
    """
    interpreter = environment("tap-salesforce==2.8.1")
    program = str(HERE / "tap_salesforce_client.py")
    with EmulatorServer(tmp_path / "org") as emulator:
        user = emulator.accounts.holder("")
        emulator.accounts.put_app("emulator", run_as=user.username, refresh_token="a refresh token")
        for name in ("one", "two"):
            emulator.records.create("Account", {"Name": name}, user)
        done = subprocess.run(
            [interpreter, program, emulator.http_url, api, "Account", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
    if api == "REST":
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ["one", "two"]
    else:
        assert "KeyError: 'DailyBulkApiBatches'" in done.stderr


@pytest.mark.parametrize("api", ["rest", "bulk"])
def test_airbyte(tmp_path, api):
    """Airbyte's source signs in with a refresh token, checks the connection, discovers the objects,
    and reads one in full and incrementally, by REST and by the Bulk API 2.0. It reads the last ten
    minutes before its state again.
    """
    interpreter = environment("airbyte-source-salesforce==2.10.3", "airbyte-cdk==7.39.1")
    program = str(HERE / "airbyte_client.py")
    with EmulatorServer(tmp_path / "org") as emulator:
        user = emulator.accounts.holder("")
        emulator.accounts.put_app("emulator", run_as=user.username, refresh_token="a refresh token")
        for name in ("one", "two"):
            emulator.records.create("Account", {"Name": name}, user)
        text = run(interpreter, program, emulator.http_url, str(tmp_path), "Account", api)
    names = ["one", "two"]
    assert json.loads(text) == {
        "check": "SUCCEEDED",
        "objects": ["Account", "Contact", "Describe", "Opportunity", "Order__c"],
        "full": names,
        "incremental": names,
        "again": names,
    }
