"""What an org has: objects, records by query and by id, what the user may see, what calls are left.

Values are those of JSON, as the org sends them, but that numbers with a decimal point or an
exponent are `decimal.Decimal`: a currency of 18 digits is not a float. Dates are texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sfpubsub.rest.asking import Asker, check_id, check_name
from sfpubsub.rest.describing import (
    ObjectDescription,
    ObjectSummary,
    object_of,
    summaries_of,
)
from sfpubsub.rest.jobs import QueryJobs

# The version of `sfpubsub.tooling`, so that an org needs to serve one only.
API_VERSION = "60.0"

# Ids of one read (Salesforce documentation, sObject Collections with a request body).
MOST_IDS = 2000

# Rows of a page of a query (Salesforce documentation, Query Options header).
_BATCH = range(200, 2001)


@dataclass(frozen=True)
class QueryPage:
    """One page of a query's rows."""

    rows: list[dict[str, Any]]
    """By field, without ``attributes``."""
    total: int
    """Rows of all pages together."""


@dataclass(frozen=True)
class ApiLimit:
    """The calls that an org allows in 24 hours, of all its users and applications."""

    most: int
    remaining: int


class OrgReader:
    """Reads an org over HTTP. Thread-safe.

    What passes is waited for and asked again, `RestTimings.attempts` times at most: no answer,
    429, 5xx, QUERY_TIMEOUT, UNABLE_TO_LOCK_ROW, too many calls at once. What every
    method can raise is listed here, and not again with each.

    Args:
        session: A ready session, or an object whose ``get_session`` supplies one.
        http: Makes the requests, by its CA file and proxy; one with its defaults when None.
        api_version: Such as ``60.0``.
        timings: Bounds, delays and the number of attempts.
        sleep: Pauses for that many seconds; may raise to give up.

    Raises:
        ConfigurationError: *api_version* is not valid, or too old; on construction.
        SessionExpiredError: The session was refused, and the one after it as well.
        PermissionDeniedError: The user may not do this.
        QuotaExceededError: The org's calls of the day are used up (``retryable`` is false), or too
            many were in flight at once (true).
        RequestRefusedError: Refused for another reason; ``status`` and ``error_code`` tell it.
        StreamUnavailableError: No answer in time, or the org is down or overloaded; ``retry_after``
            says for how long, if the org did.
        RemoteProtocolError: The answer is not what Salesforce answers.
        LocalProtocolError: A name, id or number given is not valid.
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
        """The session of its requests. A `PubSubClient` takes it as well: one sign-in for both."""
        self._asker = Asker(
            self.sessions, http or HttpClient(), api_version, timings or RestTimings(), sleep
        )
        self._data = self._asker.data
        self.jobs: QueryJobs = QueryJobs(self._asker)
        """The query jobs of the Bulk API."""

    @property
    def calls(self) -> int:
        """Requests made so far, repeated ones included; each takes one of the day's."""
        return self._asker.calls

    @property
    def org_time(self) -> datetime | None:
        """The latest time that an answer named (its Date header); None before the first one.

        It has whole seconds, so the org's clock may be almost a second ahead of it.
        """
        return self._asker.org_time

    def limits(self) -> ApiLimit:
        """Return how many calls the org has left, by its own figures (DailyApiRequests)."""
        found = self._asker.get(f"{self._data}limits")
        limit = found.get("DailyApiRequests") if isinstance(found, dict) else None
        most, remaining = (
            (limit.get("Max"), limit.get("Remaining")) if isinstance(limit, dict) else (None, None)
        )
        if not isinstance(most, int) or not isinstance(remaining, int):
            raise RemoteProtocolError("the org answered without its DailyApiRequests")
        return ApiLimit(most, remaining)

    # Objects.

    def describe(self, object_name: str) -> ObjectDescription:
        """Return an object with the fields that the user sees.

        Raises:
            RequestRefusedError: The org does not have it, or the user may not see it (NOT_FOUND).
        """
        name = check_name("an object", object_name)
        return object_of(self._asker.get(f"{self._data}sobjects/{name}/describe"))

    def describe_global(self) -> tuple[ObjectSummary, ...]:
        """Return all objects that the user sees, without their fields."""
        return summaries_of(self._asker.get(f"{self._data}sobjects"))

    def can_view_all(self, object_name: str) -> bool:
        """Return whether the user is known to see every record of an object.

        By View All Data or Modify All Data of the user, else by View All of the object in a profile
        or permission set that is assigned to the user. An object that everybody sees by the org's
        sharing defaults is not recognised, nor is a permission by a permission set group whose
        sets are not assigned one by one: false says that it is not known.

        Raises:
            PermissionDeniedError: The user may not see permissions.
        """
        name = check_name("an object", object_name)
        # Of the running user; needs no permission (Object Reference).
        own = self._all("SELECT PermissionsViewAllData FROM UserPermissionAccess")
        if any(row.get("PermissionsViewAllData") is True for row in own):
            return True
        # A boolean is compared here, and two queries are matched here: few rows, and no semi-join.
        permissions = "SELECT ParentId, PermissionsViewAllRecords FROM ObjectPermissions"
        granted = {
            row.get("ParentId")
            for row in self._all(f"{permissions} WHERE SobjectType = {quoted(name)}")
            if row.get("PermissionsViewAllRecords") is True
        }
        if not granted:
            return False
        assignments = "SELECT PermissionSetId FROM PermissionSetAssignment"
        assigned = self._all(f"{assignments} WHERE AssigneeId = {quoted(self._user_id())}")
        return any(row.get("PermissionSetId") in granted for row in assigned)

    # Records.

    def query(
        self, soql: str, *, all_rows: bool = False, batch_size: int = 2000
    ) -> Iterator[QueryPage]:
        """Yield the rows of a query, page by page.

        A request of more than 16,384 bytes is refused with 414: read wide objects by `jobs`.

        Args:
            soql: The query.
            all_rows: Also records in the Recycle Bin, and archived ones.
            batch_size: Rows of a page, 200 to 2,000; the org may send fewer.

        Raises:
            ReadExpiredError: The org has closed the query meanwhile (ten a user stay open).
        """
        if batch_size not in _BATCH:
            raise LocalProtocolError(f"a page has 200 to 2,000 rows, not {batch_size}")
        path = f"{self._data}query{'All' if all_rows else ''}"
        query: Mapping[str, str] = {"q": soql}
        while True:
            answer = self._page(path, query, batch_size)
            rows, goes_on = page_of(answer)
            total = answer.get("totalSize")
            if not isinstance(total, int):
                raise RemoteProtocolError("the org answered a query without its totalSize")
            for row in rows:
                row.pop("attributes", None)
            yield QueryPage(rows, total)
            if goes_on is None:
                return
            path, query = continuation(self._data, goes_on), {}

    def retrieve(
        self, object_name: str, ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return records by their ids, with one request.

        Args:
            object_name: Of which object.
            ids: At most 2,000, of 15 or 18 characters.
            fields: What to read; ``Id`` need not be named.

        Returns:
            A row for each id, by the id as it was given; None where the org has no such record, or
            the user may not see it. That a record in the Recycle Bin is None is not documented.

        Raises:
            RequestRefusedError: A field is not there, or may not be seen (INVALID_FIELD).
        """
        name = check_name("an object", object_name)
        asked = list(dict.fromkeys(check_id("a record", record_id) for record_id in ids))
        if len(asked) > MOST_IDS:
            raise LocalProtocolError(f"{len(asked)} ids are too many: {MOST_IDS} a request")
        if not asked:
            return {}
        wanted = ["Id", *(field for field in fields if field.lower() != "id")]
        found = self._asker.post(
            f"{self._data}composite/sobjects/{name}", {"ids": asked, "fields": wanted}, repeat=True
        )
        if not isinstance(found, list) or len(found) != len(asked):
            raise RemoteProtocolError(
                f"the org did not answer with one {name} for each of {len(asked)} ids"
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
                f"{error}; begin the query again", status=error.status, error_code=error.error_code
            ) from error

    def _all(self, soql: str) -> list[dict[str, Any]]:
        return [row for page in self.query(soql) for row in page.rows]

    def _user_id(self) -> str:
        found = self._asker.get("/services/oauth2/userinfo")
        user_id = found.get("user_id") if isinstance(found, dict) else None
        if not isinstance(user_id, str):
            raise RemoteProtocolError("the org does not tell who is signed in (userinfo)")
        return user_id


def _record(row: Any, record_id: str) -> dict[str, Any] | None:
    if row is None:
        return None
    own = row.get("Id") if isinstance(row, dict) else None
    # The first 15 characters say which record; the others repeat their cases.
    if not isinstance(own, str) or own[:15] != record_id[:15]:
        raise RemoteProtocolError(f"the org answered with another record than {record_id}")
    return {field: value for field, value in row.items() if field != "attributes"}
