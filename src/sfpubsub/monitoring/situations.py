"""The situations in which a running command is not well, each with its reason. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sfpubsub.config import Timings
from sfpubsub.monitoring.observation import Facts
from sfpubsub.monitoring.words import span

Situation: TypeAlias = Literal["silent", "stuck", "retention", "schema", "failed"]

SITUATIONS: tuple[Situation, ...] = get_args(Situation)

# Seconds for which the service keeps events (Salesforce documentation, event message durability).
RETENTION = 72 * 3600.0


@dataclass(frozen=True)
class Bounds:
    """What is too long, in seconds."""

    silence: float = 330.0
    """Without a message of the service: it sends one every 270 s while events are wanted, the
    client opens a new stream after 300 s, and that has half a minute to bring something."""
    stuck: float = 600.0
    """For one step, or one turn of the loop: a write takes seconds, on a store that is slow a
    minute; the first step of a large raw table's tables may take some minutes."""
    retention: float = RETENTION * 2 / 3
    """Age of the position: a third of the retention is left, a day in which somebody can act."""
    schema: float = 60.0
    """For events to wait because their schema cannot be fetched: some attempts."""

    @classmethod
    def of(cls, timings: Timings) -> Bounds:
        """Return the bounds that go with the times of a client."""
        return cls(silence=timings.keepalive + 2 * timings.keepalive_margin)


@dataclass(frozen=True)
class Problem:
    """A situation, and of whom."""

    situation: Situation
    reason: str


def problems(
    sources: Iterable[Facts], steps: Mapping[str, float | None], bounds: Bounds, now: float
) -> list[Problem]:
    """Return what is not well; empty if all is.

    Args:
        sources: What is known of each subscription.
        steps: Of each kind of step, how many seconds the one under way has taken.
        bounds: What is too long.
        now: Seconds since 1970 UTC.
    """
    found = [
        Problem("stuck", f"{name}: under way for {span(seconds)}")
        for name, seconds in steps.items()
        if seconds is not None and seconds > bounds.stuck
    ]
    has_step = any(seconds is not None for seconds in steps.values())
    for facts in sources:
        found += _of_source(facts, bounds, now, has_step=has_step)
    return found


def _of_source(facts: Facts, bounds: Bounds, now: float, *, has_step: bool) -> list[Problem]:
    if facts.error is not None:
        return [Problem("failed", f"{facts.name}: {facts.error}")]
    health = facts.health
    if health.has_ended:
        return []
    found = []
    turn = 0.0 if facts.turned_at is None else now - facts.turned_at
    if turn > bounds.stuck and not has_step:  # else the step says it
        reason = f"{facts.name}: its loop has made no progress for {span(turn)}"
        found.append(Problem("stuck", reason))
    silence = now - (facts.heard_at or facts.since)
    if silence > bounds.silence:
        why = f": {health.reason}" if health.reason else ""
        found.append(
            Problem(
                "silent",
                f"{facts.name}: nothing from the service for {span(silence)}, the stream is "
                f"{health.state}{why}",
            )
        )
    if health.state == "waiting_for_schema" and facts.schema_since is not None:
        waited = now - facts.schema_since
        if waited > bounds.schema:
            found.append(Problem("schema", f"{facts.name}: for {span(waited)} {health.reason}"))
    age = None if facts.position_at is None else now - facts.position_at
    if age is not None and age > bounds.retention:
        found.append(
            Problem(
                "retention",
                f"{facts.name}: the position is {span(age)} old, and the service keeps events for "
                f"{span(RETENTION)}",
            )
        )
    return found
