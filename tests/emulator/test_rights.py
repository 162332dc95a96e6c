"""Tests of View All in mid-run: its identity, what reads hide, and which events are delivered."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import quote

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from tests.emulator.bayeux import ALL, Bayeux
from tests.emulator.support import ACCOUNTS, CHANGES, Client, until
from tests.emulator.web import ask
from tests.emulator.web import token as sign_in

CLERK = "clerk@example.com"
BASE = "/services/data/v62.0"
GRANTED = (
    "SELECT Id, PermissionsViewAllRecords, SystemModstamp, Parent.SystemModstamp"
    " FROM ObjectPermissions WHERE SobjectType = 'Account'"
)
ASSIGNED = (
    "SELECT Id, PermissionSetId, SystemModstamp, PermissionSet.IsOwnedByProfile,"
    " PermissionSet.PermissionsViewAllData, PermissionSet.SystemModstamp"
    " FROM PermissionSetAssignment"
)


def test_the_login_history_has_the_users_own_sign_ins(start):
    """`LoginHistory` has the time and the address of each sign-in of the token's user, and none of
    other users.
    """
    emulator, _ = start()
    emulator.accounts.put_user(CLERK, "word")
    own = sign_in(emulator).json["access_token"]
    other = sign_in(emulator, "password", username=CLERK, password="word").json["access_token"]
    query = "SELECT UserId, SourceIp, Status FROM LoginHistory ORDER BY LoginTime DESC"
    users = []
    for given in (own, other):
        headers = {"Authorization": f"Bearer {given}"}
        (row,) = ask(emulator, "GET", f"{BASE}/query?q={quote(query)}", headers=headers).json[
            "records"
        ]
        assert (row["SourceIp"], row["Status"]) == ("127.0.0.1", "Success")
        users.append(row["UserId"])
    assert users[0] != users[1]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def org(start, clock):
    """An emulator with a user without View All, whose streams follow the rights after 60 s."""
    emulator, _ = start(clock=clock, settings=Settings(rights_propagation_s=60.0))
    emulator.accounts.put_user(CLERK, "word", view_all=False)
    return emulator


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def token(org, username=CLERK):
    """Return an access token of a user."""
    return org._sessions.issue(username)


def client(org, stack, username=CLERK):
    """Return a gRPC client of a user, which the test's `stack` closes."""
    (_, *others) = org.metadata
    made = Client(org.grpc_target, (("accesstoken", token(org, username)), *others))
    stack.callback(made.close)
    return made


def rest(org, bearer, method, path, body=None):
    """Send a request to the REST API, and return the answer."""
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return ask(org, method, path if path.startswith("/admin") else BASE + path, data, headers)


def rows(org, soql, bearer=None, kind="query"):
    """Return the rows of a query, by default as the emulator's own user."""
    found = rest(org, bearer or org.access_token, "GET", f"/{kind}?q={quote(soql)}")
    assert found.status == 200, found.json
    return [{k: v for k, v in row.items() if k != "attributes"} for row in found.json["records"]]


def test_a_new_grant_has_another_identity(org):
    """Whatever gives View All, taking it away and giving it again changes an id or a
    SystemModstamp, even if no time passes between the two.
    """
    rights = org.rights

    def seen():
        mine = [row for row in rows(org, ASSIGNED) if row["PermissionSetId"] in held]
        return mine, rows(org, GRANTED)

    rights.put_permission_set("Reader", view_all=["Account"])
    rights.assign(CLERK, "Reader")
    held = {one.set_id for one in rights.permission_sets() if one.name.endswith(("Reader", CLERK))}
    assert len(held) == 2
    looks = [seen()]
    assert looks[0][1][0]["PermissionsViewAllRecords"] is True

    rights.put_permission_set("Reader", view_all=[])
    assert rows(org, GRANTED)[0]["PermissionsViewAllRecords"] is False
    rights.put_permission_set("Reader", view_all=["Account"])
    looks.append(seen())
    assert looks[0][1][0]["Id"] == looks[1][1][0]["Id"]

    rights.unassign(CLERK, "Reader")
    rights.assign(CLERK, "Reader")
    looks.append(seen())

    for view_all in (True, False, True):
        org.accounts.put_user(CLERK, view_all=view_all)
        looks.append(seen())
        org.accounts.put_user(CLERK, view_all=view_all)  # changes nothing
        assert seen() == looks[-1]
    assert all(a != b for index, a in enumerate(looks) for b in looks[:index])


