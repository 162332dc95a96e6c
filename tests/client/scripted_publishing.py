"""A scripted service that answers publish requests when a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sfpubsub import PubSubClient
from sfpubsub.auth.session import Session
from sfpubsub.config import Timings
from sfpubsub.protocol.commands import OpenPublish, SendEvents
from sfpubsub.protocol.events import PublishAnswer
from sfpubsub.transports.base import PublishCall
from sfpubsub.transports.memory import MemoryPublishCall, MemoryTransport
from sfpubsub.types import PublishResult

TOPIC = "/event/Tick__e"
SCHEMA = '{"type": "record", "name": "Tick__e", "fields": [{"name": "n", "type": "int"}]}'


class Bus(MemoryTransport):
    """Accepts every event, or refuses those that *refuses* names, once `answers` is set."""

    def __init__(self, refuses: Callable[[str], bool] = lambda _event_id: False) -> None:
        super().__init__({"tick": SCHEMA}, {TOPIC: "tick"})
        self.answers = threading.Event()
        self.answers.set()
        self.refuses = refuses
        self.names = lambda event_id: event_id
        """Returns the correlation key of an event's result."""

    def open_publish(self, topic: str, opening: OpenPublish, *, streamed: bool) -> PublishCall:
        call = _Call(topic, self)
        call.send(SendEvents(opening.stream, opening.events))
        return call

    @property
    def ids(self) -> list[str]:
        """Ids of the events that were sent, in order."""
        return [event.id for _, events in self.published for event in events]


class _Call(MemoryPublishCall):
    def __init__(self, topic: str, bus: Bus) -> None:
        super().__init__(topic, bus.published)
        self._bus = bus

    def send(self, request: SendEvents) -> None:
        self._published.append((self._topic, request.events))
        results = tuple(
            PublishResult(
                None,
                self._bus.names(event.id),
                "refused" if self._bus.refuses(event.id) else None,
            )
            for event in request.events
        )
        self._answers.put(PublishAnswer(results))

    def receive(self):
        found = super().receive()
        if isinstance(found, PublishAnswer):
            self._bus.answers.wait()
        return found

    def cancel(self) -> None:
        super().cancel()
        self._bus.answers.set()


def client_of(bus: Bus, **timings: float) -> PubSubClient:
    """Return a client of the scripted service."""
    session = Session("00D000000000001!token", "https://example.my.salesforce.com")
    return PubSubClient(session, transport=bus, timings=Timings(**timings))
