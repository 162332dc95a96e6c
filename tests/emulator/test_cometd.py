"""Tests of the emulator's Streaming API: sessions, delivery, replay, records and rejections."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.cometd.texts import TEXTS
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from .bayeux import ALL, NEW, Bayeux, ids, records
from .support import until
from .web import ask, rest

TOPIC, GENERIC = "/topic/Accounts", "/u/News"
DAY = 24 * 3600.0
DATA = "/services/data/v67.0"


@pytest.fixture
def emulator(start):
    """An emulator that holds connect requests for only 0.3 s."""
    return start(settings=Settings(streaming_timeout_s=0.3))[0]


@pytest.fixture
def client(emulator):
    """A connected Bayeux client of an emulator that retains one old event."""
    emulator.publish_streaming(TOPIC, records("old"))
    return Bayeux(emulator).ready()


def error(message):
    """Return the error text of a rejected message."""
    assert message["successful"] is False
    return message["error"]


# Sessions.


def test_a_handshake_returns_a_client_id_and_the_extensions(emulator):
    """A handshake returns a client id, a cookie and the replay extension.

    Long polling is the only transport.
    """
    client = Bayeux(emulator)
    reply = client.handshake()
    assert reply["ext"] == {"replay": True, "payload.format": True}
    assert reply["supportedConnectionTypes"] == ["long-polling"]
    assert client.client_id
    assert client.cookie.startswith("BAYEUX_BROWSER=")


def test_only_the_first_connect_returns_at_once_with_advice(emulator):
    """The first connect is answered at once with advice.

    Later connects are held until the timeout and answered without advice.
    """
    client = Bayeux(emulator)
    client.handshake()
    (first,) = client.connect()
    assert first["advice"] == {"reconnect": "retry", "interval": 0, "timeout": 300}
    begun = time.monotonic()
    (second,) = client.connect()
    assert time.monotonic() - begun >= 0.3
    assert "advice" not in second
    assert client.connect(advice={"timeout": 0})[-1]["successful"]


def test_a_held_connect_returns_when_an_event_is_published(start):
    """A held connect is answered as soon as an event is published."""
    emulator, _ = start(settings=Settings(streaming_timeout_s=60.0))
    emulator.publish_streaming(TOPIC, records("old"))
    client = Bayeux(emulator).ready()
    assert client.subscribe(TOPIC)["successful"]
    timer = threading.Timer(0.05, emulator.publish_streaming, (TOPIC, records("new")))
    timer.start()
    (event,) = client.read(1)
    timer.join()
    assert event["data"]["sobject"]["Name"] == "new"
    assert event["data"]["event"]["type"] == "created"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", event["data"]["event"]["createdDate"])


def test_a_session_expires_without_a_connect(start):
    """A session expires 40 s after the last response; its client id is then unknown."""
    clock = ManualClock()
    emulator, _ = start(clock=clock)
    client = Bayeux(emulator).ready()
    clock.jump(39.0)
    assert client.connect(advice={"timeout": 0})[-1]["successful"]
    clock.jump(40.0)
    (reply,) = client.connect()
    assert error(reply) == "403::Unknown client"
    assert reply["advice"] == {"reconnect": "handshake", "interval": 0}
    assert emulator.cometd.sessions.count() == 0


def test_the_older_of_two_connects_is_cancelled(start):
    """A second connect request cancels the held one, whose response then has HTTP status 500.

    The CometD project's server does the same.
    """
    emulator, _ = start(settings=Settings(streaming_timeout_s=60.0))
    client = Bayeux(emulator).ready()
    answers = []
    message = {
        "channel": "/meta/connect",
        "clientId": client.client_id,
        "connectionType": "long-polling",
    }
    thread = threading.Thread(target=lambda: answers.append(client.post(message)))
    thread.start()
    (session,) = emulator.cometd.sessions._sessions.values()
    until(lambda: session.pending == 1)
    assert client.connect(advice={"timeout": 0})[-1]["successful"]
    thread.join(10)
    assert answers[0][0] == 500


def test_a_disconnect_ends_the_session(client):
    """After a disconnect the client id is unknown."""
    assert client.ask("disconnect")[0]["successful"]
    assert error(client.connect()[0]) == "403::Unknown client"


def test_the_path_may_end_with_the_message_type(emulator):
    """A request path may end with the message type, which some clients append."""
    client = Bayeux(emulator)
    message = {
        "channel": "/meta/handshake",
        "id": "1",
        "supportedConnectionTypes": ["long-polling"],
    }
    status, (reply,) = client.post(message, path="/cometd/67.0/handshake")
    assert status == 200
    assert reply["successful"]


# Channels.


def test_new_events_are_those_published_after_the_subscribe(client, emulator):
    """A subscription with no replay id, or with -1, receives only events published after it."""
    assert client.subscribe(TOPIC)["subscription"] == TOPIC
    new = emulator.publish_streaming(TOPIC, records("a", "b"))
    assert ids(client.read(2)) == new
    client.ask("unsubscribe", subscription=TOPIC)
    emulator.publish_streaming(TOPIC, records("missed"))
    client.subscribe(TOPIC, NEW)
    last = emulator.publish_streaming(TOPIC, records("c"))
    assert ids(client.read(1)) == last


def test_replay_minus_2_delivers_all_retained_events(client, emulator):
    """A subscription with replay id -2 receives all retained events, and then the new ones."""
    first = emulator.publish_streaming(TOPIC, records("a", "b"))
    client.subscribe(TOPIC, ALL)
    assert ids(client.read(3))[1:] == first


def test_a_replay_id_delivers_the_events_after_it(client, emulator):
    """A subscription with a replay id receives all later events, even if the ids have gaps."""
    found = emulator.publish_streaming(TOPIC, records(*"abcdefgh"))
    assert found != list(range(found[0], found[0] + 8))
    assert found == sorted(found)
    client.subscribe(TOPIC, found[2])
    assert ids(client.read(5)) == found[3:]


@pytest.mark.parametrize(("channel", "hours"), [(TOPIC, 24), ("/event/Order_Event__e", 72)])
def test_events_age_out(start, channel, hours):
    """PushTopic events expire after 24 hours and platform events after 72.

    A subscription with the replay id of an expired event is rejected.
    """
    clock = ManualClock()
    emulator, _ = start(clock=clock)

    def publish():
        if channel == TOPIC:
            return emulator.publish_streaming(TOPIC, records("x"))[0]
        emulator.publish(channel, [{"Order_Number__c": "1"}])
        return emulator.bus.tip()

    old = publish()
    clock.jump(2 * 3600.0)
    middle = publish()
    clock.jump((hours - 1) * 3600.0)
    new = publish()
    client = Bayeux(emulator).ready()
    refused = client.subscribe(channel, old)
    assert error(refused) == TEXTS["replay"].format(replay=old)
    assert refused["subscription"] == channel
    assert client.subscribe(channel, ALL)["successful"]
    assert ids(client.read(2)) == [middle, new]
    assert client.subscribe(channel, middle)["successful"]
    assert error(client.subscribe(channel, new + 1000)).startswith("400::The replayId")


def test_a_filter_matches_any_of_its_conditions(client, emulator):
    """A filter on a PushTopic channel delivers events that match any of its conditions.

    Filtering by a field that the topic's query lacks is rejected.
    """
    client.subscribe(f"{TOPIC}?Name='a'&Name='c'")
    emulator.publish_streaming(TOPIC, records(*"abcd"))
    assert [event["data"]["sobject"]["Name"] for event in client.read(2)] == ["a", "c"]
    assert error(client.subscribe(f"{TOPIC}?Phone='1'")).startswith("400::")


def test_a_generic_event_has_a_text_payload(client, emulator):
    """A generic event contains a text payload, a creation date and a replay id, but no record."""
    (first,) = emulator.publish_streaming(GENERIC, [{"payload": "hello"}])
    client.subscribe(GENERIC, ALL)
    (event,) = client.read(1)
    assert event["channel"] == GENERIC
    assert event["data"]["payload"] == "hello"
    assert set(event["data"]["event"]) == {"createdDate", "replayId"}
    assert ids([event]) == [first]


def test_platform_and_change_events_are_sent_as_json(emulator):
    """Platform and change events are sent as JSON, with dates as strings.

    Bitmaps are expanded to field names, and unchanged fields are left out.
    """
    client = Bayeux(emulator).ready()
    header = {"changeType": "UPDATE", "recordIds": ["001"], "changedFields": ["0x02"]}
    for channel in ("/event/Order_Event__e", "/data/AccountChangeEvent"):
        assert client.subscribe(channel, ALL)["successful"]
    emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "1", "CreatedDate": 0}])
    emulator.publish("/data/AccountChangeEvent", [{"ChangeEventHeader": header}])
    order, change = client.read(2)
    assert order["data"]["payload"]["CreatedDate"] == "1970-01-01T00:00:00.000Z"
    assert order["data"]["event"]["EventUuid"]
    named = change["data"]["payload"]["ChangeEventHeader"]["changedFields"]
    assert len(named) == 1
    assert not named[0].startswith("0x")
    assert set(change["data"]["payload"]) == {"ChangeEventHeader"}
    assert ids([order, change]) == sorted(ids([order, change]))


def test_pushtopics_are_not_topics_of_the_pubsub_api(client, emulator):
    """A PushTopic channel is not among the topics of the Pub/Sub API."""
    names = [topic.name for topic in emulator.bus.topics()]
    assert TOPIC not in names


def test_channels_and_events_survive_a_restart(tmp_path):
    """Channels and events survive a restart, but sessions do not."""
    with EmulatorServer(tmp_path) as emulator:
        found = emulator.publish_streaming(TOPIC, records("a", "b"))
        client = Bayeux(emulator).ready()
    with EmulatorServer(tmp_path) as again:
        client.emulator = again
        assert error(client.connect()[0]) == "403::Unknown client"
        client.ready()
        client.subscribe(TOPIC, found[0])
        assert ids(client.read(1)) == found[1:]


# Variations.


def test_settings_change_the_shape_of_responses(start):
    """Settings control event order, event ids, advice, and events in a subscribe response.

    Real servers differ in these.
    """
    emulator, _ = start(
        settings=Settings(
            streaming_events_first=False,
            streaming_event_ids=True,
            streaming_advice="always",
            streaming_events_on_subscribe=True,
        )
    )
    emulator.publish_streaming(TOPIC, records("a"))
    client = Bayeux(emulator).ready()
    reply, event = client.ask("subscribe", subscription=TOPIC, ext={"replay": {TOPIC: ALL}})
    assert reply["successful"]
    assert event["id"] == "1"
    emulator.publish_streaming(TOPIC, records("b"))
    answer, event = client.connect()
    assert answer["advice"]["timeout"] == 110_000
    assert event["data"]["sobject"]["Name"] == "b"


def test_any_response_can_carry_the_events_of_all_channels(start):
    """With a setting, the responses to subscribe and unsubscribe have the events of all channels.

    An event comes with one response only.
    """
    emulator, _ = start(settings=Settings(streaming_flush_anywhere=True))
    emulator.publish_streaming("/u/News", [{"payload": "x"}])
    emulator.publish_streaming(TOPIC, records("old"))
    client = Bayeux(emulator).ready()
    client.subscribe(TOPIC)
    found = emulator.publish_streaming(TOPIC, records("a"))
    reply, event = client.ask("subscribe", subscription="/u/News")
    assert (reply["subscription"], event["channel"]) == ("/u/News", TOPIC)
    found += emulator.publish_streaming(TOPIC, records("b"))
    _, other = client.ask("unsubscribe", subscription="/u/News")
    assert ids([event, other]) == found
    found = emulator.publish_streaming(TOPIC, records("c"))
    assert ids(client.read(1)) == found


def test_a_response_has_a_limited_number_of_events(start):
    """A response contains at most `streaming_reply_events` events; the rest comes later."""
    emulator, _ = start(settings=Settings(streaming_reply_events=2))
    found = emulator.publish_streaming(TOPIC, records(*"abcde"))
    client = Bayeux(emulator).ready()
    client.subscribe(TOPIC, ALL)
    assert len(client.connect()) == 3
    assert ids(client.read(3)) == found[2:]


@pytest.mark.parametrize("habit", ["newest", "refuse"])
def test_retired_versions_are_accepted_or_rejected(start, habit):
    """A setting determines whether retired API versions are accepted.

    Versions that never existed are always rejected.
    """
    emulator, _ = start(settings=Settings(streaming_old_versions=habit))
    reply = Bayeux(emulator, version="36.0").handshake()
    assert reply["successful"] is (habit == "newest")
    if habit == "refuse":
        assert reply["error"] == TEXTS["version"].format(version="36.0")
    for version in ("22.0", "99.0"):
        assert error(Bayeux(emulator, version=version).handshake()).startswith("400::Unsupported")
    status, (reply,) = Bayeux(emulator).post(
        {"channel": "/meta/handshake", "id": "1"}, path="/cometd"
    )
    assert (status, reply["error"]) == (200, TEXTS["version missing"])


# Refusals.


def test_refusals_have_the_documented_texts(client, emulator):
    """Each violation of a protocol rule is rejected with exactly the documented error text."""
    emulator.publish_streaming(GENERIC, [{"payload": "x"}])
    for name, key, names in (
        ("", "channel name", {}),
        ("topic/X", "channel slash", {}),
        ("/meta/x", "restricted", {}),
        ("/topic/a b", "cannot create", {"channel": "/topic/a b"}),
        ("/topic/None", "channel", {"channel": "/topic/None"}),
        ("/event/None__e", "channel", {"channel": "/event/None__e"}),
        ("/u/None", "unknown channel", {"channel": "/u/None"}),
        ("/u/news", "case", {}),
    ):
        assert error(client.subscribe(name)) == TEXTS[key].format(**names), name
    (reply,) = client.ask("unsubscribe")
    assert error(reply) == TEXTS["channel name"]
    (reply,) = client.ask("connect", connectionType="websocket")
    assert error(reply) == "400::Invalid connection type websocket"
    (reply,) = client.ask("connect", clientId="")
    assert error(reply) == TEXTS["no handshake"]
    _, (reply,) = client.post({"channel": "/u/News", "data": {}})
    assert error(reply) == TEXTS["restricted"]
    client.cookie = ""
    assert error(client.connect()[0]) == TEXTS["cookie"].format(client=client.client_id)
    refused = Bayeux(emulator).handshake(supportedConnectionTypes=["websocket"])
    assert error(refused).startswith("400::Invalid connection type")


def test_a_large_request_is_rejected(client):
    """A request of 32,768 bytes is rejected; one of 32,767 bytes is accepted."""
    message = {"channel": "/meta/subscribe", "clientId": client.client_id, "subscription": TOPIC}
    size = len(f"[{json.dumps({**message, 'x': ''})}]")
    status, (reply,) = client.post({**message, "x": "x" * (32_767 - size)})
    assert (status, reply["successful"]) == (200, True)
    status, (reply,) = client.post({**message, "x": "x" * (32_768 - size)})
    assert (status, reply["error"]) == (413, "413::Maximum Request Size Exceeded")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]"])
def test_an_invalid_body_is_answered_with_an_html_page(emulator, body):
    """A body that is not a Bayeux message is answered with status 400 and an HTML page."""
    reply = ask(emulator, "POST", "/cometd/67.0", body)
    assert reply.status == 400
    assert reply.text.startswith("<html>")


@pytest.mark.parametrize(
    ("token", "reason"),
    [("", "401::Request requires authentication"), ("wrong", "401::Authentication invalid")],
)
def test_a_denied_handshake_gives_the_reason_in_its_ext(emulator, token, reason):
    """A handshake without a valid token is denied; only the reply's `ext` contains the reason."""
    reply = Bayeux(emulator, token=token).handshake()
    assert error(reply) == "403::Handshake denied"
    assert reply["advice"]["reconnect"] == "none"
    assert reply["ext"]["sfdc"] == {"failureReason": reason}


