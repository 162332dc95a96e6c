"""A single run with every kind of disruption, after which the rows of each table are counted.

The streams contain duplicates under new replay ids, an org move, change events without an id,
undecodable payloads and a schema change; even so, nothing is lost or stored twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.bus import Draft
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.spark import EventWriter, IngestJob, TableReplayStore
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.ingest.streams import Stream, Streams
from sfpubsub.spark.raw.sidecar_files import read_sidecar
from sfpubsub.spark.raw.sources import Source
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import read_table

ORDERS = "/event/Order_Event__e"
CHANGES = "/data/AccountChangeEvent"
SUBSCRIPTION = "My_Managed_Subscription"  # its topic is ORDERS
MANAGED, TOPIC = Source("managed", SUBSCRIPTION), Source("topic", CHANGES)

# Numbers of events before and after the org move; one order in 20 is published twice.
ORDERS_BEFORE, AGAIN_BEFORE = 400, 20
ORDERS_AFTER, AGAIN_AFTER = 200, 10
CHANGES_BEFORE, CHANGES_AFTER = 200, 40
# Numbers of undecodable events before the move. After it, there are BAD_ORDERS again.
BAD_ORDERS, BAD_SCHEMAS, BAD_CHANGES = 3, 1, 2

DELIVERED_BEFORE = {
    MANAGED: ORDERS_BEFORE + AGAIN_BEFORE + BAD_ORDERS + BAD_SCHEMAS,
    TOPIC: CHANGES_BEFORE + BAD_CHANGES,
}
DELIVERED_AFTER = {MANAGED: ORDERS_AFTER + AGAIN_AFTER + BAD_ORDERS, TOPIC: CHANGES_AFTER}

# Events per batch. When the org moves, the last events of both sources are received, but not yet
# written.
BATCH = 150

PATIENCE = 300.0


class Org:
    """Publishes orders, change events and undecodable events with the emulator."""

    def __init__(self, emulator) -> None:
        self.emulator = emulator

    def orders(self, first: int, count: int, repeated: int) -> None:
        """Publish *count* orders, numbered from *first*, and then *repeated* of them again.

        The repeated orders have the same ids but new replay ids.
        """
        schema = self.emulator.bus.schema(self.emulator.bus.topic(ORDERS).schema_id)
        drafts = [
            Draft(schema.encode({"Order_Number__c": str(n)}, 0.0), schema.schema_id, f"order-{n}")
            for n in range(first, first + count)
        ]
        self.emulator.publish_raw(ORDERS, drafts + drafts[:: count // repeated][:repeated])

    def changes(self, first: int, count: int) -> None:
        header = {
            "entityName": "Account",
            "changeType": "DELETE",
            "changeOrigin": "",
            "commitTimestamp": 1_795_215_600_000,
            "commitUser": "005000000000001AAA",
            "nulledFields": [],
            "diffFields": [],
            "changedFields": [],
        }
        rows = [
            {
                "ChangeEventHeader": header
                | {
                    "recordIds": [f"001{n:015}"],
                    "transactionKey": f"{n:08}",
                    "sequenceNumber": 1,
                    "commitNumber": n,
                }
            }
            for n in range(first, first + count)
        ]
        self.emulator.publish(CHANGES, rows)

    def undecodable(self, topic: str, count: int, schema_id: str = "") -> None:
        schema_id = schema_id or self.emulator.bus.topic(topic).schema_id
        # The lengths differ, because equal bytes without an id count as the same event.
        drafts = [Draft(b"\xff" * (3 + n), schema_id) for n in range(count)]
        self.emulator.publish_raw(topic, drafts)

    def add_a_field(self) -> None:
        """Add a field to the order schema."""
        schema = json.loads(
            self.emulator.bus.schema(self.emulator.bus.topic(ORDERS).schema_id).text
        )
        field = {"name": "Priority__c", "type": ["null", "string"], "default": None}
        self.emulator.change_schema(
            ORDERS, json.dumps(schema | {"fields": [*schema["fields"], field]})
        )


@pytest.fixture
def org(run_emulator) -> Org:
    return Org(run_emulator(settings=Settings(change_event_ids=False, events_per_response=50)))


@pytest.fixture
def run(spark, org: Org, connect) -> Iterator[Callable]:
    """Yield a function that starts an ingest job for each source, each with a table of its own.

    The jobs run together in one thread.
    """
    with ExitStack() as opened:

        def stream(source: Source, place: str, format_: str) -> Stream:
            managed = source.kind == "managed"
            destination = Destination.parse(place, format_)
            sidecars = Sidecars(spark, destination)
            writer = opened.enter_context(
                EventWriter(
                    spark,
                    place,
                    format=format_,
                    subscription=source.name if managed else None,
                    topic=None if managed else source.name,
                    on_undecodable="quarantine",
                    quarantine=sidecars.quarantine,
                )
            )
            sidecars.open()
            client = connect(org.emulator)
            if managed:
                subscription = client.subscribe_managed(source.name, ack="manual")
            else:
                store = TableReplayStore(writer)
                subscription = client.subscribe(
                    source.name, replay=store, replay_fallback="earliest", ack="manual"
                )
            job = IngestJob(
                subscription,
                writer,
                sidecars=sidecars,
                batch_events=BATCH,
                batch_seconds=PATIENCE,
            )

            def finish() -> None:
                job.settle()
                sidecars.close()

            return Stream(source, job, subscription, subscription, finish)

        def start(
            places: dict[Source, str], format_: str
        ) -> tuple[dict[Source, Stream], Streams, Thread]:
            streams = {source: stream(source, place, format_) for source, place in places.items()}
            jobs = Streams(list(streams.values()))
            thread = Thread(target=jobs.run)
            thread.start()
            opened.callback(thread.join, PATIENCE)
            opened.callback(jobs.stop)
            return streams, jobs, thread

        yield start


@pytest.mark.parametrize("format_", ["parquet", pytest.param(TABLE_FORMAT, marks=pytest.mark.slow)])
def test_a_mixed_run_neither_loses_nor_duplicates_an_event(
    spark, org: Org, run, tmp_path: Path, format_: str
):
    """Both raw tables contain each decodable event once, despite an org move and repeated events.

    The counts of schemas, quarantined events, gaps and commits are exact as well.
    """
    places = {MANAGED: str(tmp_path / "orders"), TOPIC: str(tmp_path / "changes")}
    org.orders(0, ORDERS_BEFORE, AGAIN_BEFORE)
    org.undecodable(ORDERS, BAD_ORDERS)
    org.undecodable(ORDERS, BAD_SCHEMAS, schema_id="x" * 22)
    org.changes(0, CHANGES_BEFORE)
    org.undecodable(CHANGES, BAD_CHANGES)
    streams, jobs, thread = run(places, format_)
    for source, count in DELIVERED_BEFORE.items():
        job, subscription = streams[source].job, streams[source].subscription
        until(lambda s=subscription, n=count: s.health().delivered == n, str(source), PATIENCE)
        until(lambda j=job, n=count: n - j.progress.received < BATCH, f"{source}: writes", PATIENCE)
    last_change = streams[TOPIC].subscription.health().last_position

    org.emulator.faults.add(Fault("move_org"))  # all events come again, under new replay ids
    org.add_a_field()
    org.orders(ORDERS_BEFORE, ORDERS_AFTER, AGAIN_AFTER)
    org.undecodable(ORDERS, BAD_ORDERS)
    org.changes(CHANGES_BEFORE, CHANGES_AFTER)
    for source, stream in streams.items():
        all_of_it = 2 * DELIVERED_BEFORE[source] + DELIVERED_AFTER[source]
        health = stream.subscription.health
        until(lambda h=health, n=all_of_it: h().delivered >= n, f"all of {source}", PATIENCE)
    jobs.stop()
    thread.join(PATIENCE)

    # The raw tables.
    rows = {source: read_table(Path(place), format_) for source, place in places.items()}
    orders, changes = rows[MANAGED], rows[TOPIC]
    assert Counter(orders["event_id"].to_pylist()) == Counter(
        f"order-{n}" for n in range(ORDERS_BEFORE + ORDERS_AFTER)
    )
    assert set(changes["event_id"].to_pylist()) == {""}
    headers = [
        json.loads(text)["ChangeEventHeader"] for text in changes["payload_json"].to_pylist()
    ]
    assert Counter(header["transactionKey"] for header in headers) == Counter(
        f"{n:08}" for n in range(CHANGES_BEFORE + CHANGES_AFTER)
    )
    for source, place in places.items():
        assert rows[source]["ingest_seq"].to_pylist() == list(range(len(rows[source])))
        assert spark.read.format(format_).load(place).count() == len(rows[source])

    # The progress reports of the jobs.
    set_aside = {MANAGED: 3 * BAD_ORDERS + 2 * BAD_SCHEMAS, TOPIC: 2 * BAD_CHANGES}
    for source, stream in streams.items():
        done = stream.job.progress
        assert stream.summary.ending == "stopped"
        assert done.received == 2 * DELIVERED_BEFORE[source] + DELIVERED_AFTER[source]
        assert done.rows == len(rows[source])
        assert done.set_aside == set_aside[source]
        assert done.duplicates == done.received - done.rows - done.set_aside

    # The sidecar tables.
    schemas = {s: read_sidecar(spark, place, "schemas").collect() for s, place in places.items()}
    assert (len(schemas[MANAGED]), len(schemas[TOPIC])) == (2, 1)
    for source in places:
        used = set(rows[source]["schema_id"].to_pylist())
        assert {row["schema_id"] for row in schemas[source]} == used
    # Each is stored once, however often it came. Those without an id are identified by their
    # position, which the move changed.
    kept = {s: read_sidecar(spark, place, "quarantine").count() for s, place in places.items()}
    assert kept == {MANAGED: 2 * BAD_ORDERS + BAD_SCHEMAS, TOPIC: 2 * BAD_CHANGES}
    gaps = {s: read_sidecar(spark, place, "gaps").collect() for s, place in places.items()}
    assert [gap["reason"] for gap in gaps[MANAGED]] == ["repositioned"]
    assert [gap["reason"] for gap in gaps[TOPIC]] == ["rejected"]
    assert gaps[TOPIC][0]["after"] == last_change.hex()
    for source, stream in streams.items():
        commits = read_sidecar(spark, places[source], "commits").orderBy("noted_at").collect()
        for count in ("received", "rows", "duplicates", "set_aside", "batches"):
            assert sum(row[count] for row in commits) == getattr(stream.job.progress, count), count
        assert max(row["last_seq"] or 0 for row in commits) == len(rows[source]) - 1
        assert {row["subscription"] for row in commits} == {source.name}
    committed = org.emulator.managed.get(SUBSCRIPTION).committed
    assert streams[MANAGED].subscription.health().committed.hex() == (
        org.emulator.bus.ids.mint(committed).hex()
    )
    org.emulator.faults.assert_consumed()
