"""Fixtures: the org under test, and events for its topic."""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import grpc
import pytest

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from ..emulator.support import ORDERS, Client

# Settings of a real org, for scripts/parity.sh. Either all or none must be set.
NAMES = ("ENDPOINT", "ACCESS_TOKEN", "INSTANCE_URL", "TENANT_ID", "TOPIC", "USER_ID")


@dataclass(frozen=True)
class Org:
    """The org under test: credentials, a client, and a topic for publishing and subscribing.

    Attributes:
        user_id: Expected CreatedById of events.
        is_real: Whether this is a Salesforce org rather than an emulator.
    """

    access_token: str
    instance_url: str
    tenant_id: str
    topic: str
    user_id: str
    is_real: bool
    client: Client

    @property
    def metadata(self) -> dict[str, str]:
        return {
            "accesstoken": self.access_token,
            "instanceurl": self.instance_url,
            "tenantid": self.tenant_id,
        }


@pytest.fixture(scope="session")
def org(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Org]:
    """The real org if its settings are given, otherwise an emulator."""
    given = {name: os.environ.get(f"PARITY_{name}", "") for name in NAMES}
    if not any(given.values()):
        # Idle streams end soon.
        settings = Settings(idle_close_s=3.0, first_request_s=3.0, publish_stream_idle_s=3.0)
        with EmulatorServer(tmp_path_factory.mktemp("parity"), settings=settings) as emulator:
            client = Client(emulator.grpc_target, emulator.metadata)
            yield Org(
                emulator.access_token,
                emulator.instance_url,
                emulator.tenant_id,
                ORDERS,
                "005SB0000000001YAA",
                False,
                client,
            )
            client.close()
        return
    missing = [f"PARITY_{name}" for name, value in given.items() if not value]
    if missing:
        pytest.fail(f"set {', '.join(missing)} too: see scripts/parity.sh")
    token, url, tenant = given["ACCESS_TOKEN"], given["INSTANCE_URL"], given["TENANT_ID"]
    metadata = (("accesstoken", token), ("instanceurl", url), ("tenantid", tenant))
    channel = grpc.secure_channel(given["ENDPOINT"], grpc.ssl_channel_credentials())
    client = Client(given["ENDPOINT"], metadata, channel=channel)
    yield Org(token, url, tenant, given["TOPIC"], given["USER_ID"], True, client)
    client.close()


@pytest.fixture
def client(org: Org) -> Iterator[Client]:
    """A client of the org, whose streams are closed at the end of the test."""
    opened = len(org.client._streams)
    yield org.client
    for stream in org.client._streams[opened:]:
        stream.close()
    del org.client._streams[opened:]


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that keeps what a test has seen, by name, for the report."""

    def keep(**values: Any) -> None:
        request.node.user_properties += values.items()

    return keep


@pytest.fixture(scope="session")
def schema(org: Org) -> Any:
    """The topic's schema, fetched from the org."""
    info = org.client.call("GetTopic", pb.TopicRequest(topic_name=org.topic))
    return org.client.call("GetSchema", pb.SchemaRequest(schema_id=info.schema_id))


@pytest.fixture(scope="session")
def event(org: Org, schema: Any) -> Callable[..., Any]:
    """Return a function that creates an event for the topic.

    Unless a payload is given, all fields except CreatedDate and CreatedById are null or minimal.
    """
    parsed = json.loads(schema.schema_json)
    known = {"CreatedDate": int(time.time() * 1000), "CreatedById": org.user_id}
    values = {
        item["name"]: known.get(item["name"], _least(item["type"])) for item in parsed["fields"]
    }
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(parsed), values)

    def make(payload: bytes | None = None) -> Any:
        data = written.getvalue() if payload is None else payload
        return pb.ProducerEvent(id=str(uuid.uuid4()), schema_id=schema.schema_id, payload=data)

    return make


def _least(kind: Any) -> Any:
    if isinstance(kind, list):
        return None if "null" in kind else _least(kind[0])
    least = {"string": "", "boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0}
    return least[kind]
