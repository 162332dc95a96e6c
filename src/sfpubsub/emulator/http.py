"""The HTTP port: a health page for people and tests, and the admin endpoint.

    GET  /, /health      what there is and what was counted; JSON, or HTML for a browser on /
    GET  /admin/faults   the fault plan and what happened
    POST /admin/faults   add a fault: {"kind": …, "times": …, …}
    POST /admin/clock    jump: {"jump_s": …}
    POST /admin/token    hand out one more access token: {}
    POST /admin/managed  {"name": …, "state": "RUN" | "STOP"} or {"name": …, "delete": true}

`/admin/` asks for `Authorization: Bearer <access token>` and a JSON body, so that no web page open
in a browser can use it; a token that a fault made void still opens it. Sign-in and Tooling will be
further rows of `_ROUTES`. Decides nothing about events.
"""

from __future__ import annotations

import html
import json
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.problems import EmulatorProblem
from sfpubsub.emulator.stream import World

_log = logging.getLogger(__name__)

_BODY_BYTES = 64 * 1024
"""Largest body that is read; a fault is some hundred bytes."""

_LONGEST_JUMP_S = 1e9
"""Some 30 years; more would leave the range of dates."""

_SOCKET_S = 10.0
"""A connection that says nothing for this long is closed, so that it holds no thread."""


