"""Signing in: which credentials get an access token, and the errors of the others. No wire.

One function a flow; each checks the app, then what the flow is about, then the user, and its errors
are those of the service. Times of assertions are judged by the machine's clock without jumps: the
client that made the assertion has no part in them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from sfpubsub.emulator.faults.kinds import SIGN_IN
from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.faults.signin_errors import SIGN_IN_ERRORS
from sfpubsub.emulator.org.accounts import Accounts, App, User, read_public_key
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.sessions import Sessions
from sfpubsub.emulator.org.settings import Settings

_SCOPE = "api id"
"""What every sign-in may do; scopes are not looked at."""

_PUBLIC_AUDIENCES = ("https://login.salesforce.com", "https://test.salesforce.com")
"""Audiences of the service's own; the emulator's URL is one too, as a My Domain's is."""

_ASSERTION_LEEWAY_S = 10.0
"""By how much a client's clock may be ahead."""

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class SignInRefused(Exception):  # noqa: N818 - an answer, not a bug
    """A sign-in fails.

    Args:
        key: Key of `SIGN_IN_ERRORS`.
    """

    def __init__(self, key: str) -> None:
        self.error: str
        self.description: str
        self.error, self.description = SIGN_IN_ERRORS[key]
        super().__init__(self.description)


@dataclass(frozen=True)
class SignIn:
    """The flows of one org. Thread-safe.

    Args:
        accounts: Who can sign in.
        sessions: Where tokens come from.
        clock: What time it is.
        settings: Habits.
        faults: May refuse anybody.
    """

    accounts: Accounts
    sessions: Sessions
    clock: Clock
    settings: Settings
    faults: FaultPlan

    def grant(
        self, form: Mapping[str, str], url: str, audiences: tuple[str, ...]
    ) -> dict[str, str]:
        """Answer a request for a token.

        Args:
            form: Its parameters.
            url: The emulator's own.
            audiences: Names of the emulator that an assertion can be meant for.

        Raises:
            SignInRefused: Nobody gets a token.
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
        return flow()

    def login(self, username: str, password: str) -> tuple[User, str]:
        """Sign in without an app, as the SOAP call does.

        Raises:
            SignInRefused: Nobody gets a token.
        """
        self._be_refused()
        user = self._by_password(username, password)
        return user, self.sessions.issue(user.username)

    def revoke(self, token: str) -> None:
        """Revoke an access or refresh token, and with a refresh token what was made from it.

        Raises:
            SignInRefused: It was not good.
        """
        if self.accounts.end_refresh_token(token):
            self.sessions.revoke_family(token)
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
        if "client_secret" in form:  # an app may ask for none
            _check_secret(app, form)
        token = _needed(form, "refresh_token")
        username = self.accounts.refresh_user(token, app.client_id)
        if username is None:
            raise SignInRefused("refresh")
        user = self._active(username, "refresh")
        if not self.settings.rotate_refresh_tokens:
            return self._answer(app, user, url, token)
        new = self.accounts.rotate(token, app.client_id)
        if new is None:  # another request was faster
            raise SignInRefused("refresh")
        answer = self._answer(app, user, url, new)
        return {**answer, "refresh_token": new}

    def _assertion(
        self, form: Mapping[str, str], url: str, audiences: tuple[str, ...]
    ) -> dict[str, str]:
        assertion = _needed(form, "assertion")
        try:
            import jwt
        except ModuleNotFoundError as error:  # then no app was given a public key here
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
            # The signature alone: the claims have errors of their own.
            jwt.PyJWS().decode(assertion, read_public_key(app.public_key), algorithms=["RS256"])
        except (jwt.PyJWTError, ValueError) as error:
            raise SignInRefused("assertion") from error
        self._check_claims(claims, (url, *audiences, *_PUBLIC_AUDIENCES))
        subject = claims.get("sub")
        if not _is_text(subject):
            raise SignInRefused("assertion")
        return self._answer(app, self._active(subject, "approval"), url)

    # What they share.

    def _be_refused(self) -> None:
        fault = self.faults.take("refuse_sign_in", SIGN_IN)
        if fault:
            wanted = fault.params["error"]
            raise SignInRefused(next(k for k, row in SIGN_IN_ERRORS.items() if row[0] == wanted))

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
        left = expires - self.clock.outside()
        if not left > 0:
            raise SignInRefused("expired")
        if left > self.settings.assertion_s + _ASSERTION_LEEWAY_S:
            raise SignInRefused("assertion")

    def _answer(self, app: App, user: User, url: str, refresh_token: str = "") -> dict[str, str]:
        identity = f"{url}/id/{self.sessions.org_id}/{user.user_id}"
        issued_at = str(int(self.clock.now() * 1000))
        signed = hmac.new(
            app.client_secret.encode(), (identity + issued_at).encode(), hashlib.sha256
        )
        return {
            "access_token": self.sessions.issue(user.username, refresh_token),
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
    """Whether it can be looked up: JSON can name halves of characters, which no store takes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
