"""What ``sfpubsub doctor`` tells about a sign-in: the token file, and the address the org sees."""

from __future__ import annotations

import ipaddress

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.organisation import user_of
from sfpubsub.auth.refresh import RefreshToken
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.auth.soql import quoted
from sfpubsub.errors import SfPubSubError
from sfpubsub.rest.reader import API_VERSION
from sfpubsub.tooling.soql_queries import Queries

# Characters of a time that are shown: up to the second, in UTC.
_SECONDS = 19

_ONE_MACHINE = "it serves this machine only: several need client-credentials or jwt"


def token_file(login: RefreshToken) -> tuple[bool, str]:
    """Return whether a login has a token file, and a description of the file, without secrets.

    Raises:
        ConfigurationError: The file cannot be read, or is damaged.
    """
    file = login.token_file
    if file is None:
        return False, "SFPUBSUB_TOKEN_FILE is none: a rotated refresh token ends with the process"
    family = file.read()
    if family is None:
        return True, f"{file.path} does not exist yet; {_ONE_MACHINE}"
    return True, f"{file.path} has {family.summary()}; {_ONE_MACHINE}"


def seen_address(sessions: CurrentSession, http: HttpClient) -> str:
    """Return a description of the address from which the org saw the user's newest sign-in.

    A user may read the own login history (object reference, LoginHistory). The result is an empty
    string if the org does not return the address.
    """
    queries = Queries(OrgClient(sessions, http), API_VERSION)
    try:
        user_id = user_of(http, sessions.get())
        rows = user_id and queries.rows(
            f"SELECT SourceIp, LoginTime FROM LoginHistory WHERE UserId = {quoted(user_id)} "  # noqa: S608
            f"ORDER BY LoginTime DESC LIMIT 1",
            tooling=False,
        )
    except SfPubSubError:
        return ""  # for instance because the user has no access to the API's records
    for row in rows or ():
        address, time = row.get("SourceIp"), row.get("LoginTime")
        if isinstance(address, str) and isinstance(time, str) and _is_address(address):
            return f"the newest sign-in of this user came from {address}, at {time[:_SECONDS]} UTC"
    return ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
