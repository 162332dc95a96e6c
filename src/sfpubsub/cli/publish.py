"""``sfpubsub publish``: publish JSON lines as events."""

from __future__ import annotations

import itertools
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Self, TextIO, TypeVar

import click

from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.cli.params import Seconds, Topic
from sfpubsub.cli.publish_progress import PublishProgress
from sfpubsub.cli.render import publish_line
from sfpubsub.cli.service import StopRequest, connected_client, service_options
from sfpubsub.client.publisher import Publisher
from sfpubsub.client.publishing import DEFAULT_TIMEOUT
from sfpubsub.errors import ConfigurationError, EncodeError, PublishError
from sfpubsub.monitoring.text import counted
from sfpubsub.types import PublishResult

logger = logging.getLogger("sfpubsub.cli")

# Key of an input line's object that holds the event's id and headers. It cannot clash with a field,
# because field names begin with a letter.
ABOUT = "_event"

# Maximum number of results that wait to be printed: those of a few requests, so that a slow reader
# of stdout pauses publishing instead of filling memory.
MAX_UNPRINTED = 10_000

# Highest rate that can be requested, in events per second: far more than an org accepts, but
# finite.
MAX_RATE = 1_000_000


T = TypeVar("T")


class Rate(Seconds):
    """Parameter type for a finite number of events per second, such as ``100`` or ``100/s``."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the rate in events per second."""
        plain: Any = value.removesuffix("/s") if isinstance(value, str) else value
        return float(super().convert(plain, param, ctx))


class Pace:
    """Paces events at a fixed rate.

    Args:
        rate: Events per second.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._begun: float | None = None
        self._count = 0

    def next(self) -> float:
        """Count the next event, and return the seconds to wait before publishing it."""
        now = self._clock()
        if self._begun is None:
            self._begun = now
        due = self._begun + self._count / self._rate
        self._count += 1
        return max(0.0, due - now)


@click.command()
@click.argument("topic", type=Topic())
@click.option(
    "--file",
    "file",
    type=click.File(encoding="utf-8"),
    default="-",
    help="File in JSON Lines format, with one event per line.  [default: stdin]",
)
@click.option(
    "--created-by",
    metavar="USER_ID",
    help="Value of CreatedById for lines that omit it.  [default: the signed-in user]",
)
@click.option(
    "--stream", is_flag=True, help="Use the PublishStream call, with several requests in flight."
)
@click.option(
    "--rate",
    type=Rate(0, MAX_RATE, min_open=True),
    metavar="N/s",
    help="Publish at most this many events per second.",
)
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    metavar="S",
    default=DEFAULT_TIMEOUT,
    help=f"Seconds after which an event without a result counts as failed.  [default: "
    f"{DEFAULT_TIMEOUT:g}]",
)
@service_options
def publish(
    topic: str,
    file: TextIO,
    created_by: str | None,
    stream: bool,
    rate: float | None,
    timeout: float,
    **service: str | None,
) -> int | None:
    """Publish the events of a JSON Lines file, and print a result for each.

    Each line is a JSON object with the fields of the topic's schema; see `sfpubsub schema TOPIC`.
    If it omits CreatedById or CreatedDate (milliseconds since the epoch), they are the signed-in
    user and the current time. The optional key "_event" is not a field: it sets the event's id and
    headers, as in {"_event": {"id": "…", "headers": {"a": "b"}}}.

    Events are sent in the order of the lines, one request at a time. With --stream, several
    requests are in flight, and the service may publish the events in any order. If there is no
    response, events are resent with the same id. The command stops reading at an invalid line, or
    after Ctrl-C. A second Ctrl-C exits immediately.
    """
    stop = StopRequest()
    with (
        connected_client(None, **service) as client,
        stop.installed(),
    ):
        publisher = client.open_publisher(
            topic,
            ordered=not stream,
            streamed=stream,
            timeout=timeout,
            created_by=created_by,
        )
        printer = _publish(publisher, _until(stop, file, Pace(rate) if rate else None))
        if not printer.printed:
            client.get_topic(topic)  # so that a wrong topic is an error all the same
            click.echo(f"no events in {file.name}", err=True)
    if printer.failed:
        raise PublishError(
            f"{topic}: {counted(printer.failed, 'event')} failed; see the printed results"
        )
    return INTERRUPTED if stop.interrupted else None


def _publish(publisher: Publisher, lines: Iterator[tuple[str, str]]) -> Printer:
    """Publish every line, print results in the same order, and return what has printed them."""
    # A second Ctrl-C stops the publisher immediately; events without a result are printed as well.
    with Printer(PublishProgress(sys.stderr, publisher)) as printer, publisher:
        try:
            _send(publisher, lines, printer)
        except Exception:
            _flush(publisher)  # the lines before the error are still published
            raise
        _flush(publisher)
    return printer


def _send(publisher: Publisher, lines: Iterator[tuple[str, str]], printer: Printer) -> None:
    for where, line in lines:
        value, about = _event(line, where)
        try:
            printer.put(publisher.send(value, **about))
        except EncodeError as error:
            raise EncodeError(f"{where} could not be published: {error}") from error


class Printer:
    """Prints results in the order of their events.

    A thread prints them, so that results appear even while no input arrives.

    Args:
        progress: Progress line, updated after each result.
    """

    def __init__(self, progress: PublishProgress) -> None:
        self.failed = self.printed = 0  # events
        self._progress = progress
        self._receipts: queue.Queue[Future[PublishResult] | None] = queue.Queue(MAX_UNPRINTED)
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sfpubsub-print", daemon=True)
        self._thread.start()

    def put(self, receipt: Future[PublishResult]) -> None:
        """Queue a result, given as a future. Results are printed in the order of the calls.

        Blocks while `MAX_UNPRINTED` results are waiting to be printed. If printing an earlier
        result failed, the error is raised here.
        """
        self._receipts.put(receipt)
        self._raise_broken()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Wait until all results are printed. The publisher's timeout limits the wait.

        If printing a result failed, the error is raised here.
        """
        self._receipts.put(None)
        self._thread.join()
        self._raise_broken()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        while (receipt := self._receipts.get()) is not None:
            if self._broken is None:  # otherwise only drain the queue, so that `put` does not block
                self._print(_result_of(receipt))
        self._progress.end()

    def _print(self, result: PublishResult) -> None:
        self.printed += 1
        self.failed += not result.ok
        try:
            click.echo(publish_line(result), nl=False)
            self._progress.refresh()
        except Exception as error:  # noqa: BLE001  # re-raised in the main thread
            self._broken = error


