"""Calls to the org under test, and what they were answered."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import grpc

from ..emulator.support import PREFIX, WAIT_S, Client, Stream

V62 = "/services/data/v62.0"

IDLE_S = 150.0
"""The longest wait for the end of an idle stream: 60 s and 70 s are documented."""


def ask(
    org: Any, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> tuple[int, Mapping[str, str], Any]:
    """Send a request over HTTP, by default with the org's token.

    Args:
        org: The org.
        method: The HTTP method.
        path: The path, with its query.
        headers: Used in addition to, or instead of, those for a JSON request.
        body: Bytes, or an object that is sent as JSON; None for no body.

    Returns:
        The status, the headers, and the body: parsed if it is JSON, else as text.
    """
    own = {"Authorization": f"Bearer {org.access_token}", "Content-Type": "application/json"}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        org.instance_url + path, data, {**own, **(headers or {})}, method=method
    )
    try:
        answer = urllib.request.urlopen(request, timeout=WAIT_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        text = answer.read().decode()
        try:
            return answer.status, answer.headers, json.loads(text)
        except ValueError:
            return answer.status, answer.headers, text


def code_of(answer: Any) -> str:
    """Return the code of the first error in the answer of a REST API; empty if it has none."""
    first = answer[0] if isinstance(answer, list) and answer else {}
    return str(first.get("errorCode", ""))


def ended(stream: Stream, seconds: float = WAIT_S) -> tuple[str, str]:
    """Wait for the end of a stream; return its status and its error code without the prefix."""
    status, _, trailers = stream.end(seconds)
    return status, trailers.get("error-code", "").removeprefix(PREFIX)


def outcome(client: Client, rpc: str, request: Any) -> tuple[str, str]:
    """Make a call, or open a stream; return the status and the error code with which it ended."""
    if rpc in ("Subscribe", "ManagedSubscribe"):
        stream = client.stream(rpc)
        stream.send(request)
        return ended(stream)
    try:
        client.call(rpc, request)
    except grpc.RpcError as error:
        found: Any = error
        code = dict(found.trailing_metadata() or ()).get("error-code", "")
        return found.code().name, code.removeprefix(PREFIX)
    return "OK", ""
