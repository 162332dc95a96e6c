"""The contents of status files, and functions that read and validate them."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from sfpubsub.spark.runtime.process import Process

Kind = Literal["managed", "topic", "channel"]

# Hours for which deliveries are counted. The service's allocation covers a rolling 24 hours.
HOURS = 24

HOUR = 3600

# Suffix of the file names. The directory may contain unrelated files.
SUFFIX = ".status.json"

# Maximum accepted number, far above any time in seconds and any count of events.
_MOST = 1e13

# Version of the file format; files of another version are not read.
FORMAT = 3


@dataclass
class Status:
    """Contents of a status file. Times are in seconds since the epoch, positions in hexadecimal."""

    command: str
    """Command of the run: ``subscribe``, ``ingest`` or ``mirror``."""
    kind: Kind
    name: str
    """Name of the source: a topic, a channel, or a managed subscription's name or id."""
    endpoint: str
    """``host:port`` of the service."""
    org: str
    """The org according to the settings: tenant id, instance URL, or login host and user. Needed
    because orgs share an endpoint.
    """
    pid: int
    process: str
    """Start time of the process in the operating system's format. Distinguishes the process from
    later processes with the same pid.
    """
    host: str
    """Host name of the machine that the process runs on."""
    run: str
    """Random id that distinguishes the runs of a subscription."""
    started_at: float
    updated_at: float
    into: str | None = None
    """Address of the table that events are written to; None if there is no table."""
    connected: bool = False
    """Whether the service has accepted the subscription in this run."""
    ended_at: float | None = None
    """When the command ended, with or without an error; None if it is running or was killed."""
    state: str = "new"
    """`Health.state` of the subscription."""
    reason: str | None = None
    acked_position: str | None = None
    """Position of the last event that was printed or written; None before the first."""
    received_position: str | None = None
    committed_position: str | None = None
    confirmed_position: str | None = None
    """For `subscribe --managed`: the newest position that the service is known to have."""
    confirmed_at: float | None = None
    """Time of that position by the service's clock (client/last_confirmed.py)."""
    last_message_at: float | None = None
    """When the service last sent a message, including keepalives; None before the first message."""
    last_commit_at: float | None = None
    """When the last commit was confirmed; None before the first commit."""
    acked_event_at: float | None = None
    """When the last acked event occurred; None if it has no timestamp."""
    acked_at: float | None = None
    """When the last acked event was acked; None before the first ack."""
    delivered: int = 0
    """Number of events delivered in this run."""
    pending: int = 0
    unacked: int = 0
    gaps: int = 0
    quarantined: int = 0
    objects: list[dict[str, Any]] = field(default_factory=list)
    """For a mirror: the fields of `monitoring.objects.ObjectState` of each object, but instead of
    `behind` the time `behind_since` when the oldest event that is not applied was received.
    """
    hours: dict[str, int] = field(default_factory=dict)
    """Number of events delivered, by hour since the epoch. Redeliveries count, as they do for the
    service.
    """

    def delivered_lately(self, now: float) -> int:
        """Return the number of events delivered in the current hour and the 24 hours before it."""
        return sum(recent(self.hours, now).values())

    def is_alive(self) -> bool | None:
        """Return whether the process is still running.

        None if this is unknown, because the process was started on another machine.
        """
        if self.ended_at is not None:
            return False
        if self.host != socket.gethostname():
            return None
        return Process(self.pid, self.process).alive()

    def is_shown(self) -> bool:
        """Return whether `lag` shows the run.

        A run that ended before the service accepted the subscription is omitted.
        """
        return self.connected or self.is_alive() is not False


def read_all(directory: Path) -> tuple[list[Status], list[str]]:
    """Return the runs that `lag` shows, and an error message for each file that cannot be read."""
    found, unreadable = [], []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            status = read_status(path)
        except FileNotFoundError:
            continue  # another command has just removed it
        except (OSError, ValueError) as error:
            unreadable.append(f"{path} cannot be read: {error}")
        else:
            if status.is_shown():
                found.append(status)
    return found, unreadable


