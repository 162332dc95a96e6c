"""Tests of records over REST: paths, statuses and bodies as clients expect them."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import events, select
from tests.emulator.web import APP, ask, token

BASE = "/services/data/v67.0"
ADMIN = "/admin"
ORDERS = "/data/Order__ChangeEvent"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An emulator with change events for Order__c, shared by the tests of this module."""
    with EmulatorServer(tmp_path_factory.mktemp("org")) as emulator:
        select(emulator, "Order__c")
        yield emulator


@pytest.fixture
def rest(shared):
    """Delete all orders and events; return a function that sends a request to the org."""
    query = "SELECT Id FROM Order__c"
    user = shared.accounts.user("user@example.com")
    for row in shared.records.query(query, user).rows:
        shared.records.delete("Order__c", row["Id"], user)
    shared.bus.age_out()

    def call(method, path, body=None, **headers):
        headers = {name.replace("_", "-"): text for name, text in headers.items()}
        headers["Authorization"] = f"Bearer {shared.access_token}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        start = "" if path.startswith(("/services", ADMIN)) else BASE
        return ask(shared, method, start + path, data, headers)

    return call


def find(rest, soql, **headers):
    """Run a SOQL query, and return the response."""
    return rest("GET", f"/query?q={quote(soql)}", **headers)


def test_create_read_update_and_delete_a_record(shared, rest):
    """Creating, reading, updating and deleting a record return the documented responses.

    Each change publishes an event, whose origin includes the client's name if the request gives it.
    """
    made = rest("POST", "/sobjects/Order__c", {"Name": "1", "Quantity__c": 2})
    assert made.status == 201
    assert made.json == {"id": made.json["id"], "success": True, "errors": []}
    path = f"/sobjects/Order__c/{made.json['id']}"
    assert made.headers["Location"] == BASE + path
    read = rest("GET", path).json
    assert read["attributes"] == {"type": "Order__c", "url": BASE + path}
    assert (read["Name"], read["Quantity__c"], read["Gift__c"]) == ("1", 2.0, False)
    some = rest("GET", f"{path}?fields=Name").json
    assert set(some) == {"attributes", "Name", "Id"}
    client = {"Sforce_Call_Options": "client=loader, defaultNamespace=x"}
    changed = rest("PATCH", path, {"Name": "2"}, **client)
    assert (changed.status, changed.text) == (204, "")
    assert rest("DELETE", path).status == 204
    assert rest("GET", path).code == (404, "ENTITY_IS_DELETED")
    assert rest("GET", "/sobjects/Order__c/a00SB0000009999YAA").code == (404, "NOT_FOUND")
    headers = [event["ChangeEventHeader"] for event in events(shared, ORDERS)]
    assert [header["changeType"] for header in headers] == ["CREATE", "UPDATE", "DELETE"]
    assert [header["changeOrigin"] for header in headers] == [
        "com/salesforce/api/rest/67.0",
        "com/salesforce/api/rest/67.0;client=loader",
        "com/salesforce/api/rest/67.0",
    ]


def test_upsert_by_an_external_id(rest):
    """An upsert returns 201 for a new record and 200 for an existing one.

    API version 45.0 returns 204 for an existing one.
    """
    path = "/sobjects/Order__c/External_Id__c/a%2Fb"
    made = rest("PATCH", path, {"Name": "1"})
    assert (made.status, made.json["created"]) == (201, True)
    again = rest("PATCH", path, {"Name": "2"})
    assert (again.status, again.json["created"]) == (200, False)
    assert again.json["id"] == made.json["id"]
    assert rest("PATCH", f"/services/data/v45.0{path}", {"Name": "3"}).status == 204
    assert rest("GET", path).json["Name"] == "3"
    assert rest("PATCH", "/sobjects/Order__c/Name/1", {}).code == (404, "NOT_FOUND")
    assert rest("DELETE", path).status == 204
    assert rest("GET", path).code == (404, "NOT_FOUND")


