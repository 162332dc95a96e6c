"""The state of the org as JSON, for tests and scripts. The package `page` shows it in a browser."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.org.world import World


def as_json(call: Call) -> Answer:
    """GET /health, and GET / from a client that is not a browser: return the state of the org."""
    return json_answer(health(call.world))


def problem(status: HTTPStatus, text: str) -> Answer:
    """Return an error response in the format of /health and the admin endpoint."""
    return json_answer({"error": text}, status)


def health(world: World) -> dict[str, Any]:
    """Return the content of /health: the counters of each topic, and the state and counters of
    each managed subscription. Tests and the demo rely on its keys.
    """
    bus = world.bus
    world.cometd.sessions.end_dead()  # otherwise they would count as streams
    topics = {}
    for topic in bus.topics():
        count = bus.counters.of_topic(topic.name)
        topics[topic.name] = {
            "published": count.published,
            "delivered": count.delivered,
            "redelivered": count.redelivered,
            "keepalives": count.keepalives,
            "streams": bus.bells.count(topic.name),
        }
    managed = {}
    for record in world.managed.all():
        count = bus.counters.of_managed(record.subscription_id)
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
