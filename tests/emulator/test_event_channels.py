"""Tests of channels that are created with the Tooling API, their events, and usage figures."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, CHANGES, ORDERS, Client
from .web import ask, query, rest

TOOLING = "/services/data/v62.0/tooling/sobjects"
CHANNEL, MEMBER = f"{TOOLING}/PlatformEventChannel", f"{TOOLING}/PlatformEventChannelMember"
ALL = "/event/Orders__chn"


def make_channel(emulator: Any, name: str = "Orders__chn", kind: str = "event", **more: Any) -> Any:
    """Create a channel with the Tooling API; return the reply."""
    metadata = {"channelType": kind, "label": "x", **more}
    return rest(emulator, "POST", CHANNEL, {"FullName": name, "Metadata": metadata})


def make_member(
    emulator: Any, channel: str = "Orders__chn", entity: str = "Order_Event__e", **more: Any
) -> Any:
    """Add an event to a channel with the Tooling API; return the reply."""
    metadata = {"eventChannel": channel, "selectedEntity": entity, **more}
    name = more.pop("name", f"{channel}_{entity}".replace("__", "_"))
    return rest(emulator, "POST", MEMBER, {"FullName": name, "Metadata": metadata})


def rows(emulator: Any, text: str) -> list[Any]:
    """Return the rows of a Tooling API query, without their attributes."""
    reply = query(emulator, text)
    assert reply.status == 200, reply.text
    return [
        {key: value for key, value in row.items() if key != "attributes"}
        for row in reply.json["records"]
    ]


def rest_query(emulator: Any, text: str) -> Any:
    """Run a query with the REST API, and return the reply."""
    return rest(emulator, "GET", f"/services/data/v62.0/query?q={urllib.parse.quote(text)}")


def test_a_channel_delivers_the_events_of_its_members(emulator, client):
    """A channel delivers its members' events under their own replay ids.

    After a member is removed, its earlier events stay readable, but new ones are not added.
    """
    channel_id = make_channel(emulator).json["id"]
    assert not client.call("GetTopic", pb.TopicRequest(topic_name=ALL)).schema_id
    stream = client.subscribe(topic_name=ALL)
    assert stream.silent()
    member_id = make_member(emulator).json["id"]
    (published,) = emulator.publish(ORDERS, [{}])
    assert [event.replay_id for event in stream.events(1)] == [published.replay_id]
    assert rest(emulator, "DELETE", f"{CHANNEL}/{channel_id}").code == (400, "DEPENDENCY_EXISTS")
    assert rest(emulator, "DELETE", f"{MEMBER}/{member_id}").status == 204
    emulator.publish(ORDERS, [{}])
    assert stream.silent()
    again = client.subscribe(topic_name=ALL)
    assert again.events(1)[0].replay_id == published.replay_id
    assert rest(emulator, "DELETE", f"{CHANNEL}/{channel_id}").status == 204
    assert stream.refusal() == again.refusal() == "topic.not.found"
    request = pb.TopicRequest(topic_name=ALL)
    assert client.refusal("GetTopic", request) == ("NOT_FOUND", "topic.not.found")
    assert make_channel(emulator).status == 201
    assert client.subscribe(topic_name=ALL).silent()


def test_change_events_are_selected_for_both_kinds_of_channel(emulator, client):
    """Change events can be members of custom channels and of ChangeEvents.

    Filters and enriched fields are stored as given. ChangeEvents itself is not listed as a record.
    """
    assert make_channel(emulator, "Changes__chn", "data").status == 201
    body = {
        "filterExpression": "Industry = 'Banking'",
        "enrichedFields": [{"name": "Name"}, {"name": "Industry"}],
    }
    member_id = make_member(emulator, "Changes__chn", "AccountChangeEvent", **body).json["id"]
    record = rest(emulator, "GET", f"{MEMBER}/{member_id[:15]}").json
    kept = {"eventChannel": "Changes__chn", "selectedEntity": "AccountChangeEvent", **body}
    assert record["Metadata"] == kept
    emulator.publish(ACCOUNTS, [{}])
    client.subscribe(topic_name="/data/Changes__chn").events(1)
    changed = {"Metadata": {**kept, "filterExpression": None, "enrichedFields": []}}
    assert rest(emulator, "PATCH", f"{MEMBER}/{member_id}", changed).status == 204
    text = f"SELECT Metadata FROM PlatformEventChannelMember WHERE Id = '{member_id}'"
    (row,) = rows(emulator, text)
    assert row["Metadata"]["filterExpression"] is None
    assert row["Metadata"]["enrichedFields"] == []
    moved = {"Metadata": {**kept, "eventChannel": "ChangeEvents"}}
    assert rest(emulator, "PATCH", f"{MEMBER}/{member_id}", moved).code == (400, "INVALID_INPUT")
    text = "SELECT DeveloperName, SelectedEntity FROM PlatformEventChannelMember"
    assert rows(emulator, f"{text} WHERE EventChannel = 'ChangeEvents'") == [
        {
            "DeveloperName": "ChangeEvents_AccountChangeEvent",
            "SelectedEntity": "AccountChangeEvent",
        }
    ]
    text = "SELECT DeveloperName, ChannelType, MasterLabel FROM PlatformEventChannel"
    assert rows(emulator, text) == [
        {"DeveloperName": "Changes", "ChannelType": "data", "MasterLabel": "x"}
    ]


@pytest.mark.parametrize(
    ("name", "metadata", "code"),
    [
        ("Orders", {}, "INVALID_INPUT"),
        ("Two__Words__chn", {}, "INVALID_INPUT"),
        ("__chn", {}, "INVALID_INPUT"),
        ("", {}, "REQUIRED_FIELD_MISSING"),
        ("Taken__chn", {}, "DUPLICATE_DEVELOPER_NAME"),
        ("tAKEN__chn", {}, "DUPLICATE_DEVELOPER_NAME"),
        ("New__chn", {"channelType": "topic"}, "INVALID_INPUT"),
        ("New__chn", {"channelType": None}, "REQUIRED_FIELD_MISSING"),
        ("New__chn", {"channelType": 1}, "JSON_PARSER_ERROR"),
        ("New__chn", {"label": "x" * 81}, "INVALID_INPUT"),
        ("New__chn", {"nothing": 1}, "INVALID_FIELD"),
    ],
)
def test_invalid_channels_are_rejected(shared, name, metadata, code):
    """An invalid channel is rejected with its error code, and nothing is created."""
    assert make_channel(shared, name, **metadata).code == (
        400,
        code,
    )
    assert [item.name for item in shared.event_channels.channels()] == ["Taken__chn"]


@pytest.mark.parametrize(
    ("channel", "entity", "metadata", "code"),
    [
        ("Nobody__chn", "Order_Event__e", {}, "INVALID_INPUT"),
        ("Taken__chn", "Nothing__e", {}, "INVALID_INPUT"),
        ("Taken__chn", "AccountChangeEvent", {}, "INVALID_INPUT"),
        ("ChangeEvents", "Order_Event__e", {}, "INVALID_INPUT"),
        ("ChangeEvents", "AccountChangeEvent", {}, "DUPLICATE_VALUE"),
        ("Taken__chn", "Order_Event__e", {"filterExpression": "WHERE x = 1"}, "INVALID_INPUT"),
        ("Taken__chn", "Order_Event__e", {"enrichedFields": ["x"]}, "INVALID_INPUT"),
        ("Taken__chn", "Order_Event__e", {"enrichedFields": [{"name": "a.b"}]}, "INVALID_INPUT"),
        (
            "Taken__chn",
            "Order_Event__e",
            {"enrichedFields": [{"name": f"f{number}"} for number in range(11)]},
            "INVALID_INPUT",
        ),
    ],
)
def test_invalid_channel_members_are_rejected(shared, channel, entity, metadata, code):
    """An invalid channel member is rejected with its error code, and the channel stays as it is."""
    before = shared.event_channels.members()
    assert make_member(shared, channel, entity, **metadata).code == (400, code)
    assert shared.event_channels.members() == before


@pytest.fixture(scope="module")
def shared(tmp_path_factory: Any) -> Any:
    """An emulator with one channel, which the tests of invalid requests share."""
    with EmulatorServer(tmp_path_factory.mktemp("emulator")) as emulator:
        assert make_channel(emulator, "Taken__chn").status == 201
        yield emulator


def test_unknown_channels_and_members_are_not_found(shared):
    """Requests for unknown channels and members return 404, or 401 without a token.

    In API versions without these objects, they can be neither created nor queried.
    """
    for path in (f"{CHANNEL}/0YLSB0000000099AAA", f"{MEMBER}/0v8SB0000000099"):
        for method in ("GET", "DELETE", "PATCH"):
            body = {"Metadata": {"label": "x"}} if method == "PATCH" else None
            assert rest(shared, method, path, body).code == (404, "NOT_FOUND")
        assert ask(shared, "GET", path).code[0] == 401
    old = CHANNEL.replace("62.0", "46.0")
    assert rest(shared, "POST", old, {}).code == (404, "NOT_FOUND")
    text = "SELECT Id FROM PlatformEventChannel"
    assert query(shared, text, version="46.0").code == (400, "INVALID_TYPE")
    text = "SELECT Id, Metadata FROM PlatformEventChannelMember"
    made = make_member(shared, "Taken__chn").json["id"]
    assert query(shared, text).code == (400, "MALFORMED_QUERY")
    assert rest(shared, "DELETE", f"{MEMBER}/{made}").status == 204
    assert query(shared, text).status == 200


def test_channels_survive_a_restart_with_a_seed(tmp_path):
    """Channels that were created with the Tooling API survive a restart.

    A channel that is defined in the seed file gets the members listed there again.
    """
    seed = tmp_path / "seed.toml"
    schema = EmulatorServer(tmp_path / "x")
    order = schema.bus.schema(schema.bus.topic(ORDERS).schema_id).text
    ping = order.replace("Order_Event__e", "Ping__e")
    schema.stop()
    seed.write_text(
        f"[[topics]]\nname = '{ORDERS}'\nschema = '''{order}'''\n"
        f"[[topics]]\nname = '/event/Ping__e'\nschema = '''{ping}'''\n"
        f"[[channels]]\nname = '/event/Seeded__chn'\ntopics = ['{ORDERS}']\n"
    )
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        assert make_channel(emulator).status == 201
        make_member(emulator)
        (seeded,) = [m for m in emulator.event_channels.members() if m.channel == "Seeded__chn"]
        assert seeded.developer_name == "Seeded_chn_Order_Event_e"
        emulator.event_channels.remove(seeded.member_id)
        assert make_member(emulator, "Seeded__chn", "Ping__e").status == 201
        before = emulator.event_channels.channels()
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        assert emulator.event_channels.channels() == before
        found = {(m.channel, m.entity) for m in emulator.event_channels.members()}
        assert found == {("Orders__chn", "Order_Event__e"), ("Seeded__chn", "Order_Event__e")}
        (published,) = emulator.publish(ORDERS, [{}])
        client = Client(emulator.grpc_target, emulator.metadata)
        for topic in (ALL, "/event/Seeded__chn"):
            assert client.subscribe(topic_name=topic).events(1)[0].replay_id == published.replay_id
        client.close()


def test_entity_definition_lists_events(shared):
    """EntityDefinition lists events and no channels, in the REST API and the Tooling API."""
    text = "SELECT QualifiedApiName, Label FROM EntityDefinition WHERE QualifiedApiName LIKE "
    found = rows(shared, text + "'%\\_\\_e'")
    assert found == [{"QualifiedApiName": "Order_Event__e", "Label": "Order Event"}]
    (row,) = rest_query(shared, text + "'%ChangeEvent'").json["records"]
    assert row["QualifiedApiName"] == "AccountChangeEvent"


def limit(emulator: Any, name: str) -> tuple[int, int]:
    """Return the maximum of an org limit, and how much of it remains."""
    found = rest(emulator, "GET", "/services/data/v62.0/limits").json[name]
    return found["Max"], found["Remaining"]


def test_usage_counts_deliveries_and_publications(start):
    """Deliveries count towards the daily limit, publications towards the hourly one.

    The limits and the usage metrics report both.
    """
    clock = ManualClock()
    settings = Settings(daily_deliveries=20, hourly_publications=4, token_lifetime_s=0.0)
    emulator, client = start(clock=clock, settings=settings)
    emulator.publish(ORDERS, [{} for _ in range(3)])
    emulator.publish(ACCOUNTS, [{}])
    client.subscribe().events(3)
    client.subscribe().events(3)
    client.managed().events(3)
    client.subscribe(topic_name=CHANGES).events(1)
    assert limit(emulator, "DailyDeliveredPlatformEvents") == (20, 10)
    assert limit(emulator, "HourlyPublishedPlatformEvents") == (4, 1)
    text = (
        "SELECT EventName, EventType, UsageType, Value FROM PlatformEventUsageMetric"
        " WHERE TimeSegment = 'Hourly'"
    )
    found = [
        {key: value for key, value in row.items() if key != "attributes"}
        for row in rest_query(emulator, text).json["records"]
    ]
    change = {"EventName": "AccountChangeEvent", "EventType": "CHANGE_EVENT"}
    order = {"EventName": "Order_Event__e", "EventType": "CUSTOM_PLATFORM_EVENT"}
    assert found == [
        {**change, "UsageType": "DELIVERY", "Value": 1},
        {**change, "UsageType": "PUBLISH", "Value": 1},
        {**order, "UsageType": "DELIVERY", "Value": 9},
        {**order, "UsageType": "PUBLISH", "Value": 3},
    ]
    named = text.replace("TimeSegment = 'Hourly'", "Name = 'PLATFORM_EVENTS_DELIVERED'")
    assert [row["Value"] for row in rest_query(emulator, named).json["records"]] == [9]
    clock.jump(2 * 3600)
    assert limit(emulator, "HourlyPublishedPlatformEvents") == (4, 4)
    assert limit(emulator, "DailyDeliveredPlatformEvents") == (20, 10)
    clock.jump(23 * 3600)
    assert limit(emulator, "DailyDeliveredPlatformEvents") == (20, 20)
    assert rest_query(emulator, text).json["records"] == []