def test_errors_use_salesforces_format(rest):
    """An error is an array of objects with `message`, `errorCode` and the affected fields."""
    refused = rest("POST", "/sobjects/Order__c", {"Quantity__c": 1})
    assert refused.code == (400, "REQUIRED_FIELD_MISSING")
    assert refused.json[0]["fields"] == ["Name"]
    assert refused.json[0]["message"] == "Required fields are missing: [Name]"
    assert rest("POST", "/sobjects/Order__c", [1]).code == (400, "JSON_PARSER_ERROR")
    assert rest("POST", "/sobjects/Nothing__c", {}).code == (404, "NOT_FOUND")
    assert find(rest, "SELECT Id FROM Nothing__c").code == (400, "INVALID_TYPE")
    assert find(rest, "SELECT Colour FROM Order__c").code == (400, "INVALID_FIELD")
    assert find(rest, "SELECT Id FROM").code == (400, "MALFORMED_QUERY")
    missing = rest("GET", "/sobjects/Order__c/x/y/layouts/z")
    assert missing.code == (404, "NOT_FOUND")
    unserved = rest("GET", "/nothing/reports")
    assert unserved.code == (404, "NOT_FOUND")
    assert "GET /services/data/v67.0/nothing/reports is not served" in unserved.text


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("/nothing/reports", "/nothing/reports is not served"),
        ("/sobjects/Lead", "/sobjects/Lead"),
        ("/sobjects/Lead/describe", "/sobjects/Lead/describe"),
        ("/sobjects/Lead/00QSB0000000001YAA", "/sobjects/Lead/00QSB0000000001YAA"),
        ("/sobjects/Order__c/External_Id__c/nobody", "/sobjects/Order__c/External_Id__c/nobody"),
        ("/services/data/v999.0/limits", "/v999.0/limits"),
    ],
)
def test_not_found_errors_name_the_requested_path(rest, path, missing):
    """A 404 response names the requested path, so that it appears in a client's log."""
    reply = rest("GET", path)
    assert reply.code == (404, "NOT_FOUND")
    (error,) = reply.json
    assert error["message"].startswith("The requested resource does not exist: GET /services/data/")
    assert error["message"].endswith(missing)


def test_query_results_are_paged(rest):
    """A page has as many rows as the client requests, and nextRecordsUrl leads to the next page.

    Unknown and outdated cursors are rejected.
    """
    given = [{"attributes": {"type": "Order__c"}, "Name": f"{n:03}"} for n in range(450)]
    for start in range(0, 450, 150):
        rest("POST", "/composite/sobjects", {"records": given[start : start + 150]})
    wish = {"Sforce_Query_Options": "batchSize=200"}
    first = find(rest, "SELECT Name FROM Order__c ORDER BY Name", **wish).json
    assert (first["totalSize"], first["done"], len(first["records"])) == (450, False, 200)
    names, page = [], first
    while True:
        names += [row["Name"] for row in page["records"]]
        if page["done"]:
            break
        page = rest("GET", page["nextRecordsUrl"]).json
    assert names == [f"{n:03}" for n in range(450)]
    assert "nextRecordsUrl" not in page
    count = find(rest, "SELECT COUNT() FROM Order__c").json
    assert count == {"totalSize": 450, "done": True, "records": []}
    assert rest("GET", "/query/01gSB0000009999YAA-200").code == (400, "INVALID_QUERY_LOCATOR")
    far = first["nextRecordsUrl"].rpartition("-")[0] + "-" + "9" * 5000
    assert rest("GET", far).code == (400, "INVALID_QUERY_LOCATOR")
    for _ in range(10):  # ten later cursors end this one
        find(rest, "SELECT Name FROM Order__c", **wish)
    assert rest("GET", first["nextRecordsUrl"]).code == (400, "INVALID_QUERY_LOCATOR")


def test_a_later_page_has_the_current_values_of_its_rows(rest):
    """A later page returns the rows that the query originally matched, with their current values.

    A row deleted in the meantime is included, and a new row is not.
    """
    given = [{"attributes": {"type": "Order__c"}, "Name": f"{n:03}"} for n in range(202)]
    for start in range(0, 202, 101):
        rest("POST", "/composite/sobjects", {"records": given[start : start + 101]})
    soql = "SELECT Name, Notes__c FROM Order__c ORDER BY Name"
    first = find(rest, soql, Sforce_Query_Options="batchSize=200").json
    again = find(rest, "SELECT Id FROM Order__c ORDER BY Name").json
    ids = [row["Id"] for row in again["records"]]
    rest("DELETE", f"/sobjects/Order__c/{ids[200]}")
    rest("PATCH", f"/sobjects/Order__c/{ids[201]}", {"Notes__c": "changed"})
    rest("POST", "/sobjects/Order__c", {"Name": "999"})
    page = rest("GET", first["nextRecordsUrl"]).json
    found = [(row["Name"], row["Notes__c"]) for row in page["records"]]
    assert found == [("200", None), ("201", "changed")]


