"""Tests of the Tooling API client that administers managed subscriptions.

They cover the requests that it sends, and that it rejects responses it cannot trust.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import string
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.session import Session
from sfpubsub.auth.soql import quoted
from sfpubsub.errors import (
    ConfigurationError,
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    RequestRefusedError,
    SessionExpiredError,
    SfPubSubError,
    StreamUnavailableError,
    SubscriptionNotFoundError,
)
from sfpubsub.tooling import ManagedEventSubscription, Tooling, wait_until
from sfpubsub.tooling.records import check_topic

from .auth.servers import Host, Reply, Request, https_host, raw_host

TOKEN = "00D000000000001!TopSecretToken"
TOPIC = "/event/Order_Event__e"
BASE = "/services/data/v60.0/tooling"
RECORDS = f"{BASE}/sobjects/ManagedEventSubscription"


def error_reply(status: int, code: str, message: str = "said the org") -> Reply:
    """Return a reply with this status and one Salesforce error code."""
    return Reply(status, [{"errorCode": code, "message": message}])


class Org:
    """The parts of an org that these tests need, as a request handler."""

    def __init__(self, *names: str, page: int = 2000) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.page = page
        for name in names:
            self.add(name)

    def add(self, name: str, **metadata: str) -> str:
        """Add a managed subscription, and return its record id."""
        record_id = f"18x{len(self.rows) + 1:012d}AAA"
        self.rows[record_id] = {
            "Id": record_id,
            "DeveloperName": name,
            "Metadata": {
                "label": name,
                "topicName": TOPIC,
                "defaultReplay": "LATEST",
                "errorRecoveryReplay": "LATEST",
                "state": "RUN",
                **metadata,
            },
        }
        return record_id

    def __call__(self, request: Request) -> Reply:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return error_reply(401, "INVALID_SESSION_ID")
        parts = urlsplit(request.path)
        if parts.path.startswith(f"{BASE}/query"):
            query = parse_qs(parts.query).get("q", [""])[0]
            return self._page(query, int(parts.path.rpartition("-")[2]) if not query else 0)
        record_id = parts.path.rpartition("/")[2]
        if request.method == "POST":
            body = json.loads(request.body)
            return Reply(
                201, {"id": self.add(body["FullName"], **body["Metadata"]), "success": True}
            )
        if record_id not in self.rows:
            return error_reply(404, "NOT_FOUND")
        if request.method == "PATCH":
            self.rows[record_id]["Metadata"] = json.loads(request.body)["Metadata"]
        else:
            del self.rows[record_id]
        return Reply(204)

    def _page(self, query: str, begin: int) -> Reply:
        """Return a page of the query's rows, with the path of the next page, if any."""
        rows = list(self.rows.values())
        found = re.search(r"WHERE (\w+) = '([^']*)'", query)
        if found:
            rows = [row for row in rows if row[found[1]] == found[2]]
        elif "Metadata" in query:
            return error_reply(400, "MALFORMED_QUERY")
        end = begin + self.page
        answer = {"size": len(rows), "done": end >= len(rows), "records": rows[begin:end]}
        if not answer["done"]:
            answer["nextRecordsUrl"] = f"{BASE}/query/01g000000000001-{end}"
        return Reply(200, answer)


@pytest.fixture
def serve():
    """Return a function that serves an org, and returns its host and a Tooling client for it."""
    from contextlib import ExitStack

    with ExitStack() as opened:

        def start(answer) -> tuple[Host, Tooling]:
            host = opened.enter_context(https_host(answer))
            return host, tooling_of(host.url)

        yield start


def tooling_of(url: str, timeout: float = 10.0) -> Tooling:
    """Return a Tooling client for this URL; the timeout is in seconds."""
    return Tooling(Session(TOKEN, url), http=HttpClient(timeout=timeout))


def test_create_sends_the_documented_request(serve):
    """create() sends the documented body, with EARLIEST and RUN as defaults."""
    org = Org()
    host, tooling = serve(org)
    made = tooling.create("Orders", TOPIC)
    sent = host.requests[-1]
    assert (sent.method, sent.path) == ("POST", RECORDS)
    assert json.loads(sent.body) == {
        "FullName": "Orders",
        "Metadata": {
            "label": "Orders",
            "topicName": TOPIC,
            "defaultReplay": "EARLIEST",
            "errorRecoveryReplay": "EARLIEST",
            "state": "RUN",
        },
    }
    assert made == ManagedEventSubscription(
        next(iter(org.rows)), "Orders", "Orders", TOPIC, "EARLIEST", "EARLIEST", "RUN"
    )
    assert tooling.show("Orders") == tooling.show(made.id) == made


