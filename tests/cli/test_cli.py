"""Tests of the command line as used by scripts: options, JSON lines, exit codes and errors."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sfpubsub.cli.main import COMMANDS, run
from sfpubsub.cli.pipe import Output
from sfpubsub.cli.service import OPTIONS
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.cli.waiting import Waiting
from sfpubsub.config import Settings as ClientSettings
from sfpubsub.config import Timings
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.types import Health

from ..client.test_managed import NAME, TOPIC, committed, orders
from ..conftest import PATIENCE, until

ROW = {"CreatedDate": 1_700_000_000_000, "CreatedById": "005x"}


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    """Start an emulator, and set the environment variables that point to it."""
    started = run_emulator(settings=Settings(events_per_response=10))
    point_at(started, monkeypatch)
    return started


def point_at(emulator, monkeypatch, **changed: str) -> None:
    """Set the environment variables for *emulator*, overridden by those in *changed*."""
    for name, value in {**environment(emulator), **changed}.items():
        monkeypatch.setenv(name, value)


def environment(emulator) -> dict[str, str]:
    """Return the environment variables with which a client connects to *emulator*."""
    return {
        "SFPUBSUB_ENDPOINT": emulator.grpc_target,
        "SFPUBSUB_INSECURE": "1",
        "SFPUBSUB_AUTH": "token",
        "SFPUBSUB_ACCESS_TOKEN": emulator.access_token,
        "SFPUBSUB_INSTANCE_URL": emulator.instance_url,
        "SFPUBSUB_TENANT_ID": emulator.tenant_id,
    }


def spawn(emulator, *arguments: str, **options) -> subprocess.Popen:
    """Start the command line in a new process, connected to *emulator*."""
    return subprocess.Popen(
        [sys.executable, "-m", "sfpubsub", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment(emulator)},
        text=True,
        **options,
    )


def test_subscribe_prints_json_lines_and_the_next_run_resumes(emulator, capsys):
    """Each event is printed as a JSON line with the documented keys.

    A second run prints the events that follow those of the first.
    """
    results = emulator.publish(TOPIC, orders(25))
    assert run(["subscribe", "--managed", NAME, "--max-events", "13"]) == 0
    first = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0.2"]) == 0
    second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = first + second
    assert (len(first), len(second)) == (13, 12)
    assert [line["event_id"] for line in lines] == [result.event_id for result in results]
    assert [line["replay_id"] for line in lines] == [result.replay_id.hex() for result in results]
    assert {line["topic"] for line in lines} == {TOPIC}
    assert {line["event_name"] for line in lines} == {"Order_Event__e"}
    assert {line["schema_id"] for line in lines} == {results[0].schema_id}
    assert [line["payload"]["Order_Number__c"] for line in lines] == [str(i) for i in range(25)]


def test_subscribe_resumes_from_a_printed_replay_id(emulator, capsys):
    """``--replay`` accepts the hexadecimal replay id of a printed line, and resumes after its
    event.
    """
    results = emulator.publish(TOPIC, orders(5))
    replay = results[2].replay_id.hex()
    options = ["--topic", TOPIC, "--replay", replay, "--max-events", "2", "--raw"]
    assert run(["subscribe", *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["replay_id"] for line in lines] == [r.replay_id.hex() for r in results[3:]]
    assert all(isinstance(line["payload"], str) for line in lines)


def test_secrets_are_no_options(capsys):
    """A proxy with a password, and the token of an emulator, are refused on the command line, and
    not repeated.
    """
    for command, named in (
        (["topic", TOPIC, "--proxy", "http://me:hush@proxy:1"], "SFPUBSUB_PROXY"),
        (["emulator", "topics", "--token", "hush"], "--token"),
    ):
        assert run(command) == 2
        error = capsys.readouterr().err
        assert named in error
        assert "hush" not in error


def test_a_replay_store_lets_a_topic_resume(emulator, tmp_path, capsys):
    """A second run with the same ``--replay-store`` resumes from the stored position, and ignores
    ``--replay``.
    """
    results = emulator.publish(TOPIC, orders(25))
    file = tmp_path / "positions.json"
    options = ["subscribe", "--topic", TOPIC, "--replay", "earliest", "--replay-store", str(file)]
    assert run([*options, "--max-events", "13"]) == 0
    assert run([*options, "--max-events", "12"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event_id"] for line in lines] == [result.event_id for result in results]


def test_a_fallback_resumes_from_a_rejected_position(emulator, capsys):
    """If the replay id is rejected, the events from the fallback position are printed, a warning
    says that events may be missing, and the exit code is 0.
    """
    emulator.publish(TOPIC, orders(2))
    options = ["--replay", "00ff", "--fallback", "earliest", "--max-events", "2"]
    assert run(["subscribe", "--topic", TOPIC, *options]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    (warning,) = [line for line in captured.err.splitlines() if line.startswith("WARNING")]
    assert f"position lost on {TOPIC} (rejected): events between 00ff and" in warning
    assert warning.endswith("may be missing")


def test_subscribe_prints_events_soon_after_they_are_published(emulator):
    """An event is printed as soon as it arrives, without buffering, even if stdout is a pipe."""
    process = spawn(emulator, "subscribe", "--managed", NAME)
    try:
        emulator.publish(TOPIC, orders(1))
        line = process.stdout.readline()
        assert json.loads(line)["payload"]["Order_Number__c"] == "0"
        published = time.monotonic()
        emulator.publish(TOPIC, orders(1, first=1))
        process.stdout.readline()
        assert time.monotonic() - published < 30
    finally:
        process.send_signal(signal.SIGINT)
        with process.stdout, process.stderr:
            err = process.stderr.read()
    assert process.wait(PATIENCE) == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_drains_and_the_next_run_resumes(emulator, number, code, capsys):
    """After a signal, exactly the printed events are committed, so the next run repeats no event
    and misses none.
    """
    emulator.publish(TOPIC, orders(300))
    process = spawn(emulator, "subscribe", "--managed", NAME)
    printed = [json.loads(process.stdout.readline())["event_id"] for _ in range(50)]
    process.send_signal(number)
    with process.stdout, process.stderr:  # communicate() would ignore buffered lines
        printed += [json.loads(line)["event_id"] for line in process.stdout]
    assert process.wait(PATIENCE) == code
    assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0.2"]) == 0
    rest = [json.loads(line)["event_id"] for line in capsys.readouterr().out.splitlines()]
    assert len(set(printed + rest)) == len(printed + rest) == 300


@pytest.fixture
def quick_slot(monkeypatch):
    """Shorten the client's delays, including the one before it retries a slot that is in use."""
    times = Timings(backoff_initial=0.02, backoff_max=0.1, slot_initial=0.05, slot_max=0.1)
    monkeypatch.setattr("sfpubsub.config.Settings.timings", times)