@pytest.mark.parametrize(
    "path",
    ["/query", "/composite/sobjects/Order__c", "/sobjects/Order_Event__e/eventSchema"],
)
@pytest.mark.parametrize("asked", ["&".join(["a=1"] * 30), "q=%ff"])
def test_an_invalid_query_string_is_a_client_error(rest, path, asked):
    """A query string that cannot be parsed returns 400 MALFORMED_QUERY."""
    assert rest("GET", f"{path}?{asked}").code == (400, "MALFORMED_QUERY")


def test_query_all_finds_deleted_records(rest):
    """`queryAll` returns records in the Recycle Bin, and `query` does not."""
    made = rest("POST", "/sobjects/Order__c", {"Name": "gone"}).json["id"]
    rest("DELETE", f"/sobjects/Order__c/{made}")
    soql = "SELECT Id, IsDeleted FROM Order__c WHERE Name = 'gone'"
    assert find(rest, soql).json["totalSize"] == 0
    (row,) = rest("GET", f"/queryAll?q={quote(soql)}").json["records"]
    assert (row["Id"], row["IsDeleted"]) == (made, True)


def test_a_collection_is_one_transaction(shared, rest):
    """The events of a collection request share a transaction key and a commit number.

    A record that is rejected does not affect the others.
    """
    records = [
        {"attributes": {"type": "Order__c"}, "Name": "1"},
        {"attributes": {"type": "Order__c"}},
        {"attributes": {"type": "Order__c"}, "Name": "2"},
    ]
    results = rest("POST", "/composite/sobjects", {"records": records}).json
    assert [result["success"] for result in results] == [True, False, True]
    assert results[1] == {
        "success": False,
        "errors": [
            {
                "statusCode": "REQUIRED_FIELD_MISSING",
                "message": "Required fields are missing: [Name]",
                "fields": ["Name"],
            }
        ],
    }
    headers = [event["ChangeEventHeader"] for event in events(shared, ORDERS)]
    assert [header["sequenceNumber"] for header in headers] == [1, 2]
    for shared_by_all in ("transactionKey", "commitNumber", "commitTimestamp"):
        assert len({header[shared_by_all] for header in headers}) == 1
    ids = [results[0]["id"], results[2]["id"]]
    changes = [{"attributes": {"type": "Order__c"}, "id": one, "Name": "x"} for one in ids]
    rest("PATCH", "/composite/sobjects", {"records": changes})
    read = rest("POST", "/composite/sobjects/Order__c", {"ids": [*ids, "a00x"], "fields": ["Name"]})
    assert [row and row["Name"] for row in read.json] == ["x", "x", None]
    assert len(rest("DELETE", f"/composite/sobjects?ids={','.join(ids)}").json) == 2
    merged = [event["ChangeEventHeader"] for event in events(shared, ORDERS)][2:]
    assert [(header["changeType"], header["recordIds"]) for header in merged] == [
        ("UPDATE", ids),
        ("DELETE", ids),
    ]


def test_a_collection_may_alternate_between_objects(shared, rest):
    """A collection of twelve records that alternate between two objects is one transaction.

    Salesforce limits how often a collection may switch between objects; the emulator does not.
    """
    records = [
        {"attributes": {"type": "Account"}, "Name": "a"},
        {"attributes": {"type": "Order__c"}, "Name": "o"},
    ]
    results = rest("POST", "/composite/sobjects", {"records": records * 6}).json
    assert [result["success"] for result in results] == [True] * 12
    headers = [
        event["ChangeEventHeader"]
        for topic in ("/data/AccountChangeEvent", ORDERS)
        for event in events(shared, topic)
    ]
    assert sum(len(header["recordIds"]) for header in headers) == 12
    assert len({header["transactionKey"] for header in headers}) == 1


def test_all_or_none_rolls_everything_back(shared, rest):
    """With `allOrNone`, one bad record rolls back all others, and there are no events."""
    records = [
        {"attributes": {"type": "Order__c"}, "Name": "1"},
        {"attributes": {"type": "Order__c"}},
    ]
    results = rest("POST", "/composite/sobjects", {"allOrNone": True, "records": records}).json
    codes = [result["errors"][0]["statusCode"] for result in results]
    assert codes == ["ALL_OR_NONE_OPERATION_ROLLED_BACK", "REQUIRED_FIELD_MISSING"]
    assert find(rest, "SELECT COUNT() FROM Order__c").json["totalSize"] == 0
    assert events(shared, ORDERS) == []


