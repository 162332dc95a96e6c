"""Platform events over REST, and which web pages of other origins may call the HTTP port (CORS)."""

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
    """An emulator whose order topic is shared by all tests of this module."""
    settings = Settings(cors_origins="loopback https://app.example.com")
    with EmulatorServer(tmp_path_factory.mktemp("emulator"), settings=settings) as emulator:
        yield emulator


def decoded(emulator: Any, event: Any) -> dict[str, Any]:
    """Return the values of a received event."""
    return emulator.bus.schema(event.event.schema_id).decode(event.event.payload)


def test_post_publishes_an_event(emulator):
    """A POST of a platform event publishes it and returns the documented response.

    Field names ignore case, and values are converted to the schema's types.
    """
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
        ({"Quantity__c": "1_000"}, "JSON_PARSER_ERROR"),
        ({"Quantity__c": True}, "JSON_PARSER_ERROR"),
        ({"Ordered_At__c": "yesterday"}, "JSON_PARSER_ERROR"),
        ({"Ordered_At__c": 1}, "JSON_PARSER_ERROR"),
        ({"Has_Shipped__c": "perhaps"}, "JSON_PARSER_ERROR"),
        ({"Order_Number__c": {}}, "JSON_PARSER_ERROR"),
        ({"Notes__c": "x" * 200_000, "City__c": ["x"]}, "JSON_PARSER_ERROR"),
        ([], "JSON_PARSER_ERROR"),
    ],
)
def test_invalid_event_is_refused(emulator, body, code):
    """An event with an unknown or read-only field, or with a value of the wrong type, is rejected.

    The response is a REST error, and nothing is published.
    """
    before = emulator.bus.topic(ORDERS), emulator.bus.tip()
    assert rest(emulator, "POST", EVENTS, body).code == (400, code)
    assert (emulator.bus.topic(ORDERS), emulator.bus.tip()) == before


def test_unknown_events_and_schemas_are_rejected(emulator):
    """An unknown event or schema returns 404, a wrong method 405, and an invalid token 401."""
    unknown = EVENTS.replace("Order", "Other")
    assert rest(emulator, "POST", unknown, {}).code == (404, "NOT_FOUND")
    for path in (f"{unknown}/eventSchema", f"{SCHEMAS}/nothing", f"{EVENTS[:-3]}/eventSchema"):
        assert rest(emulator, "GET", path).code == (404, "NOT_FOUND")
    assert rest(emulator, "GET", EVENTS).code == (405, "METHOD_NOT_ALLOWED")
    assert rest(emulator, "POST", EVENTS, {}, access_token="x").code[0] == 401


def test_event_schemas(emulator):
    """Schemas are returned by event name and by schema ID, as Avro if the format is COMPACT.

    The default is the expanded format of the Streaming API; unknown formats and old API versions
    return 400.
    """
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
    """Send the OPTIONS request that a browser sends before a cross-origin request."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return ask(emulator, "OPTIONS", path, headers=headers)


def test_options_lists_the_methods(emulator):
    """OPTIONS lists the methods of every known path without requiring a token, and returns 404 for
    an unknown one.
    """
    reply = ask(emulator, "OPTIONS", EVENTS)
    assert (reply.status, reply.headers["Allow"]) == (204, "OPTIONS, POST")
    assert "Access-Control-Allow-Origin" not in reply.headers
    reply = ask(emulator, "OPTIONS", "/services/data")
    assert reply.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert ask(emulator, "OPTIONS", "/services/data/v62.0/nothing").status == 404


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://[::1]:8080", "https://app.example.com"]
)
def test_allowed_origins_can_read_responses(emulator, origin):
    """Pages from an allowed origin pass the preflight check, and can read every response, even
    errors.
    """
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
def test_disallowed_origins_cannot_read_responses(emulator, origin):
    """A disallowed origin cannot read any response.

    No origin can read the admin and health endpoints.
    """
    reply = preflight(emulator, EVENTS, origin)
    assert "Access-Control-Allow-Origin" not in reply.headers
    for path in ("/services/data", "/services/data/v62.0/nothing", "/services/oauth2/token"):
        reply = ask(emulator, "GET", path, headers={"Origin": origin})
        assert "Access-Control-Allow-Origin" not in reply.headers
        assert reply.headers["Vary"] == "Origin"
    for path in ("/admin/faults", "/health", "/"):
        for page in (origin, "http://localhost:3000"):
            reply = preflight(emulator, path, page, "GET")
            assert "Access-Control-Allow-Origin" not in reply.headers
            reply = ask(emulator, "GET", path, headers={"Origin": page})
            assert "Access-Control-Allow-Origin" not in reply.headers
