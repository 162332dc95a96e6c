"""The mailbox of a running mirror: a directory with one small file per signal.

A sender writes a file. The mirror polls for new files, acts on them, and marks them as done. A file
is written atomically and stays until it is marked, so a signal is processed at least once, even if
either process is killed. The file is named after the signal's id, so putting a signal again has no
effect, even after it was marked. Invariant: a file is removed only after it has been marked.

The directory is ``_mailbox`` in the mirror's target. If that is not local, the files are rows of a
table: ``_sidecars`` at a URL, or ``_reread_sidecars`` in a catalog (raw/files.py).
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.files import Files, files_of
from sfpubsub.spark.records.queue import QUEUE_NAME
from sfpubsub.spark.runtime.session import own_session

_log = logging.getLogger("sfpubsub.spark")

MAILBOX_NAME = "_mailbox"

Kind = Literal["reread", "pause", "resume", "add", "remove", "abandon-read", "confirm"]

_SIGNAL, _MARK = ".json", ".done"

# File in which the mirror says how many rows wait for a confirmation.
_PARKED = "parked"

# Allowed ids: an id is used as a file name.
_ID = re.compile(r"[0-9A-Za-z-]{1,100}")

# Number of marks kept. A sender repeats a signal within minutes at most, and users send a few
# signals a day.
_MARKS = 200


def _new_id() -> str:
    # Names sort in order of arrival if the senders' clocks agree. The time is in nanoseconds,
    # because a program may send pause and resume within a millisecond.
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Signal:
    """A signal to a running mirror."""

    kind: Kind
    """What to do: ``reread`` records of an object, ``add`` or ``remove`` an object, or give up its
    read (``abandon-read``); or ``pause`` or ``resume`` reads and merges. During a pause, events are
    still written to the raw table. ``confirm`` that the parked rows of an object may be deleted.
    """
    entity: str | None = None
    """The object; None for ``pause`` and ``resume``."""
    where: str | None = None
    """For ``reread``: a SOQL condition; None means all records."""
    id: str = field(default_factory=_new_id)
    """Unique id. A sender that repeats a signal must use the same id."""
    rows: int | None = None
    """For ``confirm``: the number of parked rows that was shown to the user. If more are parked by
    then, the mirror deletes none.
    """

    @property
    def needs_org(self) -> bool:
        """Whether the org has to be asked to process it."""
        return self.kind == "add" or self.where is not None


class Mailbox:
    """The mailbox of one mirror. Not thread-safe.

    Several processes may put signals, but only one may process them.

    Args:
        spark: Session for accessing locations that are not local; None for a local directory.
        place: The mirror's target.

    Raises:
        ConfigurationError: Spark does not support the file system, or the catalog schema contains
            no mirror.
    """

    def __init__(self, spark: SparkSession | None, place: Destination) -> None:
        self._files = _files(spark, place)
        self._logged: set[str] = set()

    @property
    def place(self) -> str:
        """Path or URL of the mailbox's directory, for use in messages."""
        return self._files.place

    def put(self, signal: Signal) -> None:
        """Write a signal durably. Putting the same signal again has no further effect.

        Raises:
            ConfigurationError: The id cannot be used as a file name.
            WriteError: It is unknown whether the signal was written. Put it again.
        """
        if not _ID.fullmatch(signal.id):
            raise ConfigurationError(
                f"{signal.id!r} is not a valid signal id: use letters, digits and hyphens"
            )
        if self._files.read(f"{signal.id}{_MARK}") is None:
            self._files.make()
            names = ("kind", "entity", "where", "rows")
            content = {name: getattr(signal, name) for name in names}
            self._files.replace(f"{signal.id}{_SIGNAL}", json.dumps(content))

    def show_parked(self, rows: Mapping[str, int]) -> None:
        """Tell senders how many rows of each object are parked; objects without any are left out.

        Raises:
            WriteError: It could not be stored.
        """
        text = json.dumps(dict(rows))
        if rows or self._files.read(_PARKED) is not None:
            self._files.make()
            self._files.replace(_PARKED, text)

    def parked(self) -> dict[str, int]:
        """Return how many rows of each object the mirror has parked, as it said last.

        Raises:
            ConfigurationError: The directory cannot be read.
        """
        text = self._files.read(_PARKED)
        return {} if text is None else dict(json.loads(text))

    def waiting(self) -> list[Signal]:
        """List the directory, and return the signals not marked as done, in order of arrival.

        A file that is not a signal, or was written by a newer version, is logged and ignored.

        Raises:
            ConfigurationError: The directory cannot be read.
        """
        names = self._files.names()
        done = {name.removesuffix(_MARK) for name in names if name.endswith(_MARK)}
        found = []
        for name in names:
            if not name.endswith(_SIGNAL) or (signal_id := name.removesuffix(_SIGNAL)) in done:
                continue
            signal = self._read(signal_id)
            if signal is not None:
                found.append(signal)
        return found

    def done(self, ids: Iterable[str]) -> None:
        """Mark signals as done, durably. Call this only after their effects have become durable.

        Raises:
            WriteError: Some signals were not marked, and `waiting` returns them again.
        """
        for signal_id in ids:
            # Write the mark first: after a crash in between, the signal still counts as done.
            self._files.replace(f"{signal_id}{_MARK}", "")
            self._files.remove(f"{signal_id}{_SIGNAL}")
        marks = [name for name in self._files.names() if name.endswith(_MARK)]
        for name in marks[:-_MARKS]:
            self._files.remove(name)

    def _read(self, signal_id: str) -> Signal | None:
        name = f"{signal_id}{_SIGNAL}"
        text = self._files.read(name)
        if text is None:  # removed since it was listed
            return None
        signal = _signal(signal_id, text)
        if signal is None and name not in self._logged:
            self._logged.add(name)
            _log.warning(
                "%s/%s is not a signal that this version supports: remove the file, or send the "
                "signal again with this version",
                self.place,
                name,
            )
        return signal


def _signal(signal_id: str, text: str) -> Signal | None:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("kind") not in get_args(Kind):
        return None
    entity, where = found.get("entity"), found.get("where")
    rows = found.get("rows")
    needs_object = found["kind"] not in ("pause", "resume")
    if isinstance(entity, str) != needs_object or not (where is None or isinstance(where, str)):
        return None
    if isinstance(rows, int) != (found["kind"] == "confirm"):
        return None
    return Signal(found["kind"], entity, where, signal_id, rows)


def _files(spark: SparkSession | None, place: Destination) -> Files:
    if place.local is not None or spark is None:
        return files_of(place, place.format, MAILBOX_NAME, spark)
    own = own_session(spark)
    if not place.in_catalog:
        return files_of(place, place.format, MAILBOX_NAME, own)
    if not spark.catalog.tableExists(place.table(QUEUE_NAME).in_sql):
        raise ConfigurationError(
            f"{place} contains no mirror, because it has no table {QUEUE_NAME}: check the target"
        )
    queue = Destination.parse(f"{place.address}.{QUEUE_NAME}", place.format)
    return files_of(queue, place.format, MAILBOX_NAME, own)
