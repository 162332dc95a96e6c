"""Compare a mirrored table with the org, row by row, and explain differences.

Verification only reads, and may run while the mirror runs. It does not decide what a table should
contain: it converts the org's responses to the column types and compares them. Memory use is
bounded, except for the ids of all records of the object, which are kept unless only a sample is
compared.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.auth.session import org_id_of
from sfpubsub.errors import ConfigurationError, PermissionDeniedError
from sfpubsub.rest import ObjectDescription, OrgReader
from sfpubsub.rest.reader import MOST_IDS
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.mirror.reading import rows_by_query
from sfpubsub.spark.mirror.rights import present_grant
from sfpubsub.spark.mirror.values import Findings, of_json
from sfpubsub.spark.raw.organisation import one_org
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.fold import none_if_empty
from sfpubsub.spark.records.queue import QUEUE_NAME
from sfpubsub.spark.runtime.arrow import arrow_schema, to_arrow
from sfpubsub.spark.runtime.sql import quoted
from sfpubsub.spark.tables.reading import org_of, read_typed

# Number of table rows in memory at a time: about 100 MB for a wide object.
_PART_ROWS = 50_000

# Fields with the time of the last change, the more precise one first. Not all objects have both.
_CHANGED = ("SystemModstamp", "LastModifiedDate")

# `Read.until` is this much later, because the org's Date header has a resolution of one second.
_SECOND = timedelta(seconds=1)

# Number of ids per query for deleted records. An id takes 21 characters of a URL, which is limited
# to 16,384.
_ASKED_AT_ONCE = 200


class Why(enum.StrEnum):
    """A reason why a row may differ from the org although the mirror works correctly."""

    QUEUED = "queued"
    """The reread queue has an open entry for the record, so the mirror will read it."""
    RECENT = "recent"
    """The record changed within the margin, or after what the table is known to contain: its newest
    event, and its last read.
    """
    UNREPORTED = "unreported"
    """Only fields that no event reports differ, such as formulas: the next refresh updates them."""
    PURGED = "purged"
    """The record is not in the org, not even in its Recycle Bin: the next sweep detects this."""


@dataclass(frozen=True)
class Difference:
    """One record that differs between the org and the table."""

    record_id: str
    fields: Mapping[str, tuple[Any, Any]]
    """Values of the org and of the table, by column. Empty if one of them lacks the record."""
    in_org: bool
    in_table: bool
    why: Why | None
    """Possible reason for the difference; None if it is unexplained."""


@dataclass
class Verification:
    """Compares the table of one object with the org.

    Iterate over `differences` once. The counts are complete afterwards.

    Args:
        spark: A session with the format's jars.
        reader: Reads the org as the mirror's user.
        target: The mirror's target.
        entity: The object.
        format: Format of the tables.
        sample: Number of records of the table to compare, chosen at random; None for all.
        margin: Maximum seconds by which the org's responses lag behind its events.
        clock: Wall clock, in seconds since the epoch.

    Raises:
        ConfigurationError: *target* is not valid.
    """

    spark: SparkSession
    reader: OrgReader
    target: str | os.PathLike[str]
    entity: str
    format: str = "delta"
    sample: int | None = None
    margin: float = 300.0
    clock: Callable[[], float] = time.time
    compared: int = 0
    """Number of records compared: those of the table and, without a sample, those that only the org
    has. The sum of `equal` and all counts in `differing`.
    """
    equal: int = 0
    differing: dict[str, int] = field(default_factory=dict)
    """Number of differing records by `Why`; those without a reason under ``unexplained``."""

    def __post_init__(self) -> None:
        Destination.of_tables(self.target, self.format)  # fail before the org is asked

    def differences(self) -> Iterator[Difference]:
        """Yield each record that differs.

        Raises:
            ConfigurationError: The table does not exist.
            OtherOrgError: The tables contain records of another org.
            PermissionDeniedError: The user may not have been able to see every record, from the
                beginning to the end. Then the differences prove nothing about missing records.
            SfPubSubError: The org could not be read; see `OrgReader`.
        """
        place = Destination.of_tables(self.target, self.format)
        one_org(org_of(self.spark, place), org_id_of(self.reader.sessions.get().tenant_id), place)
        grant = present_grant(self.reader, self.entity)
        sides = _Sides.of(self)
        swept = None if self.sample is not None else sides.ids()
        for rows in self._rows(sides):
            found = sides.rows_of_org(list(rows))
            for record_id, row in rows.items():
                self.compared += 1
                if swept is not None:
                    swept.discard(record_id)
                yield from self._counted(sides.compared(record_id, row, found[record_id]))
        # The remaining ids were not live records of the table when it was read.
        for ids in _chunks(sorted(swept or ()), MOST_IDS):
            for record_id, there in sides.rows_of_org(ids).items():
                if there is not None:
                    self.compared += 1
                    yield from self._counted(sides.missing(record_id, there))
        if not present_grant(self.reader, self.entity).continues(grant):
            raise PermissionDeniedError(
                f"the right to see every record of {self.entity} was withdrawn for some time "
                f"during the comparison, so records that were not found may be hidden: compare "
                f"again"
            )

    def _counted(self, found: Difference | None) -> Iterator[Difference]:
        if found is None:
            self.equal += 1
            return
        why = found.why or "unexplained"
        self.differing[why] = self.differing.get(why, 0) + 1
        yield found

    def _rows(self, sides: _Sides) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield the live rows, or a sample of them, by record id, in groups of up to `MOST_IDS`."""
        count = sides.live().count()
        if self.sample is not None:
            chosen = sides.live().orderBy(f.rand()).limit(self.sample)
            # Collect the ids once, because a DataFrame with a random order returns different rows
            # each time.
            ids = [row["record_id"] for row in chosen.select("record_id").collect()]
            for part in _chunks(ids, MOST_IDS):
                yield sides.rows_of(sides.live().where(f.col("record_id").isin(part)))
            return
        parts = -(-count // _PART_ROWS)
        for number in range(parts):
            hashed = f.pmod(f.xxhash64("record_id"), f.lit(parts))
            rows = sides.rows_of(sides.live().where(hashed == number))
            for part in _chunks(list(rows), MOST_IDS):
                yield {record_id: rows[record_id] for record_id in part}


@dataclass
class _Sides:
    """The two sides of a comparison: one object's records in the table and in the org.

    Also contains what may explain a difference, such as the mirror's open queue entries.
    """

    reader: OrgReader
    description: ObjectDescription
    columns: Columns
    names: Sequence[str]
    changed: str | None
    unreported: frozenset[str]
    open_entries: tuple[str | None, ...]
    recent_since: datetime
    _open: Callable[[], DataFrame]
    _is_marked: dict[str, bool] = field(default_factory=dict)
    _deleted: dict[str, Any] = field(default_factory=dict)
    _findings: Findings = field(default_factory=Findings)

    @classmethod
    def of(cls, asked: Verification) -> _Sides:
        description = asked.reader.describe(asked.entity)

        def opened(name: str) -> DataFrame:
            return read_typed(asked.spark, asked.target, name, format=asked.format)

        table = opened(description.name)
        schema = _schema(table)
        columns = Columns.of(description, Columns.of_table(description.name, schema))
        columns = Columns(
            columns.entity,
            tuple(each for each in columns.columns if each.name in schema.names),
            _event_names(opened, description.name),
        )
        recent = datetime.fromtimestamp(asked.clock() - asked.margin, UTC)
        through = _through(table, timedelta(seconds=asked.margin))
        return cls(
            asked.reader,
            description,
            columns,
            [each.name for each in columns.columns if each.described],
            _changed(description),
            frozenset(columns.unreported),
            _open_entries(opened, description.name),
            recent if through is None else min(recent, through + timedelta(milliseconds=1)),
            lambda: opened(description.name),
        )

    @property
    def entity(self) -> str:
        """Name of the object."""
        return self.description.name

    def ids(self) -> set[str]:
        """Return the ids of the org's records, including archived ones, but not deleted ones."""
        where = " WHERE IsDeleted = false" if self.description.field("IsDeleted") else ""
        soql = f"SELECT Id FROM {self.entity}{where}"  # noqa: S608  # SOQL, and a described name
        return {row["Id"] for page in self.reader.query(soql, all_rows=True) for row in page.rows}

    def live(self) -> DataFrame:
        """Return the table's current rows, without those of deleted records."""
        return self._open().where("NOT _is_deleted")

    def rows_of(self, frame: DataFrame) -> dict[str, dict[str, Any]]:
        """Return the rows in *frame* by record id, and remember which are marked for rereading."""
        table = frame.select("record_id", "_reread", *map(quoted, self.names))
        rows = {}
        for row in to_arrow(table).to_pylist():
            record_id = row.pop("record_id")
            self._is_marked[record_id] = row.pop("_reread")
            rows[record_id] = row
        return rows

    def rows_of_org(self, ids: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """Return the org's records by id; None for a record that the org does not return."""
        wanted = [*self.columns.selected, *([self.changed] if self.changed else [])]
        answer = self.reader.retrieve(self.entity, ids, wanted)
        there = {record_id: row for record_id, row in answer.items() if row is not None}
        archived: list[str] = []
        for part in _chunks([each for each in ids if each not in there], _ASKED_AT_ONCE):
            archived += self._look_for_others(part)
        there.update(rows_by_query(self.reader, self.entity, archived, wanted))
        table = of_json(self.columns, list(there.values()), self._findings)
        values = dict(zip(there, table.to_pylist(), strict=True))
        found: dict[str, dict[str, Any] | None] = dict.fromkeys(ids)
        for record_id, row in there.items():
            changed = row.get(self.changed) if self.changed else None
            found[record_id] = {**values[record_id], _AT: changed}
        return found

    def _look_for_others(self, ids: Sequence[str]) -> list[str]:
        """Record which of *ids* are in the Recycle Bin, and when these records last changed.

        Return those of the others that exist: archived ones, which a request by id leaves out.
        """
        flag = ["IsDeleted"] if self.description.field("IsDeleted") else []
        fields = ", ".join(["Id", *flag, *([self.changed] if self.changed else [])])
        listed = ", ".join(f"'{each}'" for each in ids)
        soql = f"SELECT {fields} FROM {self.entity} WHERE Id IN ({listed})"  # noqa: S608  # SOQL
        there = []
        for page in self.reader.query(soql, all_rows=True):
            for row in page.rows:
                if row.get("IsDeleted") is True:
                    self._deleted[row["Id"]] = row.get(self.changed) if self.changed else None
                else:
                    there.append(row["Id"])
        return there

    def compared(
        self, record_id: str, row: Mapping[str, Any], found: Mapping[str, Any] | None
    ) -> Difference | None:
        """Return how a record of the table differs from the org; None if it does not differ."""
        if found is None:
            why = self._queued(record_id) or self._gone(record_id)
            return Difference(record_id, {}, in_org=False, in_table=True, why=why)
        differing = {
            name: (found[name], row[name])
            for name in self.names
            if _plain(found[name]) != _plain(row[name])
        }
        if not differing:
            return None
        why = self._queued(record_id)
        if why is None and differing.keys() <= self.unreported:
            why = Why.UNREPORTED
        if why is None and self._is_recent(found[_AT]):
            why = Why.RECENT
        return Difference(record_id, differing, in_org=True, in_table=True, why=why)

    def missing(self, record_id: str, found: Mapping[str, Any]) -> Difference:
        """Return the difference for a record that only the org has."""
        why = self._queued(record_id)
        if why is None and self._is_recent(found[_AT]):
            why = Why.RECENT
        return Difference(record_id, {}, in_org=True, in_table=False, why=why)

    def _queued(self, record_id: str) -> Why | None:
        concerned = self._is_marked.get(record_id, False) or any(
            each is None
            or record_id == each
            or (each.endswith("*") and record_id.startswith(each.rstrip("*")))
            for each in self.open_entries
        )
        return Why.QUEUED if concerned else None

    def _is_recent(self, changed: Any) -> bool:
        if not isinstance(changed, str):
            return False
        return datetime.fromisoformat(changed) >= self.recent_since

    def _gone(self, record_id: str) -> Why | None:
        """Return why a record of the table is missing from the org: purged, or changed recently.

        Return None if the record is in the Recycle Bin and has not changed recently.
        """
        if record_id not in self._deleted:
            return Why.PURGED
        return Why.RECENT if self._is_recent(self._deleted[record_id]) else None


# Key under which a row of the org has the time of its last change; no column has this name.
_AT = "_changed_at"


def _schema(table: DataFrame) -> pa.Schema:
    """Return the schema of a mirrored table without the id and the mirror's own columns."""
    if "record_id" not in table.columns or "_reread" not in table.columns:
        raise ConfigurationError(
            "the table lacks the column record_id or _reread, so it does not belong to a mirror: "
            "specify the target of a mirror"
        )
    schema = arrow_schema(table.schema)
    return pa.schema(
        [each for each in schema if each.name != "record_id" and not each.name.startswith("_")]
    )


def _changed(description: ObjectDescription) -> str | None:
    return next((name for name in _CHANGED if description.field(name)), None)


def _event_names(opened: Callable[[str], DataFrame], entity: str) -> frozenset[str] | None:
    """Return the column names of an object's typed table; None if the table does not exist."""
    stem = entity.removesuffix("c") if entity.endswith("__c") else entity
    try:
        names = opened(f"{stem}ChangeEvent").columns
    except ConfigurationError:
        return None
    return frozenset(name.rstrip("_").lower() for name in names)


def _open_entries(opened: Callable[[str], DataFrame], entity: str) -> tuple[str | None, ...]:
    rows = opened(QUEUE_NAME).where(f.col("entity_name") == entity).select("record_id")
    return tuple(row["record_id"] for row in rows.distinct().collect())


def _through(table: DataFrame, margin: timedelta) -> datetime | None:
    """Return the time up to which the table contains the org's changes; None if it is unknown.

    The table may have been left alone since, so a later difference is no error of the mirror.
    """
    times = [f.max("_commit_timestamp").alias("event")]
    if "_read" in table.columns:
        # A read of the whole object sets this in every live row.
        times.append(f.min(f.when(~f.col("_is_deleted"), f.col("_read.until"))).alias("read"))
    row = to_arrow(table.agg(*times)).to_pylist()[0]
    # `Read.until` is a margin later than the response, which itself may lag by a margin.
    read = None if row.get("read") is None else row["read"] - 2 * margin - _SECOND
    return max((each for each in (row["event"], read) if each is not None), default=None)


def _chunks(ids: Sequence[str], size: int) -> Iterator[list[str]]:
    rest = iter(ids)
    while part := list(islice(rest, size)):
        yield part


def _plain(value: Any) -> Any:
    """Return a value in the form in which values are compared.

    Null fields of a compound value are removed. If all its fields are null, the result is None.
    """
    if isinstance(value, dict):
        return none_if_empty({name: each for name, each in value.items() if each is not None})
    return value
