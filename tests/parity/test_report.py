"""Tests of the report about an org that scripts/parity.sh writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from ..emulator.support import ORDERS
from .report import redacted

ROOT = Path(__file__).parents[2]


def test_a_report_about_an_org(tmp_path):
    """Run against an emulator that looks like an org (TLS, another org id and name, other limits),
    the report has an outcome for each test, an answer or "not tried" for each UNCONF fact, and none
    of the org's ids, names and tokens.
    """
    report = tmp_path / "report.json"
    with EmulatorServer(
        tmp_path / "org",
        tls=True,
        advertise="localhost",
        org_id="00D5g00000XyZab",
        settings=Settings(daily_deliveries=50_000, retention_s=3600.0),
    ) as org:
        user = org.accounts.holder("")
        values = {
            "ENDPOINT": org.grpc_target,
            "ACCESS_TOKEN": org.access_token,
            "INSTANCE_URL": org.instance_url,
            "TENANT_ID": org.tenant_id,
            "TOPIC": ORDERS,
            "USER_ID": user.user_id,
        }
        trust = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("tests/parity/test_pubsub.py", "tests/parity/test_rest.py"),
                *("-p", "tests.parity.report", "--parity-report", str(report)),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                **{f"PARITY_{name}": value for name, value in values.items()},
                **dict.fromkeys(trust, str(org.ca_file)),
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout
    text = report.read_text()
    found = json.loads(text)
    assert len(found["tests"]) >= 14
    assert set(found["tests"].values()) == {"passed"}
    answers = {row["fact"]: row["answer"] for row in found["unconfirmed"]}
    assert {"rest::versions_are_listed": "passed"} in answers.values()
    assert list(answers.values()).count("not tried") > 50
    for value in values.values():
        assert value not in text


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
        " 0055g00000AbCde 0015g00000QwErtAAA /event/Acme_Order__e Acme_Order__e ann@acme.example"
        " 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    )
    for word in ("secret", "another", "acme", "5g", "Acme", "1b4e28ba"):
        assert word not in redacted(text, settings), word
