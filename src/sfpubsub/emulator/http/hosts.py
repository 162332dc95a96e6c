"""Protection against DNS rebinding: a web site whose name resolves to this address could otherwise
use every path of the emulator from a browser, with the published default credentials.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from sfpubsub.emulator.http.exchange import Problem


def check(named: str | None, url: str, names: Sequence[str]) -> None:
    """Check that a Host header is an IP address, a local name (without a dot, or ending in
    .localhost), or a name of the emulator.

    Args:
        named: The Host header; None if the request has none, which no browser sends.
        url: The URL that the emulator announces.
        names: Other names of the emulator.

    Raises:
        Problem: The Host header is any other name.
    """
    if named is None:
        return
    try:
        host = urlsplit(f"//{named}").hostname or ""
    except ValueError:  # an incomplete IPv6 address
        host = ""
    known = {urlsplit(url).hostname, *(name.lower() for name in names)}
    if host not in known and not _is_local(host):
        raise Problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"the emulator is not served under the name {host!r}: use localhost, an IP address, or"
            " a host name that was given to it (--advertise, --tls-name)",
        )


def _is_local(host: str) -> bool:
    if "." not in host and ":" not in host:
        return bool(host)  # localhost, and the names of containers in the same network
    if host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
