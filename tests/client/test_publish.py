"""The method and the command `publish`: which fields they fill in, and what they reject."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.cli.main import run as run_cli
from sfpubsub.client.client import PubSubClient
from sfpubsub.emulator.org.accounts import user_id
from sfpubsub.errors import EncodeError, PermissionDeniedError

from ..cli.test_cli import point_at
from ..conftest import PATIENCE
from .test_aio import client_of
from .test_managed import TOPIC

USER = "005000000000001AAA"
GOOD = '{"CreatedDate": 1, "CreatedById": "x"}\n'


def publish(face: str, emulator, connect, events, topic=TOPIC, **options):
    """Publish *events* with the client named by *face*: "sync" or "asyncio"."""
    if face == "sync":
        return connect(emulator).publish(topic, events, **options)

    async def main():
        async with client_of(emulator) as client:
            return await client.publish(topic, events, **options)

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def published(emulator, connect, count: int) -> list[dict]:
    """Return the values of the first *count* events of the topic."""
    values = []
    with connect(emulator).subscribe(TOPIC, replay="earliest") as subscription:
        while len(values) < count:
            values += [event.value for event in subscription.next_batch(PATIENCE)]
    return values


@pytest.mark.parametrize("face", ["sync", "asyncio"])
@pytest.mark.parametrize("given", [None, USER])
def test_created_fields_are_filled_in(face, given, run_emulator, connect):
    """Missing created fields are those of the signed-in user, or of `created_by`, and the time of
    the call. Given values are kept, and the caller's objects are not modified.
    """
    emulator = run_emulator()
    events = [{"City__c": "Bern"}, {"CreatedDate": 5}, {"CreatedById": "005x"}]
    before = time.time()
    publish(face, emulator, connect, events, created_by=given)
    both, date, by = published(emulator, connect, 3)
    user = given or user_id(1)
    assert (both["CreatedById"], both["City__c"]) == (user, "Bern")
    for filled in (both, by):
        assert round(before * 1000) <= filled["CreatedDate"] <= round(time.time() * 1000)
    assert (date["CreatedDate"], date["CreatedById"]) == (5, user)
    assert by["CreatedById"] == "005x"
    assert events == [{"City__c": "Bern"}, {"CreatedDate": 5}, {"CreatedById": "005x"}]


def test_a_user_that_is_not_known_is_not_made_up(run_emulator, caplog):
    """If neither the sign-in nor the org names the user, the log says what to give, and events
    without created fields are refused before anything is sent.
    """
    emulator = run_emulator()
    session = Session(emulator.access_token, "http://127.0.0.1:1", emulator.tenant_id)
    with PubSubClient(session, endpoint=emulator.grpc_target, insecure="1") as client:
        with pytest.raises(EncodeError, match="CreatedById"):
            client.publish(TOPIC, [{"City__c": "Bern"}])
        assert "give created_by" in caplog.text
        assert client.publish(TOPIC, [{"City__c": "Bern"}], created_by=USER)[0].ok
    assert emulator.bus.tip() == 1


def test_command_fills_in_created_fields(run_emulator, connect, monkeypatch, tmp_path):
    """The command fills in the signed-in user, or the one of `--created-by`."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps({"City__c": "Bern"}))
    assert run_cli(["publish", TOPIC, "--file", str(file)]) == 0
    assert run_cli(["publish", TOPIC, "--file", str(file), "--created-by", USER]) == 0
    first, second = published(emulator, connect, 2)
    assert (first["CreatedById"], second["CreatedById"]) == (user_id(1), USER)


@pytest.mark.parametrize("face", ["sync", "asyncio"])
@pytest.mark.parametrize("topic", ["/data/AccountChangeEvent", "/data/ChangeEvents"])
def test_denied_topic_is_reported_before_bad_fields(face, topic, run_emulator, connect):
    """A topic that the user cannot publish to is reported before any invalid fields."""
    with pytest.raises(
        PermissionDeniedError, match=f"you cannot publish to {topic} .*only the org"
    ):
        publish(face, run_emulator(), connect, [{"Nope": 1}], topic)


def test_command_reports_a_topic_that_denies_events(run_emulator, monkeypatch, tmp_path, capsys):
    """If a topic cannot be published to, the command says so and exits with code 3.

    The error does not mention the event's fields.
    """
    point_at(run_emulator(), monkeypatch)
    file = tmp_path / "events.jsonl"
    file.write_text('{"ChangeEventHeader": {}}')
    assert run_cli(["publish", "/data/AccountChangeEvent", "--file", str(file)]) == 3
    said = capsys.readouterr().err
    assert "you cannot publish to /data/AccountChangeEvent" in said
    assert "ChangeEventHeader" not in said


def test_command_names_the_line_that_could_not_be_encoded(
    run_emulator, monkeypatch, tmp_path, capsys
):
    """The error contains the line's number in the file, counting blank lines.

    The lines before it are published, but none after it.
    """
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    file = tmp_path / "events.jsonl"
    for text, lines, published in (
        ('\n{"Nope": 1}\n', "line 2 of", 0),
        ('{"Nope": 1}\n\n' + GOOD, "line 1 of", 0),
        (GOOD * 250 + '{"Nope": 1}\n' + GOOD, "line 251 of", 250),
    ):
        file.write_text(text)
        assert run_cli(["publish", TOPIC, "--file", str(file)]) == 1
        assert f"error: {lines} {file} could not be published: " in capsys.readouterr().err
        assert emulator.bus.tip() == published
