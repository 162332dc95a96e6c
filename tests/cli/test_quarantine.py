"""``sfpubsub quarantine``: quarantined events are listed, shown and, once decodable, redriven."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfpubsub import FileQuarantine, FileSchemaStore, QuarantinedEvent
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.schema_cache import schema_id_of
from sfpubsub.cli.main import run
from sfpubsub.cli.quarantine import quarantine
from sfpubsub.cli.service import connection_options
from sfpubsub.emulator.org.bus import Draft
from sfpubsub.spark.raw.ownership import claim_table
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import RawEvent, ReplayId

from ..client.test_managed import NAME, TOPIC, committed, orders
from .test_cli import emulator  # noqa: F401  # a fixture

SCHEMA = json.dumps({"type": "record", "name": "Tick__e", "fields": [{"name": "n", "type": "int"}]})
ID = schema_id_of(SCHEMA)


@pytest.fixture
def kept(tmp_path: Path) -> FileQuarantine:
    """The quarantine of a table in a temporary directory."""
    return FileQuarantine(tmp_path / "table" / "_quarantine")


def put(kept: FileQuarantine, *values: int, **changes: Any) -> list[str]:
    """Quarantine one event for each value, as if its schema had not been known; return the keys."""
    codec = Codec(ID, SCHEMA)
    options = {"subscription": "/event/Tick__e", "topic": "/event/Tick__e", "reason": "no schema"}
    events = [
        QuarantinedEvent(
            RawEvent(f"id{value}", ID, codec.encode({"n": value}), ReplayId(b"r%d" % value)),
            received_at=1000.0 + value,
            **{**options, **changes},
        )
        for value in values
    ]
    kept.put(events)
    return [event.key for event in events]


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the JSON lines that were printed to stdout."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def run_quarantine(kept: FileQuarantine, command: str, *arguments: str) -> int:
    """Run ``sfpubsub quarantine`` *command* on the quarantine *kept*; return the exit code."""
    return run(["quarantine", command, "--dir", str(kept.directory), *arguments])


def test_list_and_show_print_the_entries(kept, capsys):
    """`list` prints a line for each event in order of arrival; `show` prints one event with its
    payload and schema. An unknown key is an error.
    """
    keys = put(kept, 3, 1, 2)
    assert run_quarantine(kept, "list") == 0
    listed = lines(capsys)
    assert [line["event_id"] for line in listed] == ["id1", "id2", "id3"]
    assert listed[2] == {
        "key": keys[0],
        "subscription": "/event/Tick__e",
        "topic": "/event/Tick__e",
        "event_id": "id3",
        "replay_id": b"r3".hex(),
        "schema_id": ID,
        "has_schema": False,
        "bytes": 1,
        "received_at": "1970-01-01T00:16:43.000+00:00",
        "failed_in": "decoding",
        "reason": "no schema",
        "redriven": False,
    }
    put(kept, 9, schema_json=SCHEMA)
    (last,) = [key for key in (line.stem for line in kept.directory.glob("*.json"))
               if key not in keys]  # fmt: skip
    assert run_quarantine(kept, "show", last) == 0
    (shown,) = lines(capsys)
    assert (shown["payload"], shown["schema"]) == ("Eg==", json.loads(SCHEMA))
    for unknown in ("0" * 32, "../../etc/passwd"):
        assert run_quarantine(kept, "show", unknown) == 1
        assert "quarantine list" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["list"], ["show", "KEY"], ["redrive"]])
def test_directory_that_is_not_a_quarantine_is_an_error(command, tmp_path, capsys):
    """A directory that does not exist or is not a quarantine is an error, not an empty result.

    The error names the right directory if there is one, and nothing is created.
    """
    table = tmp_path / "table"
    missing = ["quarantine", *command, "--dir", str(table)]
    assert run(missing) == 2
    assert f"'{table}' does not exist" in capsys.readouterr().err
    table.mkdir()
    kept = claim_table(table, [Source("topic", TOPIC)]) / "_quarantine"
    kept.mkdir()
    assert run(missing) == 1
    said = capsys.readouterr().err
    assert f"{table} is not a quarantine" in said
    assert f"use {kept}" in said
    kept.rmdir()
    assert run(missing) == 1
    assert "'_table.json'): use another directory" in capsys.readouterr().err
    assert [place.name for place in table.iterdir()] == ["_table.json"]


def test_empty_list_is_explained(kept, capsys):
    """`list` reports on stderr that there are no events, and how to list those already redriven."""
    says = f"no events in {kept.directory} (--all also lists redriven ones)\n"
    kept.directory.mkdir(parents=True)
    for left in (".redrive.lock", "key.1.tmp", "key.done"):
        (kept.directory / left).touch()
        assert run_quarantine(kept, "list") == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", says)
    put(kept, 1, 2, schema_json=SCHEMA)
    assert run_quarantine(kept, "redrive") == 0
    capsys.readouterr()
    assert run_quarantine(kept, "list") == 0
    assert "--all also lists redriven ones" in capsys.readouterr().err
    assert run_quarantine(kept, "list", "--all") == 0
    captured = capsys.readouterr()
    assert (len(captured.out.splitlines()), captured.err) == (2, "")


def test_redrive_prints_each_event_once(kept, capsys):
    """Redrive prints the line that subscribe would have printed.

    Only --again prints an event a second time.
    """
    FileSchemaStore(kept.directory.parent / "_schemas").put(ID, SCHEMA)
    put(kept, 1, 2)
    assert run_quarantine(kept, "redrive") == 0
    first = lines(capsys)
    assert [line["payload"] for line in first] == [{"n": 1}, {"n": 2}]
    assert first[0] == {
        "topic": "/event/Tick__e",
        "subscription": "/event/Tick__e",
        "event_id": "id1",
        "replay_id": b"r1".hex(),
        "schema_id": ID,
        "event_name": "Tick__e",
        "payload": {"n": 1},
    }
    assert run_quarantine(kept, "redrive") == 0
    assert lines(capsys) == []
    put(kept, 1, 3)  # the first event again, which is already redriven
    assert run_quarantine(kept, "redrive") == 0
    assert [line["payload"]["n"] for line in lines(capsys)] == [3]
    assert run_quarantine(kept, "redrive", "--again") == 0
    assert len(lines(capsys)) == 3
    assert run_quarantine(kept, "list") == 0
    assert lines(capsys) == []
    assert run_quarantine(kept, "list", "--all") == 0
    assert [line["redriven"] for line in lines(capsys)] == [True] * 3


def test_undecodable_events_stay_after_a_redrive(kept, capsys):
    """Redrive prints the events it can decode, keeps the others, and exits with code 1.

    A later redrive prints those if it is given their schemas.
    """
    put(kept, 1)
    (good,) = put(kept, 2, schema_json=SCHEMA)
    put(kept, 3, schema_json="{")
    assert run_quarantine(kept, "redrive") == 1
    captured = capsys.readouterr()
    assert [json.loads(line)["payload"] for line in captured.out.splitlines()] == [{"n": 2}]
    assert "--schemas" in captured.err
    assert "1 redriven, 2 left" in captured.err
    FileSchemaStore(kept.directory / "elsewhere").put(ID, SCHEMA)
    assert run_quarantine(kept, "redrive", good) == 0
    assert lines(capsys) == []
    assert run_quarantine(kept, "redrive", "--schemas", str(kept.directory / "elsewhere")) == 0
    assert [line["payload"]["n"] for line in lines(capsys)] == [1, 3]


def test_payload_that_does_not_fit_its_schema_is_not_redriven(kept, capsys):
    """Redrive reports the event and prints nothing, although the schema is stored with it."""
    kept.put(
        [
            QuarantinedEvent(
                RawEvent("id", ID, b"\xff", ReplayId(b"r")), "S", "", "why", 1.0, 0, SCHEMA
            )
        ]
    )
    assert run_quarantine(kept, "redrive") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not fit" in captured.err


def test_fetch_gets_missing_schemas_from_the_service(emulator, kept, capsys):  # noqa: F811
    """An event without a stored schema is decoded with the service's schema.

    If the service does not know the schema either, the exit code is 1.
    """
    done = emulator.publish(TOPIC, orders(1))[0]
    payload = Codec(done.schema_id, emulator.bus.schema(done.schema_id).text).encode(
        {"CreatedDate": 1, "CreatedById": "x", "Order_Number__c": "7"}
    )
    kept.put(
        [
            QuarantinedEvent(
                RawEvent("a", done.schema_id, payload, ReplayId(b"r")), NAME, "", "why", 1.0
            )
        ]
    )
    put(kept, 1)
    assert run_quarantine(kept, "redrive", "--fetch") == 1
    (line,) = lines(capsys)
    assert (line["topic"], line["payload"]["Order_Number__c"]) == (TOPIC, "7")


def test_closed_pipe_marks_nothing_as_redriven(kept):
    """An event is marked only after it has been written out, so a closed pipe loses none."""
    put(kept, *range(50), schema_json=SCHEMA + " " * 20_000)
    code = "import sys; from sfpubsub.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "quarantine", "redrive", "--dir", str(kept.directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(30) == 1
    assert "Traceback" not in err
    assert not list(kept.directory.glob("*.done"))


def test_full_disk_marks_nothing_as_redriven(kept):
    """An event that could not be written out is not marked, so that the next redrive prints it."""
    put(kept, 1, schema_json=SCHEMA)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sfpubsub", "quarantine", "redrive", "--dir", kept.directory],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode != 0
    assert not list(kept.directory.glob("*.done"))


def test_damaged_entry_is_reported_and_others_are_processed(kept, capsys):
    """`list` and `redrive` process the intact entry, name the damaged one, and exit with 1."""
    one, _ = put(kept, 1, 2, schema_json=SCHEMA)
    (kept.directory / f"{one}.json").write_text("")
    for command in ("list", "redrive"):
        assert run_quarantine(kept, command) == 1
        captured = capsys.readouterr()
        assert len(captured.out.splitlines()) == 1, command
        assert f"{one}.json is damaged" in captured.err
    assert kept.is_redriven(put(kept, 2)[0])


def test_only_one_redrive_runs_at_a_time(kept, capsys):
    """A second redrive of the directory is refused, because both would print the same events."""
    put(kept, 1, schema_json=SCHEMA)
    with kept.redriving():
        assert run_quarantine(kept, "redrive") == 1
    assert "another process is redriving" in capsys.readouterr().err
    assert run_quarantine(kept, "redrive") == 0


def test_subscribe_with_quarantine_continues_after_a_bad_event(emulator, tmp_path, capsys):  # noqa: F811
    """With --quarantine, `subscribe` quarantines an undecodable event, then prints and commits the
    event after it.
    """
    good = emulator.publish(TOPIC, orders(1))[0]
    draft = Draft(schema_id=good.schema_id, payload=b"\xff")
    emulator.publish_raw(TOPIC, [draft])
    last = emulator.publish(TOPIC, orders(1, first=1))[0]
    options = ["--managed", NAME, "--idle-timeout", "0.3"]
    assert run(["subscribe", *options, "--quarantine", str(tmp_path / "q")]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "2 events, 1 quarantined" in captured.err
    assert committed(emulator) == last.replay_id
    (found,) = FileQuarantine(tmp_path / "q").entries()
    assert found.raw.payload == b"\xff"
    assert found.schema_json


def test_schemas_are_stored_next_to_the_replay_store(emulator, tmp_path, capsys):  # noqa: F811
    """A subscription with --replay-store FILE stores the schemas of its events in FILE.schemas."""
    done = emulator.publish(TOPIC, orders(1))[0]
    options = ["--replay", "earliest", "--replay-store", str(tmp_path / "p.json")]
    assert run(["subscribe", "--topic", TOPIC, *options, "--max-events", "1"]) == 0
    assert FileSchemaStore(tmp_path / "p.json.schemas").get(done.schema_id)


@pytest.mark.parametrize("command", ["list", "show", "redrive"])
def test_every_subcommand_has_help(command, capsys):
    """`--help` explains each option, and a directory that does not exist is a usage error."""
    assert run(["quarantine", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--dir DIR" in out
    options = [item for item in quarantine.commands[command].params if item.opts[0][:1] == "-"]
    assert options
    assert all(option.help for option in options)
    elsewhere = {spelling.partition(" ")[0] for spelling, _ in connection_options()}
    assert all(option.opts[0] in out for option in options if option.opts[0] not in elsewhere)
    assert run(["quarantine", command, "--dir", "/nowhere", "x"]) == 2
    assert os.path.sep in capsys.readouterr().err


def test_list_and_redrive_need_no_settings(kept, monkeypatch, capsys):
    """Listing and redriving work without a service, settings or credentials; only `--fetch` needs
    them.
    """
    for name in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        monkeypatch.delenv(name)
    put(kept, 1, schema_json=SCHEMA)
    assert run_quarantine(kept, "list") == 0
    assert run_quarantine(kept, "redrive", "--fetch") == 1
    assert "SFPUBSUB_" in capsys.readouterr().err
    assert run_quarantine(kept, "redrive") == 0
