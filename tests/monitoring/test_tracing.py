"""Tests of the OpenTelemetry spans for receiving, processing and settling (committing) events."""

from __future__ import annotations

import time

import pytest

from sfpubsub.cli.main import run
from sfpubsub.cli.tracing import TracedSubscription, TracedWriter
from sfpubsub.monitoring.tracing import SourceTracing, _created, trace_headers
from sfpubsub.types import RawEvent, ReplayId

from ..cli.test_cli import point_at
from ..client.test_managed import NAME, TOPIC
from ..conftest import until

ROW = {"CreatedDate": 1_800_000_000_000, "CreatedById": "005SB0000000001", "Order_Number__c": "A-1"}

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402


@pytest.fixture
def traced():
    """Yield a tracer provider, and a function that returns its finished spans."""
    provider, spans = sdk.TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider, spans.get_finished_spans
    provider.shutdown()


def links_of(span) -> list[int]:
    """Return the ids of the spans that *span* links to."""
    return [link.context.span_id for link in span.links]


def test_spans_link_from_response_to_commit(run_emulator, connect, traced):
    """Each processing span links to a receive span, and settle spans link to processing spans.

    All of them have the attributes of OpenTelemetry's messaging conventions.
    """
    provider, spans = traced
    emulator = run_emulator()
    emulator.publish(TOPIC, [ROW] * 3)
    tracing = SourceTracing("managed", NAME, endpoint="127.0.0.1:7011", provider=provider)
    subscription = connect(emulator).subscribe_managed(NAME, ack="manual")
    with subscription:
        read, events = TracedSubscription(subscription, tracing), 0
        while events < 3:
            batch = read.next_batch(1.0)
            if batch is not None:
                with tracing.processing(len(batch)):
                    batch.ack()
                events += len(batch)
        until(lambda: read.health().confirmed == 3)
    by_name: dict[str, list] = {}
    for span in spans():
        by_name.setdefault(span.name, []).append(span)
    assert set(by_name) == {f"receive {NAME}", f"process {NAME}", f"settle {NAME}"}
    received, processed, settled = (
        by_name[f"{what} {NAME}"] for what in ("receive", "process", "settle")
    )
    assert [links_of(span) for span in processed] == [[span.context.span_id] for span in received]
    assert sorted(link for span in settled for link in links_of(span)) == sorted(
        span.context.span_id for span in processed
    )
    for group, kind, operation in (
        (received, SpanKind.CLIENT, "receive"),
        (processed, SpanKind.CONSUMER, "process"),
        (settled, SpanKind.CLIENT, "settle"),
    ):
        assert sum(span.attributes["messaging.batch.message_count"] for span in group) == 3
        for span in group:
            assert span.kind == kind
            assert span.parent is None
            assert (
                dict(span.attributes).items()
                >= {
                    "messaging.system": "salesforce_pubsub",
                    "messaging.destination.subscription.name": NAME,
                    "messaging.operation.name": operation,
                    "messaging.operation.type": operation,
                    "server.address": "127.0.0.1",
                    "server.port": 7011,
                }.items()
            )
            assert span.start_time <= span.end_time <= time.time_ns()


def test_receive_span_links_to_the_span_that_published(traced):
    """A receive span links to the trace contexts in the headers of its events.

    Invalid contexts are ignored, and a linked span never becomes the parent.
    """
    provider, spans = traced
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("order") as made:
        headers = trace_headers()
    assert list(headers) == ["traceparent"]
    tracing = SourceTracing("topic", TOPIC, provider=provider)
    carried = tuple((name, value.encode()) for name, value in headers.items())
    response = batch(1, carried, (("traceparent", b"no context \xff"),), (("other", b"x"),), ())
    assert len(_created(response)) == 1
    tracing.received(response, 0)
    (span,) = [span for span in spans() if span.name.startswith("receive")]
    assert links_of(span) == [made.get_span_context().span_id]
    assert span.links[0].context.trace_id == made.get_span_context().trace_id
    assert span.parent is None


def test_trace_headers_are_sent_only_on_request(run_emulator, connect, traced):
    """Publishing within a span adds no trace header unless the caller passes `trace_headers()`."""
    with (
        traced[0].get_tracer("test").start_as_current_span("order"),
        connect(run_emulator()).open_publisher(TOPIC) as publisher,
    ):
        draft = publisher._outbound.draft
        assert draft(ROW).event.headers == ()
        ((name, value),) = draft(ROW, headers=trace_headers()).event.headers
    assert (name, value[:3]) == ("traceparent", b"00-")


class Rows(list):
    """A list of rows, one for each event to write."""


def batch(events: int, *headers):
    """Return a fake batch of *events* events; *headers* are the headers of its raw events."""

    class Batch:
        raw_events = tuple(
            RawEvent("1", "schema", b"", ReplayId(b"\x01"), carried) for carried in headers
        )

        def __len__(self):
            return events

    return Batch()


def test_write_span_links_to_the_responses_it_contains(traced):
    """The span of a write links to each response from which the write contains events.

    The span of a failed write has the class of the exception but not its message.
    """
    provider, spans = traced
    tracing = SourceTracing("topic", TOPIC, provider=provider)

    class Writes:
        flush_requested = False

        def check(self):
            pass

        def record_time(self, process_time):
            pass

        def write_collected(self, rows):
            if rows == ["broken"]:
                raise ZeroDivisionError("with a secret")
            return "result"

    writer = TracedWriter(Writes(), tracing)
    for count in (10, 5, 7):
        tracing.received(batch(count), time.time_ns())
    assert writer.write_collected(Rows(range(12))) == "result"
    writer.write_collected(Rows(range(10)))
    with pytest.raises(ZeroDivisionError):
        writer.write_collected(["broken"])
    received = [span.context.span_id for span in spans() if span.name.startswith("receive")]
    first, second, broken = [span for span in spans() if span.name.startswith("process")]
    assert links_of(first) == received[:2]
    assert links_of(second) == received[1:]
    assert broken.status.status_code == StatusCode.ERROR
    assert broken.attributes["error.type"] == "ZeroDivisionError"
    assert "secret" not in broken.to_json()


def test_command_creates_spans_only_if_opentelemetry_is_configured(
    run_emulator, monkeypatch, traced, capsys
):
    """The command creates spans for receiving, processing and committing only if an ``OTEL_*``
    variable is set.
    """
    provider, spans = traced
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    emulator.publish(TOPIC, [ROW] * 6)
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    command = ["subscribe", "--managed", NAME, "--max-events", "3"]
    assert run(command) == 0
    assert spans() == ()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "test")
    assert run(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    names = [span.name.split()[0] for span in spans()]
    assert names[-1] == "settle"
    assert names.count("process") == names.count("receive") > 0
