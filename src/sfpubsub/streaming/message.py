"""One event of the Streaming API, as delivered to the application."""

from __future__ import annotations

from typing import Any, NamedTuple

from sfpubsub.streaming.bayeux import part_of, path_of


class StreamingMessage(NamedTuple):  # cheap to make, and there are many
    """One event: a PushTopic event, generic event, platform event or change event."""

    raw: dict[str, Any]
    """The whole Bayeux message."""
    subscription: str
    """The channel as subscribed, including its filter; the key in the replay store."""
    replay_id: int | None
    """The event's position; None if the server has no replay."""
    delivery_seq: int
    """Sequence number of arrival in this client, starting at 1."""

    @property
    def channel(self) -> str:
        """The channel without its filter."""
        return path_of(self.raw["channel"])

    @property
    def data(self) -> Any:
        """The event's data as the server sent it; contains ``sobject`` or ``payload``."""
        return self.raw["data"]

    @property
    def type(self) -> str | None:
        """The kind of change of a PushTopic event: ``created``, ``updated``, ``deleted`` or
        ``undeleted``.
        """
        found: str | None = part_of(self.raw, "data", "event", "type")
        return found

    @property
    def sobject(self) -> Any:
        """The record's fields in a PushTopic event; only ``Id`` if it was deleted."""
        return part_of(self.raw, "data", "sobject")

    @property
    def payload(self) -> Any:
        """The text of a generic event, or the fields of a platform or change event."""
        return part_of(self.raw, "data", "payload")

    @property
    def created_date(self) -> str | None:
        """When the event was created, in the server's format; None if the server does not send it.

        PushTopic, generic and platform events have an ISO date; change events have milliseconds
        since 1970 UTC.
        """
        found = part_of(self.raw, "data", "event", "createdDate")
        if found is None:
            found = part_of(self.payload, "ChangeEventHeader", "commitTimestamp")
        if found is None:
            found = part_of(self.payload, "CreatedDate")
        return None if found is None else str(found)
