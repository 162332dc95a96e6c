"""Tests of the parts of SOQL that ordinary tools send: parents, aggregates, date literals and the
like, and what is said about the parts that the emulator does not have.
"""

from __future__ import annotations

import itertools
from urllib.parse import quote

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.date_literals import span
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import fill_orders
from tests.emulator.web import rest

DAY_S = 24 * 3600
BASE = "/services/data/v67.0"


@pytest.fixture
def filled(org, user):
    """Two accounts, three contacts (one without an account) and an order that has no boolean."""
    for name, revenue, contacts in (("Acme", 10, "AB"), ("Bolt", 30, ""), ("Core", None, "")):
        values = {"Name": name, "AnnualRevenue": revenue, "Industry": "Energy"}
        made = org.records.create("Account", values, user)
        for last in contacts:
            org.records.create("Contact", {"LastName": last, "AccountId": made}, user)
    org.records.create("Contact", {"LastName": "C", "Phone": "1"}, user)
    return lambda text: org.records.query(text, user).rows


def names(rows):
    """Return the value of the only column of each row."""
    return [value for row in rows for value in row.values()]


def test_fields_of_parents_are_selected_filtered_and_sorted_by(filled):
    """A field of a parent, up to five levels above, can stand wherever a field can.

    A record without a parent is found as if the parent's fields were empty; its parent is null.
    """
    rows = filled(
        "SELECT LastName, Account.Name, Account.Parent.Name FROM Contact ORDER BY LastName"
    )
    assert rows == [
        {"LastName": "A", "Account": {"Name": "Acme", "Parent": None}},
        {"LastName": "B", "Account": {"Name": "Acme", "Parent": None}},
        {"LastName": "C", "Account": None},
    ]
    found = filled("SELECT LastName FROM Contact WHERE Account.Name = 'acme' ORDER BY LastName")
    assert names(found) == ["A", "B"]
    assert names(filled("SELECT LastName FROM Contact WHERE Account.Name = null")) == ["C"]
    found = filled("SELECT LastName FROM Contact ORDER BY Account.Name NULLS LAST, LastName DESC")
    assert names(found) == ["B", "A", "C"]
    found = filled("SELECT COUNT(Id) n FROM Contact GROUP BY Account.Name ORDER BY COUNT(Id)")
    assert found == [{"n": 1}, {"n": 2}]


def test_a_boolean_of_a_missing_parent_is_false(filled):
    """Where there is no parent, its booleans count as false in a condition."""
    found = filled("SELECT LastName FROM Contact WHERE Account.Active__c = false ORDER BY LastName")
    assert names(found) == ["A", "B", "C"]


def test_parents_that_do_not_exist_are_refused(filled):
    """An unknown relationship is an INVALID_FIELD, as in an org; a polymorphic one, and a sixth
    level, are refused in words of their own.
    """
    for path, code in (
        ("Acount.Name", "INVALID_FIELD"),
        ("Account.Nothing", "INVALID_FIELD"),
        ("ReportsTo.ReportsTo.ReportsTo.ReportsTo.ReportsTo.ReportsTo.Id", "MALFORMED_QUERY"),
    ):
        with pytest.raises(RecordProblem) as refused:
            filled(f"SELECT {path} FROM Contact")
        assert refused.value.code == code
    with pytest.raises(RecordProblem, match="Party__r with several objects is not supported by"):
        filled("SELECT Party__r.Name FROM Order__c")


def test_only_visible_parents_are_shown(org, filled):
    """A user without View All does not see the fields of a parent that another user owns."""
    org.accounts.put_user("clerk@example.com", view_all=False)
    clerk = org.accounts.user("clerk@example.com")
    account = filled("SELECT Id FROM Account LIMIT 1")[0]["Id"]
    org.records.create("Contact", {"LastName": "own", "AccountId": account}, clerk)
    found = org.records.query("SELECT LastName, Account.Name FROM Contact", clerk).rows
    assert found == [{"LastName": "own", "Account": None}]


