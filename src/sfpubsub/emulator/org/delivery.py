"""Which change events a user's streams deliver, depending on the user's rights.

Change events are delivered only to users with View All for their object. A change of rights takes
effect on streams after `Settings.rights_propagation_s`, without an error: keepalives continue, and
the positions of streams move on.
"""

from __future__ import annotations

from collections.abc import Callable

from sfpubsub.emulator.org.bus import Bus, Topic
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.rights import EVERYTHING, Grants, Rights, at_time
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event

Hidden = Callable[[Event], bool]
"""Whether an event is withheld from a user."""

_SUFFIX = "ChangeEvent"


class Delivery:
    """Decides which change events are withheld from a user. Thread-safe.

    Args:
        bus: The bus with the events.
        rights: The users' rights, with their history.
        clock: The org's clock.
        settings: The delay, and what becomes of withheld events.
    """

    def __init__(self, bus: Bus, rights: Rights, clock: Clock, settings: Settings) -> None:
        self._bus = bus
        self._rights = rights
        self._clock = clock
        self._settings = settings

    def hidden(self, username: str, topic: Topic) -> Hidden | None:
        """Return a function that tells which events of a topic are withheld from a user at
        present, or None if no event is.
        """
        if not topic.name.startswith("/data/"):
            return None
        history = self._rights.history(username)
        if all(EVERYTHING in grants for grants in history[1]):
            return None
        delay, now = self._settings.rights_propagation_s, self._clock.now()
        periods: list[tuple[int, Grants]] = []  # last position before, grants from then on
        if self._settings.withheld_events == "lost":
            horizon = now - self._settings.retention_s
            for number, (at, grants) in enumerate(zip(*history, strict=True)):
                ends = history[0][number + 1] + delay if number + 1 < len(history[0]) else now
                if at + delay <= now and ends >= horizon:
                    before = self._bus.position_at(at + delay) if number else None
                    periods.append((before or 0, grants))
        current = at_time(history, now - delay)
        if EVERYTHING in current and all(EVERYTHING in grants for _, grants in periods):
            return None
        objects: dict[str, str | None] = {}  # by schema id

        def is_hidden(event: Event) -> bool:
            if event.schema_id not in objects:
                objects[event.schema_id] = self._object_of(event.schema_id)
            name = objects[event.schema_id]
            if name is None:
                return False
            then = current
            for before, held in periods:
                if event.position > before:
                    then = held
            return not (_sees(current, name) and _sees(then, name))

        return is_hidden

    def _object_of(self, schema_id: str) -> str | None:
        """Return the object whose change events have this schema; None for any other schema."""
        event = self._bus.event_of(schema_id) or ""
        if not event.endswith(_SUFFIX):
            return None
        name = event.removesuffix(_SUFFIX)
        return f"{name}c" if name.endswith("__") else name


def _sees(grants: Grants, object_name: str) -> bool:
    return EVERYTHING in grants or object_name in grants
