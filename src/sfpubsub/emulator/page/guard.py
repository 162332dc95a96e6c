"""Who may look at the page, and who may change the org by it.

The page asks for no password: anyone who reaches the port may use it, as anyone who does may sign
in with credentials that everybody knows. What is kept out is a page of somebody else in the same
browser:

    a name that was bent to this address (DNS rebinding)     refused by the Host header
    a form of another site that posts here                   by Sec-Fetch-Site, Origin, the token
    a frame around this page                                 by its headers (shell)
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from http import HTTPStatus
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sfpubsub.emulator.http.exchange import Call, Problem
from sfpubsub.emulator.page.markup import Markup, tag

_TOKEN = "form-token"  # noqa: S105 - the name of a control; fields of events have no hyphen

_FIELDS = 1000
"""Fields of one form; a wide schema has some hundred."""


class Guard:
    """The token of this emulator's forms, and the checks. Immutable; thread-safe."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(24)

    def field(self) -> Markup:
        """The hidden field of every form."""
        return tag("input", type="hidden", name=_TOKEN, value=self._token)

    def check_host(self, call: Call) -> None:
        """Pass only if the browser means this machine: an address, or a name nobody can register.

        Raises:
            Problem: The name has a dot in it and is not the emulator's own.
        """
        host = _parts(call.named).hostname or ""
        if host != urlsplit(call.url).hostname and not _is_ours(host):
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"the page is not served under the name {host!r}: use localhost, an address, or"
                " the name in the ready line",
            )

    def form(self, call: Call) -> dict[str, str]:
        """The fields of a form that this emulator's own page sent.

        Raises:
            Problem: It comes from elsewhere, or is not a form.
        """
        site = call.headers.get("Sec-Fetch-Site", "same-origin")
        # Without the scheme: a proxy in front may add TLS.
        origin = _parts(call.headers.get("Origin", call.named)).netloc
        if site != "same-origin" or origin != _parts(call.named).netloc:
            raise Problem(HTTPStatus.FORBIDDEN, "this form was sent by another site")
        if call.headers.get_content_type() != "application/x-www-form-urlencoded":
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send a form")
        try:
            text = call.body.decode("ascii")
            fields = dict(parse_qsl(text, True, errors="strict", max_num_fields=_FIELDS))
        except ValueError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, "this is not a form") from error
        if not hmac.compare_digest(fields.pop(_TOKEN, "").encode(), self._token.encode()):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "this form is of a page from before the emulator was started: load it again",
            )
        return fields


def _parts(url: str) -> SplitResult:
    """A URL that a browser sent, in parts; blank ones if it cannot be one."""
    try:
        return urlsplit(url)
    except ValueError:  # half an IPv6 address
        return urlsplit("")


def _is_ours(host: str) -> bool:
    if "." not in host and ":" not in host:
        return bool(host)  # localhost, and the names of containers beside this one
    if host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
