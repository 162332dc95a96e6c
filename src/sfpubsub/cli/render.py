"""How things look as JSON lines."""

from __future__ import annotations

import base64
import json
from typing import Any

from sfpubsub.client.batch import Event
from sfpubsub.types import PublishResult


def json_line(value: Any) -> str:
    """Return *value* as one line of JSON, with its line end."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"


def event_line(event: Event, *, raw: bool) -> str:
    """Return an event as one line of JSON, with its line end.

    Args:
        event: What to show.
        raw: Show the payload as base64 of its Avro bytes, not decoded.

    Raises:
        DecodeError: The payload does not fit its schema.
    """
    head = json.dumps(
        {
            "topic": event.topic,
            "subscription": event.subscription,
            "event_id": event.id,
            "replay_id": event.replay_id.hex(),
            "schema_id": event.schema_id,
            "event_name": event.event_name,
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )
    payload = json.dumps(base64.b64encode(event.payload).decode()) if raw else event.to_json()
    return f'{head[:-1]},"payload":{payload}}}\n'


def publish_line(result: PublishResult) -> str:
    """Return a publish result as one line of JSON, with its line end."""
    replay_id = None if result.replay_id is None else result.replay_id.hex()
    return json_line(
        {"event_id": result.correlation_key, "replay_id": replay_id, "error": result.error}
    )
