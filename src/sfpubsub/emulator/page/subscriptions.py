"""The page of managed subscriptions: their positions and lag, and buttons for RUN and STOP."""

from __future__ import annotations

from http import HTTPStatus

from sfpubsub.emulator.http.exchange import Answer, Problem
from sfpubsub.emulator.org.lag import COUNTED, Lag, series
from sfpubsub.emulator.org.managed import ManagedSubscription
from sfpubsub.emulator.org.world import World
from sfpubsub.emulator.page.live import Live, PageUpdate
from sfpubsub.emulator.page.markup import Markup, button, joined, tag
from sfpubsub.emulator.page.plot import plot
from sfpubsub.emulator.page.topics import PLACE as TOPIC
from sfpubsub.emulator.page.topics import stream
from sfpubsub.emulator.page.visit import Visit, back_to, facts, link

PLACE = "/ui/subscriptions"

_WINDOW_S = 600.0
_POINTS = 120
"""Time span of the plot, in seconds of the emulator's clock (`_WINDOW_S`), and its number of points
(`_POINTS`): one for every 5 s.
"""


def subscriptions(visit: Visit) -> Answer:
    """GET /ui/subscriptions: show all managed subscriptions."""
    world = visit.world
    records = world.managed.all()
    parts = [_section(visit, record) for record in records]
    return visit.page(
        "Managed subscriptions",
        *(parts or [tag("p", "None. Create one with a seed or with the Tooling API.")]),
        live=f"{PLACE}/live",
    )


def live(visit: Visit) -> Answer:
    """GET /ui/subscriptions/live: send each subscription's position, counts and plot whenever they
    change.
    """
    world = visit.world

    def look(_mark: str) -> PageUpdate:
        return PageUpdate({_id(record): _state(world, record) for record in world.managed.all()})

    keys = {record.topic for record in world.managed.all()}
    return stream(Live(look, "", world.bus.bells, sorted(keys)))


def change(visit: Visit) -> Answer:
    """POST /ui/subscriptions: set a managed subscription to RUN or STOP."""
    entered = visit.guard.form(visit.call)
    state = entered.get("state")
    if state not in ("RUN", "STOP"):
        raise Problem(HTTPStatus.BAD_REQUEST, "the state must be RUN or STOP")
    try:
        visit.world.managed.set_state(entered.get("name", ""), "RUN" if state == "RUN" else "STOP")
    except KeyError as error:
        text = f"there is no managed subscription {entered.get('name', '')!r}"
        raise Problem(HTTPStatus.NOT_FOUND, text) from error
    return back_to(PLACE, "running" if state == "RUN" else "stopped")


def _section(visit: Visit, record: ManagedSubscription) -> Markup:
    form = visit.form(
        PLACE,
        tag("input", type="hidden", name="name", value=record.developer_name),
        tag(
            "p",
            button("Run", name="state", value="RUN"),
            button("Stop", name="state", value="STOP"),
            class_="row",
        ),
        tag("p", "Stop deletes the committed position.", class_="hint"),
        label=f"State of {record.developer_name}",
    )
    return tag(
        "section",
        tag("h2", record.developer_name),
        tag(
            "p",
            "reads ",
            tag("a", record.topic, href=link(TOPIC, name=record.topic)),
            f"; starts at {record.default_replay}, or at {record.error_recovery_replay} if the "
            "committed position is no longer valid",
        ),
        tag("div", _state(visit.world, record), id=_id(record)),
        form,
        class_="card",
    )


def _state(world: World, record: ManagedSubscription) -> Markup:
    """Return the part of a subscription's section that is updated while the page is open: position,
    counts and plot.
    """
    bus, key = world.bus, record.subscription_id
    lags = _lags(world, record)
    count = bus.counters.of_managed(key)
    behind = f"{lags[-1].events:,}" + (" or more" if lags[-1].events >= COUNTED else "")
    committed: object = "nothing yet"
    if record.committed is not None:
        committed = tag("code", bus.ids.mint(record.committed).hex())
    elif record.default_replay == "LATEST":
        behind = "unknown: nothing is committed, and new streams start at LATEST"
    read = ", with an open stream" if world.managed.is_active(key) else ""
    shown = facts(
        state=f"{record.state}{read}",
        committed=committed,
        events_behind=behind,
        delivered=f"{count.delivered:,}",
        commits=f"{count.commits_accepted:,} accepted, {count.commits_refused:,} refused",
    )
    title = tag("p", "Events behind", class_="hint")
    return joined([shown, title, plot(record.developer_name, lags)])


def _lags(world: World, record: ManagedSubscription) -> list[Lag]:
    now = world.clock.now()
    times = [now - _WINDOW_S + _WINDOW_S * number / (_POINTS - 1) for number in range(_POINTS)]
    # STOP deletes the committed position, so earlier commits must not be used.
    commits = [] if record.committed is None else world.commits.of(record.subscription_id)
    before = [position for at, position in commits if at < times[0]]
    start = before[-1] if before else 0
    published = world.bus.times_after(world.bus.topic(record.topic), start, COUNTED)
    return series(published, commits, times)


def _id(record: ManagedSubscription) -> str:
    return f"managed-{record.subscription_id}"