def test_the_profile_gives_view_all_data(org):
    """View All Data is in the permission set that the user's profile owns, which is assigned."""
    (mine,) = rows(org, f"SELECT Id, ProfileId FROM User WHERE Username = '{CLERK}'")
    asked = f"{ASSIGNED} WHERE AssigneeId = '{mine['Id']}'"
    about = "SELECT ProfileId, PermissionsViewAllData FROM PermissionSet WHERE Id = "
    for view_all in (False, True):
        org.accounts.put_user(CLERK, view_all=view_all)
        (held,) = rows(org, asked)
        assert held["PermissionSet"]["IsOwnedByProfile"] is True
        assert held["PermissionSet"]["PermissionsViewAllData"] is view_all
        assert rows(org, f"{about} '{held['PermissionSetId']}'") == [
            {"ProfileId": mine["ProfileId"], "PermissionsViewAllData": view_all}
        ]
        own = "SELECT PermissionsViewAllData, LastCacheUpdate FROM UserPermissionAccess"
        (row,) = rows(org, own, token(org))
        assert row["PermissionsViewAllData"] is view_all
        assert row["LastCacheUpdate"].endswith("+0000")


def test_every_read_hides_the_records_of_other_owners(org):
    """Without View All for an object, records of other owners are neither queried, counted nor read
    by id, alone or several at once, deleted or not, over REST or in bulk.
    """
    admin = org.accounts.holder("")
    theirs = org.records.create("Account", {"Name": "theirs"}, admin)
    deleted = org.records.create("Account", {"Name": "deleted"}, admin)
    org.records.delete("Account", deleted, admin)
    own = org.records.create("Account", {"Name": "own"}, org.accounts.user(CLERK))
    bearer = token(org)

    def bulk():
        asked = {"operation": "queryAll", "query": "SELECT Id FROM Account"}
        path = f"/jobs/query/{rest(org, bearer, 'POST', '/jobs/query', asked).json['id']}"
        until(lambda: rest(org, bearer, "GET", path).json["state"] == "JobComplete")
        return rest(org, bearer, "GET", path).json["numberRecordsProcessed"]

    def seen():
        asked = {"ids": [theirs, own], "fields": ["Name"]}
        several = rest(org, bearer, "POST", "/composite/sobjects/Account", asked).json
        count = f"/query?q={quote('SELECT COUNT() FROM Account')}"
        return (
            {row["Id"] for row in rows(org, "SELECT Id FROM Account", bearer)},
            {row["Id"] for row in rows(org, "SELECT Id FROM Account", bearer, "queryAll")},
            rest(org, bearer, "GET", count).json["totalSize"],
            [row is not None for row in several],
            rest(org, bearer, "GET", f"/sobjects/Account/{theirs}").status,
            bulk(),
        )

    assert seen() == ({own}, {own}, 1, [False, True], 404, 1)
    org.rights.put_permission_set("Reader", view_all=["Account"])
    org.rights.assign(CLERK, "Reader")
    assert seen() == ({own, theirs}, {own, theirs, deleted}, 2, [True, True], 200, 3)
    org.rights.unassign(CLERK, "Reader")
    assert seen() == ({own}, {own}, 1, [False, True], 404, 1)


@pytest.mark.parametrize("managed", [False, True])
def test_delivery_of_change_events_ends_silently(org, clock, stack, managed):
    """After View All was taken away, and the delay has passed, the object's change events are not
    delivered any more. The stream stays open and its positions move on; after a new grant, the
    events that were withheld are not delivered either, not even to a new stream.
    """
    org.rights.put_permission_set("Reader", view_all=["Account"])
    org.rights.assign(CLERK, "Reader")
    clock.jump(100.0)
    admin = org.accounts.holder("")
    user = client(org, stack)
    if managed:
        org.managed.create("Changes", CHANGES, default_replay="EARLIEST")
        stream = user.managed(developer_name="Changes")
    else:
        stream = user.subscribe(topic_name=CHANGES)

    def make(name):
        org.records.create("Account", {"Name": name}, admin)

    make("before")
    first = stream.next()
    assert len(first.events) == 1
    org.rights.unassign(CLERK, "Reader")
    clock.jump(59.0)
    make("in the delay")
    assert len(stream.next().events) == 1
    clock.jump(org.settings.keepalive_s)
    assert not stream.next().events  # so the stream has seen the new time
    make("withheld")
    assert stream.silent()
    clock.jump(org.settings.keepalive_s)
    keepalive = stream.next()
    assert not keepalive.events
    tip = org.bus.ids.mint(org.bus.tip())
    assert keepalive.latest_replay_id == tip
    org.rights.assign(CLERK, "Reader")
    clock.jump(61.0)
    make("after")
    (event,) = stream.next().events
    assert b"after" in event.event.payload
    again = client(org, stack).subscribe(topic_name=CHANGES)
    payloads = [item.event.payload for item in again.next().events]
    assert [b"withheld" in one for one in payloads] == [False] * 3
    owner = client(org, stack, "user@example.com").subscribe(topic_name=ACCOUNTS)
    assert len(owner.next().events) == 4


