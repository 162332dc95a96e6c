"""REST: versions, sessions, managed subscriptions."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from ..emulator.support import WAIT_S


def get(org: Any, path: str, token: str | None = None) -> tuple[int, Any]:
    """Status and JSON of a request."""
    bearer = org.access_token if token is None else token
    request = urllib.request.Request(
        org.instance_url + path, headers={"Authorization": f"Bearer {bearer}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_versions(org):
    """Each has a label, a path and a number; one that knows managed subscriptions is among them."""
    status, found = get(org, "/services/data/")
    assert status == 200
    assert all({"label", "url", "version"} <= set(row) for row in found)
    assert "62.0" in {row["version"] for row in found}


def test_a_session_that_is_not_good(org):
    """401, and an array with one error."""
    status, found = get(org, "/services/data/v62.0/tooling/query?q=x", f"{org.tenant_id[:15]}!no")
    assert (status, found[0]["errorCode"]) == (401, "INVALID_SESSION_ID")


def test_a_query_of_managed_subscriptions(org):
    """Records with their attributes, and how many there are."""
    text = "SELECT+Id,DeveloperName+FROM+ManagedEventSubscription+LIMIT+5"
    status, found = get(org, f"/services/data/v62.0/tooling/query?q={text}")
    assert status == 200
    assert found["done"] is True
    assert found["size"] == len(found["records"])
    for row in found["records"]:
        assert row["attributes"]["type"] == "ManagedEventSubscription"


def test_a_query_that_is_none(org):
    """400, and MALFORMED_QUERY."""
    status, found = get(org, "/services/data/v62.0/tooling/query?q=SELECT")
    assert (status, found[0]["errorCode"]) == (400, "MALFORMED_QUERY")
