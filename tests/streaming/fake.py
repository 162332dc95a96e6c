"""A small Bayeux server that sends exactly the bytes that a test gives it."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from sfpubsub.auth.session import Session

TOKEN = "00D000000000001!secret"

Response: TypeAlias = bytes | list[dict[str, Any]] | None


class FakeBayeux:
    """Confirms every message. A held connect is answered with the next item of `polls`, or with
    what `held` returns.

    Attributes:
        polls: Response bodies for held connects: bytes, or a list of events that are sent with the
            confirmation. With None, the connection is closed instead.
        more: Events for the replies to the next subscribes.
        refusals: Replies to the next handshakes, as dictionaries; when empty, they are confirmed.
        starts: The position of each subscribe, with its channel.
        requests: The messages received, in order.
        tokens: The token of each handshake.
    """

    def __init__(self, port: int) -> None:
        self.session = Session(TOKEN, f"http://127.0.0.1:{port}", "00D000000000001AAA")
        self.polls: queue.SimpleQueue[Response] = queue.SimpleQueue()
        self.held: Callable[[], Response] = self.polls.get
        self.more: list[list[dict[str, Any]]] = []
        self.refusals: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.tokens: list[str] = []

    @property
    def starts(self) -> list[dict[str, int]]:
        return [item["ext"]["replay"] for item in self.requests if "subscription" in item]

    def answer(self, messages: list[dict[str, Any]], token: str) -> bytes | None:
        found: list[dict[str, Any]] = []
        for message in messages:
            self.requests.append(message)
            reply = {"channel": message["channel"], "id": message["id"], "successful": True}
            if message["channel"] == "/meta/handshake":
                self.tokens.append(token)
                reply |= {"clientId": "1", "ext": {"replay": True}}
                if self.refusals:
                    reply |= {"successful": False, **self.refusals.pop(0)}
            elif message["channel"] == "/meta/connect" and "advice" not in message:
                held = self.held()
                if held is None:
                    return None
                if isinstance(held, bytes):
                    return held.replace(b"@reply", json.dumps(reply).encode())
                found += held
            elif message["channel"] == "/meta/subscribe" and self.more:
                found += self.more.pop(0)
            found.append(reply)
        return json.dumps(found).encode()


@contextmanager
def fake_bayeux() -> Iterator[FakeBayeux]:
    """Run a `FakeBayeux` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            token = self.headers["Authorization"].removeprefix("Bearer ")
            data = fake.answer(json.loads(body), token)
            if data is None:
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_arguments: Any) -> None:
            pass  # the client breaks connections on purpose

    server = Server(("127.0.0.1", 0), Handler)
    fake = FakeBayeux(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
