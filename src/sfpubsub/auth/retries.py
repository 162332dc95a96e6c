"""Repeat requests to an org on transient errors. Retries are bounded."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sfpubsub.backoff import Backoff
from sfpubsub.config import RestTimings
from sfpubsub.errors import SfPubSubError, StreamUnavailableError

logger = logging.getLogger("sfpubsub.rest")

T = TypeVar("T")


class Retries:
    """Repeats requests that are safe to repeat. Thread-safe.

    Args:
        timings: Delays and the number of attempts.
        sleep: Pauses for the given number of seconds; may raise an error to end the retries.
    """

    def __init__(self, timings: RestTimings, sleep: Callable[[float], None] = time.sleep) -> None:
        self._timings = timings
        self.sleep = sleep

    def again(self, ask: Callable[[], T]) -> T:
        """Return the result of *ask*, retrying it on transient errors.

        Raises:
            SfPubSubError: The error of the last attempt. There is no further attempt if the error
                is not transient, if the service asks for a delay longer than
                `RestTimings.backoff_max`, or after `RestTimings.attempts` attempts.
        """
        most = self._timings.attempts
        backoff = Backoff(self._timings.backoff_initial, self._timings.backoff_max)
        for attempt in range(1, most + 1):
            try:
                return ask()
            except SfPubSubError as error:
                delay = self._delay(error, backoff)
                if not error.retryable or attempt == most or delay is None:
                    raise
                logger.info(
                    "attempt %d of %d starts in %.1f s; the last failure: %s",
                    attempt + 1,
                    most,
                    delay,
                    error,
                )
            self.sleep(delay)
        raise AssertionError("bug in sfpubsub: the last attempt neither returned nor raised")

    def _delay(self, error: SfPubSubError, backoff: Backoff) -> float | None:
        """Return the delay before a retry, in seconds.

        Return None if the service asks for a longer delay than `RestTimings.backoff_max`.
        """
        if isinstance(error, StreamUnavailableError) and error.retry_after is not None:
            return error.retry_after if error.retry_after <= self._timings.backoff_max else None
        return backoff.next(random.random())  # noqa: S311  # no secret
