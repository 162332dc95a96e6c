"""A read of changed records passes over none, whatever changes while it pages through them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from sfpubsub.spark.mirror import reading
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.reading import OrgReads
from sfpubsub.spark.records.reads import AsOf

START = datetime(2026, 11, 1, tzinfo=UTC)
SELECTED = ("Id", "SystemModstamp", "Name")


@dataclass
class Page:
    rows: list[dict[str, Any]]


class Org:
    """Records with a stamp each, of which the last one asked for changes before it is retrieved."""

    org_time = START + timedelta(days=1)

    def __init__(self, count: int) -> None:
        self.stamps = {f"001{n:012d}": START + timedelta(seconds=n) for n in range(count)}
        self.has_changed = False

    def row(self, record_id: str) -> dict[str, Any]:
        stamp = self.stamps[record_id].strftime("%Y-%m-%dT%H:%M:%S.000+0000")
        return {"Id": record_id, "SystemModstamp": stamp, "Name": "x"}

    def query(self, soql: str, *, all_rows: bool) -> list[Page]:
        assert all_rows
        after = re.search(r"= (\S+) AND Id > '(\w+)'", soql)
        first = re.search(r"SystemModstamp >= (\S+)", soql)
        begin = (datetime.fromisoformat((after or first)[1]), after[2] if after else "")
        keys = sorted((stamp, record_id) for record_id, stamp in self.stamps.items())
        found = [record_id for stamp, record_id in keys if (stamp, record_id) > begin]
        return [Page([self.row(each) for each in found[: reading._PAGE]])]

    def retrieve(
        self, _entity: str, ids: Sequence[str], _selected: Sequence[str]
    ) -> Mapping[str, dict[str, Any]]:
        if not self.has_changed:
            self.has_changed = True
            self.stamps[ids[-1]] = START + timedelta(hours=12)
        return {each: self.row(each) for each in ids}


def test_a_record_that_changes_before_it_is_retrieved_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    """The next page begins after the key of the last record, not after the state retrieved."""
    monkeypatch.setattr(reading, "_PAGE", 10)
    monkeypatch.setattr(reading, "LONGEST_QUERY", 60)  # so records are retrieved by id
    org = Org(35)
    reads = OrgReads(org, margin=10, bulk_from=1000, piece_rows=1000, stop=lambda: None)
    marker, of = Marker(0, "changes", AsOf(0), selected=SELECTED), SimpleNamespace(entity="Account")
    seen: set[str] = set()
    last: Mapping[str, Any] | None = None
    page: list[Mapping[str, Any]] = []
    while last is None or len(page) == reading._PAGE:
        page, last = reads._changed(of, marker, START, last)
        seen |= {row["Id"] for row in page}
    assert seen == org.stamps.keys()