class HttpServer:
    """Serves until stopped, in threads of its own.

    Args:
        world: What is looked at and changed.
        host: Address to listen on.
        port: 0 picks a free one.

    Raises:
        EmulatorProblem: The port is in use.
    """

    def __init__(self, world: World, host: str, port: int) -> None:
        handler = type("Handler", (_Handler,), {"world": world})
        try:
            self._server = _server_class(host)((host, port), handler)
        except (OSError, OverflowError) as error:
            raise EmulatorProblem(
                f"cannot listen on {host}:{port} ({getattr(error, 'strerror', error)}):"
                " choose another port"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="emulator-http", daemon=True
        )

    def start(self) -> None:
        """Serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and close the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def health(world: World) -> dict[str, Any]:
    """What the health page says; the keys are an interface for tests and the demo."""
    bus = world.bus
    topics = {}
    for topic in bus.topics():
        count = bus.tally.of_topic(topic.name)
        topics[topic.name] = {
            "published": count.published,
            "delivered": count.delivered,
            "redelivered": count.redelivered,
            "keepalives": count.keepalives,
            "streams": bus.bells.count(topic.name),
        }
    managed = {}
    for record in world.managed.all():
        count = bus.tally.of_managed(record.subscription_id)
        committed = record.committed
        managed[record.developer_name] = {
            "id": record.subscription_id,
            "topic": record.topic,
            "state": record.state,
            "active": world.managed.is_active(record.subscription_id),
            "committed_replay_id": None if committed is None else bus.ids.mint(committed).hex(),
            "commits_accepted": count.commits_accepted,
            "commits_refused": count.commits_refused,
            "delivered": count.delivered,
            "redelivered": count.redelivered,
            "keepalives": count.keepalives,
        }
    return {
        "status": "ok",
        "tenant": bus.tenant,
        "topics": topics,
        "managed_subscriptions": managed,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # threads may sit in a kept-alive connection; they are daemons
    # The default of http.server would let two emulators share a port on some systems.
    allow_reuse_port = False


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


class _Problem(Exception):  # noqa: N818 - an answer, not a bug
    def __init__(self, status: HTTPStatus, text: str) -> None:
        self.status = status
        super().__init__(text)


class _Handler(BaseHTTPRequestHandler):
    world: World
    timeout = _SOCKET_S
    protocol_version = "HTTP/1.1"
    server_version = "sfpubsub-emulator"

    def do_GET(self) -> None:
        self._dispatch("GET")

    def do_POST(self) -> None:
        self._dispatch("POST")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        _log.debug("%s " + format, self.address_string(), *args)

    def _dispatch(self, method: str) -> None:
        path = self.path.partition("?")[0]
        try:
            route = _route(method, path)
            body = self._body() if method == "POST" else None
            if path.startswith("/admin/"):
                self._authorise()
            answer = route(self.world, body)
        except _Problem as problem:
            self._send_json({"error": str(problem)}, problem.status)
            return
        if path == "/" and "text/html" in self.headers.get("Accept", ""):
            self._send("text/html; charset=utf-8", _page(answer), HTTPStatus.OK)
        else:
            self._send_json(answer, HTTPStatus.OK)

    def _authorise(self) -> None:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not self.world.sessions.is_ours(token):
            raise _Problem(HTTPStatus.UNAUTHORIZED, "give Authorization: Bearer <access token>")

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _BODY_BYTES:
            self.close_connection = True  # what was sent is not read
            raise _Problem(HTTPStatus.BAD_REQUEST, "give a Content-Length of at most 64 KiB")
        text = self.rfile.read(int(length))
        if self.headers.get_content_type() != "application/json":
            raise _Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        try:
            return json.loads(text)
        except ValueError as error:
            raise _Problem(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from error

    def _send_json(self, value: object, status: HTTPStatus) -> None:
        self._send("application/json", json.dumps(value, indent=2) + "\n", status)

    def _send(self, kind: str, text: str, status: HTTPStatus) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)


def _faults(world: World, _body: Any) -> dict[str, Any]:
    return {"faults": world.faults.report()}


def _add_fault(world: World, body: Any) -> dict[str, Any]:
    try:
        return {"number": world.faults.add(Fault.from_json(body))}
    except (ValueError, TypeError) as error:
        raise _Problem(HTTPStatus.BAD_REQUEST, str(error)) from error


def _jump(world: World, body: Any) -> dict[str, Any]:
    seconds = body.get("jump_s") if isinstance(body, dict) and len(body) == 1 else None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise _Problem(HTTPStatus.BAD_REQUEST, 'send {"jump_s": seconds}, 0 or more')
    world.clock.jump(min(seconds, _LONGEST_JUMP_S))
    return {"now": world.clock.now()}


def _new_token(world: World, body: Any) -> dict[str, Any]:
    if body != {}:
        raise _Problem(HTTPStatus.BAD_REQUEST, "send {}: a token takes no parameters")
    return {"access_token": world.sessions.new_token()}


def _change_managed(world: World, body: Any) -> dict[str, Any]:
    rest = dict(body) if isinstance(body, dict) else {}
    name = rest.pop("name", None)
    removed = set(rest) == {"delete"} and rest["delete"] is True
    if not isinstance(name, str) or not (removed or rest in ({"state": "RUN"}, {"state": "STOP"})):
        raise _Problem(
            HTTPStatus.BAD_REQUEST,
            'send {"name": …, "state": "RUN" or "STOP"} or {"name": …, "delete": true}',
        )
    try:
        if removed:
            world.managed.delete(name)
            return {"name": name, "state": None}
        world.managed.set_state(name, rest["state"])
    except KeyError as error:
        raise _Problem(
            HTTPStatus.BAD_REQUEST, f"there is no managed subscription {name!r}"
        ) from error
    return {"name": name, "state": rest["state"]}


_Route = Callable[[World, Any], dict[str, Any]]

_ROUTES: dict[tuple[str, str], _Route] = {
    ("GET", "/"): lambda world, _: health(world),
    ("GET", "/health"): lambda world, _: health(world),
    ("GET", "/admin/faults"): _faults,
    ("POST", "/admin/faults"): _add_fault,
    ("POST", "/admin/clock"): _jump,
    ("POST", "/admin/token"): _new_token,
    ("POST", "/admin/managed"): _change_managed,
}


def _route(method: str, path: str) -> _Route:
    route = _ROUTES.get((method, path))
    if route is None:
        known = path in {item[1] for item in _ROUTES}
        status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
        raise _Problem(status, f"{method} {path} is not served")
    return route


def _page(answer: dict[str, Any]) -> str:
    """The health page for a browser."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>sfpubsub emulator</title>",
        "<style>body{font:16px system-ui;margin:2rem}table{border-collapse:collapse;margin:1rem 0}"
        "td,th{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #ccc}</style>",
        f"<h1>sfpubsub emulator</h1><p>{html.escape(answer['tenant'])}: {answer['status']}. ",
        "The same as JSON: <a href=/health>/health</a></p>",
        _table("Topics", answer["topics"]),
        _table("Managed subscriptions", answer["managed_subscriptions"]),
    ]
    return "".join(parts)


def _table(title: str, rows: dict[str, dict[str, Any]]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>None.</p>"
    heads = "".join(f"<th>{html.escape(key)}</th>" for key in next(iter(rows.values())))
    lines = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values())
        + "</tr>"
        for name, row in rows.items()
    )
    return f"<h2>{title}</h2><table><tr><th>name</th>{heads}</tr>{lines}</table>"
