"""How far a command has got: the file that it keeps, and the command that reads it."""

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
from sfpubsub.cli.status import Status, read_all, state_dir
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.client.batch import EventBatch
from sfpubsub.config import Settings
from sfpubsub.emulator.org.settings import Settings as EmulatorSettings
from sfpubsub.types import Health, RawEvent, ReplayId

from ..avro.schemas import ORDER
from ..client.test_managed import NAME, TOPIC, orders
from ..conftest import PATIENCE, until
from ..monitoring.support import HOUR, Clock, Subscription
from .test_cli import assert_one_line_error, point_at, spawn

HEALTH = Health("streaming", None, 100, 0, 0, 0, 0, 0, 0, None, None)
SETTINGS = Settings(endpoint="127.0.0.1:7011", tenant_id="00D000000000001AAA")
TOKEN = "00D000000000001!TopSecretToken"
NOW = time.time() // HOUR * HOUR  # files are pruned by their real age


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """A directory of the test's own."""
    place = tmp_path / "state" / "sfpubsub"
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(place))
    return place


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator(settings=EmulatorSettings(events_per_response=10))
    point_at(started, monkeypatch)
    return started


def keep(clock: Clock, **changes) -> StatusFile:
    return StatusFile("subscribe", "managed", NAME, SETTINGS, clock=clock, **changes)


def only(directory: Path) -> Status:
    found, unreadable = read_all(directory)
    assert not unreadable
    assert len(found) == 1
    return found[0]


def batch_of(*created: float) -> EventBatch:
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


def test_a_run_that_fails_says_so_to_whoever_watches(state):
    """Ctrl-C is no failure."""
    with pytest.raises(RuntimeError), keep(Clock(NOW)) as failed:
        raise RuntimeError("it broke")
    assert failed.observation.facts().error == "it broke"
    with pytest.raises(KeyboardInterrupt), keep(Clock(NOW)) as stopped:
        raise KeyboardInterrupt
    assert stopped.observation.facts().error is None


def test_the_file_says_what_happened_and_when(state):
    """Position, last commit, last message, the age of the last acked event: each from its cause."""
    clock, subscription = Clock(NOW), Subscription()
    with keep(clock, into="/data/orders") as status:
        status.follow(subscription)
        assert only(state).last_message_at is None
        clock.now += 5
        subscription.becomes(responses=1, delivered=2, last_position=ReplayId(b"\x07"))
        status.acked(batch_of(NOW - 60, NOW - 30, NOW - 10), 2)
        status._due = 0.0
        status.refresh()
        clock.now += 5
        subscription.becomes(responses=2, committed=ReplayId(b"\x01"))
        status._due = 0.0
        status.refresh()
        said = only(state)
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
        status._due = 0.0
        status.refresh()
        assert only(state).last_message_at == only(state).last_commit_at == NOW + 10
    ended = only(state)
    assert (ended.ended_at, ended.is_alive()) == (NOW + 70, False)


def test_a_keepalive_that_moves_nothing_is_a_message(emulator, connect):
    """Health counts every response, so that a quiet topic shows its sign of life."""
    with connect(emulator).subscribe_managed(NAME) as subscription:
        emulator.publish(TOPIC, orders(1))
        assert subscription.next_batch(PATIENCE) is not None
        before = subscription.health().responses
        assert before >= 1
        subscription.next_batch(0.05)  # acks: the answer to the commit is a response
        until(lambda: subscription.health().responses > before, "the commit's answer")


def test_the_file_is_written_about_once_a_second(state, monkeypatch):
    """A busy loop does not write a file for each turn; the end is always written."""
    written = []
    replace = status_file._replace
    monkeypatch.setattr(
        status_file, "_replace", lambda path, said: (written.append(1), replace(path, said))
    )
    subscription = Subscription()
    with keep(Clock(NOW)) as status:
        status.follow(subscription)
        for delivered in range(1000):
            subscription.becomes(delivered=delivered)
            status.refresh()
        assert len(written) == 2  # at the start, and at the first look
    assert only(state).delivered == 999