def test_error_texts_have_the_documented_format():
    """Every error text consists of a three-digit status, two colons and a message."""
    for key, text in TEXTS.items():
        assert re.fullmatch(r"[45]\d\d::[A-Za-z].+", text), key


# Records.


def test_pushtopics_are_records(emulator):
    """PushTopics can be created, queried, read and deleted over REST.

    A duplicate name is rejected.
    """
    path = f"{DATA}/sobjects/PushTopic"
    body = {"Name": "Leads", "Query": "SELECT Id, Name FROM Lead", "ApiVersion": 67.0}
    made = rest(emulator, "POST", path, body)
    assert made.status == 201
    assert rest(emulator, "POST", path, body).code == (400, "DUPLICATE_VALUE")
    record = rest(emulator, "GET", f"{path}/{made.json['id']}").json
    assert (record["Name"], record["NotifyForFields"]) == ("Leads", "Referenced")
    query = "SELECT+Id,+Name+FROM+PushTopic+WHERE+Name='Leads'+ORDER+BY+Name+DESC"
    found = rest(emulator, "GET", f"{DATA}/query?q={query}").json
    assert [row["Id"] for row in found["records"]] == [made.json["id"]]
    client = Bayeux(emulator).ready()
    assert client.subscribe("/topic/Leads")["successful"]
    assert rest(emulator, "DELETE", f"{path}/{made.json['id']}").status == 204
    assert rest(emulator, "GET", f"{path}/{made.json['id']}").status == 404
    assert error(client.subscribe("/topic/Leads")).startswith("400::The channel")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"Name": "A", "Query": "SELECT Id FROM Lead"}, "REQUIRED_FIELD_MISSING"),
        ({"Name": "A", "Query": "UPDATE", "ApiVersion": 67.0}, "INVALID_FIELD"),
        ({"Name": "a b", "Query": "SELECT Id FROM Lead", "ApiVersion": 67.0}, "INVALID_FIELD"),
        ({"Name": "A", "Query": "SELECT Nope FROM Account", "ApiVersion": 67.0}, "INVALID_FIELD"),
        (
            {"Name": "A", "Query": "SELECT Id FROM Account WHERE Nope = 1", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT Id FROM Account WHERE", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT Id FROM Account WHERE (Name = 'a'", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT COUNT() FROM Account", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT Id FROM Account LIMIT 5", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT Id, Owner.Name FROM Account", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT MAX(Name) FROM Account", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        (
            {"Name": "A", "Query": "SELECT Id FROM Account ORDER BY Name", "ApiVersion": 67.0},
            "INVALID_FIELD",
        ),
        ({"Name": "A", "Colour": 1}, "INVALID_FIELD"),
    ],
)
def test_an_invalid_pushtopic_is_rejected(emulator, body, code):
    """An invalid PushTopic record is rejected with the error code of the REST API. Its query is one
    of fields of an object, with or without a condition.
    """
    assert rest(emulator, "POST", f"{DATA}/sobjects/PushTopic", body).code == (400, code)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT+Id+FROM+Nothing", "INVALID_TYPE"),
        ("SELECT+Colour+FROM+PushTopic", "INVALID_FIELD"),
        ("SELECT", "MALFORMED_QUERY"),
    ],
)
def test_invalid_queries_of_pushtopics_are_rejected(emulator, query, code):
    """An unknown object or field and invalid syntax are rejected with different error codes."""
    assert rest(emulator, "GET", f"{DATA}/query?q={query}").code == (400, code)