def test_aggregates_and_groups(filled):
    """COUNT, MIN, MAX, SUM and AVG ignore empty values, and work with and without GROUP BY. A
    column without an alias is called expr0, expr1 and so on.
    """
    text = "SELECT COUNT(Id), COUNT(AnnualRevenue), MIN(Name), MAX(AnnualRevenue) m,"
    text += " SUM(AnnualRevenue), AVG(AnnualRevenue) FROM Account"
    assert filled(text) == [
        {"expr0": 3, "expr1": 2, "expr2": "Acme", "m": 30.0, "expr3": 40.0, "expr4": 20.0}
    ]
    text = "SELECT Industry, COUNT_DISTINCT(Name) c FROM Account GROUP BY Industry"
    assert filled(text) == [{"Industry": "Energy", "c": 3}]
    assert filled("SELECT COUNT(Id) FROM Account WHERE Name = 'nobody'") == [{"expr0": 0}]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SELECT Name, COUNT(Id) FROM Account", "MALFORMED_QUERY"),
        ("SELECT SUM(Name) FROM Account", "INVALID_FIELD"),
        ("SELECT Name n FROM Account", "MALFORMED_QUERY"),
        ("SELECT COUNT(Id) FROM Account ORDER BY Name", "MALFORMED_QUERY"),
        ("SELECT Name FROM Account ORDER BY COUNT(Id)", "MALFORMED_QUERY"),
        ("SELECT Id FROM Account OFFSET 2001", "NUMBER_OUTSIDE_VALID_RANGE"),
        ("SELECT FIELDS(ALL) FROM Account", "MALFORMED_QUERY"),
        ("SELECT FIELDS(CUSTOM) FROM Account LIMIT 201", "MALFORMED_QUERY"),
        ("SELECT Id FROM Account WHERE Id IN (SELECT LastName FROM Contact)", "INVALID_FIELD"),
        ("SELECT Id FROM Account ALL ROWS", "MALFORMED_QUERY"),
    ],
)
def test_what_an_org_refuses_is_refused(filled, text, code):
    """A query that breaks a rule of SOQL has the error code of an org."""
    with pytest.raises(RecordProblem) as refused:
        filled(text)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "text",
    [
        "SELECT Id, (SELECT Id FROM Contacts) FROM Account",
        "SELECT TYPEOF What WHEN Account THEN Phone END FROM Event",
        "SELECT CALENDAR_YEAR(CreatedDate) FROM Account",
        "SELECT FORMAT(AnnualRevenue) FROM Account",
        "SELECT COUNT(Id) FROM Account GROUP BY ROLLUP(Industry)",
        "SELECT COUNT(Id) FROM Account GROUP BY Industry HAVING COUNT(Id) > 1",
        "SELECT Id FROM Account USING SCOPE mine",
        "SELECT Id FROM Account FOR UPDATE",
        "SELECT Id FROM Account WITH DATA CATEGORY Geography__c AT usa__c",
        "SELECT Id FROM Lead",
    ],
)
def test_what_the_emulator_lacks_is_not_called_malformed(filled, text):
    """SOQL that an org understands and the emulator does not is refused with a code of its own.

    So is a standard object that it lacks. No org has that code, so it is not taken for an org's
    answer to a mistake.
    """
    with pytest.raises(RecordProblem, match="is not supported by the emulator") as refused:
        filled(text)
    assert (refused.value.code, refused.value.status) == ("NOT_SUPPORTED_BY_THE_EMULATOR", 400)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.Name FROM Account a WHERE a.Name = 'Acme'",
        "SELECT Account.Name FROM Account AS acc WHERE acc.Name = 'Acme' ORDER BY acc.Name",
        "SELECT Name FROM Account WHERE Id IN (SELECT AccountId FROM Contact)",
        "SELECT Name FROM Account WHERE Id IN (SELECT AccountId FROM Contact WHERE LastName = 'A')",
        "SELECT toLabel(Name) FROM Account WHERE toLabel(Name) = 'Acme'",
        "SELECT Name FROM Account WHERE Name = 'Acme' FOR VIEW",
        "SELECT Name FROM Account WHERE Name = 'Acme' LIMIT 1 FOR REFERENCE",
        "SELECT Name FROM Account USING SCOPE everything WHERE Name = 'Acme'",
        "SELECT Name FROM Account WHERE Name = 'Acme' WITH SECURITY_ENFORCED ORDER BY Name",
    ],
)
def test_other_clauses_of_ordinary_tools(filled, text):
    """Aliases, semi-joins, toLabel and the clauses without meaning here are understood."""
    assert filled(text) == [{"Name": "Acme"}]


def test_an_anti_join(filled):
    """NOT IN (SELECT …) finds the records that no row of the inner query names."""
    text = "SELECT Name FROM Account WHERE Id NOT IN (SELECT AccountId FROM Contact)"
    assert names(filled(f"{text} ORDER BY Name")) == ["Bolt", "Core"]


def test_fields_selects_all_standard_or_custom_fields(org, filled):
    """FIELDS(ALL), FIELDS(STANDARD) and FIELDS(CUSTOM) select what their name says."""
    every = {field.name for field in org.records.describe("Account").fields}
    custom = {name for name in every if name.endswith("__c")}
    for which, wanted in (("ALL", every), ("STANDARD", every - custom), ("CUSTOM", custom)):
        (row,) = filled(f"SELECT FIELDS({which}) FROM Account LIMIT 1")
        assert set(row) == wanted


def test_an_empty_text_is_null(filled):
    """A comparison with the empty text is one with null."""
    assert names(filled("SELECT LastName FROM Contact WHERE Phone = '' ORDER BY LastName")) == [
        "A",
        "B",
    ]
    assert names(filled("SELECT LastName FROM Contact WHERE Phone != ''")) == ["C"]


