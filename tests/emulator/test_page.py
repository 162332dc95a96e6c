"""The emulator's web page without a browser: content, rejected requests and live updates."""

from __future__ import annotations

import html
import http.client
import json
import re
import threading
import time
import urllib.parse
from typing import Any

import pytest

from sfpubsub.emulator.faults.kinds import KINDS
from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.http import listener
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.lag import CommitHistory, series
from sfpubsub.emulator.server import EmulatorServer

from .support import ACCOUNTS, CHANGES, MANAGED, ORDERS, WAIT_S, commit, until
from .web import ask

HTML = {"Accept": "text/html"}
TOPIC = "/ui/topic?name=" + urllib.parse.quote(ORDERS)
NASTY = "<script>alert('1')</script> \"&"
PAGES = [
    "/",
    TOPIC,
    f"/ui/topic?name={ACCOUNTS}",
    f"/ui/topic?name={CHANGES}",
    "/ui/records",
    "/ui/records?object=Account",
    "/ui/subscriptions",
    "/ui/streams",
    "/ui/faults",
    "/ui/clock",
]


@pytest.fixture(scope="module")
def org(tmp_path_factory):
    """An emulator with an event that contains HTML, shared by all tests of the module."""
    with EmulatorServer(tmp_path_factory.mktemp("data"), clock=ManualClock()) as emulator:
        emulator.publish(ORDERS, [{"City__c": NASTY}])
        yield emulator


def load(org: Any, path: str) -> str:
    """Return the HTML of a page."""
    reply = ask(org, "GET", path, headers=HTML)
    assert reply.status == 200, reply.text
    return reply.text


def token(org: Any) -> str:
    """Return the anti-forgery token of the page's forms."""
    found = re.search(r'name="form-token" value="([^"]+)"', load(org, "/ui/clock"))
    assert found
    return found[1]


def send(org: Any, path: str, headers: Any = None, **fields: str) -> tuple[int, str, str]:
    """Post a form as the page does; return the status, the Location header and the body.

    Redirects are not followed.
    """
    fields.setdefault("form-token", token(org))
    host = urllib.parse.urlsplit(org.http_url).netloc
    connection = http.client.HTTPConnection(host, timeout=WAIT_S)
    kind = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
    connection.request("POST", path, urllib.parse.urlencode(fields), kind)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Location", ""), text


class Updates:
    """A stream of server-sent events, read the way a browser does."""

    def __init__(self, org: Any, path: str, headers: Any = None) -> None:
        host = urllib.parse.urlsplit(org.http_url).netloc
        self.connection = http.client.HTTPConnection(host, timeout=WAIT_S)
        self.connection.request("GET", path, headers=headers or {})
        self.answer = self.connection.getresponse()

    def next(self, kind: str) -> dict[str, str]:
        """Wait for the next message of type *kind*, and return its data as a dict.

        The key `mark` holds the message's ID; it is empty if the message has none.
        """
        fields: dict[str, str] = {}
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream has ended"
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif fields.get("event") == kind:
                return {"mark": fields.get("id", ""), **json.loads(fields["data"])}
            else:
                fields = {}

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


@pytest.fixture
def updates(org):
    """Return a function that opens a stream of updates, which is closed at the end of the test."""
    opened = []

    def make(path: str, headers: Any = None) -> Updates:
        opened.append(Updates(org, path, headers))
        return opened[-1]

    yield make
    for item in opened:
        item.close()


@pytest.mark.parametrize("path", PAGES)
def test_page_loads_nothing_from_other_hosts(org, path):
    """A page contains no URLs of other hosts and no inline scripts or styles.

    Its Content-Security-Policy enforces this.
    """
    reply = ask(org, "GET", path, headers=HTML)
    text = reply.text
    assert reply.status == 200
    assert re.findall(r'(?:src|href|action)="(?!/|#)', text) == []
    assert re.findall(r'(?:src|href|action)="//', text) == []
    assert not re.search(r"<style|<script(?! src=\"/ui/live.js\")| style=| on\w+=", text)
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert org.access_token not in text


