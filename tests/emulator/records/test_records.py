"""Tests of changes to records, and of the transaction that stores a record with its event."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import body, events

ACCOUNTS = "/data/AccountChangeEvent"
ORDERS = "/data/Order__ChangeEvent"


def test_a_record_and_its_event_are_one_transaction(org, user, monkeypatch):
    """If an event cannot be stored, its record is not changed either. Later changes succeed."""
    kept = org.records.create("Account", {"Name": "Kept"}, user)
    append = org._store.append

    def fail(*_given):
        raise OSError("the disk is full")

    monkeypatch.setattr(org._store, "append", fail)
    with pytest.raises(OSError, match="full"):
        org.records.create("Account", {"Name": "Lost"}, user)
    with pytest.raises(OSError, match="full"):
        org.records.update("Account", kept, {"Name": "Lost"}, user)
    monkeypatch.setattr(org._store, "append", append)
    org.records.create("Account", {"Name": "Next"}, user)
    names = [row["Name"] for row in org.records.query("SELECT Name FROM Account", user).rows]
    assert names == ["Kept", "Next"]
    assert [event["Name"] for event in events(org, ACCOUNTS)] == ["Kept", "Next"]


def test_records_survive_a_restart(org, user, tmp_path, clock):
    """A restart on the same directory keeps all records, and never reuses a record id."""
    first = org.records.create("Order__c", {"Name": "1"}, user)
    org.records.delete("Order__c", first, user)
    org.stop()
    again = EmulatorServer(tmp_path / "org", clock=clock)
    assert again.records.objects() == ["Account", "Contact", "Opportunity", "Order__c"]
    with pytest.raises(RecordProblem, match="entity is deleted"):
        again.records.get("Order__c", first)
    assert again.records.create("Order__c", {"Name": "2"}, user) != first
    assert [event["ChangeEventHeader"]["changeType"] for event in events(again, ORDERS)] == [
        "CREATE",
        "DELETE",
        "CREATE",
    ]
    again.stop()


def test_compound_fields_and_formulas_are_derived_from_their_parts(org, user):
    """A person's name is joined from its parts, and a formula is computed.

    An address is one compound value.
    """
    contact = org.records.create(
        "Contact", {"FirstName": "Ada", "LastName": "L", "MailingCity": "Rome"}, user
    )
    shown = org.records.get("Contact", contact, ["Name", "MailingAddress", "OtherAddress"])
    assert shown["Name"] == "Ada L"
    assert shown["MailingAddress"]["city"] == "Rome"
    assert shown["OtherAddress"] is None
    order = org.records.create("Order__c", {"Name": "1", "Quantity__c": 3, "Price__c": 1.5}, user)
    assert org.records.get("Order__c", order[:15], ["Total__c"]) == {"Total__c": 4.5}
    org.records.update("Order__c", order, {"Price__c": None}, user)
    assert org.records.get("Order__c", order, ["Total__c"]) == {"Total__c": None}


def test_upsert_by_an_external_id_updates_or_creates(org, user):
    """An upsert updates the record with the given external id, ignoring case, or creates one.

    A field that is not an external id is rejected.
    """
    first, made = org.records.upsert("Order__c", "External_Id__c", "a", {"Name": "1"}, user)
    again, remade = org.records.upsert("order__C", "external_id__c", "A", {"Name": "2"}, user)
    assert (again, made, remade) == (first, True, False)
    assert org.records.get("Order__c", first, ["Name"]) == {"Name": "2"}
    with pytest.raises(RecordProblem, match="does not exist or is not accessible: Name"):
        org.records.upsert("Order__c", "Name", "1", {}, user)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, "REQUIRED_FIELD_MISSING"),
        ({"Name": None}, "REQUIRED_FIELD_MISSING"),
        ({"Name": "x" * 81}, "STRING_TOO_LONG"),
        ({"Name": "x", "Colour__c": 1}, "INVALID_FIELD"),
        ({"Name": "x", "Total__c": 1}, "INVALID_FIELD_FOR_INSERT_UPDATE"),
        ({"Name": "x", "CreatedDate": "2026-01-01"}, "INVALID_FIELD_FOR_INSERT_UPDATE"),
        ({"Name": "x", "Quantity__c": "many"}, "JSON_PARSER_ERROR"),
        ({"Name": "x", "Quantity__c": {}}, "JSON_PARSER_ERROR"),
        ({"Name": "x", "Quantity__c": float("inf")}, "JSON_PARSER_ERROR"),
        ({"Name": "x", "Gift__c": 7}, "JSON_PARSER_ERROR"),
        ({"Name": "x", "Ship_On__c": "tomorrow"}, "JSON_PARSER_ERROR"),
        ({"Name": "x", "Status__c": "Lost"}, "INVALID_OR_NULL_FOR_RESTRICTED_PICKLIST"),
        ({"Name": "x", "Account__c": "Acme"}, "MALFORMED_ID"),
        ({"Name": "x", "Account__c": "001SB0000000099YAA"}, "INVALID_CROSS_REFERENCE_KEY"),
        ({"Name": "x", "Account__c": "003SB0000000001YAA"}, "FIELD_INTEGRITY_EXCEPTION"),
        ({"Name": "x", "External_Id__c": "taken"}, "DUPLICATE_VALUE"),
    ],
)
def test_invalid_values_are_rejected_and_change_nothing(org, user, values, code):
    """Each kind of invalid value is rejected with its own error code.

    No record and no event is stored.
    """
    org.records.create("Order__c", {"Name": "1", "External_Id__c": "taken"}, user)
    with pytest.raises(RecordProblem) as caught:
        org.records.create("Order__c", values, user)
    assert caught.value.code == code
    assert org.records.query("SELECT COUNT() FROM Order__c", user).total == 1
    assert len(events(org, ORDERS)) == 1


def test_a_polymorphic_lookup_accepts_each_of_its_objects(org, user):
    """The lookup Party__c accepts an Account or a Contact, but not an Opportunity."""
    account = org.records.create("Account", {"Name": "A"}, user)
    contact = org.records.create("Contact", {"LastName": "C"}, user)
    for party in (account, contact[:15]):
        org.records.create(
            "Order__c", {"Name": "1", "Party__c": party, "OwnerId": user.user_id}, user
        )
    sale = {"Name": "S", "StageName": "Prospecting", "CloseDate": "2026-12-01"}
    with pytest.raises(RecordProblem, match="incorrect type"):
        org.records.create(
            "Order__c",
            {"Name": "1", "Party__c": org.records.create("Opportunity", sale, user)},
            user,
        )
    assert body(events(org, ORDERS)[1])["Party__c"] == contact


def test_undelete_takes_a_record_out_of_the_recycle_bin(org, user):
    """A deleted record cannot be updated, and only queries that include deleted records find it.

    Once undeleted, it is found by all queries, and cannot be undeleted again.
    """
    record = org.records.create("Account", {"Name": "A"}, user)
    org.records.delete("Account", record, user)
    query = "SELECT Id FROM Account"
    assert org.records.query(query, user).total == 0
    assert org.records.query(query, user, deleted=True).total == 1
    with pytest.raises(RecordProblem, match="entity is deleted"):
        org.records.update("Account", record, {"Name": "B"}, user)
    org.records.undelete("Account", record, user)
    assert org.records.query(query, user).total == 1
    with pytest.raises(RecordProblem, match="not in the recycle bin"):
        org.records.undelete("Account", record, user)
