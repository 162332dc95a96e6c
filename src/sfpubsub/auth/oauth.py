"""The OAuth flows, and the choice of a way to sign in by the settings.

The flows differ only in the form they post; `login` has what they share, and `refresh` the flow
that has to keep what it receives.
"""

from __future__ import annotations

from typing import Any

from sfpubsub.auth.assertion import AUDIENCES, make_assertion
from sfpubsub.auth.http import Form, HttpClient
from sfpubsub.auth.login import OAuthLogin, host_of
from sfpubsub.auth.refresh import RefreshToken
from sfpubsub.auth.session import Session, SessionProvider, StaticSession
from sfpubsub.auth.sf_cli import SfCliLogin
from sfpubsub.config import Settings
from sfpubsub.errors import ConfigurationError

__all__ = [
    "ClientCredentials",
    "JwtBearer",
    "OAuthLogin",
    "RefreshToken",
    "UsernamePassword",
    "session_provider",
]


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
            token_file=settings.token_file,
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
    host = host_of(login_url)
    for ending, audience in AUDIENCES:
        if host.endswith(ending):
            return audience
    return login_url