def test_input_is_escaped(org, updates):
    """Event values, topic names and form input are always escaped."""
    assert "<script>alert" not in load(org, TOPIC)
    assert html.escape(NASTY) in load(org, TOPIC)
    assert (
        "<script>alert" not in updates(TOPIC.replace("topic?", "topic/live?")).next("add")["html"]
    )
    reply = ask(org, "GET", f"/ui/topic?name={urllib.parse.quote(NASTY)}", headers=HTML)
    assert reply.status == 404
    assert "<script>alert" not in reply.text
    status, _, text = send(org, "/ui/topic", **{"form-topic": ORDERS, "Amount__c": NASTY})
    assert status == 400
    assert "<script>alert" not in text


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"form-token": ""}),
        ({}, {"form-token": "guessed"}),
        ({"Origin": "https://example.com"}, {}),
        ({"Origin": "null"}, {}),
        ({"Origin": "http://[::1"}, {}),
        ({"Sec-Fetch-Site": "cross-site"}, {}),
        ({"Sec-Fetch-Site": "same-site"}, {}),
        ({"Content-Type": "text/plain"}, {}),
    ],
)
def test_forged_form_changes_nothing(org, headers, fields):
    """A form with a missing or wrong token, origin or content type publishes nothing."""
    before = org.bus.tip()
    status, _, _ = send(org, "/ui/topic", headers, **{"form-topic": ORDERS, **fields})
    assert status in (403, 415)
    assert org.bus.tip() == before


@pytest.mark.parametrize("host", ["evil.example.com", "127.0.0.1.example.com", "", "[::1"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_dns_rebinding_is_refused(org, method, host):
    """A request whose Host header names a public domain is rejected with status 421.

    Otherwise, DNS rebinding could expose data to a web site.
    """
    reply = ask(org, method, TOPIC, b"" if method == "POST" else None, {"Host": host, **HTML})
    assert reply.status == 421
    assert NASTY not in html.unescape(reply.text)


@pytest.mark.parametrize(
    "host", ["localhost:1", "emulator:7012", "[::1]:7012", "10.0.0.7", "a.localhost"]
)
def test_local_host_names_are_served(org, host):
    """The page is served under IP addresses, localhost, and host names without a dot, such as those
    of containers.
    """
    assert ask(org, "GET", "/", headers={"Host": host, **HTML}).status == 200


def test_publish_from_the_form(org):
    """The form publishes each field with its own type, and blank fields as null.

    A JSON array publishes several events.
    """
    done = send(
        org,
        "/ui/topic",
        **{"form-topic": ORDERS, "Order_Number__c": "7", "Amount__c": "1.5", "City__c": ""},
        Has_Shipped__c="true",
    )
    assert done[:2] == (303, f"{TOPIC.replace('/event/', '%2Fevent%2F')}&done=published")
    event = last(org, ORDERS)
    assert (event["Order_Number__c"], event["Amount__c"], event["Has_Shipped__c"]) == (
        "7",
        1.5,
        True,
    )
    assert event["City__c"] is None
    rows = json.dumps([{"Order_Number__c": "8"}, {"Order_Number__c": "9"}])
    before = org.bus.tip()
    assert send(org, "/ui/topic", **{"form-topic": ORDERS, "form-json": rows})[0] == 303
    assert (org.bus.tip(), last(org, ORDERS)["Order_Number__c"]) == (before + 2, "9")
    change = json.dumps({"changeType": "DELETE", "recordIds": ["001x"]})
    fields = {"form-topic": ACCOUNTS, "ChangeEventHeader": change}
    assert send(org, "/ui/topic", **fields)[0] == 303
    assert last(org, ACCOUNTS)["ChangeEventHeader"]["changeType"] == "DELETE"


def last(org: Any, name: str) -> dict[str, Any]:
    """Return the decoded values of the newest event of a topic."""
    ((event, _),) = org.bus.newest(org.bus.topic(name), 1)
    return org.bus.schema(event.schema_id).decode(event.payload)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"Amount__c": "much"}, "Amount__c is not a number: 'much'"),
        ({"Ordered_At__c": "1.5"}, "Ordered_At__c is not a whole number"),
        ({"form-json": "{"}, "the text is not valid JSON"),
        ({"form-json": '{"Nonsense": 1}'}, "does not have these fields: Nonsense"),
        ({"form-json": "[]"}, "must be an object"),
    ],
)
def test_publish_form_reports_invalid_input(org, fields, said):
    """Invalid input publishes nothing; the form is returned with status 400 and keeps the input."""
    before = org.bus.tip()
    entered = {"form-topic": ORDERS, "Order_Number__c": "kept", **fields}
    status, _, text = send(org, "/ui/topic", **entered)
    assert status == 400
    assert said in html.unescape(text)
    assert 'value="kept"' in text
    assert org.bus.tip() == before