def test_a_record_can_be_stopped_started_updated_and_deleted(serve):
    """A managed subscription keeps its label when it is stopped, started and updated.

    After it is deleted, every operation raises an error.
    """
    org = Org()
    _, tooling = serve(org)
    made = tooling.create("Orders", TOPIC, label="For people", default_replay="LATEST")
    assert tooling.stop("Orders").state == "STOP"
    assert tooling.show("Orders").label == "For people"
    assert tooling.start(made.id).state == "RUN"
    changed = tooling.update("Orders", default_replay="EARLIEST")
    assert (changed.label, changed.default_replay) == ("For people", "EARLIEST")
    assert tooling.show("Orders") == changed
    assert tooling.delete("Orders") == changed
    assert not org.rows
    for act in (tooling.show, tooling.start, tooling.stop, tooling.update, tooling.delete):
        with pytest.raises(SubscriptionNotFoundError, match="no managed subscription Orders"):
            act("Orders")


def test_list_reads_all_pages(serve):
    """list() returns every record once, sorted by name, even if the org sends several pages."""
    names = [f"S{number:02d}" for number in range(25)]
    host, tooling = serve(Org(*reversed(names), page=10))
    assert [record.developer_name for record in tooling.list()] == names
    assert sum("-10" in request.path for request in host.requests) == 1


def test_list_skips_a_record_deleted_meanwhile(serve):
    """list() skips a record that is deleted while the listing runs."""
    org = Org("A", "B")
    _, tooling = serve(org)
    listing = tooling.list()
    assert next(listing).developer_name == "A"
    org.rows.clear()
    assert list(listing) == []


@pytest.mark.parametrize(
    "name",
    ["", "1A", "A_", "A__B", "_A", "A B", "A'B", "A\\", "Ä", "A\n", "18x", "A-B", "18x00000"],
)
def test_an_invalid_name_is_rejected_without_a_request(serve, name):
    """An invalid developer name raises an error before any request is sent."""
    host, tooling = serve(Org())
    for act in (lambda: tooling.create(name, TOPIC), lambda: tooling.show(name)):
        with pytest.raises(ConfigurationError, match="developer name"):
            act()
    assert not host.requests


@pytest.mark.parametrize(
    ("topic", "good"),
    [
        ("/event/Order_Event__e", True),
        ("/event/Orders__chn", True),
        ("/event/LoginEventStream", True),
        ("/data/ChangeEvents", True),
        ("/data/AccountChangeEvent", True),
        ("/data/Order__ChangeEvent", True),
        ("/data/Orders__chn", True),
        ("/data/Account", False),
        ("/data/AccountChangeEvents", False),
        ("/data/ChangeEvent", False),
        ("event/Order_Event__e", False),
        ("/topic/Orders", False),
        ("/event/", False),
        ("/event/Order Event__e", False),
        ("/event/Order_Event__e\n", False),
        ("", False),
    ],
)
def test_topics_are_checked_for_the_documented_forms(topic, good):
    """Topics of the documented forms pass; others raise an error that lists these forms."""
    if good:
        check_topic(topic)
    else:
        with pytest.raises(ConfigurationError, match="/data/ChangeEvents"):
            check_topic(topic)


def test_an_invalid_preset_is_rejected_without_a_request(serve):
    """A preset other than LATEST or EARLIEST raises an error before any request is sent."""
    host, tooling = serve(Org("Orders"))
    for change in ({"default_replay": "CUSTOM"}, {"error_recovery_replay": "latest"}):
        with pytest.raises(ConfigurationError, match="LATEST or EARLIEST"):
            tooling.update("Orders", **change)
        with pytest.raises(ConfigurationError, match="LATEST or EARLIEST"):
            tooling.create("New", TOPIC, **change)
    assert not host.requests


