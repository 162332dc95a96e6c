"""The frame of every page (head, navigation, notice and footer), and the security headers."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from sfpubsub.emulator.http.exchange import Answer
from sfpubsub.emulator.page.markup import Markup, joined, tag

PLACES = (
    ("/", "Topics"),
    ("/ui/records", "Records"),
    ("/ui/subscriptions", "Subscriptions"),
    ("/ui/streams", "Streams"),
    ("/ui/faults", "Faults"),
    ("/ui/clock", "Clock"),
)
"""The entries of the navigation: path and name."""

HEADERS = {
    # Nothing is loaded from elsewhere, no script or style is inline, and no other page may
    # put this one in a frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of every response to a browser."""


def document(
    title: str,
    parts: Iterable[Markup],
    *,
    path: str,
    tenant: str,
    notice: str = "",
    problem: str = "",
    live: str = "",
    status: HTTPStatus = HTTPStatus.OK,
) -> Answer:
    """Return a response with a complete HTML page.

    Args:
        title: The heading.
        parts: The content below the heading.
        path: Path of the navigation entry to mark as current.
        tenant: The org's name.
        notice: Message about a successful change; blank if nothing was changed.
        problem: Message about a failed change; blank if no change failed.
        live: URL of the page's updates; blank if the page is not updated while it is open.
        status: The HTTP status.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} - sfpubsub emulator"),
        tag("link", rel="icon", href="/ui/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/ui/style.css"),
        tag("script", src="/ui/live.js", defer=True) if live else None,
    )
    body = tag(
        "body",
        tag("a", "Skip to content", href="#content", class_="skip"),
        tag(
            "header",
            tag("p", tag("strong", "sfpubsub emulator"), " ", tag("span", tenant)),
            tag("nav", tag("ul", *(_place(item, path) for item in PLACES)), aria_label="Pages"),
        ),
        tag(
            "main",
            tag("h1", title),
            tag("p", notice, class_="notice", role="status") if notice else None,
            tag("p", problem, class_="problem", role="alert") if problem else None,
            *parts,
            id="content",
        ),
        tag(
            "footer",
            tag("p", "Live updates are off.", id="live-state", role="status") if live else None,
            tag("p", "As JSON: ", tag("a", "/health", href="/health")),
        ),
        data_live=live or None,
    )
    text = joined([Markup("<!doctype html>"), tag("html", head, body, lang="en")])
    return Answer(status, "text/html; charset=utf-8", text, HEADERS)


def _place(item: tuple[str, str], path: str) -> Markup:
    place, name = item
    current = "page" if place == path else None
    return tag("li", tag("a", name, href=place, aria_current=current))
