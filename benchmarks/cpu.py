"""The CPU time of parts of the client by themselves, which a busy machine changes little."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def for_each(call: Callable[[Any], object], items: Iterable[Any]) -> Callable[[], None]:
    """Return the work of calling *call* with each item."""

    def work() -> None:
        for item in items:
            call(item)

    return work


def interleaved(
    works: Mapping[str, Callable[[], object]], *, rounds: int, events: int, is_warmed: bool = False
) -> dict[str, list[float]]:
    """Measure works that take turns.

    Args:
        works: By name.
        rounds: How often each is done.
        events: What one of them is about.
        is_warmed: Whether each is done once more right before it is measured, so that caches are
            as they are for who does nothing else.

    Returns:
        CPU time of an event for each round, in microseconds.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            if is_warmed:
                work()
            started = time.process_time()
            work()
            times[name].append((time.process_time() - started) / events * 1e6)
    return times
