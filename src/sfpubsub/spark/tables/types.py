"""The event types of a target, with the schemas of each type and the columns of its table.

A type has the columns of all its schemas, in the order in which the schemas first occurred. That
order is stored with the type's table, so the columns are the same after every start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pyarrow as pa

from sfpubsub.avro.codec import Codec
from sfpubsub.avro.columns import columns_of, merge
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import ConfigurationError, SchemaError
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.raw.schema import with_comments
from sfpubsub.stores.schema_store import SchemaStore

TYPED = "typed"

# Valid names of event types for tables. They never begin with an underscore, unlike this package's
# own tables.
_TYPE_NAME = re.compile(r"[A-Za-z]\w*")


class EventTypes:
    """The event types of one target, with their schemas and columns. Not thread-safe.

    Args:
        target: Target of the tables.
        schemas: Store of the raw table's schemas.
    """

    def __init__(self, target: Target, schemas: SchemaStore) -> None:
        self._target = target
        self._schemas = schemas
        self._plans: dict[str, Plan] = {}
        self._names: dict[str, str] = {}  # by schema id

    def name_of(self, schema_id: str) -> str | None:
        """Return the event type of a schema; None if the schema is missing or not valid.

        It is also None if the type's name cannot be the name of a table. A missing schema is looked
        up again on each call, because it may have arrived.
        """
        if schema_id not in self._names:
            name = self._read(schema_id)
            if name is None:
                return None
            self._names[schema_id] = name
        return self._names[schema_id]

    def is_missing(self, schema_id: str) -> bool:
        """Return whether the schema is missing but may still arrive.

        Always False for the empty id of JSON events, which have no schema.
        """
        if not schema_id or schema_id in self._names:
            return False
        return self._schemas.get(schema_id) is None

    def plans(self, schema_ids: Iterable[str]) -> dict[str, Plan]:
        """Return the decoding plans for some schemas, by event type.

        Also create missing tables, and add missing columns to existing ones.

        Args:
            schema_ids: Ids of schemas whose event type was known when the step was planned.

        Raises:
            ConfigurationError: A schema was removed from the store.
            WriteError: A table could not be created or changed.
        """
        wanted: dict[str, dict[str, str]] = {}
        for schema_id in sorted(schema_ids):
            name = self.name_of(schema_id)
            if name is None:
                raise ConfigurationError(
                    f"schema {schema_id} is missing from the raw table's schema store (by default "
                    f"its sidecar directory _schemas): restore the schema from a backup"
                )
            wanted.setdefault(name, {})[schema_id] = self._text(schema_id)
        return {
            name: Plan(texts, self._plan(name, texts).columns) for name, texts in wanted.items()
        }

    def plan(self, name: str) -> Plan:
        """Return the decoding plan of an event type, with all schemas that the type has had.

        Raises:
            ConfigurationError: A schema was removed from the store.
        """
        return self._plans.get(name) or self._saved(name)

    def _plan(self, name: str, texts: dict[str, str]) -> Plan:
        table = self._target.table(name)
        plan = self._plans.get(name) or self._saved(name)
        columns = plan.columns
        for schema_id, text in texts.items():
            if schema_id not in plan.schemas:
                columns = merge(columns, columns_of(text))
        known = {**plan.schemas, **texts}
        if name not in self._plans or known.keys() != plan.schemas.keys():
            facts = {"kind": TYPED, "schema_ids": json.dumps(list(known))}
            table.make(with_comments(Plan(known, columns).output), facts)
        self._plans[name] = Plan(known, columns)
        return self._plans[name]

    def _saved(self, name: str) -> Plan:
        facts = self._target.table(name).facts()
        ids: list[str] = json.loads(facts.get("schema_ids", "[]"))
        texts = {schema_id: self._text(schema_id) for schema_id in ids}
        columns = pa.schema([])
        for text in texts.values():
            columns = merge(columns, columns_of(text))
        return Plan(texts, columns)

    def _text(self, schema_id: str) -> str:
        text = self._schemas.get(schema_id)
        if text is None:
            raise ConfigurationError(
                f"a table was built with schema {schema_id}, which is missing from the raw table's "
                f"schema store (by default its sidecar directory _schemas): restore the "
                f"schema from a backup"
            )
        return text

    def _read(self, schema_id: str) -> str | None:
        text = self._schemas.get(schema_id) if schema_id else None
        if text is None:
            return None
        try:
            columns_of(text)
        except SchemaError:
            return None  # rows with this schema are undecodable, and contain the reason
        name = Codec(schema_id, text).name
        return name if _TYPE_NAME.fullmatch(name) else None
