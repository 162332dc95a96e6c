"""The status file that shows how far a command has got, and `sfpubsub lag`, which reads it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sfpubsub.avro.codec import Codec
from sfpubsub.cli import status_file
from sfpubsub.cli.demo import _Demo
from sfpubsub.cli.main import run
from sfpubsub.cli.status import Status, read_all
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.client.batch import EventBatch
from sfpubsub.config import Settings
from sfpubsub.config.state import state_dir
from sfpubsub.emulator.org.settings import Settings as EmulatorSettings
from sfpubsub.spark.mirror.status import ObjectStatus
from sfpubsub.types import Health, RawEvent, ReplayId

from ..avro.schemas import ORDER
from ..client.test_managed import NAME, TOPIC, orders
from ..conftest import PATIENCE, until
from ..monitoring.support import HOUR, Clock, Subscription
from .test_cli import assert_one_line_error, point_at, spawn

HEALTH = Health("streaming", None, 100, 0, 0, 0, 0, 0, 0, None, None)
SETTINGS = Settings(endpoint="127.0.0.1:7011", tenant_id="00D000000000001AAA")
TOKEN = "00D000000000001!TopSecretToken"
NOW = time.time() // HOUR * HOUR  # old files are removed by their real age


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """Use a separate state directory for this test, and return its path.

    Each `refresh` in this process is due.
    """
    place = tmp_path / "state" / "sfpubsub"
    monkeypatch.setattr(status_file, "EVERY", 0.0)
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(place))
    return place


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator(settings=EmulatorSettings(events_per_response=10))
    point_at(started, monkeypatch)
    return started


def keep_status(clock: Clock, **changes) -> StatusFile:
    """Return the context manager that maintains the status file of a ``subscribe`` run."""
    return StatusFile("subscribe", "managed", NAME, SETTINGS, clock=clock, **changes)


def only_status(directory: Path) -> Status:
    """Read the single status file in *directory*."""
    found, unreadable = read_all(directory)
    assert not unreadable
    assert len(found) == 1
    return found[0]


def batch_of(*created: float) -> EventBatch:
    """Return a batch with one event per creation time in *created*, given in seconds."""
    codec = Codec("schema", ORDER)
    events = tuple(
        RawEvent(
            id=str(number),
            schema_id="schema",
            payload=codec.encode({"CreatedDate": round(at * 1000), "CreatedById": "005"}),
            replay_id=ReplayId(bytes([number])),
        )
        for number, at in enumerate(created)
    )
    return EventBatch(
        subscription=NAME,
        topic=None,
        events=events,
        codecs={"schema": codec},
        first_seq=0,
        received_at=NOW,
        ack=lambda first, last: None,
    )


def test_failed_run_reports_its_error(state):
    """A run that ends with an exception reports its message; Ctrl-C is not an error."""
    with pytest.raises(RuntimeError), keep_status(Clock(NOW)) as failed:
        raise RuntimeError("it broke")
    assert failed.observation.facts().error == "it broke"
    with pytest.raises(KeyboardInterrupt), keep_status(Clock(NOW)) as stopped:
        raise KeyboardInterrupt
    assert stopped.observation.facts().error is None


def test_file_records_positions_and_times(state):
    """The file contains the acked, received and committed positions, and the times of the last ack,
    commit and message.
    """
    clock, subscription = Clock(NOW), Subscription()
    with keep_status(clock, into="/data/orders") as status:
        status.follow(subscription)
        assert only_status(state).last_message_at is None
        clock.now += 5
        subscription.becomes(responses=1, delivered=2, last_position=ReplayId(b"\x07"))
        status.acked(batch_of(NOW - 60, NOW - 30, NOW - 10), 2)
        status.refresh()
        clock.now += 5
        subscription.becomes(responses=2, committed=ReplayId(b"\x01"))
        status.refresh()
        said = only_status(state)
        assert (said.command, said.kind, said.name, said.into) == (
            "subscribe",
            "managed",
            NAME,
            "/data/orders",
        )
        assert (said.acked_position, said.received_position) == ("01", "07")
        assert (said.acked_event_at, said.acked_at) == (NOW - 30, NOW + 5)
        assert (said.committed_position, said.last_commit_at) == ("01", NOW + 10)
        assert said.last_message_at == NOW + 10
        assert said.is_alive()
        clock.now += 60  # neither a message nor a commit
        status.refresh()
        assert only_status(state).last_message_at == only_status(state).last_commit_at == NOW + 10
    ended = only_status(state)
    assert (ended.ended_at, ended.is_alive()) == (NOW + 70, False)


def test_lag_shows_how_far_each_table_of_a_mirror_is(state, capsys):
    """`lag` shows for each object how far its table is behind the stream, and why it waits."""
    objects = [
        ObjectStatus("Account", "current", records=8),
        ObjectStatus(
            "Case", "waiting", {"read": "no API calls are left"}, behind=660.0, queued=3,
            oldest_entry=NOW - 60.0, parked_rows=20,
        ),
    ]  # fmt: skip
    with keep_status(Clock(NOW)) as status:
        status.follow(Subscription())
        status.follow_objects(lambda: objects)
    assert run(["lag"]) == 0
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["Account", "current"]
    assert "waiting: no API calls are left" in second
    assert " behind the stream" in second
    assert "3 to be reread" in second
    assert "20 deletions wait for a confirmation" in second
    assert run(["lag", "--json"]) == 0
    account, case = json.loads(capsys.readouterr().out)["objects"]
    assert (account["object"], account["records"], account["behind_s"]) == ("Account", 8, None)
    assert case["behind_s"] >= 660.0
    assert case["waits"] == {"read": "no API calls are left"}


def test_commit_response_counts_as_a_response(emulator, connect):
    """The response to a commit counts as a response in `health`, although it contains no events."""
    with connect(emulator).subscribe_managed(NAME) as subscription:
        emulator.publish(TOPIC, orders(1))
        assert subscription.next_batch(PATIENCE) is not None
        before = subscription.health().responses
        assert before >= 1
        subscription.next_batch(0.05)  # acks the batch; the answer to its commit is a response
        until(lambda: subscription.health().responses > before, "the commit's answer")


def test_keepalive_counts_as_a_response(run_emulator, connect):
    """On a topic without events, keepalives are counted as responses in `health`."""
    emulator = run_emulator(settings=EmulatorSettings(keepalive_s=0.05))
    with connect(emulator).subscribe(TOPIC) as subscription:
        until(lambda: subscription.health().responses >= 2, "two keepalives")
        assert subscription.health().delivered == 0


def test_file_is_written_at_most_once_a_second(state, monkeypatch):
    """After the initial write, a thousand refreshes within a second cause only one more write.

    The end of the run always writes the file.
    """
    monkeypatch.setattr(status_file, "EVERY", 1.0)
    written = []
    replace = status_file._replace
    monkeypatch.setattr(
        status_file, "_replace", lambda path, said: (written.append(1), replace(path, said))
    )
    subscription = Subscription()
    with keep_status(Clock(NOW)) as status:
        status.follow(subscription)
        for delivered in range(1000):
            subscription.becomes(delivered=delivered)
            status.refresh()
        assert len(written) == 2  # at the start, and at the first refresh
    assert only_status(state).delivered == 999


def test_only_the_owner_can_read_the_file(state):
    """The state directory has mode 700 and the status file has mode 600."""
    with keep_status(Clock(NOW)) as status:
        status.follow(Subscription())
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    (file,) = state.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_deliveries_are_counted_by_the_hour_across_runs(state):
    """Deliveries in the last 24 hours are counted across all runs, including redelivered events."""
    clock = Clock(NOW)
    for hours, delivered, redelivered in [(0, 5, 0), (10, 7, 3), (23, 1, 0)]:
        clock.now = NOW + hours * HOUR
        subscription = Subscription()
        with keep_status(clock) as status:
            status.follow(subscription)
            subscription.becomes(responses=1, delivered=delivered, redelivered=redelivered)
    said = only_status(state)
    assert said.delivered == 1
    assert [said.delivered_lately(NOW + hours * HOUR) for hours in (23, 25, 36, 50)] == [
        16,
        11,
        1,
        0,
    ]


def test_new_run_shows_no_values_of_the_previous_run(state):
    """A new run shows only its own times and positions, and its first response removes the old
    entry.

    Only the 24-hour count spans runs.
    """
    clock, subscription = Clock(NOW), Subscription()
    with keep_status(clock) as status:
        status.follow(subscription)
        subscription.becomes(responses=1, delivered=1, committed=ReplayId(b"\x09"))
        status.acked(batch_of(NOW - 60))
    before = only_status(state)
    assert (before.acked_position, before.committed_position) == ("00", "09")
    clock.now += 100
    with keep_status(clock) as status:
        status.follow(subscription := Subscription())
        status.refresh()
        old, new = sorted(read_all(state)[0], key=lambda said: said.started_at)
        assert old == before  # stays until the new run has its first response
        assert (new.last_message_at, new.acked_position, new.acked_at) == (None, None, None)
        subscription.becomes(responses=1)
        status.refresh()
        said = only_status(state)
        assert said.run == new.run != before.run
        assert (said.started_at, said.last_message_at, said.delivered) == (NOW + 100, NOW + 100, 0)
        assert (said.committed_position, said.last_commit_at) == (None, None)
        assert (said.acked_position, said.acked_event_at) == (None, None)
        assert said.delivered_lately(clock.now) == 1  # the only count that spans runs


def test_runs_without_responses_keep_the_last_run_that_had_one(state):
    """A run without responses replaces an earlier run without responses, but the last run that
    received any is kept.
    """
    clock = Clock(NOW)
    for responses in (1, 0, 0, 0):
        clock.now += 100
        with keep_status(clock) as status:
            status.follow(subscription := Subscription())
            subscription.becomes(responses=responses)
    found = sorted(said.started_at for said in read_all(state)[0])
    assert found == [NOW + 100, NOW + 400]


def test_run_that_never_connects_keeps_the_previous_entry(state):
    """A run that is refused or interrupted before it connects leaves no entry of its own."""
    clock, subscription = Clock(NOW), Subscription()
    with keep_status(clock) as status:
        status.follow(subscription)
        subscription.becomes(responses=1, committed=ReplayId(b"\x09"))
    before = only_status(state)
    refused = Subscription()
    refused.becomes(state="closed", reason="no such name")
    with contextlib.suppress(ValueError), keep_status(clock) as status:
        status.follow(refused)
        raise ValueError("refused")
    with keep_status(clock) as status:  # interrupted while it waited for the network
        status.follow(refused)
    with keep_status(clock):  # before there was a subscription at all
        pass
    assert only_status(state) == before
    assert len(list(state.iterdir())) == 1


def test_run_killed_before_its_first_response_is_not_shown(state, monkeypatch):
    """The status file of a run killed before its first response is ignored, and the next run
    removes it.
    """
    lost = keep_status(Clock(NOW))
    lost.__enter__()
    assert len(read_all(state)[0]) == 1  # while it runs: it may be waiting for the slot
    monkeypatch.setattr("sfpubsub.spark.runtime.process.Process.alive", lambda _self: False)
    assert read_all(state)[0] == []
    assert len(list(state.iterdir())) == 1
    with keep_status(Clock(NOW)):
        pass
    assert list(state.iterdir()) == []


def test_concurrent_runs_have_separate_entries(state):
    """Two concurrent runs of a subscription do not overwrite each other's entries.

    The next run replaces both once they have ended.
    """
    with keep_status(Clock(NOW)) as first, keep_status(Clock(NOW)) as second:
        first.follow(Subscription())
        second.follow(Subscription())
        assert len({said.run for said in read_all(state)[0]}) == 2
    with keep_status(Clock(NOW)) as third:
        third.follow(Subscription())
    assert only_status(state).run == third.status.run


def test_resolved_reason_is_no_longer_shown(state):
    """Once `health` no longer gives a reason, the status file no longer shows it, even before any
    event.
    """
    clock, subscription = Clock(NOW), Subscription()
    subscription.becomes(state="waiting", reason="another stream holds it")
    with keep_status(clock) as status:
        status.follow(subscription)
        status.refresh()
        assert (only_status(state).state, only_status(state).reason) == (
            "waiting",
            "another stream holds it",
        )
        subscription.becomes(state="opening", reason=None)
        status.refresh()
        assert (only_status(state).state, only_status(state).reason) == ("opening", None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["subscribe", "--managed", "My_Mangaed_Subscription"],
        ["subscribe", "--topic", "/event/Oder_Event__e"],
    ],
)
def test_a_misspelt_name_leaves_no_entry(emulator, state, arguments):
    """A run with a name that does not exist fails and leaves no file, because `lag` shows runs and
    not attempts.
    """
    assert run(arguments) == 1
    assert list(state.iterdir()) == []


def test_orgs_endpoints_and_users_have_separate_files(state):
    """A topic has a separate status file for each org, endpoint and user."""
    for settings in (
        SETTINGS,
        Settings(endpoint="127.0.0.1:7012", tenant_id="00D000000000001AAA"),
        Settings(endpoint="127.0.0.1:7011", tenant_id="00D000000000002AAA"),
        Settings(endpoint="127.0.0.1:7011", auth="jwt", username="a@example.com"),
        Settings(endpoint="127.0.0.1:7011", auth="jwt", username="b@example.com"),
    ):
        with StatusFile("subscribe", "topic", TOPIC, settings) as status:
            status.follow(Subscription())
    found, _ = read_all(state)
    assert len(found) == 5
    assert len({(said.endpoint, said.org) for said in found}) == 5


def test_unwritable_status_file_only_logs_one_warning(tmp_path, monkeypatch, caplog):
    """If the status file cannot be written, one warning is logged and the run continues."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(tmp_path / "file" / "below"))
    with keep_status(Clock(NOW)) as status:
        status.follow(Subscription())
        status.refresh()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_old_status_files_are_removed_but_other_files_stay(state):
    """A run removes status files that were last written 40 days ago, and only status files."""
    with keep_status(Clock(NOW)) as status:
        status.follow(Subscription())
    (old,) = state.iterdir()
    others = state / "somebody.json"
    others.write_text("{}")
    for path in (old, others):
        os.utime(path, (NOW - 40 * 86_400, NOW - 40 * 86_400))
    with StatusFile("ingest", "topic", TOPIC, SETTINGS, clock=Clock(NOW)) as status:
        status.follow(Subscription())
    assert not old.exists()
    assert others.exists()


