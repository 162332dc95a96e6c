"""Read an org: objects, records by query and by id, the user's access, and the remaining API calls.

Values are the JSON values that the org sends, except that numbers with a decimal point or an
exponent become `decimal.Decimal`, because a currency value of 18 digits does not fit a float. Dates
are strings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider
from sfpubsub.auth.soql import continuation, page_of, quoted
from sfpubsub.config import RestTimings
from sfpubsub.errors import (
    LocalProtocolError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
)
from sfpubsub.rest.describing import (
    ObjectDescription,
    ObjectSummary,
    object_of,
    summaries_of,
)
from sfpubsub.rest.grants import UNTRACED, Grant, grants_everything, sources_of
from sfpubsub.rest.jobs import QueryJobs
from sfpubsub.rest.requests import Asker, check_id, check_name

# The same version as in `sfpubsub.tooling`, so that an org needs to support only one.
API_VERSION = "60.0"

# Maximum number of ids per request (Salesforce documentation, sObject Collections with a request
# body).
MOST_IDS = 2000

# Allowed rows per page of a query (Salesforce documentation, Query Options header).
_BATCH = range(200, 2001)

_ASSIGNMENTS = (
    "SELECT Id, SystemModstamp, PermissionSetId, PermissionSetGroupId, PermissionSet.Id, "
    "PermissionSet.SystemModstamp, PermissionSet.PermissionsViewAllData "
    "FROM PermissionSetAssignment"
)
_PERMISSIONS = (
    "SELECT Id, SystemModstamp, SobjectType, ParentId, Parent.PermissionSetGroupId, "
    "PermissionsViewAllRecords FROM ObjectPermissions"
)


@dataclass(frozen=True)
class QueryPage:
    """One page of a query's rows."""

    rows: list[dict[str, Any]]
    """Values by field name, without ``attributes``."""
    total: int
    """Total number of rows on all pages."""


@dataclass(frozen=True)
class ApiLimit:
    """An org's limit on API calls per 24 hours, for all users and applications together."""

    most: int
    remaining: int


