"""Decide how many rows a mirror may delete only because reads did not return them.

An event that deletes a record is a fact, and so is a record in the Recycle Bin. An absence is only
a conclusion. Three safeguards stand between an absence and a deleted row: the user's right to see
every record held without interruption (rest/grants.py), two reads a margin apart agree
(merging.py), and not too many rows go at once (this module). Missing rights make many records
absent at once; records that are purged without a DELETE event are few, or somebody knows of them.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Rows of one object that may be deleted by absence within `WINDOW`: the larger of a number, and a
# share of the live rows. Records that are purged without a DELETE event ever having arrived are
# rare: the Recycle Bin comes first, and going there is an event.
MOST_ROWS = 10
MOST_SHARE = 0.001

# The same for an object without events, of which every deletion that the Recycle Bin does not show
# is an absence.
MOST_ROWS_ALONE = 100
MOST_SHARE_ALONE = 0.01

# Window over which these rows are counted, in seconds.
WINDOW = 24 * 3600.0


@dataclass(frozen=True)
class Safeguards:
    """The parts that stand between an absence and a deleted row.

    Tests take out all but one, to show that each suffices alone. There is no setting for users.
    """

    rights: bool = True
    """Whether absences count only while the user's right to see everything is known to hold."""
    twice: bool = True
    """Whether a second read by id, a margin later, has to agree."""
    limit: bool = True
    """Whether too many rows at once are parked."""


@dataclass(frozen=True)
class Loss:
    """Rows of one object that one step deleted by absence, or parked. Survives restarts."""

    step: int
    at: float
    """When the step was planned, in seconds since the epoch."""
    rows: int


def kept(losses: Iterable[Loss], now: float) -> list[Loss]:
    """Return those *losses* that still count at the time *now*, in seconds since the epoch."""
    return [each for each in losses if now - each.at < WINDOW]


def are_too_many(
    losses: Iterable[Loss], new: Loss, live: Callable[[], int], *, has_events: bool = True
) -> bool:
    """Return whether the rows of a step must be parked rather than deleted.

    Args:
        losses: The losses of earlier steps, and perhaps of the same step, if it is repeated.
        new: The rows that the step would delete.
        live: Counts the live rows of the object. Called only if it matters, because it may take
            seconds.
        has_events: Whether events tell about changes of the object, too.
    """
    most = MOST_ROWS if has_events else MOST_ROWS_ALONE
    share = MOST_SHARE if has_events else MOST_SHARE_ALONE
    earlier = [each for each in kept(losses, new.at) if each.step != new.step]
    rows = new.rows + sum(each.rows for each in earlier)
    return rows > most and rows > share * live()
