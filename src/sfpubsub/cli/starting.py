"""Start Spark for a command, so that Ctrl-C and SIGTERM do not interrupt the start."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sfpubsub.cli.live import echo
from sfpubsub.cli.service import StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seconds between checks of Spark while it starts. A signal wakes the main thread anyway.
_POLL = 0.2


def start_spark(session: AbstractContextManager[SparkSession], stop: StopRequest) -> SparkSession:
    """Enter *session* in a separate thread, and return the Spark session.

    In the main thread, PySpark would replace the command's signal handler, and Ctrl-C would
    interrupt the start midway, which can leave the command stuck.

    Args:
        session: Context manager of the Spark session. The caller must exit it.
        stop: Reports stop requests. After a request during the start, a message is printed and the
            start continues.
    """
    started: list[SparkSession | BaseException] = []

    def start() -> None:
        try:
            started.append(session.__enter__())
        except BaseException as error:  # noqa: BLE001  # re-raised in the main thread
            started.append(error)

    thread = threading.Thread(target=start, name="start Spark", daemon=True)
    thread.start()
    stop.tell(lambda: echo("stopping once Spark has started"))
    while thread.is_alive():
        thread.join(_POLL)
    if isinstance(started[0], BaseException):
        raise started[0]
    return started[0]
