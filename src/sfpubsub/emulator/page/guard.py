"""Access control of the page: which requests may read it, and which may change the org.

There is no password: anyone who can reach the port may use the page, just as anyone can sign in
with the published default credentials. The checks protect against other sites in the same browser:

    another site's name that resolves to this address     the Host header is checked, for every
    (DNS rebinding)                                       path (`http.hosts`)
    another site's form that posts to this page           Sec-Fetch-Site, Origin and the form's
                                                          token are checked
    another site's frame around this page                 response headers forbid it (`shell`)
"""

from __future__ import annotations

import hmac
import secrets
from http import HTTPStatus
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sfpubsub.emulator.http.exchange import Call, Problem
from sfpubsub.emulator.page.markup import Markup, tag

_TOKEN = "form-token"  # noqa: S105 - the name of a control; fields of events have no hyphen

_FIELDS = 1000
"""Maximum number of fields in a form; a wide schema has a few hundred."""


class Guard:
    """Creates the token for this emulator's forms, and checks requests. Immutable, thread-safe."""

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(24)

    def field(self) -> Markup:
        """Return the hidden form field with the token. Every form must include this field."""
        return tag("input", type="hidden", name=_TOKEN, value=self._token)

    def form(self, call: Call) -> dict[str, str]:
        """Return the fields of a submitted form, by name, after checking that the form is from a
        page of this emulator.

        Raises:
            Problem: Another site sent the form, its token is not valid, or the body is not a form.
        """
        site = call.headers.get("Sec-Fetch-Site", "same-origin")
        # Compared without the scheme, because a proxy in front of the emulator may add TLS.
        origin = _parts(call.headers.get("Origin", call.named)).netloc
        if site != "same-origin" or origin != _parts(call.named).netloc:
            text = "this form was sent by another site: use the form on this page"
            raise Problem(HTTPStatus.FORBIDDEN, text)
        if call.headers.get_content_type() != "application/x-www-form-urlencoded":
            raise Problem(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "set the Content-Type to application/x-www-form-urlencoded",
            )
        try:
            text = call.body.decode("ascii")
            fields = dict(parse_qsl(text, True, errors="strict", max_num_fields=_FIELDS))
        except ValueError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, "the body is not a valid form") from error
        if not hmac.compare_digest(fields.pop(_TOKEN, "").encode(), self._token.encode()):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "this form is from before the last start of the emulator: load the page again",
            )
        return fields


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL that a browser sent; all are blank if the URL is not valid."""
    try:
        return urlsplit(url)
    except ValueError:  # an incomplete IPv6 address
        return urlsplit("")
