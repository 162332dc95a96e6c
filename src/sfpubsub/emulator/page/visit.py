"""A browser's request, as the pages' handlers receive it, and functions that build the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sfpubsub.emulator.http.exchange import Answer, Call, Problem
from sfpubsub.emulator.org.world import World
from sfpubsub.emulator.page.guard import Guard
from sfpubsub.emulator.page.markup import Markup, joined, tag
from sfpubsub.emulator.page.shell import HEADERS, document

_DONE = {
    "published": "Published.",
    "fault": "The fault is on.",
    "off": "The fault is off.",
    "jumped": "The clock was moved forward.",
    "running": "The subscription was set to RUN.",
    "stopped": "The subscription was set to STOP; its committed position was deleted.",
    "created": "The record was created.",
    "saved": "The record was saved.",
    "deleted": "The record was deleted.",
}
"""The notice after a change, by the value of `done` in the URL. The URL contains only this key, so
that a link cannot put any other text on the page.
"""


@dataclass(frozen=True)
class Visit:
    """A request from a browser.

    Attributes:
        call: The request.
        guard: Creates and checks the hidden field of forms.
        path: Path of the navigation entry to mark as current.
    """

    call: Call
    guard: Guard
    path: str

    @property
    def world(self) -> World:
        """The emulator's state."""
        return self.call.world

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query parameters, by name."""
        return dict(parse_qsl(self.call.query, keep_blank_values=True, errors="replace"))

    def form(self, action: str, *children: object, label: str) -> Markup:
        """Return a form that is sent by POST, with the hidden field that `Guard.form` checks.

        Args:
            action: Path to which the form is sent.
            *children: The content of the form.
            label: Name of the form for assistive technology.
        """
        return tag(
            "form",
            self.guard.field(),
            *children,
            method="post",
            action=action,
            aria_label=label,
            autocomplete="off",
        )

    def page(
        self,
        title: str,
        *parts: Markup,
        problem: str = "",
        live: str = "",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Answer:
        """Return a response with a page.

        Args:
            title: The heading.
            *parts: The content below the heading.
            problem: Message about a failed change; blank if no change failed.
            live: URL of the page's updates; blank if the page is not updated while it is open.
            status: The HTTP status. With a *problem*, 200 becomes 400.
        """
        return document(
            title,
            parts,
            path=self.path,
            tenant=self.world.bus.tenant,
            notice=_DONE.get(self.query.get("done", ""), ""),
            problem=problem,
            live=live,
            status=HTTPStatus.BAD_REQUEST if problem and status is HTTPStatus.OK else status,
        )


def link(path: str, **query: str) -> str:
    """Return a path with a query string."""
    return f"{path}?{urlencode(query)}" if query else path


def back_to(path: str, done: str, **query: str) -> Answer:
    """Return a redirect to a page, so that reloading the page does not repeat a change.

    Args:
        path: Path of the page.
        done: Key in `_DONE` of the notice to show.
        **query: Other query parameters.
    """
    place = link(path, **query, done=done)
    return Answer(HTTPStatus.SEE_OTHER, headers={**HEADERS, "Location": place})


def facts(**named: object) -> Markup:
    """Return an HTML list of names and values. Underscores in the names become spaces."""
    rows = [
        joined([tag("dt", name.replace("_", " ")), tag("dd", value)])
        for name, value in named.items()
    ]
    return tag("dl", *rows)


Work = Callable[[Visit], Answer]


def handler(work: Work, guard: Guard, path: str) -> Callable[[Call], Answer]:
    """Return a handler that calls *work*, and shows a `Problem` as a page.

    Args:
        work: Answers the request.
        guard: Checks the forms.
        path: Path of the navigation entry to mark as current.
    """

    def answer(call: Call) -> Answer:
        visit = Visit(call, guard, path)
        try:
            return work(visit)
        except Problem as found:
            parts: tuple[Any, ...] = (tag("p", tag("a", "All topics", href="/")),)
            title = found.status.phrase
            return visit.page(title, *parts, problem=str(found), status=found.status)

    return answer
