"""Whatever a host sends, signing in ends with a session or with an error of this package.

The host is a real one on loopback, so that the HTTP library is tested as well. Hypothesis makes its
responses: damaged and truncated JSON, values of other types, headers, raw bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.oauth import ClientCredentials
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, StaticSession
from sfpubsub.errors import SfPubSubError

from .servers import Reply, https_host, raw_host

T = TypeVar("T")

ORG = "00D000000000001EAA"

# No deadline, because an example may be slow on a busy machine.
FUZZ = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
# Text of characters with a special meaning in a URL or a header.
hostile = st.text("htps:/@[]?#%\\ .\r\n\0é1a", max_size=30)


@pytest.fixture(scope="module")
def host():
    """Run an HTTP server; a test sets its `answer`, the function that returns the responses."""
    with https_host(lambda _request: Reply()) as found:
        yield found


class Raw:
    """The URL of a TCP server, and the bytes that it sends on every connection."""

    url = ""
    sent = b""


@pytest.fixture(scope="module")
def raw():
    """Run a TCP server that sends the bytes in `sent` on every connection."""
    found = Raw()

    def talk(connection, _over):
        connection.recv(65536)
        connection.sendall(found.sent)

    with raw_host(talk) as found.url:
        yield found


def outcome(call: Callable[[], T]) -> T | SfPubSubError:
    """Return the result of *call*, or the `SfPubSubError` that it raises."""
    try:
        return call()
    except SfPubSubError as error:
        return error


def login_at(url: str, timeout: float = 5.0) -> Callable[[], Session | SfPubSubError]:
    """Return a function that signs in at *url*, and returns the session or the error."""
    login = ClientCredentials("k", "hush", login_url=url, http=HttpClient(timeout=timeout))
    return lambda: outcome(lambda: login.get_session(None))


def check_sign_in(host) -> None:
    """Sign in; the result must be a valid session, or a one-line error without secrets.

    Only the token and userinfo endpoints may be requested.
    """
    asked = len(host.requests)
    came = login_at(host.url)()
    if isinstance(came, SfPubSubError):
        assert came.__cause__ is None
        assert came.__context__ is None
        assert "hush" not in str(came)
        assert "\n" not in str(came)
    else:
        assert came.instance_url == host.url
        assert came.tenant_id
        assert all(value.isascii() and value.isprintable() for _, value in came.headers)
    assert {request.path for request in host.requests[asked:]} <= {
        "/services/oauth2/token",
        "/services/oauth2/userinfo",
    }


@FUZZ
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "access_token": values | hostile | st.just("00D000000000001!token"),
            "token_type": values | st.just("Bearer"),
            "id": values | hostile | st.just(f"https://x/id/{ORG}/005000000000001"),
            "refresh_token": values,
        },
    ),
    st.integers(200, 599),
)
def test_fields_of_any_type(host, fields, status):
    """A token response whose fields are missing, null, of another type or full of special
    characters yields a session or an error of this package.
    """
    answer = {"access_token": "t", "instance_url": host.url, **fields}
    host.answer = lambda request: (
        Reply(status, json.dumps(answer)) if request.method == "POST" else Reply(403)
    )
    check_sign_in(host)


@FUZZ
@given(hostile.map(lambda text: f"https://{text}") | hostile | values)
def test_only_https_hosts_are_accepted_as_instance_urls(host, instance_url):
    """An instance URL is accepted only if it consists of ``https://`` and a host, and no request is
    sent to check it.
    """
    answer = {
        "access_token": "t",
        "instance_url": instance_url,
        "id": f"https://x/id/{ORG}/005000000000001",
    }
    host.answer = lambda _request: Reply(200, json.dumps(answer))
    asked = len(host.requests)
    came = login_at(host.url)()
    if isinstance(came, Session):
        scheme, _, rest = came.instance_url.partition("://")
        assert scheme == "https"
        assert not set(rest) & set("@?#/\\ \r\n\0")
    assert len(host.requests) == asked + 1


@FUZZ
@given(st.data())
def test_a_truncated_or_damaged_response(host, data):
    """A token response that is truncated, or has changed bytes, yields a session or an error of
    this package.
    """
    good = bytearray(
        json.dumps(
            {
                "access_token": "00D000000000001!token",
                "instance_url": host.url,
                "id": f"https://login.salesforce.com/id/{ORG}/005000000000001AAA",
            }
        ).encode()
    )
    instance = good.index(b"instance_url")
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(
            st.integers(0, instance - 1)
        )  # before the URL of the host, which stays valid
        good[place] = data.draw(st.integers(0, 255))
    body = bytes(good[: data.draw(st.integers(0, len(good)))])
    host.answer = lambda request: Reply(200, body) if request.method == "POST" else Reply(403)
    check_sign_in(host)


@FUZZ
@given(st.integers(200, 599), st.binary(max_size=200), st.sampled_from(["", "gzip", "br", "x"]))
def test_any_status_with_any_body(host, status, body, encoding):
    """Whatever status, body and content encoding the server sends, signing in ends with a session
    or an error of this package.
    """
    headers = {"Content-Encoding": encoding} if encoding else {}
    host.answer = lambda _request: Reply(status, body, headers)
    check_sign_in(host)


@FUZZ
@given(
    st.binary(max_size=300)
    | st.lists(
        st.sampled_from(
            [
                b"HTTP/1.1 200 OK\r\n",
                b"HTTP/1.1 302 Found\r\n",
                b"HTTP/1.1 100 Continue\r\n",
                b"Content-Length: 2\r\n",
                b"Content-Length: -1\r\n",
                b"Content-Length: 9999999999999999999\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Location: //\r\n",
                b"Location: http://[\r\n",
                b": \r\n",
                b"\x00\r\n",
                b"\r\n",
                b"2\r\n{}\r\n0\r\n\r\n",
                b"ffffffffffffffff\r\n",
                b"{}",
            ]
        ),
        max_size=8,
    ).map(b"".join)
)
def test_any_bytes_instead_of_http(raw, sent):
    """A server that sends arbitrary bytes, or almost valid HTTP, causes an error of this
    package.
    """
    raw.sent = sent
    came = login_at(raw.url, timeout=1.0)()
    assert isinstance(came, SfPubSubError)
    assert came.__context__ is None


@FUZZ
@given(st.integers(200, 599), values.map(lambda v: json.dumps(v).encode()) | st.binary())
def test_any_response_to_a_rest_request(host, status, body):
    """Any response to a REST request is returned, or raises an error with a one-line message."""
    host.answer = lambda _request: Reply(status, body)
    sessions = CurrentSession(StaticSession(Session("t", host.url, ORG)))
    org = OrgClient(sessions, HttpClient(timeout=30.0))
    came = outcome(lambda: org.get("/services/data"))
    assert not isinstance(came, SfPubSubError) or "\n" not in str(came)


@FUZZ
@given(hostile)
def test_no_path_redirects_the_token_to_another_host(host, path):
    """A request for any path, such as a next page named by a server, goes to the configured host or
    raises an error.
    """
    asked = len(host.requests)
    host.answer = lambda _request: Reply(200, "{}")
    http = HttpClient(timeout=30.0)
    came = outcome(lambda: http.call(Bearer(host.url, "t"), "GET", path))
    assert isinstance(came, SfPubSubError) or len(host.requests) == asked + 1
