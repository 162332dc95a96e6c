"""Tests of the HTTP client, and of the REST client of an org that uses it.

Requests go to a single host, time out, and raise errors of this package.
"""

from __future__ import annotations

import pickle
import socket
import time
from contextlib import ExitStack

import pytest

from sfpubsub.auth.http import Bearer, Form, HttpClient
from sfpubsub.auth.request_limit import RequestLimit
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, StaticSession
from sfpubsub.config import network
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    LocalProtocolError,
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    RequestRefusedError,
    SessionExpiredError,
    StreamUnavailableError,
)

from ..conftest import PATIENCE
from .servers import REMOTE, Reply, connect_proxy, https_host, remote

TENANT = "00D000000000001EAA"


@pytest.fixture
def host(authority):
    """Run an HTTPS server that responds with ``{"ok": true}`` unless a test replaces its `answer`
    function.
    """
    with https_host(lambda _request: Reply(200, {"ok": True}), authority) as found:
        yield found


@pytest.fixture
def http(host):
    """Return an HTTP client that trusts the certificate of the test server `host`."""
    return HttpClient(ca_file=host.ca_file, timeout=30.0)


class Tokens:
    """A session provider that returns a new token on every call: token-1, token-2 and so on."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0

    def get_session(self, _expired):
        self.count += 1
        return Session(f"token-{self.count}", self.url, TENANT)


@pytest.fixture
def org(host, http):
    """Return a REST client for the test server `host`, with a token that can be renewed."""
    return OrgClient(CurrentSession(Tokens(host.url)), http)


def test_a_request_carries_the_token_and_json(host, org):
    """Each HTTP method sends its path, encoded query, token and JSON body correctly."""
    assert org.get("/services/data/v60.0/tooling/query", {"q": "SELECT Id FROM X"}) == {"ok": True}
    org.post("/things", {"FullName": "Näme"})
    org.patch("/things/1", {"a": 1})
    org.delete("/things/1")
    assert [(r.method, r.path) for r in host.requests] == [
        ("GET", "/services/data/v60.0/tooling/query?q=SELECT+Id+FROM+X"),
        ("POST", "/things"),
        ("PATCH", "/things/1"),
        ("DELETE", "/things/1"),
    ]
    assert {r.headers["Authorization"] for r in host.requests} == {"Bearer token-1"}
    assert host.requests[1].headers["Content-Type"] == "application/json"
    assert host.requests[1].body == rb'{"FullName": "N\u00e4me"}'


def test_an_empty_response_yields_none(host, org):
    """The result of a response with status 204, as after a change or deletion, is None."""
    host.answer = lambda _request: Reply(204)
    assert org.get("/x") is None


def test_a_rejected_token_is_renewed_once(host, org):
    """A request whose token is rejected is sent again with a new token."""

    def respond(request):
        good = request.headers["Authorization"] == "Bearer token-2"
        return Reply(200, {}) if good else Reply(401, [{"errorCode": "INVALID_SESSION_ID"}])

    host.answer = respond
    assert org.get("/x") == {}
    assert len(host.requests) == 2


def test_a_token_that_is_rejected_twice_raises(host, org):
    """If the new token is rejected too, the request fails instead of renewing the token
    endlessly.
    """
    host.answer = lambda _request: Reply(401, [{"errorCode": "INVALID_SESSION_ID"}])
    with pytest.raises(SessionExpiredError, match="INVALID_SESSION_ID"):
        org.get("/x")
    assert len(host.requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, [{"errorCode": "MALFORMED_QUERY", "message": "no"}], RequestRefusedError, True),
        (404, [{"errorCode": "NOT_FOUND", "message": "no"}], RequestRefusedError, True),
        (400, {"errorCode": "X", "message": "no"}, RequestRefusedError, True),
        (400, [{"errorCode": 5, "message": []}], RequestRefusedError, False),
        (400, "<html>", RequestRefusedError, False),
        (400, [], RequestRefusedError, False),
        (400, ["x"], RequestRefusedError, False),
        (403, [{"errorCode": "INSUFFICIENT_ACCESS", "message": "no"}], PermissionDeniedError, True),
        (403, [{"errorCode": "REQUEST_LIMIT_EXCEEDED"}], QuotaExceededError, True),
    ],
)
def test_a_rejected_request_raises_a_typed_error(host, org, status, body, kind, code):
    """The status and Salesforce's error code determine which error is raised.

    The error contains the code if there is one, whatever the form of the body.
    """
    host.answer = lambda _request: Reply(status, body)
    with pytest.raises(kind, match=f"GET /x was refused by .* with {status}") as caught:
        org.get("/x")
    first = body[0] if isinstance(body, list) and body else body
    assert caught.value.error_code == (first["errorCode"] if code else None)
    assert not caught.value.retryable


def test_a_response_that_is_not_json_raises_a_protocol_error(host, org):
    """A response with HTML raises `RemoteProtocolError`, and not the JSON parser's error."""
    host.answer = lambda _request: Reply(200, "<html>")
    with pytest.raises(RemoteProtocolError, match="HTML"):
        org.get("/x")


