"""Tests of the monitoring HTTP server and its web page, both as HTML and in a real browser."""

from __future__ import annotations

import contextlib
import html.parser
import http.client
import json
import math
import os
import socket

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.monitoring.history import EVERY, KEPT, History, Point, Series
from sfpubsub.monitoring.metrics import Metric
from sfpubsub.monitoring.monitor import LoggedProblem, Monitor
from sfpubsub.monitoring.plot import Window, plot
from sfpubsub.monitoring.registry import Sample
from sfpubsub.monitoring.server import serve
from sfpubsub.types import Gap, ReplayId

from ..browser import BROWSER, FAINT, OPTIONS, WIDTHS
from ..conftest import PATIENCE
from .support import HOUR, NOW, Clock, Subscription

HOSTILE = "<script>alert('x')</script>&\"/event/" + "Long_Name_" * 12
POSITION = ReplayId(bytes(range(12)))


def busy_monitor() -> Monitor:
    """Return a monitor after six hours with an outage, a gap, four writes and a warning."""
    clock = Clock()
    monitor = Monitor("ingest into orders", clock=clock)
    gap = Gap("rejected", HOSTILE, POSITION, None, "sfdc.platform.eventbus.grpc.x", "rpc-1")
    first = Subscription(responses=9, delivered=0, last_position=POSITION, committed=POSITION)
    second = Subscription(responses=9, gaps=(gap,), quarantined=2, reconnects=3)
    watched = [
        monitor.follow("managed", "My_Managed_Subscription", first),
        monitor.follow("topic", HOSTILE, second),
    ]
    monitor.follow_counts(lambda: [Sample(Metric.WRITTEN, 123_456.0, (("messaging.system", "x"),))])
    for number in range(int(6 * HOUR / EVERY)):
        clock.now += EVERY
        share = number * EVERY / HOUR
        events = int(EVERY * (120 + 80 * math.sin(share * 2)))
        # An outage for half an hour, after which the first source catches up for as long.
        first.becomes(caught_up=not 2.0 < share < 3.0, unacked=7 if 2.0 < share < 3.0 else 0)
        if not 2.0 < share < 2.5:
            first.becomes(delivered=first.said.delivered + events, responses=number + 10)
            second.becomes(delivered=second.said.delivered + events // 9, responses=number + 10)
        for observation in watched:
            observation.turn()
        monitor.update()
    for number in range(4):
        monitor.step_ended("write", 0.4 + number / 7, f"{1000 + number} rows, 0 duplicates")
    monitor.logged.append(LoggedProblem(clock.now - 60, "warning", f"{HOSTILE} cannot be fetched"))
    return monitor


@pytest.fixture(scope="module")
def served():
    """Serve a busy monitor over HTTP; yield the monitor and its URL."""
    monitor = busy_monitor()
    with serve(monitor) as url:
        yield monitor, url


def get(url: str, path: str, host: str | None = None, method: str = "GET"):
    """Send a request, optionally with another Host header; return the response and its body."""
    address = url.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_health_fails_with_the_reason_and_recovers(served):
    """`/health` returns 200 while the monitor is healthy, otherwise 503 and the problems.

    Both responses are JSON.
    """
    monitor, url = served
    answer, body = get(url, "/health")
    assert (answer.status, json.loads(body)) == (200, {"status": "ok", "problems": []})
    monitor.clock.now += 331
    answer, body = get(url, "/health")
    assert answer.status == 503
    record = json.loads(body)
    assert record["status"] == "failing"
    assert {problem["situation"] for problem in record["problems"]} == {"silent"}
    assert "messaging_salesforce_failing" in get(url, "/metrics")[1]
    assert 'class="problems"' in get(url, "/")[1]
    monitor.clock.now -= 331
    assert get(url, "/health")[0].status == 200


def test_responses_have_security_headers_and_are_not_cached(served):
    """Every response, even a 404, has security headers and forbids caching.

    HEAD returns no body, and POST is rejected.
    """
    _, url = served
    for path, status in (("/", 200), ("/metrics?x=1", 200), ("/style.css", 200), ("/x", 404)):
        answer, body = get(url, path)
        assert answer.status == status
        assert body
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
    assert get(url, "/", method="HEAD")[1] == ""
    assert get(url, "/", method="POST")[0].status == 501
    assert get(url, "/metrics")[0].headers["Content-Type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "localhost.evil.example"])
def test_requests_for_other_host_names_are_rejected(served, host):
    """An unexpected Host header is rejected with status 421, to prevent DNS rebinding attacks."""
    answer, body = get(served[1], "/metrics", host=host or "[")
    assert answer.status == 421
    assert "messaging" not in body


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9", "10.0.0.7:9090"])
def test_addresses_and_localhost_are_served(served, host):
    """A Host header with an IP address or ``localhost``, and any port, is accepted.

    The port may differ from the server's, for example behind a tunnel.
    """
    assert get(served[1], "/health", host=host)[0].status == 200


def test_trickling_connections_do_not_take_the_health_away(served):
    """While many clients hold a connection open and send a request byte by byte, others are still
    answered: the oldest connection ends.
    """
    _, url = served
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with contextlib.ExitStack() as opened:
        slow = [
            opened.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE))
            for _ in range(64)
        ]
        for each in slow[-16:]:
            each.sendall(b"GET /health HTTP/1.1\r\nX: ")
        for _ in range(20):
            assert get(url, "/health")[0].status in (200, 503)
        assert slow[0].recv(1) == b""