def test_null_is_false_for_a_boolean(org, user):
    """A boolean is never empty: a record that was there before the field was added is shown as
    false, and is found by = false and = null alike.
    """
    org.records.create("Order__c", {"Name": "old"}, user)
    order = org.records.describe("Order__c")
    org.records.put_object(order.with_field({"name": "New__c", "type": "boolean"}))
    org.records.create("Order__c", {"Name": "new", "New__c": True}, user)
    for where in ("= false", "!= true", "= null", "IN (false)", "NOT IN (true)"):
        rows = org.records.query(
            f"SELECT Name, New__c FROM Order__c WHERE New__c {where}", user
        ).rows
        assert rows == [{"Name": "old", "New__c": False}], where
    rows = org.records.query("SELECT Name FROM Order__c WHERE New__c != null", user).rows
    assert rows == [{"Name": "new"}]


@pytest.mark.parametrize(
    ("literal", "first", "after"),
    [
        ("yesterday", "2026-03-17", "2026-03-18"),
        ("TODAY", "2026-03-18", "2026-03-19"),
        ("TOMORROW", "2026-03-19", "2026-03-20"),
        ("LAST_WEEK", "2026-03-08", "2026-03-15"),
        ("THIS_WEEK", "2026-03-15", "2026-03-22"),
        ("NEXT_MONTH", "2026-04-01", "2026-05-01"),
        ("LAST_QUARTER", "2025-10-01", "2026-01-01"),
        ("THIS_FISCAL_YEAR", "2026-01-01", "2027-01-01"),
        ("LAST_90_DAYS", "2025-12-18", "2026-03-19"),
        ("NEXT_90_DAYS", "2026-03-19", "2026-06-17"),
        ("LAST_N_DAYS:3", "2026-03-15", "2026-03-19"),
        ("NEXT_N_DAYS:3", "2026-03-19", "2026-03-22"),
        ("N_DAYS_AGO:3", "2026-03-15", "2026-03-16"),
        ("LAST_N_WEEKS:2", "2026-03-01", "2026-03-15"),
        ("LAST_N_MONTHS:2", "2026-01-01", "2026-03-01"),
        ("NEXT_N_QUARTERS:2", "2026-04-01", "2026-10-01"),
        ("N_YEARS_AGO:2", "2024-01-01", "2025-01-01"),
    ],
)
def test_the_days_of_a_date_literal(literal, first, after):
    """A date literal stands for whole days, weeks from Sunday, months, quarters or years in GMT."""
    wednesday = 1_773_835_200  # 2026-03-18T12:00:00Z
    assert [day.isoformat() for day in span(literal, wednesday)] == [first, after]


