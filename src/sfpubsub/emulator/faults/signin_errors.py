"""The service's error responses to token requests, as data."""

from __future__ import annotations

SIGN_IN_ERRORS: dict[str, tuple[str, str]] = {
    # Codes of the service, with descriptions as reported by clients; the wording may change.
    "grant": ("unsupported_grant_type", "grant type not supported"),
    "client_id": ("invalid_client_id", "client identifier invalid"),
    "secret": ("invalid_client", "invalid client credentials"),
    "password": ("invalid_grant", "authentication failure"),
    "refresh": ("invalid_grant", "expired access/refresh token"),
    "assertion": ("invalid_grant", "invalid assertion"),
    "audience": ("invalid_grant", "audience is invalid"),
    "expired": ("invalid_grant", "expired authorization code"),
    "approval": ("invalid_grant", "user hasn't approved this consumer"),
    "run_as": ("invalid_grant", "no client credentials user enabled"),
    "inactive": ("inactive_user", "user is inactive"),
    "frozen": ("invalid_grant", "inactive user"),
    "ip": ("invalid_grant", "ip restricted"),
    "not_installed": ("invalid_client", "app must be installed into org"),
    "blocked": ("OAUTH_APP_BLOCKED", "this app is blocked by admin"),
    "app_access": ("invalid_app_access", "user is not admin approved to access this app"),
    "rate": ("rate_limit_exceeded", "login rate exceeded"),
    "method": ("invalid_request", "must use HTTP POST"),
    # The emulator's own errors.
    "form": ("invalid_request", "the body must be a form with each parameter once"),
    "parameter": ("invalid_request", "a parameter of this grant type is missing"),
    "token": ("unsupported_token_type", "this token is not supported"),
    "server": ("server_error", "the emulator failed"),
}
"""The `error` and `error_description` of a failed sign-in, by an internal key for its cause."""


def sign_in_error(error: str, description: str = "") -> str:
    """Return the key of the first row with this error and, unless it is blank, this description.

    Raises:
        ValueError: There is no such row.
    """
    for key, row in SIGN_IN_ERRORS.items():
        if row[0] == error and description in ("", row[1]):
            return key
    known = ", ".join(text for other, text in SIGN_IN_ERRORS.values() if other == error)
    raise ValueError(
        f"fault refuse_sign_in: {error!r} has no description {description!r}, but {known or 'none'}"
    )
