"""One event of the Streaming API as an application sees it."""

from __future__ import annotations

from typing import Any, NamedTuple


class StreamingMessage(NamedTuple):  # cheap to make, and there are many
    """One event: of a PushTopic, a generic channel, a platform event or a change event."""

    raw: dict[str, Any]
    """The whole Bayeux message."""
    subscription: str
    """The channel as it was subscribed, filter included; the key in the replay store."""
    replay_id: int | None
    """The event's position; None where the server has no replay."""
    delivery_seq: int
    """Order of arrival in this client, from 1."""

    @property
    def channel(self) -> str:
        """The channel, without a filter."""
        return str(self.raw["channel"]).partition("?")[0]

    @property
    def data(self) -> Any:
        """What the server sent: ``event`` with ``sobject``, or ``payload``."""
        return self.raw["data"]

    @property
    def type(self) -> str | None:
        """Of a PushTopic event: ``created``, ``updated``, ``deleted`` or ``undeleted``."""
        found: str | None = _at(self.raw, "data", "event", "type")
        return found

    @property
    def sobject(self) -> Any:
        """Of a PushTopic event: the record's fields; only ``Id`` when it was deleted."""
        return _at(self.raw, "data", "sobject")

    @property
    def payload(self) -> Any:
        """Of a generic event its text; of a platform or change event its fields."""
        return _at(self.raw, "data", "payload")

    @property
    def created_date(self) -> str | None:
        """When the event was made, as the server wrote it; None if it does not say.

        An ISO date for PushTopic, generic and platform events, milliseconds since 1970 UTC for
        change events.
        """
        found = _at(self.raw, "data", "event", "createdDate")
        if found is None:
            found = _at(self.payload, "ChangeEventHeader", "commitTimestamp")
        if found is None:
            found = _at(self.payload, "CreatedDate")
        return None if found is None else str(found)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
