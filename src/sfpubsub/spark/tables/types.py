"""The event types of a target: which schemas each has had, and the columns that came of them.

The columns of a type are those of all its schemas, in the order in which they were met, which is
kept with the type's table. So the columns are the same after every start. Decides nothing about
rows.
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
from sfpubsub.spark.tables.target import Target
from sfpubsub.stores.schema_store import SchemaStore

TYPED = "typed"

# What can be a table's name, and what no name of ours is.
_TYPE_NAME = re.compile(r"[A-Za-z]\w*")


class EventTypes:
    """The event types of one target. Not thread-safe.

    Args:
        target: Where the tables are.
        schemas: Where schemas are, by id.
    """

    def __init__(self, target: Target, schemas: SchemaStore) -> None:
        self._target = target
        self._schemas = schemas
        self._plans: dict[str, Plan] = {}
        self._names: dict[str, str] = {}  # by schema id

    def name_of(self, schema_id: str) -> str | None:
        """Return the event type of a schema; None if the schema is not available or cannot be one.

        A schema that was missing is looked for each time: it may have come.
        """
        if schema_id not in self._names:
            name = self._read(schema_id)
            if name is None:
                return None
            self._names[schema_id] = name
        return self._names[schema_id]

    def is_missing(self, schema_id: str) -> bool:
        """Whether the schema is missing and may still come. JSON events have none."""
        if not schema_id or schema_id in self._names:
            return False
        return self._schemas.get(schema_id) is None

    def plans(self, schema_ids: Iterable[str]) -> dict[str, Plan]:
        """Return how rows of some schemas are decoded, by event type. Gives tables their columns.

        Args:
            schema_ids: Of which `name_of` knows the type, or did when the step was planned.

        Raises:
            ConfigurationError: A schema that was there is gone.
        """
        wanted: dict[str, dict[str, str]] = {}
        for schema_id in sorted(schema_ids):
            name = self.name_of(schema_id)
            if name is None:
                raise ConfigurationError(
                    f"schema {schema_id} was among the raw table's schemas and is gone: put it back"
                )
            wanted.setdefault(name, {})[schema_id] = self._text(schema_id)
        return {
            name: Plan(texts, self._plan(name, texts).columns) for name, texts in wanted.items()
        }

    def plan(self, name: str) -> Plan:
        """Return how rows of an event type are decoded, with all the schemas that it has had.

        Raises:
            ConfigurationError: A schema that was there is gone.
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
            table.make(Plan(known, columns).output, facts)
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
                f"schema {schema_id}, of which a table has columns, is not among the raw table's "
                f"schemas any more: put it back"
            )
        return text

    def _read(self, schema_id: str) -> str | None:
        text = self._schemas.get(schema_id) if schema_id else None
        if text is None:
            return None
        try:
            columns_of(text)
        except SchemaError:
            return None  # its rows are undecodable, and say so
        name = Codec(schema_id, text).name
        return name if _TYPE_NAME.fullmatch(name) else None
