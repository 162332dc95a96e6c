"""Tests of what the REST API does as a service: versions, limits, encodings, the resources that it
names, and those that the emulator does not have.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from sfpubsub.emulator.org.event_values import event_values
from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.records import values
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.server import EmulatorServer

from .support import ORDERS
from .web import ask, rest

BASE = "/services/data/v67.0"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: Any) -> Any:
    """An emulator shared by the tests of this module."""
    with EmulatorServer(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


@pytest.mark.parametrize("version", ["21", "30"])
def test_retired_versions_are_gone(shared, version):
    """API versions 21 to 30 answer 410, in all resources; 31 is served, and 20 was never there."""
    for path in ("", "/limits", "/sobjects/Account", "/query?q=SELECT+Id+FROM+Account"):
        reply = rest(shared, "GET", f"/services/data/v{version}.0{path}")
        assert reply.code == (410, "UNSUPPORTED_API_VERSION")
    assert rest(shared, "GET", "/services/data/v31.0/limits").status == 200
    assert rest(shared, "GET", "/services/data/v20.0/limits").status == 404


def test_every_answer_tells_the_use_of_api_calls(shared):
    """Sforce-Limit-Info counts the calls of the last 24 hours, in refusals too; a request without a
    valid token gets none, as it is not counted.
    """
    used = []
    for path in ("/limits", "/sobjects/Nothing", "/query?q=x"):
        name, _, counts = (
            rest(shared, "GET", BASE + path).headers["Sforce-Limit-Info"].partition("=")
        )
        count, most = counts.split("/")
        assert (name, int(most)) == ("api-usage", shared.api_calls.most)
        used.append(int(count))
    assert used == [used[0], used[0] + 1, used[0] + 2]
    assert "Sforce-Limit-Info" not in rest(shared, "GET", f"{BASE}/limits", None, "bad").headers


@pytest.mark.parametrize(
    ("coding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_requests_are_read(shared, coding, encode):
    """The body of a request may be compressed; one that is not what it says, ends too early, or
    becomes too large is refused. Without a valid token, it is not even read where it may be large.
    """
    headers = {
        "Authorization": f"Bearer {shared.access_token}",
        "Content-Type": "application/json",
        "Content-Encoding": coding,
    }
    path = f"{BASE}/sobjects/Account"
    body = encode(json.dumps({"Name": "compressed"}).encode())
    assert ask(shared, "POST", path, body, headers).status == 201
    assert ask(shared, "POST", path, b"{}", headers).status == 400
    assert ask(shared, "POST", path, body[:-6], headers).status == 400
    bomb = encode(bytes(60_000_000))
    assert ask(shared, "POST", path, bomb, headers).status == 413
    bad = {**headers, "Authorization": "Bearer bad"}
    assert ask(shared, "POST", path, bomb, bad).code == (401, "INVALID_SESSION_ID")
    headers["Content-Encoding"] = "br"
    assert ask(shared, "POST", path, body, headers).status == 415


def test_every_resource_that_is_named_answers(shared):
    """Each path that the API names, and each path below, answers a GET."""
    waiting, asked = [BASE], set()
    while waiting:
        path = waiting.pop()
        asked.add(path)
        if path.endswith(("/query", "/queryAll")) and "jobs" not in path:
            path += "?q=SELECT+Id+FROM+Account+LIMIT+0" if "tooling" not in path else ""
        if path.endswith("/tooling/query"):
            path += "?q=SELECT+Id+FROM+PlatformEventChannel"
        if path.endswith("/composite/sobjects"):
            continue  # for changes only
        reply = rest(shared, "GET", path.removeprefix(shared.http_url))
        assert reply.status == 200, (path, reply.text)
        found = reply.json if isinstance(reply.json, dict) else {}
        if "sobjects" in path:
            continue
        waiting += [
            value
            for value in found.values()
            if isinstance(value, str) and "/" in value and value not in asked and "v67" in value
        ]
    assert {f"{BASE}/jobs/ingest", f"{BASE}/tooling/query"} <= asked


def test_a_user_is_read_by_id(shared):
    """The users and the org can be read by id, in both forms, as records are.

    A field that they do not have is INVALID_FIELD, and an unknown id 404. The official CLI reads
    the user at its sign-in.
    """
    (found,) = rest(shared, "GET", f"{BASE}/query?q=SELECT+Id+FROM+User").json["records"]
    path = f"{BASE}/sobjects/User/{found['Id']}"
    read = rest(shared, "GET", path).json
    assert read["attributes"] == {"type": "User", "url": path}
    assert read["Username"] == "user@example.com"
    short = rest(shared, "GET", f"{path[:-3]}?fields=Username").json
    assert {name for name in short if name != "attributes"} == {"Username", "Id"}
    org = rest(shared, "GET", f"{BASE}/sobjects/Organization/{shared.tenant_id}").json
    assert org["IsSandbox"] is True
    assert rest(shared, "GET", f"{path}?fields=Nothing").code == (400, "INVALID_FIELD")
    assert rest(shared, "GET", f"{path[:-6]}999AAA").code == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path",
    [
        f"{BASE}/analytics/reports",
        f"{BASE}/search?q=x",
        f"{BASE}/composite/batch",
        f"{BASE}/composite/graph",
        f"{BASE}/ui-api/records/1",
        f"{BASE}/tooling/sobjects/ApexClass",
        f"{BASE}/sobjects/Account/updated?start=x",
        f"{BASE}/query?explain=SELECT+Id+FROM+Account",
        "/services/async/67.0/job",
        "/services/apexrest/mine",
    ],
)
def test_what_the_emulator_lacks_is_said(shared, path):
    """A resource of an org that the emulator does not have is refused in words and with a code that
    no org has, not as if the path had a typo; and not with a 5xx, after which clients try again.
    """
    reply = rest(shared, "GET", path)
    assert reply.code == (400, "NOT_SUPPORTED_BY_THE_EMULATOR")
    assert "is not supported by the emulator" in reply.text


def test_a_collection_publishes_platform_events(shared):
    """POST …/composite/sobjects publishes platform events beside records, and answers each as the
    resource of the event does. A bad one is refused alone.
    """
    kind = {"attributes": {"type": "order_event__E"}}
    records = [
        {**kind, "Order_Number__c": "c1", "Quantity__c": "2"},
        {"attributes": {"type": "Account"}, "Name": "beside"},
        {**kind, "Quantity__c": "1_000"},
        {"attributes": {"type": "Nothing__e"}},
        {**kind, "Order_Number__c": "c2"},
    ]
    before = shared.bus.tip()
    results = rest(shared, "POST", f"{BASE}/composite/sobjects", {"records": records}).json
    assert [result["success"] for result in results] == [True, True, False, False, True]
    codes = [error["statusCode"] for result in results for error in result["errors"]]
    queued = "OPERATION_ENQUEUED"
    assert codes == [queued, "JSON_PARSER_ERROR", "INVALID_TYPE", queued]
    found, _ = shared.bus.read(shared.bus.topic(ORDERS), before, 10)
    assert [event.event_id for event in found] == [
        results[0]["errors"][0]["message"],
        results[4]["errors"][0]["message"],
    ]
    decoded = [shared.bus.schema(event.schema_id).decode(event.payload) for event in found]
    assert [(row["Order_Number__c"], row["Quantity__c"]) for row in decoded] == [
        ("c1", 2.0),
        ("c2", None),
    ]


OF_TYPES = SObject(
    {
        "name": "Of_Types__c",
        "key_prefix": "a99",
        "fields": [
            {"name": f"{kind}__c", "type": kind}
            for kind in ("string", "boolean", "int", "double", "date", "datetime", "time")
        ],
    }
)
DOCS = {
    "string": "Text",
    "boolean": "Boolean",
    "int": "Integer",
    "double": "Double",
    "date": "DateOnly",
    "datetime": "DateTime",
    "time": "TimeOnly",
}


class _Schema:
    """A schema with a field of one type, as far as `event_values` looks at it."""

    name = "Of_Types__e"

    def __init__(self, kind: str) -> None:
        doc = f"Data:{DOCS[kind]}:00NSB0000000001"
        self.text = json.dumps({"fields": [{"name": f"{kind}__c", "doc": doc}]})


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        ("double", 1.5, 1.5),
        ("double", "1.5", 1.5),
        ("double", "-1e3", -1000.0),
        ("double", "+.5", 0.5),
        ("double", "1_000", None),
        ("double", 10**400, None),
        ("double", "\uff11\uff12", None),
        ("double", "1,000", None),
        ("double", " 1", None),
        ("double", "NaN", None),
        ("double", "Infinity", None),
        ("double", "0x10", None),
        ("double", True, None),
        ("int", "12", 12),
        ("int", 12.0, 12),
        ("int", 12.5, None),
        ("int", 2**31, None),
        ("boolean", "TRUE", True),
        ("boolean", "0", False),
        ("boolean", "yes", None),
        ("boolean", 1, None),
        ("date", "2024-02-29", "2024-02-29"),
        ("date", "2023-02-29", None),
        ("date", "20240229", None),
        ("date", "2024-W01-1", None),
        ("date", "2024-1-1", None),
        ("date", "\uff12024-01-01", None),
        ("datetime", "2024-01-01T12:30:00.000Z", "2024-01-01T12:30:00.000+0000"),
        ("datetime", "2024-01-01T12:30:00+01:00", "2024-01-01T11:30:00.000+0000"),
        ("datetime", "2024-01-01T12:30:00.250+0100", "2024-01-01T11:30:00.250+0000"),
        ("datetime", "2024-01-01", "2024-01-01T00:00:00.000+0000"),
        ("datetime", "2024-W01-1T00:00:00Z", None),
        ("datetime", "2024-01-01 12:30:00Z", None),
        ("datetime", "20240101T123000Z", None),
        ("datetime", "0001-01-01T00:00:00+01:00", None),
        ("datetime", 1_704_067_200_000, None),
        ("time", "12:30:00.250Z", "12:30:00.250Z"),
        ("time", "12:30", None),
        ("time", "24:00:00Z", None),
        ("string", 5, "5"),
        ("string", ["x"], None),
    ],
)
def test_how_values_are_written(kind, given, kept):
    """The documented forms of a value are accepted, for records and events alike, and what only
    Python reads is refused. The evidence page has the same table, with sources.
    """
    field = OF_TYPES.field(f"{kind}__c")
    values_given = {field.name: given}
    if kept is None:
        with pytest.raises(RecordProblem):
            values.keep(field, given)
        with pytest.raises(BadValue):
            event_values(_Schema(kind), values_given, "005", 0.0)
    else:
        stored = values.keep(field, given)
        assert stored == kept
        shown = event_values(_Schema(kind), values_given, "005", 0.0)[field.name]
        assert shown == values.in_event(field, stored)
