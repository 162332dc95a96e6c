"""The files of typed tables: whose they are, each type's columns, and how batches are published.

Decides nothing about events. See typed.py for the layout. Invariant: a derivation is published as
a whole or not at all. It is decided on by one rename, to ``_ready``; from then on nobody derives
anything before `finish` has moved what is in there. A derivation made anew instead could come out
differently, because a schema has come or gone meanwhile, and half of each be published.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from sfpubsub.avro.columns import BATCH, Plan, merge
from sfpubsub.durable import make_directory, replace_file, sync, sync_directory_and_files
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.batches import RawBatch
from sfpubsub.spark.raw.beside import STAGING_NAME
from sfpubsub.spark.raw.destination import BATCH_PREFIX, Destination
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.raw.layout import NEWEST
from sfpubsub.spark.raw.lease import LEASE_NAME
from sfpubsub.spark.raw.parquet import WRITE_OPTIONS
from sfpubsub.spark.raw.paths import file_url

COLUMNS_NAME = "_columns.json"
DERIVED_NAME = "_derived"
_IDENTITY_NAME = "_typed.json"
_READY_NAME = "_ready"

# Version of the layout.
_LAYOUT = 1


class EventType:
    """The columns of one event type: those of all its schemas, in the order in which they came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: tuple[str, ...] = ()
        self.plan = Plan({}, pa.schema([]))

    def saved_ids(self) -> list[str]:
        """Return the ids of the schemas that the columns were made of, in order.

        Raises:
            WriteError: The file cannot be read.
        """
        try:
            found = json.loads((self._path / COLUMNS_NAME).read_text(encoding="utf-8"))
            return list(found["schema_ids"])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WriteError(f"{self._path / COLUMNS_NAME} cannot be read: {error}") from error

    def add(self, schema_id: str, schema_json: str, columns: pa.Schema) -> None:
        """Take one more schema, and the columns it has."""
        schemas = {**self.plan.schemas, schema_id: schema_json}
        self.plan = Plan(schemas, merge(self.plan.columns, columns))

    def save(self) -> None:
        """Make the columns durable, unless they are."""
        if self._saved == tuple(self.plan.schemas):
            return
        make_directory(self._path)
        record = {
            "schema_ids": list(self.plan.schemas),
            "spark_schema": spark_schema(self.plan.output).jsonValue(),
        }
        replace_file(self._path / COLUMNS_NAME, json.dumps(record))
        self._saved = tuple(self.plan.schemas)


class Staged:
    """Rows that are written and not published yet, by table and batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batches: dict[tuple[str, str], tuple[Path, int]] = {}

    def add(self, name: str, rows: DataFrame) -> None:
        """Write the rows of one table."""
        place = self._path / name
        writer = rows.write.options(**WRITE_OPTIONS).partitionBy(*BATCH.names)
        writer.mode("error").parquet(file_url(place))
        if not (place / "_SUCCESS").exists():
            raise WriteError(f"spark did not finish {place}: do its executors share it?")
        for batch in sorted(place.glob(f"{NEWEST.prefix}*/{BATCH_PREFIX}*")):
            count = sum(pq.read_metadata(file).num_rows for file in batch.glob("part-*.parquet"))
            self._batches[name, batch.name.removeprefix(BATCH_PREFIX)] = (batch, count)

    def rows_of(self, batch: str) -> int:
        """Return how many rows of a raw batch there are, in all tables."""
        return sum(count for (_, mine), (_, count) in self._batches.items() if mine == batch)

    @property
    def totals(self) -> dict[str, int]:
        """Rows by table."""
        totals: Counter[str] = Counter()
        for (name, _), (_, count) in self._batches.items():
            totals[name] += count
        return dict(totals)

    def publish(self, to: Path, last: RawBatch) -> None:
        """Make every batch durable and visible, and note that all up to *last* are.

        If it fails or dies, `finish` does the rest, or nothing of it is published.
        """
        record = {"v": 1, "batch": last.id, "ingest_date": last.date}
        make_directory(self._path)
        replace_file(self._path / DERIVED_NAME, json.dumps(record))
        above = set()
        for batch, _ in self._batches.values():
            sync_directory_and_files(batch)
            above.update({batch.parent, batch.parent.parent})
        for directory in (*above, self._path):
            sync(directory)
        os.rename(self._path, to / _READY_NAME)
        sync(to)
        finish(to)


def finish(tables: Path) -> None:
    """Publish the derivation that was decided on, if there is one. Can die and begin again."""
    ready = tables / _READY_NAME
    if not ready.exists():
        return
    for day in sorted(ready.glob(f"*/{NEWEST.prefix}*")):
        target = tables / day.relative_to(ready)
        make_directory(target)
        for batch in sorted(day.glob(f"{BATCH_PREFIX}*")):
            if not (target / batch.name).exists():  # else it was derived before
                os.rename(batch, target / batch.name)
        sync(target)  # also what was moved before a death
        sync(day)
    replace_file(tables / DERIVED_NAME, (ready / DERIVED_NAME).read_text(encoding="utf-8"))
    # Away at once: with its note gone and the directory still there it would be none of both.
    done = tables / STAGING_NAME / uuid.uuid4().hex
    make_directory(done.parent)
    os.rename(ready, done)
    shutil.rmtree(done, ignore_errors=True)


def last_derived(tables: Path) -> RawBatch | None:
    """Return the last raw batch that is done, or None.

    Raises:
        WriteError: The note of it cannot be read.
    """
    note = tables / DERIVED_NAME
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        return RawBatch(found["batch"], found["ingest_date"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WriteError(f"{note} cannot be read: {error}") from error


def claim_typed(path: Path, source: Destination) -> None:
    """Write on the directory which raw table it is derived from. Call under the lease.

    A claim holds from the first columns on: before that a mistyped source must not keep a path.

    Raises:
        ConfigurationError: It is another's, or something else.
    """
    identity = path / _IDENTITY_NAME
    wanted = {"layout": _LAYOUT, "format": source.format, "raw": source.address}
    try:
        found = json.loads(identity.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{identity} cannot be read: {error}") from error
    if found == wanted:
        return
    # A first start that died may have left a draft of the identity, and a later one its staging,
    # which a directory that is not claimed would lose.
    ours = (LEASE_NAME, _IDENTITY_NAME, *([STAGING_NAME] if found is not None else []))
    derived = sorted(name for name in os.listdir(path) if not name.startswith(ours))
    if not derived:
        replace_file(identity, json.dumps(wanted))
    elif found is None:
        raise ConfigurationError(
            f"{path} is not empty and holds no typed tables of sfpubsub (it holds "
            f"{derived[0]!r}): name another directory"
        )
    elif not _is_same(found, wanted):
        raise ConfigurationError(
            f"{path} is derived from {found.get('raw')} ({found.get('format')}), layout "
            f"{found.get('layout')}: name another directory"
        )


def _is_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two identities name one raw table, by different paths to it."""
    if {**found, "raw": ""} != {**wanted, "raw": ""}:
        return False
    places = [str(found.get("raw")), wanted["raw"]]
    return all(map(os.path.isabs, places)) and len(set(map(os.path.realpath, places))) == 1
