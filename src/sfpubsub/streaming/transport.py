"""Long polling over HTTP: two connections with the same cookies, each kept and each cut at will.

Requests go to the org alone, bounded as every other request of this package (`sfpubsub.auth.http`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sfpubsub.auth.http import Answer, Bearer, HttpClient, headers_of
from sfpubsub.auth.line import Line
from sfpubsub.auth.session import CurrentSession
from sfpubsub.config import network
from sfpubsub.errors import RemoteProtocolError, SfPubSubError, StreamUnavailableError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Lane, Send

# Largest answer that is read, in bytes: some thousand events of the largest kind, 1 MB each, would
# not fit; the service was seen to send a few hundred kB.
MAX_BYTES = 64 * 1024 * 1024


class LongPolling:
    """The HTTP side of one client. One thread a lane; `cut` from any.

    Args:
        http: Makes the requests.
        path: Of every request.
        sessions: Where tokens come from.
        loads: Reads JSON.
    """

    def __init__(
        self, http: HttpClient, path: str, sessions: CurrentSession, loads: Callable[[str], Any]
    ) -> None:
        from http.cookiejar import CookieJar  # here: it loads more than all of ours

        self._insecure, self._path = http.insecure, path
        self._sessions, self._loads = sessions, loads
        cookies = CookieJar()  # of both lines: the server knows its session by them
        self._lines = {lane: Line(http, cookies, MAX_BYTES) for lane in Lane}

    def exchange(self, request: Send) -> bayeux.Answer | SfPubSubError:
        """Send a request; return what came back, or the error that came instead."""
        try:
            request.session = self._sessions.get_session(request.refused)
            text = self._post(request)
            try:
                return bayeux.sorted_out(self._loads(text))
            except ValueError:
                return bayeux.broken("HTML" if text.lstrip()[:1] == "<" else "no JSON")
        except SfPubSubError as error:
            return error
        except Exception as error:  # noqa: BLE001  # a JSON function is anyone's code
            # Its text may be that of the answer, or of the request.
            return RemoteProtocolError(f"an answer could not be read: {type(error).__name__}")

    def _post(self, request: Send) -> str:
        session, line = request.session, self._lines[request.lane]
        url = session.instance_url + self._path
        network.check_url(url, "the instance URL", insecure=self._insecure, path=True)
        headers = headers_of(Bearer(session.instance_url, session.access_token))
        headers["Content-Type"] = "application/json;charset=UTF-8"
        line.ready()
        if request.is_cut:  # only now: what is cut from here on, is cut by `cut`
            raise StreamUnavailableError("the request was cut before it was sent")
        answer = line.post(url, headers, request.body.encode(), request.timeout)
        # A connect follows the other at once. Other requests are rare: a kept connection would
        # often have been closed by the server, which can show only when the request has failed.
        if request.lane is Lane.ASK:
            line.drop()
        if not isinstance(answer, Answer):
            raise answer
        if answer.status != 200 and not answer.body.lstrip().startswith(b"[{"):
            # Other than Bayeux's own refusals.
            raise StreamUnavailableError(f"{answer.host} answered {answer!r}")
        # A server that repeats what it was sent must not bring the token into logs and errors.
        return answer.body.decode("utf-8", "replace").replace(session.access_token, "***")

    def cut(self, request: Send) -> None:
        """Break a request that is marked as cut, whether it is in flight or about to be."""
        self._lines[request.lane].cut()

    def drop(self, lane: Lane) -> None:
        """Give a connection back. Not while a request is in flight."""
        self._lines[lane].drop()
