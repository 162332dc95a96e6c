"""What the tables of a target are made of: one raw table, for good, and which of its events."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.beside import SCHEMAS_NAME
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.files import files_at
from sfpubsub.spark.raw.ownership import local_sidecars
from sfpubsub.spark.raw.sidecar_files import SidecarSchemas, location_of
from sfpubsub.spark.tables.target import Place
from sfpubsub.stores.schema_store import FileSchemaStore, SchemaStore

# Version of the record.
_LAYOUT = 1


@dataclass(frozen=True)
class Identity:
    """What the tables of a target are made of."""

    format: str
    """The raw table's."""
    raw: str
    """Where it was when it was last read."""
    id: str | None
    """What it is told by wherever it is: by its format's own id, else by whose events it has."""
    objects: tuple[str, ...] = ()
    """Objects and event types of which there are tables; all if it is empty."""

    def record(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return {
            "v": _LAYOUT,
            "format": self.format,
            "raw": self.raw,
            "id": self.id,
            "objects": list(self.objects),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: Place) -> Identity:
        """Return what was kept.

        Raises:
            ConfigurationError: By another version.
        """
        try:
            if record["v"] == _LAYOUT:
                return cls(record["format"], record["raw"], record["id"], tuple(record["objects"]))
            reason = f"layout {record['v']}"
        except (KeyError, TypeError) as error:
            reason = f"unreadable: {error}"
        raise ConfigurationError(
            f"the tables of {place} are not of this version of sfpubsub ({reason}): name another "
            f"target"
        )

    def check(self, now: Identity, is_there: Callable[[], bool], *, may_grow: bool = False) -> None:
        """Make sure that tables made of this may continue with what is named now.

        A raw table that was moved is the same one: it has its id, and the last batch that was read.

        Args:
            now: What is named now.
            is_there: Says whether the last raw batch that was read is in the raw table named now.
            may_grow: Whether there may be more objects now.

        Raises:
            ConfigurationError: They may not.
        """
        grown = may_grow and set(self.objects) <= set(now.objects)
        if now.objects != self.objects and not grown:
            was = ", ".join(self.objects) or "all objects"
            raise ConfigurationError(
                f"these tables are made of {was}: name the same objects, or another target"
            )
        same_id = now.id == self.id
        moved = os.path.realpath(now.raw) != os.path.realpath(self.raw)
        if self.format == now.format and same_id:
            if not moved or is_there():
                return
            raise ConfigurationError(
                f"these tables were made of {self.raw}, and {now.raw} does not have the last batch "
                f"that was read there: name that table where it is now, or another target"
            )
        raise ConfigurationError(
            f"these tables are made of {self.raw} ({self.format}), which {now.raw} ({now.format}) "
            f"is not: name another target"
        )


def check_apart(source: Destination, to: str | os.PathLike[str], format: str) -> None:  # noqa: A002
    """Make sure that the tables are not made within the raw table.

    Raises:
        ConfigurationError: They would be.
    """
    place = Place.parse(to, format)
    if source.local is None or place.local is None:
        return
    if place.local.is_relative_to(source.local):
        raise ConfigurationError(
            f"{place} is in the raw table, whose readers would take it for a part of it: name "
            f"another directory"
        )


def event_names(objects: Sequence[str]) -> frozenset[str]:
    """Return the names of the events that objects and event types stand for."""
    names = set(objects)
    for name in objects:
        # Of My_Object__c there is My_Object__ChangeEvent.
        names.add(f"{name.removesuffix('c') if name.endswith('__c') else name}ChangeEvent")
    return frozenset(names)


def schemas_of(spark: SparkSession, source: Destination) -> SchemaStore:
    """Return the schemas that the writers of a raw table keep beside it.

    Raises:
        ConfigurationError: Its file system cannot be used.
    """
    if source.local is None:
        return SidecarSchemas(files_at(location_of(spark, source), SCHEMAS_NAME, spark))
    return _Stores([FileSchemaStore(p) for p in local_sidecars(source.local, SCHEMAS_NAME)])


class _Stores(SchemaStore):
    """Several stores, looked into in order. A stream may still fill the one of an old table."""

    def __init__(self, stores: Sequence[SchemaStore]) -> None:
        self._stores = stores

    def get(self, schema_id: str) -> str | None:
        """See `SchemaStore`."""
        found = (store.get(schema_id) for store in self._stores)
        return next((text for text in found if text is not None), None)

    def put(self, schema_id: str, schema_json: str) -> None:
        """See `SchemaStore`."""
        self._stores[0].put(schema_id, schema_json)
