"""HTTP requests and responses as plain values, so that handlers do not need a socket."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any, Protocol

from sfpubsub.emulator.org.world import World


def bearer(headers: Message) -> str:
    """Return the access token in the Authorization header, or an empty string."""
    kind, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() in ("bearer", "oauth") else ""


@dataclass(frozen=True)
class Call:
    """An HTTP request.

    Attributes:
        world: The emulator's state.
        method: GET, POST and so on.
        path: The path, without the query.
        query: The query string, undecoded.
        headers: The headers as sent.
        body: The body as bytes, without chunk framing.
        url: The URL of the emulator, as announced to clients.
        named: The URL that the client used, from its Host header.
        client: IP address of the client.
        hold: Extends the time limit of the request by a number of seconds.
        parts: The text that each named group of the route's pattern matched, by group name.
    """

    world: World
    method: str
    path: str
    query: str
    headers: Message
    body: bytes = field(repr=False)
    url: str = ""
    named: str = ""
    client: str = ""
    hold: Callable[[float], None] = lambda _seconds: None
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def bearer(self) -> str:
        """The access token in the Authorization header, or an empty string."""
        return bearer(self.headers)


class Stream(Protocol):
    """A response body of unknown length, which is sent part by part."""

    def __iter__(self) -> Iterator[str]:
        """Yield the parts of the body; each is sent immediately."""

    def end(self) -> None:
        """End the stream; callable from any thread."""


@dataclass(frozen=True)
class Answer:
    """An HTTP response.

    Attributes:
        status: The HTTP status.
        kind: The Content-Type; empty if the response has no body.
        text: The body.
        headers: Additional headers, by name.
        drip_s: Seconds between sending the first and the second half of `text`.
        reset: Whether to reset the connection instead of sending a response.
        stream: Used instead of `text` for a body that continues until the client or the emulator
            ends it.
        pieces: Used instead of `text` for a large body: its bytes, in chunks.
        length: Total size of `pieces`, in bytes.
    """

    status: HTTPStatus
    kind: str = ""
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    reset: bool = False
    stream: Stream | None = None
    pieces: Iterator[bytes] | None = None
    length: int = 0


Handler = Callable[[Call], Answer]


@dataclass(frozen=True)
class Route:
    """A pattern for paths, and the handlers of matching requests, by HTTP method."""

    path: re.Pattern[str]
    methods: Mapping[str, Handler]


def route(path: str, **methods: Handler) -> Route:
    """Create a route from a regular expression and handlers.

    Args:
        path: Regular expression that the whole path must match.
        **methods: The handler for each HTTP method.
    """
    return Route(re.compile(path), methods)


class Problem(Exception):  # noqa: N818 - an answer, not a bug
    """Raised to respond with an error. `routing` formats the error for the request's path.

    Args:
        status: The HTTP status.
        text: The message; if blank, the response contains the method and the path instead.
    """

    def __init__(self, status: HTTPStatus, text: str = "") -> None:
        self.status = status
        super().__init__(text)


def decoded(body: bytes, coding: str, most: int) -> bytes:
    """Return the body of a request without its Content-Encoding.

    Args:
        body: The body as sent.
        coding: The Content-Encoding: gzip, deflate, or empty.
        most: Maximum size of the decoded body, in bytes.

    Raises:
        Problem: The coding is not known, the body is not in it, or is too large.
    """
    if coding in ("", "identity"):
        return body
    if coding not in ("gzip", "deflate"):
        text = "gzip and deflate are the only supported content codings"
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
    reader = zlib.decompressobj(_EITHER)
    try:
        found = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is not {coding}: {error}") from error
    if len(found) > most:
        raise too_large(most)
    if not reader.eof:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the {coding} body ends too early")
    return found


_EITHER = zlib.MAX_WBITS | 32
"""Lets zlib read both the header of gzip and its own, which deflate has."""


def too_large(most: int) -> Problem:
    """Return the error for a body of more than *most* bytes."""
    text = f"the body is larger than {most} bytes, the maximum for this path"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


def json_answer(
    value: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return a response whose body is *value* as JSON."""
    text = json.dumps(value, indent=2) + "\n"
    return Answer(status, "application/json;charset=UTF-8", text, headers or {})


def json_body(call: Call) -> Any:
    """Return the decoded JSON body of a request.

    Raises:
        ValueError: The body is not JSON in UTF-8, or is nested too deeply.
    """
    try:
        return json.loads(call.body)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
