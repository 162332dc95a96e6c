"""Tests of how Python code may spell a table or a target of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark import (
    EventTables,
    EventWriter,
    ForeachBatchWriter,
    read_sidecar,
    read_typed,
    read_undecodable,
)
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.ingest import Ingest
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.mirror.mirror import Mirror
from sfpubsub.spark.mirror.starting_over import is_mirror, start_over
from sfpubsub.spark.mirror.verifying import Verification
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.tables import open_target
from tests.spark.sample_events import TOPIC

# No session, and no org either: a name that is refused later than by its spelling is another error.
NONE: Any = None
RAW = Destination.parse("./raw", "delta")

# Each class and function that takes a table or a target of tables.
DOORS: dict[str, Callable[[], object]] = {
    "EventWriter": lambda: EventWriter(NONE, "out", topic=TOPIC),
    "EventWriter delta": lambda: EventWriter(NONE, "out", topic=TOPIC, format="delta"),
    "ForeachBatchWriter": lambda: ForeachBatchWriter(NONE, "out", topic=TOPIC),
    "EventTables raw": lambda: EventTables(NONE, "out", "./tables"),
    "EventTables to": lambda: EventTables(NONE, "./raw", "out", format="delta"),
    "Ingest": lambda: Ingest([Source("topic", TOPIC)], to="out"),
    "Mirror": lambda: Mirror(["Account"], to="out"),
    "Mirror raw": lambda: Mirror(["Account"], to="./lake", raw="out"),
    "MirrorJob": lambda: MirrorJob(NONE, NONE, RAW, "out", ["Account"]),
    "Verification": lambda: Verification(NONE, NONE, "out", "Account"),
    "is_mirror": lambda: is_mirror(NONE, "out", "delta"),
    "open_target": lambda: open_target(NONE, "out", "delta"),
    "read_sidecar": lambda: read_sidecar(NONE, "out", "gaps"),
    "read_typed": lambda: read_typed(NONE, "out", "Order_Event__e", format="delta"),
    "read_undecodable": lambda: read_undecodable(NONE, "out", format="delta"),
    "start_over raw": lambda: start_over(NONE, "out", "./lake", format="delta"),
    "start_over to": lambda: start_over(NONE, "./raw", "out", format="delta"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_bare_name_is_refused_before_anything_else(door: str, tmp_path, monkeypatch):
    """A string without a slash or a dot is refused, with the spelling of the directory, before the
    session is used and before a directory is created.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"write \./out for the directory, or "):
        DOORS[door]()
    assert list(tmp_path.iterdir()) == []
