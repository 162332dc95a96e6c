"""The events of changes: headers, bitmaps, bodies, who selects them, and how they can fail."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.records.bitmaps import bitmaps
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.records.schemas import change_schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import events, said, select

ACCOUNTS, CONTACTS = "/data/AccountChangeEvent", "/data/ContactChangeEvent"
ORDERS, ALL = "/data/Order__ChangeEvent", "/data/ChangeEvents"


def headers(emulator, topic):
    return [event["ChangeEventHeader"] for event in events(emulator, topic)]


@pytest.fixture
def make(tmp_path, clock):
    """Makes an org with other settings."""
    made = []

    def start(**settings):
        emulator = EmulatorServer(
            tmp_path / str(len(made)), clock=clock, settings=Settings(**settings)
        )
        select(emulator, "Order__c")
        made.append(emulator)
        return emulator, emulator.accounts.user("user@example.com")

    yield start
    for emulator in made:
        emulator.stop()


def test_bitmaps_are_those_of_captures():
    """Two texts seen on the real service come out letter by letter; a part alone has no first."""
    assert bitmaps([23, 68], {}) == ["0x100000000000800000"]
    assert bitmaps([], {6: [7, 8]}) == ["6-0x0180"]
    assert bitmaps([23], {6: [0]}) == ["0x800000", "6-0x01"]
    assert bitmaps([], {}) == []


def test_the_schema_of_an_account_has_the_shape_of_a_captured_one(org):
    """Of the fields that a captured schema of an account has, those here have the same types, and
    both begin with the same header; LastModifiedDate stands at place 23, as in captures."""
    file = Path(__file__).parents[2] / "data" / "schemas" / "account_change.avsc"
    captured = {row["name"]: row for row in json.loads(file.read_text())["fields"]}
    made = json.loads(change_schema(org.records.describe("Account")).text)["fields"]
    assert made[23]["name"] == "LastModifiedDate"
    same = 0
    for row in made:
        other = captured.get(row["name"])
        # Compound fields had one part more in 2022, and custom ones are each org's own.
        if other and row["name"] not in ("Name", "BillingAddress") and "__" not in row["name"]:
            assert row["type"] == other["type"], row["name"]
            same += 1
    assert same > 15


def test_a_change_says_which_fields_changed(org, user, clock):
    """Compound fields by their parts, empty ones as nulled too; what did not change is null."""
    record = org.records.create(
        "Account",
        {"Name": "A", "Phone": "1", "BillingCity": "Rome", "BillingStreet": "Via 1"},
        user,
    )
    clock.jump(1)
    org.records.update("Account", record, {"Phone": None, "BillingCity": "Bari"}, user)
    created, changed = events(org, ACCOUNTS)
    assert created["ChangeEventHeader"]["changedFields"] == []
    assert created["BillingAddress"] == {
        **dict.fromkeys(created["BillingAddress"]),
        "City": "Rome",
        "Street": "Via 1",
    }
    header = changed["ChangeEventHeader"]
    # Phone is field 6, LastModifiedDate 23; the city is part 1 of field 4.
    assert header["changedFields"] == ["0x800040", "4-0x02"]
    assert header["nulledFields"] == ["0x40"]
    assert header["commitUser"] == user.user_id
    assert header["commitTimestamp"] == int(clock.now() * 1000)
    assert said(changed) == {
        "BillingAddress": {**dict.fromkeys(changed["BillingAddress"]), "City": "Bari"},
        "LastModifiedDate": int(clock.now() * 1000),
    }


def test_an_update_that_changes_nothing_has_an_event(org, user, clock):
    """With the time of the change as all that changed: LastModifiedDate is field 23."""
    record = org.records.create("Account", {"Name": "A"}, user)
    clock.jump(1)
    org.records.update("Account", record, {"Name": "A"}, user)
    _, changed = events(org, ACCOUNTS)
    assert changed["ChangeEventHeader"]["changedFields"] == ["0x800000"]
    assert said(changed) == {"LastModifiedDate": int(clock.now() * 1000)}


def test_a_name_of_a_person_is_a_compound_field(org, user, clock):
    """Its parts change alone; the text that is put together is in no event."""
    record = org.records.create("Contact", {"FirstName": "Ada", "LastName": "L"}, user)
    clock.jump(1)
    org.records.update("Contact", record, {"FirstName": None}, user)
    created, changed = events(org, CONTACTS)
    assert created["Name"] == {"Salutation": None, "FirstName": "Ada", "LastName": "L"}
    place = change_schema(org.records.describe("Contact")).places["Name"]
    assert f"{place}-0x02" in changed["ChangeEventHeader"]["nulledFields"]
    assert changed["Name"] is None or changed["Name"]["FirstName"] is None


def test_formulas_are_in_no_event(org, user):
    """Neither the schema nor an event knows a formula; its record does."""
    org.records.create("Order__c", {"Name": "1", "Quantity__c": 2, "Price__c": 3}, user)
    assert "Total__c" not in events(org, ORDERS)[0]
    assert org.records.query("SELECT Total__c FROM Order__c", user).rows == [{"Total__c": 6}]


def test_formulas_are_in_events_if_asked_for(make):
    """With the setting, a formula has a place in the schema and its value in events."""
    org, user = make(change_event_formulas=True)
    record = org.records.create("Order__c", {"Name": "1", "Quantity__c": 2, "Price__c": 3}, user)
    org.records.update("Order__c", record, {"Quantity__c": 4}, user)
    org.records.update("Order__c", record, {"Name": "2"}, user)
    assert [event["Total__c"] for event in events(org, ORDERS)] == [6.0, 12.0, None]


def test_a_record_has_one_event_a_transaction(org, user):
    """From what it was before to what it is at the end."""
    kept = org.records.create("Order__c", {"Name": "kept"}, user)
    gone = org.records.create("Order__c", {"Name": "gone"}, user)
    with org.records.transaction(user) as changing:
        made = changing.create("Order__c", {"Name": "1", "Quantity__c": 1})
        changing.update("Order__c", made, {"Name": "2"})
        changing.update("Order__c", kept, {"Quantity__c": 5})
        changing.update("Order__c", kept, {"Quantity__c": 6, "Price__c": 1})
        changing.update("Order__c", gone, {"Name": "x"})
        changing.delete("Order__c", gone)
        changing.delete("Order__c", changing.create("Order__c", {"Name": "never"}))
    found = events(org, ORDERS)[2:]
    told = [(h["changeType"], h["recordIds"]) for h in headers(org, ORDERS)[2:]]
    assert told == [("CREATE", [made]), ("UPDATE", [kept]), ("DELETE", [gone])]
    created, updated, _ = found
    assert (created["Name"], created["Quantity__c"]) == ("2", 1.0)
    assert (updated["Quantity__c"], updated["Price__c"]) == (6.0, 1.0)


def test_a_transaction_tells_what_has_become_of_a_record(org, user):
    """Deleted and taken back, a record is there: an event that says it is gone would lose it."""
    kept = org.records.create("Order__c", {"Name": "kept"}, user)
    gone = org.records.create("Order__c", {"Name": "gone"}, user)
    org.records.delete("Order__c", gone, user)
    with org.records.transaction(user) as changing:
        changing.delete("Order__c", kept)
        changing.undelete("Order__c", kept)
        changing.update("Order__c", kept, {"Quantity__c": 5})
        changing.undelete("Order__c", gone)
        changing.delete("Order__c", gone)
        made = changing.create("Order__c", {"Name": "1"})
        changing.delete("Order__c", made)
        changing.undelete("Order__c", made)
    told = [(h["changeType"], h["recordIds"]) for h in headers(org, ORDERS)[3:]]
    assert told == [("UPDATE", [kept]), ("CREATE", [made])]
    assert said(events(org, ORDERS)[3])["Quantity__c"] == 5.0


def test_a_deleted_record_has_no_values_and_an_undeleted_one_all(org, user):
    """DELETE carries the header alone, UNDELETE every field that is not empty."""
    record = org.records.create("Account", {"Name": "A", "Phone": "1"}, user)
    org.records.delete("Account", record, user)
    org.records.undelete("Account", record, user)
    _, deleted, undeleted = events(org, ACCOUNTS)
    assert said(deleted) == {}
    assert deleted["ChangeEventHeader"]["recordIds"] == [record]
    assert {"Name": "A", "Phone": "1", "OwnerId": user.user_id}.items() <= said(undeleted).items()


def test_the_schema_changes_with_the_object(org, user):
    """A field that is added is in later events, earlier ones keep their schema; one that is removed
    is gone from events and queries."""
    org.records.create("Order__c", {"Name": "1"}, user)
    before = org.bus.topic(ORDERS).schema_id
    added = org.records.describe("Order__c").with_field({"name": "Colour__c", "type": "string"})
    org.records.put_object(added)
    org.records.create("Order__c", {"Name": "2", "Colour__c": "red"}, user)
    first, second = events(org, ORDERS)
    assert "Colour__c" not in first
    assert second["Colour__c"] == "red"
    assert org.bus.topic(ORDERS).schema_id != before
    org.records.put_object(added.without_field("Colour__c"))
    assert org.bus.topic(ORDERS).schema_id == before
    with pytest.raises(RecordProblem, match="No such column"):
        org.records.query("SELECT Colour__c FROM Order__c", user)


def test_a_field_that_is_removed_takes_its_values_along(org, user):
    """Made again, with another type, it is empty; a formula that is added has values at once."""
    of = org.records.describe("Order__c")
    shoe = {"name": "Size__c", "type": "string", "external_id": True}
    org.records.put_object(of.with_field(shoe))
    values = {"Name": "1", "Size__c": "XL", "Quantity__c": 2}
    record = org.records.create("Order__c", values, user)
    with pytest.raises(ValueError, match=r"Order__c.Size__c: string cannot become int"):
        org.records.put_object(of.with_field({"name": "Size__c", "type": "int"}))
    org.records.put_object(of)
    org.records.put_object(of.with_field({"name": "Size__c", "type": "int"}))
    assert org.records.get("Order__c", record, ["Size__c"]) == {"Size__c": None}
    double = {"name": "Size__c", "type": "double", "formula": "Quantity__c * 2"}
    org.records.put_object(of)
    org.records.put_object(of.with_field(double))
    assert org.records.get("Order__c", record, ["Size__c"]) == {"Size__c": 4}
    org.records.put_object(of.with_field({**double, "formula": "Quantity__c * 3"}))
    assert org.records.get("Order__c", record, ["Size__c"]) == {"Size__c": 6}


def test_the_same_change_of_several_records_is_one_event(make):
    """Records of one transaction that change alike share an event, up to a number of them."""
    org, user = make(change_event_records=2)
    with org.records.transaction(user) as changing:
        for name in ("a", "b", "a", "a"):
            changing.create("Order__c", {"Name": name})
    found = headers(org, ORDERS)
    assert [len(header["recordIds"]) for header in found] == [2, 1, 1]
    assert [header["sequenceNumber"] for header in found] == [1, 2, 3]


def test_changes_beyond_the_limit_of_a_transaction_overflow(make):
    """One overflow event an object stands for the rest, without ids; an update counts by fields."""
    org, user = make(overflow_changes=3, change_event_records=1)
    with org.records.transaction(user) as changing:
        ids = [changing.create("Order__c", {"Name": str(n)}) for n in range(5)]
        changing.create("Account", {"Name": "A"})
    found = headers(org, ORDERS)
    assert [header["changeType"] for header in found] == ["CREATE"] * 3 + ["GAP_OVERFLOW"]
    assert found[-1]["recordIds"] == ["000000000000000AAA"]
    assert [header["changeType"] for header in headers(org, ACCOUNTS)] == ["GAP_OVERFLOW"]
    with org.records.transaction(user) as changing:
        changing.update("Order__c", ids[0], {"Name": "x", "Quantity__c": 1, "Price__c": 1})
        changing.update("Order__c", ids[1], {"Name": "x"})
    assert [header["changeType"] for header in headers(org, ORDERS)[4:]] == [
        "UPDATE",
        "GAP_OVERFLOW",
    ]


def test_an_event_that_is_too_large_is_a_gap_event(make):
    """The change is told, its values are not; the record has them."""
    org, user = make(event_bytes=2000)
    record = org.records.create("Order__c", {"Name": "1", "Notes__c": "x" * 3000}, user)
    (event,) = events(org, ORDERS)
    assert event["ChangeEventHeader"]["changeType"] == "GAP_CREATE"
    assert event["ChangeEventHeader"]["recordIds"] == [record]
    assert said(event) == {}
    assert len(org.records.get("Order__c", record, ["Notes__c"])["Notes__c"]) == 3000


def test_a_small_change_of_a_large_text_is_told_as_a_difference(org, user):
    """From 1,000 characters on, and if little changed; else the text comes whole."""
    lines = [f"line {n:03} of a long text\n" for n in range(60)]
    record = org.records.create("Order__c", {"Name": "1", "Notes__c": "".join(lines)}, user)
    new = "".join([*lines[:30], "another line\n", *lines[31:]])
    org.records.update("Order__c", record, {"Notes__c": new}, user)
    org.records.update("Order__c", record, {"Notes__c": "y" * 2000}, user)
    _, little, much = events(org, ORDERS)
    place = change_schema(org.records.describe("Order__c")).places["Notes__c"]
    assert little["ChangeEventHeader"]["diffFields"] == bitmaps([place], {})
    digest = hashlib.sha256(new.encode()).hexdigest()
    assert little["Notes__c"].startswith(f"--- \n+++ {digest}\n@@ ")
    assert "+another line\n" in little["Notes__c"]
    assert much["ChangeEventHeader"]["diffFields"] == []
    assert much["Notes__c"] == "y" * 2000


# Who selects what.


def test_objects_are_selected_by_members_of_channels(tmp_path, clock):
    """An object's changes make events once a member selects it, until the last is removed."""
    org = EmulatorServer(tmp_path, clock=clock)
    user = org.accounts.user("user@example.com")
    org.records.create("Contact", {"LastName": "before"}, user)
    member = org.event_channels.add("ChangeEvents_Contact", "ChangeEvents", "ContactChangeEvent")
    org.records.create("Contact", {"LastName": "selected"}, user)
    org.event_channels.remove(member.member_id)
    org.records.create("Contact", {"LastName": "after"}, user)
    for topic in (CONTACTS, ALL):
        assert [event["Name"]["LastName"] for event in events(org, topic)] == ["selected"]
    org.stop()
    again = EmulatorServer(tmp_path, clock=clock)
    again.records.create("Contact", {"LastName": "again"}, user)
    assert len(events(again, CONTACTS)) == 1
    again.stop()