def test_a_push_reaches_all_users_or_listed_ones(emulator):
    """A push without user ids is a broadcast; otherwise it reaches only the listed users.

    The fanout count of a broadcast is -1, and a GET request lists the users who are online.
    """
    path = f"{DATA}/sobjects/StreamingChannel"
    made = rest(emulator, "POST", path, {"Name": GENERIC}).json["id"]
    push = f"{path}/{made}/push"

    def pushed(payload, *users):
        event = {"payload": payload, "userIds": list(users)}
        return rest(emulator, "POST", push, {"pushEvents": [event]}).json[0]

    assert pushed("nobody", "005000000000001AAA")["fanoutCount"] == 0
    client = Bayeux(emulator).ready()
    client.subscribe(GENERIC)
    (user,) = rest(emulator, "GET", push).json["OnlineUserIds"]
    assert rest(emulator, "GET", push).json["ChannelName"] == GENERIC
    assert pushed("all") == {"fanoutCount": -1, "userOnlineStatus": {}}
    assert pushed("others", "005000000000001AAA")["fanoutCount"] == 0
    assert pushed("me", user) == {"fanoutCount": 1, "userOnlineStatus": {user: True}}
    assert [event["data"]["payload"] for event in client.read(2)] == ["all", "me"]
    assert rest(emulator, "POST", push, {}).code == (400, "REQUIRED_FIELD_MISSING")
    long = {"pushEvents": [{"payload": "x" * 3001}]}
    assert rest(emulator, "POST", push, long).code == (400, "INVALID_FIELD")


