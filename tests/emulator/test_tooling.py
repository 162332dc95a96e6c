"""The Tooling API: managed subscriptions as records, and the effect of their changes on
ManagedSubscribe.
"""

from __future__ import annotations

import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from .support import MANAGED, ORDERS, commit
from .web import RECORDS, ask, create, found, query, rest

PREFIX = "managed.subscription."
ALL = "SELECT Id, DeveloperName, Metadata FROM ManagedEventSubscription"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One emulator with a second managed subscription, for requests that change nothing."""
    with EmulatorServer(tmp_path_factory.mktemp("emulator")) as emulator:
        assert create(emulator, "Second").status == 201
        yield emulator


def one(emulator, name):
    """Return the record with this developer name."""
    (record,) = found(emulator, f"{ALL} WHERE DeveloperName = '{name}' LIMIT 1")
    return record


def patch(emulator, record, **changes):
    """Send a PATCH that changes some of the record's metadata, and return the response."""
    body = {"FullName": record["DeveloperName"], "Metadata": {**record["Metadata"], **changes}}
    return rest(emulator, "PATCH", f"{RECORDS}/{record['Id']}", body)


def test_created_subscription_delivers_events(emulator, client):
    """A subscription created with the Tooling API can be opened by its name and by its ID.

    Its record contains the given values and the defaults.
    """
    reply = create(emulator, "Second", label="The second", defaultReplay="EARLIEST")
    assert reply.status == 201
    made = reply.json
    assert made["success"] is True
    assert made["errors"] == []
    assert (made["id"][:3], len(made["id"])) == ("18x", 18)
    emulator.publish(ORDERS, [{}])
    for name in ({"developer_name": "Second"}, {"subscription_id": made["id"][:15]}):
        stream = client.managed(**name)
        stream.events(1)
        stream.half_close()
        stream.end()
    record = rest(emulator, "GET", f"{RECORDS}/{made['id']}").json
    assert record["attributes"]["type"] == "ManagedEventSubscription"
    assert record["attributes"]["url"] == f"{RECORDS}/{made['id']}"
    assert record["MasterLabel"] == "The second"
    assert record["Metadata"] == {
        "label": "The second",
        "topicName": ORDERS,
        "defaultReplay": "EARLIEST",
        "errorRecoveryReplay": "LATEST",
        "state": "RUN",
        "version": 67.0,
    }


def test_stop_run_and_delete(emulator, client):
    """A change to STOP ends the stream and deletes the committed position, a change back to RUN
    starts at the default position, and a DELETE ends the stream and removes the record.
    """
    published = emulator.publish(ORDERS, [{}, {}])
    stream = client.managed()
    stream.events(2)
    stream.send(commit(published[1].replay_id))
    stream.answer()
    assert patch(emulator, one(emulator, MANAGED), state="STOP").status == 204
    assert stream.refusal() == PREFIX + "config.stopped"
    assert client.managed().refusal() == PREFIX + "config.stopped"
    assert one(emulator, MANAGED)["Metadata"]["state"] == "STOP"
    assert emulator.managed.get(MANAGED).committed is None
    assert patch(emulator, one(emulator, MANAGED), state="RUN").status == 204
    stream = client.managed()
    stream.events(2)
    path = f"{RECORDS}/{one(emulator, MANAGED)['Id']}"
    reply = rest(emulator, "DELETE", path)
    assert (reply.status, reply.text) == (204, "")
    assert stream.refusal() == PREFIX + "config.deleted"
    assert rest(emulator, "GET", path).code == (404, "NOT_FOUND")
    assert rest(emulator, "DELETE", path).code == (404, "NOT_FOUND")
    assert found(emulator, f"{ALL} LIMIT 1") == []


def test_patch_replaces_the_metadata(emulator):
    """A PATCH without replay presets resets them to LATEST, but one without a state keeps the
    state.
    """
    record = one(emulator, MANAGED)
    patch(emulator, record, state="STOP")
    body = {"Metadata": {"label": "new", "topicName": ORDERS}}
    assert rest(emulator, "PATCH", f"{RECORDS}/{record['Id']}", body).status == 204
    now = one(emulator, MANAGED)["Metadata"]
    assert (now["label"], now["state"]) == ("new", "STOP")
    assert (now["defaultReplay"], now["errorRecoveryReplay"]) == ("LATEST", "LATEST")


