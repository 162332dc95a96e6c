"""The HTTP server and its limits: body sizes, number of connections, timeouts for slow clients.

`routing` selects the handler for a path. Each connection has a thread, and the number of
connections is limited. A connection is closed if a request exceeds its time limit, even while bytes
are arriving. Time limits are in real time: a jump in the emulator's clock closes no connections.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
import string
import struct
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sfpubsub.emulator.http import hosts, rest, routing
from sfpubsub.emulator.http.exchange import (
    Answer,
    Call,
    Problem,
    Route,
    Stream,
    bearer,
    decoded,
    too_large,
)
from sfpubsub.emulator.http.rest import RestRefused
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.world import World

_log = logging.getLogger(__name__)

_BODY_BYTES = 256 * 1024
"""Largest accepted body in bytes without a valid token, and for most paths with one; a wide schema
for the admin endpoint has about 50 kB.
"""

_LARGER_BODIES = (
    (re.compile(r"/services/data/v\d+\.0/jobs/ingest/\w+/batches/?"), 150_000_000),
    (re.compile(r"/services/data/v\d+\.0/(composite/)?sobjects\b.*"), 50_000_000),
)
"""Paths that accept larger bodies, with the maximum in bytes. Documented: 150 MB for the rows of a
job, 50 MB for a request.
"""

_LINE_BYTES = 1024
_TRAILERS = 10
"""Limits of a chunked body: `_LINE_BYTES` in a line, and `_TRAILERS` trailer lines."""

_SILENCE_S = 10.0
"""Seconds after which a silent connection is closed, so that it does not occupy a thread."""

_LINGER_S = 1.0
_LINGER_BYTES = 1024 * 1024
"""After refusing a request with an unread body, the server reads up to `_LINGER_BYTES` more bytes,
and stops when the client sends nothing for `_LINGER_S` seconds.
"""

_REQUEST_S = 30.0
"""Time limit in seconds for waiting for a request and handling it; then the connection is cut."""

_CONNECTIONS = 128
"""Maximum number of open connections; one more closes the one whose time ends first, so that
clients that send nothing, or byte by byte, do not keep others away. Some tests open dozens.
"""

_STREAMS = 32
"""Maximum number of open streams, so that pages left open do not use up the connections."""

_STREAM_END_S = 2.0
"""Longest wait for a stream to end, in seconds; it normally takes milliseconds."""

_POLL_S = 0.05
"""Seconds between two checks for overdue connections and for `stop`."""


class HttpServer:
    """An HTTP server that runs in its own threads until it is stopped.

    Args:
        world: The emulator's state.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        names: Host names in the Host header that are served, besides addresses, local names, and
            the announced one.
        tls: TLS context with the certificate; None for plain HTTP.
        pages: Routes that take precedence over those of this package.

    Raises:
        EmulatorProblem: The server cannot listen on this address, for example because the port is
            in use.
    """

    def __init__(
        self,
        world: World,
        host: str,
        port: int,
        names: Sequence[str],
        tls: ssl.SSLContext | None = None,
        pages: Sequence[Route] = (),
    ) -> None:
        server_class = _Server6 if ":" in host else _Server
        try:
            self._server = server_class((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise EmulatorProblem(
                f"cannot listen on {host}:{port} ({getattr(error, 'strerror', error)}):"
                " choose another host or port"
            ) from error
        self.port = int(self._server.server_address[1])
        self._server.world = world
        self._server.tls = tls
        self._server.pages = pages
        self._server.names = names
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="emulator-http", daemon=True
        )

    def start(self, url: str) -> None:
        """Start serving. *url* is the URL announced to clients."""
        self._server.url = url
        self._thread.start()

    def use(self, world: World) -> None:
        """Serve another state from now on, and end the streams that read the earlier one."""
        self._server.world = world
        self._server.end_streams()

    def stop(self) -> None:
        """Stop the server, and close its port and all connections."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.end_streams()
        self._server.cut_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A burst of clients would fill the default queue of 5, and each further client would wait 1 s.
    request_queue_size = _CONNECTIONS
    # Do not wait for the threads of idle keep-alive connections; they are daemons.
    block_on_close = False
    # The default of http.server would let two emulators share a port on some systems.
    allow_reuse_port = False
    world: World
    tls: ssl.SSLContext | None
    pages: Sequence[Route]
    names: Sequence[str]
    url: str

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._lock = threading.Lock()  # guards _due and _streams
        self._due: dict[socket.socket, float] = {}  # open connections and their deadlines
        self._streams: dict[Stream, threading.Thread] = {}
        self._own = threading.local()  # the connection of each thread
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        late = None
        with self._lock:
            if len(self._due) >= _CONNECTIONS:
                late = min(self._due, key=self._due.__getitem__)
                del self._due[late]
            self._due[request] = time.monotonic() + _REQUEST_S
        if late is not None:
            _log.warning("closed a connection for a new one: at most %d are open", _CONNECTIONS)
            _cut(late)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's own thread, so that a slow handshake does not block other clients.
        self._own.request = request
        request.settimeout(_SILENCE_S)
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        # Wrap a duplicate in TLS, so that the original socket can be closed as for plain HTTP.
        with contextlib.closing(request.dup()) as copy:
            copy.settimeout(_SILENCE_S)
            with self.tls.wrap_socket(copy, server_side=True) as secured:
                super().finish_request(secured, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._due.pop(request, None)
        super().shutdown_request(request)

    def expect_request(self, held_s: float = 0.0) -> None:
        """Restart the time limit of the calling thread's connection, for the next request or for
        the remainder of the current one. *held_s* extends the limit by a number of seconds, for
        a response that is delayed on purpose.
        """
        with self._lock:
            if self._own.request in self._due:
                self._due[self._own.request] = time.monotonic() + _REQUEST_S + held_s

    def begin_stream(self, stream: Stream) -> bool:
        """Register a stream that the calling thread will send, and return True. If too many streams
        are open, return False instead.
        """
        with self._lock:
            if len(self._streams) >= _STREAMS:
                return False
            self._streams[stream] = threading.current_thread()
            return True

    def forget_stream(self, stream: Stream) -> None:
        """Unregister a stream that has ended."""
        with self._lock:
            self._streams.pop(stream, None)

    def end_streams(self) -> None:
        """End all streams, and wait up to `_STREAM_END_S` seconds for each to stop reading from
        the org.
        """
        with self._lock:
            streams = dict(self._streams)
        for stream in streams:
            stream.end()
        for thread in streams.values():
            thread.join(_STREAM_END_S)

    def cut_all(self) -> None:
        """Close all connections, so that none outlives the emulator."""
        with self._lock:
            connections = list(self._due)
        for request in connections:
            _cut(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            overdue = [request for request, due in self._due.items() if now >= due]
        for request in overdue:
            _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # socket and TLS errors are caused by the client
            _log.debug("connection from %s ended: %r", client_address, error)
        else:
            _log.error("connection from %s failed", client_address, exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "sfpubsub-emulator"
    sys_version = ""
    # Otherwise a body can wait 40 ms until the client acknowledges the response headers.
    disable_nagle_algorithm = True
    unread = False  # whether a request was refused before its body was read
    # http.server sets it only once it has read a request line, which may never come.
    command = ""

    def handle_one_request(self) -> None:
        self.server.expect_request()
        super().handle_one_request()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the value of the Date header: by default, the time on the emulator's clock,
        which can jump.
        """
        return super().date_time_string(timestamp or self.server.world.clock.now())

    def finish(self) -> None:
        super().finish()
        if self.unread:
            # Closing with unread bytes would reset the connection, and the client would lose the
            # answer.
            if self.server.tls is None:
                self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_S)
            left = _LINGER_BYTES
            while left > 0 and (data := self.connection.recv(_LINE_BYTES)):
                left -= len(data)

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - http.server's names

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond with an error to a request that http.server cannot parse, and close the
        connection. The error has the format of the API to which the path belongs.
        """
        self.close_connection = self.unread = True
        # Otherwise http.server would send no status line for an unknown HTTP version.
        self.request_version = self.protocol_version
        status = HTTPStatus(code)
        text = message or explain or status.phrase
        self._send(routing.problem(getattr(self, "path", "") or "", status, text))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        # Never the query: it may contain a token.
        _log.debug("%s %s %s", self.client_address[0], self.command, args[1:2])

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            hosts.check(self.headers.get("Host"), self.server.url, self.server.names)
            call = Call(
                self.server.world,
                self.command,
                path,
                query,
                self.headers,
                self._body(),
                self.server.url,
                f"{self.server.url.partition(':')[0]}://{self.headers.get('Host', '')}",
                self.client_address[0],
                self.server.expect_request,
            )
        except (Problem, RestRefused) as found:
            self.close_connection = self.unread = True
            self._send(routing.refusal(path, found))
            return
        answer = routing.answer(call, self.server.pages)
        if answer.stream is not None and self.command != "HEAD":
            self._send_stream(answer, answer.stream)
        else:
            self._send(answer)

    def _body(self) -> bytes:
        coding = self.headers.get("Content-Encoding", "").strip().lower()
        body, most = self._encoded_body(), self._most_bytes()
        if coding and most > _BODY_BYTES:  # a small body may become a large one
            rest.check_session(self.server.world, bearer(self.headers))
        return decoded(body, coding, most)

    def _encoded_body(self) -> bytes:
        coding = self.headers.get("Transfer-Encoding", "").strip().lower()
        if coding == "chunked":
            return self._chunks()
        if coding:
            raise Problem(
                HTTPStatus.NOT_IMPLEMENTED, "chunked is the only supported transfer coding"
            )
        length = self.headers.get("Content-Length", "0").strip()
        return self._read(_number(length, 10, "the Content-Length"))

    def _chunks(self) -> bytes:
        """Read and return a chunked body. Chunk extensions and trailers are ignored.

        Raises:
            Problem: The body is malformed or too large.
        """
        body = bytearray()  # grows in place: a large body has thousands of chunks
        while size := _number(self._line().partition(";")[0].strip(), 16, "the size of a chunk"):
            body += self._read(size, len(body))
            if self._line():
                raise Problem(HTTPStatus.BAD_REQUEST, "a chunk is longer than its size")
        for _ in range(_TRAILERS):
            if not self._line():
                return bytes(body)
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body has more than {_TRAILERS} trailers")

    def _most_bytes(self) -> int:
        path = self.path.partition("?")[0]
        return next((most for one, most in _LARGER_BODIES if one.fullmatch(path)), _BODY_BYTES)

    def _read(self, size: int, before: int = 0) -> bytes:
        most = self._most_bytes()
        if _BODY_BYTES < before + size <= most:
            rest.check_session(self.server.world, bearer(self.headers))
        if before + size > most:
            raise too_large(most)
        data = self.rfile.read(size)
        if len(data) < size:
            raise Problem(HTTPStatus.BAD_REQUEST, "the body ends too early")
        return data

    def _line(self) -> str:
        line = self.rfile.readline(_LINE_BYTES)
        if not line.endswith(b"\n"):
            text = "the body ends too early, or has a line that is too long"
            raise Problem(HTTPStatus.BAD_REQUEST, text)
        return line.strip().decode("latin-1")

    def _send_stream(self, answer: Answer, stream: Stream) -> None:
        self.close_connection = True  # the end of the connection marks the end of the body
        if not self.server.begin_stream(stream):
            text = (
                f"{_STREAMS} pages with live updates are open, which is the maximum: close one and"
                " load this page again"
            )
            self._send(routing.problem("", HTTPStatus.SERVICE_UNAVAILABLE, text))
            return
        try:
            self._send_head(answer)
            for part in stream:
                self.server.expect_request()
                self.wfile.write(part.encode())
        finally:
            self.server.forget_stream(stream)

    def _send_head(self, answer: Answer, length: int | None = None) -> None:
        self.send_response(answer.status)
        if answer.kind:
            self.send_header("Content-Type", answer.kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, answer: Answer) -> None:
        if answer.reset:
            self.close_connection = True
            # With this option, closing resets the connection, so the client sees no orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return
        data = answer.text.encode()
        length = len(data) if answer.pieces is None else answer.length
        self._send_head(answer, None if answer.status == HTTPStatus.NO_CONTENT else length)
        if self.command != "HEAD" and answer.pieces is not None:
            for piece in answer.pieces:
                self.server.expect_request()  # a slow reader gets the full time for each piece
                self.wfile.write(piece)
        elif self.command != "HEAD":
            half = len(data) // 2 if answer.drip_s else 0
            self.wfile.write(data[:half])
            time.sleep(answer.drip_s)
            self.wfile.write(data[half:])


def _cut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)  # wakes the connection's thread, which closes the socket
    except OSError as error:
        _log.debug("a connection was already closed: %s", error)


def _number(text: str, base: int, what: str) -> int:
    digits = string.hexdigits if base == 16 else string.digits
    # Twelve digits are enough for any body, and cheap to parse.
    if not 0 < len(text) <= 12 or set(text) - set(digits):
        raise Problem(HTTPStatus.BAD_REQUEST, f"{what} is not a number")
    return int(text, base)
