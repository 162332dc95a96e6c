"""Tests of reading describes, queries, records, permissions and limits over REST."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    QuotaExceededError,
    ReadExpiredError,
    RequestRefusedError,
)
from sfpubsub.rest import Grant, OrgReader

from .conftest import ORDERS
from .support import QUICK, Sessions, reader_of


def test_an_object_is_described_with_its_fields(reader):
    """Describing an object returns its properties and those of its fields, such as their type."""
    account = reader.describe("Account")
    assert (account.name, account.label, account.key_prefix) == ("Account", "Account", "001")
    assert (account.custom, account.queryable, account.retrieveable) == (False, True, True)
    assert account.replicateable
    street = account.field("billingstreet")
    assert street.name == "BillingStreet"
    assert street.compound_field_name == "BillingAddress"
    assert account.field("BillingAddress").type == "address"
    assert account.field("NotThere") is None
    revenue = account.field("AnnualRevenue")
    assert (revenue.type, revenue.precision > revenue.scale) == ("currency", True)
    assert [value.value for value in account.field("Rating").picklist_values]
    owner = account.field("OwnerId")
    assert (owner.type, owner.relationship_name) == ("reference", "Owner")
    assert "User" in owner.reference_to
    order = reader.describe("Order__c")
    assert order.custom
    assert order.field("Party__c").reference_to == ("Account", "Contact")
    assert order.field("Total__c").calculated
    assert not order.field("Total__c").updateable
    assert order.field("Price__c").custom
    assert not order.field("Price__c").calculated
    assert order.field("Name").length == 80
    assert not order.field("Id").nillable


def test_all_objects_are_listed(reader):
    """The list of all objects includes standard and custom ones, with their key prefixes."""
    found = {item.name: item for item in reader.describe_global()}
    assert {"Account", "Contact", "Opportunity", "Order__c"} <= found.keys()
    assert (found["Order__c"].custom, found["Order__c"].key_prefix) == (True, "a00")


def test_describe_of_an_unknown_object_raises(reader):
    """Describing an unknown object raises an error with Salesforce's status and error code.

    An invalid object name is rejected without a request.
    """
    with pytest.raises(RequestRefusedError) as caught:
        reader.describe("Nothing__c")
    assert (caught.value.status, caught.value.error_code) == (404, "NOT_FOUND")
    calls = reader.calls
    with pytest.raises(LocalProtocolError, match="not a valid name for an object"):
        reader.describe("Account/../../")
    assert reader.calls == calls


def test_query_returns_every_row_once_page_by_page(reader):
    """A query returns every row once, in pages of the requested size, with its total row count.

    Rows do not contain `attributes`. An invalid page size or query raises an error.
    """
    pages = list(
        reader.query("SELECT Id, Name FROM Order__c ORDER BY Id LIMIT 1001", batch_size=500)
    )
    assert [len(page.rows) for page in pages] == [500, 500, 1]
    assert {page.total for page in pages} == {1001}
    names = [row["Name"] for page in pages for row in page.rows]
    assert names == [f"order {number}" for number in range(1, 1002)]
    assert pages[0].rows[0].keys() == {"Id", "Name"}
    nobody = "SELECT Id FROM Contact WHERE LastName = 'Nobody'"
    assert [(page.rows, page.total) for page in reader.query(nobody)] == [([], 0)]
    for size in (199, 2001):
        with pytest.raises(LocalProtocolError, match="200 to 2,000"):
            next(reader.query("SELECT Id FROM Account", batch_size=size))
    with pytest.raises(RequestRefusedError) as caught:
        next(reader.query("SELECT FROM"))
    assert (caught.value.error_code, caught.value.retryable) == ("MALFORMED_QUERY", False)


def test_deleted_records_are_returned_only_with_all_rows(org, reader):
    """A query returns records in the Recycle Bin only if `all_rows` is set."""
    user = org.accounts.holder("")
    gone = org.records.create("Contact", {"LastName": "Gone"}, user)
    org.records.delete("Contact", gone, user)
    soql = f"SELECT Id, IsDeleted FROM Contact WHERE Id = '{gone}'"
    assert [page.rows for page in reader.query(soql)] == [[]]
    assert [page.rows for page in reader.query(soql, all_rows=True)] == [
        [{"Id": gone, "IsDeleted": True}]
    ]


def test_numbers_keep_every_digit(org, reader):
    """A query returns a currency value as a Decimal, with all stored digits.

    A read by id returns a Decimal as well.
    """
    user = org.accounts.holder("")
    made = org.records.create(
        "Opportunity",
        {
            "Name": "x",
            "StageName": "Prospecting",
            "CloseDate": "2026-01-01",
            "Amount": 1234567890123.45,
        },
        user,
    )
    soql = f"SELECT Amount FROM Opportunity WHERE Id = '{made}'"
    ((row,),) = [page.rows for page in reader.query(soql)]
    assert row["Amount"] == Decimal("1234567890123.45")
    assert isinstance(row["Amount"], Decimal)
    assert isinstance(reader.retrieve("Opportunity", [made], ["Amount"])[made]["Amount"], Decimal)


def test_a_session_that_expires_between_pages_is_renewed(org):
    """A session that expires between two pages is renewed once, and no row is lost or repeated."""
    sessions = Sessions(org)
    reader = OrgReader(sessions, timings=QUICK)
    pages = reader.query("SELECT Id FROM Order__c ORDER BY Id LIMIT 6000")
    rows = list(next(pages).rows)
    sessions.expire()
    rows += [row for page in pages for row in page.rows]
    assert len({row["Id"] for row in rows}) == len(rows) == 6000
    assert sessions.renewals == 1


def test_reading_a_query_that_the_org_closed_raises(reader):
    """Opening an eleventh query closes the first, and reading the rest of the first one raises.

    The error says to start the query again; the eleventh query can still be read.
    """
    soql = "SELECT Id FROM Order__c LIMIT 500"
    open_ = [reader.query(soql, batch_size=200) for _ in range(11)]
    for pages in open_:
        next(pages)
    with pytest.raises(ReadExpiredError, match="start the query again") as caught:
        list(open_[0])
    assert caught.value.error_code == "INVALID_QUERY_LOCATOR"
    assert len(list(open_[10])) == 2


def test_records_are_read_by_id(org, reader):
    """Reading by id maps each id, short or long, to its row, or to None if there is none.

    A deleted record has no row. Unknown fields and invalid ids raise errors.
    """
    user = org.accounts.holder("")
    there = org.records.create("Account", {"Name": "there"}, user)
    gone = org.records.create("Account", {"Name": "gone"}, user)
    org.records.delete("Account", gone, user)
    absent = "001SB0000099999AAA"
    found = reader.retrieve("Account", [there, absent, gone, there[:15]], ["Name"])
    row = {"Id": there, "Name": "there"}
    assert found == {there: row, absent: None, gone: None, there[:15]: row}
    assert reader.retrieve("Account", [], ["Name"]) == {}
    with pytest.raises(RequestRefusedError) as caught:
        reader.retrieve("Account", [there], ["Nothing__c"])
    assert caught.value.error_code == "INVALID_FIELD"
    with pytest.raises(LocalProtocolError, match="not a valid id"):
        reader.retrieve("Account", ["'; DROP"], ["Name"])


def test_two_thousand_ids_take_one_request(reader):
    """Reading 2,000 records by id takes a single request; 2,001 ids are rejected."""
    ids = [f"a00SB{number:010d}AAA" for number in range(1, 2002)]
    before = reader.calls
    found = reader.retrieve("Order__c", ids[:2000], ["Name", "Notes__c"])
    assert reader.calls == before + 1
    assert [found[key]["Name"] for key in ids[:2000]] == [f"order {n}" for n in range(1, 2001)]
    with pytest.raises(LocalProtocolError, match="2001 ids are too many"):
        reader.retrieve("Order__c", ids, ["Name"])
    assert reader.calls == before + 1


def test_requests_are_counted_and_the_daily_limit_is_reported(tmp_path):
    """The reader counts its requests and reports the org's daily limit.

    Once the limit is used up, requests raise an error and are not retried.
    """
    settings = Settings(daily_api_requests=6)
    with EmulatorServer(tmp_path / "org", settings=settings) as emulator:
        reader = reader_of(emulator)
        limit = reader.limits()
        assert (limit.most, limit.remaining) == (6, 5)
        for _ in range(5):
            reader.describe("Account")
        assert reader.calls == 6
        with pytest.raises(QuotaExceededError) as caught:
            reader.describe("Account")
        assert caught.value.error_code == "REQUEST_LIMIT_EXCEEDED"
        assert not caught.value.retryable
        assert reader.calls == 7  # not retried, because other clients may need the requests


def test_a_grant_is_empty_without_view_all_and_new_after_a_withdrawal(org):
    """Records that a user without View All cannot see are not necessarily deleted. A right that was
    withdrawn and given again is another one, whether it is for all data or for the object.
    """
    org.accounts.put_user("clerk@example.com", "secret", view_all=False)
    token = org._sessions.issue("clerk@example.com")
    session = Session(token, org.instance_url, org.tenant_id)
    reader = OrgReader(session, timings=QUICK)

    def grant() -> Grant:
        return reader.grants(["Account", "Contact"])["Account"]

    assert not grant()
    org.accounts.put_user("clerk@example.com", view_all=True)
    data = grant()
    assert data
    org.rights.put_permission_set("Reader", view_all=["Account"])
    org.rights.assign("clerk@example.com", "Reader")
    assert grant().continues(data)
    org.accounts.put_user("clerk@example.com", view_all=False)
    one = grant()
    assert one
    assert not one.continues(data)
    assert not reader.grants(["Account", "Contact"])["Contact"]
    org.rights.put_permission_set("Reader", view_all=[])
    assert not grant()
    org.rights.put_permission_set("Reader", view_all=["Account"])
    assert not grant().continues(one)
    again = grant()
    org.rights.unassign("clerk@example.com", "Reader")
    org.rights.assign("clerk@example.com", "Reader")
    assert not grant().continues(again)


def test_malformed_or_too_old_api_version_is_rejected():
    """An API version that is malformed or older than 50.0 raises a configuration error.

    Before version 50.0, query jobs may return columns in any order.
    """
    for version in ("49.0", "60", "../60.0", ""):
        with pytest.raises(ConfigurationError, match="API version"):
            OrgReader(Sessions(None), api_version=version)
    assert ORDERS >= 2001
