"""Choose the next read of the org.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.spark.mirror.log import Kind
from sfpubsub.spark.mirror.reads import AsOf, Entry, Read, heals

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


def next_read(
    entries: Mapping[str, Sequence[Entry]],
    objects: Sequence[str],
    as_of: AsOf | None,
) -> Wanted | None:
    """Return a read that would close a queue entry if it began now; None if no read would.

    Args:
        entries: Open entries by object.
        objects: The objects, in the order in which to read them.
        as_of: What a read that begins now is guaranteed to contain (`reads.as_of`); None if it is
            too early for a read.
    """
    if as_of is None:
        return None
    now = Read(as_of, None, None)
    for entity in objects:
        open_entries = [each for each in entries.get(entity, ()) if heals(now, each)]
        about_all = any(each.is_about_all for each in open_entries)
        one = {each.record_id: None for each in open_entries if not each.is_about_all}
        if about_all or len(one) > MOST_IDS:
            return Wanted(entity, "object")
        if one:
            ids = tuple(each for each in one if each is not None)[:IDS_AT_ONCE]
            return Wanted(entity, "ids", ids)
    return None
