"""Find out which org a token belongs to, because every call must include the org's tenant id."""

from __future__ import annotations

import logging
import re

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.session import ORG_ID, eighteen, is_other_org, org_id_of_token
from sfpubsub.errors import ConfigurationError, SfPubSubError

logger = logging.getLogger("sfpubsub.auth")

USERINFO_PATH = "/services/oauth2/userinfo"

# The ``id`` of a token response: https://login.salesforce.com/id/<organisation>/<user>.
_IDENTITY = re.compile(rf"https?://[^/?#]+/id/({ORG_ID})/[0-9A-Za-z]+/?")


def organisation_of(
    http: HttpClient, bearer: Bearer, *, identity_url: str = "", tenant_id: str = ""
) -> str:
    """Return the tenant id to use with a token.

    The org's id is taken from the identity URL, else from the userinfo endpoint, else from the
    start of the token.

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
    org_id = eighteen(found[1]) if found else ""
    if not org_id:
        try:
            org_id = _by_userinfo(http, bearer)
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
        return tenant_id or org_id
    if failure is not None and failure.retryable:
        raise failure
    raise ConfigurationError(
        "neither the sign-in nor userinfo (scope openid) returned the organisation id: set "
        "SFPUBSUB_TENANT_ID to the org's id"
    )


def _by_userinfo(http: HttpClient, bearer: Bearer) -> str:
    answer = http.call(bearer, "GET", USERINFO_PATH)
    found = answer.json() if answer.status == 200 else None
    org_id = found.get("organization_id") if isinstance(found, dict) else None
    return eighteen(org_id) if isinstance(org_id, str) and re.fullmatch(ORG_ID, org_id) else ""
