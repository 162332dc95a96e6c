"""The topic pages: a list of all topics, and a page for each topic with its newest events and a
form for publishing events.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.http.exchange import Answer, Problem
from sfpubsub.emulator.http.summary import as_json
from sfpubsub.emulator.org.bus import Topic
from sfpubsub.emulator.org.cometd.channels import with_names
from sfpubsub.emulator.org.schemas import SchemaProblem
from sfpubsub.emulator.org.store import Event
from sfpubsub.emulator.org.world import World
from sfpubsub.emulator.page.fields import (
    Field,
    Unreadable,
    examples,
    fields_of,
    values_of,
)
from sfpubsub.emulator.page.live import Live, PageUpdate, shown_time
from sfpubsub.emulator.page.markup import Markup, button, labelled, live, table, tag
from sfpubsub.emulator.page.shell import HEADERS
from sfpubsub.emulator.page.visit import Visit, back_to, facts, link

_SHOWN = 20
"""Maximum number of events that the page of a topic shows when it is loaded."""

_SUMMARY = 60
"""Maximum number of characters in the summary of an event."""

PLACE = "/ui/topic"
_LIST = "events"
_AS_JSON = "form-json"
_NAME = "form-topic"
"""Names of controls that are not fields (`_AS_JSON`, `_NAME`); names of fields have no hyphen."""


def overview(visit: Visit) -> Answer:
    """GET /: show all topics to a browser; return the org's state as JSON to other clients."""
    if "text/html" not in visit.call.headers.get("Accept", ""):
        return as_json(visit.call)
    world = visit.world
    places = counts(world)
    rows = [
        [
            tag("a", topic.name, href=link(PLACE, name=topic.name)),
            *(live(_id(topic, what), places[_id(topic, what)]) for what in _COUNTS),
        ]
        for topic in world.bus.topics()
    ]
    return visit.page(
        "Topics",
        table("Topics and channels of the org", ["Topic", *_COUNTS.values()], rows, "topics"),
        live="/ui/live",
    )


_COUNTS = {"published": "Published", "delivered": "Delivered", "streams": "Streams"}


def counts(world: World) -> dict[str, Markup]:
    """Return the counts of all topics, keyed by the id of the HTML element that shows the count.

    Deliveries and streams include those of a topic's existing managed subscriptions.
    """
    found = {}
    managed: Counter[str] = Counter()
    for record in world.managed.all():
        managed[record.topic] += world.bus.counters.of_managed(record.subscription_id).delivered
    world.cometd.sessions.end_dead()  # otherwise they would count as streams
    for topic in world.bus.topics():
        count = world.bus.counters.of_topic(topic.name)
        streams = world.bus.bells.count(topic.name)
        for what, value in (
            ("published", count.published),
            ("delivered", count.delivered + managed[topic.name]),
            ("streams", streams),
        ):
            found[_id(topic, what)] = tag("b", f"{value:,}")
    return found


def overview_live(visit: Visit) -> Answer:
    """GET /ui/live: send the counts of all topics whenever they change."""
    world = visit.world
    keys = [topic.name for topic in world.bus.topics()]
    return stream(Live(lambda _mark: PageUpdate(counts(world)), "", world.bus.bells, keys))


def topic(visit: Visit) -> Answer:
    """GET /ui/topic?name=…: show a topic, its newest events, and the form for publishing events."""
    return _page(visit, _topic(visit, visit.query.get("name", "")))


def publish(visit: Visit) -> Answer:
    """POST /ui/topic: publish the events entered in the form. They are published on behalf of the
    org, even if clients cannot publish to the topic.
    """
    entered = visit.guard.form(visit.call)
    found = _topic(visit, entered.pop(_NAME, ""))
    try:
        rows = _rows(visit.world, found, entered)
        visit.world.bus.publish_values(found.name, rows)
    except (Unreadable, SchemaProblem) as problem:
        return _page(visit, found, entered, str(problem))
    return back_to(PLACE, "published", name=found.name)


def topic_live(visit: Visit) -> Answer:
    """GET /ui/topic/live?name=…&after=…: send the topic's new events, and its counts whenever they
    change.
    """
    world = visit.world
    found = _topic(visit, visit.query.get("name", ""))
    after = visit.call.headers.get("Last-Event-ID") or visit.query.get("after", "")

    def look(mark: str) -> PageUpdate:
        seen = int(mark) if mark.isdecimal() else 0
        fresh = [row for row in world.bus.newest(found, _SHOWN) if row[0].position > seen]
        return PageUpdate(
            {_id(found, what): counts(world)[_id(found, what)] for what in _COUNTS},
            [shown_event(world, event, at) for event, at in reversed(fresh)],
            _LIST,
            str(fresh[0][0].position) if fresh else mark,
        )

    return stream(Live(look, after[:20], world.bus.bells, [found.name]))


def stream(source: Live) -> Answer:
    """Return a response that sends the updates of *source* as server-sent events."""
    return Answer(HTTPStatus.OK, "text/event-stream", headers=HEADERS, stream=source)


