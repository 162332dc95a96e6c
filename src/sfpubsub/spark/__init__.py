"""Salesforce events as Spark tables.

Names are resolved when they are first used, so that importing this package loads neither pyspark
nor pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfpubsub.errors import MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.spark.ingest.ingest import Ingest
    from sfpubsub.spark.ingest.job import IngestJob
    from sfpubsub.spark.ingest.positions import TableReplayStore
    from sfpubsub.spark.ingest.progress import Progress, Summary
    from sfpubsub.spark.ingest.result import WriteResult
    from sfpubsub.spark.ingest.screening import Part
    from sfpubsub.spark.ingest.settings import IngestSettings
    from sfpubsub.spark.ingest.streams import SourceSubscription, Stream
    from sfpubsub.spark.ingest.writer import EventWriter
    from sfpubsub.spark.mirror.mirror import Mirror
    from sfpubsub.spark.mirror.settings import MirrorReport, MirrorSettings
    from sfpubsub.spark.mirror.status import ObjectStatus
    from sfpubsub.spark.raw.rows import EventRows
    from sfpubsub.spark.raw.sidecar_files import read_sidecar
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.spark.runtime.session import spark_session
    from sfpubsub.spark.stream.datasource import PubSubDataSource
    from sfpubsub.spark.stream.foreach_batch import ForeachBatchWriter
    from sfpubsub.spark.tables.changes import change_headers, field_changes
    from sfpubsub.spark.tables.engine import EventTables, StepReport
    from sfpubsub.spark.tables.maintenance import Maintained, maintain
    from sfpubsub.spark.tables.reading import read_typed, read_undecodable

_HOMES = {
    "EventRows": "sfpubsub.spark.raw.rows",
    "EventTables": "sfpubsub.spark.tables.engine",
    "EventWriter": "sfpubsub.spark.ingest.writer",
    "ForeachBatchWriter": "sfpubsub.spark.stream.foreach_batch",
    "Ingest": "sfpubsub.spark.ingest.ingest",
    "IngestJob": "sfpubsub.spark.ingest.job",
    "IngestSettings": "sfpubsub.spark.ingest.settings",
    "Maintained": "sfpubsub.spark.tables.maintenance",
    "Mirror": "sfpubsub.spark.mirror.mirror",
    "MirrorReport": "sfpubsub.spark.mirror.settings",
    "MirrorSettings": "sfpubsub.spark.mirror.settings",
    "ObjectStatus": "sfpubsub.spark.mirror.status",
    "Part": "sfpubsub.spark.ingest.screening",
    "Progress": "sfpubsub.spark.ingest.progress",
    "PubSubDataSource": "sfpubsub.spark.stream.datasource",
    "Source": "sfpubsub.spark.raw.sources",
    "SourceSubscription": "sfpubsub.spark.ingest.streams",
    "StepReport": "sfpubsub.spark.tables.engine",
    "Stream": "sfpubsub.spark.ingest.streams",
    "Summary": "sfpubsub.spark.ingest.progress",
    "TableReplayStore": "sfpubsub.spark.ingest.positions",
    "WriteResult": "sfpubsub.spark.ingest.result",
    "change_headers": "sfpubsub.spark.tables.changes",
    "field_changes": "sfpubsub.spark.tables.changes",
    "maintain": "sfpubsub.spark.tables.maintenance",
    "read_sidecar": "sfpubsub.spark.raw.sidecar_files",
    "read_typed": "sfpubsub.spark.tables.reading",
    "read_undecodable": "sfpubsub.spark.tables.reading",
    "spark_session": "sfpubsub.spark.runtime.session",
}

__all__ = [
    "EventRows",
    "EventTables",
    "EventWriter",
    "ForeachBatchWriter",
    "Ingest",
    "IngestJob",
    "IngestSettings",
    "Maintained",
    "Mirror",
    "MirrorReport",
    "MirrorSettings",
    "ObjectStatus",
    "Part",
    "Progress",
    "PubSubDataSource",
    "Source",
    "SourceSubscription",
    "StepReport",
    "Stream",
    "Summary",
    "TableReplayStore",
    "WriteResult",
    "change_headers",
    "field_changes",
    "maintain",
    "read_sidecar",
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
