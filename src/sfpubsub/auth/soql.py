"""What every query has in common: texts in SOQL, and the form of its answers."""

from __future__ import annotations

import re
from typing import Any

from sfpubsub.errors import RemoteProtocolError

# Where a query continues, behind the version.
_CONTINUATION = re.compile(r"(tooling/)?query(All)?/[\w-]+", re.ASCII)


def quoted(value: str) -> str:
    """Return *value* as a string of SOQL."""
    # Its two special characters. Names and ids have neither, and nothing here relies on that.
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def page_of(answer: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the rows of one answer to a query, and where it continues; None at its end.

    Raises:
        RemoteProtocolError: It has not the form of such an answer.
    """
    page = answer if isinstance(answer, dict) else {}
    rows, done = page.get("records"), page.get("done")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RemoteProtocolError("the org answered a query without records")
    if not isinstance(done, bool):
        raise RemoteProtocolError("the org answered a query and did not say whether that was all")
    return rows, None if done else page.get("nextRecordsUrl") or ""


def continuation(data: str, given: Any) -> str:
    """Pass only a path where a query continues: the token is sent to it.

    Args:
        data: Path of the API version, with a slash at its end.
        given: What the org answered.

    Raises:
        RemoteProtocolError: It is not valid.
    """
    is_of_version = isinstance(given, str) and given.startswith(data)
    if is_of_version and _CONTINUATION.fullmatch(given[len(data) :]):
        return str(given)
    raise RemoteProtocolError("the org continues a query at an address that is not valid for it")