def test_a_member_enriches_and_filters(org, user, clock):
    """Its channel has events with the enriched fields and those of the filter, only where the
    filter holds; the object's own topic has them as they are."""
    org.event_channels.create("Big__chn", "data", "Big")
    org.event_channels.add(
        "Big_Orders",
        "Big__chn",
        "Order__ChangeEvent",
        filter_expression="Quantity__c > 5 AND ChangeEventHeader.changeType != 'UNDELETE'",
        enriched=["External_Id__c"],
    )
    small = org.records.create("Order__c", {"Name": "s", "Quantity__c": 1}, user)
    big = org.records.create(
        "Order__c", {"Name": "b", "Quantity__c": 9, "External_Id__c": "x"}, user
    )
    clock.jump(1)
    with org.records.transaction(user) as changing:
        changing.update("Order__c", small, {"Name": "same"})
        changing.update("Order__c", big, {"Name": "same"})
    org.records.delete("Order__c", big, user)
    org.records.undelete("Order__c", big, user)
    found = events(org, "/data/Big__chn")
    assert [event["ChangeEventHeader"]["changeType"] for event in found] == [
        "CREATE",
        "UPDATE",
        "DELETE",
    ]
    assert found[1]["ChangeEventHeader"]["recordIds"] == [big]
    enriched = {"External_Id__c": "x", "Quantity__c": 9.0}
    assert said(found[1]) == {"Name": "same", "LastModifiedDate": clock.now() * 1000, **enriched}
    assert said(found[2]) == enriched
    (plain,) = [e for e in events(org, ORDERS) if e["ChangeEventHeader"]["changeType"] == "UPDATE"]
    assert plain["ChangeEventHeader"]["recordIds"] == [small, big]
    assert plain["External_Id__c"] is None
    for bad in ("Nothing__c = 1", "Quantity__c = 'x'", "Quantity__c"):
        with pytest.raises(BadValue):
            org.event_channels.add("Bad", "Big__chn", "AccountChangeEvent", filter_expression=bad)


