"""What is asked of the user before a mirror begins, and how the command is told things."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from sfpubsub.auth.session import Session
from sfpubsub.cli.mirror import Duration
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import ConfigurationError, PermissionDeniedError, RequestRefusedError
from sfpubsub.rest import OrgReader
from sfpubsub.spark.mirror.rights import check_rights
from tests.rest.support import QUICK


def test_an_object_is_mirrored_only_for_a_user_who_sees_all_of_it(tmp_path: Path):
    """A record that the user does not see would count as deleted: so the objects of which not all
    is seen are named at once, and so is a name that is not the org's own.
    """
    with EmulatorServer(tmp_path) as emulator:
        url, org = emulator.instance_url, emulator.tenant_id
        reader = OrgReader(Session(emulator.access_token, url, org), timings=QUICK)
        check_rights(reader, ["Account", "Order__c"])
        with pytest.raises(RequestRefusedError):
            check_rights(reader, ["Nothing__c"])
        with pytest.raises(ConfigurationError, match="called Account"):
            check_rights(reader, ["account"])
        emulator.accounts.put_user("limited@example.com", "secret", view_all=False)
        token = emulator._sessions.issue("limited@example.com")
        limited = OrgReader(Session(token, url, org), timings=QUICK)
        with pytest.raises(PermissionDeniedError, match="Account, Order__c"):
            check_rights(limited, ["Account", "Order__c"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("1.5s", 1.5), ("10m", 600.0), ("24h", 86400.0), ("0", 0.0)]
)
def test_a_duration_has_a_unit(text: str, seconds: float):
    """Schedules are given as people say them."""
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1h", "1w", "nan"])
def test_what_is_no_duration_is_refused(text: str):
    """A slip does not become a schedule."""
    with pytest.raises(click.BadParameter, match="duration"):
        Duration().convert(text, None, None)
