"""Sign-in, which checks credentials and issues access tokens. Independent of the wire protocols.

There is one method for each flow. It checks the app, then the credentials of the flow, then the
user, and fails with the service's errors. Times in assertions are compared with real time, not with
the emulator's clock, because its jumps do not affect the client that created the assertion.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sfpubsub.emulator.faults.kinds import SIGN_IN
from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.faults.signin_errors import SIGN_IN_ERRORS, sign_in_error
from sfpubsub.emulator.org.accounts import Accounts, App, User, read_public_key
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.sessions import Sessions
from sfpubsub.emulator.org.settings import Settings

_SCOPE = "api id"
"""The scope of every sign-in; scopes are not enforced."""

_PUBLIC_AUDIENCES = ("https://login.salesforce.com", "https://test.salesforce.com")
"""Audiences of the service; the emulator's own URL is accepted too, as a My Domain URL is."""

_ASSERTION_LEEWAY_S = 10.0
"""Tolerance for a client's clock that runs ahead, in seconds."""

_MILLISECONDS = 1e11
"""From here on, an expiry time is in milliseconds, as the official CLI sends it: in seconds, it
would be in the year 5138.
"""

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class SignInRefused(Exception):  # noqa: N818 - an answer, not a bug
    """Raised to refuse a sign-in or the revocation of a token.

    Args:
        key: Key of `SIGN_IN_ERRORS`.
    """

    def __init__(self, key: str) -> None:
        self.error: str
        self.description: str
        self.error, self.description = SIGN_IN_ERRORS[key]
        super().__init__(self.description)


_MOST_LOGINS = 1000
"""Maximum number of entries of the login history; the oldest are removed first."""


@dataclass(frozen=True)
class Login:
    """A successful sign-in.

    Attributes:
        user_id: The user.
        at: The time, in seconds since the epoch.
        address: The client's IP address.
        kind: How the user signed in, in the words of the login history.
    """

    user_id: str
    at: float
    address: str
    kind: str