def test_waiting_for_the_slot_does_not_count_as_idle(emulator, connect, capsys, quick_slot):
    """While another client holds the managed subscription's slot, one line reports it, and the idle
    timeout does not run.
    """
    results = emulator.publish(TOPIC, orders(2))
    ended: list[float] = []
    with connect(emulator).subscribe_managed(NAME, ack="manual") as holder:
        until(lambda: holder.health().state == "streaming", "the slot")
        releasing = threading.Timer(1.0, lambda: (holder.drain(), ended.append(time.monotonic())))
        releasing.start()
        assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0.3"]) == 0
        releasing.join()
    captured = capsys.readouterr()
    assert ended, "the command ended before the slot was free"
    lines = [json.loads(line)["event_id"] for line in captured.out.splitlines()]
    assert lines == [result.event_id for result in results]
    # The log warns at the first refusal, and tells when the outage is over.
    log = [line for line in captured.err.splitlines() if line.startswith("WARNING ")]
    assert [NAME in line for line in log] == [True, True]
    first, second, last = [line for line in captured.err.splitlines() if line not in log]
    assert first.startswith(f"waiting: {NAME}: ")
    assert "already.active" in first
    assert "rpc id" not in first
    assert (second, last) == ("receiving again", "2 events")


def test_an_outage_does_not_count_as_idle(run_emulator, monkeypatch, capsys, quick_slot):
    """An outage longer than ``--idle-timeout`` does not end the command.

    It is reported, but not at every attempt.
    """
    plan = FaultPlan([Fault("drop_stream", after_responses=1)])
    plan.add(Fault("refuse", rpc="ManagedSubscribe", error_code="service.unavailable", times=60))
    started = run_emulator(faults=plan, settings=Settings(events_per_response=5))
    point_at(started, monkeypatch)
    started.publish(TOPIC, orders(10))
    # Long enough for the first response on a busy machine. The refusals take longer.
    options = ["subscribe", "--managed", NAME, "--idle-timeout", "1.5", "--max-events", "10"]
    monkeypatch.setattr("sfpubsub.cli.subscribe._POLL", 0.02)
    assert run(options) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 10
    told = captured.err.splitlines()
    assert told[-1] == "10 events"
    assert [line for line in told if "service.unavailable" in line], told
    # A line for each wait and its end, a possible gap, and the count, but not one per attempt. A
    # busy machine waits more often.
    assert len(told) <= 15
    plan.assert_consumed()


