"""Find out to which org and user a token belongs.

Every call must include the org's tenant id, and a published event names its creator.
"""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.session import ORG_ID, Session, eighteen, is_other_org, org_id_of_token
from sfpubsub.errors import ConfigurationError, SfPubSubError

logger = logging.getLogger("sfpubsub.auth")

USERINFO_PATH = "/services/oauth2/userinfo"

# The ``id`` of a token response: https://login.salesforce.com/id/<organisation>/<user>.
_IDENTITY = re.compile(rf"https?://[^/?#]+/id/({ORG_ID})/([0-9A-Za-z]+)/?")

# The id of a user; 005 is the key prefix of the object User.
_USER_ID = re.compile(r"005[0-9A-Za-z]{12}(?:[0-9A-Za-z]{3})?")


class Identity(NamedTuple):
    """The org and the user of a token."""

    tenant_id: str
    """The tenant id to use with the token."""
    user_id: str
    """Id of the user in its 18-character form; empty if the sign-in did not return it."""


def identity_of(
    http: HttpClient, bearer: Bearer, *, identity_url: str = "", tenant_id: str = ""
) -> Identity:
    """Return the tenant id to use with a token, and the user's id if it is known.

    Both are taken from the identity URL, else from the userinfo endpoint, and the org's id else
    from the start of the token.

    Args:
        http: Makes the userinfo request, to the org's own host.
        bearer: The token and the org's URL.
        identity_url: The ``id`` of the token response, if it has one.
        tenant_id: The configured tenant id. It is returned unchanged unless it belongs to
            another org.

    Raises:
        ConfigurationError: *tenant_id* belongs to another org, or the org cannot be determined.
        StreamUnavailableError: The userinfo endpoint could not be reached, and the org cannot be
            determined otherwise.
    """
    found = _IDENTITY.fullmatch(identity_url)
    failure: SfPubSubError | None = None
    org_id, user_id = (eighteen(found[1]), found[2]) if found else ("", "")
    if not org_id:
        try:
            org_id, user_id = _by_userinfo(http, bearer)
        except SfPubSubError as error:
            logger.info("userinfo did not return the organisation id: %s", error)
            failure = error
    org_id = org_id or org_id_of_token(bearer.token)
    if org_id and is_other_org(org_id, tenant_id):
        raise ConfigurationError(
            f"signed in to the org {org_id}, but SFPUBSUB_TENANT_ID is {tenant_id}: unset it, or "
            f"sign in to the org that it names"
        )
    if tenant_id or org_id:
        return Identity(tenant_id or org_id, _user_id(user_id))
    if failure is not None and failure.retryable:
        raise failure
    raise ConfigurationError(
        "neither the sign-in nor userinfo (scope openid) returned the organisation id: set "
        "SFPUBSUB_TENANT_ID to the org's id"
    )


def user_of(http: HttpClient, session: Session) -> str:
    """Return the id of a session's user, in its 18-character form.

    If the sign-in did not return it, the org is asked. The result is an empty string if the org
    does not return it either, because the token lacks the scope.

    Args:
        http: Makes the userinfo request, to the org's own host.
        session: The session.

    Raises:
        StreamUnavailableError: The userinfo endpoint could not be reached.
        RemoteProtocolError: The response is not valid.
    """
    if session.user_id:
        return session.user_id
    return _user_id(_by_userinfo(http, Bearer(session.instance_url, session.access_token))[1])


def _user_id(given: str) -> str:
    return eighteen(given) if _USER_ID.fullmatch(given) else ""


def _by_userinfo(http: HttpClient, bearer: Bearer) -> tuple[str, str]:
    answer = http.call(bearer, "GET", USERINFO_PATH)
    found = answer.json() if answer.status == 200 else None
    if not isinstance(found, dict):
        return "", ""
    org_id = _text(found.get("organization_id"))
    return eighteen(org_id) if re.fullmatch(ORG_ID, org_id) else "", _text(found.get("user_id"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
