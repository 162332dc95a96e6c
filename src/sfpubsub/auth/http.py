"""The one place that makes HTTP requests. It knows no flow and no object of the org.

A request goes to the host it was made for and nowhere else: redirects are not followed, plaintext
goes to loopback only, neither a ``.netrc`` nor cookies are looked at. It is bounded in time and
in size, whatever the other end does. What fails is one of our errors, never chained to one of the
libraries': theirs carry the request, and with it secrets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlencode, urlsplit

from sfpubsub.auth.failures import failure_of, redirected, retry_after
from sfpubsub.auth.limit import Limit, within
from sfpubsub.config import Settings, network
from sfpubsub.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)

logger = logging.getLogger("sfpubsub.auth")

# How long a request may take from its first byte out to its last byte in, in seconds. Sign-ins were
# seen to take up to some seconds; nothing that is asked for here is large.
REQUEST_TIMEOUT = 20.0

# How long to wait for a connection, in seconds, for each address of the host.
CONNECT_TIMEOUT = 10.0

# Largest answer that is read, in bytes. A token answer has about 1 kB, 200 subscriptions 200 kB.
MAX_BYTES = 4 * 1024 * 1024

# Bytes of an answer that are passed to a sink at a time.
_CHUNK = 256 * 1024

# One of these says where the body of an answer ends (RFC 9112); Salesforce sends one.
_FRAMES = {"content-length", "transfer-encoding"}

Sink = Callable[[bytes], bool]
"""Takes the body of an answer piece by piece, and says whether it wants more. It raises nothing:
an exception would carry the request, and with it the token."""


# Fields of a form that are no secrets.
_HARMLESS = ("grant_type", "client_id", "username")


class Form(dict[str, str]):
    """The fields of a form; its repr shows names only, because values are secrets."""

    def secrets(self) -> list[str]:
        """Return the values that must not be shown, should an answer repeat them."""
        return [value for name, value in self.items() if name not in _HARMLESS]

    def __repr__(self) -> str:
        return f"Form({', '.join(self)})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a form holds secrets and is not pickled")


@dataclass(frozen=True, repr=False)
class Bearer:
    """A token, and the one host that it may be sent to."""

    instance_url: str
    """Scheme and host."""
    token: str

    def __repr__(self) -> str:
        return f"Bearer({self.instance_url!r}, ***)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a token is a secret and is not pickled")


@dataclass(frozen=True, repr=False)
class Answer:
    """What came back. It may hold a token, so its repr shows the status alone."""

    status: int
    body: bytes
    host: str
    """Who answered, for messages."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name, in lower case."""

    def json(self, parse_float: Callable[[str], Any] = float) -> Any:
        """Return the body, read as JSON.

        Args:
            parse_float: Makes a number of one with a decimal point or an exponent.

        Raises:
            RemoteProtocolError: It is not valid JSON. Its text is not in the message.
        """
        try:
            return json.loads(self.body, parse_float=parse_float)
        except (ValueError, ArithmeticError, RecursionError):
            pass
        # Outside the block: the parser's error has the whole text with it.
        kind = "HTML" if self.body.lstrip()[:1] == b"<" else "no JSON"
        raise RemoteProtocolError(
            f"{self.host} answered {self.status} with {kind}: is it the host of a Salesforce org, "
            f"and is nothing in between answering for it?"
        )

    def __repr__(self) -> str:
        return f"Answer({self.status})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an answer may hold a secret and is not pickled")