HEALTH = Health("streaming", None, 100, 0, 0, 0, 0, 0, 0, None, None)


def test_a_waiting_state_is_reported_once(capsys):
    """A wait is reported when it begins, when its reason changes, and when it ends."""
    waiting = Waiting()
    story = [
        ("opening", None, "yes"),
        ("streaming", None, "yes"),
        ("waiting", "X: down (UNAVAILABLE, rpc id 1)", "no"),
        ("opening", "X: down (UNAVAILABLE, rpc id 1)", "trying"),
        ("waiting", "X: down (UNAVAILABLE, rpc id 2)", "no"),
        ("waiting", "X: held (ALREADY_EXISTS, rpc id 3)", "no"),
        ("renewing", "X: held (ALREADY_EXISTS, rpc id 3)", "no"),
        ("paused", "7 bytes are waiting to be read", "no"),
        ("streaming", None, "yes"),
        ("streaming", None, "yes"),
        ("waiting", "X: held (ALREADY_EXISTS, rpc id 4)", "no"),
        ("opening", None, "yes"),  # accepted, but no event has arrived yet
    ]
    for now, (state, reason, listening) in enumerate(story):
        health = dataclasses.replace(HEALTH, state=state, reason=reason)
        assert waiting.observe(health, now) == listening, (state, reason)
    assert capsys.readouterr().err.splitlines() == [
        "waiting: X: down (UNAVAILABLE)",
        "waiting: X: held (ALREADY_EXISTS)",
        "receiving again",
        "waiting: X: held (ALREADY_EXISTS)",
        "receiving again",
    ]


def test_a_silent_attempt_eventually_counts_as_listening():
    """An attempt to open a stream counts as listening after 25 s.

    The service may send nothing for minutes on an open stream of a quiet topic.
    """
    waiting = Waiting(lambda _: None)
    trying = dataclasses.replace(HEALTH, state="opening", reason="X: down")
    assert [waiting.observe(trying, now) for now in (100, 124, 125)] == ["trying", "trying", "yes"]
    waiting.observe(dataclasses.replace(HEALTH, state="waiting", reason="X: down"), 126)
    assert waiting.observe(trying, 127) == "trying"


class FakeSubscription:
    """A fake subscription without events whose `health` goes through the given states.

    Each state comes with the number of calls of `health` that return it; the last state is kept.
    """

    def __init__(self, *states: tuple[str, int]) -> None:
        self.states = [state for state, looks in states for _ in range(looks)]
        self.looks = 0
        self.last_without = 0.0

    def next_batch(self, _timeout: float) -> None:
        time.sleep(0.005)  # so that some time passes between two calls of `health`

    def health(self) -> Health:
        state = self.states[min(self.looks, len(self.states) - 1)]
        self.looks += 1
        if state != "streaming":
            self.last_without = time.monotonic()
        reason = "X: down" if state in ("waiting", "opening") else None
        return dataclasses.replace(HEALTH, state=state, reason=reason)


@pytest.mark.parametrize("state", ["waiting", "renewing", "opening"])
def test_idle_timeout_starts_once_a_stream_is_open(state):
    """The idle timeout does not start until a stream is open."""
    from sfpubsub.cli.service import StopRequest
    from sfpubsub.cli.subscribe import _Printer, _run

    subscription = FakeSubscription((state, 60), ("streaming", 1))
    status = StatusFile("subscribe", "topic", TOPIC, ClientSettings())
    printer = _Printer(Output(sys.stdout), status, raw=False, max_events=None)
    _run(subscription, printer, StopRequest(), idle_timeout=0.2)
    assert subscription.looks > 60, "the command ended before there was a stream"
    if state != "opening":  # an attempt may in fact be an open stream of a quiet topic
        assert time.monotonic() - subscription.last_without >= 0.1


