"""What a mirror will cost in API calls, object by object, before it runs.

This module is pure: no Spark, no I/O, no clock. The calls are those of reading.py, at the times of
due_reads.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sfpubsub.rest.grants import CHECK_EVERY
from sfpubsub.spark.ingest.selection import LOOK_EVERY
from sfpubsub.spark.mirror.budget import DAY
from sfpubsub.spark.mirror.due_reads import DESCRIBE_EVERY, changes_every, stretch_of
from sfpubsub.spark.mirror.settings import MirrorSettings

# Rows per query (Salesforce documentation: the maximum page size).
_PAGE = 2000

# Calls of a Bulk read beside its pages: the count, the job's creation and deletion, and looks at
# its state, of which there are more if it takes long.
_BULK = 10

# Records that a first read gets per second. No figure is documented, and those of public reports
# differ by a factor of ten: a guess for one object at a time.
_A_SECOND = 2000.0


@dataclass(frozen=True)
class Facts:
    """What the costs of an object depend on."""

    entity: str
    records: int
    """Number of its records, with those in the Recycle Bin."""
    has_events: bool
    """Whether the channel delivers its events."""
    unreported: int
    """Number of columns that no event fills."""
    has_stamp: bool = True
    """Whether it has SystemModstamp."""
    is_long: bool = False
    """Whether its query is too long for a URL."""


@dataclass(frozen=True)
class Cost:
    """The cost of one object, or what all objects together cost beside their own costs."""

    object: str
    records: int | None
    by: Literal["events", "modstamp", "nothing"] | None
    """What tells about changes. ``nothing``: the object cannot be mirrored, or waits."""
    fields_in_no_event: int | None
    calls_a_day: int
    share_of_limit: str
    """Share of the org's limit of API calls, in percent."""
    first_read_calls: int | None
    first_read_seconds: int | None


def costs(
    objects: Sequence[Facts], settings: MirrorSettings, limit: int, rights: int, look: int
) -> list[Cost]:
    """Return the cost of each object, and last what all together cost.

    Args:
        objects: The objects.
        settings: The settings of the mirror.
        limit: Number of API calls that the org allows in 24 hours.
        rights: Calls that a check of the user's rights takes.
        look: Calls that a look at the channel's members takes.
    """
    every = {each.entity: _every(each, settings) for each in objects}
    stretch = stretch_of([each for each in every.values() if each], limit)

    def cost(of: str, calls: float, **more: object) -> Cost:
        found = dict.fromkeys(
            ("records", "by", "fields_in_no_event", "first_read_calls", "first_read_seconds")
        )
        share = f"{100 * calls / limit:.1f} %"
        return Cost(of, calls_a_day=round(calls), share_of_limit=share, **{**found, **more})  # type: ignore[arg-type]

    rows = []
    for each in objects:
        by = _by(each, settings)
        whole = _whole(each, settings)
        calls = 0.0 if by == "nothing" else DAY / DESCRIBE_EVERY
        if by != "nothing" and every[each.entity]:
            a_read = 2 if each.is_long else 1
            calls += a_read * DAY / (stretch * every[each.entity])
        if by != "nothing" and (wholes := _whole_every(each, settings)):
            calls += whole * DAY / wholes
        rows.append(
            cost(
                each.entity,
                calls,
                records=each.records,
                by=by,
                fields_in_no_event=each.unreported,
                first_read_calls=whole,
                first_read_seconds=round(settings.margin + each.records / _A_SECOND),
            )
        )
    looks = look * DAY / LOOK_EVERY if settings.by != "modstamp" else 0.0
    rows.append(cost("all objects", 1 + rights * DAY / CHECK_EVERY + looks))
    return rows


def _by(of: Facts, settings: MirrorSettings) -> Literal["events", "modstamp", "nothing"]:
    if of.has_events and settings.by != "modstamp":
        return "events"
    return "modstamp" if of.has_stamp and settings.by != "events" else "nothing"


def _every(of: Facts, settings: MirrorSettings) -> float:
    """Return the interval in seconds between reads of changed records; 0 if there are none."""
    is_alone = _by(of, settings) == "modstamp"
    every = changes_every(
        settings.drift, settings.poll, is_alone=is_alone, has_derived=of.unreported > 0
    )
    return every if of.has_stamp else 0.0


def _whole_every(of: Facts, settings: MirrorSettings) -> float:
    """Return the interval in seconds between reads of all records, or all ids; 0 for never."""
    found = [settings.sweep, settings.refresh_formulas if of.unreported else 0.0]
    return min((each for each in found if each), default=0.0)


def _whole(of: Facts, settings: MirrorSettings) -> int:
    """Return the calls of a read of all records."""
    if of.records >= settings.bulk_from or of.is_long:
        return _BULK + of.records // settings.piece_rows
    return 2 + of.records // _PAGE