def test_creation_fails_if_the_org_is_full_or_the_name_taken(serve):
    """create() raises an error if the org has 200 subscriptions or the name is taken.

    No POST request is sent.
    """
    org = Org(*(f"S{number}" for number in range(200)))
    host, tooling = serve(org)
    with pytest.raises(QuotaExceededError, match="200 managed subscriptions"):
        tooling.create("One_More", TOPIC)
    with pytest.raises(ConfigurationError, match=r"S7 already exists \(18x000000000008AAA\)"):
        tooling.create("S7", TOPIC)
    assert {request.method for request in host.requests} == {"GET"}
    org.rows.popitem()
    assert tooling.create("One_More", TOPIC).state == "RUN"


def test_an_api_version_before_60_or_a_malformed_one_is_rejected():
    """An API version that is malformed or older than 60.0 raises an error.

    Managed subscriptions exist since version 60.0.
    """
    for version in ("59.0", "60", "v60.0", "60.0/../..", ""):
        with pytest.raises(ConfigurationError, match=r"60\.0 or later"):
            Tooling(Session(TOKEN, "https://org"), api_version=version)


def test_values_of_queries_are_escaped():
    """Quotes and backslashes in a query's value are escaped, so they cannot end the string."""
    assert quoted("a'b\\c") == "'a\\'b\\\\c'"


class RenewingSessions:
    """Supplies a sequence of sessions: first *void* invalid ones, then a valid one."""

    def __init__(self, url: str, void: int) -> None:
        self.sessions = [Session(f"{TOKEN}{number}", url) for number in range(void)]
        self.sessions.append(Session(TOKEN, url))
        self.fetches = 0

    def get_session(self, expired: Session | None) -> Session:
        self.fetches += 1
        return self.sessions[self.fetches - 1]


def test_an_expired_session_is_renewed_once(serve):
    """If the session has expired, it is replaced and the request is repeated once.

    If the new session is rejected as well, an error is raised.
    """
    host, _ = serve(Org("Orders"))
    provider = RenewingSessions(host.url, void=1)
    assert Tooling(provider, http=HttpClient()).show("Orders").developer_name == "Orders"
    assert (provider.fetches, len(host.requests)) == (2, 2)
    provider = RenewingSessions(host.url, void=3)
    with pytest.raises(SessionExpiredError) as caught:
        Tooling(provider, http=HttpClient()).show("Orders")
    assert caught.value.error_code == "INVALID_SESSION_ID"
    assert (provider.fetches, len(host.requests)) == (2, 4)


def test_a_query_survives_a_passing_failure_and_a_change_is_sent_once(serve):
    """A query is sent again after a 503, as the reader of an org's records does. A request that
    creates something is not, because it may have been executed.
    """
    org, failing = Org(), ["GET", "POST"]

    def answer(request):
        if request.method not in failing:
            return org(request)
        failing.remove(request.method)
        return Reply(503, "<html>")

    host, tooling = serve(answer)
    org.add("Orders")
    assert [record.developer_name for record in tooling.list()] == ["Orders"]
    with pytest.raises(StreamUnavailableError):
        tooling.create("New", TOPIC)
    assert [request.method for request in host.requests].count("POST") == 1
    assert failing == []


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (error_reply(403, "INSUFFICIENT_ACCESS"), PermissionDeniedError, "Customize Application"),
        (error_reply(403, "REQUEST_LIMIT_EXCEEDED"), QuotaExceededError, "REQUEST_LIMIT_EXCEEDED"),
        (error_reply(400, "DUPLICATE_DEVELOPER_NAME"), RequestRefusedError, "another name"),
        (
            error_reply(400, "INVALID_INPUT", "The topicName field is invalid"),
            RequestRefusedError,
            "topicName field is invalid",
        ),
        (Reply(503, "<html>"), StreamUnavailableError, "503"),
        (Reply(201, {"id": "../../../x"}), RemoteProtocolError, "valid id"),
        (Reply(201, {}), RemoteProtocolError, "valid id"),
        (Reply(204), RemoteProtocolError, "valid id"),
    ],
)
def test_a_refused_creation_is_a_typed_error_with_salesforces_code(serve, reply, error, says):
    """A rejected creation raises the matching error with Salesforce's code, but not the token."""
    org = Org()
    host, tooling = serve(lambda request: reply if request.method == "POST" else org(request))
    with pytest.raises(error, match=says) as caught:
        tooling.create("Orders", TOPIC)
    code = re.search(rb'"errorCode": "(\w+)"', json.dumps(reply.body, default=str).encode())
    assert caught.value.error_code == (code[1].decode() if code else None)
    assert TOKEN not in repr(caught.value)
    assert host.requests[-1].method == "POST"


