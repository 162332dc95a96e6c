"""Tests of the Streaming API on the command line: options, JSON lines, exit codes and Ctrl-C."""

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
    """Start an emulator, and set the environment variables that point to it."""
    started = run_emulator()
    point_at(started, monkeypatch)
    return started


def records(count):
    """Return *count* notifications of a PushTopic, named 0, 1 and so on."""
    return [{"type": "updated", "sobject": {"Id": f"001{i}", "Name": str(i)}} for i in range(count)]


def lines(capsys):
    """Return the JSON values that were printed to stdout since the last call."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_events_are_json_lines(emulator, capsys):
    """Events are printed as JSON lines with the Pub/Sub keys, ``type`` and ``created_date``.

    If an event's replay id is given to ``--replay``, the events after it are printed.
    """
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


def test_a_replay_store_resumes_after_the_last_line(emulator, capsys, tmp_path):
    """The second run prints the events after those of the first run, without repeating or
    missing any.
    """
    found = emulator.publish_streaming(TOPIC, records(3))
    store = ["--replay-store", str(tmp_path / "positions.json"), "--replay", "-2"]
    assert run(["subscribe", "--channel", TOPIC, *store, "--max-events", "2"]) == 0
    assert [line["replay_id"] for line in lines(capsys)] == found[:2]
    assert run(["subscribe", "--channel", TOPIC, *store, "--idle-timeout", "0.3"]) == 0
    assert [line["replay_id"] for line in lines(capsys)] == found[2:]


def test_an_expired_position_has_its_own_exit_code(emulator, capsys, tmp_path):
    """A position that the server rejects causes exit code 4, or a warning if a fallback was
    given.
    """
    (old,) = emulator.publish_streaming(TOPIC, records(1))
    emulator.bus.age_out()
    arguments = ["subscribe", "--channel", TOPIC, "--replay", str(old), "--idle-timeout", "0.2"]
    assert run(arguments) == POSITION_LOST
    assert "was invalid" in capsys.readouterr().err
    assert run([*arguments, "--fallback", "earliest"]) == 0
    assert "warning: position lost on /topic/Accounts (rejected)" in capsys.readouterr().err


def test_an_interrupt_unsubscribes_and_disconnects(emulator):
    """After Ctrl-C the process exits with 130, and the server's session is gone."""
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
def test_incompatible_options_are_usage_errors(emulator, arguments):
    """Options that can't be combined, an invalid ``--replay`` and a missing subscription cause
    exit code 2.
    """
    assert run(["subscribe", *arguments]) == 2


def test_a_rejected_channel_or_token_sets_the_exit_code(emulator, capsys, monkeypatch):
    """The exit code is 1 if a channel does not exist, and 3 if it is forbidden or the
    token is wrong.
    """
    assert run(["subscribe", "--channel", "/topic/None"]) == 1
    emulator.faults.add(
        Fault("refuse_message", rpc="/meta/subscribe", text="403::Restricted channel")
    )
    assert run(["subscribe", "--channel", "/topic/None"]) == NOT_ALLOWED
    monkeypatch.setenv("SFPUBSUB_ACCESS_TOKEN", "wrong")
    assert run(["subscribe", "--channel", TOPIC]) == NOT_ALLOWED


def test_pushtopics_are_created_listed_shown_and_deleted(emulator, capsys):
    """Each command prints the PushTopic as a JSON line.

    An unknown name or an invalid query causes exit code 1.
    """
    create = ["pushtopic", "create", "Leads", "SELECT Id, Name FROM Lead", "--on", "create"]
    assert run(create) == 0
    (made,) = lines(capsys)
    assert (made["name"], made["operations"]) == ("Leads", ["create"])
    assert run(["pushtopic", "list"]) == 0
    assert lines(capsys) == [made]
    assert run(["pushtopic", "show", "Leads"]) == 0
    assert lines(capsys) == [made]
    assert run(["pushtopic", "delete", "Leads"]) == 2, "nobody can be asked"
    assert "use --yes" in capsys.readouterr().err
    assert run(["pushtopic", "delete", "Leads", "--yes"]) == 0
    assert lines(capsys) == [made]
    assert run(["pushtopic", "show", "Leads"]) == 1
    assert run([*create[:3], "DROP"]) == 1
    assert "INVALID_FIELD" in capsys.readouterr().err


def test_push_sends_a_generic_event(emulator, capsys):
    """``push`` sends to all subscribers and prints a count of -1; with ``--to``, it sends to
    the given users.
    """
    emulator.publish_streaming(GENERIC, [{"payload": "first"}])
    assert run(["push", GENERIC, "hello"]) == 0
    assert lines(capsys) == [{"channel": GENERIC, "fanout_count": -1}]
    assert run(["push", GENERIC, "hello", "--to", "005000000000001AAA"]) == 0
    assert lines(capsys) == [{"channel": GENERIC, "fanout_count": 0}]
    assert run(["subscribe", "--channel", GENERIC, "--replay", "-2", "--max-events", "2"]) == 0
    assert [line["payload"] for line in lines(capsys)] == ["first", "hello"]
