"""``sfpubsub ingest``: options, words, exit codes; the client is a fake, Spark is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from sfpubsub.cli.ingest import ingest
from sfpubsub.errors import ConfigurationError, MissingExtraError, WriteError

# Runs the command in a process of its own, as its main thread, with a scripted subscription: a
# number is a batch of that size, a word is done once; silence afterwards.
RUN = """
import os, signal, sys, time
sys.path.insert(0, "{here}")
from contextlib import contextmanager
from tests.spark.fakes import FakeSubscription
import sfpubsub.cli.ingest as command
from sfpubsub.errors import SfPubSubError

class Subscription(FakeSubscription):
    def next_batch(self, timeout=None):
        if not self.script:
            time.sleep(0.01)
        return super().next_batch(timeout)

def term(): os.kill(os.getpid(), signal.SIGTERM)
def interrupt(): os.kill(os.getpid(), signal.SIGINT)
def kill_jvm():
    from pyspark import SparkContext
    jvm = SparkContext._gateway.proc
    jvm.kill(); jvm.wait()
def look():
    from pyspark import SparkContext
    environment = open(f"/proc/{{SparkContext._gateway.proc.pid}}/environ").read()
    assert "TOKEN" not in environment, "a credential in the JVM's environment"
    assert os.environ["SFPUBSUB_ACCESS_TOKEN"] == "s3cret"

class Client:
    def subscribe_managed(self, name, ack, max_unacked):
        assert ack == "manual" and max_unacked > 100
        return subscription
    def subscribe(self, topic, replay, ack, max_unacked):
        print("start", replay.get(topic), file=sys.stderr)
        subscription.topic = topic
        return subscription

subscription = Subscription({script})

@contextmanager
def connected_client(schema_store, **service):
    yield Client()

command.connected_client = connected_client
try:
    command.ingest.main(sys.argv[1:], standalone_mode=True)
except SfPubSubError as error:
    print("error:", error, file=sys.stderr)
    sys.exit(1)
finally:
    print("log", subscription.log, subscription.acked, file=sys.stderr)
