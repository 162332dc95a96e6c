"""What the user must be allowed before a mirror begins: to see every record of each object.

A record that the user does not see is not in an answer, and the mirror would take it for deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfpubsub.errors import ConfigurationError, PermissionDeniedError
from sfpubsub.rest import OrgReader


def check_rights(reader: OrgReader, objects: Sequence[str]) -> None:
    """Make sure that the objects can be mirrored.

    Args:
        reader: Asks the org, as the user of the mirror.
        objects: API names.

    Raises:
        ConfigurationError: A name is not that of an object which can be queried, in its own case.
        PermissionDeniedError: The user is not known to see all records.
        RequestRefusedError: The org does not have an object, or the user does not see it.
    """
    hidden = []
    for name in objects:
        found = reader.describe(name)
        if found.name != name:
            raise ConfigurationError(f"{name} is called {found.name} in the org: give that name")
        if not found.queryable:
            raise ConfigurationError(f"{name} cannot be queried, and so not be mirrored")
        if not reader.can_view_all(name):
            hidden.append(name)
    if hidden:
        raise PermissionDeniedError(
            f"the user is not known to see every record of {', '.join(hidden)}, and a record that "
            f"is not seen would count as deleted: give the user View All of these objects by a "
            f"permission set, or View All Data"
        )
