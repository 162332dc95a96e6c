"""Tests of gRPC channels: TLS and plaintext, proxies, and keepalive pings."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from sfpubsub.auth.session import Session
from sfpubsub.avro.schema_cache import schema_id_of
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import FIRST_CREDIT, LARGEST_EVENT, Timings
from sfpubsub.errors import ConfigurationError, StreamUnavailableError
from sfpubsub.transports import channel
from sfpubsub.transports.channel import GrpcTransport, open_channel
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc

from ..auth.servers import REMOTE, connect_proxy
from ..conftest import PATIENCE, QUICK

TOPIC = "/event/Order_Event__e"


@pytest.fixture(autouse=True)
def _without_proxy_variables(monkeypatch):
    """Remove the proxy variables of the test environment."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("endpoint", ["localhost:1", "127.0.0.1:1", "127.8.9.1:1", "[::1]:1"])
def test_plaintext_is_allowed_to_loopback(endpoint):
    """insecure="1" is enough for a plaintext channel to a loopback address."""
    open_channel(endpoint, insecure="1").close()


@pytest.mark.parametrize("endpoint", ["10.0.0.1:1", "example.org:1", "localhost.example.org:1"])
def test_plaintext_to_another_host_needs_force(endpoint):
    """A plaintext channel to another host needs insecure="force", so that no token is exposed by
    mistake.
    """
    with pytest.raises(ConfigurationError, match="plaintext to"):
        open_channel(endpoint, insecure="1")
    open_channel(endpoint, insecure="force").close()


@pytest.mark.parametrize("endpoint", ["host", "host:", ":443", "host:https", ""])
def test_an_invalid_endpoint_is_rejected(endpoint):
    """An endpoint without a host or a valid port raises an error.

    Otherwise, the client would keep trying to resolve it as a host name.
    """
    with pytest.raises(ConfigurationError, match="host:port"):
        open_channel(endpoint)


@pytest.mark.parametrize("port", [443, 7443])
def test_both_ports_of_the_service_are_accepted(port):
    """A channel can be opened to either port of Salesforce's service."""
    open_channel(f"api.pubsub.salesforce.com:{port}").close()


def test_an_invalid_value_of_insecure_is_rejected():
    """A value such as "yes" raises an error, rather than silently meaning TLS."""
    with pytest.raises(ConfigurationError, match="1 or force"):
        open_channel("localhost:1", insecure="yes")


def test_an_unreadable_ca_file_is_named(tmp_path):
    """The error for a CA file that cannot be read contains its path."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem"):
        open_channel("localhost:1", ca_file=str(tmp_path / "nowhere.pem"))


NOTHING = '{"type": "record", "name": "Nothing__e", "fields": []}'


class Zeros(pubsub_api_pb2_grpc.PubSubServicer):
    """A service whose events suddenly become large, and whose responses are compressed.

    It sends as many events as are requested in one response: 1 byte each in the first, 50 kB later.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []  # of the responses

    def Subscribe(self, requests, context):  # noqa: N802  # the name in the wire contract
        context.set_compression(grpc.Compression.Gzip)
        position = None
        for request in requests:
            if position is None:
                position = int.from_bytes(request.replay_id)
            size = 1 if not position else 50_000
            numbers = range(position, position + request.num_requested)
            self.sizes.append(len(numbers) * size)
            position = numbers.stop
            yield pb.FetchResponse(
                events=[
                    pb.ConsumerEvent(
                        event=pb.ProducerEvent(
                            id=f"e{n}", schema_id=schema_id_of(NOTHING), payload=bytes(size)
                        ),
                        replay_id=(n + 1).to_bytes(8),
                    )
                    for n in numbers
                ]
            )

    def GetSchema(self, request, context):  # noqa: N802  # the name in the wire contract
        return pb.SchemaInfo(schema_json=NOTHING, schema_id=request.schema_id)


