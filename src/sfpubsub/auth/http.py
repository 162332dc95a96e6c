"""The client for all HTTP requests. It does not depend on sign-in flows or org objects.

A request is sent only to the host it was made for: redirects are not followed, plaintext is allowed
only on loopback (unless the setting ``insecure`` is ``force``), ``.netrc`` files are ignored, and
so are cookies unless a caller passes a cookie jar. The duration of a request and the size of its
response are bounded, regardless of what the server does. Failures are raised as errors of this
package, never chained to the libraries' errors, which contain the request and its secrets.
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
from sfpubsub.auth.request_limit import RequestLimit, within
from sfpubsub.config import Settings, network
from sfpubsub.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SfPubSubError,
    StreamUnavailableError,
)

logger = logging.getLogger("sfpubsub.auth")

# How long a request may take from the first byte sent to the last byte received, in seconds.
# Sign-ins have been seen to take several seconds; no response here is large.
REQUEST_TIMEOUT = 20.0

# How long to wait for a connection, in seconds, for each address of the host.
CONNECT_TIMEOUT = 10.0

# Largest response accepted, in bytes. A token response is about 1 kB; a list of 200 subscriptions
# is about 200 kB.
MAX_BYTES = 4 * 1024 * 1024

# Size of the chunks in which a response is passed to a sink, in bytes.
_CHUNK = 256 * 1024

# One of these headers delimits the body (RFC 9112); Salesforce always sends one.
_FRAMES = {"content-length", "transfer-encoding"}

Sink = Callable[[bytes], bool]
"""Receives a response body in chunks, and returns False to stop. Must not raise, because the
exception's traceback would contain the request and its token.
"""


# Form fields that are not secret.
_HARMLESS = ("grant_type", "client_id", "username")


class Form(dict[str, str]):
    """Form fields. The repr shows only their names, because the values may be secret."""

    def secrets(self) -> list[str]:
        """Return the secret values, which must be redacted if a response repeats them."""
        return [value for name, value in self.items() if name not in _HARMLESS]

    def __repr__(self) -> str:
        return f"Form({', '.join(self)})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a form contains secrets and cannot be pickled: create it where it is needed"
        )


@dataclass(frozen=True, repr=False)
class Bearer:
    """An access token and the only host it may be sent to."""

    instance_url: str
    """Scheme and host of the org, without a path."""
    token: str

    def __repr__(self) -> str:
        return f"Bearer({self.instance_url!r}, ***)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a token is a secret and cannot be pickled: create it where it is needed")


@dataclass(frozen=True, repr=False)
class Answer:
    """An HTTP response. It may contain a token, so its repr shows only the status."""

    status: int
    body: bytes
    host: str
    """Host that answered, for error messages."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header values by lower-case name."""

    def json(self, parse_float: Callable[[str], Any] = float) -> Any:
        """Return the body parsed as JSON.

        Args:
            parse_float: Converts numbers that have a decimal point or an exponent.

        Raises:
            RemoteProtocolError: The body is not valid JSON. The message does not contain it.
        """
        try:
            return json.loads(self.body, parse_float=parse_float)
        except (ValueError, ArithmeticError, RecursionError):
            pass
        # Outside the except block, so not chained: the parser's error contains the whole text.
        kind = "HTML" if self.body.lstrip()[:1] == b"<" else "invalid JSON"
        raise RemoteProtocolError(
            f"{self.host} returned status {self.status} with {kind}: check that it is the host of "
            f"a Salesforce org, and that no proxy responds in its place"
        )

    def __repr__(self) -> str:
        return f"Answer({self.status})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a response may contain a secret and cannot be pickled: pass on only the values needed"
        )