def test_publish_reads_lines_and_prints_results(emulator, tmp_path, capsys):
    """Each result is printed as a line, in input order, with the id of the published event."""
    file = tmp_path / "events.jsonl"
    rows = [{**ROW, "Order_Number__c": str(index)} for index in range(450)]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert run(["publish", TOPIC, "--file", str(file)]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(results) == 450
    assert all(result["error"] is None and result["replay_id"] for result in results)
    assert run(["subscribe", "--managed", NAME, "--max-events", "450"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event_id"] for line in lines] == [result["event_id"] for result in results]


@pytest.mark.parametrize("command", [["publish"], ["emulator", "publish"]])
def test_an_empty_file_is_not_published_in_silence(command, emulator, tmp_path, capsys):
    """An empty file is said to be empty, and its topic must exist all the same."""
    file = tmp_path / "events.jsonl"
    file.write_text("\n")
    options = ["--file", str(file)]
    if command[0] == "emulator":
        options += ["--url", emulator.http_url]
    assert run([*command, TOPIC, *options]) == 0
    assert capsys.readouterr() == ("", f"no events in {file}\n")
    assert run([*command, "/event/Nothing__e", *options]) == 1
    assert_one_line_error(capsys, "/event/Nothing__e")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"CreatedDate": "soon"}', "CreatedDate must be long"),
        ("{", "line 1"),
        ("[]", "line 1"),
        ("[" * 100_000, "line 1"),
        ('{"Nope": 1}', "no field 'Nope'"),
    ],
)
def test_publish_rejects_bad_lines(emulator, tmp_path, capsys, text, says):
    """A line that is not a valid event causes a one-line error, and nothing is published.

    The error names the line or the field.
    """
    file = tmp_path / "events.jsonl"
    file.write_text(text)
    assert run(["publish", TOPIC, "--file", str(file)]) == 1
    assert_one_line_error(capsys, says)
    assert emulator.bus.tip() == 0


def test_invalid_utf8_and_a_full_disk_are_one_line_errors(emulator, tmp_path, capsys):
    """Neither an invalid input file nor a full disk ends a command with a traceback."""
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"City__c": "\xff"}')
    assert run(["publish", TOPIC, "--file", str(file)]) == 1
    assert_one_line_error(capsys, "not valid UTF-8")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sfpubsub", "topic", TOPIC],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment(emulator)},
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_topic_and_schema_print_json(emulator, capsys):
    """Both commands print one line of JSON, and a schema can be looked up by its topic or by its
    id.
    """
    assert run(["topic", TOPIC]) == 0
    topic = json.loads(capsys.readouterr().out)
    assert topic["topic_name"] == TOPIC
    assert run(["schema", TOPIC]) == 0
    by_topic = json.loads(capsys.readouterr().out)
    assert run(["schema", topic["schema_id"]]) == 0
    assert json.loads(capsys.readouterr().out) == by_topic
    assert by_topic["schema"]["name"] == "Order_Event__e"
    assert run(["schema", "/data/ChangeEvents"]) == 1
    assert_one_line_error(capsys, "several event types")


def assert_one_line_error(capsys, *says: str) -> None:
    """Check that nothing but a one-line error was printed, and that it contains the texts
    *says*.
    """
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    for text in says:
        assert text in lines[0]