@pytest.mark.parametrize("path", ["@evil.example/", ".evil.example/", ":1@evil.example", "x", ""])
def test_a_path_cannot_name_another_host(http, path):
    """A path that doesn't begin with a slash could change the host of the URL, so it is rejected
    before anything is sent.
    """
    with pytest.raises(LocalProtocolError, match="slash"):
        http.call(Bearer("https://acme.my.salesforce.com", "t"), "GET", path)


def test_a_token_is_not_sent_in_plaintext(http):
    """Neither a token nor a sign-in form is sent to an ``http`` URL of another machine."""
    with pytest.raises(ConfigurationError, match="plaintext"):
        http.call(Bearer("http://acme.my.salesforce.com", "t"), "GET", "/x")
    with pytest.raises(ConfigurationError, match="plaintext"):
        http.post_form("http://acme.my.salesforce.com/services/oauth2/token", Form(a="b"))


def test_a_netrc_password_does_not_replace_the_token(host, http, monkeypatch, tmp_path):
    """The ``Authorization`` header contains the token even if netrc has a password for the host."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hush\n")
    monkeypatch.setenv("NETRC", str(netrc))
    http.call(Bearer(host.url, "t"), "GET", "/x")
    assert host.requests[0].headers["Authorization"] == "Bearer t"


def test_a_cookie_is_not_kept(host, http):
    """A cookie that a host sets is not sent with the next request."""
    host.answer = lambda _request: Reply(200, {}, {"Set-Cookie": "sid=hush; Path=/"})
    for _ in range(2):
        http.call(Bearer(host.url, "t"), "GET", "/x")
    assert "Cookie" not in host.requests[1].headers


def test_requests_ca_bundle_is_ignored(host, monkeypatch):
    """A certificate in REQUESTS_CA_BUNDLE, which is meant for other tools, is not trusted."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", host.ca_file)
    with pytest.raises(StreamUnavailableError, match="certificate"):
        HttpClient(timeout=30.0).call(Bearer(host.url, "t"), "GET", "/x")


# The proxy.


def test_requests_go_through_the_proxy(host, http):
    """An HTTPS request is tunnelled through the configured proxy, which learns only the host and
    port.
    """
    with connect_proxy() as proxy:
        through = HttpClient(ca_file=host.ca_file, proxy=proxy.url, timeout=30.0)
        assert through.call(Bearer(remote(host.url), "t"), "GET", "/x").status == 200
        assert proxy.asked == [f"CONNECT {REMOTE}:{host.port}"]


def test_the_proxy_in_the_environment(host, http, monkeypatch):
    """If no proxy is configured, the one in ``https_proxy`` is used.

    A host in ``no_proxy`` is reached without a proxy, even if one is configured.
    """
    with connect_proxy() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        http.call(Bearer(remote(host.url), "t"), "GET", "/x")
        assert len(proxy.asked) == 1
    monkeypatch.setenv("no_proxy", f"{REMOTE},10.0.0.0/8")
    for name in (REMOTE, "10.1.2.3"):
        assert network.proxies_for(f"https://{name}", proxy.url) == {}
    assert network.proxies_for("https://other.test", proxy.url) == {"https": proxy.url}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_no_proxy_is_used_for_loopback(monkeypatch, name):
    """An address of loopback is reached without a proxy, whatever is configured."""
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    assert network.proxies_for(f"https://{name}:1", "http://other:1") == {}
    assert network.proxy_to(name) == ""