def test_markup_in_names_is_escaped_on_the_page(served):
    """Markup in a topic name or log message is displayed as plain text."""

    class PageContent(html.parser.HTMLParser):
        """Collects the tags and the text of an HTML page."""

        def __init__(self):
            super().__init__()
            self.tags, self.text = set(), ""

        def handle_starttag(self, tag, attrs):
            self.tags.add(tag)

        def handle_data(self, data):
            self.text += data

    seen = PageContent()
    seen.feed(get(served[1], "/")[1])
    assert "script" not in seen.tags
    assert seen.tags >= {"svg", "table", "dl"}
    assert seen.text.count(HOSTILE) >= 4, (
        "a plot, a heading, the gap and the warning each contain it"
    )


def test_a_port_in_use_raises_an_error_with_advice():
    """If the port is in use, `ConfigurationError` suggests choosing another one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match="choose another address or port"),
            serve(Monitor("test"), port=port),
        ):
            pass


def test_server_can_listen_on_ipv6():
    """The server listens on an IPv6 address; its URL contains the address in brackets."""
    try:
        with serve(Monitor("test"), "::1") as url:
            assert url.startswith("http://[::1]:")
            assert get(url, "/health")[0].status == 200
    except ConfigurationError as error:
        pytest.skip(str(error))


# The plots and their data.


def test_history_keeps_six_hours_of_points():
    """The points of the last six hours are kept and older ones are dropped. A count that restarts
    gives a rate of 0, and an unknown value gives None.
    """
    history, values = History(), iter([10.0, 40.0, 5.0, None, 7.0])
    series = Series("x", "events/s", lambda _: next(values), is_rate=True)
    history.follow(series)
    for turn in range(5):
        history.measure(NOW + turn * EVERY)
        history.measure(NOW + turn * EVERY + 1)  # too early: adds no point
    assert [point.value for point in history.points()[series]] == [2.0, 0.0, None, None]
    history, level = History(), Series("y", "s", lambda at: at)
    history.follow(level)
    for turn in range(2000):
        history.measure(NOW + turn * EVERY)
    kept = range(2000 - int(KEPT / EVERY), 2000)
    assert [point.at for point in history.points()[level]] == [NOW + n * EVERY for n in kept]


def test_plot_breaks_its_line_at_gaps_and_keeps_peaks():
    """A gap in the data interrupts the plot's line, and even a single peak stays visible."""
    history = History()
    values = dict.fromkeys(range(1440), 1.0)
    values[700] = 1000.0
    values |= dict.fromkeys(range(200, 400), None)
    series = Series("x", "s", lambda at: values[int((at - NOW) / EVERY)])
    history.follow(series)
    for turn in range(1440):
        history.measure(NOW + turn * EVERY)
    figure = plot(series, history.points()[series], Window(NOW, NOW + KEPT))
    paths = [path.get("d") for path in figure.iter("path")]
    assert len(paths) == 2
    tops = [float(place.split()[1]) for place in " ".join(paths).replace("M", "").split(" L")]
    assert min(tops) == 10.0, "the peak of one point is at the top"
    assert "at most 1,000 s" in figure.find("svg").get("aria-label")


def test_plot_spans_the_time_of_the_run_within_limits():
    """A plot spans 15 minutes to 6 hours, depending on how long the program has run.

    It has 3 to 7 time labels and draws regular points as a single line.
    """
    for ran, shown in ((60.0, 900.0), (2 * HOUR, 2 * HOUR), (9 * HOUR, KEPT)):
        window = Window.of(NOW, NOW + ran)
        assert (window.seconds, window.end) == (shown, NOW + ran)
        points = [Point(window.begin + turn * EVERY, 1.0) for turn in range(int(shown / EVERY))]
        figure = plot(Series("x", "s", float), points, window)
        (path,) = [path.get("d") for path in figure.iter("path")]
        assert path.count("L") > 35
        marks = [text.text for text in figure.iter("text") if text.get("class") == "time"]
        assert 2 < len(marks) <= 7, marks


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_page_renders_cleanly_in_a_browser(served, tmp_path):
    """The page works without scripts, at two widths and in both colour schemes.

    Nothing overflows, all text has enough contrast, no other host is contacted, and the browser
    logs nothing.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    _, url = served
    complaints: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                None if asked.url.startswith((url, "data:")) else complaints.append(asked.url)
            ),
        )
        page.goto(url)
        assert page.locator("h1").text_content() == "ingest into orders"
        assert page.locator("svg path.line").count() >= 4
        assert page.get_by_text("All is well.").count() == 1
        for scheme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(18, 22, 28)")):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
            assert page.evaluate(FAINT) == [], scheme
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert over <= 0, (scheme, width, over)
                where = os.environ.get("SCREENSHOTS", tmp_path)
                page.screenshot(path=f"{where}/{scheme}-{width}.png", full_page=True)
        browser.close()
    assert complaints == []