class OrgReader:
    """Reads an org over HTTP. Thread-safe.

    The following errors are transient: no response, 429, 5xx, QUERY_TIMEOUT, UNABLE_TO_LOCK_ROW,
    and too many concurrent calls. A request with such an error is retried, up to
    `RestTimings.attempts` attempts in total. Every method can raise the errors listed here, except
    ConfigurationError.

    Args:
        session: A `Session`, or a `SessionProvider` that supplies one.
        http: Makes the requests, with its CA file and proxy; None creates one with default
            settings.
        api_version: Version of the REST API, such as ``60.0``.
        timings: Timeouts, delays and the number of attempts.
        sleep: Pauses for the given number of seconds; may raise an error to end the retries.

    Raises:
        ConfigurationError: *api_version* is not valid, or too old. Raised by the constructor.
        SessionExpiredError: The session was refused, and so was its replacement.
        PermissionDeniedError: The user lacks a permission for the request.
        QuotaExceededError: The org's daily API calls are used up (``retryable`` is False), or too
            many calls ran concurrently (True).
        RequestRefusedError: The org refused the request for another reason; see ``status`` and
            ``error_code``.
        StreamUnavailableError: No response in time, or the org is down or overloaded;
            ``retry_after`` is set if the org sent it.
        RemoteProtocolError: The response is not a valid Salesforce response.
        LocalProtocolError: A name, id or number passed in is not valid.
        AuthenticationError: Signing in failed.
    """

    def __init__(
        self,
        session: Session | SessionProvider,
        *,
        http: HttpClient | None = None,
        api_version: str = API_VERSION,
        timings: RestTimings | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sessions: CurrentSession = CurrentSession(session)
        """The session used for requests. Pass it to a `PubSubClient` to share one sign-in."""
        self._asker = Asker(
            self.sessions, http or HttpClient(), api_version, timings or RestTimings(), sleep
        )
        self._data = self._asker.data
        self._user: str | None = None
        self.jobs: QueryJobs = QueryJobs(self._asker)
        """The query jobs of the Bulk API."""

    @property
    def calls(self) -> int:
        """Number of requests made, including retries. Each counts against the org's daily limit."""
        return self._asker.calls

    @property
    def org_time(self) -> datetime | None:
        """The latest server time seen (Date header); None before the first successful response.

        The header is in whole seconds, so the org's clock may be almost a second ahead.
        """
        return self._asker.org_time

    def limits(self) -> ApiLimit:
        """Return the org's daily limit on API calls, and how many are left (DailyApiRequests)."""
        found = self._asker.get(f"{self._data}limits")
        limit = found.get("DailyApiRequests") if isinstance(found, dict) else None
        most, remaining = (
            (limit.get("Max"), limit.get("Remaining")) if isinstance(limit, dict) else (None, None)
        )
        if not isinstance(most, int) or not isinstance(remaining, int):
            raise RemoteProtocolError("the org's limits contain no valid DailyApiRequests")
        return ApiLimit(most, remaining)

    # Objects.

    def describe(self, object_name: str) -> ObjectDescription:
        """Return an object with the fields visible to the user.

        Raises:
            RequestRefusedError: The object does not exist, or the user may not see it (NOT_FOUND).
        """
        name = check_name("an object", object_name)
        return object_of(self._asker.get(f"{self._data}sobjects/{name}/describe"))

    def describe_global(self) -> tuple[ObjectSummary, ...]:
        """Return all objects visible to the user, without their fields."""
        return summaries_of(self._asker.get(f"{self._data}sobjects"))

    def grants(self, object_names: Iterable[str]) -> dict[str, Grant]:
        """Return what lets the user see every record of some objects, at this moment.

        A grant is empty unless the user has View All Data or Modify All Data, or the user's
        profile, a permission set or a permission set group grants View All for the object. Access
        through the org's sharing defaults is not detected, so an empty grant means "not known".

        Raises:
            PermissionDeniedError: The user may not see permissions.
        """
        names = [check_name("an object", name) for name in object_names]
        held = self._all(f"{_ASSIGNMENTS} WHERE AssigneeId = {quoted(self._user_id())}")
        if grants_everything(held):
            return {name: Grant.of(sources_of(held, ())) for name in names}
        # There are few rows, so filter and join them here instead of in a SOQL semi-join.
        found: dict[str, list[dict[str, Any]]] = {}
        listed = ", ".join(map(quoted, names))
        for row in self._all(f"{_PERMISSIONS} WHERE SobjectType IN ({listed})"):
            found.setdefault(str(row.get("SobjectType")), []).append(row)
        sources = {name: sources_of(held, found.get(name, ())) for name in names}
        if not all(sources.values()):
            # About the running user; needs no permission (Object Reference).
            own = self._all("SELECT PermissionsViewAllData FROM UserPermissionAccess")
            if any(row.get("PermissionsViewAllData") is True for row in own):
                sources = {name: [*each, UNTRACED] for name, each in sources.items()}
        return {name: Grant.of(each) for name, each in sources.items()}

    # Records.

    def query(
        self, soql: str, *, all_rows: bool = False, batch_size: int = 2000
    ) -> Iterator[QueryPage]:
        """Yield the rows of a query in pages.

        If the request's URL exceeds 16,384 bytes, the org refuses it with HTTP status 414.
        Query objects with many fields through `jobs` instead.

        Args:
            soql: The query.
            all_rows: Whether to include records that are archived or in the Recycle Bin.
            batch_size: Rows per page, 200 to 2,000; the org may send fewer.

        Raises:
            ReadExpiredError: The org closed the query before its last page; an org keeps open at
                most ten queries per user.
        """
        if batch_size not in _BATCH:
            raise LocalProtocolError(f"batch_size must be from 200 to 2,000, not {batch_size}")
        path = f"{self._data}query{'All' if all_rows else ''}"
        query: Mapping[str, str] = {"q": soql}
        while True:
            answer = self._page(path, query, batch_size)
            rows, goes_on = page_of(answer)
            total = answer.get("totalSize")
            if not isinstance(total, int):
                raise RemoteProtocolError("the org's query response has no totalSize")
            for row in rows:
                row.pop("attributes", None)
            yield QueryPage(rows, total)
            if goes_on is None:
                return
            path, query = continuation(self._data, goes_on), {}

    def retrieve(
        self, object_name: str, ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return records by id, in one request.

        Args:
            object_name: The object.
            ids: At most 2,000 ids of 15 or 18 characters.
            fields: Fields to read; ``Id`` can be omitted.

        Returns:
            For each id, as passed, the record as a row; or None if the record does not exist or the
            user may not see it. The org was also observed to return None for records in the Recycle
            Bin, which is not documented.

        Raises:
            RequestRefusedError: A field does not exist, or is not visible to the user
                (INVALID_FIELD).
        """
        name = check_name("an object", object_name)
        asked = list(dict.fromkeys(check_id("a record", record_id) for record_id in ids))
        if len(asked) > MOST_IDS:
            raise LocalProtocolError(
                f"{len(asked)} ids are too many: the limit is {MOST_IDS} per request"
            )
        if not asked:
            return {}
        wanted = ["Id", *(field for field in fields if field.lower() != "id")]
        found = self._asker.post(
            f"{self._data}composite/sobjects/{name}", {"ids": asked, "fields": wanted}, repeat=True
        )
        if not isinstance(found, list) or len(found) != len(asked):
            raise RemoteProtocolError(
                f"the org did not return one {name} for each of {len(asked)} ids"
            )
        return {
            record_id: _record(row, record_id) for record_id, row in zip(asked, found, strict=True)
        }

    # Requests.

    def _page(self, path: str, query: Mapping[str, str], batch_size: int) -> Any:
        options = {"Sforce-Query-Options": f"batchSize={batch_size}"}
        try:
            return self._asker.get(path, query, options)
        except RequestRefusedError as error:
            if error.error_code != "INVALID_QUERY_LOCATOR":
                raise
            raise ReadExpiredError(
                f"{error}; start the query again", status=error.status, error_code=error.error_code
            ) from error

    def _all(self, soql: str) -> list[dict[str, Any]]:
        return [row for page in self.query(soql) for row in page.rows]

    def _user_id(self) -> str:
        if self._user is None:
            found = self._asker.get("/services/oauth2/userinfo")
            user_id = found.get("user_id") if isinstance(found, dict) else None
            if not isinstance(user_id, str):
                raise RemoteProtocolError("the org's userinfo response has no user_id")
            self._user = user_id
        return self._user


def _record(row: Any, record_id: str) -> dict[str, Any] | None:
    if row is None:
        return None
    own = row.get("Id") if isinstance(row, dict) else None
    # The first 15 characters identify the record; the rest is a checksum of their case.
    if not isinstance(own, str) or own[:15] != record_id[:15]:
        raise RemoteProtocolError(f"the org returned a record other than {record_id}")
    return {field: value for field, value in row.items() if field != "attributes"}
