"""Small test servers on loopback: an HTTP or HTTPS host, a raw TCP host and a CONNECT proxy.

Each server runs within a ``with`` block. The test decides how it responds.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import trustme

# No socket of a test server waits longer than this, in seconds.
SOCKET_TIMEOUT = 10.0


class Request(NamedTuple):
    """A request that a server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        """Return the body's form fields by name."""
        return dict(parse_qsl(self.body.decode()))


class Reply(NamedTuple):
    """The response that a server sends."""

    status: int = 200
    body: bytes | str | dict[str, Any] | list[Any] = b""
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed


@dataclass
class Host:
    """A running HTTP server.

    Attributes:
        answer: Called with each request; returns the response to send.
        requests: All requests received, in order.
    """

    url: str
    port: int
    ca_file: str
    answer: Callable[[Request], Reply]
    requests: list[Request] = field(default_factory=list, repr=False)


REMOTE = "org.test"
"""The name of a host that only `connect_proxy` reaches: no proxy is used for loopback."""


def remote(url: str) -> str:
    """Return a URL or address of loopback with the name `REMOTE`."""
    return url.replace("127.0.0.1", REMOTE)


class Authority:
    """A certificate authority that is created for a test."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self.ca_file = directory / "test-ca.pem"
        self._ca.cert_pem.write_to_path(self.ca_file)

    def context(self) -> ssl.SSLContext:
        """Return a server-side TLS context with a new certificate for loopback and `REMOTE` from
        this authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert("127.0.0.1", "localhost", REMOTE).configure_cert(context)
        return context


@contextmanager
def https_host(
    answer: Callable[[Request], Reply], authority: Authority | None = None
) -> Iterator[Host]:
    """Run an HTTP server that responds with *answer*, over TLS if an authority is given."""

    class Handler(BaseHTTPRequestHandler):
        timeout = SOCKET_TIMEOUT

        def do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(
                self.command, self.path, dict(self.headers.items()), self.rfile.read(length)
            )
            host.requests.append(request)
            reply = host.answer(request)
            body = reply.body
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            body = body.encode() if isinstance(body, str) else body
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client may have closed the connection
                self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815  # the base class's names

        def log_message(self, *_arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_arguments: Any) -> None:
            pass  # expected if the client does not trust the certificate

    server = Server(("127.0.0.1", 0), Handler)
    if authority is not None:
        server.socket = authority.context().wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    port = server.server_address[1]
    scheme = "http" if authority is None else "https"
    ca_file = "" if authority is None else str(authority.ca_file)
    host = Host(f"{scheme}://127.0.0.1:{port}", port, ca_file, answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SOCKET_TIMEOUT)


@contextmanager
def raw_host(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Run a TCP server that calls *talk* for each connection; yield its URL.

    Args:
        talk: Called in a new thread with the connection, and with a `threading.Event` that is set
            when the server stops.
    """
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)

    def serve() -> None:
        with listener:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=converse, args=(connection,), daemon=True).start()

    def converse(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(SOCKET_TIMEOUT)
            talk(connection, over)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        thread.join(SOCKET_TIMEOUT)


@dataclass
class Proxy:
    """A running CONNECT proxy."""

    url: str
    asked: list[str] = field(default_factory=list)
    """``METHOD host:port`` of each request, in order."""
    credentials: list[str] = field(default_factory=list)
    """``Proxy-Authorization`` header lines of the requests that have one."""


def head_of(connection: socket.socket, at_a_time: int = 1024) -> bytes:
    """Read a request up to the end of its headers; return b"" if the client has disconnected."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(at_a_time)
        if not part:
            return b""
        head += part
    return head


@contextmanager
def connect_proxy(frozen: threading.Event | None = None) -> Iterator[Proxy]:
    """Run a CONNECT proxy, for which every name is this machine; while *frozen* is set, it reads
    data but does not forward it.
    """
    proxy = Proxy("")

    def talk(client: socket.socket, over: threading.Event) -> None:
        head = head_of(client, 1)  # byte by byte: the bytes after the headers are for the server
        if not head:
            return
        first, *lines = head.decode().split("\r\n")
        proxy.asked.append(first.rpartition(" ")[0])
        proxy.credentials += [x for x in lines if x.lower().startswith("proxy-authorization")]
        method, target, _ = first.split(" ")
        if method != "CONNECT":
            client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        port = int(target.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), SOCKET_TIMEOUT) as other:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=copy, args=(other, client, over), daemon=True)
            back.start()
            copy(client, other, over)
            back.join(SOCKET_TIMEOUT)

    def copy(source: socket.socket, sink: socket.socket, over: threading.Event) -> None:
        source.settimeout(0.05)
        with suppress(OSError):
            while not over.is_set():
                try:
                    part = source.recv(65536)
                except TimeoutError:
                    continue
                if not part:
                    break
                if frozen is None or not frozen.is_set():
                    sink.sendall(part)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with raw_host(talk) as url:
        proxy.url = url
        yield proxy


def path_of(url: str) -> str:
    """Return the path of a URL."""
    return urlsplit(url).path
