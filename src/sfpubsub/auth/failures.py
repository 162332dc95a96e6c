"""What became of an HTTP request that has no answer to use, said without the request itself."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from sfpubsub.errors import RemoteProtocolError, StreamUnavailableError


def redirected(host: str, location: str) -> RemoteProtocolError:
    """Return the error for an answer that is a redirect."""
    try:
        elsewhere = urlsplit(location).hostname or host  # the host alone: a query may hold secrets
    except ValueError:
        elsewhere = "a place that is no URL"
    return RemoteProtocolError(
        f"{host} redirects to {elsewhere[:200]!r}, where nothing was sent: if that is right, set "
        f"SFPUBSUB_LOGIN_URL or SFPUBSUB_INSTANCE_URL to it"
    )


def failure_of(host: str, error: Exception) -> StreamUnavailableError:
    """Say why, from the types of the errors and from what TLS says; their texts may hold URLs."""
    import requests

    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StreamUnavailableError(
                f"the certificate of {host} was not accepted ({cause.verify_message}): name its "
                f"authority with SFPUBSUB_CA_FILE",
                retryable=False,  # neither end changes by itself
            )
    why = "the connection broke"
    if isinstance(error, requests.exceptions.ProxyError):
        why = "the proxy refused, or could not be reached: check SFPUBSUB_PROXY or https_proxy"
    elif isinstance(error, requests.exceptions.SSLError):
        why = "it does not speak TLS as this machine does"
    elif isinstance(error, requests.exceptions.Timeout):
        why = "no answer in time"
    elif any(isinstance(cause, socket.gaierror) for cause in _causes(error)):
        why = "its name is not known: check SFPUBSUB_LOGIN_URL, SFPUBSUB_INSTANCE_URL and DNS"
    elif any(isinstance(cause, ConnectionRefusedError) for cause in _causes(error)):
        why = "nothing listens there"
    return StreamUnavailableError(f"{host} could not be asked: {why}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it, however the libraries have packed them."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting and len(seen) < 20:  # chains have about five
        cause = waiting.pop()
        if cause in seen:
            continue
        seen.append(cause)
        yield cause
        inner = [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
        waiting += [item for item in inner if isinstance(item, BaseException)]


def retry_after(text: str) -> float | None:
    """Return the seconds that a Retry-After asks for (RFC 9110: a number, or a date)."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None  # not sent, or none that can be read: the caller's own delay has to do