@pytest.mark.parametrize(
    "place",
    [
        "//{thief}/services/data/v60.0/tooling/query/01g-2000",
        "http://{thief}/services/data/v60.0/tooling/query/01g-2000",
        "@{thief}/services/data/v60.0/tooling/query/01g-2000",
        ".{thief}/x",
        "/services/data/v60.0/tooling/query/../../../../x",
        "/services/data/v60.0/tooling/query/01g-2000?x=http://{thief}",
        "/services/apexrest/anything",
        "",
        None,
        7,
        {},
    ],
)
def test_the_next_page_is_never_requested_from_another_host(serve, place):
    """A nextRecordsUrl that is not a query path raises an error, so the token is not exposed."""
    thief, _ = serve(Org())
    named = place.format(thief=urlsplit(thief.url).netloc) if isinstance(place, str) else place
    page = {"size": 1, "done": False, "records": [], "nextRecordsUrl": named}
    host, tooling = serve(lambda _: Reply(200, page))
    with pytest.raises(RemoteProtocolError, match="next page"):
        next(tooling.list())
    assert len(host.requests) == 1
    assert not thief.requests


def test_listing_stops_after_20_pages(serve):
    """An org that announces a next page forever causes an error after 20 pages."""
    more = f"{BASE}/query/01g-1"
    page = {"done": False, "records": [], "nextRecordsUrl": more}
    host, tooling = serve(lambda _: Reply(200, page))
    with pytest.raises(RemoteProtocolError, match="20 pages"):
        next(tooling.list())
    assert len(host.requests) == 20


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("act", ["show", "create", "start", "delete"])
def test_a_redirect_is_not_followed(serve, status, act):
    """A redirect raises an error that names the host, and the token is not sent there."""
    thief, _ = serve(Org("Orders"))
    org = Org("Orders")
    away = Reply(status, b"", {"Location": f"{thief.url}{RECORDS}?token=abc"})
    last = {"show": "GET", "create": "POST", "start": "PATCH", "delete": "DELETE"}[act]
    _, tooling = serve(lambda request: away if request.method == last else org(request))
    arguments = ("New", TOPIC) if act == "create" else ("Orders",)
    with pytest.raises(RemoteProtocolError, match=r"redirects to '127\.0\.0\.1'"):
        getattr(tooling, act)(*arguments)
    assert not thief.requests


GOOD = {
    "size": 1,
    "totalSize": 1,
    "done": True,
    "records": [Org("Orders").rows["18x000000000001AAA"]],
}


STRANGE = [None, True, -1, 1e308, "", "x" * 5000, [], {}, [[]], {"a": {}}, "18x'", "\ud800"]

LEFT_OUT = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a JSON value, as keys and indices."""
    yield path
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else items:
        yield from places(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], thing: Any) -> Any:
    """Replace the part of `value` at `path` with `thing`, or remove it if `thing` is LEFT_OUT."""
    if not path:
        return thing
    key, *rest = path
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if name != key}
        inner = put(value[key], tuple(rest), thing)
        return kept if inner is LEFT_OUT else {**kept, key: inner}
    return [put(value[0], tuple(rest), thing)] if thing is not LEFT_OUT or rest else []


NEEDED = [
    ("records",),
    ("done",),
    ("records", 0, "Id"),
    ("records", 0, "DeveloperName"),
    ("records", 0, "Metadata"),
    *(("records", 0, "Metadata", name) for name in GOOD["records"][0]["Metadata"]),
]


def test_a_response_with_a_wrong_part_is_rejected(serve):
    """A response whose required part is missing or has the wrong type raises an error.

    Replacing any part never causes an unexpected exception.
    """
    bodies = [
        json.dumps(put(GOOD, path, thing))
        for path in places(GOOD)
        for thing in [*STRANGE, LEFT_OUT]
        if not (path == () and thing is LEFT_OUT)
    ]
    bad = [
        json.dumps(put(GOOD, path, thing))
        for path in NEEDED
        for thing in [None, -1, {"a": {}}, LEFT_OUT]
    ]
    answers = iter([*bodies, *bad])
    _, tooling = serve(lambda _: Reply(200, next(answers).encode("utf-8", "surrogatepass")))
    for _ in bodies:
        with contextlib.suppress(SfPubSubError):
            assert isinstance(tooling.show("Orders"), ManagedEventSubscription)
    for body in bad:
        with pytest.raises(RemoteProtocolError):
            pytest.fail(f"{body} was taken for {tooling.show('Orders')}")


def mutated(value: Any, rng: random.Random) -> Any:
    """Return `value` with a random part replaced by a strange value, or left out."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        if rng.random() < 0.2:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        return [mutated(value[0], rng), *value[1:]]
    return rng.choice(STRANGE)