def shown_event(world: World, event: Event, at: float) -> Markup:
    """Return an event as a list entry that can be expanded. The entry shows the publication time
    *at* (seconds since the epoch) and a summary. When expanded, it also shows the event's ids and
    values.
    """
    try:
        value = decoded(world, event)
        text = json.dumps(value, indent=2, ensure_ascii=False, default=repr)
        summary = _summary(value)
    except (Refused, SchemaProblem) as problem:
        text = summary = getattr(problem, "text", str(problem))
    return tag(
        "li",
        tag(
            "details",
            tag("summary", tag("time", shown_time(at)), " ", tag("span", summary)),
            facts(
                event_id=tag("code", event.event_id),
                replay_id=tag("code", world.bus.ids.mint(event.position).hex()),
                schema=tag("code", event.schema_id),
            ),
            tag("pre", text, tabindex=0),
        ),
    )


def decoded(world: World, event: Event) -> dict[str, Any]:
    """Return the values of an event by field name. In a change event, field names replace bitmaps.

    Raises:
        Refused: The schema is unknown.
        SchemaProblem: The payload does not match the schema.
    """
    schema = world.bus.schema(event.schema_id)
    value = schema.decode(event.payload)
    if "ChangeEventHeader" not in value:
        return value
    try:
        return with_names(value, json.loads(schema.text))
    except (ValueError, IndexError):  # a test may have published invalid bitmaps
        return value


def _summary(value: dict[str, Any]) -> str:
    header = value.get("ChangeEventHeader")
    if isinstance(header, dict):
        said = f"{header['changeType']} {header['entityName']} {', '.join(header['recordIds'])}"
    else:
        kept = {k: v for k, v in value.items() if v is not None and not k.startswith("Created")}
        said = ", ".join(f"{key.removesuffix('__c')}: {item}" for key, item in kept.items())
    return said if len(said) <= _SUMMARY else said[: _SUMMARY - 1] + "…"


def _topic(visit: Visit, name: str) -> Topic:
    try:
        return visit.world.bus.topic(name)
    except Refused as refused:
        raise Problem(HTTPStatus.NOT_FOUND, refused.text) from refused


def _id(found: Topic, what: str) -> str:
    return f"topic{found.number}-{what}"


def _rows(world: World, found: Topic, entered: dict[str, str]) -> list[dict[str, Any]]:
    """Return the events that the user entered in the form: those in the JSON text box or, if it
    is blank, one event with the values of the other input fields.

    Raises:
        Unreadable: A value that the user entered is not valid.
    """
    if not entered.get(_AS_JSON, "").strip():
        return [values_of(_fields(world, found), entered)]
    try:
        value = json.loads(entered[_AS_JSON])
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the text is not valid JSON: {error}") from error
    rows = value if isinstance(value, list) else [value]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise Unreadable("the JSON must be an object, or a list of objects")
    return rows


def _fields(world: World, found: Topic) -> list[Field]:
    return fields_of(world.bus.schema(found.schema_id).text) if found.schema_id else []


def _page(
    visit: Visit, found: Topic, entered: dict[str, str] | None = None, problem: str = ""
) -> Answer:
    world = visit.world
    places = counts(world)
    numbers = {what: live(_id(found, what), places[_id(found, what)]) for what in _COUNTS}
    clients = [
        name
        for name, may in (("publish", found.can_publish), ("subscribe", found.can_subscribe))
        if may
    ]
    return visit.page(
        found.name,
        facts(**numbers, clients_may=" and ".join(clients) or "neither publish nor subscribe"),
        _publishing(visit, found, entered),
        *last_events(world, found, "Last events"),
        problem=problem,
        live=live_of(world, found),
    )


def last_events(
    world: World, found: Topic, title: str, most: int = _SHOWN
) -> tuple[Markup, Markup]:
    """Return a heading and a list of a topic's newest events, at most *most* of them. Updates add
    new events at the top of the list.
    """
    shown = world.bus.newest(found, most)
    items = [shown_event(world, event, at) for event, at in shown]
    return tag("h2", title), tag("ol", *items, id=_LIST, class_="events", reversed=True)


def live_of(world: World, found: Topic) -> str:
    """Return the URL of a topic's updates, which begin after the topic's newest event."""
    shown = world.bus.newest(found, 1)
    newest = shown[0][0].position if shown else 0
    return link(f"{PLACE}/live", name=found.name, after=str(newest))


def _publishing(visit: Visit, found: Topic, entered: dict[str, str] | None) -> Markup:
    if not found.schema_id:
        return _members(visit.world.bus.members(found.name))
    fields = _fields(visit.world, found)
    values = examples(fields) if entered is None else entered
    text = tag(
        "textarea", values.get(_AS_JSON, ""), id=_AS_JSON, name=_AS_JSON, rows=5, spellcheck="false"
    )
    return tag(
        "details",
        tag("summary", "Publish an event"),
        visit.form(
            PLACE,
            tag("input", type="hidden", name=_NAME, value=found.name),
            tag(
                "div",
                *(field.control(values.get(field.name, "")) for field in fields),
                class_="grid",
            ),
            labelled(
                "Or as JSON", text, _AS_JSON, "an object or a list of objects; replaces the fields"
            ),
            tag("p", button("Publish")),
            label="Publish an event",
        ),
        open=entered is not None,
        id="publish",
    )


def _members(members: Sequence[str]) -> Markup:
    if not members:
        return tag("p", "This topic has no schema, so nothing can be published to it.")
    items = (tag("li", tag("a", name, href=link(PLACE, name=name))) for name in members)
    return tag("div", tag("p", "This channel carries:"), tag("ul", *items))