def test_a_collection_has_at_most_200_records(rest):
    """A collection request with more than 200 records is rejected as a whole."""
    records = [{"attributes": {"type": "Order__c"}, "Name": "1"}] * 201
    assert rest("POST", "/composite/sobjects", {"records": records}).status == 400


def test_a_collection_upserts(rest):
    """A collection request upserts records by external id and reports which ones it created."""
    path = "/composite/sobjects/Order__c/External_Id__c"
    rest("PATCH", "/sobjects/Order__c/External_Id__c/a", {"Name": "1"})
    kind = {"attributes": {"type": "Order__c"}}
    records = [{**kind, "External_Id__c": one, "Name": one} for one in ("a", "b")]
    results = rest("PATCH", path, {"records": records}).json
    assert [(result["success"], result["created"]) for result in results] == [
        (True, False),
        (True, True),
    ]


def test_describe_returns_objects_and_their_fields(rest):
    """The describe responses list the org's objects and each field of an object.

    A field's description contains its references, picklist values and compound field.
    """
    everything = rest("GET", "/sobjects").json
    names = [row["name"] for row in everything["sobjects"]]
    assert names == ["Account", "Contact", "Opportunity", "Order__c"]
    assert rest("GET", "/sobjects/Account").json["objectDescribe"]["keyPrefix"] == "001"
    order = rest("GET", "/sobjects/order__c/describe").json
    fields = {field["name"]: field for field in order["fields"]}
    assert fields["Total__c"]["calculated"]
    assert not fields["Total__c"]["updateable"]
    assert fields["Party__c"]["referenceTo"] == ["Account", "Contact"]
    assert fields["Party__c"]["polymorphicForeignKey"]
    assert fields["Status__c"]["picklistValues"][0]["value"] == "Draft"
    assert fields["External_Id__c"]["externalId"]
    contact = rest("GET", "/sobjects/Contact/describe").json
    parts = [f["name"] for f in contact["fields"] if f["compoundFieldName"] == "Name"]
    assert parts == ["Salutation", "FirstName", "LastName"]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("Name = 'ABC'", ["abc"]),
        ("Name != 'abc'", ["a_c", "it's", "xyz"]),
        ("Name LIKE 'a%c'", ["a_c", "abc"]),
        (r"Name LIKE 'a\_c'", ["a_c"]),
        (r"Name = 'it\'s'", ["it's"]),
        ("Quantity__c > 1 AND Quantity__c <= 3", ["a_c", "it's"]),
        ("Quantity__c = null", ["xyz"]),
        ("Quantity__c != 2", ["abc", "it's", "xyz"]),
        ("NOT (Quantity__c = 2)", ["abc", "it's", "xyz"]),
        ("Name IN ('abc', 'XYZ')", ["abc", "xyz"]),
        ("Name NOT IN ('abc', 'XYZ') AND Gift__c = true", ["a_c"]),
        ("Quantity__c IN (1, null)", ["abc", "xyz"]),
        ("Quantity__c NOT IN (1, null)", ["a_c", "it's"]),
        ("Quantity__c NOT IN (1)", ["a_c", "it's", "xyz"]),
        ("Ship_On__c >= 2026-01-02", ["a_c", "it's"]),
        (
            "CreatedDate > 2020-01-01T00:00:00+01:00 AND (Name = 'abc' OR Name = 'xyz')",
            ["abc", "xyz"],
        ),
    ],
)
def test_soql_conditions_match_as_in_salesforce(shared, where, names):
    """SOQL conditions match the same records as in Salesforce.

    An empty field is not equal to any value.
    """
    user = shared.accounts.user("user@example.com")
    rows = [
        {"Name": "abc", "Quantity__c": 1, "Ship_On__c": "2026-01-01"},
        {"Name": "a_c", "Quantity__c": 2, "Ship_On__c": "2026-01-02", "Gift__c": True},
        {"Name": "it's", "Quantity__c": 3, "Ship_On__c": "2026-01-03"},
        {"Name": "xyz"},
    ]
    made = [shared.records.create("Order__c", row, user) for row in rows]
    ids = ", ".join(f"'{one}'" for one in made)
    soql = f"SELECT Name FROM Order__c WHERE Id IN ({ids}) AND ({where}) ORDER BY Name"
    assert [row["Name"] for row in shared.records.query(soql, user).rows] == names
    for one in made:
        shared.records.delete("Order__c", one, user)


