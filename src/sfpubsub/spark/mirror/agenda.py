"""What a mirror wants to read by itself, and when it asks the org again after a failure.

Pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from sfpubsub.errors import QuotaExceededError
from sfpubsub.spark.mirror.columns import Columns
from sfpubsub.spark.mirror.ledger import Account
from sfpubsub.spark.tables.records import Reason

# Seconds until the org is asked again; doubles up to the second number, which is short beside the
# 72 h that the service keeps events for.
_RETRY_FIRST, _RETRY_MOST = 10.0, 600.0


class Agenda:
    """What is due, by the accounts of the objects. Immutable but for `end_after`.

    Args:
        refresh_formulas: Seconds after which objects with formula fields are read; 0 for never.
        sweep: Seconds after which ids are compared; 0 for never.
    """

    def __init__(self, refresh_formulas: float, sweep: float) -> None:
        self._refresh_formulas = refresh_formulas
        self._sweep = sweep
        self._end_after: float | None = None

    def end_after(self, began: float) -> None:
        """Have nothing be due twice: a run is to end whose schedule is shorter than itself.

        Args:
            began: When it did, in seconds since 1970 UTC.
        """
        self._end_after = began

    def reason(self, account: Account, columns: Columns, now: float) -> Reason | None:
        """Return why all of an object is to be read; None if nothing asks for it.

        Args:
            account: The object's.
            columns: Those of its table.
            now: Seconds since 1970 UTC.
        """
        if account.newest is None or set(columns.selected) - set(account.selected):
            return Reason.ASKED  # the first read, or one of fields that are new in the org
        has_formulas = any(each.calculated for each in columns.columns)
        if has_formulas and self._is_due(account.read_at, self._refresh_formulas, now):
            return Reason.FORMULA
        return None

    def to_sweep(self, accounts: Iterable[tuple[str, Account]], now: float) -> str | None:
        """Return an object whose ids are to be compared; a read of all of it does that, too."""
        for name, account in accounts:
            last = max(account.read_at or 0.0, account.swept_at or 0.0)
            if account.newest is not None and self._is_due(last, self._sweep, now):
                return name
        return None

    def _is_due(self, last: float | None, every: float, now: float) -> bool:
        if not every:
            return False
        if last is None:
            return True
        if self._end_after is not None and last >= self._end_after:
            return False
        return now - last >= every


class Patience:
    """When the org is asked again. Not thread-safe."""

    def __init__(self) -> None:
        self._next = _RETRY_FIRST
        self._until = float("-inf")

    def is_over(self, now: float) -> bool:
        """Whether the org may be asked, by a steady clock."""
        return now >= self._until

    def after(self, error: BaseException, now: float) -> float:
        """Wait because of a failure; return for how many seconds."""
        seconds = self._next
        self._next = min(_RETRY_MOST, 2 * seconds)
        if isinstance(error, QuotaExceededError) and not error.retryable:
            seconds = _RETRY_MOST  # the calls of a day come back over a day
        self._until = now + seconds
        return seconds

    def reset(self) -> None:
        """Forget earlier failures."""
        self._next = _RETRY_FIRST
