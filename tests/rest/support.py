"""Helpers for the tests of REST reading: readers, expiring sessions, and a failing proxy."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sfpubsub.auth.session import Session
from sfpubsub.config import RestTimings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.rest import OrgReader
from tests.auth.servers import head_of, raw_host

# The default timings, with short delays for a server on loopback.
QUICK = RestTimings(backoff_initial=0.01, backoff_max=0.05, poll_initial=0.01, poll_max=0.05)


@dataclass
class Sessions:
    """Supplies the emulator's sessions, and counts the renewals."""

    emulator: EmulatorServer
    instance_url: str = ""
    renewals: int = 0

    def get_session(self, expired: Session | None) -> Session:
        if expired is not None:
            self.renewals += 1
            self.emulator.new_token()
        url = self.instance_url or self.emulator.instance_url
        return Session(self.emulator.access_token, url, self.emulator.tenant_id)

    def expire(self) -> None:
        """Expire the current session immediately."""
        self.emulator._sessions.expire(self.emulator.access_token)


def reader_of(emulator: EmulatorServer, **arguments: Any) -> OrgReader:
    """Return an `OrgReader` for *emulator*, with short delays and sessions that can be expired."""
    arguments.setdefault("timings", QUICK)
    return OrgReader(Sessions(emulator), **arguments)


@dataclass
class TruncatingProxy:
    """A proxy that can truncate the responses of a server."""

    url: str = ""
    cuts: list[tuple[bytes, int]] = field(default_factory=list)
    """Pairs of a text and a number: the response to the next request whose first line contains the
    text is cut after that number of bytes. Each pair is used once.
    """
    passed: list[str] = field(default_factory=list)
    """The first lines of all requests, in order."""


@contextmanager
def proxy_to(url: str) -> Iterator[TruncatingProxy]:
    """Run a proxy to the server at *url* within the block; each connection serves one request."""
    proxy, port = TruncatingProxy(), urlsplit(url).port

    def talk(client: socket.socket, _over: Any) -> None:
        head = head_of(client)
        if not head:
            return
        line = head.partition(b"\r\n")[0]
        proxy.passed.append(line.decode())
        left = 1 << 40
        for cut in proxy.cuts:
            if cut[0] in line:
                proxy.cuts.remove(cut)
                left = cut[1]
                break
        with socket.create_connection(("127.0.0.1", port), 10.0) as server:
            server.sendall(head.replace(b"keep-alive", b"close"))
            while left > 0:
                part = server.recv(min(left, 65536))
                if not part:
                    return
                client.sendall(part)
                left -= len(part)

    with raw_host(talk) as own:
        proxy.url = own
        yield proxy