def test_record_has_the_time_of_its_last_change(start):
    """A record's LastModifiedDate is that of its creation, until its state or a preset changes."""
    emulator, _ = start(clock=ManualClock())
    columns = "SELECT Id, CreatedDate, LastModifiedDate FROM ManagedEventSubscription"

    def dates() -> tuple[str, str]:
        (record,) = found(emulator, f"{columns} WHERE DeveloperName = '{MANAGED}' LIMIT 1")
        return record["CreatedDate"], record["LastModifiedDate"]

    made, changed = dates()
    assert made == changed
    emulator.clock.jump(60)
    assert patch(emulator, one(emulator, MANAGED), state="STOP").status == 204
    assert dates() > (made, changed)
    stopped = dates()
    emulator.clock.jump(60)
    assert patch(emulator, one(emulator, MANAGED), state="RUN").status == 204
    assert dates() > stopped


def test_propagation(start):
    """Creating a subscription, setting RUN and changing presets affect streams only after the
    propagation time, but STOP does so at once; the record shows each change immediately.
    """
    emulator, client = start(clock=ManualClock(), settings=Settings(propagation_s=120))
    emulator.clock.jump(120)  # the seed's subscription has propagated
    assert create(emulator, "Second", defaultReplay="EARLIEST").status == 201
    assert one(emulator, "Second")["Metadata"]["state"] == "RUN"
    missing = PREFIX + "developer.name.not.found"
    assert client.managed(developer_name="Second").refusal() == missing
    emulator.clock.jump(119)
    assert client.managed(developer_name="Second").refusal() == missing
    emulator.clock.jump(1)
    emulator.publish(ORDERS, [{}])
    stream = client.managed(developer_name="Second")
    stream.events(1)
    patch(emulator, one(emulator, "Second"), defaultReplay="LATEST")
    stream.half_close()
    stream.end()
    stream = client.managed(developer_name="Second")
    stream.events(1)  # EARLIEST is still in force
    patch(emulator, one(emulator, "Second"), state="STOP")
    emulator.clock.jump(1)
    assert stream.refusal() == PREFIX + "config.stopped"
    emulator.clock.jump(120)
    patch(emulator, one(emulator, "Second"), state="RUN")
    assert client.managed(developer_name="Second").refusal() == PREFIX + "config.stopped"
    emulator.clock.jump(120)
    stream = client.managed(developer_name="Second")
    assert stream.silent(0.05)  # LATEST is in force now
    emulator.publish(ORDERS, [{}])
    stream.events(1)


def test_name_can_be_reused_after_deletion(start):
    """The name of a deleted subscription can be used again, and is not found until the new
    subscription has propagated.
    """
    emulator, client = start(clock=ManualClock(), settings=Settings(propagation_s=60))
    old = one(emulator, MANAGED)["Id"]
    rest(emulator, "DELETE", f"{RECORDS}/{old}")
    made = create(emulator, MANAGED)
    assert made.status == 201
    assert made.json["id"] != old
    assert client.managed().refusal() == PREFIX + "developer.name.not.found"
    emulator.clock.jump(60)
    assert client.managed().silent(0.05)


def test_managed_subscription_limit(start):
    """At the org's limit, no managed subscription can be created until one is deleted."""
    emulator, _ = start(settings=Settings(managed_limit=2))
    first = create(emulator, "A1").json["id"]
    assert create(emulator, "A2").code == (400, "LIMIT_EXCEEDED")
    rest(emulator, "DELETE", f"{RECORDS}/{first}")
    assert create(emulator, "A2").status == 201
    assert Settings().managed_limit == 200


@pytest.mark.parametrize(
    ("name", "metadata", "code", "field"),
    [
        ("My_Managed_Subscription", {}, "DUPLICATE_DEVELOPER_NAME", "DeveloperName"),
        ("my_managed_SUBSCRIPTION", {}, "DUPLICATE_DEVELOPER_NAME", "DeveloperName"),
        ("1st", {}, "INVALID_INPUT", "FullName"),
        ("Two__in_a_row", {}, "INVALID_INPUT", "FullName"),
        ("At_the_end_", {}, "INVALID_INPUT", "FullName"),
        ("with space", {}, "INVALID_INPUT", "FullName"),
        ("Ä", {}, "INVALID_INPUT", "FullName"),
        ("A" * 81, {}, "INVALID_INPUT", "FullName"),
        ("", {}, "REQUIRED_FIELD_MISSING", "FullName"),
        ("New", {"label": ""}, "REQUIRED_FIELD_MISSING", "label"),
        ("New", {"label": None}, "REQUIRED_FIELD_MISSING", "label"),
        ("New", {"label": "x" * 81}, "INVALID_INPUT", "label"),
        ("New", {"topicName": None}, "REQUIRED_FIELD_MISSING", "topicName"),
        ("New", {"topicName": "/event/Nothing__e"}, "INVALID_INPUT", "topicName"),
        ("New", {"topicName": "Order_Event__e"}, "INVALID_INPUT", "topicName"),
        ("New", {"state": "PAUSE"}, "INVALID_INPUT", "state"),
        ("New", {"state": "run"}, "INVALID_INPUT", "state"),
        ("New", {"defaultReplay": "CUSTOM"}, "INVALID_INPUT", "defaultReplay"),
        ("New", {"errorRecoveryReplay": "x"}, "INVALID_INPUT", "errorRecoveryReplay"),
        ("New", {"state": 1}, "JSON_PARSER_ERROR", "state"),
        ("New", {"version": True}, "JSON_PARSER_ERROR", "version"),
        ("New", {"nonsense": 1}, "INVALID_FIELD", None),
        ("New", {"label": "\ud800"}, "JSON_PARSER_ERROR", None),
    ],
)
def test_invalid_creation(shared, name, metadata, code, field):
    """An invalid name, topic, preset or state returns an error with its code and field, and nothing
    is created.
    """
    reply = create(shared, name, **metadata)
    assert reply.code == (400, code)
    assert reply.json[0]["fields"] == ([field] if field else [])
    assert len(shared.managed.all()) == 2


