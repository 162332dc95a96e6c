"""Our log on stderr: as text or as JSON lines, with what repeats limited."""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from sfpubsub.cli import live
from sfpubsub.errors import SfPubSubError

LogFormat = Literal["text", "json"]

# Lines of one kind within this many seconds before the rest of them are left out, and counted: what
# fails again and again must not bury what fails once.
LINES = 5
WITHIN = 60.0

# Kinds that are remembered; beyond that they start over.
_KINDS = 1000

# The service's id of a call, as our messages have it; and what else differs between two of a kind.
_RPC_ID = re.compile(r"rpc id ([^\s,;)]+)")
_DIFFERS = re.compile(r"rpc id [^\s,;)]+|\d+(?:\.\d+)?")


def set_up(verbose: int, log_format: LogFormat) -> None:
    """Log to stderr.

    Args:
        verbose: 0 for warnings and errors, 1 for what happens, 2 for all.
        log_format: With ``json`` all that goes to stderr is JSON lines.
    """
    # On our own logger: what other libraries log beside an error must not bury the line about it.
    logger = logging.getLogger("sfpubsub")
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    for handler in [each for each in logger.handlers if isinstance(each, _ToStderr)]:
        logger.removeHandler(handler)  # of an earlier run in this process
    handler = _ToStderr()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
        if not isinstance(sys.stderr, JsonStderr):
            sys.stderr = JsonStderr(sys.stderr)
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)


class _ToStderr(logging.Handler):
    """Writes where stderr is at the time."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = Limit()

    def emit(self, record: logging.LogRecord) -> None:
        told = self._limit.told(record)
        if told is not None:
            live.echo(self.format(told))


class JsonFormatter(logging.Formatter):
    """A JSON object a record: time, level, logger, message, and the rpc id where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        message = record.getMessage()
        values: dict[str, Any] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        rpc_id = _rpc_id(record, message)
        if rpc_id:
            values["rpc_id"] = rpc_id
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


class Limit:
    """Lets `LINES` warnings or errors of a kind pass within `WITHIN` seconds.

    For a handler, which calls it with its own lock held.

    Of one kind are those that differ in numbers and rpc ids alone. The next one that passes says
    how many were left out.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # since when, how many

    def told(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Return what to write; None for nothing."""
        if record.levelno < logging.WARNING:
            return record
        kind = record.name, _DIFFERS.sub("#", record.getMessage())
        since, count = self._kinds.get(kind, (record.created, 0))
        left_out = 0
        if record.created - since >= WITHIN:
            left_out = max(0, count - LINES)
            since, count = record.created, 0
        if len(self._kinds) >= _KINDS:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        if count >= LINES:
            return None
        if not left_out:
            return record
        told = copy.copy(record)
        told.msg = f"{record.getMessage()} ({left_out} more of these were left out)"
        told.args = ()
        return told


class JsonStderr(io.TextIOBase):
    """Makes a JSON line of every line that is not one. Thread-safe, and for signal handlers.

    Args:
        out: Where it goes.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.RLock()  # a signal handler may write while its own thread does
        self._rest = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # click asks for it
        """That of what is behind."""
        return self._out.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # click asks for it
        """Those of what is behind."""
        return self._out.errors

    def fileno(self) -> int:
        """That of what is behind."""
        return self._out.fileno()

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Write whole lines; the rest waits for its end."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                if line.strip():
                    self._out.write(f"{line if line.startswith('{') else _wrapped(line)}\n")
        return len(text)

    def flush(self) -> None:
        """Flush what is behind."""
        self._out.flush()


def _wrapped(line: str) -> str:
    level = "error" if line.startswith("error: ") else "info"
    now = datetime.now(UTC).timestamp()
    values = {"time": _iso(now), "level": level, "logger": "sfpubsub.cli", "message": line}
    found = _RPC_ID.search(line)
    if found:
        values["rpc_id"] = found[1]
    return json.dumps(values, ensure_ascii=False)


def _rpc_id(record: logging.LogRecord, message: str) -> str | None:
    """Return the service's id of the call that a record is about."""
    args = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    for each in (error, *args):
        if isinstance(each, SfPubSubError) and each.rpc_id:
            return each.rpc_id
    found = _RPC_ID.search(message)
    return None if found is None else found[1]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
