"""The page that lists the open streams, with the number of requested events still to be sent."""

from __future__ import annotations

from sfpubsub.emulator.http.exchange import Answer
from sfpubsub.emulator.org.world import World
from sfpubsub.emulator.page.live import Live, PageUpdate, shown_time
from sfpubsub.emulator.page.markup import Markup, table, table_rows, tag
from sfpubsub.emulator.page.topics import stream
from sfpubsub.emulator.page.visit import Visit

PLACE = "/ui/streams"

_HEADS = ["Topic or subscription", "RPC", "Credit", "Position", "Responses", "Open since"]
_ROWS = "streams"


def streams(visit: Visit) -> Answer:
    """GET /ui/streams: list the open streams of the Pub/Sub API."""
    return visit.page(
        "Open streams",
        tag("p", "Credit is the number of requested events to send. At 0, no events are sent."),
        table("Open streams of the Pub/Sub API", _HEADS, _rows(visit.world), _ROWS),
        live=f"{PLACE}/live",
    )


def live(visit: Visit) -> Answer:
    """GET /ui/streams/live: send the list of open streams whenever it changes."""
    world = visit.world
    keys = [topic.name for topic in world.bus.topics()]
    look = Live(
        lambda _mark: PageUpdate({_ROWS: table_rows(_HEADS, _rows(world))}),
        "",
        world.bus.bells,
        keys,
    )
    return stream(look)


def _rows(world: World) -> list[list[str | Markup]]:
    return [
        [
            item.target,
            item.rpc,
            tag("b", str(item.pending)),
            tag("code", world.bus.ids.mint(item.position).hex() if item.position else "the start"),
            f"{item.responses:,}",
            shown_time(item.since),
        ]
        for item in world.streams.all()
    ]
