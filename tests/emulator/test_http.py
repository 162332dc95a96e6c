"""The HTTP port: the counters that tests and the demo rely on, and the admin endpoints."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import MANAGED, ORDERS, commit, until


def fetch(emulator, path, body=None, **headers):
    """Send a GET, or a POST of `body` as JSON, and return the response's status and text."""
    data = None if body is None else json.dumps(body).encode()
    headers.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(emulator.http_url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(emulator):
    """Return the parsed JSON of `/health`."""
    return json.loads(fetch(emulator, "/health")[1])


def test_health_counts(emulator, client):
    """`/health` reports how many events were published, delivered and redelivered, how many commits
    were accepted and refused, and the last committed replay ID.
    """
    published = emulator.publish(ORDERS, [{} for _ in range(10)])
    stream = client.managed(num_requested=6)
    stream.events(6)
    stream.send(commit(published[2].replay_id))
    stream.answer()
    stream.send(commit(b""))
    stream.answer()
    assert health(emulator)["managed_subscriptions"][MANAGED]["active"] is True
    stream.half_close()
    stream.end()
    again = client.managed()
    again.events(7)
    again.half_close()
    again.end()
    for _ in range(2):
        client.subscribe().events(10)
    now = health(emulator)
    assert now["status"] == "ok"
    managed = now["managed_subscriptions"][MANAGED]
    assert (managed["delivered"], managed["redelivered"]) == (13, 3)
    assert (managed["commits_accepted"], managed["commits_refused"]) == (1, 1)
    assert managed["committed_replay_id"] == published[2].replay_id.hex()
    assert (managed["active"], managed["state"]) == (False, "RUN")
    topic = now["topics"][ORDERS]
    assert (topic["published"], topic["delivered"], topic["redelivered"]) == (10, 20, 10)


def test_root_is_html_or_json(emulator):
    """`/` returns an HTML page to a client that accepts HTML, and JSON to any other client; neither
    contains the access token.
    """
    status, page = fetch(emulator, "/", Accept="text/html,*/*")
    assert (status, page[:15]) == (200, "<!doctype html>")
    assert ORDERS in page
    status, text = fetch(emulator, "/")
    assert json.loads(text)["status"] == "ok"
    assert emulator.access_token not in page + text


@pytest.mark.parametrize(
    ("path", "body", "expected"), [("/nothing", None, 404), ("/health", {}, 405)]
)
def test_unknown_path_and_method(emulator, path, body, expected):
    """An unknown path returns status 404, and an unsupported method on a known path returns 405."""
    assert fetch(emulator, path, body)[0] == expected


def test_admin_adds_faults(emulator, client):
    """A fault that was added over HTTP affects the next call, and `/admin/faults` then reports that
    it has happened once.
    """
    bearer = f"Bearer {emulator.access_token}"
    fault = {"kind": "refuse", "rpc": "GetTopic", "error_code": "topic.api.unavailable"}
    assert fetch(emulator, "/admin/faults", fault, Authorization=bearer)[0] == 200
    request = pb.TopicRequest(topic_name=ORDERS)
    assert client.refusal("GetTopic", request) == ("UNAVAILABLE", "topic.api.unavailable")
    _, text = fetch(emulator, "/admin/faults", Authorization=bearer)
    assert json.loads(text)["faults"][0]["happened"] == 1


def test_admin_moves_the_clock_forward(emulator, client):
    """Moving the clock forward by 120 s over HTTP makes an open stream send a keepalive."""
    stream = client.subscribe()
    until(lambda: emulator.bus.bells.count(ORDERS))  # wait until the stream is open
    bearer = f"Bearer {emulator.access_token}"
    assert fetch(emulator, "/admin/clock", {"jump_s": 120}, Authorization=bearer)[0] == 200
    assert not stream.next().events


def post(emulator, path, body, token=None):
    """Send *body* in a POST with *token*, by default the emulator's; return the status and the
    parsed JSON.
    """
    bearer = f"Bearer {token or emulator.access_token}"
    status, text = fetch(emulator, path, body, Authorization=bearer)
    return status, json.loads(text)


def test_admin_expires_and_renews_the_token(emulator, client):
    """An expired token still authorizes `/admin/token`, which returns a new one.

    The fault is reported as happened only after a call has been refused, and the fault report
    contains neither token.
    """
    old = emulator.access_token
    status, answer = post(emulator, "/admin/faults", {"kind": "expire_token"})
    assert (status, answer) == (200, {"number": 0})
    request = pb.TopicRequest(topic_name=ORDERS)
    assert client.refusal("GetTopic", request)[1] == "service.auth.error"
    status, answer = post(emulator, "/admin/token", {}, token=old)
    assert (status, set(answer)) == (200, {"access_token"})
    client.metadata = (("accesstoken", answer["access_token"]), *emulator.metadata[1:])
    assert client.call("GetTopic", request).topic_name == ORDERS
    _, text = fetch(emulator, "/admin/faults", Authorization=f"Bearer {answer['access_token']}")
    assert json.loads(text)["faults"][0]["happened"] == 1
    assert old not in text
    assert answer["access_token"] not in text


def test_admin_ages_out_a_replay_id(emulator, client):
    """Once the fault `age_out` is added for a replay id, subscribing from it is refused."""
    published = emulator.publish(ORDERS, [{}, {}])
    body = {"kind": "age_out", "replay_id": published[0].replay_id.hex()}
    assert post(emulator, "/admin/faults", body)[0] == 200
    stream = client.subscribe(replay_preset=pb.CUSTOM, replay_id=published[0].replay_id)
    assert stream.refusal() == "subscription.fetch.replayid.corrupted"
    emulator.faults.assert_consumed()


def test_admin_stops_restarts_and_deletes_managed_subscriptions(emulator, client):
    """A managed subscription can be stopped, restarted and deleted over HTTP.

    Once it is stopped or deleted, its streams are refused; `/health` shows the new state.
    """
    refused = "managed.subscription."
    change = {"name": MANAGED, "state": "STOP"}
    assert post(emulator, "/admin/managed", change) == (200, change)
    assert health(emulator)["managed_subscriptions"][MANAGED]["state"] == "STOP"
    assert client.managed().refusal() == refused + "config.stopped"
    change = {"name": MANAGED, "state": "RUN"}
    assert post(emulator, "/admin/managed", change) == (200, change)
    emulator.publish(ORDERS, [{}])
    stream = client.managed()
    stream.events(1)
    deleted = post(emulator, "/admin/managed", {"name": MANAGED, "delete": True})
    assert deleted == (200, {"name": MANAGED, "state": None})
    assert stream.refusal() == refused + "config.deleted"
    assert MANAGED not in health(emulator)["managed_subscriptions"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/admin/faults", {"kind": "explode"}, "explode"),
        ("/admin/faults", {"kind": "age_out", "replay": "00"}, "replay"),
        ("/admin/faults", {"kind": "age_out", "replay_id": "zz"}, "replay_id"),
        ("/admin/faults", {"kind": "corrupt_id", "replay_id": "00"}, "00"),
        ("/admin/faults", {"kind": "stop_managed"}, "target"),
        ("/admin/faults", {"kind": "stop_managed", "target": "Nobody"}, "Nobody"),
        ("/admin/faults", {"kind": "split_response", "events": "1"}, "events"),
        ("/admin/token", {"mode": "die"}, "{}"),
        ("/admin/token", None, "{}"),
        ("/admin/managed", {"name": "Nobody", "state": "RUN"}, "Nobody"),
        ("/admin/managed", {"name": MANAGED, "state": "PAUSE"}, "state"),
        ("/admin/managed", {"name": MANAGED}, "state"),
        ("/admin/managed", {"name": MANAGED, "delete": 1}, "delete"),
        ("/admin/managed", {"name": MANAGED, "state": "STOP", "delete": True}, "delete"),
        ("/admin/managed", {"name": 3, "delete": True}, "name"),
        ("/admin/managed", [], "name"),
    ],
)
def test_admin_error_names_the_offending_value(emulator, path, body, named):
    """A request with an invalid body returns status 400 with an error that names the offending
    field or value, and changes nothing.
    """
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        emulator.http_url + path,
        data,
        {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {emulator.access_token}",
        },
    )
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request):
        pass
    with caught.value as error:
        assert error.code == 400
        assert named in json.loads(error.read())["error"]
    assert emulator.faults.report() == []
    assert emulator.managed.get(MANAGED).state == "RUN"