@pytest.mark.parametrize(
    ("arguments", "changed", "code", "says"),
    [
        (["subscribe", "--managed", "Nobody"], {}, 1, "Nobody"),
        (["subscribe", "--topic", "/event/Nothing__e"], {}, 1, "/event/Nothing__e"),
        (["topic", "/event/Nothing__e"], {}, 1, "check the name"),
        (["subscribe", "--managed", NAME], {"SFPUBSUB_ACCESS_TOKEN": "x"}, 3, "access token"),
        (["topic", TOPIC], {"SFPUBSUB_ACCESS_TOKEN": "x"}, 3, "access token"),
        (["subscribe", "--managed", NAME], {"SFPUBSUB_ACCESS_TOKEN": ""}, 1, "SFPUBSUB_ACCESS_"),
        (["subscribe", "--topic", TOPIC, "--replay", "xyz"], {}, 2, "'xyz' is not a replay id"),
        (["subscribe", "--topic", TOPIC, "--replay", ""], {}, 2, "not a replay id"),
        (["topic", "/event/\udcff"], {}, 1, "error"),
        (["subscribe", "--topic", TOPIC, "--replay", "00ff"], {}, 4, "Replay ID"),
        (["subscribe", "--managed", NAME, "--replay", "latest"], {}, 2, "--topic"),
        (["subscribe", "--managed", NAME, "--fallback", "latest"], {}, 2, "--topic"),
        (["subscribe", "--managed", NAME, "--replay-store", "f"], {}, 2, "--topic"),
        (["subscribe", "--topic", TOPIC, "--replay-store", "/proc/f"], {}, 1, "/proc/f"),
        (["subscribe", "--managed", NAME, "--topic", TOPIC], {}, 2, "exactly one of"),
        (["subscribe"], {}, 2, "exactly one of"),
        (["subscribe", "--topic"], {}, 2, "--topic"),
        (["subscribe", "--managed", NAME, "--idle-timeout", "nan"], {}, 2, "finite"),
        (["subscribe", "--managed", NAME, "--idle-timeout", "inf"], {}, 2, "finite"),
        (["subscribe", "--managed", NAME, "--idle-timeout", "-1"], {}, 2, "--idle-timeout"),
        (["subscribe", TOPIC], {}, 2, f"did you mean --topic {TOPIC}?"),
        (["subscribe", NAME], {}, 2, f"did you mean --managed {NAME}?"),
        (["subscribe", "--managed", TOPIC], {}, 2, f"did you mean --topic {TOPIC}?"),
        (["subscribe", "/topic/X"], {}, 2, "did you mean subscribe --channel /topic/X?"),
        (["subscribe", "--topic", "/u/X"], {}, 2, "did you mean subscribe --channel /u/X?"),
        (["lag", TOPIC], {}, 2, f"did you mean --topic {TOPIC}?"),
        (["ingest", "--to", "./t", TOPIC], {}, 2, f"did you mean --topic {TOPIC}?"),
        (["subscribe", "--topic", "Order_Event__e"], {}, 2, f"did you mean {TOPIC}?"),
        (["topic", "event/Order_Event__e"], {}, 2, f"did you mean {TOPIC}?"),
        (["publish", "AccountChangeEvent"], {}, 2, "did you mean /data/AccountChangeEvent?"),
        (["lag", "--topic", "All__chn"], {}, 2, "/event/All__chn or /data/All__chn?"),
        (["schema", "Order_Event__e"], {}, 1, f"did you mean the topic {TOPIC}?"),
        (["nothing"], {}, 2, "nothing"),
        (["schema", "AAAAAAAAAAAAAAAAAAAAAA"], {}, 1, "no schema AAAAAAAAAAAAAAAAAAAAAA"),
        (["topic", TOPIC], {"SFPUBSUB_ENDPOINT": "nonsense"}, 1, "host:port"),
        (["topic", TOPIC], {"SFPUBSUB_AUTH": "magic"}, 1, "magic"),
        (["topic", TOPIC], {"SFPUBSUB_ENDPOINT": "10.0.0.1:1"}, 1, "plaintext"),
    ],
)
def test_bad_input_is_a_one_line_error_with_an_exit_code(
    emulator, monkeypatch, capsys, arguments, changed, code, says
):
    """Each mistake is reported in one line that names its cause, with the documented exit code.

    No position is committed.
    """
    point_at(emulator, monkeypatch, **changed)
    assert run(arguments) == code
    assert_one_line_error(capsys, says)
    assert committed(emulator) is None


@pytest.mark.parametrize(
    ("top", "missing"),
    [("", "SFPUBSUB_ACCESS_TOKEN and"), ('auth = "client-credentials"\n', "SFPUBSUB_CLIENT_ID")],
)
def test_a_missing_profile_option_lists_the_profiles(monkeypatch, tmp_path, capsys, top, missing):
    """If a setting is missing and no profile was chosen, the error lists the available profiles.

    It does not reveal their contents.
    """
    for variable in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        monkeypatch.delenv(variable)
    file = tmp_path / "pubsub.toml"
    file.write_text(f'{top}[profile.uat]\nusername = "u@x"\n[profile.prod]\nclient_id = "x-key"\n')
    file.chmod(0o600)
    assert run(["topic", TOPIC, "--config", str(file)]) == 1
    said = capsys.readouterr().err
    assert missing in said
    assert "choose a profile of the file with --profile: uat, prod\n" in said
    assert "u@x" not in said
    assert "x-key" not in said
    assert run(["topic", TOPIC, "--config", str(file), "--profile", "prod"]) == 1
    assert "choose a profile" not in capsys.readouterr().err


