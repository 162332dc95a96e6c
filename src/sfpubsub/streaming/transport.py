"""Long polling over HTTP: two connections with the same cookies, each kept and each cut at will.

Requests go to the org alone: redirects are not followed, plaintext goes to loopback only, and
proxies and authorities are those of every other request of this package (`sfpubsub.auth.http`).
What fails is one of our errors, never chained to one of the libraries', which carry the token.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from sfpubsub.auth.http import CONNECT_TIMEOUT, Answer, failure_of, redirected
from sfpubsub.auth.session import Session
from sfpubsub.config import network
from sfpubsub.errors import RemoteProtocolError, SfPubSubError, StreamUnavailableError
from sfpubsub.streaming.commands import Lane, Send

# Largest answer that is read, in bytes: some thousand events of the largest kind, 1 MB each, would
# not fit; the service was seen to send a few hundred kB.
MAX_BYTES = 64 * 1024 * 1024


class LongPolling:
    """The HTTP side of one client. One thread a lane; `cut` and `close` from any.

    Args:
        ca_file: PEM file of authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        insecure: ``force`` allows plaintext to other hosts than loopback.
    """

    def __init__(self, *, ca_file: str = "", proxy: str = "", insecure: str = "") -> None:
        from requests.cookies import RequestsCookieJar

        self._ca_file = ca_file
        self._trusted: str | None = None
        self._proxy = proxy
        self._insecure = insecure
        jar: Any = RequestsCookieJar()
        # A connect follows the other at once. Other requests are rare: a kept connection would
        # often have been closed by the server, which can show only when the request has failed.
        self._lines = {lane: _Line(jar, keeps=lane is Lane.POLL) for lane in Lane}

    def post(self, request: Send, session: Session, path: str) -> str:
        """Send a request as *session*, and return the text of its answer.

        Raises:
            ConfigurationError: The URL is none that a token may be sent to.
            StreamUnavailableError: The connection broke or was cut, or the answer is a failure.
            RemoteProtocolError: The answer is a redirect, or too large.
        """
        url = session.instance_url + path
        network.check_url(url, "the instance URL", insecure=self._insecure, path=True)
        answer = self._exchange(request, session, url)
        if isinstance(answer, SfPubSubError):  # raised here, so that nothing is chained to it
            raise answer
        return answer

    def _exchange(self, request: Send, session: Session, url: str) -> str | SfPubSubError:
        import requests
        import urllib3

        host = urlsplit(url).netloc
        headers = {
            "Authorization": f"Bearer {session.access_token}",
            "Content-Type": "application/json;charset=UTF-8",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # compressed, a small answer could be a huge one
            "User-Agent": "sfpubsub",
        }
        options: dict[str, Any] = {
            "verify": self._roots(),
            "proxies": network.proxies_for(url, self._proxy),
            "timeout": (min(CONNECT_TIMEOUT, request.timeout), request.timeout),
        }
        line = self._lines[request.lane]
        try:
            with line.post(request, url, headers, options) as response:
                if 300 <= response.status_code < 400:
                    return redirected(host, response.headers.get("Location", ""))
                content = response.raw.read(MAX_BYTES + 1, decode_content=False)
                status = response.status_code
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            line.close()
            return failure_of(host, error)
        if not line.keeps:
            line.close()
        if len(content) > MAX_BYTES:
            return RemoteProtocolError(f"{host} answered more than {MAX_BYTES} bytes")
        text: str = content.decode("utf-8", "replace")
        if status != 200 and not text.lstrip().startswith("[{"):  # Bayeux has its own refusals
            return StreamUnavailableError(f"{host} answered {Answer(status, content, host)!r}")
        # A server that repeats what it was sent must not bring the token into logs and errors.
        return text.replace(session.access_token, "***")

    def _roots(self) -> str:
        if self._trusted is None:  # once: reading some hundred certificates takes its time
            self._trusted = str(network.trusted_roots(self._ca_file))
        return self._trusted

    def cut(self, lane: Lane, ticket: int) -> None:
        """Break a request, whether it is in flight or about to be."""
        self._lines[lane].cut(ticket)

    def close(self) -> None:
        """Give the connections back."""
        for line in self._lines.values():
            line.close()


class _Line:
    """One connection that is kept; a new one takes its place when it breaks."""

    def __init__(self, cookies: Any, *, keeps: bool) -> None:
        self._cookies = cookies  # of both lines: the server knows its session by them
        self.keeps = keeps
        self._lock = threading.Lock()  # guards what is below
        self._ticket = 0  # of the request in flight, or the last one
        self._cut_through = 0
        self._socket: socket.socket | None = None
        self._adapter: Any = None

    def post(self, request: Send, url: str, headers: dict[str, str], options: Any) -> Any:
        """Send a request; the answer's head is read."""
        import requests
        from requests.cookies import extract_cookies_to_jar

        with self._lock:
            self._ticket = request.ticket
            if self._ticket <= self._cut_through:
                raise ConnectionAbortedError("the request was cut before it was sent")
        if self._adapter is None:
            self._adapter = self._make_adapter()
        # By the adapter: a session would look at redirects and at a .netrc.
        prepared = requests.Request(
            "POST", url, headers, data=request.body.encode(), cookies=self._cookies
        ).prepare()
        response = self._adapter.send(prepared, stream=True, **options)
        extract_cookies_to_jar(self._cookies, prepared, response.raw)  # type: ignore[no-untyped-call]
        return response

    def cut(self, ticket: int) -> None:
        """Break the connection if that request is on it; it is not sent if it is not yet."""
        with self._lock:
            self._cut_through = max(self._cut_through, ticket)
            if self._ticket <= ticket and self._socket is not None:
                _shut(self._socket)

    def close(self) -> None:
        """Give the connection back. Not while a request is in flight."""
        if self._adapter is not None:
            self._adapter.close()
            self._adapter = None
        self._keep(None)

    def _keep(self, connection: socket.socket | None) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            # A handle of its own: TLS takes the first one over and gives no other.
            self._socket = None if connection is None else connection.dup()
            if connection is not None and self._ticket <= self._cut_through:
                _shut(connection)

    def _make_adapter(self) -> Any:
        from requests.adapters import HTTPAdapter

        keep = self._keep

        class Adapter(HTTPAdapter):
            def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
                pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
                if not hasattr(pool, "is_watched"):  # one pool a host, used again
                    kind: Any = pool.ConnectionCls

                    class Watched(kind):  # type: ignore[misc]
                        def _new_conn(self) -> socket.socket:
                            connection: socket.socket = super()._new_conn()
                            keep(connection)
                            return connection

                    pool.ConnectionCls, pool.is_watched = Watched, True
                return pool

        return Adapter(pool_connections=1, pool_maxsize=1)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
