"""An emulator in another process, by its HTTP port: for commands, test suites and programs.

Knows the requests of the admin endpoint and no more; what they do is in docs/reference/emulator.md.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.problems import EmulatorProblem

DEFAULT_URL = "http://127.0.0.1:7012"
"""Where `sfpubsub emulator` listens when nothing else is said."""

_PATIENCE_S = 30.0
"""Longest wait for an answer; they come within milliseconds."""

# The app of an org whose seed names none (docs/reference/emulator.md); it opens an emulator and
# nothing else.
_DEFAULT_APP = {
    "grant_type": "client_credentials",
    "client_id": "emulator",
    "client_secret": "emulator-secret",
}


class RemoteEmulator:
    """An emulator that runs elsewhere. Thread-safe.

    Args:
        url: Its HTTP port, as the `http` of the ready line.
        access_token: Any token of its org; blank signs in with the default app.
        ca_file: The authority to trust, with TLS.

    Raises:
        EmulatorProblem: The URL or the file cannot be used.
    """

    def __init__(
        self, url: str, access_token: str = "", *, ca_file: str | Path | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise EmulatorProblem(f"{url!r} is not the URL of an emulator: give http://host:port")
        self.http_url: str = url.rstrip("/")
        self._token = access_token
        try:
            self._trust = ssl.create_default_context(cafile=str(ca_file)) if ca_file else None
        except OSError as error:
            raise EmulatorProblem(f"the CA file {ca_file} cannot be read: {error}") from error
        # Asked directly: an emulator is never behind the proxy of the environment.
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._trust)
        ).open

    def __repr__(self) -> str:
        return f"RemoteEmulator({self.http_url!r})"

    @property
    def access_token(self) -> str:
        """What opens the org; fetched by the first who needs it."""
        if not self._token:
            data = urllib.parse.urlencode(_DEFAULT_APP).encode()
            try:
                answer = self._ask("POST", "/services/oauth2/token", data, {})
            except EmulatorProblem as problem:
                if not isinstance(problem.__cause__, urllib.error.HTTPError):
                    raise
                raise EmulatorProblem(
                    f"{problem}; an org whose seed has apps of its own needs the access_token of"
                    " the ready line"
                ) from problem
            self._token = str(answer["access_token"])
        return self._token

    def health(self) -> dict[str, Any]:
        """What `GET /health` says: topics and managed subscriptions with their counts.

        Raises:
            EmulatorProblem: Nothing answers. So do all that follow; theirs also say what the
                emulator refused.
        """
        return dict(self._ask("GET", "/health", None, {}))

    def publish(self, topic: str, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Publish events as the org itself, change events included.

        Args:
            topic: A topic with a schema; not a channel.
            events: Values by field name; what may be left out is in docs/reference/emulator.md.

        Returns:
            `event_id` and `replay_id` (hex) of each, in order.
        """
        body = {"topic": topic, "events": list(events)}
        return list(self.call("POST", "/admin/publish", body)["results"])

    def faults(self) -> list[dict[str, Any]]:
        """The fault plan and what has happened of it."""
        return list(self.call("GET", "/admin/faults")["faults"])

    def add_fault(self, kind: str, **arguments: object) -> int:
        """Add a fault; arguments as of `Fault`.

        Returns:
            Its number in the plan.
        """
        return int(self.call("POST", "/admin/faults", {"kind": kind, **arguments})["number"])

    def switch_off_fault(self, number: int) -> None:
        """Have a fault happen no more.

        Args:
            number: As `add_fault` returned it: its place in `faults`.
        """
        self.call("POST", "/admin/faults", {"off": number})

    def now(self) -> float:
        """The emulator's time, in seconds since 1970 UTC."""
        return float(self.call("GET", "/admin/clock")["now"])

    def jump(self, seconds: float) -> float:
        """Move the emulator's clock on.

        Returns:
            Its time then, in seconds since 1970 UTC.
        """
        return float(self.call("POST", "/admin/clock", {"jump_s": seconds})["now"])

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Make a request with the token; what it answers is JSON, None for an empty body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.access_token}"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        return self._ask(method, path, data, headers)

    def _ask(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the constructor checked the scheme
            self.http_url + path, data, headers, method=method
        )
        try:
            with self._open(request, timeout=_PATIENCE_S) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise EmulatorProblem(_said(error)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(error, http.client.HTTPException):
                reason = "what answers there is not HTTP; use its http port"
            raise EmulatorProblem(
                f"no emulator answers at {self.http_url} ({reason}): start one, or say where it is"
            ) from error


def _said(error: urllib.error.HTTPError) -> str:
    """What a refusal says, in whichever shape its area of paths has."""
    text = error.read().decode(errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        return f"the emulator answered {error.code}: {' '.join(text.split())[:200]}"
    row = found[0] if isinstance(found, list) and found else found
    if not isinstance(row, dict):
        return f"the emulator answered {error.code}"
    said = row.get("error_description") or row.get("message") or row.get("error")
    return str(said or f"the emulator answered {error.code}")