def test_live_updates_send_each_event_once(org, updates):
    """A new event is streamed at once; a browser that reconnects receives only those it missed."""
    path = f"/ui/topic/live?name={ORDERS}&after={org.bus.tip()}"
    stream = updates(path)
    assert stream.next("put")["id"].endswith("-published")
    org.publish(ORDERS, [{"Order_Number__c": "live-1"}])
    first = stream.next("add")
    assert first["id"] == "events"
    assert "live-1" in first["html"]
    org.publish(ORDERS, [{"Order_Number__c": "live-2"}])
    second = stream.next("add")
    assert "live-2" in second["html"]
    assert "live-1" not in second["html"]
    stream.close()
    org.publish(ORDERS, [{"Order_Number__c": "live-3"}])
    again = updates(path, {"Last-Event-ID": second["mark"]}).next("add")["html"]
    assert "live-3" in again
    assert "live-2" not in again


def test_open_page_is_not_counted_as_a_stream(org, updates):
    """An open page does not count as a stream of its topic."""
    before = ask(org, "GET", "/health").json["topics"][ORDERS]["streams"]
    updates(TOPIC.replace("topic?", "topic/live?")).next("put")
    assert ask(org, "GET", "/health").json["topics"][ORDERS]["streams"] == before


def test_open_pages_are_bounded(org, updates, monkeypatch):
    """When the maximum number of pages is open, another is rejected with status 503.

    Once a page is closed, a new one is accepted.
    """
    monkeypatch.setattr(listener, "_STREAMS", 1)
    until(lambda: not org._http._server._streams)
    stream = updates("/ui/clock/live")
    stream.next("put")
    assert updates("/ui/clock/live").answer.status == 503
    stream.close()
    until(lambda: not org._http._server._streams)
    assert updates("/ui/clock/live").answer.status == 200


def test_open_page_does_not_delay_the_stop(tmp_path, caplog, monkeypatch):
    """The emulator stops at once even if a page is open.

    It logs nothing and leaves no thread behind.
    """
    before = set(threading.enumerate())
    emulator = EmulatorServer(tmp_path).start()
    stream = Updates(emulator, "/ui/live")
    stream.next("put")
    monkeypatch.setattr(listener, "_STREAM_END_S", 120.0)  # the longest that it would wait
    began = time.monotonic()
    emulator.stop()
    assert time.monotonic() - began < 60.0
    began_then = set(threading.enumerate()) - before
    assert not [item for item in began_then if "process_request" in item.name]
    assert not caplog.records
    stream.close()


def test_streams_show_their_credit(start):
    """An open stream is listed with its outstanding credit until it ends."""
    emulator, client = start()
    stream = client.subscribe(num_requested=42)
    emulator.publish(ORDERS, [{}, {}])
    stream.events(2)
    rows = re.search(r"<tbody.*?</tbody>", load(emulator, "/ui/streams"), re.DOTALL)[0]
    assert "<b>40</b>" in rows
    assert ORDERS in rows
    stream.close()
    until(lambda: ORDERS not in load(emulator, "/ui/streams"))


