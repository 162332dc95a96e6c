"""The files of a raw table's sidecars: their columns, and how to read them.

Each sidecar is a directory of JSON files with one object per line, which Spark reads as a table
(`read_sidecar`). See ingest/sidecars.py for what each file is for, and when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.files import Files
from sfpubsub.spark.raw.ownership import local_sidecar
from sfpubsub.spark.runtime.paths import EXACT_PATHS, file_url
from sfpubsub.stores.file_quarantine import entry_text
from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent
from sfpubsub.stores.schema_store import SchemaStore, schema_file_name, schema_in, schema_text

# Spark schema of each sidecar: without it, an empty directory would be an error, and an all-null
# column would be missing.
COLUMNS = {
    "schemas": "schema_id STRING, schema STRING, `check` STRING",
    "quarantine": (
        "subscription STRING, topic STRING, event_id STRING, replay_id STRING, schema_id STRING, "
        "payload STRING, headers ARRAY<ARRAY<STRING>>, reason STRING, received_at DOUBLE, "
        "delivery_seq BIGINT, schema STRING, `check` STRING"
    ),
    "gaps": (
        "subscription STRING, reason STRING, after STRING, before STRING, error_code STRING, "
        "rpc_id STRING, entity STRING, noted_at DOUBLE"
    ),
    "commits": (
        "run STRING, subscription STRING, replay_id STRING, noted_at DOUBLE, received BIGINT, "
        "rows BIGINT, duplicates BIGINT, set_aside BIGINT, batches BIGINT, first_seq BIGINT, "
        "last_seq BIGINT, conflicts BIGINT"
    ),
    "conflicts": (
        "subscription STRING, topic STRING, event_id STRING, schema_id STRING, replay_id STRING, "
        "payload STRING, stored_replay_id STRING, stored_seq BIGINT, noted_at DOUBLE"
    ),
    "confirmed": "subscription STRING, replay_id STRING, at DOUBLE, noted_at DOUBLE",
}


def read_sidecar(spark: SparkSession, table: str | Path, name: str) -> DataFrame:
    """Return a sidecar of a raw table as a DataFrame, which may be empty.

    Args:
        spark: Any Spark session.
        table: Path or URL of the raw table, or its name in a catalog; see `EventWriter`.
        name: ``schemas``, ``quarantine``, ``gaps``, ``commits``, ``conflicts`` or
            ``confirmed``.

    Raises:
        ConfigurationError: *name* is not the name of a sidecar, *table* is not valid, or its
            identity file cannot be read.
    """
    if name not in COLUMNS:
        raise ConfigurationError(f"{name!r} is not a sidecar: use one of {', '.join(COLUMNS)}")
    # Format delta accepts every kind of address: paths, URLs and names of catalog tables.
    place = Destination.parse(table, "delta")
    if place.local is None:
        found = f"{location_of(spark, place)}/_{name}"
    else:
        found = file_url(local_sidecar(place.local, f"_{name}"))
    reader = spark.read.options(**EXACT_PATHS).schema(COLUMNS[name])
    # The quarantine also contains marker files, which are not entries.
    return reader.json(found, pathGlobFilter="*.json")


def location_of(spark: SparkSession, destination: Destination) -> str:
    """Return the URL or path of a table's directory, looking it up in the catalog if necessary."""
    if not destination.in_catalog:
        return destination.address
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {destination.in_sql}").collect()
    return next(str(row["data_type"]) for row in rows if row["col_name"] == "Location")


class SidecarSchemas(SchemaStore):
    """A schema store that writes the same files as `FileSchemaStore`, on any file system."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def get(self, schema_id: str) -> str | None:
        """See `SchemaStore`."""
        name = schema_file_name(schema_id)
        text = self._files.read(name)
        return None if text is None else schema_in(text, schema_id, f"{self._files.place}/{name}")

    def put(self, schema_id: str, schema_json: str) -> None:
        """See `SchemaStore`."""
        self._files.replace(schema_file_name(schema_id), schema_text(schema_id, schema_json))


class SidecarQuarantine(Quarantine):
    """A quarantine that writes the same files as `FileQuarantine`, on any file system.

    Only `put` is supported.
    """

    def __init__(self, files: Callable[[], Files]) -> None:
        self._open = files
        self._files: Files | None = None

    def put(self, events: Sequence[QuarantinedEvent]) -> None:
        """See `Quarantine`."""
        files = self._files = self._files or self._open()
        for event in events:
            name = f"{event.key}.json"
            if files.read(name) is None:  # a file gets its name only once it is complete
                files.replace(name, entry_text(event))
