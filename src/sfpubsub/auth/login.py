"""The sign-in that all OAuth flows share: post a form, validate the response, return a session.

A refused sign-in raises an `AuthenticationError` whose message names what to check. An unreachable
host raises a `StreamUnavailableError`, which is retryable.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sfpubsub.auth.http import Answer, Bearer, Form, HttpClient
from sfpubsub.auth.organisation import identity_of
from sfpubsub.auth.refusals import refused
from sfpubsub.auth.session import Session
from sfpubsub.config import network
from sfpubsub.config.settings import DEFAULT_LOGIN_URL
from sfpubsub.errors import ConfigurationError, RemoteProtocolError, SfPubSubError

TOKEN_PATH = "/services/oauth2/token"  # noqa: S105  # a path

# Longest access token accepted, in characters. As a header it must fit into the 8 kB that gRPC
# servers read. Session ids have about 112 characters, JWTs up to a few thousand.
MAX_TOKEN = 6000


class OAuthLogin(ABC):
    """A `SessionProvider` that signs in at the token endpoint. Thread-safe.

    Args:
        login_url: The org's My Domain URL, ``https://login.salesforce.com`` or
            ``https://test.salesforce.com``.
        instance_url: Expected instance URL; also used if the response does not contain one.
        tenant_id: Expected tenant id; also used if the sign-in does not reveal it.
        token_url: Replaces the token endpoint of *login_url*.
        http: Makes the requests; a client with default settings if None.

    Raises:
        ConfigurationError: One of the URLs is not safe to send secrets to.
    """

    def __init__(
        self,
        *,
        login_url: str = DEFAULT_LOGIN_URL,
        instance_url: str = "",
        tenant_id: str = "",
        token_url: str = "",
        http: HttpClient | None = None,
    ) -> None:
        self._http = http or HttpClient()
        url = token_url or login_url.rstrip("/") + TOKEN_PATH
        self._token_url = network.check_url(
            url, "SFPUBSUB_LOGIN_URL", insecure=self._http.insecure, path=True
        )
        self._login_url = login_url.rstrip("/")
        self._login_host = host_of(self._token_url)
        self._instance_url = instance_url.rstrip("/")
        self._tenant_id = tenant_id
        # One sign-in at a time: two clients may share a login.
        self._lock = threading.Lock()

    @abstractmethod
    def _form(self) -> Form:
        """Return the form that this flow posts."""

    def get_session(self, expired: Session | None) -> Session:
        """Sign in and return the new session.

        Args:
            expired: The session that the service refused; None if none was refused.

        Raises:
            AuthenticationError: The sign-in was refused; the message names what to check.
            StreamUnavailableError: The host is down or did not respond in time.
            RemoteProtocolError: The response is not a valid token response.
            ConfigurationError: The session belongs to an org other than the configured one, the
                tenant id cannot be determined, or the private key cannot be used.
        """
        try:
            with self._lock:
                return self._sign_in(expired)
        except SfPubSubError as error:
            # Drop the traceback: local variables in its frames contain secrets, which error
            # reporters show.
            failure = error.with_traceback(None)
        raise failure

    def _sign_in(self, expired: Session | None) -> Session:
        form = self._form()
        answer = self._post(form)
        if answer.status != 200:
            raise refused(answer, form.secrets())
        return self._session(fields_of(answer))

    def _post(self, form: Form) -> Answer:
        return self._http.post_form(self._token_url, form)

    def _session(self, found: Mapping[str, Any]) -> Session:
        bearer = self._bearer(found)
        identity = identity_of(
            self._http,
            bearer,
            identity_url=_text(self._login_host, found, "id"),
            tenant_id=self._tenant_id,
        )
        return Session(bearer.token, bearer.instance_url, identity.tenant_id, identity.user_id)

    def _bearer(self, found: Mapping[str, Any]) -> Bearer:
        """Return the access token in the fields of a token response, and the URL it is for.

        Raises:
            RemoteProtocolError: The fields are not valid.
            ConfigurationError: The token is for another host than the configured one.
        """
        host = self._login_host
        token = _text(host, found, "access_token")
        if not token or len(token) > MAX_TOKEN:
            raise RemoteProtocolError(
                f"{host} returned no usable access token: check SFPUBSUB_LOGIN_URL"
            )
        if _text(host, found, "token_type").lower() not in ("", "bearer"):
            raise RemoteProtocolError(
                f"{host} returned a token that is not a Bearer token: check SFPUBSUB_LOGIN_URL"
            )
        return Bearer(self._instance(host, _text(host, found, "instance_url")), token)

    def _instance(self, host: str, said: str) -> str:
        if not said and self._instance_url:
            return self._instance_url
        problem = ""
        try:
            instance_url = network.check_url(said, "it", insecure=self._http.insecure)
        except ConfigurationError as error:
            problem = str(error)
        if problem:
            raise RemoteProtocolError(f"{host} returned no usable instance URL: {problem}")
        if self._instance_url and host_of(instance_url) != host_of(self._instance_url):
            raise ConfigurationError(
                f"signed in to {host_of(instance_url)}, but SFPUBSUB_INSTANCE_URL is "
                f"{host_of(self._instance_url)}: unset it, or sign in to the org that it names"
            )
        return instance_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._login_host})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a login contains secrets and cannot be pickled: create it where it is needed"
        )


def host_of(url: str) -> str:
    """Return the host and port of a URL, in lower case."""
    return urlsplit(url).netloc.lower()


def fields_of(answer: Answer) -> dict[str, Any]:
    """Return the fields of a token response.

    Raises:
        RemoteProtocolError: It is not a JSON object.
    """
    found = answer.json()
    if not isinstance(found, dict):
        raise RemoteProtocolError(
            f"{answer.host} returned JSON that is not a token response: check SFPUBSUB_LOGIN_URL"
        )
    return found


def _text(host: str, found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise RemoteProtocolError(
            f"{host} returned a value of {name} that is not a printable string: check "
            f"SFPUBSUB_LOGIN_URL"
        )
    return value
