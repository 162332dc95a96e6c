"""OAuth sign-in: post one form to the token endpoint, validate the response, return a session.

The flows differ only in the form they post. A refused sign-in raises an `AuthenticationError` whose
message names what to check. An unreachable host raises a `StreamUnavailableError`, which is
retryable.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import urlsplit

from sfpubsub.auth.assertion import AUDIENCES, make_assertion
from sfpubsub.auth.http import Answer, Bearer, Form, HttpClient
from sfpubsub.auth.organisation import identity_of
from sfpubsub.auth.refusals import refused
from sfpubsub.auth.session import Session, SessionProvider, StaticSession
from sfpubsub.auth.sf_cli import SfCliLogin
from sfpubsub.config import Settings, network
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
        self._instance_url = instance_url.rstrip("/")
        self._tenant_id = tenant_id
        # One sign-in at a time: a rotating refresh token is valid only once, and two clients may
        # share a login.
        self._lock = threading.Lock()

    @abstractmethod
    def _form(self) -> Form:
        """Return the form that this flow posts."""

    def _learn(self, found: dict[str, Any]) -> None:  # noqa: B027  # most flows keep nothing
        """Remember values of a token response for the next sign-in, such as a new refresh token."""

    def get_session(self, expired: Session | None) -> Session:
        """Sign in and return the new session; *expired* is ignored.

        Raises:
            AuthenticationError: The sign-in was refused; the message names what to check.
            StreamUnavailableError: The host is down or did not respond in time.
            RemoteProtocolError: The response is not a valid token response.
            ConfigurationError: The session belongs to an org other than the configured one, the
                tenant id cannot be determined, or the private key cannot be used.
        """
        try:
            with self._lock:
                return self._sign_in()
        except SfPubSubError as error:
            # Drop the traceback: local variables in its frames contain secrets, which error
            # reporters show.
            failure = error.with_traceback(None)
        raise failure

    def _sign_in(self) -> Session:
        form = self._form()
        answer = self._http.post_form(self._token_url, form)
        if answer.status != 200:
            raise refused(answer.host, answer.status, _json_or_none(answer), form.secrets())
        found = _fields(answer)
        self._learn(found)
        return self._session(answer.host, found)

    def _session(self, host: str, found: dict[str, Any]) -> Session:
        token = _text(host, found, "access_token")
        if not token or len(token) > MAX_TOKEN:
            raise RemoteProtocolError(
                f"{host} returned no usable access token: check SFPUBSUB_LOGIN_URL"
            )
        if _text(host, found, "token_type").lower() not in ("", "bearer"):
            raise RemoteProtocolError(
                f"{host} returned a token that is not a Bearer token: check SFPUBSUB_LOGIN_URL"
            )
        instance_url = self._instance(host, _text(host, found, "instance_url"))
        identity = identity_of(
            self._http,
            Bearer(instance_url, token),
            identity_url=_text(host, found, "id"),
            tenant_id=self._tenant_id,
        )
        return Session(token, instance_url, identity.tenant_id, identity.user_id)

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
        if self._instance_url and _host(instance_url) != _host(self._instance_url):
            raise ConfigurationError(
                f"signed in to {_host(instance_url)}, but SFPUBSUB_INSTANCE_URL is "
                f"{_host(self._instance_url)}: unset it, or sign in to the org that it names"
            )
        return instance_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_host(self._token_url)})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a login contains secrets and cannot be pickled: create it where it is needed"
        )


class ClientCredentials(OAuthLogin):
    """The client credentials flow, for servers: the app signs in and acts as its "Run As" user.

    The login URL must be the org's My Domain URL.

    Args:
        client_id: Consumer key of the app.
        client_secret: Consumer secret of the app.
        **options: Arguments of `OAuthLogin`.
    """

    def __init__(self, client_id: str, client_secret: str, **options: Any) -> None:
        super().__init__(**options)
        self._fields = Form(client_id=client_id, client_secret=client_secret)

    def _form(self) -> Form:
        return Form(grant_type="client_credentials", **self._fields)


class JwtBearer(OAuthLogin):
    """The JWT bearer flow: signs in as a user with a private key. Needs the extra ``[jwt]``.

    Args:
        client_id: Consumer key of the app.
        username: User to sign in as.
        private_key_file: PEM file; read again at each sign-in, so it can be replaced at any time.
        audience: The ``aud`` claim; derived from *login_url* if empty.
        **options: Arguments of `OAuthLogin`.
    """

    def __init__(
        self,
        client_id: str,
        username: str,
        private_key_file: str,
        *,
        audience: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._client_id, self._username = client_id, username
        self._private_key_file = private_key_file
        self._audience = audience or _audience(self._login_url)

    def _form(self) -> Form:
        assertion = make_assertion(
            self._client_id, self._username, self._audience, self._private_key_file
        )
        grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        return Form(grant_type=grant, assertion=assertion)


class RefreshToken(OAuthLogin):
    """The refresh token flow. If the org rotates the token, only this object has the new token.

    Args:
        client_id: Consumer key of the app that the token was issued to.
        refresh_token: The refresh token to start with.
        client_secret: Consumer secret, if the app requires one.
        **options: Arguments of `OAuthLogin`.
    """

    def __init__(
        self, client_id: str, refresh_token: str, *, client_secret: str = "", **options: Any
    ) -> None:
        super().__init__(**options)
        self._fields = Form(client_id=client_id, refresh_token=refresh_token)
        if client_secret:
            self._fields["client_secret"] = client_secret

    def _form(self) -> Form:
        return Form(grant_type="refresh_token", **self._fields)

    def _learn(self, found: dict[str, Any]) -> None:
        rotated = found.get("refresh_token")
        if isinstance(rotated, str) and rotated:
            self._fields["refresh_token"] = rotated


class UsernamePassword(OAuthLogin):
    """The username-password flow. Salesforce advises against it, and newer orgs reject it.

    Args:
        client_id: Consumer key of the app.
        client_secret: Consumer secret of the app.
        username: User to sign in as.
        password: The password, followed by the security token if one is required.
        **options: Arguments of `OAuthLogin`.
    """

    def __init__(
        self, client_id: str, client_secret: str, username: str, password: str, **options: Any
    ) -> None:
        super().__init__(**options)
        self._fields = Form(
            client_id=client_id, client_secret=client_secret, username=username, password=password
        )

    def _form(self) -> Form:
        return Form(grant_type="password", **self._fields)


def session_provider(settings: Settings, http: HttpClient | None = None) -> SessionProvider:
    """Return the session provider for the flow in the settings, without signing in.

    Args:
        settings: The settings, whose ``auth`` selects the flow.
        http: Makes the requests; built from the settings if None.

    Raises:
        ConfigurationError: A setting that the flow needs is missing.
    """
    _check_complete(settings)
    if settings.auth == "token":
        return StaticSession(Session.from_settings(settings))
    http = http or HttpClient.from_settings(settings)
    given: dict[str, Any] = {
        "tenant_id": settings.tenant_id,
        "instance_url": settings.instance_url,
        "http": http,
    }
    if settings.auth == "sf-cli":
        return SfCliLogin(settings.username, **given)
    options = {**given, "login_url": settings.login_url}
    if settings.auth == "client-credentials":
        return ClientCredentials(settings.client_id, settings.client_secret, **options)
    if settings.auth == "jwt":
        return JwtBearer(
            settings.client_id,
            settings.username,
            settings.private_key_file,
            audience=settings.audience,
            **options,
        )
    if settings.auth == "refresh":
        return RefreshToken(
            settings.client_id,
            settings.refresh_token,
            client_secret=settings.client_secret,
            **options,
        )
    if settings.auth == "password":
        return UsernamePassword(
            settings.client_id,
            settings.client_secret,
            settings.username,
            settings.password,
            **options,
        )
    raise AssertionError(settings.auth)


def _check_complete(settings: Settings) -> None:
    missing = settings.missing()
    if not missing:
        return
    names = " and ".join(f"SFPUBSUB_{name.upper()}" for name in missing)
    profiles = ", ".join(settings.profiles)
    choose = f", or choose a profile of the file with --profile: {profiles}" if profiles else ""
    if missing == ["login_url"]:
        raise ConfigurationError(
            "the client credentials flow works only on the org's own host: set SFPUBSUB_LOGIN_URL "
            f"to its My Domain, https://NAME.my.salesforce.com{choose}"
        )
    hint = "" if "auth" in settings.sources else ", or sign in another way with SFPUBSUB_AUTH"
    raise ConfigurationError(
        f"signing in with {settings.auth} is not possible without {names}: set "
        f"{'it' if len(missing) == 1 else 'them'}{hint}{choose}"
    )


def _audience(login_url: str) -> str:
    """Return the ``aud`` claim for a login URL.

    For a My Domain URL, this is the URL of the shared login host.
    """
    host = _host(login_url)
    for ending, audience in AUDIENCES:
        if host.endswith(ending):
            return audience
    return login_url


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()


def _json_or_none(answer: Answer) -> Any:
    try:
        return answer.json()
    except RemoteProtocolError:
        return None  # an error page: only the status is usable


def _fields(answer: Answer) -> dict[str, Any]:
    found = answer.json()
    if not isinstance(found, dict):
        raise RemoteProtocolError(
            f"{answer.host} returned JSON that is not a token response: check SFPUBSUB_LOGIN_URL"
        )
    return found


def _text(host: str, found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise RemoteProtocolError(
            f"{host} returned a value of {name} that is not a printable string: check "
            f"SFPUBSUB_LOGIN_URL"
        )
    return value