def test_the_admin_endpoint_publishes_streaming_events(emulator):
    """The admin endpoint publishes streaming events, and creates a missing channel.

    Invalid requests are rejected.
    """
    body = {"channel": TOPIC, "events": records("a")}
    (replay_id,) = rest(emulator, "POST", "/admin/streaming", body).json["replay_ids"]
    client = Bayeux(emulator).ready()
    client.subscribe(TOPIC, ALL)
    assert ids(client.read(1)) == [replay_id]
    for wrong in (
        {},
        {"channel": TOPIC, "events": [1]},
        {"channel": "/event/X__e", "events": []},
        {"channel": TOPIC, "events": [{"payload": "x"}]},
    ):
        assert rest(emulator, "POST", "/admin/streaming", wrong).status == 400
    with pytest.raises(EmulatorProblem):
        emulator.publish_streaming("/data/X", [{}])


# What other clients need.


def test_a_rare_match_is_found_in_one_response(start):
    """A filtered subscription finds a retained event behind many others at once: the connect
    message is not held while such an event is retained.
    """
    emulator, _ = start(settings=Settings(streaming_timeout_s=60.0, streaming_reply_events=2))
    (wanted,) = emulator.publish_streaming(TOPIC, records(*"abcdefgh", "wanted"))[-1:]
    client = Bayeux(emulator).ready()
    client.ask("subscribe", subscription=f"{TOPIC}?Name='wanted'", ext={"replay": {TOPIC: ALL}})
    begun = time.monotonic()
    assert ids(client.read(1)) == [wanted]
    assert time.monotonic() - begun < 30