def test_channels_and_change_events(emulator):
    """A managed subscription can be created for a channel and for a change event topic."""
    for number, topic in enumerate(("/data/ChangeEvents", "/data/AccountChangeEvent")):
        assert create(emulator, f"Topic{number}", topicName=topic).status == 201


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topicName": "/data/ChangeEvents"}, "INVALID_INPUT"),
        ({"topicName": None}, "REQUIRED_FIELD_MISSING"),
        ({"state": "PAUSE"}, "INVALID_INPUT"),
        ({"label": " "}, "REQUIRED_FIELD_MISSING"),
    ],
)
def test_invalid_patch_changes_nothing(shared, changes, code):
    """An invalid PATCH returns an error; a subscription's topic cannot be changed."""
    before = one(shared, MANAGED)
    assert patch(shared, before, **changes).code == (400, code)
    assert one(shared, MANAGED) == before


def test_name_cannot_be_changed(emulator):
    """The developer name cannot be changed, and a PATCH requires Metadata."""
    record = one(emulator, MANAGED)
    path = f"{RECORDS}/{record['Id']}"
    body = {"FullName": "Other", "Metadata": record["Metadata"]}
    assert rest(emulator, "PATCH", path, body).code == (400, "INVALID_INPUT")
    assert rest(emulator, "PATCH", path, {}).code == (400, "REQUIRED_FIELD_MISSING")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/services/data/v62.0"),
        ("GET", "/services/data/v62.0/tooling/query?q=x"),
        ("GET", "/services/data/v62.0/query?q=x"),
        ("POST", RECORDS),
        ("GET", RECORDS + "/18x"),
        ("PATCH", RECORDS + "/18x"),
        ("DELETE", RECORDS + "/18x"),
    ],
)
def test_valid_token_is_required(emulator, method, path):
    """Without a valid token, any request returns 401 INVALID_SESSION_ID.

    The `expire_token` fault makes the next request fail in the same way.
    """
    assert rest(emulator, method, path, access_token="x").code == (401, "INVALID_SESSION_ID")
    assert ask(emulator, method, path).code == (401, "INVALID_SESSION_ID")
    emulator.faults.add(Fault("expire_token"))
    assert rest(emulator, method, path).code == (401, "INVALID_SESSION_ID")
    emulator.faults.assert_consumed()


def test_versions(emulator):
    """The list of API versions needs no token; managed subscriptions exist from version 60.0 on;
    unknown versions and paths return 404.
    """
    reply = ask(emulator, "GET", "/services/data/")
    versions = {row["version"]: row for row in reply.json}
    assert versions["60.0"]["label"] == "Spring '24"
    assert versions["59.0"]["label"] == "Winter '24"
    assert versions["67.0"] == {
        "label": "Summer '26",
        "url": "/services/data/v67.0",
        "version": "67.0",
    }
    assert query(emulator, f"{ALL} LIMIT 1", version="60.0").status == 200
    assert query(emulator, f"{ALL} LIMIT 1", version="59.0").code == (400, "INVALID_TYPE")
    old = RECORDS.replace("62.0", "59.0")
    assert rest(emulator, "POST", old, {}).code == (404, "NOT_FOUND")
    for path in ("/services/data/v999.0", "/services/data/v62", "/services/data/v62.0/nothing"):
        assert rest(emulator, "GET", path).code == (404, "NOT_FOUND")
    assert rest(emulator, "PUT", RECORDS).code == (405, "METHOD_NOT_ALLOWED")


