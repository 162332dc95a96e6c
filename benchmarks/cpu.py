"""Measures the CPU time of single parts of the client, which other load hardly affects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def for_each(call: Callable[[Any], object], items: Iterable[Any]) -> Callable[[], None]:
    """Return a function that calls *call* with each item."""

    def work() -> None:
        for item in items:
            call(item)

    return work


def interleaved(
    works: Mapping[str, Callable[[], object]], *, rounds: int, events: int, is_warmed: bool = False
) -> dict[str, list[float]]:
    """Measure functions in turn, for several rounds.

    Args:
        works: The functions, by name.
        rounds: Number of measurements of each function.
        events: Number of events that one call processes.
        is_warmed: Whether to call a function once without measuring it right before each
            measurement, so that the caches are filled as if no other function ran.

    Returns:
        CPU time per event in microseconds, in each round, by name.
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