def test_an_enriched_channel_has_positions_of_its_own(org, user):
    """Its event is another one than that of the object's topic; one that is only carried is not."""
    org.event_channels.create("Big__chn", "data", "Big")
    org.event_channels.add("Big_Orders", "Big__chn", "Order__ChangeEvent", enriched=["Name"])
    org.event_channels.create("Plain__chn", "data", "Plain")
    org.event_channels.add("Plain_Orders", "Plain__chn", "Order__ChangeEvent")
    org.records.create("Order__c", {"Name": "x"}, user)
    (own,), (plain,), (enriched,) = (
        org.bus.read(org.bus.topic(topic), 0, 10)[0]
        for topic in (ORDERS, "/data/Plain__chn", "/data/Big__chn")
    )
    assert plain.position == own.position != enriched.position


def test_a_filter_may_compare_times_by_their_order(org, user):
    """An org takes equality only; here what a condition of a query may say is taken."""
    org.event_channels.create("Banks__chn", "data", "Banks")
    org.event_channels.add(
        "Banks_Accounts",
        "Banks__chn",
        "AccountChangeEvent",
        filter_expression="LastModifiedDate > 2000-01-01T00:00:00Z",
    )
    org.records.create("Account", {"Name": "A"}, user)
    assert len(events(org, "/data/Banks__chn")) == 1