def test_date_literals_in_conditions(org, user, clock: ManualClock):
    """A date or datetime equals a date literal within its days, and is before or after them
    otherwise.
    """
    org.records.create("Account", {"Name": "old", "SLAExpirationDate__c": "2001-01-01"}, user)
    clock.jump(2 * DAY_S)
    org.records.create("Account", {"Name": "new"}, user)
    for where, wanted in (
        ("CreatedDate = TODAY", ["new"]),
        ("CreatedDate != TODAY", ["old"]),
        ("CreatedDate < TODAY", ["old"]),
        ("CreatedDate <= TODAY", ["new", "old"]),
        ("CreatedDate > N_DAYS_AGO:2", ["new"]),
        ("CreatedDate >= LAST_N_DAYS:2", ["new", "old"]),
        ("SLAExpirationDate__c < today", ["old"]),
        ("SLAExpirationDate__c = NEXT_WEEK", []),
    ):
        rows = org.records.query(f"SELECT Name FROM Account WHERE {where} ORDER BY Name", user).rows
        assert names(rows) == wanted, where


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A running emulator with 2,500 orders and a contact of an account."""
    with EmulatorServer(tmp_path_factory.mktemp("org")) as emulator:
        fill_orders(emulator, 2500)
        user = emulator.accounts.user("user@example.com")
        account = emulator.records.create("Account", {"Name": "Acme"}, user)
        emulator.records.create("Contact", {"LastName": "A", "AccountId": account}, user)
        yield emulator


def ask(served, text, more=""):
    """Send a query, and return the JSON of the response."""
    reply = rest(served, "GET", f"{BASE}/query?q={quote(text)}{more}")
    assert reply.status == 200, reply.text
    return reply.json


def test_parents_and_aggregates_have_attributes(served):
    """Each record of a row, the parents too, has its type and URL; a row with aggregates has the
    type AggregateResult.
    """
    (row,) = ask(served, "SELECT Id, Account.Name, Owner.Username FROM Contact")["records"]
    assert row["attributes"]["url"] == f"{BASE}/sobjects/Contact/{row['Id']}"
    assert row["Account"]["attributes"]["type"] == "Account"
    assert row["Account"]["attributes"]["url"].startswith(f"{BASE}/sobjects/Account/001")
    assert row["Owner"]["Username"] == "user@example.com"
    assert row["Owner"]["attributes"]["url"].startswith(f"{BASE}/sobjects/User/005")
    found = ask(served, "SELECT COUNT(Id) FROM Contact")
    assert found == {
        "totalSize": 1,
        "done": True,
        "records": [{"attributes": {"type": "AggregateResult"}, "expr0": 1}],
    }


def test_pages_have_parents(served):
    """Further pages of a query have the fields of parents, too."""
    page = ask(served, "SELECT Name, Owner.Name FROM Order__c ORDER BY Owner.Name, Quantity__c")
    rest_of = rest(served, "GET", page["nextRecordsUrl"]).json
    rows = [*page["records"], *rest_of["records"]]
    assert len(page["records"]) == 2000
    assert [row["Name"] for row in rows] == [f"order {n}" for n in range(1, 2501)]
    assert {row["Owner"]["Name"] for row in rows} == {"user"}


def test_a_large_grouped_query_is_refused(served):
    """A query with aggregates has no further pages: beyond one page it is refused, as in an org."""
    text = quote("SELECT Name, COUNT(Id) FROM Order__c GROUP BY Name")
    assert rest(served, "GET", f"{BASE}/query?q={text}").code == (400, "EXCEEDED_ID_LIMIT")


def test_columns_of_a_query(served):
    """With `columns=true`, the response describes the columns instead: fields, those of parents
    below their relationship, and aggregates with their alias. The official CLI needs it.
    """
    text = "SELECT Name, Account.Name, Account.Owner.Name FROM Contact"
    found = ask(served, text, "&columns=true")
    shape = [
        (c["columnName"], c["aggregate"], [j["columnName"] for j in c["joinColumns"]])
        for c in found["columnMetadata"]
    ]
    assert shape == [("Name", False, []), ("Account", False, ["Name", "Owner"])]
    assert found["entityName"] == "Contact"
    found = ask(served, "SELECT COUNT(Id), MAX(Name) n FROM Account", "&columns=true")
    assert [
        (c["columnName"], c["aggregate"], c["displayName"]) for c in found["columnMetadata"]
    ] == [
        ("expr0", True, "COUNT(Id)"),
        ("n", True, "n"),
    ]


def test_the_org_and_its_users_can_be_queried(served):
    """User and Organization have what the emulator knows; RecordType and Profile are empty. All of
    SOQL works on them, because there is one evaluator.
    """
    (user,) = ask(served, "SELECT FIELDS(ALL) FROM User WHERE IsActive = true LIMIT 9")["records"]
    assert user["Username"] == user["Email"] == "user@example.com"
    (org,) = ask(served, "SELECT Id, IsSandbox FROM Organization")["records"]
    assert org["Id"] == served.tenant_id
    assert org["IsSandbox"] is True
    for name in ("RecordType", "Profile"):
        assert ask(served, f"SELECT Id, Name FROM {name}")["records"] == []
    text = (
        "SELECT COUNT(Id) FROM User WHERE NOT (Username != 'USER@example.com' OR IsActive = null)"
    )
    assert ask(served, text)["records"][0]["expr0"] == 1
    text = "SELECT Assignee.Username, PermissionSet.Name FROM PermissionSetAssignment"
    (row, *_) = ask(served, text)["records"]
    assert row["Assignee"]["Username"] == "user@example.com"
    text = "SELECT LastName FROM Contact WHERE OwnerId IN (SELECT Id FROM User)"
    assert ask(served, text)["totalSize"] == 1


def test_entity_definitions_of_objects(served):
    """EntityDefinition knows the org's objects and events, in both query resources."""
    text = "SELECT QualifiedApiName, KeyPrefix FROM EntityDefinition WHERE QualifiedApiName IN"
    text += " ('Account', 'Order_Event__e')"
    for area in ("query", "tooling/query"):
        found = rest(served, "GET", f"{BASE}/{area}?q={quote(text)}").json["records"]
        assert [(row["QualifiedApiName"], row["KeyPrefix"]) for row in found] == [
            ("Account", "001"),
            ("Order_Event__e", None),
        ]


@pytest.mark.parametrize("given", list(itertools.product(("", "x"), ("WHERE", "FROM", "(", ","))))
def test_a_truncated_query_is_malformed(filled, given):
    """A query that ends too early is refused as malformed, wherever it ends."""
    for text in (f"SELECT {given[0]} {given[1]}", f"SELECT Id FROM Account {given[1]}"):
        with pytest.raises(RecordProblem) as refused:
            filled(text)
        assert refused.value.code == "MALFORMED_QUERY"
