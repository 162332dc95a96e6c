"""Tests of definitions that change in mid-run: objects and fields that go, are hidden, come back,
or get another type.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import events
from tests.emulator.web import ask

BASE = "/services/data/v62.0"
CLERK = "clerk@example.com"


@pytest.fixture
def served(org):
    """The fixture `org`, started, with a second user, who sees every record."""
    org.accounts.put_user(CLERK)
    return org.start()


@pytest.fixture
def rest(served):
    """Return a function that sends a request as a user, by default as the emulator's own."""

    def call(method, path, body=None, username=""):
        bearer = served._sessions.issue(username) if username else served.access_token
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        path = path if path.startswith("/admin") else BASE + path
        return ask(served, method, path, data, headers)

    return call


def code(answer):
    """Return the status of an answer, with the error code if it is an error."""
    return (answer.status, "") if answer.status == 200 else answer.code


def looks(rest, record, username=""):
    """Return how an object's describe, a query, a read by id, reads of several and a bulk query of
    it are answered.
    """
    query = f"/query?q={quote('SELECT Id, Name FROM Account')}"
    several = {"ids": [record], "fields": ["Name"]}
    job = {"operation": "query", "query": "SELECT Id FROM Account"}
    every = rest("GET", "/sobjects", None, username).json["sobjects"]
    assert ("Account" in {one["name"] for one in every}) is (
        rest("GET", "/sobjects/Account", None, username).status == 200
    )
    return [
        code(rest("GET", "/sobjects/Account/describe", None, username)),
        code(rest("GET", query, None, username)),
        code(rest("GET", f"/sobjects/Account/{record}", None, username)),
        code(rest("POST", "/composite/sobjects/Account", several, username)),
        code(rest("POST", "/jobs/query", job, username)),
    ]


def there(rest, record, username=""):
    return [status for status, _ in looks(rest, record, username)] == [200] * 5


GONE = [
    (404, "NOT_FOUND"),
    (400, "INVALID_TYPE"),
    (404, "NOT_FOUND"),
    (400, "INVALID_TYPE"),
    (400, "INVALID_TYPE"),
]


def test_an_object_goes_and_comes_back(served, rest, user, tmp_path):
    """An object that was removed is neither described, queried nor read, sends no events, and stays
    removed after a restart; when it comes back, its records and its events do as well.
    """
    record = served.records.create("Account", {"Name": "one"}, user)
    assert there(rest, record)
    answer = rest("POST", "/admin/objects", {"object": "Account", "removed": True})
    assert answer.json == {"object": "Account", "removed": True}
    assert looks(rest, record) == GONE
    assert rest("POST", "/sobjects/Account", {"Name": "two"}).status == 404
    assert rest("POST", "/admin/objects", {"object": "Account", "removed": True}).status == 400
    served.stop()
    with EmulatorServer(tmp_path / "org") as again:
        assert "Account" not in again.records.objects()
        again.records.restore_object("Account")
        assert again.records.get("Account", record)["Name"] == "one"
        again.records.update("Account", record, {"Name": "two"}, again.accounts.holder(""))
        assert [one["Name"] for one in events(again, "/data/AccountChangeEvent")] == ["one", "two"]


def test_an_object_is_hidden_from_one_user(served, rest, user):
    """An object that is hidden from a user is missing for that user only, until it is shown."""
    record = served.records.create("Account", {"Name": "one"}, user)
    assert rest("POST", "/admin/objects", {"object": "Account", "hide_from": CLERK}).status == 200
    assert looks(rest, record, CLERK) == GONE
    assert there(rest, record)
    assert rest("POST", "/admin/objects", {"object": "Account", "show_to": CLERK}).status == 200
    assert there(rest, record, CLERK)