def test_only_the_owner_may_look(state):
    """The directory and the file are the user's own."""
    with keep(Clock(NOW)) as status:
        status.follow(Subscription())
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    (file,) = state.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_deliveries_are_counted_by_the_hour_over_several_runs(state):
    """The last 24 h, whoever delivered; older ones are forgotten, those sent again are counted."""
    clock = Clock(NOW)
    for hours, delivered, redelivered in [(0, 5, 0), (10, 7, 3), (23, 1, 0)]:
        clock.now = NOW + hours * HOUR
        subscription = Subscription()
        with keep(clock) as status:
            status.follow(subscription)
            subscription.becomes(responses=1, delivered=delivered, redelivered=redelivered)
    said = only(state)
    assert said.delivered == 1
    assert [said.delivered_lately(NOW + hours * HOUR) for hours in (23, 25, 36, 50)] == [
        16,
        11,
        1,
        0,
    ]


def test_a_run_says_nothing_of_the_one_before(state):
    """A new process shows its own times and positions, or none; the old run's entry is gone."""
    clock, subscription = Clock(NOW), Subscription()
    with keep(clock) as status:
        status.follow(subscription)
        subscription.becomes(responses=1, delivered=1, committed=ReplayId(b"\x09"))
        status.acked(batch_of(NOW - 60))
    before = only(state)
    assert (before.acked_position, before.committed_position) == ("00", "09")
    clock.now += 100
    with keep(clock) as status:
        status.follow(subscription := Subscription())
        status.refresh()
        old, new = sorted(read_all(state)[0], key=lambda said: said.started_at)
        assert old == before  # until the new one has shown that it gets somewhere
        assert (new.last_message_at, new.acked_position, new.acked_at) == (None, None, None)
        subscription.becomes(responses=1)
        status._due = 0.0
        status.refresh()
        said = only(state)
        assert said.run == new.run != before.run
        assert (said.started_at, said.last_message_at, said.delivered) == (NOW + 100, NOW + 100, 0)
        assert (said.committed_position, said.last_commit_at) == (None, None)
        assert (said.acked_position, said.acked_event_at) == (None, None)
        assert said.delivered_lately(clock.now) == 1  # the one count that is of all runs


def test_a_run_that_was_sent_nothing_leaves_the_last_one_that_was(state):
    """A quiet night does not make the position of the day before unknown, nor fill the list."""
    clock = Clock(NOW)
    for responses in (1, 0, 0, 0):
        clock.now += 100
        with keep(clock) as status:
            status.follow(subscription := Subscription())
            subscription.becomes(responses=responses)
    found = sorted(said.started_at for said in read_all(state)[0])
    assert found == [NOW + 100, NOW + 400]


def test_a_run_that_gets_nowhere_leaves_what_is_known(state):
    """One that cannot sign in, or whose name is misspelt, leaves no entry and replaces none."""
    clock, subscription = Clock(NOW), Subscription()
    with keep(clock) as status:
        status.follow(subscription)
        subscription.becomes(responses=1, committed=ReplayId(b"\x09"))
    before = only(state)
    refused = Subscription()
    refused.becomes(state="closed", reason="no such name")
    with contextlib.suppress(ValueError), keep(clock) as status:
        status.follow(refused)
        raise ValueError("refused")
    with keep(clock) as status:  # interrupted while it waited for the network
        status.follow(refused)
    with keep(clock):  # before there was a subscription at all
        pass
    assert only(state) == before
    assert len(list(state.iterdir())) == 1


def test_a_run_that_was_killed_before_it_got_anywhere_is_not_shown(state, monkeypatch):
    """Its file says nothing; the next command removes it."""
    lost = keep(Clock(NOW))
    lost.__enter__()
    assert len(read_all(state)[0]) == 1  # while it lives: it may wait for the slot
    monkeypatch.setattr("sfpubsub.spark.runtime.process.Process.alive", lambda _self: False)
    assert read_all(state)[0] == []
    assert len(list(state.iterdir())) == 1
    with keep(Clock(NOW)):
        pass
    assert list(state.iterdir()) == []