def test_responses_are_limited_and_smaller_ones_are_received(monkeypatch, caplog):
    """A response that exceeds the limit, even if it is small before decompression, is not accepted;
    the client then requests fewer events, and receives them all.
    """
    limit = 1_000_000
    assert dict(channel.OPTIONS)["grpc.max_receive_message_length"] == 64 * 1024 * 1024
    assert channel.MAX_RESPONSE > FIRST_CREDIT * 2 * LARGEST_EVENT
    options = {**dict(channel.OPTIONS), "grpc.max_receive_message_length": limit}
    monkeypatch.setattr(channel, "OPTIONS", list(options.items()))
    service = Zeros()
    server = grpc.server(ThreadPoolExecutor(4))
    pubsub_api_pb2_grpc.add_PubSubServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    seen: list[bytes] = []
    session = Session("t", "https://nowhere.example", "00D000000000001EAA")
    client = PubSubClient(session, endpoint=f"127.0.0.1:{port}", insecure="1", timings=QUICK)
    with client, client.subscribe(TOPIC, replay="earliest") as subscription:
        while len(seen) < 150:
            batch = subscription.next_batch(PATIENCE)
            assert batch is not None, subscription.health()
            payloads = [event.payload for event in batch.raw_events]
            assert sum(map(len, payloads)) <= limit
            seen += [bytes(event.replay_id) for event in batch.raw_events]
    server.stop(None)
    assert seen == [(n + 1).to_bytes(8) for n in range(len(seen))]
    assert max(service.sizes) > limit
    assert "larger than max" in caplog.text


def test_tls_with_a_private_certificate_authority(run_emulator, connect):
    """A private certificate authority is trusted if it is set as ca_file, and only then."""
    emulator = run_emulator(tls=True)
    client = connect(emulator, insecure="", ca_file=str(emulator.ca_file))
    assert client.get_topic(TOPIC).can_subscribe
    distrusting = connect(emulator, insecure="")
    with pytest.raises(StreamUnavailableError):
        distrusting.get_topic(TOPIC)


def test_tls_with_the_systems_trusted_roots(run_emulator, connect, monkeypatch):
    """Without ca_file, the authorities in SSL_CERT_FILE are trusted."""
    emulator = run_emulator(tls=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(emulator.ca_file))
    assert connect(emulator, insecure="").get_topic(TOPIC).can_subscribe


def test_connecting_to_an_unreachable_service_raises():
    """connect() raises StreamUnavailableError after its timeout if nothing answers."""
    transport = GrpcTransport(open_channel("127.0.0.1:9", insecure="1"), "127.0.0.1:9", lambda: ())
    with pytest.raises(StreamUnavailableError, match="could not be reached"):
        transport.connect(0.2)
    transport.close()


@pytest.mark.parametrize(
    ("endpoint", "is_named"), [("127.0.0.1:9", True), ("api.pubsub.salesforce.com:7443", False)]
)
def test_plaintext_is_suggested_only_for_loopback(endpoint, is_named):
    """The error of a failed connection suggests SFPUBSUB_INSECURE only for a loopback endpoint."""
    transport = GrpcTransport(open_channel("127.0.0.1:9", insecure="1"), endpoint, lambda: ())
    with pytest.raises(StreamUnavailableError, match="TLS") as caught:
        transport.connect(0.1)
    assert ("SFPUBSUB_INSECURE=1" in str(caught.value)) is is_named
    transport.close()


# The proxy.


def test_calls_go_through_the_proxy(run_emulator, connect):
    """Calls go through the configured proxy with TLS end to end.

    The proxy sees only a host and a port.
    """
    emulator = run_emulator(tls=True, advertise=REMOTE)
    with connect_proxy() as proxy:
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file), proxy=proxy.url)
        assert client.get_topic(TOPIC).can_subscribe
        assert set(proxy.asked) == {f"CONNECT {emulator.grpc_target}"}
        client.close()


