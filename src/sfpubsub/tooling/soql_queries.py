"""Query an org's records page by page, and add advice to the errors that the org returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.soql import continuation, page_of
from sfpubsub.errors import (
    PermissionDeniedError,
    RemoteProtocolError,
    RequestRefusedError,
    SfPubSubError,
)

# Names of permissions in Salesforce.
TO_READ = "View Setup and Configuration"
TO_CHANGE = "Customize Application"

# Maximum number of pages of one query; an org's 200 managed subscriptions fit into one page.
_MOST_PAGES = 20

# Error codes for a record that no longer exists.
_GONE = frozenset({"NOT_FOUND", "ENTITY_IS_DELETED", "INVALID_CROSS_REFERENCE_KEY"})

# What to do about other errors, by Salesforce's error code.
_CURES = {
    "INVALID_TYPE": "the org does not support these objects, or the user may not view its setup",
    "NOT_FOUND": "check the instance URL, and whether the org serves this API version",
    "DUPLICATE_DEVELOPER_NAME": "choose another name",
    "INVALID_INPUT": "check the names of topics, channels and events, which are case-sensitive",
}


class Queries:
    """Runs SOQL queries. Thread-safe; raises what `OrgClient` raises.

    Args:
        org: Makes the requests.
        api_version: Version of the REST API, such as ``60.0``.

    Attributes:
        data: URL path of the API version, such as ``/services/data/v60.0/``.
    """

    def __init__(self, org: OrgClient, api_version: str) -> None:
        self._org = org
        self.data = f"/services/data/v{api_version}/"

    def rows(self, soql: str, *, tooling: bool = True) -> list[dict[str, Any]]:
        """Return all rows of a query.

        Args:
            soql: The query.
            tooling: Whether to query the Tooling API instead of the regular API.

        Raises:
            RemoteProtocolError: A response is not a valid query response, or there are more than
                `_MOST_PAGES` pages.
        """
        rows: list[dict[str, Any]] = []
        path, query = f"{self.data}{'tooling/' if tooling else ''}query", {"q": soql}
        for _ in range(_MOST_PAGES):
            with explaining(TO_READ):
                answer = self._org.get(path, query)
            found, goes_on = page_of(answer)
            rows += found
            if goes_on is None:
                return rows
            path, query = continuation(self.data, goes_on), {}
        raise RemoteProtocolError(
            f"the response to a query has more than {_MOST_PAGES} pages, which is the most that "
            f"this command reads: {soql}"
        )


@contextmanager
def explaining(permission: str, missing: SfPubSubError | None = None) -> Iterator[None]:
    """Add advice to errors from the org that are raised in the ``with`` block.

    Args:
        permission: Name of the permission that the request needs.
        missing: Error to raise instead of the org's error if the record no longer exists; None to
            raise the org's error.
    """
    try:
        yield
    except PermissionDeniedError as error:
        raise PermissionDeniedError(
            f"{error}; the user needs the permission {permission}", error_code=error.error_code
        ) from error
    except RequestRefusedError as error:
        code = error.error_code or ""
        if missing is not None and code in _GONE:
            raise missing from error
        if code not in _CURES:
            raise
        raise RequestRefusedError(
            f"{error}; {_CURES[code]}", status=error.status, error_code=code
        ) from error
