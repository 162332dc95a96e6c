"""Tests of the report about an org that scripts/parity.sh writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from ..emulator.support import MANAGED, ORDERS
from .report import redacted
from .test_script import FILES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def org(tmp_path: Path) -> Iterator[EmulatorServer]:
    """An emulator that looks like an org: TLS, another org id and name, other limits."""
    settings = Settings(
        daily_deliveries=50_000,
        retention_s=3600.0,
        idle_close_s=3.0,
        first_request_s=3.0,
        publish_stream_idle_s=3.0,
    )
    names = {"tls": True, "advertise": "localhost", "org_id": "00D5g00000XyZab"}
    with EmulatorServer(tmp_path / "org", settings=settings, **names) as found:
        yield found


def values_of(org: EmulatorServer) -> dict[str, str]:
    """Return the settings of the script for an org."""
    return {
        "ENDPOINT": org.grpc_target,
        "ACCESS_TOKEN": org.access_token,
        "INSTANCE_URL": org.instance_url,
        "TENANT_ID": org.tenant_id,
        "TOPIC": ORDERS,
        "USER_ID": org.accounts.holder("").user_id,
    }


def report_about(org: EmulatorServer, report: Path, *files: str, make: str) -> str:
    """Run tests against the org as the script does, and return the report."""
    trust = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(f"tests/parity/test_{name}.py" for name in files),
            *("-p", "tests.parity.report", "--parity-report", str(report)),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            **{f"PARITY_{name}": value for name, value in values_of(org).items()},
            "PARITY_MAKE": make,
            **dict.fromkeys(trust, str(org.ca_file)),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return report.read_text()


def test_a_report_about_an_org(org, tmp_path):
    """The report about an org has an outcome for each test, an answer or "not tried" for each
    UNCONF fact, with what was seen, and none of the org's ids, names and tokens. What the tests
    made is gone.
    """
    text = report_about(org, tmp_path / "report.json", *FILES, make="yes")
    user = org.accounts.holder("")
    assert [record.developer_name for record in org.managed.all()] == [MANAGED]
    assert org.records.query("SELECT Id FROM Account", user).total == 0
    assert org.records.query("SELECT Id FROM Account", user, deleted=True).total > 0
    assert org.event_channels.channels() == []
    assert org.jobs.all(queries=True) == org.jobs.all(queries=False) == []
    found = json.loads(text)
    assert len(found["tests"]) >= 80
    assert set(found["tests"].values()) == {"passed"}
    answers = {row["fact"]: row["answer"] for row in found["unconfirmed"]}
    (code,) = (row for row in answers if row == "`publish.event.count.invalid`")
    assert answers[code] == {
        "unconfirmed::refusals[publish.event.count.invalid]": {
            "outcome": "passed",
            "seen": {"status": "INVALID_ARGUMENT", "code": "publish.event.count.invalid"},
        }
    }
    (preset,) = (row for row in answers if row.startswith("an unknown preset"))
    assert list(answers[preset]) == ["unconfirmed::refusals[subscription.fetch.request.invalid]"]
    (header,) = (row for row in answers if row.startswith("a blank header"))
    assert len(answers[header]) == 3
    assert 30 < list(answers.values()).count("not tried") < 75
    for value in values_of(org).values():
        assert value not in text


def test_nothing_is_made_unless_it_is_allowed(org, tmp_path):
    """Without PARITY_MAKE, nothing is made in an org, and what would need it is not tried."""
    text = report_about(org, tmp_path / "report.json", "made", make="")
    assert set(json.loads(text)["tests"].values()) == {"skipped"}
    assert {row["answer"] for row in json.loads(text)["unconfirmed"]} == {"not tried"}
    assert [record.developer_name for record in org.managed.all()] == [MANAGED]
    user = org.accounts.holder("")
    assert org.records.query("SELECT Id FROM Account", user, deleted=True).total == 0


def test_a_report_has_no_names_and_ids():
    """What a failed test says is redacted: tokens, hosts, ids in both forms, events, addresses."""
    settings = {
        "ACCESS_TOKEN": "00D5g00000XyZab!secret.token",
        "INSTANCE_URL": "https://acme--dev.sandbox.my.salesforce.com",
        "TENANT_ID": "00D5g00000XyZabEAE",
        "USER_ID": "0055g00000AbCdeEAF",
        "TOPIC": "/event/Acme_Order__e",
    }
    text = (
        "00D5g00000XyZab!secret.token 00D5g00000XyZab!another.token 00D5g00000XyZab"
        " https://acme--dev.sandbox.my.salesforce.com acme.my.salesforce.com 0055g00000AbCdeEAF"
        " 0055g00000AbCde 0015g00000QwErtAAA 001Qx1cd234Efgh /event/Acme_Order__e"
        " Acme_Order__e ann@acme.example 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    )
    for word in ("secret", "another", "acme", "5g", "Qx1", "Acme", "1b4e28ba"):
        assert word not in redacted(text, settings), word
