"""A minimal Bayeux client based on http.client; uses no code of this package's client."""

from __future__ import annotations

import http.client
import itertools
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .support import WAIT_S

ALL, NEW = -2, -1


@dataclass
class Bayeux:
    """A Bayeux client that opens a new connection for each request."""

    emulator: Any
    version: str = "67.0"
    token: str | None = None
    cookie: str = ""
    client_id: str = ""
    timeout_s: float = WAIT_S
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def post(self, *messages: dict[str, Any], path: str | None = None) -> tuple[int, Any]:
        """Send messages; return the status and the body, decoded if it is JSON."""
        url = urlsplit(self.emulator.http_url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname, url.port, timeout=self.timeout_s)
        token = self.emulator.access_token if self.token is None else self.token
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self.cookie:
            headers["Cookie"] = self.cookie
        try:
            connection.request(
                "POST", path or f"/cometd/{self.version}", json.dumps(messages), headers
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        kept = [*filter(None, self.cookie.split("; ")), *answer.headers.get_all("Set-Cookie", [])]
        cookies = {one.partition("=")[0]: one.partition(";")[0] for one in kept}
        self.cookie = "; ".join(cookies.values())
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def ask(self, kind: str, **more: Any) -> list[dict[str, Any]]:
        """Send a meta message with this client's id; return the messages of the response."""
        message = {"channel": f"/meta/{kind}", "id": str(next(self.numbers)), **more}
        if self.client_id and "clientId" not in more:
            message["clientId"] = self.client_id
        status, messages = self.post(message)
        assert status == 200, messages
        return messages

    def handshake(self, **more: Any) -> dict[str, Any]:
        """Send a handshake, store the client id, and return the reply."""
        more = {"version": "1.0", "supportedConnectionTypes": ["long-polling"], **more}
        (reply,) = self.ask("handshake", **more)
        self.client_id = reply.get("clientId", "")
        return reply

    def connect(self, **more: Any) -> list[dict[str, Any]]:
        """Send a connect message; return all messages of the response."""
        return self.ask("connect", connectionType="long-polling", **more)

    def subscribe(self, name: str, replay: Any = None) -> dict[str, Any]:
        """Subscribe to a channel, from replay id *replay* if it is not None; return the reply."""
        path = name.partition("?")[0]
        more = {} if replay is None else {"ext": {"replay": {path: replay}}}
        return self.ask("subscribe", subscription=name, **more)[0]

    def ready(self) -> Bayeux:
        """Do the handshake and the first connect; return this client."""
        assert self.handshake()["successful"]
        assert self.connect()[-1]["successful"]
        return self

    def read(self, count: int) -> list[dict[str, Any]]:
        """Poll until *count* events have arrived, and return them; fail after 20 polls."""
        found: list[dict[str, Any]] = []
        for _ in range(20):
            if len(found) >= count:
                break
            messages = self.connect()
            assert messages[-1]["successful"], messages
            found += [item for item in messages if "data" in item]
        assert len(found) == count, ids(found)
        return found


def ids(events: list[dict[str, Any]]) -> list[int]:
    """Return the replay ids of events."""
    return [event["data"]["event"]["replayId"] for event in events]


def records(*names: str) -> list[dict[str, Any]]:
    """Return the data of PushTopic events, each for the creation of a record with a given name."""
    return [{"type": "created", "sobject": {"Id": f"001{name}", "Name": name}} for name in names]
