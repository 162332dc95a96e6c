"""Publishing: what is filled in, and what is not."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sfpubsub.cli.main import run as run_cli
from sfpubsub.errors import EncodeError, PermissionDeniedError

from ..cli.test_cli import point_at
from ..conftest import PATIENCE
from .test_aio import client_of
from .test_managed import TOPIC

USER = "005000000000001AAA"


def publish(face: str, emulator, connect, events, topic=TOPIC, **options):
    """Publish by either face."""
    if face == "sync":
        return connect(emulator).publish(topic, events, **options)

    async def main():
        async with client_of(emulator) as client:
            return await client.publish(topic, events, **options)

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def published(emulator, connect, count: int) -> list[dict]:
    values = []
    with connect(emulator).subscribe(TOPIC, replay="earliest") as subscription:
        while len(values) < count:
            values += [event.value for event in subscription.next_batch(PATIENCE)]
    return values


@pytest.mark.parametrize("face", ["sync", "asyncio"])
def test_created_is_filled_only_when_asked(face, run_emulator, connect):
    """Without being asked nothing is invented; when asked, what the caller gave stays."""
    emulator = run_emulator()
    events = [{"City__c": "Bern"}, {"CreatedDate": 5}, {"CreatedById": "005x"}]
    with pytest.raises(EncodeError, match="CreatedDate"):
        publish(face, emulator, connect, events)
    assert emulator.bus.tip() == 0
    before = time.time()
    publish(face, emulator, connect, events, created_by=USER)
    both, date, by = published(emulator, connect, 3)
    assert (both["CreatedById"], both["City__c"]) == (USER, "Bern")
    for filled in (both, by):
        assert round(before * 1000) <= filled["CreatedDate"] <= round(time.time() * 1000)
    assert (date["CreatedDate"], date["CreatedById"]) == (5, USER)
    assert by["CreatedById"] == "005x"
    assert events == [{"City__c": "Bern"}, {"CreatedDate": 5}, {"CreatedById": "005x"}]


def test_the_command_fills_created_only_when_asked(run_emulator, connect, monkeypatch, tmp_path):
    """`publish` says what is missing, and `--created-by` fills it."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps({"City__c": "Bern"}))
    assert run_cli(["publish", TOPIC, "--file", str(file)]) == 1
    assert emulator.bus.tip() == 0
    assert run_cli(["publish", TOPIC, "--file", str(file), "--created-by", USER]) == 0
    (value,) = published(emulator, connect, 1)
    assert (value["CreatedById"], value["City__c"]) == (USER, "Bern")


@pytest.mark.parametrize("face", ["sync", "asyncio"])
@pytest.mark.parametrize("topic", ["/data/AccountChangeEvent", "/data/ChangeEvents"])
def test_a_topic_that_takes_no_events_is_told_before_an_event_is_looked_at(
    face, topic, run_emulator, connect
):
    """Who cannot publish is not sent to mend one field after the other first."""
    with pytest.raises(
        PermissionDeniedError, match=f"you cannot publish to {topic} .*only the org"
    ):
        publish(face, run_emulator(), connect, [{"Nope": 1}], topic)


def test_the_command_says_that_a_topic_takes_no_events(run_emulator, monkeypatch, tmp_path, capsys):
    """`publish` of a change event: the reason and exit code 3, and no word about fields."""
    point_at(run_emulator(), monkeypatch)
    file = tmp_path / "events.jsonl"
    file.write_text('{"ChangeEventHeader": {}}')
    assert run_cli(["publish", "/data/AccountChangeEvent", "--file", str(file)]) == 3
    said = capsys.readouterr().err
    assert "you cannot publish to /data/AccountChangeEvent" in said
    assert "ChangeEventHeader" not in said


def test_the_command_names_the_lines_it_could_not_encode(
    run_emulator, monkeypatch, tmp_path, capsys
):
    """As they are numbered in the file, blank ones too; what stands before was published."""
    point_at(run_emulator(), monkeypatch)
    file = tmp_path / "events.jsonl"
    for text, lines in (
        ('\n{"Nope": 1}\n', "line 2 of"),
        ('{"Nope": 1}\n\n{}', "line 1 of"),
        ('{"CreatedDate": 1, "CreatedById": "x"}\n' * 200 + '{"Nope": 1}', "line 201 of"),
    ):
        file.write_text(text)
        assert run_cli(["publish", TOPIC, "--file", str(file)]) == 1
        assert f"error: {lines} {file} could not be published: " in capsys.readouterr().err
