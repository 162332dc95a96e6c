"""When to look at the members of a mirror's channel, and what follows from what is found.

A look that fails concludes nothing, and is repeated. What is known is stored in the reread queue's
facts: a member that changed while no process ran is found at the next start. This module is pure:
no I/O, no clock, no threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sfpubsub.errors import SfPubSubError
from sfpubsub.spark.ingest.selection import (
    LOOK_EVERY,
    RETRY_EVERY,
    SETTLING,
    Finding,
    Selection,
    compared,
)
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.actions import Decision
from sfpubsub.spark.mirror.deadlines import Deadlines
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")


class SelectionWatch:
    """Watches which objects' events a channel delivers. Not thread-safe.

    Args:
        known: What is stored about the members, by object; see `selection.compared`.
        waiting: Where objects wait.
        time: The present moment.
        request: Requests a reread of all records of an object.
        report_gap: Stores and reports a gap, and requests the reread of its object.
        alone: The objects that are read without events. Those whose events are not delivered are
            added, and removed when they are delivered again. If None, such objects wait instead.
    """

    def __init__(
        self,
        known: Mapping[str, str | None],
        waiting: Waiting,
        time: Deadlines,
        request: Callable[[str], Decision[None]],
        report_gap: Callable[[Gap], Decision[None]],
        alone: set[str] | None = None,
    ) -> None:
        self._known = dict(known)
        self._waiting = waiting
        self._time = time
        self._request = request
        self._report_gap = report_gap
        self._alone = alone
        self._is_looking = False
        self._answer: Selection | SfPubSubError | None = None
        self._due = float("-inf")
        self._wanted: frozenset[str] = frozenset()  # objects for which a look was begun
        self._seen: set[str] = set()  # objects that a look of this process has found
        # Objects whose events are delivered again: since when, and the id of the member.
        self._back: dict[str, tuple[float, str]] = {}
        self._error = ""  # of the last look, if it failed
        self._is_failing = False  # whether it is repeated soon
        self._position: ReplayId | None = None  # of the stream, when the last good look began
        self._at_look: ReplayId | None = None

    @property
    def is_done(self) -> bool:
        """Whether the last look is answered, none is due, and no object is about to be reread.

        A look that the org refuses is answered; one that fails otherwise is repeated.
        """
        is_looking = self._is_looking or self._time.is_past(self._due)
        return not (is_looking or self._back or self._is_failing)

    def found(self, answer: Selection | SfPubSubError) -> None:
        """Take the result of the look that was begun last, or its error."""
        self._answer = answer

    def advance(
        self, objects: Sequence[str], name: str, position: ReplayId | None
    ) -> Decision[bool]:
        """Begin a look, or act on one that has ended.

        Args:
            objects: The mirrored objects.
            name: Name of the stream's topic or managed subscription.
            position: The last position of the stream.

        Returns:
            Whether a look was acted on, or rereads were requested.
        """
        if not self._is_looking:
            if self._time.is_past(self._due) or not self._wanted.issuperset(objects):
                self._at_look, self._wanted = position, frozenset(objects)
                self._due = self._time.now.clock + RETRY_EVERY
                self._is_looking = True
                yield do.LookAtMembers()
            return (yield from self._settle())
        if self._answer is None:
            return (yield from self._settle())
        answer, self._answer, self._is_looking = self._answer, None, False
        if isinstance(answer, SfPubSubError):
            if not answer.retryable:
                self._due = self._time.now.clock + LOOK_EVERY
            self._is_failing = answer.retryable
            is_new, self._error = str(answer) != self._error, str(answer)
            if is_new:
                _log.warning("cannot look at the members of the channel: %s", answer)
            return True
        self._error, self._is_failing = "", False
        self._due = self._time.now.clock + LOOK_EVERY
        yield from self._act(answer, objects, name, position)
        self._seen.update(objects)
        self._position = self._at_look
        return True

    def _act(
        self, selection: Selection, objects: Sequence[str], name: str, position: ReplayId | None
    ) -> Decision[None]:
        """Act on a look."""
        known = self._known
        for entity in objects:
            now = selection.whole(entity)
            finding = compared(known, entity, now)
            if finding is Finding.LOST:
                # Before it is forgotten that they were delivered: if the process is killed in
                # between, the next look finds the same gap.
                gap = Gap("deselected", name, self._position, position, entity=entity)
                gap = replace(gap, occurrence=f"member {known.get(entity)}")
                yield from self._report_gap(gap)
                yield from self._keep(entity, None)
                finding = compared(known, entity, now)
            elif finding is Finding.WITHHELD and entity in known and self._misses(entity):
                # Nothing else tells what has changed since the last process.
                yield from self._request(entity)
            if finding is Finding.WITHHELD:
                self._back.pop(entity, None)
                yield from self._wait(entity, str(selection.problem(entity)))
                yield from self._keep(entity, None)
            elif finding is Finding.BACK and now is not None:
                yield from self._return(entity, now)
            elif finding is Finding.DELIVERED:
                yield from self._keep(entity, now)

    def _misses(self, entity: str) -> bool:
        """Return whether it is not known what has changed since the last process."""
        return self._alone is None and entity not in self._seen

    def forget(self, entity: str) -> Decision[None]:
        """Forget an object that is no longer mirrored."""
        self._back.pop(entity, None)
        self._seen.discard(entity)
        self._end(entity)
        if entity in self._known:
            del self._known[entity]
            yield do.KeepMembers(dict(self._known))

    def _return(self, entity: str, member: str) -> Decision[None]:
        since, before = self._back.get(entity, (self._time.now.clock, member))
        if before != member:
            since = self._time.now.clock
        self._back[entity] = since, member
        yield from self._wait(
            entity,
            f"the events of {entity} are selected again: all records will be reread ten minutes "
            f"later, when the service is sure to deliver them",
        )

    def _settle(self) -> Decision[bool]:
        """Request the rereads of objects whose events are sure to be delivered again."""
        for entity, (since, member) in list(self._back.items()):
            if self._time.is_past(since + SETTLING):
                yield do.Say(f"{entity}: its events are delivered again, so all records are reread")
                # Before it counts as delivered: after a crash, it is requested again.
                yield from self._request(entity)
                del self._back[entity]
                self._end(entity)
                yield from self._keep(entity, member)
                return True
        return False

    def _end(self, entity: str) -> None:
        self._waiting.end(entity, Why.DESELECTED)
        if self._alone is not None:
            self._alone.discard(entity)

    def _wait(self, entity: str, text: str) -> Decision[None]:
        if self._alone is not None:
            if entity not in self._alone or entity not in self._seen:
                self._alone.add(entity)
                yield do.Say(f"{entity}: no event tells about its changes, so its stamps do")
            return
        before = self._waiting.of(entity).get(Why.DESELECTED)
        self._waiting.begin(entity, Why.DESELECTED, text)
        if before is None or before.text != text:
            yield do.Say(text)

    def _keep(self, entity: str, member: str | None) -> Decision[None]:
        if entity not in self._known or self._known[entity] != member:
            self._known[entity] = member
            yield do.KeepMembers(dict(self._known))
