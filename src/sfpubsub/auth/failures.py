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
        # Only the host is shown, because the path and query may contain secrets.
        elsewhere = urlsplit(location).hostname or host
    except ValueError:
        elsewhere = "an invalid URL"
    return RemoteProtocolError(
        f"{host} redirects to {elsewhere[:200]!r}; redirects are not followed: if that host is "
        f"right, set SFPUBSUB_LOGIN_URL or SFPUBSUB_INSTANCE_URL to it"
    )


def failure_of(host: str, error: Exception) -> StreamUnavailableError:
    """Return the error for a failed request.

    Its message is based only on exception types and TLS details, because the libraries' messages
    may contain URLs.
    """
    import requests

    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StreamUnavailableError(
                f"the certificate of {host} was not accepted ({cause.verify_message}): set "
                f"SFPUBSUB_CA_FILE to a PEM file with the certificate of its authority",
                retryable=False,  # a retry would meet the same certificate
            )
    why = "the connection was lost"
    if isinstance(error, requests.exceptions.ProxyError):
        why = (
            "the proxy rejected the request or could not be reached: check SFPUBSUB_PROXY or "
            "https_proxy"
        )
    elif isinstance(error, requests.exceptions.SSLError):
        why = "the TLS handshake failed"
    elif isinstance(error, requests.exceptions.Timeout):
        why = "no response in time"
    elif any(isinstance(cause, socket.gaierror) for cause in _causes(error)):
        why = (
            "the host name cannot be resolved: check SFPUBSUB_LOGIN_URL, SFPUBSUB_INSTANCE_URL and "
            "DNS"
        )
    elif any(isinstance(cause, ConnectionRefusedError) for cause in _causes(error)):
        why = "the connection was refused"
    return StreamUnavailableError(f"the request to {host} failed: {why}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its nested causes: at most 20 exceptions, each only once."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting and len(seen) < 20:  # a chain has about five
        cause = waiting.pop()
        if cause in seen:
            continue
        seen.append(cause)
        yield cause
        inner = [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
        waiting += [item for item in inner if isinstance(item, BaseException)]


def retry_after(text: str) -> float | None:
    """Return the delay that a Retry-After header requests (RFC 9110: seconds, or a date).

    Returns:
        The delay in seconds; None if the header is missing or malformed.
    """
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
