"""A persistent HTTP connection. Another thread can abort the request in flight."""

from __future__ import annotations

from typing import Any

from sfpubsub.auth.http import Answer, Bearer, HttpClient, headers_of
from sfpubsub.auth.request_limit import RequestLimit
from sfpubsub.config import network


class HttpConnection:
    """Sends requests one after another over one connection. Not thread-safe, except for `cut`.

    Args:
        http: Makes the requests. Its ``timeout`` and ``max_bytes`` do not apply.
        cookies: The cookie jar; several connections may share one.
        max_bytes: Largest response accepted, in bytes.
    """

    def __init__(self, http: HttpClient, cookies: Any, max_bytes: int) -> None:
        self._http = http
        self._cookies = cookies
        self._max_bytes = max_bytes
        self._limit = RequestLimit()
        self._limit.expire()
        self._adapter: Any = None

    def ready(self) -> None:
        """Prepare for the next request.

        From now on, `cut` aborts that request, even before it is sent.
        """
        if self._limit.expired:
            self.drop()
            self._limit = RequestLimit()
            self._adapter = self._limit.adapter()

    def post(self, bearer: Bearer, path: str, body: bytes, timeout: float) -> Answer:
        """Send JSON in a POST request, without retrying, and return the response.

        `ready` must be called before each request.

        Args:
            bearer: The token and its host.
            path: Starts with a slash.
            body: The request body, sent unchanged.
            timeout: Limit for each read, in seconds.

        Raises:
            ConfigurationError: The host is not valid, or is not safe to send a token to.
            StreamUnavailableError: There was no response, or `cut` aborted the request.
            RemoteProtocolError: The response is a redirect, or too large.
        """
        url = bearer.instance_url + path
        network.check_url(url, "the instance URL", insecure=self._http.insecure, path=True)
        answer = self._http.exchange(
            self._adapter,
            "POST",
            url,
            # Not in a variable, so that the traceback of an error does not hold the token.
            {**headers_of(bearer), "Content-Type": "application/json;charset=UTF-8"},
            timeout,
            max_bytes=self._max_bytes,
            cookies=self._cookies,
            data=body,
        )
        if isinstance(answer, Answer):
            return answer
        self.drop()
        raise answer

    def cut(self) -> None:
        """Abort the request that is in flight or about to be sent. Thread-safe.

        The next request opens a new connection.
        """
        self._limit.expire()

    def drop(self) -> None:
        """Close the connection. Must not be called while a request is in flight."""
        self._limit.expire()
        if self._adapter is not None:
            self._adapter.close()