class HttpClient:
    """Makes HTTP requests, each on its own connection. Thread-safe.

    Args:
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; if empty, ``https_proxy`` and ``no_proxy`` apply.
        insecure: ``force`` allows plaintext to hosts other than loopback.
        timeout: Limit for a whole request, in seconds.
        max_bytes: Largest response accepted, in bytes.
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
        """Return a copy of this client with the limits *timeout* (in seconds) and *max_bytes*."""
        return HttpClient(
            ca_file=self._ca_file,
            proxy=self._proxy,
            insecure=self.insecure,
            timeout=timeout,
            max_bytes=max_bytes,
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> HttpClient:
        """Create a client from ``ca_file``, ``proxy`` and ``insecure`` of the settings.

        Raises:
            ConfigurationError: The CA file cannot be read.
        """
        return cls(ca_file=settings.ca_file, proxy=settings.proxy, insecure=settings.insecure)

    def post_form(self, url: str, form: Form) -> Answer:
        """POST a form and return the response, which may be an error (status 4xx).

        Raises:
            ConfigurationError: *url* is not valid, or is not safe to send secrets to.
            StreamUnavailableError: No response in time, or the server is down or overloaded.
            RemoteProtocolError: The response is a redirect, or too large.
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
        """Make a REST request and return the response, which may be an error (status 4xx).

        Args:
            bearer: The token and the org's URL.
            method: ``GET``, ``POST``, ``PATCH`` or ``DELETE``.
            path: Path and query, starting with a slash.
            body: Sent as JSON; None sends no body.
            query: Query parameters, added to the path.
            headers: Sent in addition to the standard ones.
            sink: Receives the body of a response with status 200; the returned `Answer` then has no
                body. It is called in another thread and may already have received part of the body
                when an error is raised.

        Raises:
            LocalProtocolError: *path* does not start with a slash, so it could name another host.
            ConfigurationError: As for `post_form`.
            StreamUnavailableError: As for `post_form`.
            RemoteProtocolError: As for `post_form`.
        """
        # Appending "@host" or ".host" to the instance URL would name another host.
        if not path.startswith("/"):
            raise LocalProtocolError(f"the path of a request must start with a slash: {path!r}")
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
        logger.debug("%s %s returned status %d", method, target, answer.status)
        if answer.status == 429 or answer.status >= 500:
            raise StreamUnavailableError(
                f"{host} returned status {answer.status}, so it is down or overloaded: try again "
                f"later",
                retry_after=retry_after(answer.headers.get("retry-after", "")),
            )
        return answer

    def _exchange(
        self,
        limit: RequestLimit,
        method: str,
        url: str,
        bearer: Bearer | None,
        headers: Mapping[str, str],
        request: Mapping[str, Any],
    ) -> Answer | SfPubSubError:
        # Build the headers, which contain the token, here: this frame is in no error's traceback.
        every = {**headers_of(bearer), **headers}
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
        """Make one request with *adapter*, and return the response or the error.

        The error is returned rather than raised, so that the caller can raise it without chaining
        the libraries' errors, which contain the request and its secrets.

        Args:
            adapter: From `RequestLimit.adapter`. It is used without a `requests.Session`, which
                would process redirects even if told not to follow them, replace the token with a
                password from a .netrc file, and send cookies from other responses.
            method: HTTP method.
            url: The URL, which the caller must have checked, because secrets are sent to it.
            headers: All request headers.
            timeout: Limit for each read and, up to `CONNECT_TIMEOUT`, for connecting; in seconds.
            max_bytes: Largest response accepted, in bytes.
            cookies: Cookie jar to send cookies from and to update; None for no cookies.
            sink: As in `call`.
            body: ``data`` or ``json``, as in the library ``requests``.
        """
        import requests  # imported here because it takes as long as importing all of sfpubsub
        import urllib3
        from requests.cookies import extract_cookies_to_jar

        host = urlsplit(url).netloc
        # Done before the request is prepared, so that the traceback of an error raised here does
        # not contain the request.
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
                    read, size = b"", _copy_body(response.raw, sink, max_bytes)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            return failure_of(host, error)
        if size > max_bytes:
            return RemoteProtocolError(
                f"{host} answered with more than {max_bytes} bytes, the limit for a response"
            )
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.status_code == 200 and not size and not _FRAMES & headers.keys():
            # Without these headers, the libraries mistake a truncated response for a complete one.
            return StreamUnavailableError(f"the request to {host} failed: the connection was lost")
        return Answer(response.status_code, read, host, headers)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "an HTTP client may contain a password and cannot be pickled: create it where it is "
            "needed"
        )


def _copy_body(source: Any, sink: Sink, max_bytes: int) -> int:
    """Pass the body to *sink* in chunks, and return the number of bytes read.

    Reading stops at the end of the body, once more than *max_bytes* have been read, or when *sink*
    returns False.
    """
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
    """Return the headers that every request needs, including the token if *bearer* is given."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # a small compressed response could expand to a huge one
        "User-Agent": "sfpubsub",
    }
    return headers if bearer is None else {**headers, "Authorization": f"Bearer {bearer.token}"}
