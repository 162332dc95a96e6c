"""Managed subscriptions as records: what is asked of an org, and which answers are believed."""

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


def refused(status: int, code: str, message: str = "said the org") -> Reply:
    return Reply(status, [{"errorCode": code, "message": message}])


class Org:
    """As much of an org as these tests need."""

    def __init__(self, *names: str, page: int = 2000) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.page = page
        for name in names:
            self.add(name)

    def add(self, name: str, **metadata: str) -> str:
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
            return refused(401, "INVALID_SESSION_ID")
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
            return refused(404, "NOT_FOUND")
        if request.method == "PATCH":
            self.rows[record_id]["Metadata"] = json.loads(request.body)["Metadata"]
        else:
            del self.rows[record_id]
        return Reply(204)

    def _page(self, query: str, begin: int) -> Reply:
        rows = list(self.rows.values())
        found = re.search(r"WHERE (\w+) = '([^']*)'", query)
        if found:
            rows = [row for row in rows if row[found[1]] == found[2]]
        elif "Metadata" in query:
            return refused(400, "MALFORMED_QUERY")
        end = begin + self.page
        answer = {"size": len(rows), "done": end >= len(rows), "records": rows[begin:end]}
        if not answer["done"]:
            answer["nextRecordsUrl"] = f"{BASE}/query/01g000000000001-{end}"
        return Reply(200, answer)


@pytest.fixture
def serve():
    """Serve an org; returns the host and what administers it."""
    from contextlib import ExitStack

    with ExitStack() as opened:

        def start(answer) -> tuple[Host, Tooling]:
            host = opened.enter_context(https_host(answer))
            return host, tooling_of(host.url)

        yield start


def tooling_of(url: str, timeout: float = 10.0) -> Tooling:
    return Tooling(Session(TOKEN, url), http=HttpClient(timeout=timeout))


def test_create_sends_what_the_documentation_says(serve):
    """FullName and Metadata with five members; EARLIEST unless asked otherwise, in state RUN."""
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


def test_a_life_of_a_record(serve):
    """Stop and start change the state and nothing else; update what is given; delete removes."""
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


def test_list_is_complete_over_several_answers(serve):
    """Every record once, by name, however the org pages; the next page is asked of the same org."""
    names = [f"S{number:02d}" for number in range(25)]
    host, tooling = serve(Org(*reversed(names), page=10))
    assert [record.developer_name for record in tooling.list()] == names
    assert sum("-10" in request.path for request in host.requests) == 1


def test_a_record_deleted_while_listing_is_left_out(serve):
    """Not an error, and not half a record."""
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
def test_a_wrong_name_is_refused_before_the_org_is_asked(serve, name):
    """Nothing is sent: a name is letters, digits and single underscores."""
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
def test_topics_are_checked_before_the_org_is_asked(topic, good):
    """The documented forms pass; another form is refused with those forms in the message."""
    if good:
        check_topic(topic)
    else:
        with pytest.raises(ConfigurationError, match="/data/ChangeEvents"):
            check_topic(topic)


def test_presets_are_checked_before_the_org_is_asked(serve):
    """CUSTOM is a preset of Subscribe and none of a record."""
    host, tooling = serve(Org("Orders"))
    for change in ({"default_replay": "CUSTOM"}, {"error_recovery_replay": "latest"}):
        with pytest.raises(ConfigurationError, match="LATEST or EARLIEST"):
            tooling.update("Orders", **change)
        with pytest.raises(ConfigurationError, match="LATEST or EARLIEST"):
            tooling.create("New", TOPIC, **change)
    assert not host.requests


def test_a_full_org_and_a_taken_name_are_refused_before_creation(serve):
    """The limit of 200 and the name are looked up; the org is not asked to create."""
    org = Org(*(f"S{number}" for number in range(200)))
    host, tooling = serve(org)
    with pytest.raises(QuotaExceededError, match="200 managed subscriptions"):
        tooling.create("One_More", TOPIC)
    with pytest.raises(ConfigurationError, match=r"S7 already exists \(18x000000000008AAA\)"):
        tooling.create("S7", TOPIC)
    assert {request.method for request in host.requests} == {"GET"}
    org.rows.popitem()
    assert tooling.create("One_More", TOPIC).state == "RUN"


def test_an_api_version_that_has_no_managed_subscriptions_is_refused():
    """The object is there since 60.0."""
    for version in ("59.0", "60", "v60.0", "60.0/../..", ""):
        with pytest.raises(ConfigurationError, match=r"60\.0 or later"):
            Tooling(Session(TOKEN, "https://org"), api_version=version)