def test_topic_counts_include_managed_subscriptions(start):
    """The number of delivered events of a topic includes those of its managed subscriptions, as the
    number of streams does.
    """
    emulator, client = start()
    emulator.publish(ORDERS, [{}, {}])
    client.subscribe().events(2)
    client.managed().events(2)
    row = re.search(rf"<tr>(?:(?!</tr>).)*{ORDERS}.*?</tr>", load(emulator, "/"), re.DOTALL)
    assert re.findall(r"<b[^>]*>([\d,]+)</b>", row[0]) == ["2", "4", "2"]


def test_lag_over_time():
    """The lag at a given time is the number of events published since the last committed position.

    Before the first commit of this process, the previously stored position counts.
    """
    published = [(position, float(position)) for position in range(1, 11)]
    history = CommitHistory({"a": 2, "b": None})
    history.note("a", 5, 7.0)
    history.note("a", 10, 11.0)
    history.note("b", 4, 6.0)
    times = [1.0, 5.0, 7.0, 10.0, 11.0]
    assert [lag.events for lag in series(published, history.of("a"), times)] == [0, 3, 2, 5, 0]
    assert [lag.events for lag in series(published, history.of("b"), times)] == [1, 5, 3, 6, 6]
    assert [lag.events for lag in series(published, history.of("c"), times)] == [1, 5, 7, 10, 10]


def test_subscription_shows_position_lag_and_plot(start):
    """The page shows a subscription's committed position, its lag and a plot of the lag.

    Its form changes the subscription's state.
    """
    emulator, client = start()
    stream = client.managed()
    emulator.publish(ORDERS, [{} for _ in range(10)])
    events = stream.events(10)
    stream.send(commit(events[5].replay_id))
    stream.answer()
    text = load(emulator, "/ui/subscriptions")
    assert events[5].replay_id.hex() in text
    assert re.search(r"events behind</dt><dd>4</dd>", text)
    assert re.search(r'<svg[^>]*aria-label="[^"]*now 4, ', text)
    status, place, _ = send(emulator, "/ui/subscriptions", name=MANAGED, state="STOP")
    assert (status, place) == (303, "/ui/subscriptions?done=stopped")
    assert emulator.managed.get(MANAGED).state == "STOP"
    assert send(emulator, "/ui/subscriptions", name="None", state="STOP")[0] == 404
    assert send(emulator, "/ui/subscriptions", name=MANAGED, state="WALK")[0] == 400


def test_every_kind_of_fault_has_a_form(org):
    """Every kind of fault has a form whose default values work, unless it needs a target."""
    text = load(org, "/ui/faults")
    needing = set()
    for kind in KINDS:
        section = re.search(rf'value="{kind}">.*?</form>', text, re.DOTALL)[0]
        fields = dict(re.findall(r'<input [^>]*name="([^"]+)" value="([^"]*)"', section))
        fields |= dict.fromkeys(re.findall(r'<select [^>]*name="([^"]+)"', section), "")
        if KINDS[kind].acts and kind not in ("corrupt_id", "stop_managed", "delete_managed"):
            continue  # it would change the org that other tests use
        if send(org, "/ui/faults", kind=kind, **fields)[0] != 303:
            needing.add(kind)
    assert needing == {"corrupt_id", "stop_managed", "delete_managed"}
    added = {row["kind"]: row for row in org.faults.report()}
    assert added["drop_stream"]["after_responses"] == 0
    assert added["cut_poll"]["with_events"] is True
    for number in range(len(org.faults.report())):  # other tests use the same org
        org.faults.switch_off(number)
    status, _, text = send(org, "/ui/faults", kind="drop_stream", **{"p-after_responses": "few"})
    assert status == 400
    assert "after_responses must be a whole number, not 'few'" in html.unescape(text)


def test_fault_can_be_switched_off(org):
    """A fault that can still occur has a button that disables it; a completed one has none.

    An unknown number is rejected with status 400.
    """
    number = org.faults.add(Fault("drop_stream", times=2))
    (event,) = org.publish(ORDERS, [{}])
    done = org.faults.add(Fault("corrupt_id", replay_id=event.replay_id.hex()))
    text = load(org, "/ui/faults")
    assert f'name="off" value="{number}"' in text
    assert f'name="off" value="{done}"' not in text
    status, place, _ = send(org, "/ui/faults", off=str(number))
    assert (status, place) == (303, "/ui/faults?done=off")
    assert org.faults.report()[number]["off"]
    assert f'name="off" value="{number}"' not in load(org, "/ui/faults")
    for wrong in (str(number), str(done), "-1", "x", "9" * 30):
        assert send(org, "/ui/faults", off=wrong)[0] == 400


