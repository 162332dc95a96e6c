"""A table of the causes of refused sign-ins, with what the user should check for each.

Salesforce names the cause in ``error``, a coarse code, and in ``error_description``, free text.
The first row that matches both applies. An ``error`` that no row matches is shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sfpubsub.auth.http import Answer
from sfpubsub.errors import AuthenticationError, RemoteProtocolError

# Longest excerpt of a response that is shown, in characters.
SHOWN = 300

# Anything that looks like a token: an access token, a JWT, or an sf login URL.
_TOKEN = re.compile(r"00D\w{12,15}!\S+|\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?|force://\S+")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One cause of a refused sign-in."""

    error: str
    """Salesforce's ``error`` code."""
    words: str
    """Part of Salesforce's ``error_description``, in lower case; empty matches any description."""
    check: str
    """What the user should check or do."""
    retryable: bool = False
    """Whether the same sign-in may work later."""


_APPROVE = (
    "let an administrator approve the connected app for the user: permitted users 'admin approved "
    "users are pre-authorized', a profile or permission set, and the scopes api and refresh_token"
)
_CREDENTIALS = (
    "check that SFPUBSUB_CLIENT_ID and SFPUBSUB_CLIENT_SECRET belong to the same app; a new app "
    "becomes active after several minutes"
)

# An address range of the profile, of the org's session settings, or of the app.
_ADDRESSES = (
    "allow this machine's address: add it to the login IP ranges of the user's profile, or relax "
    "the IP restrictions of the app; the JWT flow enforces the ranges whatever the app relaxes. "
    "The user's login history shows the address that the org sees; it may also be outside the "
    "profile's login hours"
)
_INSTALL = (
    "let an administrator install the app (Setup, Connected Apps OAuth Usage, Install), or let the "
    "user approve uninstalled apps (the permission 'Approve Uninstalled Connected Apps')"
)
_FROZEN = (
    "activate or unfreeze the user (Setup, Users): Salesforce freezes users whose API traffic "
    "comes from anonymizing VPNs, proxies or other high-risk addresses, and revokes their tokens"
)

# A refresh token that no request will ever make valid again.
DEAD_GRANT = Refusal(
    "invalid_grant",
    "access/refresh token",
    "sign in again to get a new refresh token: the current one was revoked, was not used for too "
    "long, or was replaced when it was used elsewhere",
)

# Salesforce documentation (OAuth 2.0 authorization errors) and users' reports.
REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "invalid_grant",
        "no client credentials user enabled",
        "choose a 'Run As' user in the app's policies for the client credentials flow",
    ),
    Refusal(
        "invalid_grant",
        "not supported on this domain",
        "set SFPUBSUB_LOGIN_URL to the org's My Domain, https://NAME.my.salesforce.com, and not to "
        "login.salesforce.com or test.salesforce.com",
    ),
    # "user hasn't approved this consumer" and "user is not admin approved to access this app".
    Refusal("invalid_grant", "approved", _APPROVE),
    Refusal(
        "invalid_grant",
        "audience",
        "set SFPUBSUB_LOGIN_URL to https://login.salesforce.com, or to https://test.salesforce.com "
        "for a sandbox; SFPUBSUB_AUDIENCE changes only the audience",
    ),
    Refusal(
        "invalid_grant",
        "assertion",
        "check that SFPUBSUB_PRIVATE_KEY_FILE belongs to the certificate of the connected app, and "
        "that SFPUBSUB_USERNAME is a user of this org",
    ),
    Refusal(
        "invalid_grant",
        "expired authorization code",
        "check this machine's clock: an assertion is valid for three minutes",
    ),
    DEAD_GRANT,
    Refusal("invalid_grant", "ip restricted", _ADDRESSES),
    Refusal("invalid_grant", "inactive", _FROZEN),
    Refusal("invalid_grant", "frozen", _FROZEN),
    Refusal(
        "invalid_grant",
        "",
        "check username, password (followed by the security token) and login host (for a sandbox "
        "https://test.salesforce.com), and that the org allows this flow",
    ),
    Refusal("invalid_client_id", "", _CREDENTIALS),
    Refusal("invalid_client", "must be installed", _INSTALL),
    Refusal("invalid_client", "", _CREDENTIALS),
    Refusal("oauth_approval_error_generic", "", _INSTALL),
    Refusal(
        "oauth_app_blocked",
        "",
        "let an administrator unblock the app (Setup, Connected Apps OAuth Usage, Unblock)",
    ),
    Refusal("invalid_app_access", "", _APPROVE),
    Refusal("unauthorized_client", "", "enable the flow in the app, and give it the scope api"),
    Refusal("unsupported_grant_type", "", "enable this flow in the app's OAuth settings"),
    Refusal("invalid_scope", "", "give the app the scope api"),
    Refusal("invalid_request", "", "check that SFPUBSUB_LOGIN_URL is the org's https login URL"),
    Refusal("inactive_user", "", _FROZEN),
    Refusal("inactive_org", "", "the org is locked, closed or suspended: ask its administrator"),
    Refusal("rate_limit_exceeded", "", "sign in less often", retryable=True),
    Refusal("unknown_error", "", "see the org's login history", retryable=True),
)


def find(error: str, description: str) -> Refusal | None:
    """Return the first of `REFUSALS` that matches a response's error and description, or None."""
    lower = description.lower()
    for row in REFUSALS:
        if row.error == error.lower() and row.words in lower:
            return row
    return None


def is_dead_grant(answer: Answer) -> bool:
    """Return whether an answer says that the refresh token will never be valid again."""
    error, description = _said(answer)
    return find(error, description) is DEAD_GRANT


def refused(
    answer: Answer, secrets: Iterable[str], *, dead_grant: str = DEAD_GRANT.check
) -> AuthenticationError:
    """Return the error for a refused sign-in.

    Args:
        answer: The response, whose status is not 200.
        secrets: Values to redact if the response repeats them.
        dead_grant: What the user should do if the refresh token will never be valid again.
    """
    hidden = list(secrets)
    error, description = (scrub(text, hidden) for text in _said(answer))
    row = find(error, description)
    said = ": ".join(part for part in (error, description) if part) or f"status {answer.status}"
    check = row.check if row else "see the org's login history"
    return AuthenticationError(
        f"{answer.host} refused the sign-in with {said}; "
        f"{dead_grant if row is DEAD_GRANT else check}",
        retryable=row is not None and row.retryable,
        error_code=error or None,
    )


def _said(answer: Answer) -> tuple[str, str]:
    try:
        found = answer.json()
    except RemoteProtocolError:
        return "", ""  # an error page: only the status is usable
    if not isinstance(found, dict):
        return "", ""
    error, description = found.get("error"), found.get("error_description")
    return (
        error if isinstance(error, str) else "",
        description if isinstance(description, str) else "",
    )


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """Return text from a server or program in a form that is safe to show: one line, no secrets.

    Args:
        text: The text; the result contains at most `SHOWN` characters of it.
        secrets: Values to redact, in addition to anything that looks like a token.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _TOKEN.sub("***", text)
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:SHOWN]
