"""Turn failed HTTP requests into errors that do not contain the request."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from sfpubsub.errors import RemoteProtocolError, StreamUnavailableError


def redirected(host: str, location: str) -> RemoteProtocolError:
    """Return the error for a redirect, which is never followed."""
    try:
        elsewhere = (
            urlsplit(location).hostname or host
        )  # only the host: a query may contain secrets
    except ValueError:
        elsewhere = "an invalid URL"
    return RemoteProtocolError(
        f"{host} redirects to {elsewhere[:200]!r}; redirects are not followed: if that host is "
        f"right, set "
        f"SFPUBSUB_LOGIN_URL or SFPUBSUB_INSTANCE_URL to it"
    )


def failure_of(host: str, error: Exception) -> StreamUnavailableError:
    """Return the error for a failed request, based on exception types and TLS details only, because
    the libraries' messages may contain URLs.
    """
    import requests

    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StreamUnavailableError(
                f"the certificate of {host} was not accepted ({cause.verify_message}): set "
                f"SFPUBSUB_CA_FILE to the certificate of its authority",
                retryable=False,  # retrying does not change either end
            )
    why = "the connection was lost"
    if isinstance(error, requests.exceptions.ProxyError):
        why = "the proxy refused, or could not be reached: check SFPUBSUB_PROXY or https_proxy"
    elif isinstance(error, requests.exceptions.SSLError):
        why = "the TLS handshake failed"
    elif isinstance(error, requests.exceptions.Timeout):
        why = "no answer in time"
    elif any(isinstance(cause, socket.gaierror) for cause in _causes(error)):
        why = "its name cannot be resolved: check SFPUBSUB_LOGIN_URL, SFPUBSUB_INSTANCE_URL and DNS"
    elif any(isinstance(cause, ConnectionRefusedError) for cause in _causes(error)):
        why = "the connection was refused"
    return StreamUnavailableError(f"the request to {host} failed: {why}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, however the libraries have nested them."""
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
    """Return the delay in seconds from a Retry-After header (RFC 9110: a number, or a date)."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None  # missing or malformed: the caller uses its own delay
