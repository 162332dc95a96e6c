"""Write a small status file with the progress of a running command, for ``sfpubsub lag``.

`subscribe`, `ingest` and `mirror run` each update one file in the thread that reads events, about
once a second. Reading the file does not involve the service. It is not flushed to disk, and a
failed write does not stop the command. It contains no secrets and no event contents. The file is
informative, with one exception: for `subscribe --managed`, which keeps nothing else, it tells the
next run when the position was last confirmed, so that a lost position is noticed.

Each run has its own file. Once a run has received a message from the service, it removes the files
of ended runs that read the same source, and takes over their hourly event counts. A run that exits
cleanly without receiving a message removes only the files of runs that received no message either.
A run that the service never accepted, for instance because the name was misspelt or the sign-in
failed, removes its own file when it exits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sfpubsub.cli.status import FORMAT, HOUR, SUFFIX, Kind, Status, read_status, recent
from sfpubsub.client.last_confirmed import Confirmed, LastConfirmed
from sfpubsub.config import Settings
from sfpubsub.config.state import state_dir
from sfpubsub.monitoring.objects import ObjectState
from sfpubsub.monitoring.observation import NEW, Facts, Observation, Watched
from sfpubsub.spark.runtime.process import Process
from sfpubsub.types import Gap, Health, ReplayId

if TYPE_CHECKING:
    from sfpubsub.client.batch import EventBatch

logger = logging.getLogger("sfpubsub.cli")

# Seconds between writes: short enough for a user, and negligible compared to the cost of events.
EVERY = 1.0

# Age in seconds at which the file of a dead process is removed: far beyond any retention.
_KEPT = 30 * 86_400.0

# Suffix of a file that is being written.
_DRAFT = ".status.tmp"


class StatusFile:
    """Maintains one status file. Use it as a context manager, in the thread that reads events.

    ::

        with StatusFile("subscribe", "topic", topic, settings) as status:
            with client.subscribe(topic) as subscription:
                status.follow(subscription)
                while …:
                    batch = subscription.next_batch(0.2)
                    …
                    status.acked(batch)
                    status.refresh()

    Args:
        command: ``subscribe``, ``ingest`` or ``mirror``.
        kind: Kind of source: ``managed`` (a managed subscription), ``topic`` or ``channel``.
        name: Name of the source.
        settings: Settings of the run, which identify the service and the org.
        into: Address of the table that the run writes; None if there is no table.
        clock: Wall clock, in seconds since the epoch.
    """

    def __init__(
        self,
        command: str,
        kind: Kind,
        name: str,
        settings: Settings,
        *,
        into: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._path: Path | None = None  # None after a failed write
        org = _org(settings)
        self._key = _key(kind, name, settings.endpoint, org)
        self.observation = Observation(kind, name, clock=clock)
        """Collects the facts that are written to the file."""
        self._known = LastConfirmed(name, None, settings.timings)
        self._timings = settings.timings
        self._report_gap: Callable[[Gap], object] | None = None
        self._acked = 0  # number of events
        self._seen = NEW
        self._objects: Callable[[], Sequence[ObjectState]] = tuple
        self._is_followed = False
        self._due = 0.0
        own = Process.of(os.getpid())
        now = clock()
        self.status = Status(
            command=command,
            kind=kind,
            name=name,
            endpoint=settings.endpoint,
            org=org,
            pid=os.getpid(),
            process=own.started if own else "",
            host=socket.gethostname(),
            run=secrets.token_hex(4),  # unique enough within one subscription
            started_at=now,
            updated_at=now,
            into=into,
        )

    def __enter__(self) -> StatusFile:
        def begin() -> None:
            directory = state_dir()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            stored = _last_confirmed(directory, self._key)
            self._known = LastConfirmed(self.status.name, stored, self._timings)
            self._remember(stored)
            _prune(directory, self._clock())
            self._path = directory / f"{self._key}-{self.status.run}{SUFFIX}"

        self._guarded(begin)
        self._update()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, Exception):
            self.observation.failed(exc)
        health = self.observation.facts().health
        is_orderly = exc_type is None and self._is_followed
        # A run without messages was accepted too, unless there is a reason why none arrived.
        if is_orderly and (health.responses or not health.reason):
            self._accepted(health)
        self.status.ended_at = self._clock()
        self._update()
        path = self._path
        if path is not None and not self.status.connected:
            self._guarded(lambda: path.unlink(missing_ok=True))

    def follow(
        self, subscription: Watched, report_gap: Callable[[Gap], object] | None = None
    ) -> None:
        """Start reporting the progress of *subscription*.

        Args:
            subscription: The subscription.
            report_gap: For a managed subscription: reports its gap if an earlier run's position was
                lost; None if that is found elsewhere.
        """
        self.observation.follow(subscription)
        self._report_gap = report_gap
        self._is_followed = True
        self._due = 0.0

    def follow_objects(self, read: Callable[[], Sequence[ObjectState]]) -> None:
        """Start reporting the state of a mirror's objects, which *read* returns."""
        self._objects = read

    def acked(self, batch: EventBatch, events: int | None = None) -> None:
        """Record that the first *events* events of *batch* were acked; None means all events."""
        self.observation.acked(batch, events)
        self._acked += len(batch) if events is None else events

    def refresh(self) -> None:
        """Write the file if an update is due. Call this in every iteration of the reading loop."""
        if time.monotonic() >= self._due:
            self._update()

    def _update(self) -> None:
        self._due = time.monotonic() + EVERY
        self.status.updated_at = self._clock()
        self._note(self.observation.turn())
        path = self._path
        if path is not None:
            self._guarded(lambda: _replace(path, self.status))

    def _note(self, facts: Facts) -> None:
        status, seen, now, health = self.status, self._seen, self.status.updated_at, facts.health
        self._seen = health
        if status.kind == "managed":
            self._known.acked(self._acked, facts.acked_event_at)
            gap = self._known.observe(health)
            if gap is not None and self._report_gap is not None:
                self._report_gap(gap)
            self._remember(self._known.due(last=True))
        if health.responses != seen.responses:
            self._accepted(health)
        status.last_message_at, status.last_commit_at = facts.last_message_at, facts.last_commit_at
        status.acked_position, status.acked_event_at = facts.acked_position, facts.acked_event_at
        status.acked_at = facts.acked_at
        status.objects = [_record(each, now) for each in self._objects()]
        if health.committed is not None:
            status.committed_position = health.committed.hex()
        if health.last_position is not None:
            status.received_position = health.last_position.hex()
        status.state, status.reason = health.state, health.reason
        status.delivered = health.delivered
        status.pending, status.unacked = health.pending_count, health.unacked
        status.gaps, status.quarantined = len(health.gaps), health.quarantined
        status.hours = recent(status.hours, now)
        events = health.delivered + health.redelivered - seen.delivered - seen.redelivered
        if events:
            hour = str(int(now) // HOUR)
            status.hours[hour] = status.hours.get(hour, 0) + events

    def _remember(self, confirmed: Confirmed | None) -> None:
        """Keep a confirmed position for the next run; None changes nothing."""
        if confirmed is None:
            return
        self.status.confirmed_position = confirmed.position.hex()
        self.status.confirmed_at = confirmed.at
        self._known.stored(confirmed)

    def _accepted(self, health: Health) -> None:
        path = self._path
        if self.status.connected or path is None:
            return
        self.status.connected = True

        def replace_ended() -> None:
            for hours in _remove_ended(path.parent, self._key, silent=not health.responses):
                for hour, events in hours.items():
                    self.status.hours[hour] = self.status.hours.get(hour, 0) + events

        self._guarded(replace_ended)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:  # a full disk or a read-only home must not stop the subscription
            self._path = None
            logger.warning("stopped writing the status file for sfpubsub lag: %s", error)


def _record(each: ObjectState, now: float) -> dict[str, object]:
    return {
        "entity": each.entity,
        "state": each.state,
        "waits": {reason: " ".join(text.split()) for reason, text in each.waits.items()},
        "records": each.records,
        "behind_since": None if each.behind is None else now - each.behind,
        "queued": each.queued,
        "oldest_entry": each.oldest_entry,
        "read_at": each.read_at,
        "parked_rows": each.parked_rows,
    }


def _org(settings: Settings) -> str:
    known = settings.tenant_id or settings.instance_url
    if known or not settings.username:
        return known or settings.login_url
    return f"{settings.username} at {settings.login_url}"


def _key(kind: Kind, name: str, endpoint: str, org: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:60]
    exact = "\0".join((kind, name, endpoint, org, socket.gethostname()))
    digest = hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}-{digest[:12]}"