@dataclass(frozen=True)
class SignIn:
    """The sign-in flows of one org. Thread-safe.

    Args:
        accounts: The users and apps.
        sessions: Issues the tokens.
        clock: The org's clock.
        settings: The org's settings.
        faults: The fault plan, which may make a sign-in fail.

    Attributes:
        history: The newest successful sign-ins. They are lost when the emulator stops.
    """

    accounts: Accounts
    sessions: Sessions
    clock: Clock
    settings: Settings
    faults: FaultPlan
    history: deque[Login] = field(default_factory=lambda: deque(maxlen=_MOST_LOGINS))

    def grant(
        self, form: Mapping[str, str], url: str, audiences: tuple[str, ...], address: str
    ) -> dict[str, str]:
        """Process a token request and return the response.

        Args:
            form: The parameters of the request.
            url: The emulator's URL, for `instance_url` in the response.
            audiences: Further URLs that are accepted as the audience of an assertion.
            address: The client's IP address.

        Raises:
            SignInRefused: The grant type is unknown, a parameter is missing, the credentials are
                not accepted, or a fault refuses the sign-in.
        """
        self._be_refused()
        flows: dict[str, Callable[[], dict[str, str]]] = {
            "client_credentials": lambda: self._client_credentials(form, url),
            "password": lambda: self._password(form, url),
            "refresh_token": lambda: self._refresh(form, url),
            _JWT_BEARER: lambda: self._assertion(form, url, audiences),
        }
        flow = flows.get(form.get("grant_type", ""))
        if flow is None:
            raise SignInRefused("grant")
        answer = flow()
        self._note(answer["id"].rpartition("/")[2], address, "Remote Access 2.0")
        return answer

    def login(self, username: str, password: str, address: str) -> tuple[User, str]:
        """Sign in without an app, as the SOAP login call does.

        Args:
            username: The user.
            password: The password, followed by the security token if there is one.
            address: The client's IP address.

        Returns:
            The user, and a new access token.

        Raises:
            SignInRefused: The credentials are not accepted, or a fault refuses the sign-in.
        """
        self._be_refused()
        user = self._by_password(username, password)
        self._note(user.user_id, address, "Other Apex API")
        return user, self.sessions.issue(user.username)

    def revoke(self, token: str) -> None:
        """Revoke an access token, or a refresh token and all access tokens issued for it.

        Raises:
            SignInRefused: The token is not valid.
        """
        family = self.accounts.end_refresh_token(token)
        if family:
            self.sessions.revoke_family(family)
        elif not self.sessions.revoke(token):
            raise SignInRefused("token")

    # The flows.

    def _client_credentials(self, form: Mapping[str, str], url: str) -> dict[str, str]:
        app = self._app(form)
        _check_secret(app, form)
        if not app.run_as:
            raise SignInRefused("run_as")
        return self._answer(app, self._active(app.run_as, "run_as"), url)

    def _password(self, form: Mapping[str, str], url: str) -> dict[str, str]:
        app = self._app(form)
        _check_secret(app, form)
        username, password = _needed(form, "username"), _needed(form, "password")
        return self._answer(app, self._by_password(username, password), url)

    def _refresh(self, form: Mapping[str, str], url: str) -> dict[str, str]:
        app = self._app(form)
        if "client_secret" in form:  # some apps do not require the secret
            _check_secret(app, form)
        token = _needed(form, "refresh_token")
        grant = self.accounts.grant_of(token, app.client_id)
        if grant is None:
            raise SignInRefused("refresh")
        user = self._active(grant.username, "refresh")
        idle_s = self.settings.refresh_idle_s
        if grant.good and idle_s and self.clock.now() - grant.used_at >= idle_s:
            self.accounts.end_refresh_token(token)
            raise SignInRefused("refresh")
        rotate = self.settings.rotate_refresh_tokens
        new = self.accounts.use(token, app.client_id, rotate=rotate)
        if new is None:
            if rotate:  # a used token is used again: somebody may have stolen it
                self.accounts.end_family(grant.family)
                self.sessions.revoke_family(grant.family)
            raise SignInRefused("refresh")
        answer = self._answer(app, user, url, grant.family)
        return {**answer, "refresh_token": new} if rotate else answer

    def _assertion(
        self, form: Mapping[str, str], url: str, audiences: tuple[str, ...]
    ) -> dict[str, str]:
        assertion = _needed(form, "assertion")
        try:
            import jwt
        except ModuleNotFoundError as error:  # without it, no app can have a public key
            raise SignInRefused("server") from error
        try:
            claims = jwt.decode(assertion, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise SignInRefused("assertion") from error
        issuer = claims.get("iss")
        app = self.accounts.app(issuer) if _is_text(issuer) else None
        if app is None:
            raise SignInRefused("client_id")
        if not app.public_key:
            raise SignInRefused("assertion")
        try:
            # Only the signature: the claims are checked separately, with their own errors.
            jwt.PyJWS().decode(assertion, read_public_key(app.public_key), algorithms=["RS256"])
        except (jwt.PyJWTError, ValueError) as error:
            raise SignInRefused("assertion") from error
        self._check_claims(claims, (url, *audiences, *_PUBLIC_AUDIENCES))
        subject = claims.get("sub")
        if not _is_text(subject):
            raise SignInRefused("assertion")
        return self._answer(app, self._active(subject, "approval"), url)

    # Shared by the flows.

    def _note(self, user_id: str, address: str, kind: str) -> None:
        self.history.append(Login(user_id, self.clock.now(), address, kind))

    def _be_refused(self) -> None:
        fault = self.faults.take("refuse_sign_in", SIGN_IN)
        if fault:
            error, description = fault.params["error"], fault.params["description"]
            raise SignInRefused(sign_in_error(error, description))

    def _app(self, form: Mapping[str, str]) -> App:
        app = self.accounts.app(form.get("client_id", ""))
        if app is None:
            raise SignInRefused("client_id")
        return app

    def _active(self, username: str, unknown: str) -> User:
        user = self.accounts.user(username)
        if user is None:
            raise SignInRefused(unknown)
        if not user.active:
            raise SignInRefused("inactive")
        return user

    def _by_password(self, username: str, password: str) -> User:
        user = self.accounts.user(username)
        if user is None or not user.password or not _same(user.password, password):
            raise SignInRefused("password")
        return self._active(username, "password")

    def _check_claims(self, claims: Mapping[str, Any], audiences: tuple[str, ...]) -> None:
        audience = claims.get("aud")
        if not isinstance(audience, str) or audience.rstrip("/") not in audiences:
            raise SignInRefused("audience")
        try:
            expires = float(claims["exp"])  # some clients send it as a string
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SignInRefused("assertion") from error
        if expires >= _MILLISECONDS:
            expires /= 1000
        left = expires - self.clock.outside()
        if not left > 0:
            raise SignInRefused("expired")
        if left > self.settings.assertion_s + _ASSERTION_LEEWAY_S:
            raise SignInRefused("assertion")

    def _answer(self, app: App, user: User, url: str, family: str = "") -> dict[str, str]:
        identity = f"{url}/id/{self.sessions.org_id}/{user.user_id}"
        issued_at = str(int(self.clock.now() * 1000))
        signed = hmac.new(
            app.client_secret.encode(), (identity + issued_at).encode(), hashlib.sha256
        )
        return {
            "access_token": self.sessions.issue(user.username, family),
            "signature": base64.b64encode(signed.digest()).decode(),
            "scope": _SCOPE,
            "instance_url": url,
            "id": identity,
            "token_type": "Bearer",
            "issued_at": issued_at,
        }


def _check_secret(app: App, form: Mapping[str, str]) -> None:
    given = form.get("client_secret", "")
    if not app.client_secret or not _same(app.client_secret, given):
        raise SignInRefused("secret")


def _needed(form: Mapping[str, str], name: str) -> str:
    value = form.get(name, "")
    if not value:
        raise SignInRefused("parameter")
    return value


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a string that the store accepts. The store rejects lone surrogates,
    which JSON can contain.
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
