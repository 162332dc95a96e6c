"""Signals to a running mirror, read from its mailbox.

A pause lasts until a resume signal arrives, even across restarts: the pause signal stays in the
mailbox until then. This module makes no decisions about records.
"""

from __future__ import annotations

from collections.abc import Mapping

from sfpubsub.rest import OrgReader
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from sfpubsub.spark.mirror.planning import MOST_IDS


class Signals:
    """Reads a mirror's signals, and tracks whether the mirror is paused. Not thread-safe.

    Args:
        mailbox: Mailbox with the signals.
        reader: Finds the records that match the condition of a signal.
    """

    def __init__(self, mailbox: Mailbox, reader: OrgReader) -> None:
        self._mailbox = mailbox
        self._reader = reader
        self._pauses: dict[str, Signal] = {}

    @property
    def is_paused(self) -> bool:
        """Whether the mirror is paused and only ingests events into the raw table."""
        return bool(self._pauses)

    def new(self) -> list[Signal]:
        """Return the signals to process now, in order of arrival; none while the mirror is paused.

        Pause and resume signals are processed by this method and never returned.
        """
        found = []
        for signal in self._mailbox.waiting():
            if signal.kind == "pause":
                if signal.id not in self._pauses:
                    self._pauses[signal.id] = signal
            elif signal.kind == "resume":
                self._mailbox.done([*self._pauses, signal.id])
                self._pauses.clear()
            else:
                found.append(signal)
        return [] if self._pauses else found

    def show_parked(self, rows: Mapping[str, int]) -> None:
        """Tell senders how many rows of each object wait for a confirmation (`Mailbox.parked`)."""
        self._mailbox.show_parked(rows)

    def done(self, signal: Signal) -> None:
        """Record durably that a signal was processed."""
        self._mailbox.done([signal.id])

    def ids(self, signal: Signal) -> tuple[str, ...] | None:
        """Return the ids of the records that a signal concerns; None for all records of the object.

        If the signal's condition matches more than `MOST_IDS` records, None is returned, so all
        records are reread.
        """
        if signal.where is None:
            return None
        found: list[str] = []
        soql = f"SELECT Id FROM {signal.entity} WHERE {signal.where}"  # noqa: S608  # no SQL
        for page in self._reader.query(soql, all_rows=True):
            found += [row["Id"] for row in page.rows]
            if len(found) > MOST_IDS:
                return None
        return tuple(found)
