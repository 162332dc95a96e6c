"""The PublishStream RPC: a stream of publish requests for one topic. Does not import grpc.

Requests are handled one at a time, in order. A stream that receives no request for
`Settings.publish_stream_idle_s` ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sfpubsub.emulator.faults.refusals import Refused
from sfpubsub.emulator.org.mailbox import Mailbox
from sfpubsub.emulator.org.world import World

R = TypeVar("R")

_KEY = "PublishStream"
"""The key under which these streams are registered with `Bells`; no topic has this name."""


class PublishStream(Generic[R]):
    """One PublishStream call.

    Args:
        world: The emulator's state.
        mailbox: Receives the requests of this call.
        topic_of: Returns the topic name in a request, which may be blank.
        token: The access token of the call.
    """

    def __init__(
        self, world: World, mailbox: Mailbox[R], topic_of: Callable[[R], str], token: str
    ) -> None:
        self._world = world
        self._mailbox = mailbox
        self._topic_of = topic_of
        self._token = token
        self._topic = ""

    def run(self) -> Iterator[tuple[str, R]]:
        """Yield (topic name, request) for each request, until the call ends.

        Raises:
            Refused: The topic is missing or differs from that of the first request, the
                stream was idle for too long, or the token expired.
            Dropped: A request cannot be parsed.
        """
        bells = self._world.bus.bells
        bells.listen(_KEY, self._mailbox.wake)  # so that a jump of the clock wakes this stream
        try:
            yield from self._serve()
        finally:
            bells.forget(_KEY, self._mailbox.wake)

    def _serve(self) -> Iterator[tuple[str, R]]:
        limit = self._world.settings.publish_stream_idle_s
        last = self._world.clock.now()
        sessions = self._world.sessions
        while not self._mailbox.gone:
            if sessions.has_expired(self._token):
                self._world.faults.met(sessions.ended_by(self._token))
                raise Refused("service.auth.error")
            arrivals, half_closed = self._mailbox.collect()
            for arrival in arrivals:
                yield self._named(arrival.request), arrival.request
                last = self._world.clock.now()
            if half_closed:
                return
            if self._world.clock.now() >= last + limit:
                raise Refused("publish.stream.sweeper.timeout", seconds=f"{limit:g}")
            expiry = sessions.expires_at(self._token)
            self._mailbox.wait(last + limit if expiry is None else min(last + limit, expiry))

    def _named(self, request: R) -> str:
        topic = self._topic_of(request)
        if not (topic.strip() or self._topic):
            raise Refused("publish.topic.validation.empty")
        if self._topic and topic not in ("", self._topic):
            raise Refused("publish.topic.mismatch", topic=topic, expected=self._topic)
        self._topic = self._topic or topic
        return self._topic
