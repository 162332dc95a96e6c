"""The official CLI of Salesforce, `sf`, and its library work against the emulator in their
published form.

Run with `-m foreign`. The package has 480 MB, and is fetched once, at a pinned version, into a
cache directory outside of the tree; with it comes a Node.js that all of its packages accept.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.sf_cli import SfCliLogin
from sfpubsub.emulator.server import EmulatorServer

from ..streaming.test_foreign import fetch_packages, needs_node

pytestmark = [pytest.mark.foreign, needs_node]

HERE = Path(__file__).parent
LONGEST_S = 120
"""Timeout of one command, which takes three to ten seconds."""


class Cli:
    """The CLI with a home of its own, signed in to an emulator."""

    def __init__(self, emulator: EmulatorServer, home: Path) -> None:
        packages = fetch_packages(
            "package.json",
            *("npm", "install", "--silent", "--no-audit", "--no-fund"),
            of=HERE / "foreign" / "cli",
            into="official_cli",
        )
        programs = packages / "node_modules" / ".bin"
        self.program = str(programs / "sf")
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(home),
            "SF_ACCESS_TOKEN": emulator.access_token,
            "SF_AUTOUPDATE_DISABLE": "true",
            "SF_DISABLE_TELEMETRY": "true",
            "SF_SKIP_NEW_VERSION_CHECK": "true",
            "SF_USE_GENERIC_UNIX_KEYCHAIN": "true",
        }

    def text(self, *command: str) -> str:
        """Run a command, assert that it succeeds, and return what it prints."""
        done = subprocess.run(
            [self.program, *command],
            cwd=self.environment["HOME"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *command: str) -> Any:
        """Run a command with `--json`, and return its result."""
        return json.loads(self.text(*command, "--json"))["result"]


def test_the_official_cli(tmp_path):
    """`sf` signs in with an access token, shows the org and its limits, queries in its three
    formats, changes records one by one and in bulk, describes an object and signs out.
    """
    home = tmp_path / "home"
    home.mkdir()
    with EmulatorServer(tmp_path / "org") as emulator:
        cli = Cli(emulator, home)
        sign_in = ("org", "login", "access-token", "--instance-url", emulator.http_url)
        signed_in = cli.json(*sign_in, "--no-prompt", "--alias", "desk", "--set-default")
        assert (signed_in["username"], signed_in["orgId"]) == (
            "user@example.com",
            emulator.tenant_id,
        )
        assert cli.json("org", "display")["connectedStatus"] == "Connected"
        assert cli.json("org", "list", "limits")[0]["name"] == "DailyApiRequests"
        assert cli.json("sobject", "describe", "-s", "Account")["name"] == "Account"

        record = ("data", "create", "record", "-s", "Account", "-v", "Name=one Phone=1")
        made = cli.json(*record)["id"]
        soql = "SELECT Name, Owner.Username FROM Account"
        assert cli.json("data", "query", "-q", soql)["records"][0]["Name"] == "one"
        table = cli.text("data", "query", "-q", soql)
        assert "OWNER.USERNAME" in table
        assert "user@example.com" in table
        rows = cli.text("data", "query", "-q", soql, "-r", "csv").splitlines()
        assert rows == ["Name,Owner.Username", "one,user@example.com"]
        counted = "SELECT COUNT(Id), MAX(Name) last FROM Account"
        rows = cli.text("data", "query", "-q", counted, "-r", "csv").splitlines()
        assert rows == ["COUNT(Id),last", "1,one"]
        which = ("-s", "Account", "-w", "Name=one")
        assert cli.json("data", "get", "record", *which)["Id"] == made
        assert cli.json("data", "update", "record", *which, "-v", "Phone=2")["success"]

        (home / "in.csv").write_text("Name,Phone\nbulk 1,1\nbulk 2,2\n")
        into = ("-s", "Account", "-f", "in.csv", "--line-ending", "LF", "--wait", "2")
        assert cli.json("data", "import", "bulk", *into)["successfulRecords"] == 2
        (home / "up.csv").write_text("External_Id__c,Name\n1,an order\n")
        into = ("-s", "Order__c", "-f", "up.csv", "-i", "External_Id__c", "--line-ending", "LF")
        for _ in range(2):
            assert cli.json("data", "upsert", "bulk", *into, "--wait", "2")
        user = emulator.accounts.holder("")
        rows = emulator.records.query("SELECT Name FROM Order__c", user).rows
        assert [row["Name"] for row in rows] == ["an order"]
        out = ("-q", "SELECT Name FROM Account", "--output-file", "out.csv", "--wait", "2")
        assert cli.json("data", "export", "bulk", *out)["totalSize"] == 3
        assert (home / "out.csv").read_text().splitlines()[1:] == ['"one"', '"bulk 1"', '"bulk 2"']
        assert cli.json("data", "delete", "record", *which)["success"]
        assert cli.json("org", "logout", "-o", "desk", "--no-prompt") == ["user@example.com"]


def test_the_library_of_the_cli(tmp_path):
    """@salesforce/core, which comes with the CLI, signs in with an access token, queries, and its
    StreamingClient receives the event of a new record.
    """
    with EmulatorServer(tmp_path / "org") as emulator:
        cli = Cli(emulator, tmp_path)
        user = emulator.accounts.holder("")
        emulator.records.create("Account", {"Name": "old"}, user)
        query = {"Query": "SELECT Id, Name FROM Account", "ApiVersion": 60.0}
        emulator.cometd.channels.create("PushTopic", "Accounts", query)
        programs = Path(cli.program).parent
        done = subprocess.run(
            [
                str(programs / "node"),
                str(HERE / "foreign" / "core_client.cjs"),
                *(emulator.http_url, emulator.access_token, "/topic/Accounts"),
            ],
            env={**cli.environment, "NODE_PATH": str(programs.parent)},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {"version": seen["version"], "queried": 1, "received": "new"}


def test_a_sign_in_with_a_key(tmp_path, monkeypatch):
    """`sf` signs in with a key (JWT), and our client takes its session from that sign-in."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    home = tmp_path / "home"
    home.mkdir()
    (home / "key.pem").write_bytes(secret)
    with EmulatorServer(tmp_path / "org") as emulator:
        emulator.accounts.put_app("emulator", public_key=public.decode())
        cli = Cli(emulator, home)
        sign_in = ("org", "login", "jwt", "--instance-url", emulator.http_url, "--set-default")
        who = ("--client-id", "emulator", "--username", "user@example.com")
        assert cli.json(*sign_in, *who, "--jwt-key-file", "key.pem")["orgId"] == emulator.tenant_id
        for name, value in cli.environment.items():
            monkeypatch.setenv(name, value)
        login = SfCliLogin(command=cli.program, http=HttpClient(insecure="1"))
        session = login.get_session(None)
        assert session.tenant_id == emulator.tenant_id
