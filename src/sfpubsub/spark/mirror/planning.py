"""Which read of the org comes next. Pure: no Spark, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.spark.mirror.log import Kind
from sfpubsub.spark.mirror.reads import AsOf, Entry, Read, heals

# Ids of one read (Salesforce documentation, sObject Collections with a request body).
IDS_AT_ONCE = 2000

# Records in the queue beyond which the whole object is read: ten calls of ids, where a read in bulk
# takes about as many.
MOST_IDS = 10 * IDS_AT_ONCE


@dataclass(frozen=True)
class Wanted:
    """A read that is to be done."""

    entity: str
    kind: Kind
    record_ids: tuple[str, ...] = ()
    """With ``ids``: which."""


def next_read(
    entries: Mapping[str, Sequence[Entry]],
    objects: Sequence[str],
    as_of: AsOf | None,
) -> Wanted | None:
    """Return a read that heals something now; None to wait.

    Args:
        entries: The open ones, by object.
        objects: In the order in which they are read.
        as_of: What a read that began now would be worth; None where a margin has yet to pass.
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