def test_admin_rejects_an_unknown_token(emulator):
    """`/admin/token` and `/admin/managed` return status 401 for a token that the emulator did not
    issue, and change nothing.
    """
    for path, body in (("/admin/token", {}), ("/admin/managed", {"name": MANAGED, "delete": True})):
        assert post(emulator, path, body, token="x")[0] == 401
    assert emulator.managed.get(MANAGED) is not None


@pytest.mark.parametrize(
    ("path", "body", "headers", "expected"),
    [
        ("/admin/faults", None, {}, 401),
        ("/admin/faults", {"kind": "refuse"}, {"Authorization": "Bearer x"}, 401),
        ("/admin/faults", {"kind": "explode"}, {}, 400),
        ("/admin/faults", [], {}, 400),
        ("/admin/faults", {"kind": "refuse"}, {"Content-Type": "text/plain"}, 415),
        ("/admin/clock", {"jump_s": -1}, {}, 400),
        ("/admin/clock", {"jump_s": "1"}, {}, 400),
        ("/admin/clock", {"jump_s": float("nan")}, {}, 400),
        ("/admin/clock", {}, {}, 400),
    ],
)
def test_admin_refusal_status(emulator, path, body, headers, expected):
    """A request without a valid token, or with a wrong body or content type, is refused with the
    matching status, and adds no fault.
    """
    if body is not None:
        headers = {"Authorization": f"Bearer {emulator.access_token}", **headers}
    assert fetch(emulator, path, body, **headers)[0] == expected
    assert emulator.faults.report() == []