def garbage(rng: random.Random) -> Reply:
    """Return a random response, which is usually invalid and occasionally valid."""
    status = rng.choice([200, 200, 200, 200, 201, 204, 400, 401, 403, 404, 405, 429, 500, 503, 299])
    text = json.dumps(mutated(GOOD, rng))
    form = rng.randrange(8)
    if form == 0:
        text = text[: rng.randrange(len(text))]
    elif form == 1:
        text = "<!DOCTYPE html><html><body>Down for maintenance</body></html>"
    elif form == 2:
        text = "[" * 20_000
    elif form == 3:
        text = json.dumps(rng.choice([[{"errorCode": 7, "message": []}], [[]], [None], "x", 1]))
    elif form == 4:
        return Reply(status, bytes(rng.randrange(256) for _ in range(rng.randrange(200))))
    elif form == 5:
        text = "".join(rng.choice(string.printable) for _ in range(rng.randrange(300)))
    return Reply(status, text.encode("utf-8", "surrogatepass"))


def test_any_response_gives_a_result_or_a_typed_error(serve):
    """600 random responses raise only the package's own errors, none of which reveals the token."""
    seed = 7
    rng = random.Random(seed)
    _, tooling = serve(lambda _: garbage(rng))
    acts = [
        lambda: tooling.show("Orders"),
        lambda: list(tooling.list()),
        lambda: tooling.create("New", TOPIC),
        lambda: tooling.stop("Orders"),
        lambda: tooling.delete("Orders"),
    ]
    good, errors = 0, []
    for number in range(600):
        try:
            acts[number % len(acts)]()
            good += 1
        except SfPubSubError as error:
            errors.append(str(error))
    assert good, f"seed {seed}: no response was valid, so the test shows nothing"
    assert len(errors) > good
    assert [text for text in errors if TOKEN in text or len(text) > 1000] == [], f"seed {seed}"


def test_a_truncated_or_slow_response_raises_an_error_in_time():
    """A truncated response raises a typed error, and one that arrives too slowly times out."""
    starts = [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"not http at all\r\n\r\n",
    ]
    for start in starts:

        def talk(connection, _over, start=start):
            connection.recv(65536)
            connection.sendall(start)

        with raw_host(talk) as url, pytest.raises(SfPubSubError) as caught:
            tooling_of(url).show("Orders")
        assert TOKEN not in repr(caught.value)

    def drip(connection, over):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not over.wait(0.02):
            connection.sendall(b" ")

    began = time.monotonic()
    with raw_host(drip) as url, pytest.raises(StreamUnavailableError):
        tooling_of(url, timeout=0.3).show("Orders")
    assert time.monotonic() - began < 30


# Waiting.


class Clock:
    """A clock that advances only in sleep(), and records its pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the time without waiting."""
        self.pauses.append(seconds)
        self.now += seconds


def test_waiting_reports_progress_and_ends_when_the_check_passes():
    """wait_until() reports its progress before each pause and stops once the check passes."""
    clock, told, answers = Clock(), [], iter([False, False, True])
    wait_until(
        "X is known",
        lambda: next(answers),
        every=10,
        progress=told.append,
        clock=clock,
        sleep=clock.sleep,
    )
    assert told == [0, 10]
    assert clock.pauses == [10, 10]


def test_waiting_ends_at_its_timeout_with_a_retryable_error():
    """wait_until() stops checking at its timeout, and raises a retryable error that names the
    condition.
    """
    clock, looks = Clock(), []
    with pytest.raises(StreamUnavailableError, match="that X is known") as caught:
        wait_until(
            "X is known",
            lambda: bool(looks.append(clock.now)),
            timeout=25,
            every=10,
            clock=clock,
            sleep=clock.sleep,
        )
    assert looks == [0, 10, 20]
    assert caught.value.retryable
