"""The routes of the web page: which function handles each path and method."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from importlib import resources

from sfpubsub.emulator.http.exchange import Answer, Call, Handler, Route, route
from sfpubsub.emulator.page import clock, faults, records, streams, subscriptions, topics
from sfpubsub.emulator.page.guard import Guard
from sfpubsub.emulator.page.shell import HEADERS
from sfpubsub.emulator.page.visit import Work, handler

_ASSETS = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Pages:
    """The pages of one emulator.

    Attributes:
        routes: The routes of all pages and static files, for the HTTP server.
    """

    def __init__(self) -> None:
        guard = Guard()

        def at(place: str, work: Work) -> Handler:
            return handler(work, guard, place)

        def live(module_place: str, work: Work) -> Route:
            return route(f"{module_place}/live", GET=at(module_place, work))

        self.routes: tuple[Route, ...] = (
            route("/", GET=at("/", topics.overview)),
            route("/ui/live", GET=at("/", topics.overview_live)),
            route(topics.PLACE, GET=at("/", topics.topic), POST=at("/", topics.publish)),
            live(topics.PLACE, topics.topic_live),
            route(
                subscriptions.PLACE,
                GET=at(subscriptions.PLACE, subscriptions.subscriptions),
                POST=at(subscriptions.PLACE, subscriptions.change),
            ),
            live(subscriptions.PLACE, subscriptions.live),
            route(
                records.PLACE,
                GET=at(records.PLACE, records.records),
                POST=at(records.PLACE, records.create),
            ),
            route(
                records.ONE,
                GET=at(records.PLACE, records.record),
                POST=at(records.PLACE, records.change),
            ),
            route(streams.PLACE, GET=at(streams.PLACE, streams.streams)),
            live(streams.PLACE, streams.live),
            route(
                faults.PLACE, GET=at(faults.PLACE, faults.faults), POST=at(faults.PLACE, faults.add)
            ),
            live(faults.PLACE, faults.live),
            route(clock.PLACE, GET=at(clock.PLACE, clock.clock), POST=at(clock.PLACE, clock.jump)),
            live(clock.PLACE, clock.live_clock),
            *(route(f"/ui/{name}", GET=_asset) for name in _ASSETS),
        )


def _asset(call: Call) -> Answer:
    """GET /ui/<name>: return a static file. Only the names in `_ASSETS` have routes."""
    name = call.path.rpartition("/")[2]
    return Answer(HTTPStatus.OK, _ASSETS[name], _text(name), HEADERS)


@cache
def _text(name: str) -> str:
    """Return the text of a static file. Each file is read only once."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
