"""Channels: TLS by default, plaintext only where it cannot be overheard."""

from __future__ import annotations

import pytest

from sfpubsub.errors import ConfigurationError, StreamUnavailableError
from sfpubsub.transports.channel import GrpcTransport, open_channel


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
    assert client.get_topic("/event/Order_Event__e").can_subscribe
    distrusting = connect(emulator, insecure="")
    with pytest.raises(StreamUnavailableError):
        distrusting.get_topic("/event/Order_Event__e")


def test_an_unreachable_service_is_said_in_bounded_time():
    """connect gives up and says what to check."""
    transport = GrpcTransport(open_channel("127.0.0.1:9", insecure="1"), "127.0.0.1:9", lambda: ())
    with pytest.raises(StreamUnavailableError, match="could not be reached"):
        transport.connect(0.2)
    transport.close()