def test_queries_by_id_range_return_each_record_once(shared):
    """A client that reads an object in ranges of ids receives each record once, in id order.

    The 15-character form of an id is equivalent to its 18-character form.
    """
    user = shared.accounts.user("user@example.com")
    made = [shared.records.create("Order__c", {"Name": str(n)}, user) for n in range(5)]
    found: list[str] = []
    after = made[0]
    while True:
        soql = f"SELECT Id FROM Order__c WHERE Id > '{after}' ORDER BY Id LIMIT 2"
        rows = shared.records.query(soql, user).rows
        if not rows:
            break
        found += [row["Id"] for row in rows]
        after = found[-1][:15]
    assert found == sorted(made)[1:]
    for one in made:
        shared.records.delete("Order__c", one, user)


def test_a_condition_can_be_long(shared):
    """A condition may join 4,000 comparisons with OR, as data loaders write them."""
    user = shared.accounts.holder("")
    where = " OR ".join(f"Name = 'n{n}'" for n in range(4000))
    assert shared.records.query(f"SELECT Id FROM Order__c WHERE {where}", user).total == 0


@pytest.mark.parametrize(
    "where",
    ["NOT " * 20_000 + "Name = 'a'", f"Name LIKE '{'a%' * 30_000}'"],
    ids=["deep", "long"],
)
def test_an_excessive_condition_is_malformed(shared, where):
    """A condition with too deep a nesting or too long a pattern fails with MALFORMED_QUERY."""
    with pytest.raises(RecordProblem) as found:
        shared.records.query(f"SELECT Id FROM Order__c WHERE {where}", shared.accounts.holder(""))
    assert found.value.code == "MALFORMED_QUERY"


@pytest.mark.parametrize(
    ("soql", "code"),
    [
        ("SELECT Id FROM Order__c WHERE Quantity__c = 'one'", "INVALID_FIELD"),
        ("SELECT Id FROM Order__c WHERE Name = 1", "INVALID_FIELD"),
        ("SELECT Id FROM Order__c WHERE Gift__c > true", "INVALID_FIELD"),
        ("SELECT Id FROM Order__c WHERE Notes__c = 'x'", "INVALID_FIELD"),
        (
            "SELECT Id FROM Order__c WHERE Name = 'a' AND Name = 'b' OR Name = 'c'",
            "MALFORMED_QUERY",
        ),
        ("SELECT Id, Id FROM Order__c", "MALFORMED_QUERY"),
        ("SELECT Id FROM Order__c GROUP BY Name", "MALFORMED_QUERY"),
        ("SELECT Id FROM Order__c WHERE " + "(" * 60 + "Name = 'a'" + ")" * 60, "MALFORMED_QUERY"),
    ],
)
def test_invalid_soql_is_rejected(rest, soql, code):
    """A query that is invalid or unsupported is rejected."""
    assert find(rest, soql).code == (400, code)


def test_an_administrator_changes_objects_and_undeletes(shared, rest):
    """The admin endpoint adds and removes fields, and undeletes records.

    Invalid requests return 400.
    """
    field = {"name": "Colour__c", "type": "string"}
    added = rest("POST", f"{ADMIN}/objects", {"object": "Order__c", "add_field": field})
    assert added.json["object"] == "Order__c"
    made = rest("POST", "/sobjects/Order__c", {"Name": "1", "Colour__c": "red"}).json["id"]
    assert events(shared, ORDERS)[0]["Colour__c"] == "red"
    removed = {"object": "Order__c", "remove_field": "Colour__c"}
    assert rest("POST", f"{ADMIN}/objects", removed).status == 200
    assert rest("GET", f"/sobjects/Order__c/{made}?fields=Colour__c").status == 400
    for bad in (removed, {"object": "Nothing"}, {"object": "Order__c", "add_field": {"name": "x"}}):
        assert rest("POST", f"{ADMIN}/objects", bad).status == 400
    rest("DELETE", f"/sobjects/Order__c/{made}")
    record = {"object": "Order__c", "id": made}
    assert rest("POST", f"{ADMIN}/undelete", record).json == {"id": made}
    assert rest("GET", f"/sobjects/Order__c/{made}").status == 200
    assert rest("POST", f"{ADMIN}/undelete", record).status == 400


