"""One look at the page, or one change by it: what every handler works with."""

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
    "jumped": "The clock was moved on.",
    "running": "It runs.",
    "stopped": "It is stopped; its committed position is forgotten.",
    "created": "The record was created.",
    "saved": "The record was saved.",
    "deleted": "The record was deleted.",
}
"""What is said after a change, by the word in the URL: a URL never brings text of its own."""


@dataclass(frozen=True)
class Visit:
    """One request of a browser.

    Attributes:
        call: The request.
        guard: Makes and checks its forms.
        path: The place in the navigation.
    """

    call: Call
    guard: Guard
    path: str

    @property
    def world(self) -> World:
        """The org."""
        return self.call.world

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query string."""
        return dict(parse_qsl(self.call.query, keep_blank_values=True, errors="replace"))

    def form(self, action: str, *children: object, label: str) -> Markup:
        """A form that changes the org."""
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
        """Answer with a page."""
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
    """A path with a query."""
    return f"{path}?{urlencode(query)}" if query else path


def back_to(path: str, done: str, **query: str) -> Answer:
    """Answer a change: the browser loads a page, so that loading it again changes nothing."""
    place = link(path, **query, done=done)
    return Answer(HTTPStatus.SEE_OTHER, headers={**HEADERS, "Location": place})


def facts(**named: object) -> Markup:
    """Names and what is to be said of them."""
    rows = [
        joined([tag("dt", name.replace("_", " ")), tag("dd", value)])
        for name, value in named.items()
    ]
    return tag("dl", *rows)


Work = Callable[[Visit], Answer]


def handler(work: Work, guard: Guard, path: str) -> Callable[[Call], Answer]:
    """What answers a path of the page: checks the host first; errors are pages, too."""

    def answer(call: Call) -> Answer:
        visit = Visit(call, guard, path)
        try:
            guard.check_host(call)
            return work(visit)
        except Problem as found:
            parts: tuple[Any, ...] = (tag("p", tag("a", "To the topics", href="/")),)
            title = found.status.phrase
            return visit.page(title, *parts, problem=str(found), status=found.status)

    return answer