def _result_of(receipt: Future[PublishResult]) -> PublishResult:
    try:
        return receipt.result()
    except PublishError as error:
        (failed,) = error.results
        return failed


def _flush(publisher: Publisher) -> None:
    # Each failure is printed as a result, so the publisher's summary error is not needed.
    try:
        publisher.flush()
    except PublishError:
        return


class _Enough(Exception):  # noqa: N818  # not an error, but the end of a wait
    """Raised by the signal handler to end a wait for input or for the next event's send time."""


def _until(stop: StopRequest, file: TextIO, pace: Pace | None) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each line that is not blank, at the rate of *pace*.

    Stops at the end of the file, or when a stop is requested.

    Raises:
        ConfigurationError: The file is not valid UTF-8.
    """
    is_waiting = False

    def interrupt() -> None:
        if is_waiting:
            raise _Enough

    def wait_for(work: Callable[[], T], otherwise: T) -> T:
        nonlocal is_waiting
        try:
            is_waiting = True
            found = otherwise if stop.requested else work()
            is_waiting = False
        except _Enough:
            found = otherwise
        is_waiting = False
        return found

    stop.tell(interrupt)
    for number in itertools.count(1):
        try:
            line = wait_for(file.readline, "")
        except UnicodeDecodeError as error:
            # The file is decoded ahead of the current line.
            raise ConfigurationError(
                f"{file.name} is not valid UTF-8 at line {number} or later: convert the file to "
                f"UTF-8"
            ) from error
        if not line:
            if stop.requested:
                logger.info(
                    "stopped reading input; waiting for results (a second Ctrl-C stops waiting)"
                )
            return
        if line.strip():
            if pace is not None:  # after a signal, lines already read are sent without pacing
                wait_for(lambda: time.sleep(pace.next()), None)
            yield f"line {number} of {file.name}", line


def _event(line: str, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the field values in a line, and a dict of arguments for `send`: event id and headers.

    Raises:
        ConfigurationError: The line is not valid.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{where} is not a JSON object: each line must be an object with the event's fields"
        )
    about = value.pop(ABOUT, {})
    if not isinstance(about, dict) or not about.keys() <= {"id", "headers"}:
        raise ConfigurationError(f"{where}: {ABOUT} must be an object with id, headers, or both")
    headers = about.get("headers") or {}
    if not isinstance(headers, dict):
        raise ConfigurationError(f"{where}: headers must be an object with string values")
    return value, {"event_id": about.get("id"), "headers": headers}
