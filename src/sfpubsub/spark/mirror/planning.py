"""Choose which reads of the org are wanted. Which of them is next, turns.py decides.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.spark.mirror.log import Kind
from sfpubsub.spark.records.reads import AsOf, Entry, Read, heals

# Maximum number of ids per read (Salesforce documentation, sObject Collections with a request
# body).
IDS_AT_ONCE = 2000

# Number of queued records above which the whole object is read. Reading more records by id would
# take over ten calls; a Bulk read takes about ten.
MOST_IDS = 10 * IDS_AT_ONCE


@dataclass(frozen=True)
class Wanted:
    """A read that should be performed."""

    entity: str
    kind: Kind
    record_ids: tuple[str, ...] = ()
    """For the kind ``ids``: the ids to read."""


def wanted_reads(
    entries: Mapping[str, Sequence[Entry]],
    objects: Sequence[str],
    as_of: AsOf | None,
) -> list[Wanted]:
    """Return the reads that would close queue entries if they began now, at most one per object.

    A read by id takes the oldest entries first, so new entries cannot delay it for ever.

    Args:
        entries: Open entries by object, oldest first.
        objects: The objects, in the order of the result.
        as_of: What a read that begins now is guaranteed to contain (`reads.as_of`); None if it is
            too early for a read.
    """
    if as_of is None:
        return []
    now = Read(as_of, None, None)
    found = [_wanted(entity, entries.get(entity, ()), now) for entity in objects]
    return [each for each in found if each is not None]


def _wanted(entity: str, entries: Sequence[Entry], now: Read) -> Wanted | None:
    ids: dict[str, None] = {}
    doubtful = 0
    for each in entries:
        if not heals(now, each):
            continue
        if each.record_id is None or each.is_about_all:
            return Wanted(entity, "object")
        ids[each.record_id] = None
        doubtful += not each.cue.reason.is_about_absence  # only a read by id decides the others
        if doubtful > MOST_IDS:
            return Wanted(entity, "object")
    return Wanted(entity, "ids", tuple(ids)[:IDS_AT_ONCE]) if ids else None


def smallest_first(objects: Sequence[str], records: Mapping[str, int | None]) -> list[str]:
    """Return the objects in the order in which to read them whole, for instance after a gap.

    So most tables equal the org again soon, and a budget of API calls reaches as many as possible.

    Args:
        objects: The objects.
        records: Number of live records by object; None, or no entry, if it is not known. Objects
            that were never read come last, in the given order.
    """
    sizes = {name: records.get(name) for name in objects}
    return sorted(objects, key=lambda name: (sizes[name] is None, sizes[name] or 0))