def test_the_proxys_credentials_are_sent_to_it(run_emulator, connect):
    """The user name and password in the proxy's URL are sent to the proxy."""
    emulator = run_emulator(tls=True, advertise=REMOTE)
    with connect_proxy() as proxy:
        url = proxy.url.replace("http://", "http://me:hush@")
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file), proxy=url)
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.credentials
        client.close()


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_the_proxy_variable_is_used_and_no_proxy_overrides_it(
    run_emulator, connect, monkeypatch, name
):
    """https_proxy is used if no proxy is configured; a host in no_proxy bypasses even a configured
    proxy.
    """
    emulator = run_emulator(tls=True, advertise=REMOTE)
    options = {"insecure": "", "ca_file": str(emulator.ca_file)}
    with connect_proxy() as proxy:
        monkeypatch.setenv(name, proxy.url)
        client = connect(emulator, **options)
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.asked
        client.close()
        proxy.asked.clear()
        monkeypatch.setenv("no_proxy", REMOTE)
        # gRPC shares connections between equal channels, but this one has no proxy, and only the
        # proxy knows the name.
        alone = connect(emulator, proxy=proxy.url, **options)
        with pytest.raises(StreamUnavailableError):
            alone.connect(0.5)
        assert proxy.asked == []


def test_calls_to_loopback_go_through_no_proxy(run_emulator, connect):
    """Calls to loopback bypass a configured proxy with TLS, too."""
    emulator = run_emulator(tls=True)
    with connect_proxy() as proxy:
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file), proxy=proxy.url)
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.asked == []
        client.close()


def test_http_proxy_and_grpc_proxy_are_ignored(run_emulator, connect, monkeypatch):
    """Calls over TLS ignore http_proxy and grpc_proxy, as the client's HTTPS requests do."""
    emulator = run_emulator(tls=True)
    with connect_proxy() as proxy:
        for name in ("http_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, proxy.url)
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file))
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.asked == []
        client.close()


def test_plaintext_to_loopback_goes_through_no_proxy(run_emulator, connect, monkeypatch):
    """Plaintext calls to loopback bypass every proxy, so the token does not leave the machine."""
    emulator = run_emulator()
    with connect_proxy() as proxy:
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert connect(emulator).get_topic(TOPIC).can_subscribe
        assert connect(emulator, proxy=proxy.url).get_topic(TOPIC).can_subscribe
        assert proxy.asked == []


@pytest.mark.parametrize("proxy", ["proxy:3128", "socks5://proxy:1", "http://proxy", "http://:1"])
def test_an_invalid_proxy_url_is_rejected(proxy):
    """A proxy URL that lacks http://, a host or a port raises an error.

    Otherwise, the client would keep trying to resolve it as a host name.
    """
    with pytest.raises(ConfigurationError, match="http://host:port"):
        open_channel("host:443", proxy=proxy)


# Pings.


def test_pings_detect_a_dead_connection(run_emulator, tmp_path):
    """If a connection accepts bytes but never responds, pings end the call before its timeout."""
    emulator = run_emulator(tls=True, advertise=REMOTE)
    frozen = threading.Event()
    with connect_proxy(frozen) as proxy:
        client = PubSubClient(
            Session(emulator.access_token, emulator.instance_url, emulator.tenant_id),
            endpoint=emulator.grpc_target,
            ca_file=str(emulator.ca_file),
            proxy=proxy.url,
            timings=Timings(ping_interval=0.3, ping_timeout=0.3, backoff_initial=60),
        )
        with client:
            assert client.get_topic(TOPIC).can_subscribe
            frozen.set()
            begun = time.monotonic()
            with pytest.raises(StreamUnavailableError):
                client.get_topic(TOPIC)
            assert time.monotonic() - begun < 25.0  # the call's own timeout is 30 s


def test_pings_can_be_disabled(run_emulator, connect):
    """Calls succeed with a ping_interval of 0, which disables pings; some proxies reject them."""
    client = connect(run_emulator(), timings=Timings(ping_interval=0))
    assert client.get_topic(TOPIC).can_subscribe
