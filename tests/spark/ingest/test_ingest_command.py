"""Tests of the options, messages and exit codes of ``sfpubsub ingest``, with a fake client and a
real Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from sfpubsub.cli.ingest import ingest
from sfpubsub.cli.ingest_report import Report, summary_line
from sfpubsub.cli.service import OPTIONS
from sfpubsub.cli.status import read_all
from sfpubsub.errors import ConfigurationError, MissingExtraError, WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.progress import Ending, Progress
from sfpubsub.spark.ingest.streams import Stream
from sfpubsub.spark.raw.sidecar_files import COLUMNS
from sfpubsub.spark.raw.sources import Source
from tests.conftest import until
from tests.pages import page
from tests.spark.fakes import FakeSubscription

# Runs the command in the main thread of a process, with scripted subscriptions: a number delivers a
# batch of that size, and a name calls that function. After its script, a subscription is idle.
RUN = """
import os, signal, sys, time
sys.path.insert(0, "{here}")
from contextlib import contextmanager
from tests.spark.fakes import FakeSubscription
import sfpubsub.cli.ingest as command
from sfpubsub.errors import SfPubSubError
from sfpubsub.spark.ingest.service import Service

class Subscription(FakeSubscription):
    def next_batch(self, timeout=None):
        if not self.script:
            time.sleep(0.01)
        return super().next_batch(timeout)

def term(): os.kill(os.getpid(), signal.SIGTERM)
def interrupt(): os.kill(os.getpid(), signal.SIGINT)
def after_the_other():
    deadline = time.monotonic() + 300
    while every[0].script and time.monotonic() < deadline:
        time.sleep(0.01)
def kill_jvm():
    from pyspark import SparkContext
    jvm = SparkContext._gateway.proc
    jvm.kill(); jvm.wait()
def scrape():
    from sfpubsub.monitoring.prometheus import prometheus_text
    print(prometheus_text(monitors[0].registry.collect()), file=sys.stderr)
def lose(): every[0].state = "waiting"
def find(): every[0].state = "streaming"
def look():
    from pyspark import SparkContext
    environment = open(f"/proc/{{SparkContext._gateway.proc.pid}}/environ").read()
    assert "TOKEN" not in environment, "a credential in the JVM's environment"
    assert os.environ["SFPUBSUB_ACCESS_TOKEN"] == "s3cret"

class Client:
    def get_topic(self, name): pass
    def subscribe_managed(self, name, ack, max_unacked):
        assert ack == "manual" and max_unacked > 100
        return subscriptions.pop(0)
    def subscribe(self, topic, replay, replay_fallback, ack, max_unacked):
        print("start", replay.get(topic), "fallback", replay_fallback, file=sys.stderr)
        subscription = subscriptions.pop(0)
        subscription.topic = topic
        return subscription

subscriptions = [Subscription(script) for script in [{script}]]
every = list(subscriptions)

@contextmanager
def client(self, schemas):
    yield Client()

Service.client = client

@contextmanager
def watching(*arguments, **options):
    with really_watching(*arguments, **options) as monitor:
        monitors.append(monitor)
        yield monitor

monitors, really_watching = [], command.watching
command.watching = watching

try:
    command.ingest.main(sys.argv[1:], standalone_mode=True)
except SfPubSubError as error:
    print("error:", error, file=sys.stderr)
    sys.exit(1)
finally:
    for subscription in every:
        print("log", subscription.log, subscription.acked, file=sys.stderr)
"""


ROOT = str(Path(__file__).parents[3])

SETTINGS = {
    "SFPUBSUB_ACCESS_TOKEN": "s3cret",
    "SFPUBSUB_INSTANCE_URL": "https://example.my.salesforce.com",
    "SFPUBSUB_TENANT_ID": "00D000000000001AAA",
}


def run(script: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process, with fake subscriptions that follow *script*.

    The script contains one list of steps for each subscription.
    """
    return subprocess.run(
        [
            sys.executable,
            "-c",
            RUN.format(here=ROOT, script=script),
            *arguments,
        ],
        env={**os.environ, **SETTINGS, **settings},
        capture_output=True,
        text=True,
        timeout=600,
    )


def ids_of(table: Path) -> list[str]:
    """Return the event ids in a Parquet table, sorted."""
    return sorted(ds.dataset(table, format="parquet").to_table()["event_id"].to_pylist())


