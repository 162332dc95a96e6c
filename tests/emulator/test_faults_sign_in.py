"""The `refuse_sign_in` fault, which makes the emulator refuse to issue access tokens."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.faults import Fault

from .web import token


def test_refuse_sign_in(emulator):
    """The fault refuses as many sign-ins as requested, with the requested OAuth error (a rate limit
    by default); after that, sign-ins succeed again.
    """
    emulator.faults.add(Fault("refuse_sign_in", times=2))
    emulator.faults.add(Fault("refuse_sign_in", error="invalid_app_access"))
    for _ in range(2):
        assert token(emulator).error == (400, "rate_limit_exceeded", "login rate exceeded")
    refused = token(emulator, "refresh_token", refresh_token="x").error
    assert refused[1:] == ("invalid_app_access", "user is not admin approved to access this app")
    assert token(emulator).status == 200
    emulator.faults.assert_consumed()


@pytest.mark.parametrize(
    ("error", "description"),
    [
        ("invalid_client", "app must be installed into org"),
        ("OAUTH_APP_BLOCKED", "this app is blocked by admin"),
        ("invalid_grant", "ip restricted"),
        ("invalid_grant", "inactive user"),
        ("invalid_grant", "expired access/refresh token"),
    ],
)
def test_refuse_sign_in_with_a_description(emulator, error, description):
    """If an error has several descriptions, the fault selects one."""
    emulator.faults.add(Fault("refuse_sign_in", error=error, description=description))
    assert token(emulator).error == (400, error, description)


@pytest.mark.parametrize(
    "arguments",
    [
        {"error": "bad"},
        {"description": "ip restricted"},
        {"target": "x"},
        {"rpc": "GetTopic"},
        {"status": "OK"},
    ],
)
def test_refuse_sign_in_rejects_invalid_fields(arguments):
    """Creating a `refuse_sign_in` fault raises `ValueError` if its error is unknown, or if it has a
    field that it does not support, such as a target, an RPC or a gRPC status.
    """
    with pytest.raises(ValueError, match="refuse_sign_in"):
        Fault("refuse_sign_in", **arguments)
