"""Salesforce events as Spark tables.

Names are resolved when they are first used, so that importing this package loads neither pyspark
nor pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfpubsub.errors import MissingExtraError

if TYPE_CHECKING:
    from sfpubsub.spark.job import IngestJob
    from sfpubsub.spark.positions import TableReplayStore
    from sfpubsub.spark.session import spark_session
    from sfpubsub.spark.writer import EventWriter, WriteResult

_HOMES = {
    "EventWriter": "sfpubsub.spark.writer",
    "IngestJob": "sfpubsub.spark.job",
    "TableReplayStore": "sfpubsub.spark.positions",
    "WriteResult": "sfpubsub.spark.writer",
    "spark_session": "sfpubsub.spark.session",
}

__all__ = ["EventWriter", "IngestJob", "TableReplayStore", "WriteResult", "spark_session"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sfpubsub.spark' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow"):
            raise
        raise MissingExtraError(f"sfpubsub.spark.{name}", "spark") from error


def __dir__() -> list[str]:
    return sorted(__all__)
