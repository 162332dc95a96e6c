"""A small file that says how far a running command has got, for people and for ``sfpubsub lag``.

`subscribe` and `ingest` keep one each, in the thread that iterates, about once a second; reading it
costs the service nothing. It is informative: no decision is made from it, it is not flushed to the
disk, and a file that cannot be written ends nothing. It holds no secret and no content of an event.

Each run has a file of its own and says nothing of another. Once the service has sent it something,
it replaces the files of earlier runs that have ended, and takes over only what is counted over all
runs: the events of the last hours. A run that ends in order and was sent nothing replaces only such
as were sent nothing either. One that was never accepted, because the name was misspelt or nobody
could sign in, removes its file at its end.
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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sfpubsub.cli.status import FORMAT, HOUR, SUFFIX, Kind, Status, read, recent, state_dir
from sfpubsub.config import Settings
from sfpubsub.monitoring.observation import NEW, Facts, Observation, Watched
from sfpubsub.spark.runtime.process import Process
from sfpubsub.types import Health

if TYPE_CHECKING:
    from sfpubsub.client.batch import EventBatch

logger = logging.getLogger("sfpubsub.cli")

# Seconds between two writes: as often as a person looks, and nothing beside what an event costs.
EVERY = 1.0

# Seconds after which the file of a dead process is removed: long past every retention.
_KEPT = 30 * 86_400.0

# End of the name of a file that is being written.
_DRAFT = ".status.tmp"


class StatusFile:
    """Keeps one status file. Use it as a context manager, in the thread that iterates.

    ::

        with StatusFile("subscribe", "topic", topic, settings) as status:
            with client.subscribe(topic) as subscription:
                status.follow(subscription)
                while …:
                    batch = subscription.next_batch(0.2)
                    …
                    status.acked(batch)
                    status.look()

    Args:
        command: ``subscribe`` or ``ingest``.
        kind: Whether *name* is a managed subscription, a topic or a channel.
        name: What is read.
        settings: Which service is read, and as whom.
        into: The table that is written.
        clock: Seconds since 1970 UTC.
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
        self._path: Path | None = None  # None once it could not be written
        org = _org(settings)
        self._key = _key(kind, name, settings.endpoint, org)
        self.observation = Observation(kind, name, clock=clock)
        """What the file is written from."""
        self._seen = NEW
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
            run=secrets.token_hex(4),  # in one directory, of one subscription: enough
            started_at=now,
            updated_at=now,
            into=into,
        )

    def __enter__(self) -> StatusFile:
        def begin() -> None:
            directory = state_dir()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        health = self.observation.look().health
        is_orderly = exc_type is None and self._is_followed
        if is_orderly and (health.responses or not health.reason):  # or before anything could come
            self._accepted(health)
        self.status.ended_at = self._clock()
        self._update()
        path = self._path
        if path is not None and not self.status.connected:
            self._guarded(lambda: path.unlink(missing_ok=True))

    def follow(self, subscription: Watched) -> None:
        """Watch *subscription* from now on."""
        self.observation.follow(subscription)
        self._is_followed = True
        self._due = 0.0

    def acked(self, batch: EventBatch, events: int | None = None) -> None:
        """Note that the first *events* of *batch* were acked; all of them when None. Cheap."""
        self.observation.acked(batch, events)

    def look(self) -> None:
        """Write the file if it is due; to be called on every turn of the loop."""
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
        if health.responses != seen.responses:
            self._accepted(health)
        status.last_message_at, status.last_commit_at = facts.last_message_at, facts.last_commit_at
        status.acked_position, status.acked_event_at = facts.acked_position, facts.acked_event_at
        status.acked_at = facts.acked_at
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
        except OSError as error:  # a full disk or a read-only home must not end the subscription
            self._path = None
            logger.warning("no status file for sfpubsub lag from here on: %s", error)


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
    """Remove the files of a subscription's runs that have ended; yield what each has counted.

    Args:
        directory: Of the files.
        key: Of the subscription.
        silent: Only those that were sent nothing.
    """
    for path in directory.glob(f"{key}-*{SUFFIX}"):
        with suppress(FileNotFoundError, ValueError):  # removed just now; damaged, and so nobody's
            status = read(path)
            if status.is_alive() is False and not (silent and status.last_message_at):
                path.unlink()  # of two that try, the one that succeeds takes the counts over
                yield status.hours


def _prune(directory: Path, now: float) -> None:
    for path in [*directory.glob(f"*{SUFFIX}"), *directory.glob(f"*{_DRAFT}")]:
        with suppress(FileNotFoundError):  # removed by another command just now
            if path.stat().st_mtime < now - _KEPT or _says_nothing(path):
                path.unlink()


def _says_nothing(path: Path) -> bool:
    try:
        return not read(path).is_shown()
    except ValueError:  # damaged, or a draft that is being written
        return False


def _replace(path: Path, status: Status) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}{_DRAFT}")
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(status)})
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)
