"""Permission check before a mirror begins: the user must see every record of each object.

Responses omit records that the user cannot see, and the mirror would treat them as deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfpubsub.errors import ConfigurationError, PermissionDeniedError
from sfpubsub.rest import OrgReader


def check_rights(reader: OrgReader, objects: Sequence[str]) -> None:
    """Check that the objects can be mirrored.

    Args:
        reader: Sends requests to the org as the mirror's user.
        objects: API names of the objects.

    Raises:
        ConfigurationError: A name differs in case from the object's name, or the object cannot be
            queried.
        PermissionDeniedError: The user may not be able to see all records.
        RequestRefusedError: An object does not exist, or the user cannot see it.
    """
    hidden = []
    for name in objects:
        found = reader.describe(name)
        if found.name != name:
            raise ConfigurationError(f"{name} is called {found.name} in the org: use that name")
        if not found.queryable:
            raise ConfigurationError(
                f"{name} cannot be mirrored because it cannot be queried: remove it from the "
                f"objects to mirror"
            )
        if not reader.can_view_all(name):
            hidden.append(name)
    if hidden:
        raise PermissionDeniedError(
            f"the user may not be able to see every record of {', '.join(hidden)}, and the mirror "
            f"would treat hidden records as deleted: grant the user View All for these objects in "
            f"a permission set, or View All Data"
        )
