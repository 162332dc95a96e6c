"""Log to stderr as text or JSON lines, and suppress repeated messages."""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import logging
import os
import re
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

from sfpubsub.cli import live
from sfpubsub.cli.terminal import Stream, Terminal
from sfpubsub.errors import SfPubSubError

LogFormat = Literal["text", "json"]

# Maximum number of lines of one kind, and the seconds for which it applies. Further lines are only
# counted, so that a repeated failure does not hide a failure that occurs once.
LINES = 5
WITHIN = 60.0

# Maximum number of kinds to remember. Beyond it, all kinds are forgotten.
_KINDS = 1000

# Patterns of an RPC id in this package's messages, and of the parts in which messages of one kind
# may differ.
_RPC_ID = re.compile(r"rpc id ([^\s,;)]+)")
_DIFFERS = re.compile(r"rpc id [^\s,;)]+|\d+(?:\.\d+)?")

# Longest wait at the exit, in seconds, until what others have written to stderr is passed on.
_PASS_ON = 1.0


def set_up(verbose: int, log_format: LogFormat) -> None:
    """Set up logging to stderr.

    Args:
        verbose: 0 for warnings and errors, 1 for info, 2 for debug.
        log_format: With ``json``, every line on stderr is a JSON object.
    """
    # Only for this package's logger, so that messages of other libraries do not hide its errors.
    logger = logging.getLogger("sfpubsub")
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    for handler in [each for each in logger.handlers if isinstance(each, _ToStderr)]:
        logger.removeHandler(handler)  # added by an earlier call in this process
    handler = _ToStderr()
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
        if not isinstance(sys.stderr, JsonStderr):
            sys.stderr = _captured() or JsonStderr(sys.stderr)
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)


class _ToStderr(logging.Handler):
    """Writes log records to the current ``sys.stderr``; `Limit` suppresses repeated messages."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = Limit()

    def emit(self, record: logging.LogRecord) -> None:
        shown = self._limit.limited(record)
        if shown is not None:
            live.echo(self.format(shown))


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON objects with the keys time, level, logger and message.

    The key rpc_id is added if the record contains an RPC id, the key traceback if it
    contains an exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line of JSON."""
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
    """Suppresses repeated warnings and errors: at most `LINES` of a kind pass per `WITHIN` seconds.

    Messages that differ only in numbers and RPC ids are of the same kind. The first message of a
    kind after a period of `WITHIN` seconds includes the number of suppressed messages.

    Not thread-safe; the handler's lock serialises calls.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # start time and count

    def limited(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Decide whether to write *record*.

        Returns:
            *record*, or a copy that also gives the number of suppressed messages; None if *record*
            must be suppressed.
        """
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
        shown = copy.copy(record)
        shown.msg = f"{record.getMessage()} ({left_out} similar messages suppressed)"
        shown.args = ()
        return shown


class JsonStderr(Stream):
    """Text stream that converts every line that is not JSON to a JSON line.

    Thread-safe. A signal handler may write to it, even if it interrupts another write.

    Args:
        out: Stream to write to.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._lock = threading.RLock()  # a signal handler may write while its thread is writing
        self._rest = ""

    def write(self, text: str) -> int:
        """Write all complete lines, and buffer an incomplete last line. Return ``len(text)``."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self.write_line(line, "sfpubsub.cli")
        return len(text)

    def write_line(self, line: str, logger: str) -> None:
        """Write a complete line, under the name *logger* if it is not a JSON object already."""
        with self._lock:
            if line.strip():
                self._out.write(f"{line if _is_object(line) else _wrapped(line, logger)}\n")
                self._out.flush()


def _captured() -> JsonStderr | None:
    """Return a stream to which the lines of others are passed on, too.

    Spark's JVM, its Python workers and the libraries in C write to file descriptor 2, past
    ``sys.stderr``. So this descriptor becomes a pipe, which a thread reads until the exit.

    Returns:
        The stream; None if ``sys.stderr`` is not this descriptor, as in a test.
    """
    try:
        if sys.stderr.fileno() != 2:
            return None
    except OSError:
        return None
    out: TextIO = os.fdopen(os.dup(2), "w", 1, sys.stderr.encoding, sys.stderr.errors)
    if out.isatty():
        out = cast("TextIO", Terminal(out))
    stderr = JsonStderr(out)
    reading, writing = os.pipe()
    os.dup2(writing, 2)

    def pass_on() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line == "\0\n":
                    return
                with contextlib.suppress(OSError):  # if stderr is closed, the writers go on
                    stderr.write_line(line.rstrip(), "stderr")

    thread = threading.Thread(target=pass_on, name="sfpubsub-stderr", daemon=True)
    thread.start()

    @atexit.register
    def finish() -> None:
        os.dup2(out.fileno(), 2)
        os.write(writing, b"\n\0\n")  # because children may keep the pipe open
        thread.join(_PASS_ON)

    return stderr


def _is_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _wrapped(line: str, logger: str) -> str:
    level = "error" if line.startswith("error: ") else "info"
    now = datetime.now(UTC).timestamp()
    values = {"time": _iso(now), "level": level, "logger": logger, "message": line}
    found = _RPC_ID.search(line)
    if found:
        values["rpc_id"] = found[1]
    return json.dumps(values, ensure_ascii=False)


def _rpc_id(record: logging.LogRecord, message: str) -> str | None:
    """Return the RPC id in a record's error, arguments or message; None if there is no id."""
    args = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    for each in (error, *args):
        if isinstance(each, SfPubSubError) and each.rpc_id:
            return each.rpc_id
    found = _RPC_ID.search(message)
    return None if found is None else found[1]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
