"""The org's REST interface: JSON in, JSON out, our errors, and one renewal of the session.

What the objects mean is others' business (`sfpubsub.tooling`, `sfpubsub.rest`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sfpubsub.auth.http import Answer, Bearer, HttpClient, Sink
from sfpubsub.auth.refusals import scrub
from sfpubsub.auth.session import CurrentSession
from sfpubsub.errors import (
    PermissionDeniedError,
    QuotaExceededError,
    RemoteProtocolError,
    RequestRefusedError,
    SessionExpiredError,
    SfPubSubError,
)

# What passes by itself, by Salesforce's code (documentation: status codes of the SOAP API).
_PASSING = frozenset({"QUERY_TIMEOUT", "SERVER_UNAVAILABLE", "UNABLE_TO_LOCK_ROW"})


class OrgClient:
    """Asks an org, as the current session. Thread-safe.

    Every method raises:
        SessionExpiredError: The session was refused, and the one after it as well.
        PermissionDeniedError: The user may not do this.
        QuotaExceededError: The org's requests of the day are used up.
        RequestRefusedError: Refused for another reason; ``status`` and ``error_code`` tell it.
        StreamUnavailableError: No answer in time, or the org is down or overloaded. The request may
            have been carried out.
        RemoteProtocolError: The answer is not what Salesforce answers.
        AuthenticationError: Signing in failed.

    Args:
        sessions: Where the session comes from.
        http: Makes the requests.
    """

    def __init__(self, sessions: CurrentSession, http: HttpClient) -> None:
        self._sessions = sessions
        self._http = http
        self._lock = threading.Lock()  # guards the number below
        self._calls = 0
        self._answered: datetime | None = None

    @property
    def calls(self) -> int:
        """Requests made so far; each takes one of those that an org allows a day."""
        return self._calls

    @property
    def org_time(self) -> datetime | None:
        """The latest time that an answer named (its Date header); None before the first one."""
        return self._answered

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return what is at *path*, such as ``/services/data/v60.0/tooling/query``."""
        return _content(self.send("GET", path, query=query))

    def post(self, path: str, body: object) -> Any:
        """Create something; returns the answer."""
        return _content(self.send("POST", path, body=body))

    def patch(self, path: str, body: object) -> None:
        """Change something."""
        self.send("PATCH", path, body=body)

    def delete(self, path: str) -> None:
        """Delete something."""
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
        """Make any request; return its answer, which is a success.

        Args:
            method: Of HTTP.
            path: Begins with a slash.
            body: Sent as JSON; None for none.
            query: Parameters.
            headers: Sent beside those of every request.
            sink: Takes the body of an answer with status 200 (`HttpClient.call`).
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
            return  # a caller that needs it raises
        with self._lock:
            if found.tzinfo is not None and (self._answered is None or found > self._answered):
                self._answered = found


def _content(answer: Answer) -> Any:
    return answer.json() if answer.body else None


def refusal(answer: Answer, what: str, secrets: Iterable[str] = ()) -> SfPubSubError:
    """Return the error for an unsuccessful answer.

    Args:
        answer: With a body of Salesforce's form, ``[{"errorCode", "message"}]``, or any other.
        what: The request, for the message.
        secrets: What must not be shown, should the answer repeat it.
    """
    code, message = (scrub(text, secrets) for text in _reason(answer))
    reason = f"{what} was refused by {answer.host} with {answer.status}"
    if code or message:
        reason += f", {': '.join(part for part in (code, message) if part)}"
    if answer.status == 401:
        return SessionExpiredError(reason, error_code=code or None)
    if code == "REQUEST_LIMIT_EXCEEDED":
        # The same code, for the calls of a day and for those in flight at once; only the latter
        # pass within seconds ("ConcurrentRequests (Concurrent API Requests) Limit exceeded.").
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
        return "", ""  # an error page: the status has to do
    if isinstance(found, list) and found:
        found = found[0]
    if not isinstance(found, dict):
        return "", ""
    code, message = found.get("errorCode"), found.get("message")
    return (
        code if isinstance(code, str) else "",
        message if isinstance(message, str) else "",
    )
