"""Requests of an org that are made again when what refused them passes; numbers stay exact.

A retry has a bound and a reason, and only what can be repeated without harm is repeated.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sfpubsub.auth.http import Answer, HttpClient, Sink
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.config import RestTimings
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)

logger = logging.getLogger("sfpubsub.rest")

# Largest answer in JSON, in bytes: 2,000 records with a long text (131,072 characters) each. A
# bound against answers that never end; the service cuts the pages of a query by itself before.
MAX_JSON = 256 * 1024 * 1024

# Largest page of Bulk results, in bytes, for the same reason. A page goes to a file.
MAX_PAGE = 4 * 1024 * 1024 * 1024

_VERSION = re.compile(r"[1-9]\d{1,2}\.0", re.ASCII)

# Before it there are no query jobs (Salesforce documentation, Bulk API 2.0), and before 50.0 their
# columns are not in the order of the query.
_OLDEST = 50.0


class Asker:
    """Makes the requests of one API version, and counts them. Thread-safe.

    Args:
        sessions: Where the session comes from.
        http: Makes the requests; its own bounds are replaced.
        api_version: Such as ``60.0``.
        timings: Bounds, delays and the number of attempts.
        sleep: Pauses for that many seconds; may raise to give up.

    Attributes:
        data: Path of the version, with a slash at its end.

    Raises:
        ConfigurationError: *api_version* is not valid, or too old.
    """

    def __init__(
        self,
        sessions: CurrentSession,
        http: HttpClient,
        api_version: str,
        timings: RestTimings,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not _VERSION.fullmatch(api_version) or float(api_version) < _OLDEST:
            raise ConfigurationError(
                f"API version {api_version!r} is not {_OLDEST} or later, which reading in bulk "
                f"needs"
            )
        self.data: str = f"/services/data/v{api_version}/"
        self.timings = timings
        self.sleep = sleep
        self._org = OrgClient(sessions, http.bounded(timings.request, MAX_JSON))
        self._bulk = OrgClient(sessions, http.bounded(timings.download, MAX_PAGE))

    @property
    def calls(self) -> int:
        """Requests made so far, repeated ones included; each takes one of the day's."""
        return self._org.calls + self._bulk.calls

    @property
    def org_time(self) -> datetime | None:
        """The latest time that an answer named, by the org's clock; None before the first one."""
        found = [each.org_time for each in (self._org, self._bulk) if each.org_time is not None]
        return max(found, default=None)

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return what is at *path*, as JSON with decimals; asks again."""

        def ask() -> Any:
            # Within the attempt: an answer that was truncated is not valid JSON.
            return _exact(self._org.send("GET", path, query=query, headers=headers))

        return self.again(ask)

    def post(self, path: str, body: object, *, repeat: bool) -> Any:
        """Return the answer to *body*, as JSON with decimals.

        Args:
            path: Begins with a slash.
            body: Sent as JSON.
            repeat: Whether it may be sent again: it changes nothing in the org.
        """

        def ask() -> Any:
            return _exact(self._org.send("POST", path, body=body))

        return self.again(ask) if repeat else ask()

    def patch(self, path: str, body: object) -> Any:
        """Change something; returns the answer. Not repeated."""
        return _exact(self._org.send("PATCH", path, body=body))

    def delete(self, path: str) -> None:
        """Delete something; asks again."""
        self.again(lambda: self._org.send("DELETE", path))

    def download(self, path: str, query: Mapping[str, str], sink: Sink) -> Answer:
        """Pass the CSV at *path* to *sink*; asks once, as only its caller can begin again."""
        return self._bulk.send("GET", path, query=query, headers={"Accept": "text/csv"}, sink=sink)

    def again(self, ask: Callable[[], Any]) -> Any:
        """Return what *ask* returns; calls it again while its error says that it may pass.

        Raises:
            SfPubSubError: What the last attempt raised, or the first that does not pass.
        """
        most = self.timings.attempts
        for attempt in range(1, most + 1):
            try:
                return ask()
            except SfPubSubError as error:
                delay = self._delay(error, attempt)
                if not error.retryable or attempt == most or delay is None:
                    raise
                logger.info("attempt %d of %d in %.1f s: %s", attempt + 1, most, delay, error)
            self.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    def _delay(self, error: SfPubSubError, attempt: int) -> float | None:
        """Return how long to wait; None if the service asks for more than is waited."""
        longest = self.timings.backoff_max
        if isinstance(error, StreamUnavailableError) and error.retry_after is not None:
            return error.retry_after if error.retry_after <= longest else None
        ceiling = min(longest, self.timings.backoff_initial * 2.0 ** (attempt - 1))
        return random.random() * ceiling  # noqa: S311  # spreads clients that failed together


def _exact(answer: Answer) -> Any:
    # Decimals as the org wrote them: a currency of 18 digits is not a float.
    return answer.json(parse_float=Decimal) if answer.body else None


def check_name(what: str, name: str) -> str:
    """Pass only what can be an API name; it becomes a part of a path or of SOQL.

    Raises:
        LocalProtocolError: It is not valid.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise LocalProtocolError(f"{name[:80]!r} is not a valid name of {what}")
    return name


def check_id(what: str, given: str) -> str:
    """Pass only a record id, of 15 or 18 characters.

    Raises:
        LocalProtocolError: It is not valid.
    """
    if not re.fullmatch(r"[0-9A-Za-z]{15}(?:[0-9A-Za-z]{3})?", given):
        raise LocalProtocolError(f"{given[:80]!r} is not a valid id of {what}")
    return given
