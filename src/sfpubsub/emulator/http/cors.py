"""CORS: the response headers that let web pages of other origins use the emulator.

In an org, an administrator lists the allowed origins; here they are in the setting `cors_origins`.
The headers are added only for paths that a real org also serves, never for the admin endpoint,
/health or the web page.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from sfpubsub.emulator.http.exchange import Answer, Call

_SHARED = ("/services/", "/id/", "/cometd")
"""Prefixes of the paths that an org serves."""

_EXPOSED = "Location, Sforce-Limit-Info, Sforce-Locator, Sforce-NumberOfRecords"
"""Response headers that a page may read, in addition to those that CORS always allows."""

_MAX_AGE_S = 600
"""How long a browser may cache the response to OPTIONS, in seconds: the longest time that all
common browsers allow.
"""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def shared(call: Call, answer: Answer) -> Answer:
    """Return *answer*, with CORS headers added if a real org also serves the request's path. If the
    request's origin is allowed, the headers let the web page read the response.
    """
    origin = call.headers.get("Origin", "")
    if not call.path.startswith(_SHARED):
        return answer
    found = {"Vary": "Origin"}
    if origin and _is_allowed(origin, call.world.settings.cors_origins.split()):
        found["Access-Control-Allow-Origin"] = origin
        found["Access-Control-Allow-Credentials"] = "true"  # the Streaming API uses a cookie
        found["Access-Control-Expose-Headers"] = _EXPOSED
        if call.method == "OPTIONS" and "Access-Control-Request-Method" in call.headers:
            found["Access-Control-Allow-Methods"] = answer.headers.get("Allow", "")
            found["Access-Control-Allow-Headers"] = call.headers.get(
                "Access-Control-Request-Headers", ""
            )
            found["Access-Control-Max-Age"] = str(_MAX_AGE_S)
    return replace(answer, headers={**answer.headers, **found})


def _is_allowed(origin: str, allowed: list[str]) -> bool:
    if origin in allowed or "*" in allowed:
        return True
    try:
        host = urlsplit(origin).hostname
    except ValueError:  # an incomplete IPv6 address
        return False
    return "loopback" in allowed and host in _LOOPBACK