@pytest.mark.spark
def test_run_prints_a_summary(tmp_path: Path):
    """Standard output is one line of JSON with all counts, and standard error contains the
    command's messages but none of Spark's. The JVM's environment contains no credentials.
    """
    done = run(
        "[2, look, lose, find, 3]",
        *("--managed", "My_Sub", "--to", str(tmp_path / "t")),
        *("--once", "--idle-timeout", "1", "--batch-events", "2"),
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert summary == {
        "managed": "My_Sub",
        "to": str(tmp_path / "t"),
        "format": "parquet",
        "ending": "idle",
        "error": None,
        "received": 5,
        "rows": 5,
        "duplicates": 0,
        "reencoded": 0,
        "conflicts": 0,
        "undecodable": 0,
        "set_aside": 0,
        "batches": 2,
        "gaps": 0,
        "position": summary["position"],
        "committed": None,
    }
    assert "5 rows in 2 batches" in done.stderr
    assert done.stderr.count("waiting: ") == done.stderr.count("receiving again") == 1
    assert ids_of(tmp_path / "t") == [f"event-{n}" for n in range(5)]
    orgs = ds.dataset(tmp_path / "t", format="parquet").to_table()["org_id"].to_pylist()
    assert orgs == [SETTINGS["SFPUBSUB_TENANT_ID"]] * 5
    # Java prints the options that the tests set for it.
    said = [line for line in done.stderr.splitlines() if not line.startswith("NOTE: Picked up")]
    noise = [line for line in said if "log" in line and "ack" not in line]
    assert noise == [], "Spark's messages hide those of the command"


@pytest.mark.spark
def test_sigterm_writes_drains_and_exits_with_0(tmp_path: Path):
    """SIGTERM makes the command write and ack the received events before it exits.

    A topic's first run into a new table starts at EARLIEST.
    """
    done = run("[3, term]", "--topic", "/event/Order_Event__e", "--to", str(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ending"] == "stopped"
    assert "start earliest" in done.stderr
    assert "log ['write'" not in done.stderr, "the fake writer was used"
    assert "log ['ack', 'drain'] [(0, 2)]" in done.stderr
    assert len(ids_of(tmp_path / "t")) == 3


@pytest.mark.spark
def test_ctrl_c_drains_and_exits_with_130(tmp_path: Path):
    """Ctrl-C makes the command write and ack the received events, and print the summary, before it
    exits.
    """
    done = run("[3, interrupt]", "--managed", "S", "--to", str(tmp_path / "t"))
    assert done.returncode == 130, done.stderr
    assert json.loads(done.stdout)["rows"] == 3
    assert "log ['ack', 'drain'] [(0, 2)]" in done.stderr


@pytest.mark.spark
def test_failure_of_one_source_drains_the_others(tmp_path: Path):
    """When one of several sources fails, the others write and ack their events and stop.

    The error names the failed source, the exit code is 1, and each source has its summary line.
    """
    done = run(
        "[3], [2, after_the_other, scrape, SfPubSubError('it broke')]",
        *("--http", "0"),
        *("--managed", "My_Sub", "--topic", "/event/Order_Event__e"),
        *("--to", str(tmp_path / "org"), "--fallback", "earliest"),
        *("--staging", str(tmp_path / "aside")),
        SFPUBSUB_STATE_DIR=str(tmp_path / "state"),
    )
    assert done.returncode == 1, done.stderr
    assert "error: topic /event/Order_Event__e: it broke" in done.stderr
    assert "fallback earliest" in done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["managed"], first["ending"], first["rows"]) == ("My_Sub", "stopped", 3)
    assert (second["topic"], second["ending"]) == ("/event/Order_Event__e", "failed")
    assert second["error"] == "topic /event/Order_Event__e: it broke"
    assert first["to"] == second["to"] == str(tmp_path / "org")
    assert len(ids_of(tmp_path / "org")) == 3
    assert (tmp_path / "aside" / ".org.sfpubsub" / "_quarantine").is_dir()
    assert "3 rows in 1 batch" in done.stderr
    assert "metrics, health and status page: http://127.0.0.1:" in done.stderr
    assert f'messaging_salesforce_last_message_time_seconds{{{_OF}="My_Sub"' in done.stderr
    assert "log ['ack', 'drain'] [(0, 2)]" in done.stderr
    # The status files that `sfpubsub lag` reads.
    found, _ = read_all(tmp_path / "state")
    mine = next(status for status in found if status.name == "My_Sub")
    assert (mine.command, mine.kind, mine.into) == ("ingest", "managed", first["to"])
    assert mine.acked_position == first["position"]
    assert len(found) == 2


def jvms_of(mark: str) -> list[int]:
    """Return the pids of the Java processes whose environment contains *mark*."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = os.readlink(process / "exe")
            if program.endswith("java") and mark in (process / "environ").read_text():
                found.append(int(process.name))
    return found


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)],
)
def test_signal_while_spark_starts_ends_the_command_cleanly(tmp_path: Path, number: int, code: int):
    """If Ctrl-C or SIGTERM arrives while Spark is starting, the command ends after the start.

    It leaves no traceback, Java process or table behind.
    """
    mark = f"SFTEST_MARK={tmp_path}"
    process = subprocess.Popen(
        [sys.executable, "-m", "sfpubsub", "ingest", "--managed", "S", "--to", str(tmp_path / "t")],
        env={**os.environ, **SETTINGS, **dict([mark.split("=")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr.readline() == "starting Spark\n"
        until(lambda: jvms_of(mark), "Java", patience=300)
        os.killpg(process.pid, number) if code else process.send_signal(number)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, err
    assert "stopping once Spark has started" in err
    assert "Traceback" not in err
    assert out == ""
    until(lambda: not jvms_of(mark), "the end of Java")
    assert not (tmp_path / "t").exists(), "a table was made"


@pytest.mark.spark
def test_jvm_crash_fails_the_write_and_acks_nothing(tmp_path: Path):
    """If the JVM is killed while a batch is being collected, the command exits with 1, reports that
    nothing was acked, and leaves no batch in the table.
    """
    writing = run("[1, kill_jvm, 2]", "--managed", "S", "--to", str(tmp_path / "t"),
                  "--batch-events", "3")  # fmt: skip
    assert writing.returncode == 1, writing.stderr
    assert "not acked" in writing.stderr or "nothing was acked" in writing.stderr
    assert "Spark's Java process has ended" in writing.stderr
    assert "log ['leave after WriteError'] []" in writing.stderr
    assert "Traceback" not in writing.stderr
    assert not list((tmp_path / "t").glob("ingest_date=*/batch=*"))


@pytest.mark.spark
def test_jvm_crash_ends_an_idle_job(tmp_path: Path):
    """A job whose JVM was killed exits with 1 instead of waiting for an event that it could not
    write.
    """
    idle = run("[kill_jvm]", "--managed", "S", "--to", str(tmp_path / "t"))
    assert idle.returncode == 1, idle.stderr
    assert "error: Spark's Java process has ended" in idle.stderr
    assert "Traceback" not in idle.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "./t"],
        ["--to", "./t", "--managed", "A", "--managed", "A"],
        ["--to", "./t", "--topic", "/event/A__e", "--topic", "/Event/A__e"],
        ["--to", "./t", "--managed", ""],
        ["--to", "./t", "--managed", "A", "--fallback", "earliest"],
        ["--to", "./t", "--topic", "/event/A__e", "--channel", "/event/A__e"],
        ["--to", "./t", "--channel", "Accounts"],
        ["--to", "./t", "--managed", "A", "--on-source-failure", "retry"],
        ["--managed", "A", "--to", "./t", "--batch-bytes", "0"],
        ["--managed", "A"],
        ["--managed", "A", "--to", "./t", "--format", "csv"],
        ["--managed", "A", "--to", "./t", "--format", "delta", "--staging", "s"],
        ["--managed", "A", "--to", "./t", "--max-events", "0"],
        ["--managed", "A", "--to", "./t", "--idle-timeout", "-1"],
    ],
)
def test_invalid_options_are_usage_errors(arguments: list[str], tmp_path: Path, monkeypatch):
    """Missing, invalid or contradictory options end the command with exit code 2, before Spark
    starts and before a directory is created.
    """
    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", _must_not_start)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(ingest, arguments).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_invalid_destination_is_rejected_before_spark_starts(tmp_path: Path, monkeypatch):
    """A destination that cannot be a Parquet table, or a staging directory inside the table, raises
    a configuration error, and nothing is created.
    """
    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", _must_not_start)
    (tmp_path / "file").write_text("")
    for arguments, message in (
        (["--to", str(tmp_path / "file")], "is not a directory"),
        (["--to", "s3a://bucket/x"], "one rename"),
        (["--to", str(tmp_path / "file"), "--topic", "/event/B__e"], "is not a directory"),
        (["--to", str(tmp_path / "t"), "--staging", str(tmp_path / "t" / "s")], "inside the table"),
    ):
        result = CliRunner().invoke(ingest, ["--managed", "A", *arguments])
        assert isinstance(result.exception, ConfigurationError)
        assert message in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("mark", ["_table.json", "_delta_log/0.json", "metadata/v1.metadata.json"])
def test_destination_inside_a_table_is_rejected_before_spark_starts(
    tmp_path: Path, monkeypatch, mark
):
    """A destination inside a Parquet, Delta or Iceberg table raises a configuration error, because
    its files would look like those of the outer table.
    """
    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", _must_not_start)
    table = tmp_path / "orders"
    (table / mark).parent.mkdir(parents=True)
    (table / mark).touch()
    deep = str(table / "a" / "b")
    for arguments, message in (
        (["--to", deep], f"would be inside the table {table}: choose another directory"),
        (["--to", deep, "--format", "delta"], f"would be inside the table {table}:"),
    ):
        result = CliRunner().invoke(ingest, ["--managed", "A", *arguments])
        assert isinstance(result.exception, ConfigurationError)
        assert message in str(result.exception)
    assert not (table / "a").exists()


def test_a_missing_setting_is_named_before_spark_starts(tmp_path: Path, monkeypatch):
    """A missing setting raises a configuration error that names it, and no table is created."""
    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", _must_not_start)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(ingest, ["--managed", "A", "--to", str(tmp_path / "t")])
    assert isinstance(result.exception, ConfigurationError)
    assert "SFPUBSUB_ACCESS_TOKEN" in str(result.exception)
    assert not (tmp_path / "t").exists()


def test_without_pyspark_the_error_names_the_extra(monkeypatch):
    """PySpark is an optional dependency, so without it the command names the extra to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(ingest, ["--managed", "A", "--to", "./t"])
    assert isinstance(result.exception, MissingExtraError)
    assert result.exception.extra == "spark"


@contextlib.contextmanager
def _must_not_start(*arguments, **options):
    """Raise an error; used in place of `spark_session` where Spark must not be started."""
    raise WriteError("spark was started")
    yield


# The documentation.

PAGE = page("ingest").read_text()


def test_documented_command_lines_parse():
    """Every ``sfpubsub ingest`` command on the documentation page uses options that exist."""
    commands = re.findall(r"sfpubsub (ingest .*?)(?:\s#.*)?$", PAGE, re.MULTILINE)
    lines = [line for line in commands if "--to" in line and "`" not in line]
    assert len(lines) >= 4
    for line in lines:
        _, *arguments = shlex.split(line)
        ingest.make_context("ingest", arguments).close()


def test_every_option_key_and_column_is_documented():
    """The documentation page names the options, the summary's keys, the values of its key `ending`,
    and the sidecar columns.
    """
    for option in ingest.params:
        if option.name not in OPTIONS and option.name not in ("master", "on_undecodable"):
            assert option.opts[0] in PAGE, f"{option.opts[0]} is not on the page"
    for columns in COLUMNS.values():
        for column in re.findall(r"`?(\w+)`? [A-Z]+", columns):
            assert f"`{column}`" in PAGE, f"column {column} is not on the page"
    subscription = FakeSubscription([])
    stream = Stream(
        Source("managed", "S"), IngestJob(subscription, None), subscription, subscription, list
    )
    record = json.loads(summary_line(stream, Destination.parse("/t", "parquet")))
    for key in record:
        assert f"`{key}`" in PAGE, f"key {key} is not on the page"
    assert record["ending"] == "failed"
    for ending in get_args(Ending):
        assert f"`{ending}`" in PAGE


_OF = "messaging_destination_subscription_name"

# Messages.


def test_report_adds_up_all_sources_and_names_them(capsys):
    """The progress text contains the totals over all sources.

    With several sources, each message begins with the name of its source.
    """
    source, other = Source("managed", "A"), Source("topic", "/event/B__e")
    report = Report([source, other])
    assert report.text() == ""
    report.progress(source, Progress(rows=19, batches=19))
    report.progress(source, Progress(rows=20, batches=20))
    report.progress(other, Progress(rows=7, batches=1, undecodable=2))
    assert report.text() == "27 rows in 21 batches, 0 duplicates dropped, 2 not decoded"
    report.say(other, "waiting: a reason")
    assert capsys.readouterr().err == "topic /event/B__e: waiting: a reason\n"
