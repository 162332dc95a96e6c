"""``sfpubsub subscribe``: print events as JSON lines, and ack events once they have been read."""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import accumulate, islice
from typing import TYPE_CHECKING

import click

from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.params import ManagedName, ReadingCommand, Seconds, Topic
from sfpubsub.cli.pipe import Output
from sfpubsub.cli.service import StopRequest, connected_client, service_options
from sfpubsub.cli.status_file import StatusFile
from sfpubsub.cli.tracing import TracedSubscription
from sfpubsub.cli.waiting import Waiting
from sfpubsub.cli.watching import Address, http_option, is_traced, watching
from sfpubsub.config import Settings
from sfpubsub.monitoring.text import counted
from sfpubsub.types import start_position

if TYPE_CHECKING:  # these are imported where they are used, so that --help is fast
    from sfpubsub.client.batch import Event, EventBatch
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.client.subscription import Subscription
    from sfpubsub.client.undecodable import OnUndecodable
    from sfpubsub.spark.ingest.job import Subscription as Reading
    from sfpubsub.stores.file_quarantine import FileQuarantine
    from sfpubsub.stores.file_replay_store import FileReplayStore

# Seconds between checks for a stop requested by a signal; too short to be noticed by a user.
# A signal sets a flag and cannot wake a waiting thread.
_POLL = 0.2

# Number of bytes to write before checking how much was read: the size of a pipe on Linux.
_PIECE = 65_536

# Seconds between checks whether the last lines were read. A pipe does not report this, so it is
# polled.
_LOOK = 0.02

# Seconds to wait for the last lines to be read after a stop request: a running reader empties a
# pipe within milliseconds, a stopped one never.
_GRACE = 3.0


