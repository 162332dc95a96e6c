"""Typed tables, derived from a raw one: a Parquet table for each event type, decoded on executors.

::

    _typed.json                                               which raw table this is derived from
    _lease                                                    who writes (raw/lease.py)
    _derived                                                  the last raw batch that is done
    _staging/                                                 a derivation under way, or a dead one
    _ready/                                                   one that is being published
    Order_Event__e/_columns.json                              its Spark schema and its schemas' ids
    Order_Event__e/ingest_date=…/batch=<raw batch>/part-….parquet
    _undecodable/ingest_date=…/batch=<raw batch>/part-….parquet

A derivation is staged, decided on by one rename, and then published, a rename for each type and
batch; one that died after the decision is finished first (typed_files.py). `_derived` moves only
when all types of a batch are durable. Rows are counted: those of a raw batch are in its typed
tables and in `_undecodable`, each once, or nothing of it is published.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.avro.codec import Codec
from sfpubsub.avro.columns import (
    BATCH,
    ENVELOPE,
    UNDECODABLE,
    Plan,
    columns_of,
    decode_rows,
    undecodable_rows,
)
from sfpubsub.durable import make_directory
from sfpubsub.errors import ConfigurationError, SchemaError, WriteError
from sfpubsub.spark.raw.batches import RawBatch, RawBatches
from sfpubsub.spark.raw.beside import SCHEMAS_NAME, STAGING_NAME
from sfpubsub.spark.raw.destination import Destination, local_sidecars
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.raw.parquet import SETTINGS
from sfpubsub.spark.raw.paths import EXACT_PATHS, file_url, local_path
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line, jvm_of, own_session
from sfpubsub.spark.tables.typed_files import (
    COLUMNS_NAME,
    EventType,
    Staged,
    claim_typed,
    finish,
    last_derived,
)
from sfpubsub.stores.schema_store import FileSchemaStore, SchemaStore

UNDECODABLE_NAME = "_undecodable"

# Columns of the raw table that are read: not the JSON.
_READ = (*ENVELOPE.names, "event_name", "payload", *BATCH.names)

# What can be a directory's name, and what no name of ours is.
_TYPE_NAME = re.compile(r"[A-Za-z]\w*")

# Raw batches of one derivation. A raw batch is one file, which one core decodes, and Spark costs
# about 0.2 s a derivation for each event type: this feeds 32 cores and spreads the cost, and no
# more is repeated after a crash.
BATCHES_AT_ONCE = 32


@dataclass(frozen=True)
class Derived:
    """What one derivation did. All of it is durable."""

    batches: int = 0
    """Raw batches."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows written, by event type."""
    undecodable: int = 0
    """Rows that could not be decoded; `_undecodable` says why."""

    def __add__(self, other: Derived) -> Derived:
        rows = Counter(self.rows)
        rows.update(other.rows)
        return Derived(
            self.batches + other.batches, dict(rows), self.undecodable + other.undecodable
        )


