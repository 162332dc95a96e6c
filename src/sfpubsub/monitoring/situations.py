"""Determine whether a running command is unhealthy, and why.

This module is pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sfpubsub.config import Timings
from sfpubsub.monitoring.objects import ObjectState
from sfpubsub.monitoring.observation import Facts
from sfpubsub.monitoring.text import span

Situation: TypeAlias = Literal[
    "silent", "stuck", "retention", "schema", "failed", "behind", "waiting"
]

SITUATIONS: tuple[Situation, ...] = get_args(Situation)

# Reasons of waiting that end only when somebody acts in the org, so they are told at once. A failed
# read is repeated, and a pause was asked for: these fail /health when events have waited too long.
_LASTING = frozenset({"rights", "gone", "deselected"})

# Seconds for which the service retains events.
RETENTION = Timings.retention


@dataclass(frozen=True)
class Bounds:
    """The time limits that `problems` applies, in seconds."""

    silence: float = 330.0
    """Maximum time without a message from the service. The service sends one every 270 s while
    events are requested, the client opens a new stream after 300 s, and that stream has half a
    minute to receive a message.
    """
    stuck: float = 600.0
    """Maximum duration of a step or a loop iteration. A write takes seconds, or a minute on slow
    storage; the first step over a large raw table may take a few minutes.
    """
    retention: float = RETENTION * 2 / 3
    """Maximum age of the position. Beyond it, a third of the retention time is left: a day to
    react.
    """
    behind: float = 600.0
    """Maximum time that a received event waits until it is in a mirror's table. It is as long as
    for a stuck step, because one step may hold up all events.
    """
    schema: float = 60.0
    """Maximum time that events wait because their schema cannot be fetched; long enough for several
    attempts.
    """

    @classmethod
    def of(cls, timings: Timings) -> Bounds:
        """Return suitable limits for a client that uses *timings*."""
        return cls(silence=timings.keepalive + 2 * timings.keepalive_margin)


@dataclass(frozen=True)
class Problem:
    """A situation that makes a command unhealthy, and its reason."""

    situation: Situation
    reason: str


def problems(
    sources: Iterable[Facts],
    steps: Mapping[str, float | None],
    bounds: Bounds,
    now: float,
    objects: Iterable[ObjectState] = (),
) -> list[Problem]:
    """Return the current problems of a command; an empty list if it is healthy.

    Args:
        sources: Facts about each subscription.
        steps: How long the current step of each kind has been running, in seconds; None if no such
            step is running.
        bounds: The limits.
        now: Seconds since the epoch.
        objects: The state of each mirrored object.
    """
    found = [
        Problem("stuck", f"{name}: running for {span(seconds)}")
        for name, seconds in steps.items()
        if seconds is not None and seconds > bounds.stuck
    ]
    has_step = any(seconds is not None for seconds in steps.values())
    for facts in sources:
        found += _of_source(facts, bounds, now, has_step=has_step)
    for each in objects:
        found += _of_object(each, bounds)
    return found


def _of_object(each: ObjectState, bounds: Bounds) -> list[Problem]:
    found = [
        Problem("waiting", f"{each.entity}: {text}")
        for reason, text in each.waits.items()
        if reason in _LASTING
    ]
    if each.parked_rows:
        reason = f"{each.entity}: {each.parked_rows:,} deletions wait for a confirmation"
        found.append(Problem("waiting", reason))
    if each.behind is not None and each.behind > bounds.behind:
        why = "".join(f"; {text}" for reason, text in each.waits.items() if reason not in _LASTING)
        reason = (
            f"{each.entity}: events received {span(each.behind)} ago are not in the table yet{why}"
        )
        found.append(Problem("behind", reason))
    return found


def _of_source(facts: Facts, bounds: Bounds, now: float, *, has_step: bool) -> list[Problem]:
    if facts.error is not None:
        return [Problem("failed", f"{facts.name}: {facts.error}")]
    health = facts.health
    if health.has_ended:
        return []
    found = []
    turn = 0.0 if facts.turned_at is None else now - facts.turned_at
    if turn > bounds.stuck and not has_step:  # otherwise the step reports it
        reason = f"{facts.name}: the loop has made no progress for {span(turn)}"
        found.append(Problem("stuck", reason))
    silence = now - (facts.heard_at or facts.since)
    if silence > bounds.silence:
        why = f": {health.reason}" if health.reason else ""
        found.append(
            Problem(
                "silent",
                f"{facts.name}: nothing received from the service for {span(silence)}; the stream "
                f"is {health.state}{why}",
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
                f"{facts.name}: the position is {span(age)} old, and the service retains events "
                f"for {span(RETENTION)}",
            )
        )
    return found