def test_damaged_file_is_named_and_the_others_are_shown(state, capsys):
    """`lag` names each damaged file in one line of stderr and still shows the intact one."""
    with keep_status(Clock(NOW)) as status:
        status.follow(Subscription())
    (file,) = state.iterdir()
    values = json.loads(file.read_text())
    bad = {
        "cut": file.read_text()[:100],
        "empty": "",
        "list": "[]",
        "version": json.dumps({**values, "format": 1}),
        "kind": json.dumps({**values, "pid": "x"}),
        "missing": json.dumps({name: values[name] for name in values if name != "state"}),
        "nan": json.dumps({**values, "updated_at": float("nan")}),
        "hours": json.dumps({**values, "hours": {"x": 1}}),
        "counts": json.dumps({**values, "hours": {"1": "x"}}),
        "deep": "[" * 100_000,
        "what": json.dumps({**values, "kind": "x"}),
        "far": json.dumps({**values, "updated_at": -1e300}),
        "endless": json.dumps({**values, "acked_at": 0}).replace(
            '"acked_at": 0', '"acked_at": 1e999'
        ),
        "huge": json.dumps({**values, "delivered": 10**400}),
        "unprintable": json.dumps({**values, "name": "\ud800"}),
    }
    for name, text in bad.items():
        (state / f"{name}.status.json").write_text(text)
    (state / "binary.status.json").write_bytes(b"\xff\xfe")
    assert run(["lag"]) == 0
    assert capsys.readouterr().out
    assert run(["lag", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert len(captured.err.splitlines()) == len(bad) + 1
    for name in bad:
        assert f"{name}.status.json cannot be read" in captured.err


def test_lag_shows_what_subscribe_recorded(emulator, capsys):
    """After `subscribe` has ended, `lag` shows its last position, last commit and counts."""
    results = emulator.publish(TOPIC, [{**row, "CreatedDate": 1000} for row in orders(25)])
    assert run(["subscribe", "--managed", NAME, "--max-events", "25"]) == 0
    capsys.readouterr()
    assert run(["lag", "--managed", NAME, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    last = results[-1].replay_id.hex()
    assert said["managed"] == NAME
    assert said["acked_position"] == said["committed_position"] == last
    assert (said["delivered"], said["delivered_24h"]) == (25, 25)
    assert (said["alive"], said["state"], said["command"]) == (False, "closed", "subscribe")
    assert said["last_acked_event_s"] == pytest.approx(time.time() - 1, abs=120)
    assert 0 <= said["last_commit_s"] <= said["last_message_s"] + 1 < 120
    assert said["run"]
    assert 0 <= said["ended_s"] <= said["started_s"] < 120
    assert run(["lag"]) == 0
    page = capsys.readouterr().out
    assert f"subscribe of {NAME}" in page
    assert last in page
    assert "ended" in page


def test_a_managed_position_lost_between_two_runs_is_told_once(emulator, capsys):
    """`subscribe --managed` keeps nothing but its status file, which knows when the position was
    last confirmed: after 80 h without a run it warns of the events that are lost, once.
    """
    emulator.publish(TOPIC, orders(3))
    subscribe = ["subscribe", "--managed", NAME]
    assert run([*subscribe, "--max-events", "3"]) == 0
    emulator.publish(TOPIC, orders(1))  # expires before it is received
    emulator.clock.jump(80 * 3600.0)
    emulator.publish(TOPIC, orders(2))
    capsys.readouterr()
    told = []
    for events in (2, 1):
        assert run([*subscribe, "--max-events", str(events)]) == 0
        told.append(capsys.readouterr().err.count("(expired)"))
        emulator.publish(TOPIC, orders(1))
    assert told == [1, 0]


def test_lag_tells_running_from_killed_processes(emulator, capsys):
    """A killed process cannot update its file, so `lag` checks whether it still runs."""
    emulator.publish(TOPIC, orders(1))
    process = spawn(emulator, "subscribe", "--topic", TOPIC, "--replay", "earliest")
    with process.stdout, process.stderr:
        try:
            process.stdout.readline()
            options = ["lag", "--topic", TOPIC, "--json"]
            until(lambda: run(options) == 0, "a status file")
            capsys.readouterr()

            def said() -> dict:
                run(options)
                return json.loads(capsys.readouterr().out)

            until(lambda: said()["acked_position"] is not None, "the printed event")
            assert said()["alive"] is True
            assert said()["pid"] == process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
    assert said()["alive"] is False
    assert said()["ended_s"] is None
    assert run(["lag", "--topic", TOPIC]) == 0
    assert "ended without a clean exit" in capsys.readouterr().out


def test_lag_opens_no_stream_and_needs_no_settings(emulator, monkeypatch, capsys):
    """`lag` only reads files: it works while the service is stopped, and without any setting."""
    assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0"]) == 0
    emulator.stop()
    for name in ("ENDPOINT", "ACCESS_TOKEN", "INSTANCE_URL", "TENANT_ID", "AUTH"):
        monkeypatch.delenv(f"SFPUBSUB_{name}")
    assert run(["lag", "--managed", NAME]) == 0
    assert NAME in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 1, "no status file from subscribe, ingest or mirror for any subscription"),
        (["--managed", "Other"], 1, "Other"),
        (["--topic", TOPIC], 1, TOPIC),
        (["--managed", NAME, "--endpoint", "elsewhere:7443"], 1, NAME),
        (["--managed", NAME, "--topic", TOPIC], 2, "use only one of"),
    ],
)
def test_lag_without_a_matching_file_is_a_one_line_error(arguments, code, says, capsys):
    """If no status file matches, `lag` says what it looked for and exits with code 1.

    Contradictory options are a usage error.
    """
    if arguments:
        with keep_status(Clock(NOW)) as status:
            status.follow(Subscription())
    assert run(["lag", *arguments]) == code
    assert_one_line_error(capsys, says)


def test_demo_uses_its_own_state_directory(tmp_path, state):
    """Runs of the demo keep their status below the demo's directory, not among the user's own."""
    demo = _Demo(tmp_path / "demo", 1)
    with demo._emulator():
        demo._publish(1)
        done = subprocess.run(
            [sys.executable, "-m", "sfpubsub", "subscribe", "--managed", NAME, "--max-events", "1"],
            env=demo._env,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0
    assert not state.exists()
    assert only_status(tmp_path / "demo" / "state").name == NAME


def test_status_file_contains_no_secret(emulator, state):
    """The status file contains neither the access token nor any value of an event."""
    emulator.publish(TOPIC, [{"Order_Number__c": "a-secret-of-the-event"}])
    assert run(["subscribe", "--managed", NAME, "--max-events", "1"]) == 0
    (file,) = state.iterdir()
    text = file.read_text()
    assert emulator.access_token not in text
    assert emulator.access_token.partition("!")[2] not in text
    assert "a-secret-of-the-event" not in text


def test_state_directory_setting_overrides_the_default(monkeypatch, state):
    """SFPUBSUB_STATE_DIR sets the state directory; by default, it is ``sfpubsub`` in the system's
    place for state.
    """
    assert state_dir() == state
    monkeypatch.delenv("SFPUBSUB_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert state_dir().name == "sfpubsub"
