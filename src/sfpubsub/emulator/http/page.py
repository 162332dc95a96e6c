"""The health page: for people in a browser, for tests as JSON."""

from __future__ import annotations

import html
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.org.world import World


def page(call: Call) -> Answer:
    """GET /: a page if the client wants HTML, else JSON."""
    answer = health(call.world)
    if "text/html" in call.headers.get("Accept", ""):
        return Answer(HTTPStatus.OK, "text/html; charset=utf-8", _page(answer))
    return json_answer(answer)


def as_json(call: Call) -> Answer:
    """GET /health."""
    return json_answer(health(call.world))


def problem(status: HTTPStatus, text: str) -> Answer:
    """An error in the shape of this and of the admin endpoint."""
    return json_answer({"error": text}, status)


def health(world: World) -> dict[str, Any]:
    """What the health page says; the keys are an interface for tests and the demo."""
    bus = world.bus
    topics = {}
    for topic in bus.topics():
        count = bus.tally.of_topic(topic.name)
        topics[topic.name] = {
            "published": count.published,
            "delivered": count.delivered,
            "redelivered": count.redelivered,
            "keepalives": count.keepalives,
            "streams": bus.bells.count(topic.name),
        }
    managed = {}
    for record in world.managed.all():
        count = bus.tally.of_managed(record.subscription_id)
        committed = record.committed
        managed[record.developer_name] = {
            "id": record.subscription_id,
            "topic": record.topic,
            "state": record.state,
            "active": world.managed.is_active(record.subscription_id),
            "committed_replay_id": None if committed is None else bus.ids.mint(committed).hex(),
            "commits_accepted": count.commits_accepted,
            "commits_refused": count.commits_refused,
            "delivered": count.delivered,
            "redelivered": count.redelivered,
            "keepalives": count.keepalives,
        }
    return {
        "status": "ok",
        "tenant": bus.tenant,
        "topics": topics,
        "managed_subscriptions": managed,
    }


def _page(answer: dict[str, Any]) -> str:
    """The health page for a browser."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>sfpubsub emulator</title>",
        "<style>body{font:16px system-ui;margin:2rem}table{border-collapse:collapse;margin:1rem 0}"
        "td,th{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #ccc}</style>",
        f"<h1>sfpubsub emulator</h1><p>{html.escape(answer['tenant'])}: {answer['status']}. ",
        "The same as JSON: <a href=/health>/health</a></p>",
        _table("Topics", answer["topics"]),
        _table("Managed subscriptions", answer["managed_subscriptions"]),
    ]
    return "".join(parts)


def _table(title: str, rows: dict[str, dict[str, Any]]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>None.</p>"
    heads = "".join(f"<th>{html.escape(key)}</th>" for key in next(iter(rows.values())))
    lines = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values())
        + "</tr>"
        for name, row in rows.items()
    )
    return f"<h2>{title}</h2><table><tr><th>name</th>{heads}</tr>{lines}</table>"
