"""Several jobs side by side: threads, one failure, names of tables. No Spark."""

from __future__ import annotations

import threading

import pytest

from sfpubsub.errors import PermissionDeniedError, WriteError
from sfpubsub.spark.ingest.job import IngestJob
from sfpubsub.spark.ingest.streams import Stream, Streams, table_name, table_place
from sfpubsub.spark.raw.destination import Source
from tests.spark.fakes import FakeSubscription
from tests.spark.ingest.test_job import FakeWriter

A, B = Source("managed", "Orders"), Source("topic", "/data/AccountChangeEvent")


class Waking(FakeSubscription):
    """Waits for a moment where the fake clock would have passed it."""

    def next_batch(self, timeout=None):
        if not self.script:
            threading.Event().wait(0.001)
        return super().next_batch(timeout)


def stream_of(source: Source, script: list, log: list[str]) -> Stream:
    subscription = Waking(script, patience=500.0)
    job = IngestJob(subscription, FakeWriter(subscription), clock=subscription.clock)
    return Stream(source, job, subscription, subscription, lambda: log.append(source.name))


def test_a_failure_of_one_ends_the_others_in_order_and_names_its_source():
    """The others write and ack what they have; what failed says whose it was."""
    log: list[str] = []
    good = stream_of(A, [3], log)
    bad = stream_of(B, [2, PermissionDeniedError("no access", error_code="x")], log)
    with pytest.raises(PermissionDeniedError, match="topic /data/AccountChangeEvent: no access"):
        Streams([good, bad]).run()
    assert good.subscription.log == ["write", "ack", "drain"]
    assert (good.summary.ending, good.error) == ("stopped", None)
    assert bad.summary is None
    assert bad.subscription.acked == []
    assert sorted(log) == ["/data/AccountChangeEvent", "Orders"], "both finished"


def test_what_fails_afterwards_does_not_hide_what_failed_first(caplog):
    """Closing a table after the job's own failure."""

    def finish() -> None:
        raise WriteError("disk full")

    stream = stream_of(A, [PermissionDeniedError("no access to Orders")], [])
    stream.finish = finish
    with pytest.raises(PermissionDeniedError, match=r"^no access to Orders$"):
        Streams([stream]).run()
    assert "disk full" in caplog.text


def test_a_failure_to_finish_is_a_failure():
    """A commit that could not be noted ends the run with an error, not in silence."""

    def finish() -> None:
        raise WriteError("disk full")

    stream = stream_of(A, [lambda: stream.job.stop()], [])
    stream.finish = finish
    with pytest.raises(WriteError, match=r"^disk full$"):
        Streams([stream]).run()
    assert stream.summary is None


def test_a_stop_reaches_every_job():
    """SIGTERM ends them all."""
    streams = [stream_of(source, [1], []) for source in (A, B)]
    jobs = Streams(streams)
    streams[0].subscription.script.append(jobs.stop)
    jobs.run()
    assert [stream.summary.ending for stream in streams] == ["stopped", "stopped"]
    assert all(not stream.is_running for stream in streams)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("My_Subscription", "My_Subscription"),
        ("18x000000000001AAA", "18x000000000001AAA"),
        ("/event/Order_Event__e", "event_Order_Event__e"),
        ("/data/ChangeEvents", "data_ChangeEvents"),
        ("../../etc/passwd", "etc_passwd"),
        ("._x", "x"),
        ("Größe", "Gr__e"),
        ("…", "source"),
    ],
)
def test_a_table_among_several_has_a_safe_name(name: str, table: str):
    """No path leads out of the directory, and none is hidden from readers."""
    assert table_name(Source("topic", name)) == table


def test_where_tables_of_several_sources_are():
    """A directory, a URL, or a namespace of a catalog."""
    assert table_place(A, "/data/lake/", "parquet") == "/data/lake/Orders"
    assert table_place(B, "s3a://b/lake", "delta") == "s3a://b/lake/data_AccountChangeEvent"
    assert table_place(A, "shop.events", "iceberg") == "shop.events.Orders"
    assert table_place(A, "shop.events", "parquet") == "shop.events/Orders"
