"""Tests of the permission check before a mirror starts, and of durations on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from sfpubsub.auth.session import Session
from sfpubsub.cli.mirror import Duration
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import ConfigurationError, PermissionDeniedError, RequestRefusedError
from sfpubsub.rest import OrgReader
from sfpubsub.spark.mirror.rights import check_object, present_grant
from tests.rest.support import QUICK


def test_mirror_requires_a_user_who_sees_all_records(tmp_path: Path):
    """A user who may not see all records of the objects is rejected, since hidden records would
    count as deleted.

    An object name that is unknown or differs from the org's spelling is rejected too.
    """
    with EmulatorServer(tmp_path) as emulator:
        url, org = emulator.instance_url, emulator.tenant_id
        reader = OrgReader(Session(emulator.access_token, url, org), timings=QUICK)
        check_object(reader, "Order__c")
        assert present_grant(reader, "Order__c")
        with pytest.raises(RequestRefusedError):
            check_object(reader, "Nothing__c")
        with pytest.raises(ConfigurationError, match="called Account"):
            check_object(reader, "account")
        emulator.accounts.put_user("limited@example.com", "secret", view_all=False)
        token = emulator._sessions.issue("limited@example.com")
        limited = OrgReader(Session(token, url, org), timings=QUICK)
        check_object(limited, "Order__c")
        with pytest.raises(PermissionDeniedError, match="Order__c"):
            present_grant(limited, "Order__c")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("1.5s", 1.5), ("10m", 600.0), ("24h", 86400.0), ("0", 0.0)]
)
def test_duration_is_converted_to_seconds(text: str, seconds: float):
    """A duration is a number with a unit, or a number of seconds."""
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1h", "1w", "nan"])
def test_invalid_duration_is_rejected(text: str):
    """Arbitrary text, negative numbers and unknown units are rejected as usage errors."""
    with pytest.raises(click.BadParameter, match="duration"):
        Duration().convert(text, None, None)
