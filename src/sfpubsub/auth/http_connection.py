"""A persistent HTTP connection whose request in flight can be aborted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfpubsub.auth.http import Answer, HttpClient
from sfpubsub.auth.request_limit import RequestLimit
from sfpubsub.errors import SfPubSubError


class HttpConnection:
    """Sends requests one after another over one connection. Not thread-safe, except for `cut`.

    Args:
        http: Makes the requests, with its certificate authorities and its proxy.
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

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> Answer | SfPubSubError:
        """Send a POST request without retrying, and return the response or the error.

        `ready` must be called before each request.

        The error is returned rather than raised, as in `HttpClient.exchange`.

        Args:
            url: Must have been checked by the caller: secrets are sent to it.
            headers: All request headers.
            body: The request body, sent unchanged.
            timeout: Limit for each read, in seconds.
        """
        answer = self._http.exchange(
            self._adapter,
            "POST",
            url,
            headers,
            timeout,
            max_bytes=self._max_bytes,
            cookies=self._cookies,
            data=body,
        )
        if not isinstance(answer, Answer):
            self.drop()
        return answer

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