@pytest.mark.parametrize("text", ["-1", "", "nan", "inf", "soon", "1e12"])
def test_clock_only_moves_forward(org, text):
    """The clock moves forward by a number of seconds.

    A value that is negative, too large or not a number is rejected with status 400.
    """
    before = org.clock.now()
    assert send(org, "/ui/clock", seconds="90")[:2] == (303, "/ui/clock?done=jumped")
    assert org.clock.now() == before + 90
    assert send(org, "/ui/clock", seconds=text)[0] == 400
    assert org.clock.now() == before + 90


def test_record_forms(org):
    """Records can be created, updated and deleted through forms.

    The change event of an update contains only the changed fields.
    """
    status, place, _ = send(org, "/ui/records", **{"form-object": "Account", "Name": "Burlington"})
    assert status == 303
    key = urllib.parse.parse_qs(place)["id"][0]
    assert 'value="Burlington"' in load(org, place)
    given = {"form-object": "Account", "form-id": key, "form-before": form_before(org, place)}
    # The form also contains a checkbox field that was never set, as false.
    fields = {"Name": "Burlington", "Active__c": "false", "Phone": "+43 1 2"}
    assert send(org, "/ui/record", **given, **fields)[0] == 303
    event = last(org, ACCOUNTS)
    assert event["ChangeEventHeader"]["changeType"] == "UPDATE"
    assert (event["Name"], event["Active__c"], event["Phone"]) == (None, None, "+43 1 2")
    status, _, text = send(org, "/ui/record", **given, Name="")
    assert status == 400
    assert "Name" in re.search(r'class="problem"[^>]*>([^<]+)', text)[1]
    assert send(org, "/ui/record", **given, **{"form-do": "delete"})[0] == 303
    assert last(org, ACCOUNTS)["ChangeEventHeader"]["changeType"] == "DELETE"
    assert ask(org, "GET", f"/ui/record?object=Account&id={key}", headers=HTML).status == 404
    assert ask(org, "GET", "/ui/records?object=Nonsense", headers=HTML).status == 404


def form_before(org, place):
    """Return the value of a record form's hidden field, which holds the values first shown."""
    return html.unescape(re.search(r'name="form-before" value="([^"]*)"', load(org, place))[1])


def test_record_form_saves_only_changed_fields(org):
    """A record's form updates only the fields that the user changed.

    Fields changed by an API call in the meantime, and line breaks rewritten by browsers, are left
    as they are.
    """
    user = org.accounts.holder("")
    key = org.records.create(
        "Account", {"Name": "A", "Phone": "1", "Description": "\none\ntwo", "Fax": "1\n2"}, user
    )
    given = {"form-object": "Account", "form-id": key}
    before = form_before(org, f"/ui/record?object=Account&id={key}")
    org.records.update("Account", key, {"Phone": "2"}, user)
    sent = {"Name": "B", "Phone": "1", "Description": "one\r\ntwo", "Fax": "12"}
    assert send(org, "/ui/record", **given, **sent, **{"form-before": before})[0] == 303
    row = org.records.get("Account", key)
    assert (row["Name"], row["Phone"], row["Description"]) == ("B", "2", "\none\ntwo")
    assert row["Fax"] == "1\n2"
    sent["Description"] = "one\r\nthree"
    assert send(org, "/ui/record", **given, **sent, **{"form-before": before})[0] == 303
    assert org.records.get("Account", key)["Description"] == "one\nthree"
    assert send(org, "/ui/record", **given, **sent)[0] == 400


def test_notice_cannot_be_injected(org):
    """A link to the page cannot make it show arbitrary text as a notice."""
    assert "Pay me" not in load(org, "/?done=Pay+me")