def test_events_of_a_filtered_subscription_name_the_filter(client, emulator):
    """An event arrives under the channel as it was subscribed to, with its filter. A subscription
    with a filter, and one without, are two.
    """
    filtered = f"{TOPIC}?Name='a'"
    for name in (filtered, TOPIC):
        assert client.subscribe(name)["successful"]
    emulator.publish_streaming(TOPIC, records("a"))
    assert {event["channel"] for event in client.read(2)} == {TOPIC, filtered}
    client.ask("unsubscribe", subscription=filtered)
    emulator.publish_streaming(TOPIC, records("a"))
    assert [event["channel"] for event in client.read(1)] == [TOPIC]


def test_a_text_difference_is_marked_as_one(emulator):
    """A change event that contains the difference of a long text sends it under the key `diff`."""
    client = Bayeux(emulator).ready()
    schema = emulator.bus.schema(emulator.bus.topic("/data/AccountChangeEvent").schema_id)
    names = [field["name"] for field in json.loads(schema.text)["fields"]]
    bit = f"0x{1 << names.index('Phone'):X}"
    header = {"changeType": "UPDATE", "recordIds": ["001"], "diffFields": [bit]}
    client.subscribe("/data/AccountChangeEvent")
    event = {"ChangeEventHeader": header, "Phone": "--- \n+++ x\n", "Fax": "1"}
    emulator.publish("/data/AccountChangeEvent", [event])
    payload = client.read(1)[0]["data"]["payload"]
    assert (payload["Phone"], payload["Fax"]) == ({"diff": "--- \n+++ x\n"}, "1")
    assert payload["ChangeEventHeader"]["diffFields"] == ["Phone"]


