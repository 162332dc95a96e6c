"""The emulator's Streaming API: who gets which events, from where on, and what a refusal says."""

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
from .web import rest

TOPIC, GENERIC = "/topic/Accounts", "/u/News"
DAY = 24 * 3600.0
DATA = "/services/data/v67.0"


@pytest.fixture
def emulator(start):
    """One whose connects are held for a moment only."""
    return start(settings=Settings(streaming_timeout_s=0.3))[0]


@pytest.fixture
def client(emulator):
    emulator.publish_streaming(TOPIC, records("old"))
    return Bayeux(emulator).ready()


def error(message):
    assert message["successful"] is False
    return message["error"]


# Sessions.


def test_a_handshake_says_what_there_is(emulator):
    """Replay, long polling alone, a client id, and a cookie."""
    client = Bayeux(emulator)
    reply = client.handshake()
    assert reply["ext"] == {"replay": True, "payload.format": True}
    assert reply["supportedConnectionTypes"] == ["long-polling"]
    assert client.client_id
    assert client.cookie.startswith("BAYEUX_BROWSER=")


def test_the_first_connect_is_not_held_and_brings_the_advice(emulator):
    """110 s are advised by default; later connects bring none."""
    client = Bayeux(emulator)
    client.handshake()
    (first,) = client.connect()
    assert first["advice"] == {"reconnect": "retry", "interval": 0, "timeout": 300}
    begun = time.monotonic()
    (second,) = client.connect()
    assert time.monotonic() - begun >= 0.3
    assert "advice" not in second
    assert client.connect(advice={"timeout": 0})[-1]["successful"]


def test_a_held_connect_wakes_for_an_event(start):
    """Nothing polls: the event is there at once."""
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


def test_a_session_dies_without_a_connect(start):
    """40 s after the last answer, and then its messages find an unknown client."""
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
    """As the server of the CometD project does: HTTP 500 for the older one."""
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
    """After it, the client is unknown."""
    assert client.ask("disconnect")[0]["successful"]
    assert error(client.connect()[0]) == "403::Unknown client"


def test_the_kind_of_message_may_stand_in_the_path(emulator):
    """Some clients append it."""
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


def test_new_events_are_those_after_the_subscribe(client, emulator):
    """Without a replay, and with -1."""
    assert client.subscribe(TOPIC)["subscription"] == TOPIC
    new = emulator.publish_streaming(TOPIC, records("a", "b"))
    assert ids(client.read(2)) == new
    client.ask("unsubscribe", subscription=TOPIC)
    emulator.publish_streaming(TOPIC, records("missed"))
    client.subscribe(TOPIC, NEW)
    last = emulator.publish_streaming(TOPIC, records("c"))
    assert ids(client.read(1)) == last


def test_all_events_are_those_still_kept(client, emulator):
    """-2 begins with the oldest, and goes on with the new ones."""
    first = emulator.publish_streaming(TOPIC, records("a", "b"))
    client.subscribe(TOPIC, ALL)
    assert ids(client.read(3))[1:] == first


def test_an_id_means_the_events_after_it(client, emulator):
    """Strictly after; the ids have gaps."""
    found = emulator.publish_streaming(TOPIC, records(*"abcdefgh"))
    assert found != list(range(found[0], found[0] + 8))
    assert found == sorted(found)
    client.subscribe(TOPIC, found[2])
    assert ids(client.read(5)) == found[3:]


@pytest.mark.parametrize(("channel", "hours"), [(TOPIC, 24), ("/event/Order_Event__e", 72)])
def test_events_age_out(start, channel, hours):
    """PushTopic and generic events after 24 h, the newer kinds after 72 h; their ids with them."""
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


def test_a_filter_lets_through_what_fits_any_of_its_conditions(client, emulator):
    """The ampersand is an or; fields have to be in the query of the topic."""
    client.subscribe(f"{TOPIC}?Name='a'&Name='c'")
    emulator.publish_streaming(TOPIC, records(*"abcd"))
    assert [event["data"]["sobject"]["Name"] for event in client.read(2)] == ["a", "c"]
    assert error(client.subscribe(f"{TOPIC}?Phone='1'")).startswith("400::")


