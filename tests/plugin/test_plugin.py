"""Tests of the pytest plugin; each runs pytest on a small test suite in a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.remote import RemoteEmulator

from ..conftest import PATIENCE, until

ORDERS = "/event/Order_Event__e"

pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a `pytester` whose environment already has settings for a real org and a proxy."""
    monkeypatch.setenv("SFPUBSUB_CONFIG", "/nonexistent/production.toml")
    monkeypatch.setenv("SFPUBSUB_PROXY", "http://proxy.example.com:3128")
    return pytester


def run(suite: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    """Run pytest on a module that contains *code*, with warnings as errors; return the result."""
    suite.makepyfile(test_suite=textwrap.dedent(code))
    return suite.runpytest_subprocess(
        "-p", "no:cacheprovider", "-W", "error", *options, timeout=PATIENCE * 2
    )


LIGHT = """
import sys

HEAVY = {"grpc", "google.protobuf", "fastavro", "requests", "click", "http.server", "sqlite3",
         "sfpubsub.emulator", "sfpubsub.config", "sfpubsub.pytest_plugin.run"}

def pytest_unconfigure():
    assert "sfpubsub.pytest_plugin" in sys.modules
    assert not HEAVY & set(sys.modules)
"""


def test_plugin_imports_nothing_heavy_until_it_is_used(suite):
    """A run that doesn't use the fixtures imports neither the emulator nor its libraries, even with
    pytest-xdist.
    """
    suite.makeconftest(LIGHT)
    result = run(suite, "def test_nothing(): pass", "-n", "1")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


ORG = """
import os

import pytest

ORDERS = "/event/Order_Event__e"


@pytest.mark.parametrize("number", range(2))
def test_fresh(salesforce_org, number):
    count = salesforce_org.bus.counters.of_topic(ORDERS)
    assert count.published == 0
    salesforce_org.publish(ORDERS, [{"Order_Number__c": "1"}])
    assert count.published == 1


def test_a_client_is_led_there(salesforce_org):
    from sfpubsub import PubSubClient

    assert "SFPUBSUB_CONFIG" not in os.environ
    salesforce_org.publish(ORDERS, [{"Order_Number__c": "1"}])
    with PubSubClient.from_env() as client:
        with client.subscribe(ORDERS, replay="earliest") as subscription:
            for batch in subscription:
                assert [event.value["Order_Number__c"] for event in batch] == ["1"]
                break


def test_signing_in_leads_there_too(salesforce_org, monkeypatch):
    from sfpubsub import PubSubClient

    monkeypatch.setenv("SFPUBSUB_AUTH", "client-credentials")
    monkeypatch.delenv("SFPUBSUB_ACCESS_TOKEN")
    with PubSubClient.from_env() as client:
        assert client.get_topic(ORDERS).can_publish


def test_the_environment_is_given_back():
    assert os.environ["SFPUBSUB_CONFIG"] == "/nonexistent/production.toml"
    assert "SFPUBSUB_ENDPOINT" not in os.environ


def test_time_stands_still(salesforce_org, salesforce_clock):
    assert salesforce_org.clock is salesforce_clock
    before = salesforce_clock.now()
    salesforce_clock.jump(73 * 3600)
    assert salesforce_clock.now() == before + 73 * 3600


def test_a_fault_happens(salesforce_org, salesforce_faults):
    from sfpubsub import PubSubClient
    from sfpubsub.errors import StreamUnavailableError
    from sfpubsub.testing import Fault

    salesforce_faults.add(Fault("drop_call", rpc="GetTopic"))
    with PubSubClient.from_env() as client, pytest.raises(StreamUnavailableError):
        client.get_topic(ORDERS)


def test_a_fault_does_not_happen(salesforce_faults, salesforce_org):
    from sfpubsub.testing import Fault

    assert salesforce_org.faults is salesforce_faults
    salesforce_faults.add(Fault("drop_stream"))


class TestOther:
    @pytest.fixture
    def salesforce_org_options(self):
        from sfpubsub.testing import EmulatorSettings

        return {"settings": EmulatorSettings(keepalive_s=0.5)}

    def test_options(self, salesforce_org):
        assert salesforce_org.settings.keepalive_s == 0.5


class TestBroken:
    @pytest.fixture(scope="session")
    def salesforce_emulator_options(self):
        return ["--seed", "none.toml"]

    def test_does_not_start(self, salesforce_emulator):
        pass
"""


def test_each_test_gets_its_own_org_and_environment(suite):
    """Each test gets a new org, and environment variables that point to it until the test ends.

    A planned fault that never happens is an error, and an emulator that can't start reports why.
    """
    result = run(suite, ORG)
    result.assert_outcomes(passed=9, errors=2)
    result.stdout.fnmatch_lines(["*faults occurred fewer times than planned*'drop_stream'*"])
    result.stdout.fnmatch_lines(["*the emulator did not start: error: seed none.toml: *"])


SHARED = """
import json, os
from pathlib import Path

import pytest

ORDERS = "/event/Order_Event__e"


@pytest.mark.parametrize("number", range(4))
def test_shared(salesforce_emulator, number, worker_id):
    (result,) = salesforce_emulator.publish(ORDERS, [{"Order_Number__c": str(number)}])
    assert result["replay_id"]
    assert salesforce_emulator.health()["topics"][ORDERS]["published"] >= 1
    Path(os.environ["SEEN"], f"{worker_id}-{number}").write_text(
        json.dumps([salesforce_emulator.http_url, os.environ["SFPUBSUB_EMULATOR_URL"]])
    )
"""


def test_all_workers_share_one_emulator(suite, tmp_path, monkeypatch):
    """All workers of a run share one emulator process, which ends with the run and leaves no files
    behind.
    """
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run(suite, SHARED, "-n", "2").assert_outcomes(passed=4)
    files = list(seen.iterdir())
    assert len({file.name.partition("-")[0] for file in files}) == 2
    (url,) = {url for file in files for url in json.loads(file.read_text())}
    with pytest.raises(EmulatorProblem, match="no emulator answers"):
        RemoteEmulator(url).health()
    assert not list(tmp_path.glob("sfpubsub-emulator-*"))


def test_emulator_exits_when_pytest_is_killed(suite, tmp_path, monkeypatch):
    """Killing pytest with SIGKILL ends the shared emulator too."""
    seen = tmp_path / "url"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = suite.makepyfile(
        test_killed=f"""
        import pathlib, threading

        def test_waits(salesforce_emulator):
            pathlib.Path({str(seen) + "~"!r}).write_text(salesforce_emulator.http_url)
            pathlib.Path({str(seen) + "~"!r}).rename({str(seen)!r})
            threading.Event().wait({PATIENCE})
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ)) as process:
        try:
            until(seen.exists, "the emulator's start")
        finally:
            process.send_signal(signal.SIGKILL)
    emulator = RemoteEmulator(Path(seen).read_text())

    def ended() -> bool:
        try:
            emulator.health()
        except EmulatorProblem:
            return True
        return False

    until(ended, "the emulator's end")


RESTORED = """
import pytest

ORDERS = "/event/Order_Event__e"
seen = []


@pytest.mark.parametrize("number", range(3))
def test_fresh(salesforce_org, number):
    user = salesforce_org.accounts.holder("")
    assert salesforce_org.records.table("Account").where("1", []) == []
    salesforce_org.records.create("Account", {"Name": "x"}, user)
    seen.append(salesforce_org)
    if number == 1:
        salesforce_org.stop()


def test_one_emulator_until_it_is_stopped():
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]
"""


def test_a_fresh_org_is_a_restored_one(suite):
    """Tests with the same options get the same emulator in its first state, and a new one after a
    test that stopped it.
    """
    run(suite, RESTORED).assert_outcomes(passed=4)
