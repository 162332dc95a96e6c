"""The Streaming API on the command line: spellings, JSON lines, exit codes, the end by Ctrl-C."""

from __future__ import annotations

import json
import signal

import pytest

from sfpubsub.cli.main import INTERRUPTED, NOT_ALLOWED, POSITION_LOST, run
from sfpubsub.emulator.faults import Fault

from ..conftest import PATIENCE, until
from .test_cli import point_at, spawn

TOPIC, GENERIC = "/topic/Accounts", "/u/News"


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    """An emulator that the environment names."""
    started = run_emulator()
    point_at(started, monkeypatch)
    return started


def records(count):
    return [{"type": "updated", "sobject": {"Id": f"001{i}", "Name": str(i)}} for i in range(count)]


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_events_are_json_lines(emulator, capsys):
    """The keys of topics' events, and two more; the id is the number that --replay takes."""
    found = emulator.publish_streaming(TOPIC, records(2))
    emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "7"}])
    assert run(["subscribe", "--channel", TOPIC, "--replay", "-2", "--max-events", "2"]) == 0
    _, second = lines(capsys)
    assert second["created_date"].endswith("Z")
    assert second == {
        "topic": TOPIC,
        "subscription": TOPIC,
        "event_id": None,
        "replay_id": found[1],
        "schema_id": None,
        "event_name": "Accounts",
        "type": "updated",
        "created_date": second["created_date"],
        "payload": {"Id": "0011", "Name": "1"},
    }
    replay = ["--replay", str(found[0]), "--idle-timeout", "0.3"]
    assert run(["subscribe", "--channel", f"{TOPIC}?Name='1'", *replay]) == 0
    (only,) = lines(capsys)
    assert (only["replay_id"], only["subscription"]) == (found[1], f"{TOPIC}?Name='1'")
    order = ["--channel", "/event/Order_Event__e", "--replay", "-2", "--max-events", "1"]
    assert run(["subscribe", *order]) == 0
    (platform,) = lines(capsys)
    assert platform["event_id"]
    assert platform["payload"]["Order_Number__c"] == "7"


def test_a_store_continues_behind_the_last_line(emulator, capsys, tmp_path):
    """A line that was written does not come again, and none is left out."""
    found = emulator.publish_streaming(TOPIC, records(3))
    store = ["--replay-store", str(tmp_path / "positions.json"), "--replay", "-2"]
    assert run(["subscribe", "--channel", TOPIC, *store, "--max-events", "2"]) == 0
    assert [line["replay_id"] for line in lines(capsys)] == found[:2]
    assert run(["subscribe", "--channel", TOPIC, *store, "--idle-timeout", "0.3"]) == 0
    assert [line["replay_id"] for line in lines(capsys)] == found[2:]


def test_a_position_that_is_gone_has_an_exit_code(emulator, capsys, tmp_path):
    """4, unless a fallback is named; then a warning says what was given up."""
    (old,) = emulator.publish_streaming(TOPIC, records(1))
    emulator.bus.age_out()
    arguments = ["subscribe", "--channel", TOPIC, "--replay", str(old), "--idle-timeout", "0.2"]
    assert run(arguments) == POSITION_LOST
    assert "was invalid" in capsys.readouterr().err
    assert run([*arguments, "--fallback", "earliest"]) == 0
    assert "warning: position lost on /topic/Accounts (rejected)" in capsys.readouterr().err


def test_an_interrupt_unsubscribes_and_disconnects(emulator):
    """Ctrl-C: what was written is kept, the server's session is over, exit code 130."""
    emulator.publish_streaming(TOPIC, records(1))
    process = spawn(emulator, "subscribe", "--channel", TOPIC, "--replay", "-2")
    try:
        assert json.loads(process.stdout.readline())["payload"]["Name"] == "0"
        assert emulator.cometd.sessions.count() == 1
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == INTERRUPTED, err
    assert "1 event" in str(err)
    until(lambda: emulator.cometd.sessions.count() == 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--channel", TOPIC, "--topic", "/event/X__e"],
        ["--channel", TOPIC, "--managed", "X"],
        ["--channel", TOPIC, "--raw"],
        ["--channel", TOPIC, "--quarantine", "d"],
        ["--channel", TOPIC, "--replay", "earliest"],
        ["--channel", TOPIC, "--replay", "-3"],
        [],
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(emulator, arguments):
    """Exit code 2, before anything is asked of a server."""
    assert run(["subscribe", *arguments]) == 2


def test_a_refused_channel_or_token_has_an_exit_code(emulator, capsys, monkeypatch):
    """1 for a channel that does not exist, 3 for what is not allowed."""
    assert run(["subscribe", "--channel", "/topic/None"]) == 1
    emulator.faults.add(
        Fault("refuse_message", rpc="/meta/subscribe", text="403::Restricted channel")
    )
    assert run(["subscribe", "--channel", "/topic/None"]) == NOT_ALLOWED
    monkeypatch.setenv("SFPUBSUB_ACCESS_TOKEN", "wrong")
    assert run(["subscribe", "--channel", TOPIC]) == NOT_ALLOWED


def test_pushtopics_are_administered(emulator, capsys):
    """create, list, show, delete: a JSON line for each record."""
    create = ["pushtopic", "create", "Leads", "SELECT Id, Name FROM Lead", "--on", "create"]
    assert run(create) == 0
    (made,) = lines(capsys)
    assert (made["name"], made["operations"]) == ("Leads", ["create"])
    assert run(["pushtopic", "list"]) == 0
    assert lines(capsys) == [made]
    assert run(["pushtopic", "show", "Leads"]) == 0
    assert lines(capsys) == [made]
    assert run(["pushtopic", "delete", "Leads", "--yes"]) == 0
    assert lines(capsys) == [made]
    assert run(["pushtopic", "show", "Leads"]) == 1
    assert run([*create[:3], "DROP"]) == 1
    assert "INVALID_FIELD" in capsys.readouterr().err


def test_pushing(emulator, capsys):
    """To everybody, or to a list of users."""
    emulator.publish_streaming(GENERIC, [{"payload": "first"}])
    assert run(["push", GENERIC, "hello"]) == 0
    assert lines(capsys) == [{"channel": GENERIC, "fanout_count": -1}]
    assert run(["push", GENERIC, "hello", "--to", "005000000000001AAA"]) == 0
    assert lines(capsys) == [{"channel": GENERIC, "fanout_count": 0}]
    assert run(["subscribe", "--channel", GENERIC, "--replay", "-2", "--max-events", "2"]) == 0
    assert [line["payload"] for line in lines(capsys)] == ["first", "hello"]
