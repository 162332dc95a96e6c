"""A connection that is kept from one request to the next, and can be cut while one is in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfpubsub.auth.http import Answer, HttpClient
from sfpubsub.auth.limit import Limit
from sfpubsub.errors import SfPubSubError


class Line:
    """Makes one request after the other. For one thread; `cut` from any.

    Args:
        http: Says which authorities and which proxy.
        cookies: A jar to send from and to keep in; several lines may share one.
        max_bytes: Largest answer that is read.
    """

    def __init__(self, http: HttpClient, cookies: Any, max_bytes: int) -> None:
        self._http = http
        self._cookies = cookies
        self._max_bytes = max_bytes
        self._limit = Limit()
        self._limit.expire()
        self._adapter: Any = None

    def ready(self) -> None:
        """Make ready for a request: from here on `cut` breaks it, whether it is sent yet or not."""
        if self._limit.expired:
            self.drop()
            self._limit = Limit()
            self._adapter = self._limit.adapter()

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> Answer | SfPubSubError:
        """Post once; return the answer, or the error that came instead, as `HttpClient.exchange`.

        Args:
            url: Checked by the caller: a secret may be sent to it.
            headers: All of them.
            body: Sent as it is.
            timeout: Seconds for each read.
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
        """Break the request that is in flight or about to be; the next one connects anew."""
        self._limit.expire()

    def drop(self) -> None:
        """Give the connection back. Not while a request is in flight."""
        self._limit.expire()
        if self._adapter is not None:
            self._adapter.close()
