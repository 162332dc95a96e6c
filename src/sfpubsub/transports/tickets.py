"""Futures of the commits that the service has neither confirmed nor rejected yet."""

from __future__ import annotations

from concurrent.futures import Future

from sfpubsub.errors import SfPubSubError
from sfpubsub.protocol.commands import SettleCommit
from sfpubsub.types import CommitReceipt


class Tickets:
    """The pending commits of one subscription, by ticket. Each ticket is settled once.

    A ticket is the number that the protocol layer assigned to a call to `commit`.
    """

    def __init__(self) -> None:
        self._futures: dict[int, Future[CommitReceipt]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def add(self, ticket: int, future: Future[CommitReceipt]) -> None:
        """Register the future that receives the outcome of *ticket*: a receipt or an error."""
        self._futures[ticket] = future

    def settle(self, answer: SettleCommit) -> None:
        """Pass the outcome of a commit to its future."""
        future = self._futures.pop(answer.ticket)
        if not future.set_running_or_notify_cancel():
            return  # cancelled by the caller
        if isinstance(answer.outcome, SfPubSubError):
            future.set_exception(answer.outcome)
        else:
            future.set_result(answer.outcome)
