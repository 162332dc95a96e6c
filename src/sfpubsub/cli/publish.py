"""``sfpubsub publish``: JSON lines to events."""

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

from sfpubsub.cli.params import Seconds, Topic
from sfpubsub.cli.publish_progress import PublishProgress
from sfpubsub.cli.render import publish_line
from sfpubsub.cli.service import StopRequest, connected_client, service_options
from sfpubsub.cli.words import counted
from sfpubsub.client.publisher import Publisher
from sfpubsub.client.publishing import DEFAULT_TIMEOUT
from sfpubsub.errors import ConfigurationError, EncodeError, PublishError
from sfpubsub.types import PublishResult

logger = logging.getLogger("sfpubsub.cli")

# The member of a line that is about the event, and not a field: fields begin with a letter.
ABOUT = "_event"

INTERRUPTED = 130

# Results that wait to be printed: some requests' worth, so that a reader who pauses stops the
# publishing instead of filling the memory.
MAX_UNPRINTED = 10_000

# Events a second that can be asked for: far more than an org takes, and no infinity.
MAX_RATE = 1_000_000


T = TypeVar("T")


class Rate(Seconds):
    """Finite events a second, as ``100`` or ``100/s``."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        plain: Any = value.removesuffix("/s") if isinstance(value, str) else value
        return float(super().convert(plain, param, ctx))


class Pace:
    """When the next event may go.

    Args:
        rate: Events a second.
        clock: Steady time in seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._begun: float | None = None
        self._count = 0

    def next(self) -> float:
        """Return the seconds to wait before the next event, which is counted."""
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
    help="JSON lines; stdin when left out.",
)
@click.option(
    "--created-by",
    metavar="USER_ID",
    help="Fill CreatedById with this, and CreatedDate with the present time, where they are left "
    "out.",
)
@click.option("--stream", is_flag=True, help="Publish by PublishStream, several requests at once.")
@click.option(
    "--rate",
    type=Rate(0, MAX_RATE, min_open=True),
    metavar="N/s",
    help="Publish at most so many events a second.",
)
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    metavar="S",
    default=DEFAULT_TIMEOUT,
    help=f"Seconds until an event without a result has failed.  [default: {DEFAULT_TIMEOUT:g}]",
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
    """Publish an event for every JSON line, and print a result for every event.

    A line is an object with the fields of the topic's schema; see `sfpubsub schema TOPIC`.
    CreatedDate (milliseconds since 1970 UTC) and CreatedById have to be among them, or be asked for
    with --created-by. A member "_event" is not a field: {"_event": {"id": "…", "headers": {"a":
    "b"}}} sets the event's id, which it keeps however often it is sent, and its headers.

    Events go out in the order of the lines, with one request at a time; with --stream several are
    on their way, which the service may publish in any order. What is not answered is sent again
    under the same id. A line that is not an event ends the reading; Ctrl-C does, too, and a second
    one ends at once.
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
        failed = _publish(publisher, _until(stop, file, Pace(rate) if rate else None))
    if failed:
        raise PublishError(f"{topic}: {counted(failed, 'event')} failed; see the printed results")
    return INTERRUPTED if stop.interrupted else None


def _publish(publisher: Publisher, lines: Iterator[tuple[str, str]]) -> int:
    """Send every line, print results in the order of the lines; return how many failed."""
    # A second Ctrl-C ends the publisher at once, and what has no result then is printed, too.
    with Printer(PublishProgress(sys.stderr, publisher)) as printer, publisher:
        try:
            _send(publisher, lines, printer)
        except Exception:
            _flush(publisher)  # the lines before it are published all the same
            raise
        _flush(publisher)
    return printer.failed


def _send(publisher: Publisher, lines: Iterator[tuple[str, str]], printer: Printer) -> None:
    for where, line in lines:
        value, about = _event(line, where)
        try:
            printer.put(publisher.send(value, **about))
        except EncodeError as error:
            raise EncodeError(f"{where}, not published: {error}") from error


class Printer:
    """Prints results in the order of their events, in a thread: also while no line comes.

    Args:
        progress: Looked at with each result.
    """

    def __init__(self, progress: PublishProgress) -> None:
        self.failed = 0
        self._progress = progress
        self._receipts: queue.Queue[Future[PublishResult] | None] = queue.Queue(MAX_UNPRINTED)
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sfpubsub-print", daemon=True)
        self._thread.start()

    def put(self, receipt: Future[PublishResult]) -> None:
        """Have the result of *receipt* printed; raises what became of an earlier one's printing.

        Waits while too many are not printed.
        """
        self._receipts.put(receipt)
        self._raise_broken()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Wait until all is printed; every result comes in the publisher's own time."""
        self._receipts.put(None)
        self._thread.join()
        self._raise_broken()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        while (receipt := self._receipts.get()) is not None:
            if self._broken is None:  # else it is taken only, so that nobody waits for room
                self._print(receipt.result())
        self._progress.end()

    def _print(self, result: PublishResult) -> None:
        self.failed += not result.ok
        try:
            click.echo(publish_line(result), nl=False)
            self._progress.look()
        except Exception as error:  # noqa: BLE001  # raised where it can end the command
            self._broken = error


def _flush(publisher: Publisher) -> None:
    # Failures are printed, one by one: the publisher need not raise them once more.
    try:
        publisher.flush()
    except PublishError:
        return


class _Enough(Exception):  # noqa: N818  # no error: it ends a wait
    """A signal came while a line, or its time, was waited for."""


def _until(stop: StopRequest, file: TextIO, pace: Pace | None) -> Iterator[tuple[str, str]]:
    """Yield lines with their place, at their pace, until a signal comes."""
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
            # Files are decoded some lines ahead.
            raise ConfigurationError(
                f"{file.name} is not UTF-8, at line {number} or behind it"
            ) from error
        if not line:
            if stop.requested:
                logger.info("no more lines are read; results are waited for, until a second Ctrl-C")
            return
        if line.strip():
            if pace is not None:  # what was read when the signal comes goes out at once
                wait_for(lambda: time.sleep(pace.next()), None)
            yield f"line {number} of {file.name}", line


def _event(line: str, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a line's values, and what it says about the event."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is not a JSON object")
    about = value.pop(ABOUT, {})
    if not isinstance(about, dict) or not about.keys() <= {"id", "headers"}:
        raise ConfigurationError(f"{where}: {ABOUT} is an object with id, headers, or both")
    headers = about.get("headers") or {}
    if not isinstance(headers, dict):
        raise ConfigurationError(f"{where}: headers is an object of texts")
    return value, {"event_id": about.get("id"), "headers": headers}
