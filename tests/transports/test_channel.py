"""Channels: TLS by default, plaintext only where it cannot be overheard, proxies, pings."""

from __future__ import annotations

import threading
import time

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Timings
from sfpubsub.errors import ConfigurationError, StreamUnavailableError
from sfpubsub.transports.channel import GrpcTransport, open_channel

from ..auth.servers import connect_proxy

TOPIC = "/event/Order_Event__e"


@pytest.fixture(autouse=True)
def _no_proxy_of_the_machine(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("endpoint", ["localhost:1", "127.0.0.1:1", "127.8.9.1:1", "[::1]:1"])
def test_plaintext_goes_to_loopback(endpoint):
    """SFPUBSUB_INSECURE=1 is enough for an emulator on this machine."""
    open_channel(endpoint, insecure="1").close()


@pytest.mark.parametrize("endpoint", ["10.0.0.1:1", "example.org:1", "localhost.example.org:1"])
def test_plaintext_to_elsewhere_needs_insisting(endpoint):
    """A token is not shown to a network by mistake."""
    with pytest.raises(ConfigurationError, match="plaintext to"):
        open_channel(endpoint, insecure="1")
    open_channel(endpoint, insecure="force").close()


@pytest.mark.parametrize("endpoint", ["host", "host:", ":443", "host:https", ""])
def test_an_endpoint_is_host_and_port(endpoint):
    """A wrong endpoint is an error now, and not a name that is looked up for ever."""
    with pytest.raises(ConfigurationError, match="host:port"):
        open_channel(endpoint)


@pytest.mark.parametrize("port", [443, 7443])
def test_the_service_listens_on_two_ports(port):
    """Both are taken as they are."""
    open_channel(f"api.pubsub.salesforce.com:{port}").close()


def test_other_values_of_insecure_are_refused():
    """'yes' does not silently mean TLS."""
    with pytest.raises(ConfigurationError, match="1 or force"):
        open_channel("localhost:1", insecure="yes")


def test_an_unreadable_ca_file_is_named(tmp_path):
    """The error says which file."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem"):
        open_channel("localhost:1", ca_file=str(tmp_path / "nowhere.pem"))


def test_tls_with_an_authority_of_ones_own(run_emulator, connect):
    """The emulator's authority is trusted when it is named, and only then."""
    emulator = run_emulator(tls=True)
    client = connect(emulator, insecure="", ca_file=str(emulator.ca_file))
    assert client.get_topic(TOPIC).can_subscribe
    distrusting = connect(emulator, insecure="")
    with pytest.raises(StreamUnavailableError):
        distrusting.get_topic(TOPIC)


def test_tls_with_the_roots_of_the_system(run_emulator, connect, monkeypatch):
    """What the machine trusts is trusted without a setting."""
    emulator = run_emulator(tls=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(emulator.ca_file))
    assert connect(emulator, insecure="").get_topic(TOPIC).can_subscribe


def test_an_unreachable_service_is_said_in_bounded_time():
    """connect gives up and says what to check."""
    transport = GrpcTransport(open_channel("127.0.0.1:9", insecure="1"), "127.0.0.1:9", lambda: ())
    with pytest.raises(StreamUnavailableError, match="could not be reached"):
        transport.connect(0.2)
    transport.close()


@pytest.mark.parametrize(
    ("endpoint", "is_named"), [("127.0.0.1:9", True), ("api.pubsub.salesforce.com:7443", False)]
)
def test_plaintext_is_suggested_for_loopback_alone(endpoint, is_named):
    """Whoever runs the emulator hears of SFPUBSUB_INSECURE; nobody does of the real service."""
    transport = GrpcTransport(open_channel("127.0.0.1:9", insecure="1"), endpoint, lambda: ())
    with pytest.raises(StreamUnavailableError, match="TLS") as caught:
        transport.connect(0.1)
    assert ("SFPUBSUB_INSECURE=1" in str(caught.value)) is is_named
    transport.close()


# The proxy.


def test_calls_go_through_the_proxy(run_emulator, connect):
    """TLS end to end: the proxy learns a name and a port."""
    emulator = run_emulator(tls=True)
    with connect_proxy() as proxy:
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file), proxy=proxy.url)
        assert client.get_topic(TOPIC).can_subscribe
        assert set(proxy.asked) == {f"CONNECT {emulator.grpc_target}"}
        client.close()


def test_a_proxy_with_a_password(run_emulator, connect):
    """It is sent to the proxy."""
    emulator = run_emulator(tls=True)
    with connect_proxy() as proxy:
        url = proxy.url.replace("http://", "http://me:hush@")
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file), proxy=url)
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.credentials
        client.close()


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_the_proxy_of_the_environment(run_emulator, connect, monkeypatch, name):
    """https_proxy holds without a setting, and no_proxy excepts from both."""
    emulator = run_emulator(tls=True)
    options = {"insecure": "", "ca_file": str(emulator.ca_file)}
    with connect_proxy() as proxy:
        monkeypatch.setenv(name, proxy.url)
        client = connect(emulator, **options)
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.asked
        client.close()
        proxy.asked.clear()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        # A target of its own: gRPC shares connections between channels that look alike.
        local = connect(emulator, proxy=proxy.url, **options)
        assert local.get_topic(TOPIC).can_subscribe
        assert proxy.asked == []


def test_a_proxy_for_other_things_is_not_taken(run_emulator, connect, monkeypatch):
    """What HTTP does not go through, gRPC does not either."""
    emulator = run_emulator(tls=True)
    with connect_proxy() as proxy:
        for name in ("http_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, proxy.url)
        client = connect(emulator, insecure="", ca_file=str(emulator.ca_file))
        assert client.get_topic(TOPIC).can_subscribe
        assert proxy.asked == []
        client.close()


def test_plaintext_to_loopback_goes_through_no_proxy(run_emulator, connect, monkeypatch):
    """It would leave the machine, token and all."""
    emulator = run_emulator()
    with connect_proxy() as proxy:
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert connect(emulator).get_topic(TOPIC).can_subscribe
        assert connect(emulator, proxy=proxy.url).get_topic(TOPIC).can_subscribe
        assert proxy.asked == []


@pytest.mark.parametrize("proxy", ["proxy:3128", "socks5://proxy:1", "http://proxy", "http://:1"])
def test_a_proxy_that_is_none(proxy):
    """An error now, and not a name that is looked up for ever."""
    with pytest.raises(ConfigurationError, match="http://host:port"):
        open_channel("host:443", proxy=proxy)


# Pings.


def test_a_connection_that_has_died_unseen_is_noticed_by_pings(run_emulator, tmp_path):
    """The peer acknowledges bytes and says nothing: only a ping tells that it is gone."""
    emulator = run_emulator(tls=True)
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
            assert time.monotonic() - begun < 25.0  # by itself the call waits for 30


def test_pings_can_be_switched_off(run_emulator, connect):
    """For what stands in between and does not like them."""
    client = connect(run_emulator(), timings=Timings(ping_interval=0))
    assert client.get_topic(TOPIC).can_subscribe
