"""A hard deadline for an HTTP request, regardless of delays in DNS, the network or the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds allowed for a request to notice that its connection was cut. It takes milliseconds, unless
# the request is still resolving a name or trying one address after another.
NOTICE = 0.5


def within(seconds: float, work: Callable[[RequestLimit], T]) -> T | None:
    """Run *work* and return its result, or None if it does not finish in time.

    *work* runs in a separate thread, which is abandoned at the deadline: a DNS lookup has no
    timeout, and a connect timeout applies to each of a host's addresses. After the deadline, no
    connection opened by *work* sends anything.

    Args:
        seconds: The time allowed.
        work: Makes the request. It is called with a `RequestLimit`, whose adapters it must use. An
            exception that it raises is raised here.
    """
    limit = RequestLimit()
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


class RequestLimit:
    """Aborts a request that takes too long: `expire` shuts down its connection. Thread-safe.

    The libraries' own timeouts apply to each socket read, so a response that arrives slowly, byte
    by byte, would never time out. Several requests, one after another, can share one limit.
    """

    def __init__(self) -> None:
        self.expired = False
        # Guards `expired` and the socket, so that a late `watch` sees `expired`.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def watch(self, connection: socket.socket) -> None:
        """Make `expire` shut down *connection* instead of the previous connection.

        Raises:
            ConnectionAbortedError: The limit has already expired; *connection* is closed.
        """
        with self._lock:
            if self.expired:
                # Close it here, because the caller of `watch` loses the socket through the error.
                connection.close()
                raise ConnectionAbortedError("the request was cancelled or took too long")
            if self._socket is not None:
                self._socket.close()
            # A duplicate handle, because TLS takes over the original one.
            self._socket = connection.dup()

    def adapter(self) -> Any:
        """Return a transport adapter for the ``requests`` library, for one request at a time.

        `expire` shuts down its connections.
        """
        from requests.adapters import HTTPAdapter

        watch = self.watch

        def watched(pool: Any) -> Any:
            if hasattr(pool, "is_watched"):  # prepared by an earlier request
                return pool
            kind: Any = pool.ConnectionCls

            class Watched(kind):  # type: ignore[misc]
                def _new_conn(self) -> socket.socket:
                    connection: socket.socket = super()._new_conn()
                    watch(connection)
                    return connection

            pool.ConnectionCls, pool.is_watched = Watched, True
            return pool

        class Adapter(HTTPAdapter):
            def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
                return watched(super().get_connection_with_tls_context(*args, **kwargs))

            def get_connection(self, *args: Any, **kwargs: Any) -> Any:  # before requests 2.32
                return watched(super().get_connection(*args, **kwargs))

        return Adapter()

    def expire(self) -> None:
        """Shut down the current connection, and reject all later connections."""
        with self._lock:
            self.expired = True
            if self._socket is not None:
                _cut(self._socket)
                self._socket.close()
                self._socket = None


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it may already be closed
        connection.shutdown(socket.SHUT_RDWR)