def recent(hours: dict[str, int], now: float) -> dict[str, int]:
    """Return those of *hours* that are among the last `HOURS`; keys are hours since 1970."""
    first = int(now) // HOUR - HOURS
    return {hour: events for hour, events in hours.items() if int(hour) >= first}


def read_status(path: Path) -> Status:
    """Read a status file.

    Raises:
        FileNotFoundError: The file no longer exists.
        OSError: The file could not be read.
        ValueError: The file is damaged, or was written by another version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError(
            "the file is not a status file, or was written by another version of sfpubsub"
        )
    for name, kind in _FIELDS.items():
        if name not in values or not isinstance(values[name], kind):
            raise ValueError(f"the value of {name} is missing or has the wrong type")
        if isinstance(values[name], str):
            values[name].encode()  # fails if the text cannot be printed
        if isinstance(values[name], (int, float)) and not abs(values[name]) <= _MOST:
            raise ValueError(f"the value of {name} is not a valid number")
    if values["kind"] not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}")
    if not all(_is_count(hour, events) for hour, events in values["hours"].items()):
        raise ValueError("hours must map each hour to a number of events")
    if not all(map(_is_object, values["objects"])):
        raise ValueError("objects must have the state of each object of a mirror")
    return Status(**{name: values[name] for name in _FIELDS})


def _no_number(text: str) -> None:
    raise ValueError(f"the JSON contains {text}, which is not a valid number")


def _is_count(hour: str, events: Any) -> bool:
    return len(hour) < 10 and hour.isdecimal() and isinstance(events, int) and events <= _MOST


def _is_object(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _OBJECT.keys():
        return False
    texts = [value["entity"], value["state"]]
    if isinstance(value["waits"], dict):
        texts += value["waits"].values()
    numbers = [each for each in value.values() if isinstance(each, (int, float))]
    return (
        all(isinstance(value[name], kind) for name, kind in _OBJECT.items())
        and all(isinstance(text, str) and text.isprintable() for text in texts)
        and all(abs(number) <= _MOST for number in numbers)
    )


_STR, _INT, _TIME = (str,), (int,), (int, float)
_OPTIONAL_STR, _OPTIONAL_TIME = (str, type(None)), (int, float, type(None))

# Types allowed for each value.
_FIELDS: dict[str, tuple[type, ...]] = {
    "command": _STR,
    "kind": _STR,
    "name": _STR,
    "endpoint": _STR,
    "org": _STR,
    "pid": _INT,
    "process": _STR,
    "host": _STR,
    "run": _STR,
    "started_at": _TIME,
    "updated_at": _TIME,
    "into": _OPTIONAL_STR,
    "connected": (bool,),
    "ended_at": _OPTIONAL_TIME,
    "state": _STR,
    "reason": _OPTIONAL_STR,
    "acked_position": _OPTIONAL_STR,
    "received_position": _OPTIONAL_STR,
    "committed_position": _OPTIONAL_STR,
    "confirmed_position": _OPTIONAL_STR,
    "confirmed_at": _OPTIONAL_TIME,
    "last_message_at": _OPTIONAL_TIME,
    "last_commit_at": _OPTIONAL_TIME,
    "acked_event_at": _OPTIONAL_TIME,
    "acked_at": _OPTIONAL_TIME,
    "delivered": _INT,
    "pending": _INT,
    "unacked": _INT,
    "gaps": _INT,
    "quarantined": _INT,
    "objects": (list,),
    "hours": (dict,),
}

# Types allowed for each value of an object.
_OBJECT: dict[str, tuple[type, ...]] = {
    "entity": _STR,
    "state": _STR,
    "waits": (dict,),
    "records": (int, type(None)),
    "behind_since": _OPTIONAL_TIME,
    "queued": _INT,
    "oldest_entry": _OPTIONAL_TIME,
    "read_at": _OPTIONAL_TIME,
    "parked_rows": _INT,
}
