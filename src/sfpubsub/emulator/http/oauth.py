"""The OAuth endpoints. They decode forms and return JSON in the service's formats; `org.signin`
checks the credentials.
"""

from __future__ import annotations

import base64
import binascii
import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from sfpubsub.emulator.faults.signin_errors import SIGN_IN_ERRORS
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.signin import SignInRefused

_log = logging.getLogger(__name__)

_MOST_FIELDS = 20
"""Maximum number of parameters in a form; no sign-in flow needs more than five."""


def token(call: Call) -> Answer:
    """POST /services/oauth2/token: exchange credentials for an access token."""
    form = _form(call)
    answer = call.world.sign_in.grant(form, call.url, (call.named,), call.client)
    _log.debug("signed in with grant type %s", form["grant_type"])
    return json_answer(answer)


def revoke(call: Call) -> Answer:
    """POST /services/oauth2/revoke: revoke a token. The response has status 200 and no body."""
    form = _form(call)
    if not form.get("token"):
        raise SignInRefused("parameter")
    call.world.sign_in.revoke(form["token"])
    return Answer(HTTPStatus.OK)


def must_post(call: Call) -> Answer:
    """Refuse a GET request to an endpoint that accepts only POST.

    Raises:
        SignInRefused: Always.
    """
    raise SignInRefused("method")


def userinfo(call: Call) -> Answer:
    """GET or POST /services/oauth2/userinfo: return the user of the token, as OpenID Connect
    defines it.
    """
    user = _user(call, "access_token")
    if isinstance(user, Answer):
        return user
    return json_answer(
        {
            "sub": _identity_url(call, user),
            "preferred_username": user.username,
            "nickname": user.username.partition("@")[0],
            "name": user.username,
            "email": user.username,
            "email_verified": True,
            "zoneinfo": "GMT",
            **_about(call, user),
        }
    )


def identity(call: Call) -> Answer:
    """GET or POST /id/<org>/<user>: return the user of the token, who must be this one."""
    user = _user(call, "oauth_token", "access_token")
    if isinstance(user, Answer):
        return user
    if call.parts["org"] != call.world.sessions.org_id:
        return _forbidden("Wrong_Org")
    if call.parts["user"] != user.user_id:
        return _forbidden("Bad_Id")
    return json_answer(
        {
            "id": _identity_url(call, user),
            "asserted_user": True,
            "username": user.username,
            "nick_name": user.username.partition("@")[0],
            "display_name": user.username,
            "email": user.username,
            "email_verified": True,
            "first_name": None,
            "last_name": user.username.partition("@")[0],
            "timezone": "GMT",
            "utcOffset": 0,
            "language": "en_US",
            "is_app_installed": True,
            **_about(call, user),
        }
    )


def _user(call: Call, *parameters: str) -> User | Answer:
    """Return the user of the token in the Authorization header, or in the first of these parameters
    that the query or the form has; the error response if the token is missing or not valid.
    """
    sessions, given = call.world.sessions, call.bearer
    if not given:
        try:
            form = dict(parse_qsl(call.query, max_num_fields=_MOST_FIELDS))
        except ValueError as error:
            raise SignInRefused("form") from error
        if call.method == "POST":
            form |= _form(call)
        given = next((form[name] for name in parameters if name in form), "")
    if not given:
        return _forbidden("Missing_OAuth_Token")
    username = sessions.user_of(given)
    if username is None:
        call.world.faults.met(sessions.ended_by(given))
        return _forbidden("Bad_OAuth_Token")
    return call.world.accounts.holder(username)


def _identity_url(call: Call, user: User) -> str:
    return f"{call.url}/id/{call.world.sessions.org_id}/{user.user_id}"


def _about(call: Call, user: User) -> dict[str, Any]:
    return {
        "user_id": user.user_id,
        "organization_id": call.world.sessions.org_id,
        "locale": "en_US",
        "user_type": "STANDARD",
        "active": True,
        "urls": {"rest": f"{call.url}/services/data/v{{version}}/"},
    }


def refusal(refused: SignInRefused) -> Answer:
    """Return the error response for a refused sign-in."""
    return _error(refused.error, refused.description)


def problem(status: HTTPStatus, text: str) -> Answer:
    """Return an OAuth endpoint's response to an error that is unrelated to credentials."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _error(*SIGN_IN_ERRORS["server"], status)
    return _error("invalid_request", text, status)


def _error(error: str, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> Answer:
    return json_answer({"error": error, "error_description": text}, status)


def _forbidden(text: str) -> Answer:
    # Only this endpoint answers in plain text and with 403.
    return Answer(HTTPStatus.FORBIDDEN, "text/html;charset=UTF-8", text)


def _form(call: Call) -> dict[str, str]:
    """Return the parameters of a form, including the credentials in a Basic Authorization header.

    Raises:
        SignInRefused: The body is not a form or contains a parameter twice, or the Basic header is
            malformed.
    """
    if call.headers.get_content_type() != "application/x-www-form-urlencoded":
        raise SignInRefused("form")
    try:
        pairs = parse_qsl(
            call.body.decode(),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:  # not UTF-8, or too many parameters
        raise SignInRefused("form") from error
    form = dict(pairs)
    if len(form) != len(pairs):
        raise SignInRefused("form")
    form.update(_basic(call.headers.get("Authorization", "")))
    return form


def _basic(header: str) -> dict[str, str]:
    kind, _, value = header.partition(" ")
    if kind.lower() != "basic":
        return {}
    try:
        client_id, colon, secret = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise SignInRefused("form") from error
    if not colon:
        raise SignInRefused("form")
    return {"client_id": client_id, "client_secret": secret}