class TypedTables:
    """The one deriver of one directory of typed tables. A context manager; not thread-safe.

    Needs no credentials and calls no service: schemas come from the raw table's store. The raw
    table may be written meanwhile. Typed tables are Parquet on a local (POSIX) file system that
    Spark's executors share.

    Args:
        spark: A classic session (not Spark Connect); for a raw table of a table format with its
            jars (`spark_session`).
        raw: The raw table's path, or URL, or name in a catalog.
        to: The directory of the typed tables; made if it is missing.
        format: The raw table's: ``parquet``, ``delta`` or ``iceberg``.
        schemas: Where the raw table's schemas are; by default in its own sidecar.

    Raises:
        ConfigurationError: There is no raw table, or *to* is something else, or is being written
            by another process.
    """

    def __init__(
        self,
        spark: SparkSession,
        raw: str | os.PathLike[str],
        to: str | os.PathLike[str],
        *,
        format: str = "parquet",  # noqa: A002  # Spark's own word
        schemas: SchemaStore | None = None,
    ) -> None:
        source = Destination.parse(raw, format)
        self.path = local_path(to)
        self._spark = own_session(spark, SETTINGS)
        self._raw = RawBatches(self._spark, source)
        self._schemas = schemas or _store_of(source)
        self._types: dict[str, EventType] = {}
        self._names: dict[str, str] = {}  # by schema id
        if source.local is not None and self.path.is_relative_to(source.local):
            raise ConfigurationError(
                f"{self.path} is in the raw table, whose readers would take it for a part of it: "
                f"name another directory"
            )
        try:
            make_directory(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be made ({error.strerror}): name another directory"
            ) from error
        self._lease = Lease.acquire(self.path, jvm_of(spark).pid)
        with ExitStack() as unless_done:
            unless_done.callback(self._lease.release)
            claim_typed(self.path, source)
            shutil.rmtree(self.path / STAGING_NAME, ignore_errors=True)
            unless_done.pop_all()

    def derive(self) -> Iterator[Derived]:
        """Derive every raw batch that is not derived yet, oldest first.

        Yields:
            What was done, after each step of at most `BATCHES_AT_ONCE` raw batches. What a dead
            derivation had decided on is published first, and not counted.

        Raises:
            WriteError: A batch was not derived. What was yielded before is durable; the next call
                goes on from there.
        """
        try:
            finish(self.path)
        except OSError as error:
            raise WriteError(f"a derivation of {self.path} was not finished: {error}") from error
        waiting = self._raw.after(last_derived(self.path))
        for start in range(0, len(waiting), BATCHES_AT_ONCE):
            yield self._derive(waiting[start : start + BATCHES_AT_ONCE])

    def close(self) -> None:
        """Give the directory up. Does nothing the second time."""
        self._lease.release()

    def __enter__(self) -> TypedTables:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _derive(self, batches: Sequence[RawBatch]) -> Derived:
        """Derive some batches.

        1. Count their rows by schema, and give every type the columns that it lacks.
        2. Stage: decode and write each type.
        3. Where rows are missing, stage those that cannot be decoded, with the reasons.
        4. Check that every row is in one of them.
        5. Flush, decide, publish, and move `_derived`.
        """
        staging = self.path / STAGING_NAME / uuid.uuid4().hex
        try:
            rows = self._raw.rows(batches).select(*_READ)
            counts = {
                (row["batch"], row["schema_id"]): row["count"]
                for row in rows.groupBy("batch", "schema_id").count().collect()
            }
            self._learn({schema_id for _, schema_id in counts})
            wanted: Counter[str] = Counter()
            for (batch, _), count in counts.items():
                wanted[batch] += count
            staged = self._stage(rows, sorted({schema_id for _, schema_id in counts}), staging)
            _check_read(batches, wanted)
            missing = [batch for batch in wanted if wanted[batch] != staged.rows_of(batch)]
            if missing:
                left = rows.where(rows.batch.isin(missing)).mapInArrow(
                    partial(undecodable_rows, plans=[kind.plan for kind in self._types.values()]),
                    spark_schema(pa.schema([*UNDECODABLE, *BATCH])),
                )
                staged.add(UNDECODABLE_NAME, left)
            _check(wanted, staged)
            staged.publish(self.path, batches[-1])
        except (*SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(
                f"raw batches {batches[0].id} to {batches[-1].id} were not derived into "
                f"{self.path}: {first_line(error)}"
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        totals = staged.totals
        undecodable = totals.pop(UNDECODABLE_NAME, 0)
        return Derived(len(batches), totals, undecodable)

    def _stage(self, rows: DataFrame, schema_ids: Sequence[str], staging: Path) -> Staged:
        staged = Staged(staging)
        by_type: dict[str, list[str]] = {}
        for schema_id in schema_ids:
            name = self._names.get(schema_id)
            if name is not None:
                by_type.setdefault(name, []).append(schema_id)
        for name, ids in by_type.items():
            plan = self._types[name].plan
            only = Plan({schema_id: plan.schemas[schema_id] for schema_id in ids}, plan.columns)
            mine = rows.where(rows.schema_id.isin(ids)) if len(schema_ids) > len(ids) else rows
            typed = mine.mapInArrow(partial(decode_rows, plan=only), spark_schema(plan.output))
            staged.add(name, typed)
        return staged

    def _learn(self, schema_ids: set[str]) -> None:
        """Find the type of each schema, and make its columns durable before they are used.

        A schema that nobody has is looked for again with the next batches: it may have come.
        """
        for schema_id in sorted(schema_ids - self._names.keys()):
            text = self._schemas.get(schema_id)
            try:
                columns = columns_of(text) if text is not None else None
            except SchemaError:
                columns = None  # the rows are undecodable, and say so
            if text is None or columns is None:
                continue
            name = Codec(schema_id, text).name
            if not _TYPE_NAME.fullmatch(name):
                continue
            kind = self._type(name)
            if schema_id not in kind.plan.schemas:
                kind.add(schema_id, text, columns)
            self._names[schema_id] = name
        for kind in self._types.values():
            kind.save()

    def _type(self, name: str) -> EventType:
        if name not in self._types:
            kind = EventType(self.path / name)
            for schema_id in kind.saved_ids():
                text = self._schemas.get(schema_id)
                if text is None:
                    raise ConfigurationError(
                        f"{self.path / name / COLUMNS_NAME} names schema {schema_id}, which the "
                        f"raw table's schemas no longer have: put it back"
                    )
                kind.add(schema_id, text, columns_of(text))
            self._types[name] = kind
        return self._types[name]


def read_typed(spark: SparkSession, tables: str | os.PathLike[str], name: str) -> DataFrame:
    """Return one typed table, with all columns that its event type has had.

    Args:
        spark: Any session that reaches the files.
        tables: The directory of the typed tables.
        name: The event type, such as ``AccountChangeEvent``.

    Raises:
        ConfigurationError: There is no such table.
    """
    place = local_path(tables) / name
    try:
        found = json.loads((place / COLUMNS_NAME).read_text(encoding="utf-8"))
        schema = StructType.fromJson(found["spark_schema"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{place} is not a typed table: {error}") from error
    return spark.read.options(**EXACT_PATHS).schema(schema).parquet(file_url(place))


def read_undecodable(spark: SparkSession, tables: str | os.PathLike[str]) -> DataFrame:
    """Return the rows that could not be decoded: the envelope, the event's name and the reason."""
    schema = spark_schema(pa.schema([*UNDECODABLE, *BATCH]))
    place = local_path(tables) / UNDECODABLE_NAME
    if not place.is_dir():
        return spark.createDataFrame([], schema)
    return spark.read.options(**EXACT_PATHS).schema(schema).parquet(file_url(place))


def _store_of(source: Destination) -> SchemaStore:
    if source.local is None:
        raise ConfigurationError(
            f"the schemas of {source} are not on this machine: say where they are (schemas=…)"
        )
    return _Stores([FileSchemaStore(p) for p in local_sidecars(source.local, SCHEMAS_NAME)])


class _Stores(SchemaStore):
    """Several stores, looked into in order. A stream may still fill the one of an old table."""

    def __init__(self, stores: Sequence[SchemaStore]) -> None:
        self._stores = stores

    def get(self, schema_id: str) -> str | None:
        found = (store.get(schema_id) for store in self._stores)
        return next((text for text in found if text is not None), None)

    def put(self, schema_id: str, schema_json: str) -> None:
        self._stores[0].put(schema_id, schema_json)


def _check_read(batches: Sequence[RawBatch], found: Mapping[str, int]) -> None:
    empty = [batch.id for batch in batches if batch.id not in found]
    if empty:  # a batch has rows: Spark was told to leave out files that it cannot read
        raise WriteError(f"raw batch {empty[0]} was read without rows; nothing of it is published")


def _check(wanted: Mapping[str, int], staged: Staged) -> None:
    for batch, count in wanted.items():
        found = staged.rows_of(batch)
        if found != count:
            raise WriteError(
                f"{found} of the {count} rows of raw batch {batch} were decoded or told apart; "
                f"nothing of it is published"
            )