def test_two_at_once_have_an_entry_each_until_the_next_run(state):
    """Two readers of one topic do not overwrite each other; what has ended is replaced."""
    with keep(Clock(NOW)) as first, keep(Clock(NOW)) as second:
        first.follow(Subscription())
        second.follow(Subscription())
        assert len({said.run for said in read_all(state)[0]}) == 2
    with keep(Clock(NOW)) as third:
        third.follow(Subscription())
    assert only(state).run == third.status.run


def test_a_reason_that_is_over_is_not_shown_any_longer(state):
    """`lag` repeats what `health` says, also while no event comes."""
    clock, subscription = Clock(NOW), Subscription()
    subscription.becomes(state="waiting", reason="another stream holds it")
    with keep(clock) as status:
        status.follow(subscription)
        status.refresh()
        assert (only(state).state, only(state).reason) == ("waiting", "another stream holds it")
        subscription.becomes(state="opening", reason=None)
        status._due = 0.0
        status.refresh()
        assert (only(state).state, only(state).reason) == ("opening", None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["subscribe", "--managed", "My_Mangaed_Subscription"],
        ["subscribe", "--topic", "/event/Oder_Event__e"],
    ],
)
def test_a_misspelt_name_leaves_no_entry(emulator, state, arguments):
    """`lag` shows what has run, not what was tried."""
    assert run(arguments) == 1
    assert list(state.iterdir()) == []


def test_orgs_and_services_are_kept_apart(state):
    """The same name in another org, or at another endpoint, is another file."""
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


def test_files_that_cannot_be_written_end_nothing(tmp_path, monkeypatch, caplog):
    """A full or read-only disk costs the file and a word about it, once; no event."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(tmp_path / "file" / "below"))
    with keep(Clock(NOW)) as status:
        status.follow(Subscription())
        status._due = 0.0
        status.refresh()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_old_files_are_removed_and_those_of_others_are_not(state):
    """A directory does not grow for ever; only files that are ours are touched."""
    with keep(Clock(NOW)) as status:
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


def test_a_damaged_file_is_named_and_the_others_are_shown(state, capsys):
    """Whatever stands in the directory: no traceback, and no wrong number."""
    with keep(Clock(NOW)) as status:
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


def test_lag_of_what_subscribe_printed(emulator, capsys):
    """What one run says, shown by the other: the last position, the commit, the counts."""
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


def test_lag_tells_the_living_from_the_killed(emulator, capsys):
    """A process that was killed says nothing; its pid and its start tell that it is gone."""
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
    """It reads files: no session, no service, and the managed slot stays where it is."""
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
def test_nothing_on_file_is_an_error_in_one_line(arguments, code, says, capsys):
    """Exit code 1, and where one looked."""
    if arguments:
        with keep(Clock(NOW)) as status:
            status.follow(Subscription())
    assert run(["lag", *arguments]) == code
    assert_one_line_error(capsys, says)


def test_the_demo_keeps_its_runs_to_itself(tmp_path, state):
    """What the demo reads does not stand among the user's own subscriptions."""
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
    assert only(tmp_path / "demo" / "state").name == NAME


def test_no_secret_is_in_the_file(emulator, state):
    """Neither the token nor what an event says."""
    emulator.publish(TOPIC, [{"Order_Number__c": "a-secret-of-the-event"}])
    assert run(["subscribe", "--managed", NAME, "--max-events", "1"]) == 0
    (file,) = state.iterdir()
    text = file.read_text()
    assert emulator.access_token not in text
    assert emulator.access_token.partition("!")[2] not in text
    assert "a-secret-of-the-event" not in text


def test_the_state_directory_is_the_users_unless_it_is_set(monkeypatch, state):
    """The setting goes first; without it the place where the system keeps a user's state."""
    assert state_dir() == state
    monkeypatch.delenv("SFPUBSUB_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert state_dir().name == "sfpubsub"