def _remove_ended(directory: Path, key: str, *, silent: bool) -> Iterator[dict[str, int]]:
    """Remove the status files of a source's ended runs; yield the hourly event counts of each run.

    Args:
        directory: The directory that contains the status files.
        key: Start of the file names, which identifies the source.
        silent: Whether to remove only files of runs that received no message from the service.
    """
    for path in directory.glob(f"{key}-*{SUFFIX}"):
        # Ignore a file that was just removed, and a damaged one, whose owner is unknown.
        with suppress(FileNotFoundError, ValueError):
            status = read_status(path)
            if status.is_alive() is False and not (silent and status.last_message_at):
                # Of two processes that try, the one that succeeds takes over the counts.
                path.unlink()
                yield status.hours


def _last_confirmed(directory: Path, key: str) -> Confirmed | None:
    """Return the newest confirmed position that the runs of a source have kept; None if none has.

    Args:
        directory: The directory that contains the status files.
        key: Start of the file names, which identifies the source.
    """
    found = []
    for path in directory.glob(f"{key}-*{SUFFIX}"):
        with suppress(FileNotFoundError, ValueError):  # as in `_remove_ended`
            status = read_status(path)
            if status.confirmed_position is not None and status.confirmed_at is not None:
                position = ReplayId.from_hex(status.confirmed_position)
                found.append(Confirmed(position, status.confirmed_at))
    return max(found, key=lambda each: each.at, default=None)


def _prune(directory: Path, now: float) -> None:
    for path in [*directory.glob(f"*{SUFFIX}"), *directory.glob(f"*{_DRAFT}")]:
        with suppress(FileNotFoundError):  # another command may have just removed it
            if path.stat().st_mtime < now - _KEPT or _says_nothing(path):
                path.unlink()


def _says_nothing(path: Path) -> bool:
    try:
        return not read_status(path).is_shown()
    except ValueError:  # damaged, or not completely written yet
        return False


def _replace(path: Path, status: Status) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}{_DRAFT}")
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(status)})
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)
