"""Requests from web pages of other origins: which are let in, and what OPTIONS is told.

In an org an administrator lists the origins. Here the setting `cors_origins` does; only the areas
that the org itself serves are shared, never the admin endpoint and the health page.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from sfpubsub.emulator.http.exchange import Answer, Call

_SHARED = ("/services/", "/id/", "/cometd")
"""Where the paths of the org begin."""

_EXPOSED = "Location, Sforce-Limit-Info, Sforce-Locator, Sforce-NumberOfRecords"
"""Headers of answers that a page may read, beside those that any page may."""

_MAX_AGE_S = 600
"""How long a browser may remember what OPTIONS said: as long as it remembers at most anyway."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def shared(call: Call, answer: Answer) -> Answer:
    """An answer, with what a browser needs to show it to the page that asked."""
    origin = call.headers.get("Origin", "")
    if not call.path.startswith(_SHARED):
        return answer
    found = {"Vary": "Origin"}
    if origin and _is_allowed(origin, call.world.settings.cors_origins.split()):
        found["Access-Control-Allow-Origin"] = origin
        found["Access-Control-Allow-Credentials"] = "true"  # the Streaming API has a cookie
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
    except ValueError:  # half an IPv6 address
        return False
    return "loopback" in allowed and host in _LOOPBACK
