"""Third-party clients work against the emulator in their published, unmodified form.

Run with `-m foreign`. The packages are downloaded once, at pinned versions, into a cache directory
outside the repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from ..streaming.test_foreign import CACHE, fetch_packages, needs_java, needs_node, node_packages
from .support import ORDERS, Client, until

pytestmark = pytest.mark.foreign

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "scripts" / "python_clients.sh"

LONGEST_S = 600
"""Timeout of one command. It includes the download of packages; without it a run takes seconds."""

GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"


def run(*command: str, **environment: str) -> str:
    """Run a command with additional environment variables, assert that it succeeds, and return its
    output.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_clients():
    """pysfpubsub and aiosfpubsub sign in through SOAP, publish and subscribe; simple-salesforce
    signs in through SOAP, publishes through REST, and queries the Tooling API and the limits.
    """
    text = run(str(SCRIPT), str(CACHE / "python_clients"), PYTHON=sys.executable)
    assert json.loads(text) == {
        "simple-salesforce": {
            "success": True,
            "entities": [
                "Account",
                "AccountChangeEvent",
                "Contact",
                "Opportunity",
                "Order_Event__e",
                "Order__c",
            ],
            "used": 1,
        },
        "pysfpubsub": {"published": 1, "received": ["simple-salesforce", "pysfpubsub"]},
        "aiosfpubsub": {"topic": ORDERS, "received": ["simple-salesforce", "pysfpubsub"]},
    }


@needs_node
def test_jsforce(emulator):
    """jsforce signs in through SOAP, requests its identity, publishes an event, creates a custom
    channel, and logs out through SOAP.
    """
    modules = str(node_packages() / "node_modules")
    program = str(HERE / "jsforce_client.cjs")
    seen = json.loads(run("node", program, emulator.http_url, NODE_PATH=modules))
    assert seen == {
        "organization": emulator.tenant_id,
        "identity": emulator.tenant_id,
        "published": True,
        "schema": "Order_Event__e",
        "selected": ["AccountChangeEvent"],
        "channel": True,
        "limit": 50_000,
        "afterLogout": seen["afterLogout"],
    }
    assert isinstance(seen["afterLogout"], str)


def camel(emulator: EmulatorServer, directory: Path) -> list[str]:
    """Return the command that runs a Camel program, with a truststore that has the emulator's
    authority, as docs/how-to/emulator-clients.md describes.
    """
    copy = ["dependency:copy-dependencies", "-DoutputDirectory=lib"]
    home = fetch_packages(
        "camel.xml", "mvn", "-q", "-B", "-f", "camel.xml", *copy, of=HERE / "foreign"
    )
    trust = {"trustStore": str(directory / "trust.jks"), "trustStorePassword": "changeit"}
    store = ["-keystore", trust["trustStore"], "-storepass", trust["trustStorePassword"]]
    ca = ["-alias", "emulator", "-file", str(emulator.ca_file)]
    run("keytool", "-importcert", "-noprompt", *ca, *store)
    options = [f"-Djavax.net.ssl.{name}={value}" for name, value in trust.items()]
    return ["java", *options, "-cp", f"{home / 'lib'}/*"]


@needs_java
def test_camel(tmp_path):
    """Camel's Salesforce component signs in, subscribes and publishes over TLS."""
    with EmulatorServer(tmp_path / "data", tls=True) as emulator:
        emulator.publish(ORDERS, [{"Order_Number__c": number} for number in ("1", "2")])
        program = str(HERE / "foreign" / "CamelClient.java")
        where = [emulator.grpc_target, emulator.http_url]
        lines = run(*camel(emulator, tmp_path), program, *where)
    received = [json.loads(line)["Order_Number__c"] for line in lines.splitlines()]
    assert received == ["1", "2", "from Camel"]


@needs_java
def test_camel_with_a_query(tmp_path):
    """Camel's route with a query creates the PushTopic, or changes its query, and receives the
    event of a new record.
    """
    program = str(HERE / "foreign" / "CamelStreaming.java")
    with EmulatorServer(tmp_path / "data", tls=True) as emulator:
        command = camel(emulator, tmp_path)
        user = emulator.accounts.holder("")
        for fields in ("Id", "Id, Name"):
            query = f"SELECT {fields} FROM Account"
            with subprocess.Popen(
                [*command, program, emulator.http_url, query], stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline()) == {"subscribed": True}
                until(lambda: emulator.bus.bells.count("cometd:/topic/CamelTopic") == 1)
                made = emulator.records.create("Account", {"Name": "x"}, user, "")
                row = json.loads(process.stdout.readline())
            assert process.returncode == 0
            assert row == ({"Id": made} if fields == "Id" else {"Id": made, "Name": "x"})


EMP_CONNECTOR = os.environ.get("EMP_CONNECTOR", "")
"""A checkout of forcedotcom/EMP-Connector, which is on no registry."""


