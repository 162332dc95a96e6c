"""The clock page, which shows the org's time and moves the clock forward."""

from __future__ import annotations

import math

from sfpubsub.emulator.http.exchange import Answer
from sfpubsub.emulator.org.world import World
from sfpubsub.emulator.page.live import Live, PageUpdate, shown_time
from sfpubsub.emulator.page.markup import Markup, button, labelled, live, tag
from sfpubsub.emulator.page.topics import stream
from sfpubsub.emulator.page.visit import Visit, back_to, facts

PLACE = "/ui/clock"

_JUMPS = (
    (60, "1 minute"),
    (3600, "1 hour"),
    (24 * 3600, "1 day"),
    (73 * 3600, "73 hours: all events expire"),
)
"""Length of a jump in seconds, and the label of its button."""

_LONGEST_S = 366 * 24 * 3600
"""Longest jump from this page, in seconds: a year. The admin endpoint accepts longer ones."""


def clock(visit: Visit) -> Answer:
    """GET /ui/clock: show the org's time, and the forms that move it forward."""
    return _page(visit, "")


def jump(visit: Visit) -> Answer:
    """POST /ui/clock: move the org's clock forward."""
    text = visit.guard.form(visit.call).get("seconds", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_S:
        return _page(visit, f"{text[:80]!r} is not a number of seconds from 0 to {_LONGEST_S}")
    visit.world.clock.jump(seconds)
    return back_to(PLACE, "jumped")


def live_clock(visit: Visit) -> Answer:
    """GET /ui/clock/live: send the times on the clock page whenever they change."""
    world = visit.world
    return stream(Live(lambda _mark: PageUpdate(_times(world)), "", world.bus.bells, ()))


def _page(visit: Visit, problem: str) -> Answer:
    times = _times(visit.world)
    seconds = tag("input", type="text", id="seconds", name="seconds", inputmode="decimal")
    return visit.page(
        "Clock",
        facts(
            time_in_the_org=live("now", times["now"]),
            ahead_of_this_machine=live("ahead", times["ahead"]),
        ),
        tag(
            "p",
            "A jump triggers everything that would have become due in that time: keepalives, "
            "deadlines, the end of retention. It cannot be undone, but a restarted emulator is "
            "back at real time.",
        ),
        visit.form(
            PLACE,
            tag(
                "p",
                *(button(f"+ {text}", name="seconds", value=s) for s, text in _JUMPS),
                class_="row",
            ),
            label="Jumps",
        ),
        visit.form(
            PLACE,
            labelled("Seconds", seconds, "seconds"),
            tag("p", button("Jump")),
            label="Custom jump",
        ),
        problem=problem,
        live=f"{PLACE}/live",
    )


def _times(world: World) -> dict[str, Markup]:
    now = world.clock.now()
    ahead = round(now - world.clock.outside())
    hours, rest = divmod(abs(ahead), 3600)
    minutes, seconds = divmod(rest, 60)
    sign = "-" if ahead < 0 else ""
    return {
        "now": tag("time", f"{shown_time(now)} UTC"),
        "ahead": tag("span", f"{sign}{hours} h {minutes} min {seconds} s"),
    }