@click.command(cls=ReadingCommand)
@click.option(
    "--managed", type=ManagedName(), metavar="NAME_OR_ID", help="Managed subscription to read."
)
@click.option(
    "--topic", type=Topic(), metavar="TOPIC", help="Topic to read, such as /event/Order_Event__e."
)
@click.option(
    "--channel",
    metavar="CHANNEL",
    help="Streaming API channel to read: /topic/NAME (PushTopic) or /u/NAME (generic channel).",
)
@click.option("--max-events", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option(
    "--idle-timeout",
    type=Seconds(min=0),
    metavar="S",
    help="Stop after S seconds without an event. With --managed or --topic, time spent waiting for "
    "the network, or for another client to release the managed subscription, does not count.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Print payloads as base64 of their Avro bytes, without decoding them.",
)
@click.option(
    "--replay",
    metavar="latest|earliest|HEX",
    help="With --topic or --channel: where to start. For a topic: latest, earliest or a replay id "
    "in hexadecimal. For a channel: -1 (latest), -2 (earliest) or a replay id.  [default: latest]",
)
@click.option(
    "--replay-store",
    "store_file",
    metavar="FILE",
    help="With --topic or --channel: file that stores the position; --replay then applies to the "
    "first run only.",
)
@click.option(
    "--fallback",
    type=click.Choice(["stop", "earliest", "latest"]),
    help="With --topic or --channel: what to do if the service rejects the position.  "
    "[default: stop]",
)
@click.option(
    "--quarantine",
    "quarantine_dir",
    metavar="DIR",
    help="Directory for events that cannot be decoded.  [default: stop at the first such event]",
)
@http_option
@service_options
@click.pass_context
def subscribe(
    ctx: click.Context,
    /,
    managed: str | None,
    topic: str | None,
    channel: str | None,
    max_events: int | None,
    idle_timeout: float | None,
    raw: bool,
    replay: str | None,
    store_file: str | None,
    fallback: str | None,
    quarantine_dir: str | None,
    http: Address | None,
    **service: str | None,
) -> None:
    """Print events as JSON lines on stdout.

    With --managed, the service stores the position; with --replay-store, a file does. In both
    cases, the next run continues after the last acked event. An event is acked once its line is
    written or, if stdout is a pipe, once the line has been read; with --channel, always once it is
    written. The command exits cleanly after Ctrl-C, or when the reader closes the pipe, as `head`
    does. A second Ctrl-C exits immediately.
    """
    if [managed, topic, channel].count(None) != 2:
        raise click.UsageError("use exactly one of --managed, --topic and --channel")
    if channel is not None:
        if raw or quarantine_dir is not None or http is not None:
            raise click.UsageError("--raw, --quarantine and --http cannot be used with --channel")
        from sfpubsub.cli import channel as streaming

        streaming.run(
            ctx,
            channel,
            replay=replay,
            store_file=store_file,
            fallback=fallback,
            max_events=max_events,
            idle_timeout=idle_timeout,
            service=service,
        )
        return
    if managed is not None and not (replay is None and store_file is None and fallback is None):
        raise click.UsageError(
            "--replay, --replay-store and --fallback require --topic or --channel; with "
            "--managed, the service stores the position"
        )
    _check_replay(replay)
    from sfpubsub.stores.file_quarantine import FileQuarantine
    from sfpubsub.stores.file_replay_store import FileReplayStore
    from sfpubsub.stores.schema_store import FileSchemaStore

    out = Output(sys.stdout)
    kept = None if quarantine_dir is None else FileQuarantine(quarantine_dir)
    first = "latest" if replay is None else replay
    settings = Settings.load(service)
    with ExitStack() as opened:
        title = f"subscribe to {topic if managed is None else managed}"
        monitor = opened.enter_context(watching(title, http, timings=settings.timings))
        start: str | FileReplayStore = first
        schemas = None
        if store_file is not None:
            start = opened.enter_context(FileReplayStore(store_file, default=first))
            schemas = FileSchemaStore(f"{store_file}.schemas")
        client = opened.enter_context(connected_client(schemas, **service))
        stop = opened.enter_context(StopRequest().installed())
        status = opened.enter_context(_status_file(managed, topic, settings))
        monitor.observe(status.observation)
        subscription = opened.enter_context(_open(client, managed, topic, start, fallback, kept))
        status.follow(subscription, None if managed is None else subscription.report_gap)
        printer = _Printer(out, status, raw=raw, max_events=max_events)
        read_from: Reading = subscription
        processing: Callable[[int], AbstractContextManager[object]] = nullcontext
        if is_traced():
            from sfpubsub.monitoring.tracing import SourceTracing

            kind, name = status.status.kind, status.status.name
            tracing = SourceTracing(kind, name, endpoint=settings.endpoint)
            read_from, processing = TracedSubscription(subscription, tracing), tracing.processing
        _run(read_from, printer, stop, idle_timeout, processing)
    said = counted(printer.count, "event")
    if printer.unread:
        said += f", {printer.unread} more printed but not read"
    # Call this after draining, so that the final commit gets a span, too.
    quarantined = read_from.health().quarantined
    click.echo(f"{said}, {quarantined} quarantined" if quarantined else said, err=True)
    if stop.interrupted:
        ctx.exit(INTERRUPTED)


def _check_replay(replay: str | None) -> None:
    try:
        start_position("latest" if replay is None else replay)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--replay") from error


def _status_file(managed: str | None, topic: str | None, settings: Settings) -> StatusFile:
    if topic is None:
        return StatusFile("subscribe", "managed", str(managed), settings)
    return StatusFile("subscribe", "topic", topic, settings)


def _open(
    client: PubSubClient,
    managed: str | None,
    topic: str | None,
    start: str | FileReplayStore,
    fallback: str | None,
    kept: FileQuarantine | None,
) -> Subscription:
    policy: OnUndecodable = "fail" if kept is None else "quarantine"
    if topic is None:
        return client.subscribe_managed(
            str(managed), ack="manual", on_undecodable=policy, quarantine=kept
        )
    client.get_topic(topic)  # fail now on a wrong name, instead of waiting silently
    go_on = None if fallback == "stop" else fallback
    return client.subscribe(
        topic,
        replay=start,
        replay_fallback=go_on,
        ack="manual",
        on_undecodable=policy,
        quarantine=kept,
    )


class _Printer:
    """Prints events as lines, and acks events once the reader of stdout has read their lines."""

    def __init__(
        self,
        out: Output,
        status: StatusFile,
        *,
        raw: bool,
        max_events: int | None,
    ) -> None:
        self.out = out
        self.status = status
        from sfpubsub.cli.render import EventLines

        lines = EventLines(raw=raw)
        self._line: Callable[[Event], bytes] = (
            lines.utf8_line if out.is_utf8 else lambda event: out.encoded(lines.line(event))
        )
        self._max = max_events
        self._written = 0
        # For each batch with lines that may be unread: the end offset of each line in the output,
        # and the number of lines that have been read.
        self._unread: deque[tuple[EventBatch, list[int], int]] = deque()
        self.count = 0
        """Number of events that were read and acked."""

    @property
    def unread(self) -> int:
        """Number of events that were at least partly printed, and may not have been read yet."""
        return sum(len(ends) - read for _, ends, read in self._unread)

    @property
    def done(self) -> bool:
        return self._max is not None and self._written >= self._max

    def write(self, batch: EventBatch) -> None:
        # Render events one by one, so that few values exist at a time, which saves garbage
        # collection.
        events = islice(batch, None if self._max is None else self._max - self._written)
        lines: list[bytes] = []
        try:
            # An event that cannot be decoded raises here. The events before it are printed and
            # acked.
            lines.extend(map(self._line, events))
        finally:
            ends = list(accumulate(map(len, lines), initial=self.out.written))[1:]
            self._unread.append((batch, ends, 0))
            self._written += len(lines)
            text = b"".join(lines)
            for start in range(0, len(text), _PIECE):
                self.out.write(text[start : start + _PIECE])
                self.ack_read()

    def ack_read(self) -> None:
        """Ack the events whose lines have been read."""
        if not self._unread:
            return
        taken = self.out.taken()
        while self._unread:
            batch, ends, before = self._unread.popleft()
            read = bisect_right(ends, taken, before)
            if read < len(ends):
                self._unread.appendleft((batch, ends, read))
            if read > before:
                batch.ack_range(batch.first_seq + before, batch.first_seq + read - 1)
                self.status.acked(batch, read)
                self.count += read - before
            if read < len(ends):
                return


def _run(
    subscription: Reading,
    printer: _Printer,
    stop: StopRequest,
    idle_timeout: float | None,
    processing: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> None:
    try:
        _print(subscription, printer, stop, idle_timeout, processing)
    except Exception:
        _wait_for_reader(subscription, printer, stop)
        raise
    _wait_for_reader(subscription, printer, stop)


def _print(
    subscription: Reading,
    printer: _Printer,
    stop: StopRequest,
    idle_timeout: float | None,
    processing: Callable[[int], AbstractContextManager[object]],
) -> None:
    waiting = Waiting()
    silent_since = time.monotonic()
    looked = -math.inf
    while not (stop.requested or printer.done or printer.out.is_gone()):
        batch = subscription.next_batch(_POLL)
        now = time.monotonic()
        if batch is not None:
            with processing(len(batch)):
                printer.write(batch)
        printer.ack_read()
        if batch is not None:
            silent_since = now
        if batch is None or now - looked >= _POLL:  # as expensive as a few events
            looked = now
            listening = waiting.observe(subscription.health(), now)
            if listening == "no":
                silent_since = now
            silence = now - silent_since
            if idle_timeout is not None and listening == "yes" and silence >= idle_timeout:
                return
        printer.status.refresh()


def _wait_for_reader(subscription: Reading, printer: _Printer, stop: StopRequest) -> None:
    """Wait until all printed lines have been read.

    The wait ends early if the reader exits or the subscription ends. After a stop request, it lasts
    at most `_GRACE` seconds.
    """
    deadline = math.inf
    while printer.unread and not printer.out.is_gone(_LOOK):
        printer.ack_read()
        printer.status.refresh()
        if stop.requested and deadline == math.inf:
            deadline = time.monotonic() + _GRACE
        if time.monotonic() >= deadline or subscription.health().state == "closed":
            break
    printer.ack_read()
