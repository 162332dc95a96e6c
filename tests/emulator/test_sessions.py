"""Tests of the three authentication headers of a gRPC call, and of the errors for invalid ones."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.org.sessions import eighteen
from sfpubsub.emulator.org.settings import Settings
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ORDERS, Client

TOPIC = pb.TopicRequest(topic_name=ORDERS)


def headers(emulator, **changes):
    """Return the emulator's metadata with *changes* applied; a value of None removes the header."""
    return tuple((k, v) for k, v in {**dict(emulator.metadata), **changes}.items() if v is not None)


@pytest.mark.parametrize(
    ("changes", "suffix"),
    [
        ({"accesstoken": "wrong"}, "service.auth.error"),
        ({"tenantid": "00D000000000000AAA"}, "service.auth.error"),
        ({"tenantid": "core/my/00D000000000000"}, "service.auth.error"),
        ({"accesstoken": None}, "service.auth.headers.invalid"),
        ({"accesstoken": " "}, "service.auth.headers.invalid"),
        ({"instanceurl": None}, "service.auth.headers.invalid"),
        ({"instanceurl": "my.salesforce.com"}, "service.auth.headers.invalid"),
        ({"tenantid": ""}, "service.auth.headers.invalid"),
    ],
)
def test_invalid_headers(emulator, changes, suffix):
    """A wrong token or tenant is rejected as failed authentication, and a missing or malformed
    header as invalid headers.
    """
    client = Client(emulator.grpc_target, headers(emulator, **changes))
    assert client.refusal("GetTopic", TOPIC) == ("UNAUTHENTICATED", suffix)
    assert client.subscribe().refusal() == suffix
    assert client.managed().refusal() == suffix
    client.close()


@pytest.mark.parametrize("form", ["{15}", "{18}", "core/my-domain/{18}", "core/my-domain/{15}"])
def test_accepted_forms_of_the_tenant_id(emulator, form):
    """The tenant ID is accepted with 15 and 18 characters, both alone and in the form
    core/<domain>/<org>.
    """
    tenant = form.replace("{15}", emulator.tenant_id[:15]).replace("{18}", emulator.tenant_id)
    client = Client(emulator.grpc_target, headers(emulator, tenantid=tenant))
    assert client.call("GetTopic", TOPIC).topic_name == ORDERS
    client.close()


def test_statuses_can_be_overridden(start):
    """A setting can replace the gRPC status of an error code, because the real service's statuses
    are not all known.
    """
    code = "service.auth.headers.invalid"
    emulator, _ = start(settings=Settings(statuses={code: "INVALID_ARGUMENT"}))
    client = Client(emulator.grpc_target, headers(emulator, tenantid=""))
    assert client.refusal("GetTopic", TOPIC) == ("INVALID_ARGUMENT", code)
    client.close()


def test_eighteen_character_id():
    """`eighteen` appends the checksum characters that Salesforce's documentation gives for the same
    ID.
    """
    assert eighteen("00D000000000062") == "00D000000000062EAA"
