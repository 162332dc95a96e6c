"""The addresses on which an emulator listens, and those announced to clients: hosts, ports, URLs.

The two differ, for example, for an emulator in a container: the emulator listens on all interfaces,
and clients reach it by the name of the container.
"""

from __future__ import annotations

import re

from sfpubsub.emulator.org.problems import EmulatorProblem

_HOST_AND_PORT = re.compile(
    r"(?:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)|\[(?P<address>[0-9a-fA-F:.]+)\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


class Addresses:
    """The addresses of one emulator. Immutable, thread-safe.

    Args:
        host: Address to listen on.
        advertise: The host announced to clients, optionally with the port for HTTP. None announces
            `host`, or loopback if `host` means all interfaces (0.0.0.0 or ::).

    Attributes:
        host: The address to listen on, as given.
        names: The hosts that a TLS certificate must cover: `host`, and the host in `advertise`.

    Raises:
        EmulatorProblem: `advertise` is not a host, with or without a port.
    """

    def __init__(self, host: str, advertise: str | None) -> None:
        self.host = host
        self.names = [host]
        self._shown = _reachable(host)
        self._http_port = 0  # the port in `advertise`; 0 if it has none
        if advertise is None:
            return
        found = _HOST_AND_PORT.fullmatch(advertise)
        if found is None:
            raise EmulatorProblem(
                f"{advertise!r} is not a host to announce to clients: write NAME, NAME:PORT or"
                " [ADDRESS]:PORT"
            )
        name = found["name"] or found["address"]
        self.names.append(name)
        self._shown = _bracketed(name)
        self._http_port = int(found["port"] or 0)

    def listening(self, port: int) -> str:
        """Return the address to listen on, as HOST:PORT."""
        return f"{_bracketed(self.host)}:{port}"

    def grpc_target(self, port: int) -> str:
        """Return the address at which clients reach the gRPC server on *port*, as HOST:PORT."""
        return f"{self._shown}:{port}"

    def http_url(self, port: int, tls: bool) -> str:
        """Return the URL at which clients reach the HTTP server on *port*. If `advertise` contains
        a port, the URL has that port instead; the scheme's own port is left out.
        """
        scheme, own = ("https", 443) if tls else ("http", 80)
        shown = self._http_port or port
        return f"{scheme}://{self._shown}" + ("" if shown == own else f":{shown}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _reachable(host: str) -> str:
    """Return the host at which clients on this machine reach a server that listens on *host*."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, _bracketed(host))  # noqa: S104 - compared
