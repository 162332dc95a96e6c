"""Long polling over HTTP, with one connection per `Lane` and shared cookies.

A connection can be cut to cancel its request. Requests are sent only to the org. The
rules of `sfpubsub.auth.http` for plaintext, redirects and the size of responses apply to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.http_connection import HttpConnection
from sfpubsub.auth.session import CurrentSession
from sfpubsub.errors import RemoteProtocolError, SfPubSubError, StreamUnavailableError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Lane, Send

# Largest response accepted, in bytes. A thousand events of the maximum size, 1 MB each, would not
# fit; the service has been seen to send a few hundred kB.
MAX_BYTES = 64 * 1024 * 1024


class LongPolling:
    """The HTTP connections of one client, one per `Lane`. Each is used only by its lane's thread.

    Args:
        http: Makes the requests.
        path: The path of every request.
        sessions: Supplies the tokens.
        loads: Parses JSON.
    """

    def __init__(
        self, http: HttpClient, path: str, sessions: CurrentSession, loads: Callable[[str], Any]
    ) -> None:
        # Imported here, because it loads more code than this whole package.
        from http.cookiejar import CookieJar

        self._path, self._sessions, self._loads = path, sessions, loads
        cookies = CookieJar()  # shared, because the server finds a session by its cookies
        self.connections = {lane: HttpConnection(http, cookies, MAX_BYTES) for lane in Lane}
        """The connections by lane. The driver cuts one, in any thread, to cancel its request."""

    def exchange(self, request: Send) -> bayeux.Answer | SfPubSubError:
        """Send a request, and wait for the response. Return the events and replies in the response,
        or the error that occurred.
        """
        try:
            request.session = self._sessions.get_session(request.refused)
            body = self._post(request)
            try:
                # Strict: a letter that cannot be decoded must not be replaced in an event.
                found = bayeux.sorted_out(self._loads(body.decode("utf-8")))
            except ValueError as error:  # includes UnicodeDecodeError
                what = "invalid JSON"
                if isinstance(error, UnicodeDecodeError):
                    what = f"text that is not UTF-8, at byte {error.start}"
                return bayeux.broken(what)
            if isinstance(found, SfPubSubError):
                return found
            # If a server echoes the token in a reply, it must not reach logs and errors. Events
            # are never shown there, and remain as they are.
            return found[0], bayeux.masked(found[1], request.session.access_token)
        except SfPubSubError as error:
            return error
        except Exception as error:  # noqa: BLE001  # the application's json_loads may raise anything
            # The exception's text may quote the response or the request.
            return RemoteProtocolError(f"a response could not be read: {type(error).__name__}")

    def _post(self, request: Send) -> bytes:
        session, connection = request.session, self.connections[request.lane]
        connection.ready()
        if request.is_cut:  # checked as late as possible: from here on, `cut` breaks the connection
            raise StreamUnavailableError("the request was cancelled before it was sent")
        bearer = Bearer(session.instance_url, session.access_token)
        answer = connection.post(bearer, self._path, request.body.encode(), request.timeout)
        # Keep a connection only for connects, which follow one another immediately. Other requests
        # are rare: by the next one, the server would often have closed the connection, which is
        # only noticed when that request fails.
        if request.lane is Lane.ASK:
            connection.drop()
        body = answer.body.lstrip()
        if body.startswith(b"<") or (answer.status != 200 and not body.startswith(b"[{")):
            # Neither events nor a refusal, but the page of a proxy or of a server that is down.
            raise StreamUnavailableError(
                f"{answer.host} answered {answer!r} instead of a Bayeux response: it is down, or a "
                f"proxy answers in its place"
            )
        return answer.body
