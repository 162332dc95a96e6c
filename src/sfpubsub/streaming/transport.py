"""Long polling over HTTP: two connections with the same cookies, each kept and each cut at will.

Requests go to the org alone, bounded as every other request of this package (`sfpubsub.auth.http`).
"""

from __future__ import annotations

from typing import Any

from sfpubsub.auth.http import Answer, HttpClient
from sfpubsub.auth.limit import Limit
from sfpubsub.auth.session import Session
from sfpubsub.config import network
from sfpubsub.errors import StreamUnavailableError
from sfpubsub.streaming.bayeux import Lane, Send

# Largest answer that is read, in bytes: some thousand events of the largest kind, 1 MB each, would
# not fit; the service was seen to send a few hundred kB.
MAX_BYTES = 64 * 1024 * 1024


class LongPolling:
    """The HTTP side of one client. One thread a lane; `cut` from any.

    Args:
        http: Makes the requests.
        path: Of every request.
    """

    def __init__(self, http: HttpClient, path: str) -> None:
        from requests.cookies import RequestsCookieJar  # here: importing it takes as long as ours

        self._http = http
        self._path = path
        self._cookies: Any = RequestsCookieJar()  # of both: the server knows its session by them
        self._lines: dict[Lane, tuple[Limit, Any]] = {}

    def post(self, request: Send, session: Session) -> str:
        """Send a request as *session*, and return the text of its answer.

        Raises:
            ConfigurationError: The URL is not one that a token may be sent to.
            StreamUnavailableError: The connection broke or was cut, or the answer is a failure.
            RemoteProtocolError: The answer is a redirect, or too large.
        """
        url = session.instance_url + self._path
        network.check_url(url, "the instance URL", insecure=self._http.insecure, path=True)
        line = self._lines.get(request.lane)
        if line is None or line[0].expired:
            self.drop(request.lane)
            limit = Limit()
            line = self._lines[request.lane] = limit, limit.adapter()
        if request.is_cut:  # after the line is there: what is cut from here on, is cut by `cut`
            raise StreamUnavailableError("the request was cut before it was sent")
        answer = self._http.exchange(
            line[1],
            "POST",
            url,
            _headers(session),
            request.timeout,
            max_bytes=MAX_BYTES,
            cookies=self._cookies,
            data=request.body.encode(),
        )
        # A connect follows the other at once. Other requests are rare: a kept connection would
        # often have been closed by the server, which can show only when the request has failed.
        if request.lane is Lane.ASK or not isinstance(answer, Answer):
            self.drop(request.lane)
        if not isinstance(answer, Answer):
            raise answer
        if answer.status != 200 and not answer.body.lstrip().startswith(b"[{"):
            # Other than Bayeux's own refusals.
            raise StreamUnavailableError(f"{answer.host} answered {answer!r}")
        # A server that repeats what it was sent must not bring the token into logs and errors.
        return answer.body.decode("utf-8", "replace").replace(session.access_token, "***")

    def cut(self, request: Send) -> None:
        """Break a request that is marked as cut, whether it is in flight or about to be."""
        line = self._lines.get(request.lane)
        if line is not None:
            line[0].expire()

    def drop(self, lane: Lane) -> None:
        """Give a connection back. Not while a request is in flight."""
        line = self._lines.pop(lane, None)
        if line is not None:
            line[0].expire()
            line[1].close()


def _headers(session: Session) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {session.access_token}",
        "Content-Type": "application/json;charset=UTF-8",
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # compressed, a small answer could be a huge one
        "User-Agent": "sfpubsub",
    }
