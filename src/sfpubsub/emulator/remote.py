"""A client for an emulator in another process, for commands, test suites and programs.

It sends requests to the emulator's HTTP port, most of them to the admin endpoint, which
docs/reference/emulator.md describes.
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
"""The default address of `sfpubsub emulator`."""

_PATIENCE_S = 30.0
"""Timeout of a request in seconds; responses normally take milliseconds."""

# The app of an org whose seed defines none (docs/reference/emulator.md). It gives access to an
# emulator and to nothing else.
_DEFAULT_APP = {
    "grant_type": "client_credentials",
    "client_id": "emulator",
    "client_secret": "emulator-secret",
}


class RemoteEmulator:
    """A client for an emulator in another process. Thread-safe.

    A method raises EmulatorProblem if the emulator does not respond, or rejects the request.

    Args:
        url: The emulator's HTTP URL: the value of `http` in the JSON line that `sfpubsub emulator`
            prints when it is ready.
        access_token: An access token of the emulator's org; if empty, the client signs in with the
            default app.
        ca_file: PEM file of the certificate authority to trust for TLS; None trusts the system's.

    Raises:
        EmulatorProblem: The URL is not valid, or `ca_file` cannot be read.
    """

    def __init__(
        self, url: str, access_token: str = "", *, ca_file: str | Path | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise EmulatorProblem(f"{url!r} is not the URL of an emulator: use http://host:port")
        self.http_url: str = url.rstrip("/")
        self._token = access_token
        try:
            self._trust = ssl.create_default_context(cafile=str(ca_file)) if ca_file else None
        except OSError as error:
            raise EmulatorProblem(f"the CA file {ca_file} cannot be read: {error}") from error
        # No proxy: an emulator is never behind the proxy that the environment configures.
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._trust)
        ).open

    def __repr__(self) -> str:
        return f"RemoteEmulator({self.http_url!r})"

    @property
    def access_token(self) -> str:
        """The access token. If none was given, the client signs in on first use.

        Raises:
            EmulatorProblem: The client cannot sign in.
        """
        if not self._token:
            data = urllib.parse.urlencode(_DEFAULT_APP).encode()
            try:
                answer = self._ask("POST", "/services/oauth2/token", data, {})
            except EmulatorProblem as problem:
                if not isinstance(problem.__cause__, urllib.error.HTTPError):
                    raise
                raise EmulatorProblem(
                    f"{problem}; if the org's seed defines apps, pass the access_token from"
                    " the JSON line that the emulator prints when it is ready"
                ) from problem
            self._token = str(answer["access_token"])
        return self._token

    def health(self) -> dict[str, Any]:
        """Return the response of `GET /health`: all topics and managed subscriptions, each with
        counts such as `delivered`, the number of events sent to clients.

        Raises:
            EmulatorProblem: The emulator does not respond.
        """
        return dict(self._ask("GET", "/health", None, {}))

    def publish(self, topic: str, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Publish events as the org itself would. Unlike a client, the org can publish change
        events.

        Args:
            topic: A topic with a schema; not a channel.
            events: The values of each event, by field name; docs/reference/emulator.md lists the
                fields that may be omitted.

        Returns:
            `event_id` and `replay_id` (hex) of each event, in order.
        """
        body = {"topic": topic, "events": list(events)}
        return list(self.call("POST", "/admin/publish", body)["results"])

    def faults(self) -> list[dict[str, Any]]:
        """Return the emulator's fault plan: each fault with its arguments, its count (`happened`)
        and whether it was switched off (`off`).
        """
        return list(self.call("GET", "/admin/faults")["faults"])

    def add_fault(self, kind: str, **arguments: object) -> int:
        """Add a fault to the emulator's fault plan. The arguments are those of `Fault`.

        Returns:
            The fault's number in the plan, starting from 0.
        """
        return int(self.call("POST", "/admin/faults", {"kind": kind, **arguments})["number"])

    def switch_off_fault(self, number: int) -> None:
        """Disable a fault, so that it no longer occurs.

        Args:
            number: The fault's number, as returned by `add_fault`: its index in `faults()`.
        """
        self.call("POST", "/admin/faults", {"off": number})

    def now(self) -> float:
        """Return the emulator's time, in seconds since the epoch."""
        return float(self.call("GET", "/admin/clock")["now"])

    def jump(self, seconds: float) -> float:
        """Move the emulator's clock forward by *seconds*.

        Returns:
            The emulator's new time, in seconds since the epoch.
        """
        return float(self.call("POST", "/admin/clock", {"jump_s": seconds})["now"])

    def save(self, name: str) -> None:
        """Save the state of the org as a snapshot, in the emulator's data directory.

        Args:
            name: Letters, digits, `-` and `_`; a snapshot with this name is replaced.
        """
        self.call("POST", "/admin/snapshots", {"save": name})

    def restore(self, name: str) -> None:
        """Return to a snapshot. This ends all streams, sessions and access tokens; `access_token`
        is a new one.
        """
        answer = self.call("POST", "/admin/snapshots", {"restore": name})
        self._token = str(answer["access_token"])

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request with the access token, and wait for the response.

        Args:
            method: HTTP method.
            path: Path, from the first slash.
            body: Value to send as JSON; None sends no body.

        Returns:
            The decoded response body, or None if the response has no body.

        Raises:
            EmulatorProblem: The emulator does not respond, or rejects the request.
        """
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
                reason = "this port does not speak HTTP; use the emulator's http port"
            raise EmulatorProblem(
                f"no emulator answers at {self.http_url} ({reason}): start one, or use another URL"
            ) from error


def _said(error: urllib.error.HTTPError) -> str:
    """Return the message in an error response, whose JSON format depends on the path. If there is
    no message, return the HTTP status, followed by the body's text if the body is not JSON.
    """
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