def test_expired_sessions_are_no_streams(start):
    """A session that has expired is not counted among the streams of its topics any more."""
    clock = ManualClock()
    emulator, _ = start(clock=clock)

    def streams():
        return rest(emulator, "GET", "/health").json["topics"]["/event/Order_Event__e"]["streams"]

    client = Bayeux(emulator).ready()
    client.subscribe("/event/Order_Event__e")
    assert streams() == 1
    clock.jump(41.0)
    assert streams() == 0
    Bayeux(emulator).ready()
    assert len(emulator.cometd.sessions._sessions) == 1


def test_a_replay_map_must_name_the_channel(client):
    """A replay map without the channel of the subscription is refused in the service's words; a
    map with other channels too, or an empty one, is accepted.
    """
    other = {"replay": {"/topic/Other": -2, "/u/x": 5}}
    (refused,) = client.ask("subscribe", subscription=TOPIC, ext=other)
    text = "{/topic/Accounts} wasn't found using the provided replay ID map"
    assert text in error(refused)
    assert "{/topic/Other=-2, /u/x=5}" in error(refused)
    filtered = f"{TOPIC}?Name='a'"
    (refused,) = client.ask("subscribe", subscription=filtered, ext={"replay": {filtered: -2}})
    assert text in error(refused)
    for accepted in ({}, {TOPIC: -2, "/u/x": 5}):
        reply = client.ask("subscribe", subscription=TOPIC, ext={"replay": accepted})[0]
        assert reply["successful"]


