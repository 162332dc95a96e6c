"""Look at the members of a mirror's channel in the background, and act on what selection.py finds.

A look that fails concludes nothing, and is repeated. What is known is stored in the reread queue's
facts: a member that changed while no process ran is found at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from sfpubsub.errors import SfPubSubError
from sfpubsub.spark.ingest.background import Background
from sfpubsub.spark.ingest.selection import (
    LOOK_EVERY,
    RETRY_EVERY,
    SETTLING,
    Finding,
    Selection,
    compared,
)
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")

# Maximum seconds to wait at the end for a look that is under way.
_JOIN = 1.0


class SelectionWatch:
    """Watches which objects' events a channel delivers. A context manager; not thread-safe.

    Args:
        look: Asks the org; called in a thread of its own. None if nothing can be asked.
        queue: Stores what is known.
        waiting: Where objects wait.
        ask: Requests a reread of all records of an object.
        report_gap: Stores and reports a gap, and requests the reread of its object.
        say: Called with each message for the user.
        clock: Monotonic clock, in seconds.
        wall: Wall clock, in seconds since the epoch.
    """

    def __init__(
        self,
        look: Callable[[], Selection] | None,
        queue: MirrorQueue,
        waiting: Waiting,
        ask: Callable[[str], None],
        report_gap: Callable[[Gap], object],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._look = look
        self._queue = queue
        self._waiting = waiting
        self._ask = ask
        self._report_gap = report_gap
        self._say = say
        self._clock, self._wall = clock, wall
        self._background: Background[Selection] = Background("channel members", _JOIN)
        self._known: dict[str, str | None] | None = None
        self._running: Future[Selection] | None = None
        self._due = float("-inf")
        self._wanted: frozenset[str] = frozenset()  # objects for which a look was begun
        self._seen: set[str] = set()  # objects that a look of this process has found
        # Objects whose events are delivered again: since when, and the id of the member.
        self._back: dict[str, tuple[float, str]] = {}
        self._error = ""  # of the last look, if it failed
        self._is_failing = False  # whether it is repeated soon
        self._position: ReplayId | None = None  # of the stream, when the last good look began
        self._at_look: ReplayId | None = None

    def __enter__(self) -> SelectionWatch:
        self._background.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._background.__exit__(None, None, None)

    @property
    def is_done(self) -> bool:
        """Whether the last look is answered, none is due, and no object is about to be reread.

        A look that the org refuses is answered; one that fails otherwise is repeated.
        """
        is_looking = self._running is not None or self._clock() >= self._due
        return self._look is None or not (is_looking or self._back or self._is_failing)

    def advance(self, objects: Sequence[str], name: str, position: ReplayId | None) -> bool:
        """Begin a look, or act on one that has ended.

        Args:
            objects: The mirrored objects.
            name: Name of the stream's topic or managed subscription.
            position: The last position of the stream.

        Returns:
            Whether rereads were requested.

        Raises:
            WriteError: What was found could not be stored.
        """
        if self._look is None:
            return False
        if self._running is None:
            if self._clock() >= self._due or not self._wanted.issuperset(objects):
                self._at_look, self._wanted = position, frozenset(objects)
                self._due = self._clock() + RETRY_EVERY
                self._running = self._background.start(self._look)
            return self._settle()
        if not self._running.done():
            return self._settle()
        running, self._running = self._running, None
        try:
            selection = running.result()
        except SfPubSubError as error:
            if not error.retryable:
                self._due = self._clock() + LOOK_EVERY
            self._is_failing = error.retryable
            is_new, self._error = str(error) != self._error, str(error)
            if is_new:
                _log.warning("cannot look at the members of the channel: %s", error)
            return self._settle()
        self._error, self._is_failing = "", False
        self._due = self._clock() + LOOK_EVERY
        has_asked = self._act(selection, objects, name, position)
        self._seen.update(objects)
        self._position = self._at_look
        return self._settle() or has_asked

    def _act(
        self, selection: Selection, objects: Sequence[str], name: str, position: ReplayId | None
    ) -> bool:
        """Act on a look; return whether rereads were requested."""
        known, has_asked = self._stored(), False
        for entity in objects:
            now = selection.whole(entity)
            finding = compared(known, entity, now)
            if finding is Finding.LOST:
                # Before it is forgotten that they were delivered: if the process is killed in
                # between, the next look finds the same gap.
                gap = Gap("deselected", name, self._position, position, entity=entity)
                self._report_gap(replace(gap, occurrence=f"member {known.get(entity)}"))
                self._keep(entity, None)
                has_asked = True
                finding = compared(known, entity, now)
            elif finding is Finding.WITHHELD and entity in known and entity not in self._seen:
                self._ask(entity)  # nothing else tells what has changed since the last process
                has_asked = True
            if finding is Finding.WITHHELD:
                self._back.pop(entity, None)
                self._wait(entity, str(selection.problem(entity)))
                self._keep(entity, None)
            elif finding is Finding.BACK and now is not None:
                self._return(entity, now)
            elif finding is Finding.DELIVERED:
                self._keep(entity, now)
        return has_asked

    def forget(self, entity: str) -> None:
        """Forget an object that is no longer mirrored."""
        self._back.pop(entity, None)
        self._seen.discard(entity)
        self._waiting.end(entity, Why.DESELECTED)
        known = self._stored()
        if entity in known:
            del known[entity]
            self._queue.keep_selected(known)

    def _return(self, entity: str, member: str) -> None:
        since, before = self._back.get(entity, (self._clock(), member))
        if before != member:
            since = self._clock()
        self._back[entity] = since, member
        self._wait(
            entity,
            f"the events of {entity} are selected again: all records will be reread ten minutes "
            f"later, when the service is sure to deliver them",
        )

    def _settle(self) -> bool:
        """Request the rereads of objects whose events are sure to be delivered again."""
        for entity, (since, member) in list(self._back.items()):
            if self._clock() - since >= SETTLING:
                self._say(f"{entity}: its events are delivered again, so all records are reread")
                self._ask(entity)  # before it counts as delivered: after a crash, it is asked again
                del self._back[entity]
                self._waiting.end(entity, Why.DESELECTED)
                self._keep(entity, member)
                return True
        return False

    def _wait(self, entity: str, text: str) -> None:
        before = self._waiting.of(entity).get(Why.DESELECTED)
        self._waiting.begin(entity, Why.DESELECTED, text, self._wall())
        if before is None or before.text != text:
            self._say(text)

    def _keep(self, entity: str, member: str | None) -> None:
        known = self._stored()
        if entity not in known or known[entity] != member:
            known[entity] = member
            self._queue.keep_selected(known)

    def _stored(self) -> dict[str, str | None]:
        if self._known is None:
            self._known = self._queue.selected()
        return self._known
