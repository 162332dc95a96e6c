"""Answer the signals that are sent to a mirror.

A pause lasts until a resume signal arrives, even across restarts: the pause signal stays in the
mailbox until then. A signal is marked as done only after its effects are durable. This module is
pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

import logging

from sfpubsub.errors import ConfigurationError, SfPubSubError
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.actions import Decision
from sfpubsub.spark.mirror.due_reads import MOST_IDS
from sfpubsub.spark.mirror.mailbox import Signal
from sfpubsub.spark.mirror.mirror_state import MirrorState
from sfpubsub.spark.mirror.notes import Remove
from sfpubsub.spark.mirror.selection_watch import SelectionWatch
from sfpubsub.spark.records.fold import Reason

_log = logging.getLogger("sfpubsub.spark")

# Seconds between checks of the mailbox; each check lists a directory.
_LOOK_EVERY = 2.0


class Signals:
    """Answers the signals of one mirror. Not thread-safe.

    Args:
        state: What the schedule knows.
        selection: Watches the channel's members; None if the channel cannot be asked.
    """

    def __init__(self, state: MirrorState, selection: SelectionWatch | None) -> None:
        self._state = state
        self._selection = selection
        self._pauses: list[str] = []  # ids of the pause signals
        self._look_at = float("-inf")

    @property
    def is_paused(self) -> bool:
        """Whether the mirror is paused, and only ingests events into the raw table."""
        return bool(self._pauses)

    def answer(self) -> Decision[None]:
        """Process the signals in the mailbox, if it is time to look."""
        state, was_paused = self._state, self.is_paused
        if state.tables.is_between or not state.time.is_past(self._look_at):
            return
        signals = yield from self._new()
        self._look_at = state.time.now.clock + _LOOK_EVERY
        if self.is_paused != was_paused:
            yield do.Say("resumed" if was_paused else "paused until a resume signal")
        for signal in [] if self.is_paused else signals:
            if signal.needs_org and not state.failures.may_ask:
                continue  # it stays in the mailbox
            if signal.entity not in state.unanswered:  # otherwise it is repeated
                yield do.Say(f"received signal: {signal.kind} {signal.entity}")
            try:
                is_done = yield from self._process(signal)
            except SfPubSubError as error:
                scope = scope_of(error)
                if scope is Scope.MIRROR:
                    raise
                is_done = scope is not Scope.ORG
                if is_done:
                    _log.warning(
                        "skipping a signal to the mirror that cannot be processed: %s", error
                    )
                else:
                    state.failures.failed_all(error)
            if is_done:
                state.unanswered.discard(signal.entity or "")
                yield do.MarkSignals((signal.id,))

    def _new(self) -> Decision[list[Signal]]:
        """Return the signals about objects. Process the others, which pause or resume."""
        found = []
        for signal in (yield do.ListSignals()):
            if signal.kind == "pause":
                if signal.id not in self._pauses:
                    self._pauses.append(signal.id)
            elif signal.kind == "resume":
                yield do.MarkSignals((*self._pauses, signal.id))
                self._pauses.clear()
            else:
                found.append(signal)
        return found

    def _process(self, signal: Signal) -> Decision[bool]:
        """Process a signal about an object. Return whether it is done, or has to be repeated."""
        state, name = self._state, signal.entity
        if name is None:
            return True
        if signal.kind == "add":
            if name not in state.objects:
                needs_stamps = state.needs_stamps(name)
                yield do.CheckObject(name, with_rights=True, with_stamps=needs_stamps)
                yield do.AddObject(name)
                state.objects.append(name)
        elif name not in state.objects:
            if signal.kind != "remove":  # or an earlier process removed it, which was killed
                raise ConfigurationError(
                    f"{name} is not mirrored: add it with sfpubsub mirror signal --add {name}"
                )
        elif signal.kind == "reread":
            ids = None if signal.where is None else (yield do.FindRecords(signal, MOST_IDS))
            yield from state.request(name, Reason.ASKED, ids)
        elif signal.kind == "confirm":
            parked = yield do.FindParked(name)
            if len(parked) > (signal.rows or 0):
                raise ConfigurationError(
                    f"{len(parked)} rows of {name} wait for a confirmation by now, but only "
                    f"{signal.rows} were confirmed: send the signal again to confirm them all"
                )
            if parked:
                yield from state.request(name, Reason.CONFIRMED, parked)
        elif not (yield from state.drop(name)):
            state.unanswered.add(name)
            return False
        elif signal.kind == "remove":
            yield from self._remove(name)
        return True

    def _remove(self, name: str) -> Decision[None]:
        """Stop mirroring an object. Its rows stay."""
        state = self._state
        if name in state.unchecked:
            state.unchecked.remove(name)
        yield from state.take(Remove(name, state.time.now.wall))
        yield do.RemoveObject(name)
        state.objects.remove(name)
        state.failures.forget(name)
        yield from state.rights.forget(name)
        if self._selection is not None:
            yield from self._selection.forget(name)
        yield do.Say(f"{name} is no longer mirrored; its rows stay as they are")
