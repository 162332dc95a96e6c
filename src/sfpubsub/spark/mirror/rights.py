"""Ask the org whether the mirror's user may see every record of the objects to mirror."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sfpubsub.errors import ConfigurationError, PermissionDeniedError, RequestRefusedError
from sfpubsub.rest import Grant, OrgReader
from sfpubsub.rest.describing import STAMP
from sfpubsub.rest.grants import missing_rights

_log = logging.getLogger("sfpubsub.spark")

# Error codes of a query for objects or fields that the user may not see (REST API guide, status
# codes).
_HIDDEN = frozenset({"INVALID_TYPE", "INVALID_FIELD"})

_SELECT = "select it for change data capture, or leave it out"


def grants_of(reader: OrgReader, objects: Sequence[str]) -> dict[str, Grant]:
    """Return what lets the user see every record of each object now.

    Raises:
        SfPubSubError: The org could not be asked: nothing is concluded.
    """
    try:
        return reader.grants(objects)
    except (PermissionDeniedError, RequestRefusedError) as error:
        is_denied = isinstance(error, PermissionDeniedError) and error.error_code is not None
        if not is_denied and error.error_code not in _HIDDEN:
            raise  # for example a proxy's answer, or a timeout: it says nothing about rights
        # The user may not even see permissions, so the right is not known to hold.
        _log.warning("the user's permissions cannot be read: %s", error)
        return dict.fromkeys(objects, Grant())


def check_stamps(reader: OrgReader, name: str) -> None:
    """Check that the changed records of an object can be read without events.

    Raises:
        ConfigurationError: The object has no SystemModstamp, or cannot be queried on its own.
    """
    if reader.describe(name).field(STAMP) is None:
        raise ConfigurationError(
            f"{name} cannot be mirrored without events, because it has no field {STAMP}: {_SELECT}"
        )
    soql = f"SELECT Id FROM {name} ORDER BY {STAMP}, Id LIMIT 1"  # noqa: S608  # no SQL
    try:
        next(iter(reader.query(soql, all_rows=True)), None)
    except RequestRefusedError as error:
        raise ConfigurationError(
            f"{name} cannot be mirrored without events, because the org does not list its records, "
            f"perhaps only those of a given parent ({error}): {_SELECT}"
        ) from error


def check_object(reader: OrgReader, name: str) -> None:
    """Check that an object exists and can be mirrored, whatever the user's rights.

    Raises:
        ConfigurationError: The name differs in case from the object's name, or the object cannot be
            queried.
        RequestRefusedError: The object does not exist, or the user cannot see it.
    """
    found = reader.describe(name)
    if found.name != name:
        raise ConfigurationError(f"{name} is called {found.name} in the org: use that name")
    if not found.queryable:
        raise ConfigurationError(
            f"{name} cannot be mirrored because it cannot be queried: remove it from the objects "
            f"to mirror"
        )


def present_grant(reader: OrgReader, entity: str) -> Grant:
    """Return what lets the user see every record of an object now.

    Raises:
        PermissionDeniedError: The user may not be able to see all records.
    """
    grant = reader.grants([entity])[entity]
    if not grant:
        raise PermissionDeniedError(missing_rights([entity]))
    return grant
