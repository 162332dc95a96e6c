"""Watch whether the user of an ingest may see every record whose changes it receives.

Salesforce delivers the change events of an object only to users with View All. If the right is
withdrawn, the delivery ends within ten minutes, and no error is named. So the org is asked at the
start and every five minutes, in a background thread. Asking that fails concludes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.errors import SfPubSubError
from sfpubsub.rest import OrgReader
from sfpubsub.rest.grants import CHECK_EVERY, Finding, Grant, Held, checked
from sfpubsub.spark.ingest.background import Background
from sfpubsub.spark.ingest.members import ChannelMembers
from sfpubsub.spark.ingest.selection import LOOK_EVERY, object_of
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")

# Maximum seconds to wait at the end for a request that is under way.
_JOIN = 1.0


class OrgGrants:
    """Asks the org what lets the user see every record of a source's objects.

    Args:
        sessions: The session for the requests.
        http: Makes the requests.
        source: The topic or managed subscription.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        sessions: CurrentSession,
        http: HttpClient,
        source: Source,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = OrgReader(sessions, http=http)
        topic = source.name if source.keeps_position else None
        self._members = ChannelMembers(sessions, http, topic=topic, managed=source.name)
        self._clock = clock
        self._objects: list[str] = []
        self._looked = float("-inf")

    def __call__(self) -> Mapping[str, Grant]:
        """Return the grants by object; empty if the source delivers no change events.

        Raises:
            SfPubSubError: The org could not be asked.
        """
        if self._clock() - self._looked >= LOOK_EVERY:
            self._objects = self._find_objects()
            self._looked = self._clock()
        return self._reader.grants(self._objects) if self._objects else {}

    def _find_objects(self) -> list[str]:
        topic = self._members.topic()
        event = topic.rpartition("/")[2]
        if not topic.startswith("/data/"):
            return []
        if event.endswith("ChangeEvent"):
            return [object_of(event)]
        return sorted(map(object_of, self._members().members))


class RightsWatch:
    """Reports a gap for each object whose records the user may not all see. A context manager.

    Not thread-safe: `advance` is called by the job's thread.

    Args:
        name: The topic, or the managed subscription's name or id.
        ask: Asks the org; called in a thread of its own.
        report_gap: Reports a gap of the subscription.
        say: Called with each message for the user.
        level: Level for logging that the org could not be asked.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[], Mapping[str, Grant]],
        report_gap: Callable[[Gap], object],
        say: Callable[[str], None],
        *,
        level: int = logging.WARNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._ask = ask
        self._report_gap = report_gap
        self._say = say
        self._level = level
        self._clock = clock
        self._background: Background[Mapping[str, Grant]] = Background(f"rights {name}", _JOIN)
        self._running: Future[Mapping[str, Grant]] | None = None
        self._due = float("-inf")
        self._held: dict[str, Held] = {}
        self._error = ""
        self._position: ReplayId | None = None  # of the stream, when the last good check began
        self._at_check: ReplayId | None = None

    def __enter__(self) -> RightsWatch:
        self._background.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._background.__exit__(kind, error, traceback)

    def advance(self, position: ReplayId | None) -> None:
        """Begin a check if one is due, or act on one that has ended. Never blocks.

        Args:
            position: The last position of the stream.
        """
        if self._running is None:
            if self._clock() >= self._due:
                self._due, self._at_check = self._clock() + CHECK_EVERY, position
                self._running = self._background.start(self._ask)
            return
        if not self._running.done():
            return
        running, self._running = self._running, None
        try:
            grants = running.result()
        except SfPubSubError as error:
            self._failed(error)
            return
        if not grants:
            self._due = self._clock() + LOOK_EVERY  # no change events; a channel may get members
        for entity, now in grants.items():
            self._act(entity, now, position)
        self._error, self._position = "", self._at_check

    def _act(self, entity: str, now: Grant, position: ReplayId | None) -> None:
        is_first = entity not in self._held
        finding, held = checked(self._held.get(entity), now)
        if finding is Finding.LOST:
            self._report_gap(Gap("rights", self._name, self._position, position, entity=entity))
            self._say(_missing(entity))
            finding, held = checked(held, now)
        elif finding is Finding.MISSING and is_first:
            self._report_gap(Gap("rights", self._name, entity=entity))
            self._say(_missing(entity))
        if finding is Finding.BACK:
            self._say(f"the user may see every record of {entity} again")
        self._held[entity] = held

    def _failed(self, error: SfPubSubError) -> None:
        is_new, self._error = str(error) != self._error, str(error)
        if is_new:
            _log.log(
                self._level,
                "cannot check whether the user may see every record whose changes %s delivers: %s",
                self._name,
                error,
            )


def _missing(entity: str) -> str:
    return (
        f"the user may not be able to see every record of {entity}, and Salesforce then delivers "
        f"no changes of it: grant the user View All for the object in a permission set, or View "
        f"All Data"
    )
