"""An end in time for one HTTP request, whatever the other end, the network and the DNS do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds for a request to notice that its connections were cut; it does so within milliseconds,
# but for one that still looks a name up or tries one address after the other.
NOTICE = 0.5


def within(seconds: float, work: Callable[[Limit], T]) -> T | None:
    """Return what *work* returns; None when its time is up.

    It runs in a thread of its own, which is left behind if need be: looking a name up has no bound
    that can be set, and that of a connection is for each of a host's addresses. Once its time is
    up, no connection of it sends anything.
    """
    limit = Limit()
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(limit))
        except BaseException as error:  # noqa: BLE001  # re-raised in the waiting thread
            future.set_exception(error)

    thread = threading.Thread(target=run, name="sfpubsub-http", daemon=True)
    thread.start()
    try:
        return future.result(timeout=seconds)
    except FutureTimeoutError:
        return None
    finally:
        limit.expire()
        thread.join(NOTICE)


class Limit:
    """Cuts the connection of one request, or of one after the other, when its time is up.

    Thread-safe.

    The libraries' timeouts are for each read of a socket: an answer that drips is never late.
    """

    def __init__(self) -> None:
        self.expired = False
        self._lock = threading.Lock()  # guards the socket, and `expired` against a late `watch`
        self._socket: socket.socket | None = None

    def watch(self, connection: socket.socket) -> None:
        """Cut *connection*, which takes the place of the one before; at once if the time is up."""
        with self._lock:
            if self.expired:
                _cut(connection)
                return
            if self._socket is not None:
                self._socket.close()
            # A handle of its own: TLS takes the first one over and gives no other.
            self._socket = connection.dup()

    def adapter(self) -> Any:
        """Return a requests adapter whose connections are watched; for one request at a time."""
        from requests.adapters import HTTPAdapter

        watch = self.watch

        class Adapter(HTTPAdapter):
            def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
                pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
                if hasattr(pool, "is_watched"):  # it serves one request after the other
                    return pool
                kind: Any = pool.ConnectionCls

                class Watched(kind):  # type: ignore[misc]
                    def _new_conn(self) -> socket.socket:
                        connection: socket.socket = super()._new_conn()
                        watch(connection)
                        return connection

                pool.ConnectionCls, pool.is_watched = Watched, True
                return pool

        return Adapter()

    def expire(self) -> None:
        """Cut the connection; those that come later as well."""
        with self._lock:
            self.expired = True
            if self._socket is not None:
                _cut(self._socket)
                self._socket.close()
                self._socket = None


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
