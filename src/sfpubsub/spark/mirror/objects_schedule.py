"""What a mirror asks the org about its objects, and which of them it requests to be read.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from sfpubsub.errors import ConfigurationError, SfPubSubError
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.actions import Decision
from sfpubsub.spark.mirror.due_reads import DESCRIBE_EVERY, Periodic
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.mirror_state import MirrorState
from sfpubsub.spark.mirror.waiting import Why

# Why an object waits when a mirror begins.
_UNCHECKED = "the org has not yet answered whether the user may see every record of the object"


class ObjectsSchedule:
    """The objects of one mirror. Not thread-safe.

    Args:
        state: What the schedule knows.
        periodic: Decides which reads are due.
        named: API names of the objects that were named at this start.
    """

    def __init__(self, state: MirrorState, periodic: Periodic, named: Iterable[str]) -> None:
        self._state = state
        self._periodic = periodic
        self._named = frozenset(named)
        self._unsaid: deque[str] = deque()

    def resume(self, name: str, markers: Sequence[Marker]) -> None:
        """Take over an object and the pieces in its read log. Call it for each at the start."""
        progress = self._state.progress(name)
        merged = progress.merged
        if markers and markers[-1].piece == merged and not progress.is_through(markers[-1]):
            merged -= 1  # all pieces are merged, but the read's closing step is due
        self._state.pieces.left(name, markers, merged)
        self._state.unchecked.append(name)
        self._state.waiting.begin(name, Why.RIGHTS, _UNCHECKED)
        if progress.is_removed:
            self._unsaid.append(
                f"{name} was removed by a signal, and is mirrored again because it was named: all "
                f"its records are reread"
            )

    def check_next(self) -> Decision[bool]:
        """Ask the org about an object that was not checked yet, or is gone, if that is due.

        The stream is open by then: it needs no answer.

        Returns:
            Whether an object was checked.
        """
        while self._unsaid:
            yield do.Say(self._unsaid.popleft())
        failures = self._state.failures
        for name in self._state.unchecked:
            if failures.may_look(name) and failures.may_ask:
                yield from self._check(name)
                return True
        return False

    def _check(self, name: str) -> Decision[None]:
        state = self._state
        is_new = name in self._named and self._state.progress(name).merged == 0
        try:
            # Rights that were withdrawn since then are found by `RightsWatch`.
            with_rights = is_new and state.safeguards.rights
            with_stamps = is_new and state.needs_stamps(name)
            yield do.CheckObject(name, with_rights=with_rights, with_stamps=with_stamps)
        except SfPubSubError as error:
            scope = scope_of(error)
            if scope in (Scope.OBJECT, Scope.GONE) and is_new and not error.retryable:
                yield from self._refuse(name, error)
            yield from state.fail(name, error)
            return
        state.unchecked.remove(name)
        if not state.safeguards.rights:  # otherwise the first check of the rights does so
            state.waiting.end(name, Why.RIGHTS)
        if state.failures.is_there(name):
            yield do.Say(f"{name}: the org has it again, so all its records are reread")
            yield from state.reread(name)

    def _refuse(self, name: str, error: SfPubSubError) -> Decision[None]:
        """Refuse an object that was named at the start, and has never been mirrored."""
        yield do.RemoveObject(name)  # otherwise later starts would mirror it
        if scope_of(error) is not Scope.GONE:
            raise error
        raise ConfigurationError(
            f"{name} does not exist in the org, or the user cannot see it: check the name, and the "
            f"user's permissions"
        ) from error

    def describe_next(self) -> Decision[bool]:
        """Describe an object again if that is due, and return whether one was described."""
        state, name = self._state, self.to_describe()
        if name is None or not state.failures.may_ask:
            return False
        try:
            yield from state.describe(name)
        except SfPubSubError as error:
            yield from state.fail(name, error)
            if scope_of(error) is not Scope.ORG:  # otherwise it is repeated after the back-off
                state.described_at[name] = state.time.now.clock
        return True

    def to_describe(self) -> str | None:
        """Return the name of an object whose describe result is due; None if none is due."""
        state, never = self._state, float("-inf")
        due = (
            name
            for name in state.objects
            if state.failures.may_read(name)
            and state.time.is_past(state.described_at.get(name, never) + DESCRIBE_EVERY)
        )
        return next(due, None) if state.budget.may_read else None

    def request_next(self) -> Decision[bool]:
        """Request the next read that is due: a first read, or one for new fields or stale formulas.

        Returns:
            Whether a read was requested.
        """
        state = self._state
        for name in state.objects:
            if any(each.is_about_all for each in state.tables.entries.get(name, ())):
                continue
            columns = state.tables.columns.get(name)
            if columns is None or not state.failures.may_read(name):
                continue
            reason = self._periodic.reason(self._state.progress(name), columns)
            if reason is not None:
                yield from state.request(name, reason)
                return True
        return False
