"""Platform events over REST, and what web pages of other origins may do with the HTTP port."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfpubsub.emulator.org.accounts import user_id
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from .support import CHANGES, ORDERS, Client
from .web import ask, rest

EVENTS = "/services/data/v62.0/sobjects/Order_Event__e"
SCHEMAS = "/services/data/v62.0/event/eventSchema"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: Any) -> Any:
    """One emulator for all tests here; the topic is theirs together."""
    settings = Settings(cors_origins="loopback https://app.example.com")
    with EmulatorServer(tmp_path_factory.mktemp("emulator"), settings=settings) as emulator:
        yield emulator


def decoded(emulator: Any, event: Any) -> dict[str, Any]:
    return emulator.bus.schema(event.event.schema_id).decode(event.event.payload)


def test_an_event_is_published_by_creating_it(emulator):
    """The answer is as documented, its message the event's id; types and names are converted."""
    client = Client(emulator.grpc_target, emulator.metadata)
    try:
        body = {
            "attributes": {"type": "Order_Event__e"},
            "order_number__C": "A-1",
            "Quantity__c": 3,
            "Has_Shipped__c": True,
            "Ordered_At__c": "2026-11-22T10:30:00.250+0100",
            "City__c": None,
        }
        reply = rest(emulator, "POST", EVENTS + "/", body)
        assert reply.status == 201
        (queued,) = reply.json["errors"]
        assert (reply.json["success"], queued["statusCode"]) == (True, "OPERATION_ENQUEUED")
        event = client.subscribe().events(1)[0]
    finally:
        client.close()
    assert event.event.id == queued["message"]
    values = decoded(emulator, event)
    assert values["Order_Number__c"] == "A-1"
    assert values["Quantity__c"] == 3.0
    assert values["Ordered_At__c"] == 1_795_339_800_250
    assert (values["Has_Shipped__c"], values["City__c"]) == (True, None)
    assert values["CreatedById"] == user_id(1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"Nothing__c": 1}, "INVALID_FIELD"),
        ({"CreatedDate": "2026-11-22T10:30:00Z"}, "INVALID_FIELD_FOR_INSERT_UPDATE"),
        ({"EventUuid": "x"}, "INVALID_FIELD_FOR_INSERT_UPDATE"),
        ({"Quantity__c": "3"}, "JSON_PARSER_ERROR"),
        ({"Quantity__c": True}, "JSON_PARSER_ERROR"),
        ({"Ordered_At__c": "yesterday"}, "JSON_PARSER_ERROR"),
        ({"Ordered_At__c": 1}, "JSON_PARSER_ERROR"),
        ({"Has_Shipped__c": "true"}, "JSON_PARSER_ERROR"),
        ({"Order_Number__c": 1}, "JSON_PARSER_ERROR"),
        ({"Notes__c": "x" * 200_000, "City__c": ["x"]}, "JSON_PARSER_ERROR"),
        ([], "JSON_PARSER_ERROR"),
    ],
)
def test_what_is_no_event_is_refused(emulator, body, code):
    """An error in the shape of REST, and nothing is published."""
    before = emulator.bus.topic(ORDERS), emulator.bus.tip()
    assert rest(emulator, "POST", EVENTS, body).code == (400, code)
    assert (emulator.bus.topic(ORDERS), emulator.bus.tip()) == before


def test_events_that_are_not_there(emulator):
    """An unknown event is 404, and so is a schema that nobody made; a token is needed."""
    unknown = EVENTS.replace("Order", "Other")
    assert rest(emulator, "POST", unknown, {}).code == (404, "NOT_FOUND")
    for path in (f"{unknown}/eventSchema", f"{SCHEMAS}/nothing", f"{EVENTS[:-3]}/eventSchema"):
        assert rest(emulator, "GET", path).code == (404, "NOT_FOUND")
    assert rest(emulator, "GET", EVENTS).code == (405, "METHOD_NOT_ALLOWED")
    assert rest(emulator, "POST", EVENTS, {}, access_token="x").code[0] == 401


def test_event_schemas(emulator):
    """COMPACT is the Avro schema, by name and by id; EXPANDED is what the Streaming API sends."""
    topic = emulator.bus.topic(ORDERS)
    avro = json.loads(emulator.bus.schema(topic.schema_id).text)
    for path in (f"{EVENTS}/eventSchema", f"{SCHEMAS}/{topic.schema_id}"):
        assert rest(emulator, "GET", f"{path}?payloadFormat=COMPACT").json == avro
        expanded = rest(emulator, "GET", path).json
        assert (expanded["type"], expanded["name"]) == ("expanded-record", "Order_Event__e")
        data, channel = expanded["fields"]
        assert channel == {"name": "channel", "type": "string"}
        assert data["type"]["fields"][1]["type"]["fields"] == avro["fields"]
        assert rest(emulator, "GET", f"{path}?payloadFormat=XML").code[0] == 400
        old = path.replace("v62.0", "v42.0") + "?payloadFormat=COMPACT"
        assert rest(emulator, "GET", old).code[0] == 400
    change = rest(
        emulator, "GET", EVENTS.replace("Order_Event__e", "AccountChangeEvent/eventSchema")
    )
    assert change.json["name"] == "AccountChangeEvent"
    channel = EVENTS.replace("Order_Event__e", f"{CHANGES[6:]}/eventSchema")
    assert rest(emulator, "GET", channel).code == (404, "NOT_FOUND")


def preflight(emulator, path, origin, method="POST"):
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return ask(emulator, "OPTIONS", path, headers=headers)


def test_options_tells_the_methods(emulator):
    """Of every path that is served, without a token; of others it is 404."""
    reply = ask(emulator, "OPTIONS", EVENTS)
    assert (reply.status, reply.headers["Allow"]) == (204, "OPTIONS, POST")
    assert "Access-Control-Allow-Origin" not in reply.headers
    reply = ask(emulator, "OPTIONS", "/services/data")
    assert reply.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert ask(emulator, "OPTIONS", "/services/data/v62.0/nothing").status == 404


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://[::1]:8080", "https://app.example.com"]
)
def test_pages_that_are_let_in(emulator, origin):
    """A page of a listed origin may ask, sign in and read the answer, a refusal included."""
    reply = preflight(emulator, EVENTS, origin)
    assert reply.headers["Access-Control-Allow-Origin"] == origin
    assert reply.headers["Access-Control-Allow-Methods"] == "OPTIONS, POST"
    assert reply.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    for path in ("/services/data", "/services/data/v62.0/nothing", "/services/oauth2/token"):
        reply = ask(emulator, "GET", path, headers={"Origin": origin})
        assert reply.headers["Access-Control-Allow-Origin"] == origin
        assert reply.headers["Vary"] == "Origin"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example.com", "null", "http://localhost.evil.example.com", "http://[::1", ""],
)
def test_pages_that_are_not(emulator, origin):
    """Others read nothing, and nobody's page reads the admin endpoint or the health page."""
    reply = preflight(emulator, EVENTS, origin)
    assert "Access-Control-Allow-Origin" not in reply.headers
    for path in ("/admin/faults", "/health", "/"):
        reply = preflight(emulator, path, "http://localhost:3000", "GET")
        assert "Access-Control-Allow-Origin" not in reply.headers