def test_a_filter_that_fits_no_longer_stops_nothing(tmp_path, clock):
    """Neither one of a platform event, which nobody reads, nor one whose field is gone."""
    org = EmulatorServer(tmp_path, clock=clock)
    user = org.accounts.holder("")
    org.event_channels.create("Ev__chn", "event", "Events")
    odd = "anything ~ goes"
    org.event_channels.add("Odd", "Ev__chn", "Order_Event__e", filter_expression=odd)
    org.event_channels.create("Big__chn", "data", "Big")
    with_field = org.records.describe("Account").with_field({"name": "X__c", "type": "int"})
    org.records.put_object(with_field)
    filtered = "X__c > 5"
    org.event_channels.add("Big", "Big__chn", "AccountChangeEvent", filter_expression=filtered)
    org.records.put_object(with_field.without_field("X__c"))
    org.stop()
    again = EmulatorServer(tmp_path, clock=clock)
    again.records.create("Account", {"Name": "A"}, user)
    assert [event["Name"] for event in events(again, "/data/Big__chn")] == ["A"]
    again.stop()


# PushTopics.

ACCOUNT_TOPIC = "SELECT Id, Name FROM Account WHERE Phone LIKE '1%'"


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({}, ["created", "updated", "updated", "deleted", "undeleted"]),
        ({"NotifyForFields": "All"}, ["created", *["updated"] * 3, "deleted", "undeleted"]),
        ({"NotifyForFields": "Select"}, ["created", "updated", "deleted", "undeleted"]),
        ({"NotifyForFields": "Where"}, ["created", "updated", "deleted", "undeleted"]),
        ({"NotifyForOperationUpdate": False}, ["created", "deleted", "undeleted"]),
        ({"IsActive": False}, []),
        ({"Query": "SELECT Id FROM Contact"}, []),
        ({"Query": "SELECT Nothing__c FROM Account WHERE Nothing__c = 1"}, []),
    ],
)
def test_push_topics_make_events_of_changes(org, user, fields, types):
    """Which changes are told is what NotifyForFields, NotifyForOperations and WHERE say."""
    given = {"Query": ACCOUNT_TOPIC, "NotifyForFields": "Referenced", **fields}
    org.cometd.channels.create("PushTopic", "Accounts", given)
    record = org.records.create("Account", {"Name": "A", "Phone": "11"}, user)
    org.records.update("Account", record, {"Name": "B"}, user)
    org.records.update("Account", record, {"Phone": "12"}, user)
    org.records.update("Account", record, {"Fax": "3"}, user)
    org.records.create("Account", {"Name": "other", "Phone": "2"}, user)
    org.records.delete("Account", record, user)
    org.records.undelete("Account", record, user)
    topic = org.cometd.channels.topic("/topic/Accounts")
    found = [json.loads(event.payload) for event in org.bus.read(topic, 0, 100)[0]]
    assert [event["event"]["type"] for event in found] == types
    if types[-1:] == ["undeleted"]:
        assert found[0]["sobject"] == {"Id": record, "Name": "A"}
        assert found[-2]["sobject"] == {"Id": record}


