"""The schedule of a mirror's periodic reads, and the backoff after a failed request to the org.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sfpubsub.errors import QuotaExceededError
from sfpubsub.spark.mirror.ledger import Account
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.fold import Reason

# Seconds between requests for an object's describe result. A field that was added or changed, or
# that the user may see since, is noticed within this time even if no event arrives. An object costs
# 24 calls a day; the smallest allowance of an org is 15,000 (Salesforce documentation, API limits).
DESCRIBE_EVERY = 3600.0

# First and longest delay before a retry, in seconds; the delay doubles each time. The longest is
# short compared with the 72 h for which the service retains events.
_RETRY_FIRST, _RETRY_MOST = 10.0, 600.0


class Agenda:
    """Decides which reads are due, based on each object's progress.

    Immutable except for `end_after`.

    Args:
        refresh_formulas: Interval in seconds at which objects with fields that no event reports,
            such as formulas, are reread; 0 for never.
        sweep: Interval in seconds at which the ids in the org and the table are compared; 0 for
            never.
    """

    def __init__(self, refresh_formulas: float, sweep: float) -> None:
        self._refresh_formulas = refresh_formulas
        self._sweep = sweep
        self._end_after: float | None = None

    def end_after(self, began: float) -> None:
        """Make each read due at most once in this run of the mirror.

        Otherwise a run that takes longer than an interval would never end.

        Args:
            began: Start of the run, in seconds since the epoch.
        """
        self._end_after = began

    def reason(self, account: Account, columns: Columns, now: float) -> Reason | None:
        """Return why a read of all records of an object is due; None if none is due.

        Args:
            account: What the mirror has read of the object so far.
            columns: The columns of its table.
            now: Current time, in seconds since the epoch.
        """
        if account.is_removed:
            return Reason.GAP  # it is mirrored again, and its rows are outdated
        if account.newest is None or set(columns.selected) - set(account.selected):
            return Reason.ASKED  # the first read, or fields were added in the org
        if any(account.filled.get(name) != number for name, number in columns.filled.items()):
            return Reason.ASKED  # a field has another type, or was not visible for some time
        if columns.unreported and self._is_due(account.read_at, self._refresh_formulas, now):
            return Reason.FORMULA
        return None

    def to_describe(
        self, objects: Iterable[str], described: Mapping[str, float], now: float
    ) -> str | None:
        """Return the name of an object whose describe result is due; None if none is due.

        Args:
            objects: Names of the objects.
            described: When each object was last described by this process.
            now: Current time, on the same clock.
        """
        for name in objects:
            if name not in described or now - described[name] >= DESCRIBE_EVERY:
                return name
        return None

    def to_sweep(self, accounts: Iterable[tuple[str, Account]], now: float) -> list[str]:
        """Return the objects whose ids are due for comparison with those in the org.

        A read of the whole object counts as a comparison.

        Args:
            accounts: Names of the objects, each with its progress.
            now: Current time, in seconds since the epoch.
        """
        found = []
        for name, account in accounts:
            last = max(account.read_at or 0.0, account.swept_at or 0.0)
            if account.newest is not None and self._is_due(last, self._sweep, now):
                found.append(name)
        return found

    def _is_due(self, last: float | None, every: float, now: float) -> bool:
        if not every:
            return False
        if last is None:
            return True
        if self._end_after is not None and last >= self._end_after:
            return False
        return not 0.0 <= now - last < every  # a time in the future is that of a wrong clock


class RequestBackoff:
    """Exponential backoff for requests to the org. Not thread-safe.

    Args:
        first: First delay in seconds; each delay is twice as long as the one before.
        most: Longest delay in seconds.
    """

    def __init__(self, first: float = _RETRY_FIRST, most: float = _RETRY_MOST) -> None:
        self._first, self._most = first, most
        self._next = first
        self._until = float("-inf")

    def is_over(self, now: float) -> bool:
        """Return whether requests are allowed again.

        Args:
            now: Time on a monotonic clock, in seconds.
        """
        return now >= self._until

    def after(self, error: BaseException, now: float) -> float:
        """Start the backoff after *error*, and return its length in seconds."""
        seconds = self._next
        self._next = min(self._most, 2 * seconds)
        if isinstance(error, QuotaExceededError) and not error.retryable:
            seconds = self._most  # the daily allowance recovers over 24 hours
        self._until = now + seconds
        return seconds

    def reset(self) -> None:
        """Reset the backoff after a success."""
        self._next = self._first
