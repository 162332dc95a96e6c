"""The org whose events a table contains: a table never mixes the events of two orgs.

Ids of records are unique only within an org, and a refreshed sandbox is another org.
"""

from __future__ import annotations

from sfpubsub.auth.session import eighteen, is_other_org
from sfpubsub.errors import OtherOrgError


def one_org(recorded: str | None, given: str | None, where: object) -> str | None:
    """Return the 18-character id of the org to which *recorded* and *given* belong.

    Args:
        recorded: Id of the org whose events *where* contains; None if it is not known.
        given: Id of the org of the session or of new events, of 15 or 18 characters; None if it is
            not known.
        where: The table or target, for the error message.

    Returns:
        The id; None if neither is known.

    Raises:
        OtherOrgError: The ids belong to different orgs.
    """
    if recorded and given and is_other_org(recorded, given):
        raise OtherOrgError(
            f"{where} contains data of the org {recorded}, not of {eighteen(given)}: sign in to "
            f"the first org, or choose another destination (a refreshed sandbox is another org)"
        )
    found = recorded or given
    return eighteen(found) if found else None
