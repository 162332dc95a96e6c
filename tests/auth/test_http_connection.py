"""Tests of the persistent connection for long polling, which can be cut while a request waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.cookiejar import CookieJar

import pytest

from sfpubsub.auth.http import Answer, Bearer, HttpClient
from sfpubsub.auth.http_connection import HttpConnection
from sfpubsub.errors import ConfigurationError, RemoteProtocolError, StreamUnavailableError

from .servers import SOCKET_TIMEOUT, head_of, raw_host

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Served:
    """A server that counts its connections, and holds back responses until `answers` is set."""

    url: str = ""
    connections: int = 0
    requests: list[int] = field(default_factory=list)
    """The number of the connection of each request."""
    received: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    answers: threading.Event = field(default_factory=threading.Event)

    def talk(self, connection: socket.socket, _over: threading.Event) -> None:
        self.connections += 1
        number = self.connections
        while head_of(connection):
            self.requests.append(number)
            self.received.release()
            self.answers.wait(SOCKET_TIMEOUT)
            connection.sendall(OK)


@pytest.fixture
def served() -> Iterator[Served]:
    """Run a `Served` server whose `answers` is set, so that it responds at once."""
    found = Served()
    found.answers.set()
    with raw_host(found.talk) as found.url:
        yield found
        found.answers.set()


@pytest.fixture
def connection() -> Iterator[HttpConnection]:
    """Return a connection that accepts responses of up to 1024 bytes."""
    found = HttpConnection(HttpClient(insecure=True), CookieJar(), 1024)
    yield found
    found.drop()


def post(connection: HttpConnection, url: str) -> Answer:
    """Prepare the connection, send an empty POST request, and return the response."""
    connection.ready()
    return connection.post(Bearer(url, "token"), "/", b"", SOCKET_TIMEOUT)


def test_requests_share_one_connection(served: Served, connection: HttpConnection) -> None:
    """Consecutive requests share one connection, which saves a handshake before each long poll."""
    for _ in range(3):
        assert post(connection, served.url).body == b"{}"
    assert served.requests == [1, 1, 1]


def test_a_request_in_flight_is_cut(served: Served, connection: HttpConnection) -> None:
    """`cut` aborts a request that is waiting for its response.

    The next request uses a new connection.
    """
    served.answers.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, connection, served.url)
        assert served.received.acquire(timeout=SOCKET_TIMEOUT)
        connection.cut()
        with pytest.raises(StreamUnavailableError):
            waiting.result(SOCKET_TIMEOUT / 2)
    served.answers.set()
    post(connection, served.url)
    assert served.requests == [1, 2]


def test_a_cut_before_the_request_is_sent_aborts_it(
    served: Served, connection: HttpConnection
) -> None:
    """A `cut` between `ready` and `post` still applies: the request fails, and nothing is sent."""
    connection.ready()
    connection.cut()
    with pytest.raises(StreamUnavailableError):
        connection.post(Bearer(served.url, "token"), "/", b"", SOCKET_TIMEOUT)
    assert served.requests == []


def test_after_an_error_a_new_connection_is_opened(served: Served) -> None:
    """The connection of a response that is too large is not reused, as it has unread bytes."""
    small = HttpConnection(HttpClient(insecure=True), CookieJar(), 1)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            post(small, served.url)
    assert served.requests == [1, 2]


def test_a_token_is_not_sent_in_plaintext_to_another_machine() -> None:
    """Sending a token to an ``http`` URL of another machine raises a configuration error."""
    connection = HttpConnection(HttpClient(), CookieJar(), 1024)
    with pytest.raises(ConfigurationError, match="plaintext"):
        post(connection, "http://example.com")