class HttpClient:
    """Makes requests, each on a connection of its own. Thread-safe.

    Args:
        ca_file: PEM file of authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        insecure: ``force`` allows plaintext to other hosts than loopback.
        timeout: Seconds that a request may take as a whole.
        max_bytes: Largest answer that is read.
    """

    def __init__(
        self,
        *,
        ca_file: str = "",
        proxy: str = "",
        insecure: str = "",
        timeout: float = REQUEST_TIMEOUT,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if ca_file:
            network.check_pem(ca_file)
        self._ca_file = ca_file
        self._proxy = proxy
        self.insecure = insecure
        self._timeout = timeout
        self._max_bytes = max_bytes

    def bounded(self, timeout: float, max_bytes: int) -> HttpClient:
        """Return a client like this one, with other bounds."""
        return HttpClient(
            ca_file=self._ca_file,
            proxy=self._proxy,
            insecure=self.insecure,
            timeout=timeout,
            max_bytes=max_bytes,
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> HttpClient:
        """Make a client that trusts and goes through what the settings name.

        Raises:
            ConfigurationError: The CA file cannot be read.
        """
        return cls(ca_file=settings.ca_file, proxy=settings.proxy, insecure=settings.insecure)

    def post_form(self, url: str, form: Form) -> Answer:
        """Post a form.

        Raises:
            ConfigurationError: *url* is no URL that a secret may be sent to.
            StreamUnavailableError: No answer in time, or the other end is down or overloaded.
            RemoteProtocolError: The answer is a redirect, or too large.
        """
        return self._request("POST", url, None, {}, data=form)

    def call(
        self,
        bearer: Bearer,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> Answer:
        """Make a request of an org's REST interface.

        Args:
            bearer: Who asks, and the host to ask.
            method: ``GET``, ``POST``, ``PATCH`` or ``DELETE``.
            path: Begins with a slash.
            body: Sent as JSON; None for none.
            query: Parameters.
            headers: Sent beside those of every request.
            sink: Takes the body of an answer with status 200, which then has none itself. It is
                called in another thread, and may have got a part when an error is raised.

        Raises:
            LocalProtocolError: *path* could name another host.
            StreamUnavailableError: As for `post_form`.
            RemoteProtocolError: As for `post_form`.
        """
        if not path.startswith("/"):  # "@host" or ".host" behind the instance would be another one
            raise LocalProtocolError("the path of a request begins with a slash")
        url = bearer.instance_url + path + (f"?{urlencode(query)}" if query else "")
        return self._request(method, url, bearer, headers or {}, sink=sink, json=body)

    def _request(
        self,
        method: str,
        url: str,
        bearer: Bearer | None,
        headers: Mapping[str, str],
        **request: Any,
    ) -> Answer:
        target = url.partition("?")[0]
        network.check_url(target, f"the address of a {method}", insecure=self.insecure, path=True)
        host = urlsplit(url).netloc
        answer = within(
            self._timeout,
            lambda limit: self._exchange(limit, method, url, bearer, headers, request),
        ) or StreamUnavailableError(f"{host} did not answer within {self._timeout:g} s")
        if isinstance(answer, SfPubSubError):
            logger.debug("%s %s failed: %s", method, target, answer)
            raise answer
        logger.debug("%s %s answered %d", method, target, answer.status)
        if answer.status == 429 or answer.status >= 500:
            raise StreamUnavailableError(
                f"{host} answered {answer.status}, so it is down or overloaded: try again later",
                retry_after=retry_after(answer.headers.get("retry-after", "")),
            )
        return answer

    def _exchange(
        self,
        limit: Limit,
        method: str,
        url: str,
        bearer: Bearer | None,
        headers: Mapping[str, str],
        request: Mapping[str, Any],
    ) -> Answer | SfPubSubError:
        every = {**headers_of(bearer), **headers}  # here: no error that is raised has this frame
        with closing(limit.adapter()) as adapter:
            found = self.exchange(
                adapter, method, url, every, self._timeout, max_bytes=self._max_bytes, **request
            )
        if not limit.expired:
            return found
        host = urlsplit(url).netloc
        return StreamUnavailableError(f"{host} did not answer within {self._timeout:g} s")

    @cached_property
    def _roots(self) -> str:
        return str(network.trusted_roots(self._ca_file))

    def exchange(
        self,
        adapter: Any,
        method: str,
        url: str,
        headers: Mapping[str, str],
        timeout: float,
        *,
        max_bytes: int = MAX_BYTES,
        cookies: Any = None,
        sink: Sink | None = None,
        **body: Any,
    ) -> Answer | SfPubSubError:
        """Make one request by *adapter*; return its answer, or the error that came instead.

        The error is returned, to be raised by the caller, so that nothing of the libraries, whose
        errors carry the request and its secrets, is chained to it.

        Args:
            adapter: Of `Limit.adapter`. It sends, as a session would look at redirects even when it
                is not to follow them, at a .netrc, whose password replaces our token, and at
                cookies that nobody named.
            method: Of HTTP.
            url: Checked by the caller: a secret may be sent to it.
            headers: All of them.
            timeout: Seconds for each read.
            max_bytes: Largest answer that is read.
            cookies: A jar to send from and to keep in.
            sink: As for `call`.
            body: ``data`` or ``json``, as requests has them.
        """
        import requests  # here: importing it takes as long as all of ours
        import urllib3
        from requests.cookies import extract_cookies_to_jar

        host = urlsplit(url).netloc
        # First: what they raise must not have the prepared request among its variables.
        roots = self._roots
        proxies = network.proxies_for(url, self._proxy)
        try:
            prepared = requests.Request(method, url, headers, cookies=cookies, **body).prepare()
            with adapter.send(
                prepared,
                stream=True,
                timeout=(min(CONNECT_TIMEOUT, timeout), timeout),
                verify=roots,
                proxies=proxies,
            ) as response:
                if cookies is not None:
                    extract_cookies_to_jar(cookies, prepared, response.raw)  # type: ignore[no-untyped-call]
                if 300 <= response.status_code < 400:
                    return redirected(host, response.headers.get("Location", ""))
                if sink is None or response.status_code != 200:
                    read = response.raw.read(max_bytes + 1, decode_content=False)
                    size = len(read)
                else:
                    read, size = b"", _pour(response.raw, sink, max_bytes)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            return failure_of(host, error)
        if size > max_bytes:
            return RemoteProtocolError(f"{host} answered more than {max_bytes} bytes")
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.status_code == 200 and not size and not _FRAMES & headers.keys():
            # The libraries take headers that were cut for all of them.
            return StreamUnavailableError(f"{host} could not be asked: the connection broke")
        return Answer(response.status_code, read, host, headers)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("its proxy may have a password, and is not pickled")


def _pour(source: Any, sink: Sink, max_bytes: int) -> int:
    """Hand an answer over until it ends, is too large or no longer wanted; return its bytes."""
    size = 0
    while size <= max_bytes:
        chunk = source.read(_CHUNK, decode_content=False)
        if not chunk:
            break
        size += len(chunk)
        if not sink(chunk):
            break
    return size


def headers_of(bearer: Bearer | None) -> dict[str, str]:
    """Return the headers of every request; None for one without a token."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # compressed, a small answer could be a huge one
        "User-Agent": "sfpubsub",
    }
    return headers if bearer is None else {**headers, "Authorization": f"Bearer {bearer.token}"}
