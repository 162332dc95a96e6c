"""A minimal HTTP client for the emulator, independent of this package's own client."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from .support import WAIT_S

APP = {"client_id": "emulator", "client_secret": "emulator-secret"}
USER = {"username": "user@example.com", "password": "emulator-password"}
REFRESH = "emulator-refresh-token"
RECORDS = "/services/data/v62.0/tooling/sobjects/ManagedEventSubscription"


@dataclass
class Reply:
    """An HTTP response; `json` parses its text."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str, str]:
        """The status, error code and description of an OAuth endpoint's error response."""
        assert set(self.json) == {"error", "error_description"}
        return self.status, self.json["error"], self.json["error_description"]

    @property
    def code(self) -> tuple[int, str]:
        """The status and errorCode of a REST API error response."""
        assert self.headers.get_content_type() == "application/json"
        (row,) = self.json
        assert {"message", "errorCode"} <= set(row) <= {"message", "errorCode", "fields"}
        return self.status, row["errorCode"]


def ask(
    emulator: Any,
    method: str,
    path: str,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Send a request, and return the response, whatever its status."""
    request = urllib.request.Request(emulator.http_url + path, data, headers or {}, method=method)
    trust = ssl.create_default_context(cafile=emulator.ca_file) if emulator.ca_file else None
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S, context=trust) as answer:
            return Reply(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read().decode())


def form(emulator: Any, path: str, fields: dict[str, str], headers: Any = None) -> Reply:
    """Send a POST request with form fields."""
    data = urllib.parse.urlencode(fields).encode()
    return ask(emulator, "POST", path, data, headers)


def token(emulator: Any, grant_type: str = "client_credentials", **fields: str) -> Reply:
    """Request an access token, by default with the app's credentials."""
    fields = {"grant_type": grant_type, **APP, **fields}
    return form(emulator, "/services/oauth2/token", fields)


def rest(
    emulator: Any, method: str, path: str, body: Any = None, access_token: str | None = None
) -> Reply:
    """Send a REST request, by default with a valid token."""
    bearer = emulator.access_token if access_token is None else access_token
    headers = {"Authorization": f"Bearer {bearer}"}
    if body is None:
        return ask(emulator, method, path, None, headers)
    headers["Content-Type"] = "application/json"
    return ask(emulator, method, path, json.dumps(body).encode(), headers)


def query(emulator: Any, text: str, version: str = "62.0") -> Reply:
    """Send a query to the Tooling API."""
    path = f"/services/data/v{version}/tooling/query?q={urllib.parse.quote(text)}"
    return rest(emulator, "GET", path)


def found(emulator: Any, text: str) -> list[Any]:
    """Return the records that a Tooling query finds; fail if the query is refused."""
    reply = query(emulator, text)
    assert reply.status == 200, reply.text
    assert reply.json["size"] == reply.json["totalSize"] == len(reply.json["records"])
    assert reply.json["done"] is True
    return reply.json["records"]


def create(emulator: Any, name: str = "Second", **metadata: Any) -> Reply:
    """Send a request to create a managed subscription, by default for the order topic."""
    metadata = {"label": "x", "topicName": "/event/Order_Event__e", **metadata}
    return rest(emulator, "POST", RECORDS, {"FullName": name, "Metadata": metadata})