def test_values_of_queries_are_escaped():
    """A quote or a backslash cannot end the string, should a name ever have one."""
    assert quoted("a'b\\c") == "'a\\'b\\\\c'"


class Renewing:
    """Supplies sessions of which the first are void."""

    def __init__(self, url: str, void: int) -> None:
        self.sessions = [Session(f"{TOKEN}{number}", url) for number in range(void)]
        self.sessions.append(Session(TOKEN, url))
        self.fetches = 0

    def get_session(self, expired: Session | None) -> Session:
        self.fetches += 1
        return self.sessions[self.fetches - 1]


def test_an_expired_session_is_renewed_once(serve):
    """INVALID_SESSION_ID: one new session and one more try, and then the error."""
    host, _ = serve(Org("Orders"))
    provider = Renewing(host.url, void=1)
    assert Tooling(provider, http=HttpClient()).show("Orders").developer_name == "Orders"
    assert (provider.fetches, len(host.requests)) == (2, 2)
    provider = Renewing(host.url, void=3)
    with pytest.raises(SessionExpiredError) as caught:
        Tooling(provider, http=HttpClient()).show("Orders")
    assert caught.value.error_code == "INVALID_SESSION_ID"
    assert (provider.fetches, len(host.requests)) == (2, 4)


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (refused(403, "INSUFFICIENT_ACCESS"), PermissionDeniedError, "Customize Application"),
        (refused(403, "REQUEST_LIMIT_EXCEEDED"), QuotaExceededError, "REQUEST_LIMIT_EXCEEDED"),
        (refused(400, "DUPLICATE_DEVELOPER_NAME"), RequestRefusedError, "another name"),
        (
            refused(400, "INVALID_INPUT", "The topicName field is invalid"),
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
    """The code, Salesforce's words, and what to do; no token."""
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
def test_the_next_page_is_never_asked_of_another_host(serve, place):
    """nextRecordsUrl is believed only as a path of the query interface: the token goes with it."""
    thief, _ = serve(Org())
    named = place.format(thief=urlsplit(thief.url).netloc) if isinstance(place, str) else place
    page = {"size": 1, "done": False, "records": [], "nextRecordsUrl": named}
    host, tooling = serve(lambda _: Reply(200, page))
    with pytest.raises(RemoteProtocolError, match="next page"):
        next(tooling.list())
    assert len(host.requests) == 1
    assert not thief.requests


def test_pages_without_an_end_are_given_up(serve):
    """An org that always has one more page does not hold the caller for ever."""
    more = f"{BASE}/query/01g-1"
    page = {"done": False, "records": [], "nextRecordsUrl": more}
    host, tooling = serve(lambda _: Reply(200, page))
    with pytest.raises(RemoteProtocolError, match="20 pages"):
        next(tooling.list())
    assert len(host.requests) == 20


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("act", ["show", "create", "start", "delete"])
def test_a_redirect_is_not_followed(serve, status, act):
    """The token is for its instance alone; where the org sends us is only named."""
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
    """Yield the path of each thing in *value*."""
    yield path
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else items:
        yield from places(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], thing: Any) -> Any:
    """Return *value* with *thing* at *path*, or without what was there."""
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


def test_each_thing_of_another_kind_is_refused(serve):
    """Every part of an answer that is used, replaced by each strange thing: no record is made."""
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
    """Return *value* with one thing in it replaced by something of another kind, or left out."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        if rng.random() < 0.2:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        return [mutated(value[0], rng), *value[1:]]
    return rng.choice(STRANGE)


def garbage(rng: random.Random) -> Reply:
    """Return an answer that is wrong in some way; now and then it is right."""
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


def test_any_answer_is_a_record_or_a_typed_error(serve):
    """Fuzz: 600 wrong answers, and nothing but our errors; none of them shows the token."""
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
    assert good, f"seed {seed}: nothing right came back, so that nothing was shown"
    assert len(errors) > good
    assert [text for text in errors if TOKEN in text or len(text) > 1000] == [], f"seed {seed}"


def test_an_answer_that_stops_half_way_is_an_error_in_bounded_time():
    """Truncated in the headers, in the body, or dripping: a typed error within the timeout."""
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
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_waiting_tells_its_progress_and_ends_when_the_check_does():
    """Looks, pauses, tells; no pause after the check has passed."""
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


def test_waiting_is_bounded_and_says_that_the_change_is_made():
    """No longer than its timeout, at least one look, and an error that may be tried again."""
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
