"""Render values as JSON lines."""

from __future__ import annotations

import base64
import json
from json.encoder import encode_basestring
from typing import Any

from sfpubsub.avro.codec import Codec
from sfpubsub.avro.schema_cache import MAX_SCHEMAS
from sfpubsub.client.batch import Event
from sfpubsub.types import PublishResult


def json_line(value: Any) -> str:
    """Return *value* as one line of JSON, including the newline."""
    return _compact(value) + "\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class EventLines:
    """Renders events as JSON lines. Not thread-safe.

    The parts of a line that are the same for all events of a schema are cached.

    Args:
        raw: Whether to show payloads as base64 of their Avro bytes instead of decoding them.
    """

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        # By codec, subscription and topic: a line's text before the event's id, and its text
        # between the replay id and the payload.
        self._common: dict[tuple[Codec, str, str], tuple[str, str]] = {}

    def line(self, event: Event) -> str:
        """Return an event as one line of JSON, including the newline.

        Raises:
            DecodeError: The payload does not match its schema.
        """
        payload = event.payload
        text = f'"{base64.b64encode(payload).decode()}"' if self._raw else event.to_json()
        return f"{self._head(event)}{text}}}\n"

    def utf8_line(self, event: Event) -> bytes:
        """Return an event as one line of JSON in UTF-8. Faster than encoding the result of `line`.

        Raises:
            DecodeError: The payload does not match its schema.
        """
        compiled = None if self._raw else event.codec.compiled
        if compiled is not None:
            try:
                line: bytes = compiled.to_line(self._head(event), event.payload)
            except (ValueError, TypeError):  # not supported, or not bytes
                pass
            else:
                return line
        return self.line(event).encode()

    def _head(self, event: Event) -> str:
        """Return the part of an event's line that precedes the payload."""
        key = event.codec, event.subscription, event.topic
        before, between = self._common.get(key) or self._learned(key)
        event_id, replay_id = encode_basestring(event.id), event.replay_id.hex()
        return f'{before}{event_id},"replay_id":"{replay_id}"{between}'

    def _learned(self, key: tuple[Codec, str, str]) -> tuple[str, str]:
        codec, subscription, topic = key
        before = _compact({"topic": topic, "subscription": subscription, "event_id": ""})
        between = _compact({"schema_id": codec.schema_id, "event_name": codec.name, "payload": ""})
        common = before.removesuffix('""}'), f",{between[1:]}".removesuffix('""}')
        # Keys are few, except for unavailable schemas: each response has a new codec for them.
        if len(self._common) >= MAX_SCHEMAS:
            self._common.clear()
        self._common[key] = common
        return common


def publish_line(result: PublishResult) -> str:
    """Return a publish result as one line of JSON, including the newline."""
    replay_id = None if result.replay_id is None else result.replay_id.hex()
    return json_line(
        {"event_id": result.correlation_key, "replay_id": replay_id, "error": result.error}
    )