def test_withheld_events_can_be_kept_for_a_new_grant(start, stack, clock):
    """With `withheld_events = "kept"`, a stream that starts earlier gets them after a new grant."""
    settings = Settings(withheld_events="kept")
    org, _ = start(clock=clock, settings=settings)
    org.accounts.put_user(CLERK, view_all=False)
    org.records.create("Account", {"Name": "one"}, org.accounts.holder(""))
    stream = client(org, stack).subscribe(topic_name=ACCOUNTS)
    assert stream.silent()
    org.accounts.put_user(CLERK, view_all=True)
    assert len(client(org, stack).subscribe(topic_name=ACCOUNTS).next().events) == 1


def test_other_events_are_delivered_without_view_all(org, stack):
    """Platform events need no View All; a channel lacks only events of objects without it."""
    org.rights.put_permission_set("Reader", view_all=["Order__c"])
    org.rights.assign(CLERK, "Reader")
    org.clock.jump(100.0)
    org.event_channels.add("Orders", "ChangeEvents", "Order__ChangeEvent")
    org.publish("/event/Order_Event__e", [{"Order_Number__c": "1"}])
    admin = org.accounts.holder("")
    org.records.create("Account", {"Name": "one"}, admin)
    org.records.create("Order__c", {"Name": "two"}, admin)
    user = client(org, stack)
    assert len(user.subscribe().next().events) == 1
    (event,) = user.subscribe(topic_name=CHANGES).next().events
    assert b"Order__c" in event.event.payload


def test_the_streaming_api_withholds_the_same_events(org, stack):
    """A CometD session of a user without View All gets no change events of the object."""
    org.records.create("Account", {"Name": "one"}, org.accounts.holder(""))
    org.rights.put_permission_set("Reader", view_all=["Account"])
    org.rights.assign(CLERK, "Reader")
    org.clock.jump(61.0)
    org.records.create("Account", {"Name": "two"}, org.accounts.holder(""))
    user = Bayeux(org, token=token(org)).ready()
    user.subscribe(ACCOUNTS, ALL)
    *found, _ = user.connect()
    assert [one["data"]["payload"]["Name"] for one in found] == ["two"]


def test_rights_survive_a_restart(start, stack, tmp_path):
    """Permission sets, assignments and the times of grants are durable."""
    org, _ = start(data_dir=tmp_path / "again")
    org.accounts.put_user(CLERK, view_all=False)
    org.rights.put_permission_set("Reader", view_all=["Account"])
    org.rights.assign(CLERK, "Reader")
    before = (org.rights.assignments(), org.rights.history(CLERK))
    org.stop()
    again, _ = start(data_dir=tmp_path / "again")
    assert (again.rights.assignments(), again.rights.history(CLERK)) == before
    assert again.accounts.user(CLERK).view_all_of == {"Account"}


def test_permission_sets_over_http(org):
    """The admin endpoint creates a permission set, assigns it and takes it away."""

    def put(**body):
        return rest(org, org.access_token, "POST", "/admin/permission-sets", body)

    made = put(name="Reader", view_all=["Account"], assign=[CLERK])
    assert made.json["id"].startswith("0PS")
    assert org.accounts.user(CLERK).view_all_of == {"Account"}
    assert put(name="Reader", unassign=[CLERK]).status == 200
    assert org.accounts.user(CLERK).view_all_of == set()
    assert put(name="a name").status == 400
    assert put(name="Reader", assign=[1]).status == 400
