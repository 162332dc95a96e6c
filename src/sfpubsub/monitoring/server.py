"""The HTTP server of a monitor: ``/metrics``, ``/health`` and the page.

The server is read-only and requires no password. By default it listens on loopback only, and then
accepts only IP addresses and ``localhost`` in the ``Host`` header, so that no other website can
read it through DNS rebinding.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sfpubsub.errors import ConfigurationError
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.page import page
from sfpubsub.monitoring.prometheus import CONTENT_TYPE, prometheus_text

_log = logging.getLogger("sfpubsub.monitoring")

# Idle timeout of a connection, in seconds; each connection serves one request.
_SILENCE = 10.0

# Maximum number of concurrent connections; one more closes the oldest, which has had the longest
# time for its request. Enough for a scraper, a probe and some browsers.
_CONNECTIONS = 16

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _Answer(NamedTuple):
    status: HTTPStatus
    kind: str
    text: str


@contextmanager
def serve(monitor: Monitor, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve a monitor over HTTP until the ``with`` block ends; yield the URL.

    Args:
        monitor: The monitor to show.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port.

    Raises:
        ConfigurationError: The server cannot listen on this address and port.
    """
    server_class = _Server6 if ":" in host else _Server
    try:
        server = server_class((host, port), _Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"cannot listen on {host}:{port} ({reason}): choose another address or port "
            "(command line: --http)"
        ) from error
    server.monitor = monitor
    server.is_local = _is_loopback(str(server.server_address[0]))
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser may keep a connection open; its thread is a daemon
    allow_reuse_port = False  # otherwise two commands could share a port
    monitor: Monitor
    is_local: bool

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()  # guards _open
        self._open: dict[socket.socket, None] = {}  # oldest first
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > _CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):  # it has just been closed
                    oldest.shutdown(socket.SHUT_RDWR)  # ends its thread
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # a socket error: the client's problem
            _log.debug("connection from %s ended: %r", client_address, error)
        else:
            _log.error("request from %s failed", client_address, exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE
    server_version = "sfpubsub"
    sys_version = ""

    def do_GET(self) -> None:
        answer = self._answer()
        data = answer.text.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815  # the name that http.server looks for

    def _answer(self) -> _Answer:
        if self.server.is_local and not _is_ours(self.headers.get("Host", "")):
            text = "this server accepts only IP addresses and localhost as host names\n"
            return _Answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain; charset=utf-8", text)
        monitor = self.server.monitor
        match self.path.partition("?")[0]:
            case "/":
                return _Answer(HTTPStatus.OK, "text/html; charset=utf-8", page(monitor))
            case "/metrics":
                return _Answer(
                    HTTPStatus.OK, CONTENT_TYPE, prometheus_text(monitor.registry.collect())
                )
            case "/health":
                return _health(monitor)
            case "/style.css":
                return _Answer(HTTPStatus.OK, "text/css; charset=utf-8", _STYLE)
        text = "not found: try /, /metrics or /health\n"
        return _Answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # inherited name
        _log.debug("%s %s", self.client_address[0], format % args)


def _health(monitor: Monitor) -> _Answer:
    found = monitor.problems()
    status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
    record = {
        "status": "failing" if found else "ok",
        "problems": [{"situation": each.situation, "reason": each.reason} for each in found],
    }
    return _Answer(status, "application/json", json.dumps(record) + "\n")


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _is_ours(named: str) -> bool:
    try:
        host = urlsplit(f"//{named}").hostname or ""
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
