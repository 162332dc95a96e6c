"""A table of the causes of refused sign-ins, with what the user should check for each.

Salesforce names the cause in ``error``, a coarse code, and in ``error_description``, free text.
The first row that matches both applies. An ``error`` that no row matches is shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sfpubsub.errors import AuthenticationError

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
    Refusal(
        "invalid_grant",
        "access/refresh token",
        "sign in again to get a new refresh token: the current one was revoked, has expired, or "
        "was replaced when it was used elsewhere",
    ),
    Refusal(
        "invalid_grant",
        "ip restricted",
        "relax the IP restrictions of the connected app, or the login hours of the profile",
    ),
    Refusal("invalid_grant", "inactive", "activate the user, or ask the org's administrator"),
    Refusal(
        "invalid_grant",
        "",
        "check username, password (followed by the security token) and login host (for a sandbox "
        "https://test.salesforce.com), and that the org allows this flow",
    ),
    Refusal("invalid_client_id", "", _CREDENTIALS),
    Refusal("invalid_client", "", _CREDENTIALS),
    Refusal("invalid_app_access", "", _APPROVE),
    Refusal("unauthorized_client", "", "enable the flow in the app, and give it the scope api"),
    Refusal("unsupported_grant_type", "", "enable this flow in the app's OAuth settings"),
    Refusal("invalid_scope", "", "give the app the scope api"),
    Refusal("invalid_request", "", "check that SFPUBSUB_LOGIN_URL is the org's https login URL"),
    Refusal("inactive_user", "", "activate the user"),
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


def refused(host: str, status: int, found: Any, secrets: Iterable[str]) -> AuthenticationError:
    """Return the error for a refused sign-in.

    Args:
        host: The host that refused.
        status: The HTTP status.
        found: The parsed JSON response; None if it was not JSON.
        secrets: Values to redact if the response repeats them.
    """
    hidden = list(secrets)
    found = found if isinstance(found, dict) else {}
    error = _shown(found.get("error"), hidden)
    description = _shown(found.get("error_description"), hidden)
    row = find(error, description)
    said = ": ".join(part for part in (error, description) if part) or f"status {status}"
    check = row.check if row else "see the org's login history"
    return AuthenticationError(
        f"{host} refused the sign-in with {said}; {check}",
        retryable=row is not None and row.retryable,
        error_code=error or None,
    )


def _shown(text: object, secrets: Iterable[str]) -> str:
    return scrub(text, secrets) if isinstance(text, str) else ""


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