def test_reads_stay_behind_the_bus(make, clock):
    """With a lag, reads and queries show what was there that long ago; changes see what is."""
    org, user = make(rest_lag_s=3.0)
    query = "SELECT Name FROM Order__c"

    def names():
        return [row["Name"] for row in org.records.query(query, user).rows]

    record = org.records.create("Order__c", {"Name": "1"}, user)
    assert names() == []
    with pytest.raises(RecordProblem, match="does not exist"):
        org.records.get("Order__c", record)
    clock.jump(2)
    org.records.update("Order__c", record, {"Name": "2"}, user)
    assert len(events(org, ORDERS)) == 2
    assert names() == []
    clock.jump(1)
    assert names() == ["1"]
    clock.jump(2)
    assert names() == ["2"]


def test_a_user_without_view_all_sees_own_records_only(org, user):
    """What another user owns is not found, not read, not changed and not counted."""
    org.accounts.put_user("clerk@example.com", view_all=False)
    clerk = org.accounts.user("clerk@example.com")
    theirs = org.records.create("Account", {"Name": "theirs"}, user)
    own = org.records.create("Account", {"Name": "own"}, clerk)
    rows = org.records.query("SELECT Id FROM Account", clerk).rows
    assert rows == [{"Id": own}]
    for act in (
        lambda: org.records.get("Account", theirs, user=clerk),
        lambda: org.records.update("Account", theirs, {"Name": "x"}, clerk),
        lambda: org.records.delete("Account", theirs, clerk),
    ):
        with pytest.raises(RecordProblem, match="not accessible"):
            act()
    org.records.update("Account", own, {"OwnerId": user.user_id}, clerk)
    assert org.records.query("SELECT COUNT() FROM Account", clerk).total == 0
    org.accounts.put_user("clerk@example.com", view_all=True)
    clerk = org.accounts.user("clerk@example.com")
    assert org.records.query("SELECT COUNT() FROM Account", clerk).total == 2
