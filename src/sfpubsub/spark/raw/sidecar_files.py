"""The files of a raw table's sidecars: their columns, and how to read them.

Each sidecar is a directory of JSON files with one object per line, which Spark reads as a table
(`read_sidecar`). For a table that is not local, the files are the rows of one table (files.py).
See ingest/sidecars.py for what each file is for, and when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import TARGET_FORMATS
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.files import FILE_COLUMNS, FILES_NAME, Files
from sfpubsub.spark.raw.ownership import local_sidecar
from sfpubsub.spark.runtime.paths import EXACT_PATHS, file_url
from sfpubsub.spark.runtime.session import SPARK_ERRORS
from sfpubsub.spark.runtime.sql import quoted
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
    if place.local is not None:
        found = file_url(local_sidecar(place.local, f"_{name}"))
        reader = spark.read.options(**EXACT_PATHS).schema(COLUMNS[name])
        # The quarantine also contains marker files, which are not entries.
        return reader.json(found, pathGlobFilter="*.json")
    rows = _stored(spark, place)
    rows = rows.where((f.col("directory") == f"_{name}") & f.col("name").endswith(".json"))
    lines = rows.select(f.explode(f.split("text", "\n")).alias("line")).where("line <> ''")
    return lines.select(f.from_json("line", COLUMNS[name]).alias("row")).select("row.*")


def _stored(spark: SparkSession, place: Destination) -> DataFrame:
    """Return the table with the files of a raw table that is not local.

    Raises:
        ConfigurationError: There is none, in either format.
    """
    if place.in_catalog:
        return spark.read.table(quoted(*f"{place.address}_{FILES_NAME}".split(".")))
    url = f"{place.address}/_{FILES_NAME}"
    for format_ in TARGET_FORMATS:
        try:
            found = spark.read.format(format_).load(url)
        except SPARK_ERRORS:
            continue
        if found.columns == list(FILE_COLUMNS):
            return found
    raise ConfigurationError(f"{place} has no sidecars, which are a table at {url}: check the URL")


class SidecarSchemas(SchemaStore):
    """A schema store that writes the same files as `FileSchemaStore`, wherever the table is."""

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
    """A quarantine that writes the same files as `FileQuarantine`, wherever the table is.

    Only `put` is supported.
    """

    def __init__(self, files: Callable[[], Files]) -> None:
        self._open = files
        self._files: Files | None = None

    def put(self, events: Sequence[QuarantinedEvent]) -> None:
        """See `Quarantine`."""
        files = self._files = self._files or self._open()
        files.make()
        files.add({f"{event.key}.json": entry_text(event) for event in events})
