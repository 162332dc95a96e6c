"""A request and its answer as plain values, so that who answers needs no socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any, Protocol

from sfpubsub.emulator.org.world import World


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        world: What it works with.
        method: GET, POST and so on.
        path: Without the query.
        query: The query string, undecoded.
        headers: As sent.
        body: As sent.
        url: The emulator's own URL.
        named: The URL under which the client found it, from its Host header.
        hold: Says that the answer may take so many seconds more.
        parts: What the route's pattern found in the path.
    """

    world: World
    method: str
    path: str
    query: str
    headers: Message
    body: bytes = field(repr=False)
    url: str = ""
    named: str = ""
    hold: Callable[[float], None] = lambda _seconds: None
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def bearer(self) -> str:
        """The token of the Authorization header; blank if there is none."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return token.strip() if kind.lower() in ("bearer", "oauth") else ""


class Stream(Protocol):
    """A body that has no end yet."""

    def __iter__(self) -> Iterator[str]:
        """Its parts, each sent as it comes."""

    def end(self) -> None:
        """Let it end, from any thread."""


@dataclass(frozen=True)
class Answer:
    """What is sent back; a blank `kind` is an answer without a body.

    Attributes:
        stream: A body that continues until one of both ends it; instead of `text`.
        drip_s: Send the second half of the body so long after the first.
        reset: Cut the connection instead.
        pieces: The body instead of `text`, in pieces; `length` is its bytes.
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
    """Who answers requests of a path, by method."""

    path: re.Pattern[str]
    methods: Mapping[str, Handler]


def route(path: str, **methods: Handler) -> Route:
    """A route, from a pattern that the whole path must match."""
    return Route(re.compile(path), methods)


class Problem(Exception):  # noqa: N818 - an answer, not a bug
    """What a request is told instead; the area of its path gives it its shape.

    Args:
        status: Of the answer.
        text: What is wrong.
    """

    def __init__(self, status: HTTPStatus, text: str) -> None:
        self.status = status
        super().__init__(text)


def json_answer(
    value: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Answer:
    """An answer in JSON."""
    text = json.dumps(value, indent=2) + "\n"
    return Answer(status, "application/json;charset=UTF-8", text, headers or {})


def json_body(call: Call) -> Any:
    """The body of a request, decoded.

    Raises:
        ValueError: It is not JSON in UTF-8, or is nested too deep.
    """
    try:
        return json.loads(call.body)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
