"""An end in time for one HTTP request, whatever the other end does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def within(seconds: float) -> Iterator[Limit]:
    """Cut in the block whatever takes longer."""
    limit = Limit(seconds)
    try:
        yield limit
    finally:
        limit.close()


class Limit:
    """Cuts the connections of one request when its time is up. Thread-safe.

    The libraries' timeouts are for each read of a socket: an answer that drips is never late.
    """

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._lock = threading.Lock()  # guards the list, and `expired` against a late `watch`
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connection: socket.socket) -> None:
        """Cut *connection* as well."""
        with self._lock:
            # A handle of its own: TLS takes the first one over and gives no other.
            self._sockets.append(connection.dup())
            if self.expired:
                self._cut()

    def adapter(self) -> Any:
        """Return a requests adapter whose connections are watched."""
        from requests.adapters import HTTPAdapter

        watch = self.watch

        class Adapter(HTTPAdapter):
            def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
                pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
                kind: Any = pool.ConnectionCls

                class Watched(kind):  # type: ignore[misc]
                    def _new_conn(self) -> socket.socket:
                        connection: socket.socket = super()._new_conn()
                        watch(connection)
                        return connection

                pool.ConnectionCls = Watched
                return pool

        return Adapter()

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            self._cut()

    def _cut(self) -> None:
        for connection in self._sockets:
            with suppress(OSError):  # it may have ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()
