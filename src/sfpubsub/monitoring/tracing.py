"""OpenTelemetry tracing: spans for receiving, processing and settling events.

Follows the semantic conventions for messaging, version 1.44. A response contains events of many
traces. Its span therefore has no parent, but links to the creation context of each event whose
headers contain one. Requires ``sfpubsub[otel]``.

The context is in the event's header ``traceparent``. The header is sent only if a program uses
`trace_headers`, because the service reserves event headers for future use.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sfpubsub import __version__
from sfpubsub.errors import MissingExtraError
from sfpubsub.monitoring.metrics import SCHEMA_URL
from sfpubsub.monitoring.observation import SourceKind
from sfpubsub.monitoring.sources import source_labels

if TYPE_CHECKING:
    from opentelemetry.trace import Link, SpanContext, SpanKind, TracerProvider

    from sfpubsub.client.batch import EventBatch

_HEADERS = ("traceparent", "tracestate")

# Maximum number of responses and steps for which links are kept; one write needs fewer.
_KEPT = 10_000


def trace_headers() -> dict[str, str]:
    """Return headers with the current span's context, for a publisher's ``send``.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """
    _require()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


class SourceTracing:
    """Creates the spans of one subscription. Each method may be called by one thread at a time.

    Args:
        kind: Kind of source: ``managed`` (a managed subscription), ``topic`` or ``channel``.
        name: Name of the source.
        endpoint: ``host:port`` of the service.
        provider: Tracer provider; the global one by default.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """

    def __init__(
        self,
        kind: SourceKind,
        name: str,
        *,
        endpoint: str = "",
        provider: TracerProvider | None = None,
    ) -> None:
        _require()
        from opentelemetry import trace

        self._tracer = trace.get_tracer("sfpubsub", __version__, provider, SCHEMA_URL)
        self._name = name
        self._about: dict[str, str | int] = dict(source_labels(kind, name))
        host, _, port = endpoint.rpartition(":")
        if host and port.isdigit():
            self._about |= {"server.address": host, "server.port": int(port)}
        # Filled by the thread that receives or processes, and drained by the thread of the next
        # stage.
        self._received: deque[tuple[int, SpanContext]] = deque(maxlen=_KEPT)
        self._processed: deque[SpanContext] = deque(maxlen=_KEPT)
        self._processed_at = 0
        self._settled = 0

    def received(self, batch: EventBatch, began: int) -> None:
        """Record a received response.

        Args:
            batch: The response's events.
            began: When the wait for the response began, in nanoseconds since the epoch.
        """
        from opentelemetry.trace import SpanKind

        context = self._span(
            "receive", SpanKind.CLIENT, began, time.time_ns(), len(batch), _created(batch)
        )
        self._received.append((len(batch), context))

    @contextmanager
    def processing(self, events: int) -> Iterator[None]:
        """Trace the ``with`` block, in which the next received events are processed.

        Args:
            events: Number of these events.
        """
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        links = [Link(context) for context in self._take(events)]
        with self._tracer.start_as_current_span(
            f"process {self._name}",
            kind=SpanKind.CONSUMER,
            attributes=self._attributes("process", events),
            links=links,
            record_exception=False,  # its message may reveal more than a trace should
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR))
                raise
        self._processed.append(span.get_span_context())
        self._processed_at = time.time_ns()

    def settled(self, confirmed: int) -> None:
        """Record the total number of events whose positions were committed or stored."""
        from opentelemetry.trace import Link, SpanKind

        events = confirmed - self._settled
        if events <= 0:
            return
        self._settled = confirmed
        now = time.time_ns()
        links = [Link(self._processed.popleft()) for _ in range(len(self._processed))]
        self._span("settle", SpanKind.CLIENT, self._processed_at or now, now, events, links)

    def _take(self, events: int) -> Iterator[SpanContext]:
        """Yield the span context of each response that contains some of the next events to process.

        Args:
            events: Number of events to process next.
        """
        while events > 0 and self._received:
            count, context = self._received.popleft()
            events -= count
            yield context
            if events < 0:  # the rest of the response is processed later
                self._received.appendleft((-events, context))

    def _span(
        self, operation: str, kind: SpanKind, began: int, ended: int, events: int, links: list[Link]
    ) -> SpanContext:
        span = self._tracer.start_span(
            f"{operation} {self._name}",
            kind=kind,
            attributes=self._attributes(operation, events),
            links=links,
            start_time=began,
        )
        span.end(ended)
        return span.get_span_context()

    def _attributes(self, operation: str, events: int) -> Mapping[str, str | int]:
        return {
            **self._about,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.batch.message_count": events,
        }


def _created(batch: EventBatch) -> list[Link]:
    """Return links to the creation contexts in the headers of a batch's events."""
    return [link for raw in batch.raw_events if raw.headers for link in _link(raw.headers)]


def _link(headers: Iterable[tuple[str, bytes]]) -> Iterator[Link]:
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {
        name: value.decode("ascii", "replace") for name, value in headers if name in _HEADERS
    }
    if "traceparent" in carrier:
        from opentelemetry.context import Context

        found = TraceContextTextMapPropagator().extract(carrier, Context())
        context = get_current_span(found).get_span_context()
        if context.is_valid:
            yield Link(context)


def _require() -> None:
    try:
        import opentelemetry.trace  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("OpenTelemetry", "otel") from error