def test_an_unreachable_service_is_an_error_after_a_timeout(emulator, monkeypatch, capsys):
    """A command does not wait forever for a service that it has never reached."""
    point_at(emulator, monkeypatch)
    emulator.stop()
    monkeypatch.setattr("sfpubsub.cli.service.CONNECT_TIMEOUT", 0.2)
    assert run(["subscribe", "--managed", NAME]) == 1
    assert_one_line_error(capsys, "could not be reached", "SFPUBSUB_INSECURE=1")


def test_an_undecodable_event_ends_subscribe(emulator, capsys):
    """If an event cannot be decoded, the command fails after it has printed and committed the
    events before it.
    """
    from sfpubsub.emulator.org.bus import Draft

    good = emulator.publish(TOPIC, orders(2))
    schema_id = good[0].schema_id
    emulator.publish_raw(TOPIC, [Draft(schema_id=schema_id, payload=b"\xff")])
    assert run(["subscribe", "--managed", NAME]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "does not fit schema" in captured.err
    assert committed(emulator) == good[-1].replay_id


def test_dropped_streams_do_not_affect_the_output(run_emulator, monkeypatch, capsys):
    """If the service drops the stream three times, each event is still printed once, in order."""
    plan = FaultPlan([Fault("drop_stream", after_responses=2, times=3)])
    started = run_emulator(faults=plan, settings=Settings(events_per_response=5))
    point_at(started, monkeypatch)
    started.publish(TOPIC, orders(60))
    assert run(["subscribe", "--managed", NAME, "--max-events", "60"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["payload"]["Order_Number__c"] for line in lines] == [str(i) for i in range(60)]
    plan.assert_consumed()


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda c: " ".join(c))
def test_every_command_has_help(command, capsys):
    """Each command prints its usage and its options for ``--help``."""
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Usage: sfpubsub" in out
    assert "Options:" in out


def test_connection_options_are_one_line_of_help(capsys):
    """--help of a command names --config and where the other connection options are listed; it
    does not list them, and each still works.
    """
    assert run(["managed", "list", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--config FILE" in out
    assert "sfpubsub help connection" in out
    assert "--login-url" not in out
    assert run(["help", "connection"]) == 0
    out = capsys.readouterr().out
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')} " in out
    assert run(["topics", "--endpoint", "nonsense"]) != 2, "the option is still known"


def test_help_does_not_import_grpc_or_avro():
    """``subscribe --help`` imports no library that talks to the service, because gRPC and Avro
    alone would triple its time.
    """
    code = (
        "import sys\n"
        "from sfpubsub.cli.main import run\n"
        "assert run(['subscribe', '--help']) == 0\n"
        "print(sorted({'grpc', 'google.protobuf', 'fastavro', 'requests'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_is_found_without_an_extra():
    """No command needs a package of an extra before it is used: each prints its help without."""
    code = (
        "import sys\n"
        "missing = ('pyarrow', 'pyspark', 'numpy', 'pandas', 'jwt', 'orjson', 'opentelemetry')\n"
        "sys.modules.update(dict.fromkeys(missing))\n"
        "from sfpubsub.cli.main import COMMANDS, run\n"
        "assert [name for name in COMMANDS if run([name, '--help']) != 0] == []\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


def test_version_prints_the_version_of_the_package_and_the_decoder(capsys, monkeypatch):
    """``sfpubsub --version`` prints the version of the package, and which decoder is in use."""
    import sfpubsub
    from sfpubsub import native

    for compiled, decoder in [(None, "Python decoder"), (object(), "compiled decoder 0.2.0")]:
        monkeypatch.setattr(native, "compiled", compiled)
        assert run(["--version"]) == 0
        said = capsys.readouterr().out
        assert said == f"sfpubsub, version {sfpubsub.__version__}, {decoder}\n"


def test_an_unreachable_login_host_fails_at_once(emulator, monkeypatch, capsys):
    """A login host that refuses the first connection is reported as an error at once.

    It is a wrong setting rather than an outage, and waiting would make a script hang.
    """
    point_at(
        emulator,
        monkeypatch,
        SFPUBSUB_AUTH="client-credentials",
        SFPUBSUB_LOGIN_URL="http://127.0.0.1:1",
        SFPUBSUB_CLIENT_ID="emulator",
        SFPUBSUB_CLIENT_SECRET="emulator-secret",
    )
    monkeypatch.delenv("SFPUBSUB_INSTANCE_URL")
    assert run(["subscribe", "--managed", "My_Managed_Subscription"]) == 1
    assert_one_line_error(capsys, "the connection was refused")