"""


ROOT = str(Path(__file__).parents[2])

SETTINGS = {
    "SFPUBSUB_ACCESS_TOKEN": "s3cret",
    "SFPUBSUB_INSTANCE_URL": "https://example.my.salesforce.com",
    "SFPUBSUB_TENANT_ID": "00D000000000001AAA",
}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command against a subscription that does what *script* lists."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            RUN.format(here=ROOT, script=script),
            *arguments,
        ],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=120,
    )


def ids_of(table: Path) -> list[str]:
    return sorted(ds.dataset(table, format="parquet").to_table()["event_id"].to_pylist())


@pytest.mark.spark
def test_a_run_tells_what_it_did(tmp_path: Path):
    """One JSON line on stdout, words on stderr, credentials nowhere near Spark."""
    done = run("[2, look, 3]", "--managed", "My_Sub", "--to", str(tmp_path / "t"), "--once",
               "--idle-timeout", "1", "--batch-events", "2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert summary == {
        "managed": "My_Sub",
        "to": str(tmp_path / "t"),
        "ending": "idle",
        "received": 5,
        "rows": 5,
        "duplicates": 0,
        "undecodable": 0,
        "set_aside": 0,
        "batches": 2,
        "gaps": 0,
        "position": summary["position"],
    }
    assert "5 rows in 2 batches" in done.stderr
    assert ids_of(tmp_path / "t") == [f"event-{n}" for n in range(5)]
    noise = [line for line in done.stderr.splitlines() if "log" in line and "ack" not in line]
    assert noise == [], "what Spark says must not bury what we say"


@pytest.mark.spark
def test_sigterm_writes_drains_and_ends_with_0(tmp_path: Path):
    """And a plain subscription begins at EARLIEST in a new table."""
    done = run("[3, term]", "--topic", "/event/Order_Event__e", "--to", str(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ending"] == "stopped"
    assert "start earliest" in done.stderr
    assert "log ['write'" not in done.stderr, "the real writer wrote"
    assert "log ['ack', 'drain'] [(0, 2)]" in done.stderr
    assert len(ids_of(tmp_path / "t")) == 3


@pytest.mark.spark
def test_ctrl_c_drains_and_ends_with_130(tmp_path: Path):
    """What was received is written and acked first; the summary is printed all the same."""
    done = run("[3, interrupt]", "--managed", "S", "--to", str(tmp_path / "t"))
    assert done.returncode == 130, done.stderr
    assert json.loads(done.stdout)["rows"] == 3
    assert "log ['ack', 'drain'] [(0, 2)]" in done.stderr


@pytest.mark.spark
def test_a_jvm_that_dies_in_the_middle_ends_the_job_with_nothing_acked(tmp_path: Path):
    """Exit code 1 and one line that says so; the same when idle and when a batch is written."""
    writing = run("[1, kill_jvm, 2]", "--managed", "S", "--to", str(tmp_path / "t"),
                  "--batch-events", "3")  # fmt: skip
    assert writing.returncode == 1, writing.stderr
    assert "not acked" in writing.stderr or "none of it is acked" in writing.stderr
    assert "log ['leave after WriteError'] []" in writing.stderr
    assert "Traceback" not in writing.stderr
    assert not list((tmp_path / "t").glob("ingest_hour=*/batch=*"))


@pytest.mark.spark
def test_an_idle_job_whose_jvm_died_ends_too(tmp_path: Path):
    """It could not write the next event, so it does not wait for one."""
    idle = run("[kill_jvm]", "--managed", "S", "--to", str(tmp_path / "t"))
    assert idle.returncode == 1, idle.stderr
    assert "error: spark's JVM" in idle.stderr
    assert "Traceback" not in idle.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "t"],
        ["--to", "t", "--managed", "A", "--topic", "/event/B__e"],
        ["--managed", "A"],
        ["--managed", "A", "--to", "t", "--format", "csv"],
        ["--managed", "A", "--to", "t", "--max-events", "0"],
        ["--managed", "A", "--to", "t", "--idle-timeout", "-1"],
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str]):
    """Exit code 2, before anything is started."""
    assert CliRunner().invoke(ingest, arguments).exit_code == 2


def test_a_wrong_destination_is_refused_before_spark_starts(tmp_path: Path, monkeypatch):
    """And so is a format that is not there yet; nothing is made."""
    monkeypatch.setattr("sfpubsub.spark.session.spark_session", _must_not_start)
    (tmp_path / "file").write_text("")
    for arguments, message in (
        (["--to", str(tmp_path / "file")], "is not a directory"),
        (["--to", "s3a://bucket/x"], "one rename"),
        (["--to", str(tmp_path / "new"), "--format", "delta"], "there is parquet"),
    ):
        result = CliRunner().invoke(ingest, ["--managed", "A", *arguments])
        assert isinstance(result.exception, ConfigurationError)
        assert message in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_setting_is_named_before_spark_starts(tmp_path: Path, monkeypatch):
    """Nothing is made, and nothing is waited for."""
    monkeypatch.setattr("sfpubsub.spark.session.spark_session", _must_not_start)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(ingest, ["--managed", "A", "--to", str(tmp_path / "t")])
    assert isinstance(result.exception, ConfigurationError)
    assert "SFPUBSUB_ACCESS_TOKEN" in str(result.exception)
    assert not (tmp_path / "t").exists()


def test_without_pyspark_the_error_names_the_extra(monkeypatch):
    """The package is optional."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(ingest, ["--managed", "A", "--to", "t"])
    assert isinstance(result.exception, MissingExtraError)
    assert result.exception.extra == "spark"


def _must_not_start(*arguments, **options):
    raise WriteError("spark was started")
