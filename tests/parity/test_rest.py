"""Tests of the REST API: its versions, authentication, and queries of managed subscriptions."""

from __future__ import annotations

from .asking import ask


def test_versions_are_listed(org):
    """Each version has a label, a URL and a number; 62.0, which has managed subscriptions, is among
    them.
    """
    status, _, found = ask(org, "GET", "/services/data/")
    assert status == 200
    assert all({"label", "url", "version"} <= set(row) for row in found)
    assert "62.0" in {row["version"] for row in found}


def test_invalid_session_is_rejected(org):
    """An invalid token returns status 401 and an array with the error INVALID_SESSION_ID."""
    headers = {"Authorization": f"Bearer {org.tenant_id[:15]}!no"}
    status, _, found = ask(org, "GET", "/services/data/v62.0/tooling/query?q=x", headers)
    assert (status, found[0]["errorCode"]) == (401, "INVALID_SESSION_ID")


def test_managed_subscriptions_can_be_queried(org):
    """A query of managed subscriptions returns their number and records, each with its type."""
    text = "SELECT+Id,DeveloperName+FROM+ManagedEventSubscription+LIMIT+5"
    status, _, found = ask(org, "GET", f"/services/data/v62.0/tooling/query?q={text}")
    assert status == 200
    assert found["done"] is True
    assert found["size"] == len(found["records"])
    for row in found["records"]:
        assert row["attributes"]["type"] == "ManagedEventSubscription"


def test_malformed_query_is_rejected(org):
    """A malformed query returns status 400 and an array with the error MALFORMED_QUERY."""
    status, _, found = ask(org, "GET", "/services/data/v62.0/tooling/query?q=SELECT")
    assert (status, found[0]["errorCode"]) == (400, "MALFORMED_QUERY")
