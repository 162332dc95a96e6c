"""The identity of a target: its raw table, the objects that have tables, and the org."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.files import files_of
from sfpubsub.spark.raw.ownership import local_sidecar
from sfpubsub.spark.raw.sidecar_files import SidecarSchemas
from sfpubsub.spark.raw.sidecar_paths import SCHEMAS_NAME
from sfpubsub.spark.runtime.session import own_session
from sfpubsub.stores.schema_store import FileSchemaStore, SchemaStore

# Version of the record.
_LAYOUT = 1


@dataclass(frozen=True)
class Identity:
    """What a target's tables are built from: a raw table, some of its objects, and an org."""

    format: str
    """Format of the raw table."""
    raw: str
    """Location of the raw table when it was last read."""
    id: str | None
    """Identity of the raw table, independent of its location; see `RawBatches.identity`."""
    objects: tuple[str, ...] = ()
    """Objects and event types that have tables; empty means all."""
    org_id: str | None = None
    """18-character id of the org; None if it is not known."""

    def record(self) -> dict[str, Any]:
        """Return the identity as a JSON object to store with the tables."""
        return {
            "v": _LAYOUT,
            "format": self.format,
            "raw": self.raw,
            "id": self.id,
            "objects": list(self.objects),
            "org_id": self.org_id,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: Destination) -> Identity:
        """Parse a stored identity.

        Raises:
            ConfigurationError: The record is damaged or was written by an incompatible version.
        """
        try:
            if record["v"] == _LAYOUT:
                return cls(
                    record["format"],
                    record["raw"],
                    record["id"],
                    tuple(record["objects"]),
                    record["org_id"],
                )
            reason = f"layout {record['v']}"
        except (KeyError, TypeError) as error:
            reason = f"unreadable: {error}"
        raise ConfigurationError(
            f"this version of sfpubsub cannot use the tables in {place} ({reason}): choose another "
            f"target"
        )

    def check(self, now: Identity, is_there: Callable[[], bool], *, may_grow: bool = False) -> None:
        """Check that *now* describes the same raw table and objects as this stored identity.

        The orgs are compared elsewhere (`one_org`). A moved raw table is recognised by its id and
        by the last batch that was read from it.

        Args:
            now: The identity of the raw table and the objects that were specified this time.
            is_there: Returns whether the raw table of *now* contains the last batch that was read.
            may_grow: Whether *now* may have additional objects.

        Raises:
            ConfigurationError: The raw tables or the objects differ.
        """
        grown = may_grow and set(self.objects) <= set(now.objects)
        if now.objects != self.objects and not grown:
            was = ", ".join(self.objects) or "all objects"
            raise ConfigurationError(
                f"these tables are built for {was}: specify the same objects, or choose another "
                f"target"
            )
        same_id = now.id == self.id
        moved = os.path.realpath(now.raw) != os.path.realpath(self.raw)
        if self.format == now.format and same_id:
            if not moved or is_there():
                return
            raise ConfigurationError(
                f"these tables were built from {self.raw}, but {now.raw} does not contain the "
                f"last batch that was added to them: specify the current location of the original "
                f"raw table, or choose another target"
            )
        if self.format == now.format and not moved:
            raise ConfigurationError(
                f"these tables were built from an earlier table at {self.raw}, which has been "
                f"replaced since: choose another target"
            )
        raise ConfigurationError(
            f"these tables are built from {self.raw} ({self.format}), not from {now.raw} "
            f"({now.format}): choose another target"
        )


def check_apart(source: Destination, place: Destination) -> None:
    """Check that the target is not inside the raw table.

    Raises:
        ConfigurationError: The target is inside the raw table.
    """
    if source.local is None or place.local is None:
        return
    if place.local.is_relative_to(source.local):
        raise ConfigurationError(
            f"{place} is inside the raw table, whose readers would treat it as part of the table: "
            f"choose another directory"
        )


def event_names(objects: Sequence[str]) -> frozenset[str]:
    """Return the names of the events to read for the given objects and event types.

    They are the given names and, for each of them, the name that its change event would have, such
    as ``AccountChangeEvent`` for ``Account``.
    """
    return frozenset(objects) | frozenset(map(event_name_of, objects))


def event_name_of(entity: str) -> str:
    """Return the name that the change event of an object has.

    The change event of ``My_Object__c`` is ``My_Object__ChangeEvent``.
    """
    return f"{entity.removesuffix('c') if entity.endswith('__c') else entity}ChangeEvent"


def schemas_of(spark: SparkSession, source: Destination) -> SchemaStore:
    """Return the store with the Avro schemas of a raw table's events.

    Raises:
        ConfigurationError: Spark cannot use the raw table's file system.
    """
    if source.local is None:
        return SidecarSchemas(files_of(source, source.format, SCHEMAS_NAME, own_session(spark)))
    return FileSchemaStore(local_sidecar(source.local, SCHEMAS_NAME))
