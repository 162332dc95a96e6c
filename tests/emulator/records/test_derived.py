"""Tests of what changes without an event: fields that no event contains, archived records, and
objects that are not selected or filtered.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from sfpubsub.cli.emulator_records import records as command
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.settings import Settings
from tests.emulator.records.support import events
from tests.emulator.web import ask

BASE = "/services/data/v62.0"
ACCOUNTS = "/data/AccountChangeEvent"
TASK = {
    "name": "Task",
    "key_prefix": "00T",
    "archivable": True,
    "fields": [{"name": "Subject", "type": "string"}],
}


@pytest.fixture
def rest(org):
    """Return a function that sends a request to the REST API of the started `org`."""
    org.start()

    def call(method, path, body=None):
        headers = {
            "Authorization": f"Bearer {org.access_token}",
            "Content-Type": "application/json",
        }
        data = None if body is None else json.dumps(body).encode()
        path = path if path.startswith("/admin") else BASE + path
        return ask(org, method, path, data, headers)

    return call


def run(org, *arguments):
    """Run `sfpubsub emulator records` against an emulator; return the exit code and the output."""
    found = CliRunner().invoke(
        command, [*arguments, "--url", org.http_url], env={"SFPUBSUB_EMULATOR_TOKEN": ""}
    )
    return found.exit_code, found.output


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Account", ["LastActivityDate", "PhotoUrl"]),
        ("Contact", ["LastActivityDate", "PhotoUrl"]),
        ("Opportunity", ["LastActivityDate"]),
    ],
)
def test_fields_that_no_event_contains(org, rest, user, clock, name, fields):
    """LastActivityDate and PhotoUrl are described like other fields, cannot be set by clients, and
    are in neither an event nor its schema. The org sets them: SystemModstamp moves, nothing else.
    """
    described = {
        one["name"]: one for one in rest("GET", f"/sobjects/{name}/describe").json["fields"]
    }
    schema = org.bus.schema(org.bus.topic(f"/data/{name}ChangeEvent").schema_id)
    given = {
        "Account": {"Name": "one"},
        "Contact": {"LastName": "one"},
        "Opportunity": {"Name": "one", "StageName": "Prospecting", "CloseDate": "2026-11-23"},
    }[name]
    record = org.records.create(name, given, user)
    for field in fields:
        about = described[field]
        assert about["nillable"] is True
        assert {about[key] for key in ("calculated", "createable", "updateable")} == {False}
        assert f'"{field}"' not in schema.text
        assert rest("PATCH", f"/sobjects/{name}/{record}", {field: None}).status == 400
    before = org.records.get(name, record)
    sent = len(events(org, f"/data/{name}ChangeEvent"))
    clock.jump(5.0)
    body = {"object": name, "id": record, "values": {"LastActivityDate": "2026-11-20"}}
    assert rest("POST", "/admin/derive", body).json == {"id": record}
    after = org.records.get(name, record)
    assert after.pop("LastActivityDate") == "2026-11-20"
    assert after.pop("SystemModstamp") > before.pop("SystemModstamp")
    assert after == {key: value for key, value in before.items() if key in after}
    assert len(events(org, f"/data/{name}ChangeEvent")) == sent
    if "PhotoUrl" in fields:
        code, said = run(org, "derive", name, record, "PhotoUrl=/photo/1")
        assert (code, record in said) == (0, True)
        assert org.records.get(name, record)["PhotoUrl"] == "/photo/1"
    for bad in ({"Name": "x"}, {"Nothing": 1}, {"LastActivityDate": "soon"}):
        assert rest("POST", "/admin/derive", {**body, "values": bad}).status == 400
    assert rest("POST", "/admin/derive", {"object": name, "id": record}).status == 400


@pytest.mark.parametrize("org", [Settings(), Settings(archived_by_id=True)], indirect=True)
def test_archived_records(org, rest, user, clock):
    """`query` leaves archived records out; `queryAll` returns them, archived and not deleted. A
    request for one by id finds it, and one for several if a setting says so; archiving sends no
    event and moves SystemModstamp.
    """
    org.records.put_object(SObject(TASK))
    made = [org.records.create("Task", {"Subject": str(n)}, user) for n in range(3)]
    org.records.delete("Task", made[2], user)
    stamp = org.records.get("Task", made[0])["SystemModstamp"]
    sent = len(events(org, "/data/TaskChangeEvent"))
    clock.jump(1.0)
    assert rest("POST", "/admin/archive", {"object": "Task", "id": made[0]}).status == 200
    asked = quote("SELECT Id, IsArchived, IsDeleted FROM Task")

    def found(kind):
        rows = rest("GET", f"/{kind}?q={asked}").json["records"]
        return {row["Id"]: (row["IsArchived"], row["IsDeleted"]) for row in rows}

    assert found("query") == {made[1]: (False, False)}
    assert found("queryAll") == {
        made[0]: (True, False),
        made[1]: (False, False),
        made[2]: (False, True),
    }
    row = org.records.get("Task", made[0], user=user)
    assert row["SystemModstamp"] > stamp
    assert len(events(org, "/data/TaskChangeEvent")) == sent
    assert (
        '"IsArchived"' not in org.bus.schema(org.bus.topic("/data/TaskChangeEvent").schema_id).text
    )
    by_id = {"ids": made[:2], "fields": ["IsArchived"]}
    rows = rest("POST", "/composite/sobjects/Task", by_id).json
    assert [row is not None for row in rows] == [org.settings.archived_by_id, True]
    assert run(org, "archive", "Task", made[1])[0] == 0
    assert found("query") == {}
    with pytest.raises(RecordProblem, match="cannot be archived"):
        org.records.archive("Account", org.records.create("Account", {"Name": "x"}, user))
    assert rest("POST", "/admin/archive", {"object": "Task", "id": "00T"}).status == 400


def test_a_deselected_object_is_silent(org, rest, user):
    """After an object's only member was removed, over the Tooling API, changes send no events and
    nothing fails; after it was added again, only later changes do.
    """
    query = (
        "SELECT Id, EventChannel, SelectedEntity FROM PlatformEventChannelMember"
        " WHERE SelectedEntity = 'AccountChangeEvent'"
    )
    record = org.records.create("Account", {"Name": "one"}, user)
    (member,) = rest("GET", f"/tooling/query?q={quote(query)}").json["records"]
    path = f"/tooling/sobjects/PlatformEventChannelMember/{member['Id']}"
    assert rest("DELETE", path).status == 204
    assert rest("GET", f"/tooling/query?q={quote(query)}").json["records"] == []
    org.records.update("Account", record, {"Name": "two"}, user)
    body = {
        "FullName": "Accounts",
        "Metadata": {"eventChannel": "ChangeEvents", "selectedEntity": "AccountChangeEvent"},
    }
    assert rest("POST", "/tooling/sobjects/PlatformEventChannelMember", body).status == 201
    org.records.update("Account", record, {"Name": "three"}, user)
    for topic in (ACCOUNTS, "/data/ChangeEvents"):
        assert [one["Name"] for one in events(org, topic)] == ["one", "three"]


def test_a_filtered_member_can_be_queried(org, rest, user):
    """A member's FilterExpression can be queried, and its channel carries matching events only."""
    org.event_channels.create("Big__chn", "data", "Big")
    org.event_channels.add(
        "Big_Accounts", "Big__chn", "AccountChangeEvent", filter_expression="Name LIKE 'b%'"
    )
    query = quote(
        "SELECT FilterExpression FROM PlatformEventChannelMember"
        " WHERE DeveloperName = 'Big_Accounts'"
    )
    (row,) = rest("GET", f"/tooling/query?q={query}").json["records"]
    assert row["FilterExpression"] == "Name LIKE 'b%'"
    for name in ("big", "small"):
        org.records.create("Account", {"Name": name}, user)
    assert [one["Name"] for one in events(org, "/data/Big__chn")] == ["big"]