def test_a_session_id_without_a_scheme_is_a_token(emulator):
    """The Streaming API accepts a bare session id as the Authorization header, which is what
    Salesforce's EMP-Connector sends; the REST API does not.
    """
    bare = {"Authorization": emulator.access_token, "Content-Type": "application/json"}
    message = {"channel": "/meta/handshake", "supportedConnectionTypes": ["long-polling"]}
    shake = ask(emulator, "POST", "/cometd/67.0", json.dumps([message]).encode(), bare)
    assert shake.json[0]["successful"]
    cookie = {"Cookie": shake.headers["Set-Cookie"].partition(";")[0]}
    message = {
        "channel": "/meta/connect",
        "connectionType": "long-polling",
        "clientId": shake.json[0]["clientId"],
    }
    body = json.dumps([message]).encode()
    assert ask(emulator, "POST", "/cometd/67.0", body, {**bare, **cookie}).json[0]["successful"]
    assert ask(emulator, "GET", f"{DATA}/limits", None, bare).code[1] == "INVALID_SESSION_ID"


def test_a_pushtopic_can_be_changed_and_described(emulator):
    """A PushTopic can be changed over REST, as Camel does: the new query applies to later changes.
    `NotifyForOperations` tells what the other fields say, and cannot be set. Both objects of the
    Streaming API have a describe.
    """
    path = f"{DATA}/sobjects/PushTopic"
    body = {"Name": "Accounts", "Query": "SELECT Id FROM Lead", "ApiVersion": 67.0}
    one = f"{path}/{rest(emulator, 'POST', path, body).json['id']}"
    assert rest(emulator, "GET", one).json["NotifyForOperations"] == "All"
    changed = {"Query": "SELECT Id, Name FROM Account", "NotifyForOperationUpdate": False}
    attributes = {"type": "PushTopic"}
    sent = {"attributes": attributes, **changed, "IsActive": None}
    assert rest(emulator, "PATCH", one, sent).status == 204
    record = rest(emulator, "GET", one).json
    assert (record["Query"], record["IsActive"]) == (changed["Query"], True)
    assert record["NotifyForOperations"] == "Create"
    query = "SELECT+NotifyForOperations+FROM+PushTopic+WHERE+Name='Accounts'"
    (row,) = rest(emulator, "GET", f"{DATA}/query?q={query}").json["records"]
    assert row["NotifyForOperations"] == "Create"
    client = Bayeux(emulator).ready()
    client.subscribe("/topic/Accounts")
    rest(emulator, "POST", f"{DATA}/sobjects/Account", {"Name": "x"})
    assert client.read(1)[0]["data"]["sobject"]["Name"] == "x"
    for wrong, code in (
        ({"NotifyForOperations": "All"}, "INVALID_FIELD_FOR_INSERT_UPDATE"),
        ({"Query": "UPDATE"}, "INVALID_FIELD"),
        ({"Name": "Other"}, "INVALID_FIELD"),
        ({"Colour": 1}, "INVALID_FIELD"),
    ):
        assert rest(emulator, "PATCH", one, wrong).code == (400, code)
    rest(emulator, "PATCH", one, {"NotifyForOperationCreate": False})
    assert rest(emulator, "GET", one).json["NotifyForOperations"] == "Extended"
    for name in ("PushTopic", "StreamingChannel"):
        shown = rest(emulator, "GET", f"{DATA}/sobjects/{name}/describe").json
        assert shown["name"] == name
        assert {"Id", "Name", "Description"} <= {field["name"] for field in shown["fields"]}
        assert rest(emulator, "GET", f"{DATA}/sobjects/{name}").json["objectDescribe"]
