"""Long polling over HTTP: two connections with the same cookies, each kept and each cut at will.

Requests go to the org alone: redirects are not followed, plaintext goes to loopback only, and
proxies and authorities are those of every other request of this package (`sfpubsub.auth.http`).
What fails is one of our errors, never chained to one of the libraries', which carry the token.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from sfpubsub.auth.http import CONNECT_TIMEOUT, Answer, failure_of, redirected
from sfpubsub.auth.limit import Limit
from sfpubsub.auth.session import Session
from sfpubsub.config import network
from sfpubsub.errors import RemoteProtocolError, SfPubSubError, StreamUnavailableError
from sfpubsub.streaming.commands import Lane, Send

# Largest answer that is read, in bytes: some thousand events of the largest kind, 1 MB each, would
# not fit; the service was seen to send a few hundred kB.
MAX_BYTES = 64 * 1024 * 1024


class LongPolling:
    """The HTTP side of one client. One thread a lane; `cut` from any.

    Args:
        path: Of every request.
        ca_file: PEM file of authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        insecure: ``force`` allows plaintext to other hosts than loopback.
    """

    def __init__(
        self, path: str, *, ca_file: str = "", proxy: str = "", insecure: str = ""
    ) -> None:
        from requests.cookies import RequestsCookieJar  # here: importing it takes as long as ours

        self._path = path
        self._roots = str(network.trusted_roots(ca_file))
        self._proxy = proxy
        self._insecure = insecure
        self._cookies: Any = RequestsCookieJar()  # of both: the server knows its session by them
        self._lines: dict[Lane, tuple[Limit, Any]] = {}

    def post(self, request: Send, session: Session) -> str:
        """Send a request as *session*, and return the text of its answer.

        Raises:
            ConfigurationError: The URL is none that a token may be sent to.
            StreamUnavailableError: The connection broke or was cut, or the answer is a failure.
            RemoteProtocolError: The answer is a redirect, or too large.
        """
        url = session.instance_url + self._path
        network.check_url(url, "the instance URL", insecure=self._insecure, path=True)
        answer = self._exchange(request, session, url)
        # A connect follows the other at once. Other requests are rare: a kept connection would
        # often have been closed by the server, which can show only when the request has failed.
        if request.lane is Lane.ASK or isinstance(answer, SfPubSubError):
            self.drop(request.lane)
        if isinstance(answer, SfPubSubError):  # raised here, so that nothing is chained to it
            raise answer
        return answer

    def _exchange(self, request: Send, session: Session, url: str) -> str | SfPubSubError:
        import requests
        import urllib3
        from requests.cookies import extract_cookies_to_jar

        host = urlsplit(url).netloc
        headers = {
            "Authorization": f"Bearer {session.access_token}",
            "Content-Type": "application/json;charset=UTF-8",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # compressed, a small answer could be a huge one
            "User-Agent": "sfpubsub",
        }
        line = self._lines.get(request.lane)
        if line is None or line[0].expired:
            self.drop(request.lane)
            limit = Limit()
            line = self._lines[request.lane] = limit, limit.adapter()
        if request.is_cut:  # after the line is there: what is cut from here on, is cut by `cut`
            return StreamUnavailableError("the request was cut before it was sent")
        try:
            prepared = requests.Request(
                "POST", url, headers, data=request.body.encode(), cookies=self._cookies
            ).prepare()
            # By the adapter: a session would look at redirects and at a .netrc.
            with line[1].send(
                prepared,
                stream=True,
                timeout=(min(CONNECT_TIMEOUT, request.timeout), request.timeout),
                verify=self._roots,
                proxies=network.proxies_for(url, self._proxy),
            ) as response:
                extract_cookies_to_jar(self._cookies, prepared, response.raw)  # type: ignore[no-untyped-call]
                if 300 <= response.status_code < 400:
                    return redirected(host, response.headers.get("Location", ""))
                content = response.raw.read(MAX_BYTES + 1, decode_content=False)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            return failure_of(host, error)
        if len(content) > MAX_BYTES:
            return RemoteProtocolError(f"{host} answered more than {MAX_BYTES} bytes")
        status = response.status_code
        if status != 200 and not content.lstrip().startswith(b"[{"):  # Bayeux has its own refusals
            return StreamUnavailableError(f"{host} answered {Answer(status, content, host)!r}")
        # A server that repeats what it was sent must not bring the token into logs and errors.
        text: str = content.decode("utf-8", "replace")
        return text.replace(session.access_token, "***")

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
