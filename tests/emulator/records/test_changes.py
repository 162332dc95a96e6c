"""Tests of change events: headers, bitmaps, bodies, channels, and overflow and gap events."""

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
from tests.emulator.records.support import body, events, select

ACCOUNTS, CONTACTS = "/data/AccountChangeEvent", "/data/ContactChangeEvent"
ORDERS, ALL = "/data/Order__ChangeEvent", "/data/ChangeEvents"


def headers(emulator, topic):
    """Return the headers of a topic's retained change events."""
    return [event["ChangeEventHeader"] for event in events(emulator, topic)]


@pytest.fixture
def start_org(tmp_path, clock):
    """Return a function that starts an org with the given settings, and returns the
    org and a user.
    """
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


def test_bitmaps_are_encoded_as_on_the_real_service():
    """Bitmaps captured from the real service are reproduced exactly.

    If only parts of a compound field changed, there is no bitmap of whole fields.
    """
    assert bitmaps([23, 68], {}) == ["0x100000000000800000"]
    assert bitmaps([], {6: [7, 8]}) == ["6-0x0180"]
    assert bitmaps([23], {6: [0]}) == ["0x800000", "6-0x01"]
    assert bitmaps([], {}) == []


def test_the_account_schema_matches_a_captured_one(org):
    """Fields that the emulator's account schema shares with a captured one have the same types.

    As in captured events, LastModifiedDate is field 23.
    """
    file = Path(__file__).parents[2] / "data" / "schemas" / "account_change.avsc"
    captured = {row["name"]: row for row in json.loads(file.read_text())["fields"]}
    made = json.loads(change_schema(org.records.describe("Account")).text)["fields"]
    assert made[23]["name"] == "LastModifiedDate"
    same = 0
    for row in made:
        other = captured.get(row["name"])
        # Compound fields had one more part in 2022, and each org has its own custom fields.
        if other and row["name"] not in ("Name", "BillingAddress") and "__" not in row["name"]:
            assert row["type"] == other["type"], row["name"]
            same += 1
    assert same > 15


def test_a_change_says_which_fields_changed(org, user, clock):
    """An update's bitmaps name the changed fields, parts of compound fields, and cleared fields.

    All unchanged fields are null.
    """
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
    assert body(changed) == {
        "BillingAddress": {**dict.fromkeys(changed["BillingAddress"]), "City": "Bari"},
        "LastModifiedDate": int(clock.now() * 1000),
    }


def test_an_update_that_changes_nothing_sends_an_event(org, user, clock):
    """An update that changes no value sends an event that names only
    LastModifiedDate (field 23).
    """
    record = org.records.create("Account", {"Name": "A"}, user)
    clock.jump(1)
    org.records.update("Account", record, {"Name": "A"}, user)
    _, changed = events(org, ACCOUNTS)
    assert changed["ChangeEventHeader"]["changedFields"] == ["0x800000"]
    assert body(changed) == {"LastModifiedDate": int(clock.now() * 1000)}


def test_a_persons_name_is_a_compound_field(org, user, clock):
    """A person's name is sent as its parts, without the full name.

    If a part is cleared, the bitmaps name that part.
    """
    record = org.records.create("Contact", {"FirstName": "Ada", "LastName": "L"}, user)
    clock.jump(1)
    org.records.update("Contact", record, {"FirstName": None}, user)
    created, changed = events(org, CONTACTS)
    assert created["Name"] == {"Salutation": None, "FirstName": "Ada", "LastName": "L"}
    place = change_schema(org.records.describe("Contact")).places["Name"]
    assert f"{place}-0x02" in changed["ChangeEventHeader"]["nulledFields"]
    assert changed["Name"] is None


def test_formulas_are_not_in_events(org, user):
    """Formula fields appear in queries, but not in change events or their schema."""
    org.records.create("Order__c", {"Name": "1", "Quantity__c": 2, "Price__c": 3}, user)
    assert "Total__c" not in events(org, ORDERS)[0]
    assert org.records.query("SELECT Total__c FROM Order__c", user).rows == [{"Total__c": 6}]


def test_a_setting_adds_formulas_to_events(start_org):
    """With `change_event_formulas`, a change event contains a formula's value if it has changed."""
    org, user = start_org(change_event_formulas=True)
    record = org.records.create("Order__c", {"Name": "1", "Quantity__c": 2, "Price__c": 3}, user)
    org.records.update("Order__c", record, {"Quantity__c": 4}, user)
    org.records.update("Order__c", record, {"Name": "2"}, user)
    assert [event["Total__c"] for event in events(org, ORDERS)] == [6.0, 12.0, None]


def test_a_transaction_sends_one_event_per_record(org, user):
    """Several changes of a record in one transaction are sent as one event with its final values.

    A record that is created and deleted within the transaction is not reported.
    """
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


def test_an_event_describes_the_final_state_of_a_record(org, user):
    """If a transaction deletes and undeletes a record, its event is a creation or an update.

    A DELETE event would make subscribers lose the record.
    """
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
    assert body(events(org, ORDERS)[3])["Quantity__c"] == 5.0