def test_a_field_is_hidden_from_one_user(served, rest, user):
    """A field that is hidden from a user is neither described nor readable for that user, with the
    components of a compound field; when it is shown again, it has its values.
    """
    given = {"Name": "one", "Phone": "1", "BillingCity": "Rome"}
    record = served.records.create("Account", given, user)

    def found(field, username):
        described = rest("GET", "/sobjects/Account/describe", None, username).json["fields"]
        query = f"/query?q={quote(f'SELECT {field} FROM Account')}"
        asked = rest("GET", query, None, username)
        whole = rest("GET", f"/sobjects/Account/{record}", None, username).json
        is_there = field in {one["name"] for one in described}
        assert (code(asked) == (400, "INVALID_FIELD")) is not is_there
        assert (field in whole) is is_there
        return is_there

    for field in ("Phone", "BillingAddress"):
        hidden = {"object": "Account", "hide_from": CLERK, "field": field}
        assert rest("POST", "/admin/objects", hidden).status == 200
    for field in ("Phone", "BillingAddress", "BillingCity"):
        assert not found(field, CLERK)
        assert found(field, "user@example.com")
    served.records.visibility.show(CLERK, "Account", "Phone")
    assert found("Phone", CLERK)
    row = rest("GET", f"/sobjects/Account/{record}", None, CLERK).json
    assert row["Phone"] == "1"


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("string", "double", ["7.5", "many", None], [7.5, None, None]),
        ("double", "string", [7.0, 7.5, None], ["7.0", "7.5", None]),
        ("double", "currency", [7.25], [7.25]),
        ("date", "datetime", ["2026-11-23"], ["2026-11-23T00:00:00.000+0000"]),
    ],
)
def test_a_field_gets_another_type(served, rest, user, old, new, before, after):
    """A change of a field's type converts its values, or deletes those that do not fit; describe
    and later events have the new type. No record gets an event or another SystemModstamp.
    """
    of = served.records.describe("Order__c")
    served.records.put_object(of.with_field({"name": "Size__c", "type": old}))
    made = [
        served.records.create("Order__c", {"Name": "x", "Size__c": value}, user) for value in before
    ]
    stamps = [served.records.get("Order__c", one)["SystemModstamp"] for one in made]
    sent = len(events(served, "/data/Order__ChangeEvent"))
    changed = {"object": "Order__c", "change_field": {"name": "Size__c", "type": new, "scale": 3}}
    served.clock.jump(1.0)
    assert rest("POST", "/admin/objects", changed).status == 200
    rows = [served.records.get("Order__c", one) for one in made]
    assert [row["Size__c"] for row in rows] == after
    assert [row["SystemModstamp"] for row in rows] == stamps
    assert len(events(served, "/data/Order__ChangeEvent")) == sent
    described = rest("GET", "/sobjects/Order__c/describe").json["fields"]
    (field,) = [one for one in described if one["name"] == "Size__c"]
    assert field["type"] == new
    served.records.update("Order__c", made[0], {"Size__c": after[0], "Name": "y"}, user)
    schema = served.bus.schema(served.bus.topic("/data/Order__ChangeEvent").schema_id)
    assert '"Size__c"' in schema.text


def test_the_scale_of_a_field_changes(served, rest):
    """Another scale is described; the stored values keep their decimal places."""
    for scale in (2, 4):
        field = {"name": "Rate__c", "type": "double", "scale": scale}
        assert rest("POST", "/admin/objects", {"object": "Order__c", "change_field": field})
        described = rest("GET", "/sobjects/Order__c/describe").json["fields"]
        assert [one["scale"] for one in described if one["name"] == "Rate__c"] == [scale]


@pytest.mark.parametrize(
    "body",
    [
        {"object": "Nothing__c", "removed": True},
        {"object": "Account", "removed": False},
        {"object": "Account", "removed": 1},
        {"object": "Account", "hide_from": CLERK, "hide": 1},
        {"object": "Account"},
        {"removed": True},
    ],
)
def test_invalid_changes_are_rejected(rest, body):
    """A request that names no object, or no known change, is refused."""
    assert rest("POST", "/admin/objects", body).status == 400
