"""Client for the org's REST API: sends and returns JSON, and renews a rejected session once.

Failures are raised as errors of this package. Records are interpreted by `sfpubsub.tooling` and
`sfpubsub.rest`, not here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sfpubsub.auth.http import Answer, Bearer, HttpClient, Sink
from sfpubsub.auth.refusals import scrub
from sfpubsub.auth.retries import Retries
from sfpubsub.auth.session import CurrentSession
from sfpubsub.config import RestTimings
from sfpubsub.errors import (
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    RequestRefusedError,
    SessionExpiredError,
    SfPubSubError,
)

# Salesforce error codes that are transient (documentation: status codes of the SOAP API).
_PASSING = frozenset({"QUERY_TIMEOUT", "SERVER_UNAVAILABLE", "UNABLE_TO_LOCK_ROW"})


class OrgClient:
    """Makes REST requests to an org with the current session. Thread-safe.

    Every method raises:
        SessionExpiredError: The session was refused, and so was its replacement.
        PermissionDeniedError: The user lacks the permission for the request.
        QuotaExceededError: The org's limit of daily or of concurrent API requests is reached.
        RequestRefusedError: The org refused the request for another reason; see ``status`` and
            ``error_code``.
        StreamUnavailableError: No response in time, or the org is down or overloaded. The request
            may still have been executed.
        RemoteProtocolError: The response is not a valid Salesforce response.
        AuthenticationError: Signing in failed.

    Args:
        sessions: Supplies the session.
        http: Makes the requests.
    """

    def __init__(self, sessions: CurrentSession, http: HttpClient) -> None:
        self._sessions = sessions
        self._http = http
        self._retries = Retries(RestTimings())
        self._lock = threading.Lock()  # guards the two values below
        self._calls = 0
        self._answered: datetime | None = None

    @property
    def calls(self) -> int:
        """Number of requests made so far; each counts against the org's daily limit."""
        return self._calls

    @property
    def org_time(self) -> datetime | None:
        """Latest ``Date`` header of a successful response; None before the first such response."""
        return self._answered

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Send a GET, with retries, and return the parsed JSON response, or None if it is empty.

        Args:
            path: Path starting with a slash, such as ``/services/data/v60.0/tooling/query``.
            query: Query parameters.
        """
        return self._retries.again(lambda: _content(self.send("GET", path, query=query)))

    def post(self, path: str, body: object) -> Any:
        """Send a POST and return the parsed JSON response, or None if it is empty."""
        return _content(self.send("POST", path, body=body))

    def patch(self, path: str, body: object) -> None:
        """Send a PATCH; the response body is ignored."""
        self.send("PATCH", path, body=body)

    def delete(self, path: str) -> None:
        """Send a DELETE; the response body is ignored."""
        self.send("DELETE", path)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> Answer:
        """Make a request and return the successful response.

        If the session is refused (status 401), it is renewed and the request repeated once.

        Args:
            method: ``GET``, ``POST``, ``PATCH`` or ``DELETE``.
            path: Path starting with a slash.
            body: Sent as JSON; None sends no body.
            query: Query parameters.
            headers: Sent in addition to the standard ones.
            sink: Receives the body of a response with status 200 (see `HttpClient.call`).
        """

        def call() -> Answer:
            with self._lock:
                self._calls += 1
            bearer = Bearer(session.instance_url, session.access_token)
            return self._http.call(
                bearer, method, path, body=body, query=query, headers=headers, sink=sink
            )

        session = self._sessions.get()
        answer = call()
        if answer.status == 401:
            session = self._sessions.renew(session)
            answer = call()
        if 200 <= answer.status < 300:
            self._note_time(answer)
            return answer
        raise refusal(answer, f"{method} {path}", [session.access_token])

    def _note_time(self, answer: Answer) -> None:
        try:
            found = parsedate_to_datetime(answer.headers.get("date", ""))
        except ValueError:
            return  # a caller that needs the time reports that it is missing
        with self._lock:
            if found.tzinfo is not None and (self._answered is None or found > self._answered):
                self._answered = found


def _content(answer: Answer) -> Any:
    return answer.json() if answer.body else None


def refusal(answer: Answer, what: str, secrets: Iterable[str] = ()) -> SfPubSubError:
    """Return the error for an unsuccessful response.

    Args:
        answer: The response; its body usually has the form ``[{"errorCode", "message"}]``.
        what: Description of the request for the error message, such as ``GET /services/…``.
        secrets: Values to redact if the response repeats them.
    """
    code, message = (scrub(text, secrets) for text in _reason(answer))
    reason = f"{what} was refused by {answer.host} with {answer.status}"
    if code or message:
        reason += f", {': '.join(part for part in (code, message) if part)}"
    if answer.status == 401:
        return SessionExpiredError(reason, error_code=code or None)
    if code == "REQUEST_LIMIT_EXCEEDED":
        # The same code covers the daily limit and the limit of concurrent requests; only the latter
        # clears within seconds ("ConcurrentRequests (Concurrent API Requests) Limit exceeded.").
        return QuotaExceededError(reason, error_code=code, retryable="oncurrent" in message)
    if answer.status == 403:
        return PermissionDeniedError(reason, error_code=code or None)
    return RequestRefusedError(
        reason, status=answer.status, error_code=code or None, retryable=code in _PASSING
    )


def _reason(answer: Answer) -> tuple[str, str]:
    try:
        found = answer.json()
    except RemoteProtocolError:
        return "", ""  # an error page: only the status is usable
    if isinstance(found, list) and found:
        found = found[0]
    if not isinstance(found, dict):
        return "", ""
    code, message = found.get("errorCode"), found.get("message")
    return (
        code if isinstance(code, str) else "",
        message if isinstance(message, str) else "",
    )