def test_the_token_determines_the_user(shared, rest):
    """The access token determines who owns new records and which records are visible.

    Users without View All see only their own records.
    """
    user = {"username": "clerk@example.com", "password": "word", "view_all": False}
    assert rest("POST", f"{ADMIN}/users", user).status == 200
    theirs = rest("POST", "/sobjects/Order__c", {"Name": "theirs"}).json["id"]
    fields = {**APP, "username": "clerk@example.com", "password": "word"}
    clerk = token(shared, "password", **fields).json["access_token"]
    headers = {"Authorization": f"Bearer {clerk}"}
    assert ask(shared, "GET", f"{BASE}/sobjects/Order__c/{theirs}", None, headers).status == 404
    count = f"{BASE}/query?q={quote('SELECT COUNT() FROM Order__c')}"
    assert ask(shared, "GET", count, None, headers).json["totalSize"] == 0
    headers["Content-Type"] = "application/json"
    made = ask(shared, "POST", f"{BASE}/sobjects/Order__c", b'{"Name": "own"}', headers).json["id"]
    assert ask(shared, "GET", count, None, headers).json["totalSize"] == 1
    clerk_id = shared.accounts.user("clerk@example.com").user_id
    assert rest("GET", f"/sobjects/Order__c/{made}").json["OwnerId"] == clerk_id


def test_daily_api_calls_are_limited(tmp_path):
    """Calls beyond the daily limit, which `limits` reports, return 403 until earlier ones are a day
    old.
    """
    clock = ManualClock()
    settings = Settings(daily_api_requests=3, token_lifetime_s=0.0)
    with EmulatorServer(tmp_path / "org", clock=clock, settings=settings) as emulator:

        def get(path, bearer=emulator.access_token):
            return ask(emulator, "GET", BASE + path, None, {"Authorization": f"Bearer {bearer}"})

        def left():
            return get("/limits").json["DailyApiRequests"]

        assert left() == {"Max": 3, "Remaining": 2}
        assert get("/limits", "not good").code == (401, "INVALID_SESSION_ID")
        clock.jump(3600.0)
        assert get("/sobjects").status == 200
        assert left()["Remaining"] == 0
        assert get("/sobjects").code == (403, "REQUEST_LIMIT_EXCEEDED")
        clock.jump(23.5 * 3600.0)  # the first call is older than a day
        assert left()["Remaining"] == 0
        assert get("/sobjects").code == (403, "REQUEST_LIMIT_EXCEEDED")


def test_api_calls_are_used_up_in_mid_run(shared, rest):
    """An admin call uses up the org's API calls, so that all REST calls return 403, and gives them
    back; it still works itself.
    """
    assert rest("POST", f"{ADMIN}/api-calls", {"remaining": 0}).json == {"remaining": 0}
    assert rest("GET", "/sobjects").code == (403, "REQUEST_LIMIT_EXCEEDED")
    assert rest("GET", "/limits").code == (403, "REQUEST_LIMIT_EXCEEDED")
    assert rest("POST", f"{ADMIN}/api-calls", {"remaining": 1}).status == 200
    assert rest("GET", "/sobjects").status == 200
    assert rest("GET", "/sobjects").code == (403, "REQUEST_LIMIT_EXCEEDED")
    for bad in ({"remaining": -1}, {"remaining": "1"}, {"most": 1}):
        assert rest("POST", f"{ADMIN}/api-calls", bad).status == 400
    assert rest("POST", f"{ADMIN}/api-calls", {}).status == 200
    assert rest("GET", "/sobjects").status == 200


def test_a_query_returns_the_users_view_all_permission(rest):
    """A query of UserPermissionAccess returns whether the user may view all records."""
    (row,) = find(rest, "SELECT PermissionsViewAllData FROM UserPermissionAccess").json["records"]
    assert row["PermissionsViewAllData"] is True
    fields = "ParentId, Parent.PermissionSetGroupId, PermissionsViewAllRecords"
    grants = f"SELECT {fields} FROM ObjectPermissions"
    assert find(rest, f"{grants} WHERE SobjectType = 'Account'").json["records"] == []
    assigned = "SELECT PermissionSetId, PermissionSetGroupId FROM PermissionSetAssignment"
    assert find(rest, assigned).json["records"][0]["PermissionSetGroupId"] is None
