"""Salesforce events as Spark tables.

Names are resolved when they are first used, so that importing this package loads neither pyspark
nor pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfpubsub.errors import MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.spark.changes import change_headers, field_changes, latest_state
    from sfpubsub.spark.foreach_batch import ForeachBatchWriter
    from sfpubsub.spark.job import IngestJob
    from sfpubsub.spark.positions import TableReplayStore
    from sfpubsub.spark.session import spark_session
    from sfpubsub.spark.sisters import read_sister
    from sfpubsub.spark.source import PubSubDataSource
    from sfpubsub.spark.typed import Derived, TypedTables, read_typed, read_undecodable
    from sfpubsub.spark.writer import EventWriter, WriteResult

_HOMES = {
    "Derived": "sfpubsub.spark.typed",
    "EventWriter": "sfpubsub.spark.writer",
    "ForeachBatchWriter": "sfpubsub.spark.foreach_batch",
    "IngestJob": "sfpubsub.spark.job",
    "PubSubDataSource": "sfpubsub.spark.source",
    "TableReplayStore": "sfpubsub.spark.positions",
    "TypedTables": "sfpubsub.spark.typed",
    "WriteResult": "sfpubsub.spark.writer",
    "change_headers": "sfpubsub.spark.changes",
    "field_changes": "sfpubsub.spark.changes",
    "latest_state": "sfpubsub.spark.changes",
    "read_sister": "sfpubsub.spark.sisters",
    "read_typed": "sfpubsub.spark.typed",
    "read_undecodable": "sfpubsub.spark.typed",
    "spark_session": "sfpubsub.spark.session",
}

__all__ = [
    "Derived",
    "EventWriter",
    "ForeachBatchWriter",
    "IngestJob",
    "PubSubDataSource",
    "TableReplayStore",
    "TypedTables",
    "WriteResult",
    "change_headers",
    "field_changes",
    "latest_state",
    "read_sister",
    "read_typed",
    "read_undecodable",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sfpubsub.spark' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow", "pandas"):
            raise
        raise MissingExtraError(f"sfpubsub.spark.{name}", "spark") from error


def __dir__() -> list[str]:
    return sorted(__all__)
