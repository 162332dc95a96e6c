"""The commits that the service has neither confirmed nor rejected yet."""

from __future__ import annotations

from sfpubsub.errors import SfPubSubError
from sfpubsub.protocol.commands import SettleCommit
from sfpubsub.types import CommitReceipt


class PendingCommit:
    """The outcome of one commit, which is set once. Not a future: its waiters would take a lock."""

    def __init__(self) -> None:
        self.outcome: CommitReceipt | SfPubSubError | None = None
        """The receipt or the error; None as long as it is not known."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self.outcome is not None

    def receipt(self) -> CommitReceipt:
        """Return the receipt, or raise the error. Call this only once it is done."""
        if isinstance(self.outcome, CommitReceipt):
            return self.outcome
        if self.outcome is None:
            raise AssertionError("the outcome of the commit is not known yet")
        raise self.outcome


class Tickets:
    """The pending commits of one subscription, by ticket. Each ticket is settled once.

    A ticket is the number that the protocol layer assigned to a call to `commit`.
    """

    def __init__(self) -> None:
        self._pending: dict[int, PendingCommit] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, ticket: int, pending: PendingCommit) -> None:
        """Register what receives the outcome of *ticket*: a receipt or an error."""
        self._pending[ticket] = pending

    def settle(self, answer: SettleCommit) -> None:
        """Pass on the outcome of a commit."""
        self._pending.pop(answer.ticket).outcome = answer.outcome
