"""Helpers for SOQL queries: quoting, and reading paged responses."""

from __future__ import annotations

import re
from typing import Any

from sfpubsub.errors import RemoteProtocolError

# The continuation path of a query, after the API version.
_CONTINUATION = re.compile(r"(tooling/)?query(All)?/[\w-]+", re.ASCII)


def quoted(value: str) -> str:
    """Return *value* as a SOQL string literal."""
    # Escape the two special characters. Names and ids contain neither, but do not rely on that.
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def page_of(answer: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the rows of a query response, and the path of the next page (None on the last page).

    Raises:
        RemoteProtocolError: The response is not a valid query response.
    """
    page = answer if isinstance(answer, dict) else {}
    rows, done = page.get("records"), page.get("done")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RemoteProtocolError("the org's response to a query has no list of records")
    if not isinstance(done, bool):
        raise RemoteProtocolError(
            "the org's response to a query does not state whether more rows follow"
        )
    return rows, None if done else page.get("nextRecordsUrl") or ""


def continuation(data: str, given: Any) -> str:
    """Return *given* if it is a valid path of a query's next page.

    The path is checked because the access token is sent to it.

    Args:
        data: Path of the API version, ending with a slash.
        given: The next page's path in the org's response.

    Raises:
        RemoteProtocolError: The path is not valid.
    """
    is_of_version = isinstance(given, str) and given.startswith(data)
    if is_of_version and _CONTINUATION.fullmatch(given[len(data) :]):
        return str(given)
    raise RemoteProtocolError("the org returned a path that is not valid for a query's next page")