@needs_java
@pytest.mark.skipif(not EMP_CONNECTOR, reason="EMP_CONNECTOR names no checkout of EMP-Connector")
def test_emp_connector(tmp_path):
    """EMP-Connector, with CometD's Java client, replays a filtered PushTopic with a session id that
    has no scheme.
    """
    home, classes = CACHE / "emp_connector", tmp_path / "classes"
    if not (home / "done").exists():
        copy = ("dependency:copy-dependencies", "-DincludeScope=runtime")
        pom = str(Path(EMP_CONNECTOR) / "pom.xml")
        run("mvn", "-q", "-B", "-f", pom, *copy, f"-DoutputDirectory={home}")
        (home / "done").touch()
    sources = map(str, Path(EMP_CONNECTOR, "src", "main", "java").rglob("*.java"))
    run("javac", "-nowarn", "-d", str(classes), "-cp", f"{home}/*", *sources)
    program = "com.salesforce.emp.connector.example.BearerTokenExample"
    with EmulatorServer(tmp_path / "org") as emulator:
        rows = [{"sobject": {"Name": name}} for name in ("a", "b", "a")]
        found = emulator.publish_streaming("/topic/Accounts", rows)
        where = (emulator.http_url, emulator.access_token, "/topic/Accounts?Name='a'", "-2")
        with subprocess.Popen(
            ["java", "-cp", f"{classes}:{home}/*", program, *where],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            received = (line for line in process.stdout if line.startswith('{"event"'))
            events = [json.loads(next(received).rstrip(", \n")) for _ in range(2)]
            process.kill()
    assert [event["event"]["replayId"] for event in events] == [found[0], found[2]]


@pytest.mark.skipif(not shutil.which("go"), reason="go is not installed")
@pytest.mark.parametrize("tls", [False, True])
def test_grpcurl(tmp_path, tls):
    """grpcurl has no local proto file: it discovers the Pub/Sub service through reflection, calls
    it, and checks its health, with and without TLS.
    """
    binary = CACHE / "grpcurl" / "grpcurl"
    if not binary.exists():
        run("go", "install", GRPCURL, GOBIN=str(binary.parent))
    with EmulatorServer(tmp_path, tls=tls) as emulator:
        trust = ["-cacert", str(emulator.ca_file)] if tls else ["-plaintext"]
        headers = [part for name, value in emulator.metadata for part in ("-H", f"{name}: {value}")]

        def grpcurl(*arguments: str) -> str:
            return run(str(binary), *trust, *arguments)

        target = emulator.grpc_target
        assert "eventbus.v1.PubSub" in grpcurl(target, "list").splitlines()
        assert "SERVING" in grpcurl(target, "grpc.health.v1.Health/Check")
        assert "rpc ManagedSubscribe" in grpcurl(target, "describe", "eventbus.v1.PubSub")
        asked = json.dumps({"topic_name": ORDERS})
        answer = grpcurl("-d", asked, *headers, target, "eventbus.v1.PubSub/GetTopic")
        assert ORDERS in json.loads(answer).values()
        emulator.publish(ORDERS, [{}])
        fetch = json.dumps({"topic_name": ORDERS, "replay_preset": "EARLIEST", "num_requested": 1})
        answer = grpcurl("-d", fetch, *headers, target, "eventbus.v1.PubSub/Subscribe")
        assert len(json.loads(answer)["events"]) == 1
        client = Client(target, emulator.metadata, emulator.ca_file)
        assert len(client.subscribe().events(1)) == 1
        client.close()


@pytest.mark.skipif(not shutil.which("cargo"), reason="cargo is not installed")
def test_tonic(tmp_path):
    """A tonic client with code generated from the proto file opens a stream before there are
    events, then publishes one and receives it, as docs/how-to/emulator-clients.md describes.
    """
    home = CACHE / "rust"
    shutil.copytree(HERE / "foreign" / "rust", home, dirs_exist_ok=True)
    shutil.copy(HERE.parents[1] / "proto" / "pubsub_api.proto", home)
    manifest = str(home / "Cargo.toml")
    run("cargo", "build", "--quiet", "--manifest-path", manifest, CARGO_TARGET_DIR=str(home / "to"))
    settings = Settings(headers_at_once=True)
    with EmulatorServer(tmp_path / "data", tls=True, settings=settings) as emulator:
        schema = emulator.bus.schema(emulator.bus.topic(ORDERS).schema_id)
        payload = tmp_path / "payload"
        payload.write_bytes(schema.encode({"Order_Number__c": "from Rust"}, emulator.clock.now()))
        environment = {
            "PUBSUB": emulator.grpc_target,
            "CA_FILE": str(emulator.ca_file),
            "TOKEN": emulator.access_token,
            "INSTANCE": emulator.http_url,
            "TENANT": emulator.tenant_id,
            "TOPIC": ORDERS,
            "PAYLOAD": str(payload),
        }
        received = run(str(home / "to" / "debug" / "emulator-client"), **environment)
    assert json.loads(received) == list(payload.read_bytes())
