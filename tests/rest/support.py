"""What the tests of reading an org share: readers, sessions that end, and a way that breaks."""

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

# Everything as it is, but no waiting for a server on loopback.
QUICK = RestTimings(backoff_initial=0.01, backoff_max=0.05, poll_initial=0.01, poll_max=0.05)


@dataclass
class Sessions:
    """Supplies the emulator's sessions, and counts how often a new one was asked for."""

    emulator: EmulatorServer
    instance_url: str = ""
    renewals: int = 0

    def get_session(self, expired: Session | None) -> Session:
        if expired is not None:
            self.renewals += 1
            self.emulator.new_token()
        url = self.instance_url or self.emulator.instance_url
        return Session(self.emulator.access_token, url, self.emulator.tenant_id)

    def end(self) -> None:
        """Let the session expire, as of now."""
        self.emulator._sessions.expire(self.emulator.access_token)


def reader_of(emulator: EmulatorServer, **arguments: Any) -> OrgReader:
    arguments.setdefault("timings", QUICK)
    return OrgReader(Sessions(emulator), **arguments)


@dataclass
class Way:
    """A way to a server that can break: the connections that pass it, and what to cut."""

    url: str = ""
    cuts: list[tuple[bytes, int]] = field(default_factory=list)
    """Of requests with this in their first line, so many bytes of the answer pass; each once."""
    passed: list[str] = field(default_factory=list)
    """First line of each request."""


@contextmanager
def way_to(url: str) -> Iterator[Way]:
    """Stand between a client and the server at *url*, one request a connection."""
    way, port = Way(), urlsplit(url).port

    def talk(client: socket.socket, _over: Any) -> None:
        head = head_of(client)
        if not head:
            return
        line = head.partition(b"\r\n")[0]
        way.passed.append(line.decode())
        left = 1 << 40
        for cut in way.cuts:
            if cut[0] in line:
                way.cuts.remove(cut)
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
        way.url = own
        yield way
