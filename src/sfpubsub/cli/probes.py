"""Probe the connection to the service step by step, with a timeout for each step.

gRPC itself reports only that it could not connect. The probes send no secrets, except the proxy's
password to the proxy.
"""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from sfpubsub.cli.certificate import certificate_of
from sfpubsub.config import Settings, network

T = TypeVar("T")

# Timeout of a step, in seconds. A refusal arrives immediately; a dropped packet is never answered.
STEP = 5.0

# Bytes to read of a proxy's response; the first line is enough.
_ANSWER = 4096


class ProbeError(Exception):
    """Raised when a probe fails.

    Args:
        message: Description of the failure.
        cure: Suggested fix.
    """

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


class NetworkRoute(NamedTuple):
    """The route to one port of the service."""

    host: str
    port: int
    proxy: str
    """URL of the proxy; empty for a direct connection."""

    @property
    def first(self) -> tuple[str, int]:
        """Host and port to connect to: the proxy's if one is set, otherwise the service's."""
        if not self.proxy:
            return self.host, self.port
        parts = urlsplit(self.proxy)
        return parts.hostname or "", parts.port or 0


def route_to(settings: Settings) -> NetworkRoute:
    """Return the route to the endpoint that the settings define.

    Raises:
        ConfigurationError: The endpoint or the proxy is not valid.
    """
    host, port = network.split_endpoint(settings.endpoint)
    proxy = "" if is_plaintext(settings) else network.proxy_to(host, settings.proxy)
    return NetworkRoute(host, port, proxy)


def is_plaintext(settings: Settings) -> bool:
    """Return whether the endpoint is used without TLS."""
    host = settings.endpoint.rpartition(":")[0]
    return settings.insecure == "force" or (settings.insecure == "1" and network.is_loopback(host))


def resolve(host: str) -> list[str]:
    """Return the IP addresses of *host*, sorted.

    Raises:
        ProbeError: *host* cannot be resolved.
    """
    cure = "check the host name, and the DNS and VPN settings of this machine"
    try:
        # In a thread, because the system's resolver has no configurable timeout.
        found = _within(STEP, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except TimeoutError:
        raise ProbeError(f"no DNS response for {host} within {STEP:g} s", cure) from None
    except (OSError, UnicodeError) as error:
        raise ProbeError(f"{host} cannot be resolved: {_words(error)}", cure) from None
    return sorted({str(address[4][0]) for address in found})


def connect(way: NetworkRoute) -> socket.socket:
    """Connect to the service's port, through the proxy if there is one.

    Raises:
        ProbeError: The port cannot be reached.
    """
    host, port = way.first
    try:
        connection = socket.create_connection((host, port), timeout=STEP)
    except OSError as error:
        what, cure = (
            f"{host}:{port}",
            "allow the connection in the firewall, or set SFPUBSUB_PROXY to a proxy",
        )
        if way.proxy:
            what, cure = f"the proxy {what}", "check SFPUBSUB_PROXY or https_proxy"
        elif network.is_loopback(host):
            cure = "start the server that should listen there, or check the port"
        raise ProbeError(f"{what} cannot be reached: {_words(error)}", cure) from None
    if way.proxy:
        try:
            _through_proxy(connection, way)
        except ProbeError:
            connection.close()
            raise
    return connection


def handshake(way: NetworkRoute, ca_file: str) -> str:
    """Perform a TLS handshake; return the TLS version and a description of the certificate.

    Raises:
        ProbeError: The server does not speak TLS, or its certificate is rejected.
        ConfigurationError: *ca_file* cannot be read.
    """
    trusting = ssl.create_default_context(cafile=str(network.trusted_roots(ca_file)))
    trusting.set_alpn_protocols(["h2"])
    try:
        with (
            connect(way) as raw,
            trusting.wrap_socket(raw, server_hostname=way.host) as secured,
        ):
            described = _described(secured.getpeercert(binary_form=True))
            return f"{secured.version()}, certificate {described}"
    except ssl.SSLCertVerificationError as error:
        raise ProbeError(
            f"the certificate was rejected: {error.verify_message}; it is {_seen(way)}",
            "if it belongs to a proxy or a test server, set SFPUBSUB_CA_FILE to the certificate "
            "of its authority",
        ) from None
    except ssl.SSLError as error:
        raise ProbeError(
            f"the TLS handshake failed: {error.reason or 'the connection was lost'}",
            "check the port; for an emulator without TLS set SFPUBSUB_INSECURE=1",
        ) from None
    except OSError as error:
        raise ProbeError(
            f"the connection was lost during the TLS handshake: {_words(error)}",
            "check whether a firewall blocks TLS",
        ) from None


def _seen(way: NetworkRoute) -> str:
    # Without verification, because the certificate is only inspected and nothing is sent.
    looking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    looking.check_hostname = False
    looking.verify_mode = ssl.CERT_NONE
    looking.set_alpn_protocols(["h2"])
    try:
        with (
            connect(way) as raw,
            looking.wrap_socket(raw, server_hostname=way.host) as secured,
        ):
            return _described(secured.getpeercert(binary_form=True))
    except (ProbeError, OSError):
        return "unknown, because a second connection to read it failed"


def _described(der: bytes | None) -> str:
    try:
        return str(certificate_of(der or b""))
    except ValueError:
        return "not readable"


def _through_proxy(connection: socket.socket, way: NetworkRoute) -> None:
    target = f"[{way.host}]" if ":" in way.host else way.host
    lines = [f"CONNECT {target}:{way.port} HTTP/1.1", f"Host: {target}:{way.port}"]
    parts = urlsplit(way.proxy)
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = connection.recv(_ANSWER)
    except OSError as error:
        raise ProbeError(
            f"the proxy did not complete the connection: {_words(error)}",
            "check that SFPUBSUB_PROXY or https_proxy is the address of an HTTP proxy",
        ) from None
    status = answer.split(b" ", 2)[1:2]
    if not answer.startswith(b"HTTP/1.") or status != [b"200"]:
        said = status[0][:3].decode("ascii", "replace") if status else "nothing"
        raise ProbeError(
            f"the proxy responded with {said} and did not connect to {target}:{way.port}",
            "allow the connection in the proxy, and check the username and password in "
            "SFPUBSUB_PROXY",
        )


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {STEP:g} s"
    return (getattr(error, "strerror", None) or str(error)).lower()


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Run *work* in a thread and return its result. On a timeout, the thread keeps running.

    Raises:
        TimeoutError: *work* took longer than *seconds*.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001  # re-raised in the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name="sfpubsub-probe", daemon=True).start()
    try:
        return future.result(timeout=seconds)
    except FutureTimeoutError:
        raise TimeoutError from None
