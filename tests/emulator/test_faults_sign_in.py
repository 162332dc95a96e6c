"""Faults that happen to who asks for a token."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.faults import Fault

from .web import token


def test_refuse_sign_in(emulator):
    """So many sign-ins are refused with the error that was asked for; then they go well again."""
    emulator.faults.add(Fault("refuse_sign_in", times=2))
    emulator.faults.add(Fault("refuse_sign_in", error="invalid_app_access"))
    for _ in range(2):
        assert token(emulator).error == (400, "rate_limit_exceeded", "login rate exceeded")
    refused = token(emulator, "refresh_token", refresh_token="x").error
    assert refused[1:] == ("invalid_app_access", "user is not admin approved to access this app")
    assert token(emulator).status == 200
    emulator.faults.assert_consumed()


@pytest.mark.parametrize(
    "arguments", [{"error": "bad"}, {"target": "x"}, {"rpc": "GetTopic"}, {"status": "OK"}]
)
def test_what_is_no_such_fault(arguments):
    """Unknown errors, targets and places are refused when the fault is made."""
    with pytest.raises(ValueError, match="refuse_sign_in"):
        Fault("refuse_sign_in", **arguments)
