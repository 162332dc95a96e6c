"""The HTTP port: counts that tests and the demo rely on, and the admin endpoint."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import MANAGED, ORDERS, commit


def fetch(emulator, path, body=None, **headers):
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
    return json.loads(fetch(emulator, "/health")[1])


def test_counts(emulator, client):
    """Published, delivered, redelivered, commits and the committed id, as they happened."""
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


def test_page_for_a_browser(emulator):
    """/ is a page when HTML is asked for, and JSON otherwise; no secret is on either."""
    status, page = fetch(emulator, "/", Accept="text/html,*/*")
    assert (status, page[:15]) == (200, "<!doctype html>")
    assert ORDERS in page
    status, text = fetch(emulator, "/")
    assert json.loads(text)["status"] == "ok"
    assert emulator.access_token not in page + text


@pytest.mark.parametrize(
    ("path", "body", "expected"), [("/nothing", None, 404), ("/health", {}, 405)]
)
def test_what_is_not_served(emulator, path, body, expected):
    """Unknown paths and methods have the usual statuses."""
    assert fetch(emulator, path, body)[0] == expected


def test_admin_adds_faults(emulator, client):
    """A fault added over HTTP happens, and the plan says so."""
    bearer = f"Bearer {emulator.access_token}"
    fault = {"kind": "refuse", "rpc": "GetTopic", "error_code": "topic.api.unavailable"}
    assert fetch(emulator, "/admin/faults", fault, Authorization=bearer)[0] == 200
    request = pb.TopicRequest(topic_name=ORDERS)
    assert client.refusal("GetTopic", request) == ("UNAVAILABLE", "topic.api.unavailable")
    _, text = fetch(emulator, "/admin/faults", Authorization=bearer)
    assert json.loads(text)["faults"][0]["happened"] == 1


def test_admin_jumps_the_clock(emulator, client):
    """A jump over HTTP makes a keepalive due."""
    stream = client.subscribe()
    assert stream.silent()
    bearer = f"Bearer {emulator.access_token}"
    assert fetch(emulator, "/admin/clock", {"jump_s": 120}, Authorization=bearer)[0] == 200
    assert not stream.next().events


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
def test_admin_refuses(emulator, path, body, headers, expected):
    """Without the token, with a wrong body or type: refused, and nothing happens."""
    if body is not None:
        headers = {"Authorization": f"Bearer {emulator.access_token}", **headers}
    assert fetch(emulator, path, body, **headers)[0] == expected
    assert emulator.faults.report() == []