def test_a_proxy_with_a_password(host):
    """The password in the proxy's URL is sent to the proxy only, and a client that has it can't
    be pickled.
    """
    with connect_proxy() as proxy:
        url = proxy.url.replace("http://", "http://me:hush@")
        http = HttpClient(ca_file=host.ca_file, proxy=url)
        http.call(Bearer(remote(host.url), "t"), "GET", "/x")
        assert len(proxy.credentials) == 1
    assert "Proxy-Authorization" not in host.requests[0].headers
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(HttpClient(proxy=url))


def test_plaintext_to_loopback_goes_through_no_proxy(monkeypatch):
    """A plaintext request to loopback never goes to a proxy, as this would send the token off
    the machine.
    """
    with connect_proxy() as proxy, https_host(lambda _request: Reply(200, {})) as plain:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for http in (HttpClient(proxy=proxy.url), HttpClient()):
            http.call(Bearer(plain.url, "t"), "GET", "/x")
        assert (len(plain.requests), proxy.asked) == (2, [])


def test_an_unreachable_proxy(host):
    """The error is retryable, names the setting and doesn't contain the proxy's password."""
    http = HttpClient(ca_file=host.ca_file, proxy="http://me:hush@127.0.0.1:9", timeout=30.0)
    with pytest.raises(StreamUnavailableError, match="SFPUBSUB_PROXY") as caught:
        http.call(Bearer(remote(host.url), "t"), "GET", "/x")
    assert caught.value.retryable
    assert "hush" not in str(caught.value)


def test_a_rejected_static_token_names_its_setting(host, http):
    """If a fixed access token from the settings is rejected, the error names the setting that
    contains it.
    """
    host.answer = lambda _request: Reply(401, [])
    org = OrgClient(CurrentSession(StaticSession(Session("t", host.url, TENANT))), http)
    with pytest.raises(AuthenticationError, match="SFPUBSUB_ACCESS_TOKEN"):
        org.get("/x")


def test_the_timeout_covers_all_addresses_of_a_host(monkeypatch):
    """The timeout applies to the whole request.

    A host with 200 addresses that don't answer fails within it, not after 200 connect timeouts.
    """
    with ExitStack() as opened:
        holes = [opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))]
        address = holes[0].getsockname()
        for _ in range(3):  # with its queue full, the kernel drops new connections
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)] * 200
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
        monkeypatch.setattr("sfpubsub.auth.http.CONNECT_TIMEOUT", 0.2)
        began = time.monotonic()
        with pytest.raises(StreamUnavailableError, match=r"did not answer within 0\.3 s"):
            HttpClient(timeout=0.3).post_form("https://many.example.com/x", Form(a="b"))
        assert time.monotonic() - began < 20  # one address after another would take 40 s


def test_an_expired_request_sends_nothing(host):
    """A connection that is opened after the deadline is closed at once.

    Otherwise a late sign-in could use up a refresh token although nobody waits for its result.
    """
    limit = RequestLimit()
    limit.expire()
    with socket.create_connection(("127.0.0.1", host.port)) as late:
        with pytest.raises(ConnectionAbortedError):
            limit.watch(late)
        assert late.fileno() == -1, "TLS on it would fail, and leave the socket open"


def test_only_the_latest_connection_is_shut_down_on_expiry():
    """A request limit that watches a second connection closes its handle of the first, and `expire`
    then shuts down the second.
    """
    limit = RequestLimit()
    first, first_end = socket.socketpair()
    second, second_end = socket.socketpair()
    with first_end, second, second_end:
        with first:
            limit.watch(first)
        limit.watch(second)
        first_end.settimeout(PATIENCE)
        assert first_end.recv(1) == b""
        limit.expire()
        second_end.settimeout(PATIENCE)
        assert second_end.recv(1) == b""
