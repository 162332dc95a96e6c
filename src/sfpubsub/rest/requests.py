"""Send REST requests, retry them on transient errors, and parse numbers as exact decimals.

Retries are bounded, and only requests that are safe to repeat are retried.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from sfpubsub.auth.http import Answer, HttpClient, Sink
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.retries import Retries
from sfpubsub.auth.session import CurrentSession
from sfpubsub.config import RestTimings
from sfpubsub.errors import ConfigurationError, LocalProtocolError

# Largest JSON response, in bytes: 2,000 records with a long text (131,072 characters) each. The
# limit protects against endless responses; the service keeps the pages of a query well below it.
MAX_JSON = 256 * 1024 * 1024

# Largest page of Bulk results, in bytes, for the same reason. Pages are written to files.
MAX_PAGE = 4 * 1024 * 1024 * 1024

_VERSION = re.compile(r"[1-9]\d{1,2}\.0", re.ASCII)

# Older versions have no query jobs (Salesforce documentation, Bulk API 2.0), or do not return
# columns in the order of the query.
_OLDEST = 50.0


class Asker:
    """Makes and counts REST requests, all for one API version. Thread-safe.

    Args:
        sessions: Supplies the session.
        http: Makes the requests. Its time limits are replaced by those of *timings*, and its size
            limit by `MAX_JSON`, or for bulk results by `MAX_PAGE`.
        api_version: Version of the REST API, such as ``60.0``.
        timings: Timeouts, delays and the number of attempts.
        sleep: Pauses for the given number of seconds; may raise an error to end the retries.

    Attributes:
        data: URL path of the API version, such as ``/services/data/v60.0/``.
        retries: Repeats requests; `Retries.sleep` pauses.

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
                f"API version {api_version!r} is not supported: bulk reads require {_OLDEST} or "
                "later"
            )
        self.data: str = f"/services/data/v{api_version}/"
        self.timings = timings
        self.retries: Retries = Retries(timings, sleep)
        self._org = OrgClient(sessions, http.bounded(timings.request, MAX_JSON))
        self._bulk = OrgClient(sessions, http.bounded(timings.download, MAX_PAGE))

    @property
    def calls(self) -> int:
        """Number of requests made, including retries. Each counts against the org's daily limit."""
        return self._org.calls + self._bulk.calls

    @property
    def org_time(self) -> datetime | None:
        """Latest ``Date`` header of a successful response; None before the first such response."""
        found = [each.org_time for each in (self._org, self._bulk) if each.org_time is not None]
        return max(found, default=None)

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a GET, with retries, and return the parsed JSON with exact decimals."""

        def ask() -> Any:
            # Parsed within the attempt, because a truncated response is not valid JSON and is
            # retried.
            return _exact(self._org.send("GET", path, query=query, headers=headers))

        return self.retries.again(ask)

    def post(self, path: str, body: object, *, repeat: bool) -> Any:
        """Send a POST and return the parsed JSON with exact decimals.

        Args:
            path: Path, which starts with a slash.
            body: Content, which is sent as JSON.
            repeat: Whether the request is safe to retry.
        """

        def ask() -> Any:
            return _exact(self._org.send("POST", path, body=body))

        return self.retries.again(ask) if repeat else ask()

    def patch(self, path: str, body: object) -> Any:
        """Send a PATCH, without retries, and return the parsed response."""
        return _exact(self._org.send("PATCH", path, body=body))

    def delete(self, path: str) -> None:
        """Send a DELETE, with retries."""
        self.retries.again(lambda: self._org.send("DELETE", path))

    def download(self, path: str, query: Mapping[str, str], sink: Sink) -> Answer:
        """Download the CSV at *path*, and pass it to *sink*.

        The request is not retried here, because only the caller can discard what *sink* has already
        received.
        """
        return self._bulk.send("GET", path, query=query, headers={"Accept": "text/csv"}, sink=sink)


def _exact(answer: Answer) -> Any:
    # Keep decimals exactly as the org wrote them: a currency of 18 digits does not fit a float.
    return answer.json(parse_float=Decimal) if answer.body else None


def check_name(what: str, name: str) -> str:
    """Return *name* if it is a valid API name, which is safe to use in a URL path or a SOQL query.

    Raises:
        LocalProtocolError: *name* is not valid.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise LocalProtocolError(
            f"{name[:80]!r} is not a valid name for {what}: use a letter, then letters, digits and "
            f"underscores"
        )
    return name


def check_id(what: str, given: str) -> str:
    """Return *given* if it is a record id of 15 or 18 characters.

    Raises:
        LocalProtocolError: *given* is not valid.
    """
    if not re.fullmatch(r"[0-9A-Za-z]{15}(?:[0-9A-Za-z]{3})?", given):
        raise LocalProtocolError(
            f"{given[:80]!r} is not a valid id for {what}: use 15 or 18 letters and digits"
        )
    return given