def test_a_delete_event_has_no_values_and_an_undelete_event_has_all(org, user):
    """A DELETE event contains only a header; an UNDELETE event contains every field
    that is not empty.
    """
    record = org.records.create("Account", {"Name": "A", "Phone": "1"}, user)
    org.records.delete("Account", record, user)
    org.records.undelete("Account", record, user)
    _, deleted, undeleted = events(org, ACCOUNTS)
    assert body(deleted) == {}
    assert deleted["ChangeEventHeader"]["recordIds"] == [record]
    assert {"Name": "A", "Phone": "1", "OwnerId": user.user_id}.items() <= body(undeleted).items()


def test_the_schema_changes_with_the_object(org, user):
    """An added field appears in later events, and earlier events keep their schema.

    A removed field disappears from the schema and from queries.
    """
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


def test_removing_a_field_deletes_its_values(org, user):
    """A field that is removed and added again, even with another type, is empty.

    An added or changed formula applies at once.
    """
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


def test_the_same_change_of_several_records_is_one_event(start_org):
    """Equal changes of several records in a transaction are combined into one event.

    An event contains at most `change_event_records` record ids.
    """
    org, user = start_org(change_event_records=2)
    with org.records.transaction(user) as changing:
        for name in ("a", "b", "a", "a"):
            changing.create("Order__c", {"Name": name})
    found = headers(org, ORDERS)
    assert [len(header["recordIds"]) for header in found] == [2, 1, 1]
    assert [header["sequenceNumber"] for header in found] == [1, 2, 3]


def test_changes_beyond_the_limit_of_a_transaction_overflow(start_org):
    """Beyond `overflow_changes`, one overflow event per object replaces a transaction's events.

    It names no records. An update counts once per changed field.
    """
    org, user = start_org(overflow_changes=3, change_event_records=1)
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


def test_an_oversized_event_is_sent_as_a_gap_event(start_org):
    """A change whose event would be too large is sent as a gap event without values.

    The stored record contains the values.
    """
    org, user = start_org(event_bytes=2000)
    record = org.records.create("Order__c", {"Name": "1", "Notes__c": "x" * 3000}, user)
    (event,) = events(org, ORDERS)
    assert event["ChangeEventHeader"]["changeType"] == "GAP_CREATE"
    assert event["ChangeEventHeader"]["recordIds"] == [record]
    assert body(event) == {}
    assert len(org.records.get("Order__c", record, ["Notes__c"])["Notes__c"]) == 3000


def test_a_small_change_of_a_large_text_is_sent_as_a_diff(org, user):
    """A small change of a text of 1,000 characters or more is sent as a diff.

    A large change is sent as the whole text.
    """
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


# Which objects have change events, and in which channels.


def test_objects_are_selected_by_channel_members(tmp_path, clock):
    """An object has change events while a channel member selects it, and none before or after."""
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


def test_a_channel_member_enriches_and_filters(org, user, clock):
    """A filtered channel contains only matching events, with the enriched fields and the filter's
    fields.

    The object's own topic contains all events, without these additional fields.
    """
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
    assert body(found[1]) == {"Name": "same", "LastModifiedDate": clock.now() * 1000, **enriched}
    assert body(found[2]) == enriched
    (plain,) = [e for e in events(org, ORDERS) if e["ChangeEventHeader"]["changeType"] == "UPDATE"]
    assert plain["ChangeEventHeader"]["recordIds"] == [small, big]
    assert plain["External_Id__c"] is None
    for bad in ("Nothing__c = 1", "Quantity__c = 'x'", "Quantity__c"):
        with pytest.raises(BadValue):
            org.event_channels.add("Bad", "Big__chn", "AccountChangeEvent", filter_expression=bad)


def test_enriched_events_have_different_positions(org, user):
    """An enriched event has a different position from the original event.

    On a channel without enrichment, the position is the same.
    """
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


def test_a_filter_can_compare_times(org, user):
    """The emulator's channel filters can compare times with `>`.

    Salesforce's channel filters can only test times for equality.
    """
    org.event_channels.create("Banks__chn", "data", "Banks")
    org.event_channels.add(
        "Banks_Accounts",
        "Banks__chn",
        "AccountChangeEvent",
        filter_expression="LastModifiedDate > 2000-01-01T00:00:00Z",
    )
    org.records.create("Account", {"Name": "A"}, user)
    assert len(events(org, "/data/Banks__chn")) == 1


def test_an_outdated_filter_is_ignored(tmp_path, clock):
    """A filter on a deleted field, or an unreadable filter of a platform event, is ignored.

    The org still starts, and the channel receives its events.
    """
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
def test_push_topics_report_selected_changes(org, user, fields, types):
    """A PushTopic reports the changes that its NotifyFor fields and WHERE clause select."""
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


def test_reads_can_lag_behind_the_events(start_org, clock):
    """With `rest_lag_s`, reads and queries return the state from that many seconds earlier.

    Updates see the current state.
    """
    org, user = start_org(rest_lag_s=3.0)
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
    """A user without View All can neither query, read, change nor count records that others own."""
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