def test_a_generic_event_is_text(client, emulator):
    """Payload, date and id; no record."""
    (first,) = emulator.publish_streaming(GENERIC, [{"payload": "hello"}])
    client.subscribe(GENERIC, ALL)
    (event,) = client.read(1)
    assert event["channel"] == GENERIC
    assert event["data"]["payload"] == "hello"
    assert set(event["data"]["event"]) == {"createdDate", "replayId"}
    assert ids([event]) == [first]


def test_platform_and_change_events_come_as_json(emulator):
    """Dates as text, bitmaps as names, and no field that did not change."""
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


def test_grpc_knows_no_pushtopic(client, emulator):
    """The Pub/Sub API does not carry them."""
    names = [topic.name for topic in emulator.bus.topics()]
    assert TOPIC not in names


def test_channels_and_events_survive_a_restart(tmp_path):
    """As everything that the emulator has acknowledged; sessions do not."""
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


def test_events_may_stand_behind_the_answer(start):
    """Servers differ; and so do ids of events, advice, and events beside a subscribe."""
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


def test_an_answer_has_a_largest_number_of_events(start):
    """The rest comes with the next connect."""
    emulator, _ = start(settings=Settings(streaming_reply_events=2))
    found = emulator.publish_streaming(TOPIC, records(*"abcde"))
    client = Bayeux(emulator).ready()
    client.subscribe(TOPIC, ALL)
    assert len(client.connect()) == 3
    assert ids(client.read(3)) == found[2:]


@pytest.mark.parametrize("habit", ["newest", "refuse"])
def test_retired_versions_are_treated_as_the_newest_or_refused(start, habit):
    """23 to 36; a version that never was is refused."""
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


def test_refusals_of_the_rules_are_word_by_word(client, emulator):
    """What clients look at: each rule, and its text."""
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


def test_a_large_request_is_refused_whole(client):
    """32,768 bytes are too many, 32,767 are not."""
    message = {"channel": "/meta/subscribe", "clientId": client.client_id, "subscription": TOPIC}
    size = len(f"[{json.dumps({**message, 'x': ''})}]")
    status, (reply,) = client.post({**message, "x": "x" * (32_767 - size)})
    assert (status, reply["successful"]) == (200, True)
    status, (reply,) = client.post({**message, "x": "x" * (32_768 - size)})
    assert (status, reply["error"]) == (413, "413::Maximum Request Size Exceeded")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]"])
def test_a_body_that_is_no_message_is_a_page(emulator, body):
    """As a server that knows no Bayeux would answer."""
    from .web import ask

    reply = ask(emulator, "POST", "/cometd/67.0", body)
    assert reply.status == 400
    assert reply.text.startswith("<html>")


@pytest.mark.parametrize(
    ("token", "reason"),
    [("", "401::Request requires authentication"), ("wrong", "401::Authentication invalid")],
)
def test_a_handshake_without_a_good_token_says_why_in_its_ext(emulator, token, reason):
    """The error itself only says that it is denied."""
    reply = Bayeux(emulator, token=token).handshake()
    assert error(reply) == "403::Handshake denied"
    assert reply["advice"]["reconnect"] == "none"
    assert reply["ext"]["sfdc"] == {"failureReason": reason}


def test_every_text_is_in_the_documented_form():
    """Three digits, colons, words."""
    for key, text in TEXTS.items():
        assert re.fullmatch(r"[45]\d\d::[A-Za-z].+", text), key


# Records.


def test_pushtopics_are_records(emulator):
    """Made, queried, read and deleted over REST; a name twice is refused."""
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
        ({"Name": "A", "Colour": 1}, "INVALID_FIELD"),
    ],
)
def test_a_wrong_pushtopic_is_refused(emulator, body, code):
    """With the code of the REST API."""
    assert rest(emulator, "POST", f"{DATA}/sobjects/PushTopic", body).code == (400, code)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT+Id+FROM+Lead", "INVALID_TYPE"),
        ("SELECT+Colour+FROM+PushTopic", "INVALID_FIELD"),
        ("SELECT", "MALFORMED_QUERY"),
    ],
)
def test_a_query_for_something_else_is_refused(emulator, query, code):
    """As before there were records."""
    assert rest(emulator, "GET", f"{DATA}/query?q={query}").code == (400, code)


def test_a_push_reaches_everybody_or_a_list(emulator):
    """-1 is a broadcast, 0 is nobody; who is online can be asked."""
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


def test_events_come_from_the_admin_endpoint(emulator):
    """The channel is made if it is not there; nonsense is refused."""
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