def names(emulator, rest_of_query):
    """Return the developer names that a query with these clauses finds, in order."""
    text = f"SELECT DeveloperName FROM ManagedEventSubscription {rest_of_query}"
    return [record["DeveloperName"] for record in found(emulator, text)]


def test_queries(emulator):
    """Conditions, LIKE, ORDER BY and LIMIT work as in SOQL; keywords and text comparisons ignore
    case, but IDs do not.
    """
    for name, label in (("Beta", "50% off"), ("Alpha", "it's"), ("Gamma", "Zed")):
        create(emulator, name, label=label)
    ids = {item.developer_name: item.subscription_id for item in emulator.managed.all()}
    assert names(emulator, "") == ["Alpha", "Beta", "Gamma", MANAGED]
    assert names(emulator, "ORDER BY DeveloperName DESC LIMIT 2") == [MANAGED, "Gamma"]
    assert names(emulator, "order by MASTERLABEL asc, Id limit 1") == ["Beta"]
    assert names(emulator, "WHERE DeveloperName='aLPHA'") == ["Alpha"]
    assert names(emulator, "WHERE MasterLabel = 'it\\'s'") == ["Alpha"]
    assert names(emulator, "WHERE MasterLabel LIKE '50\\%%'") == ["Beta"]
    assert names(emulator, "WHERE DeveloperName LIKE '_l%A' AND MasterLabel = 'it\\'s'") == [
        "Alpha"
    ]
    assert names(emulator, "WHERE DeveloperName LIKE '%ta'") == ["Beta"]
    assert names(emulator, "WHERE DeveloperName LIKE '%t'") == []
    assert names(emulator, f"WHERE Id = '{ids['Beta']}'") == ["Beta"]
    assert names(emulator, f"WHERE Id = '{ids['Beta'][:15]}'") == ["Beta"]
    assert names(emulator, f"WHERE Id = '{ids['Beta'].lower()}'") == []
    assert names(emulator, "LIMIT 0") == []
    slash = query(emulator, f"{ALL} LIMIT 1").headers
    assert slash.get_content_type() == "application/json"
    spelled = "SELECT%20Id+FROM+ManagedEventSubscription"
    reply = rest(emulator, "GET", f"/services/data/v62.0/tooling/query/?q={spelled}")
    assert reply.json["size"] == 4


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "MALFORMED_QUERY"),
        ("SELECT", "MALFORMED_QUERY"),
        ("SELECT Id FROM", "MALFORMED_QUERY"),
        ("SELECT Id, FROM ManagedEventSubscription", "MALFORMED_QUERY"),
        ("SELECT Id Name FROM ManagedEventSubscription", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription WHERE Id IN ()", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription WHERE Id = x", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription WHERE Id = 'x", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription LIMIT x", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription LIMIT -1", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription LIMIT 1 2", "MALFORMED_QUERY"),
        ("SELECT Id FROM ManagedEventSubscription; DELETE", "MALFORMED_QUERY"),
        ("SELECT Id, Metadata FROM ManagedEventSubscription", "MALFORMED_QUERY"),
        ("SELECT FullName FROM ManagedEventSubscription", "MALFORMED_QUERY"),
        ("SELECT Nothing FROM ManagedEventSubscription", "INVALID_FIELD"),
        ("SELECT Id FROM ManagedEventSubscription WHERE Metadata = 'x'", "INVALID_FIELD"),
        ("SELECT Id FROM ManagedEventSubscription ORDER BY Nothing", "INVALID_FIELD"),
        ("SELECT Id FROM Account", "INVALID_TYPE"),
    ],
)
def test_unsupported_queries(shared, text, code):
    """A query that the emulator does not support is refused with the matching error code, and
    Metadata can be selected only with LIMIT 1.
    """
    assert query(shared, text).code == (400, code)


def test_not_queryable_in_plain_soql(emulator):
    """A managed subscription cannot be queried outside the Tooling API."""
    path = "/services/data/v62.0/query?q=SELECT+Id+FROM+ManagedEventSubscription"
    assert rest(emulator, "GET", path).code == (400, "INVALID_TYPE")


def test_like_with_many_wildcards(emulator):
    """A LIKE pattern with 2,000 wildcards is evaluated in bounded time, whereas naive backtracking
    would not finish.
    """
    create(emulator, "Second", label="a" * 80)
    text = "%a" * 2000 + "b"
    where = f"WHERE MasterLabel LIKE '{text}'"
    assert names(emulator, where) == []
