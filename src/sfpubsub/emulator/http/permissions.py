"""The permissions of the current user, as objects that can be queried.

The emulated org has one permission, `User.view_all`, which appears here as View All Data. It has no
permission sets, and therefore no View All permission for single objects.
"""

from __future__ import annotations

from typing import Any

from sfpubsub.emulator.http import soql
from sfpubsub.emulator.http.exchange import Call
from sfpubsub.emulator.http.tables import Table


def _own(call: Call, _asked: soql.Query) -> list[dict[str, Any]]:
    user = call.world.accounts.holder(call.world.sessions.user_of(call.bearer) or "")
    return [{"PermissionsViewAllData": user.view_all}]


def _none(_call: Call, _asked: soql.Query) -> list[dict[str, Any]]:
    return []


_GRANT = (
    "Id", "ParentId", "SobjectType", "Parent.PermissionSetGroupId", "PermissionsViewAllRecords"
)  # fmt: skip
_ASSIGNMENT = ("Id", "AssigneeId", "PermissionSetId", "PermissionSetGroupId")

TABLES = (
    Table("UserPermissionAccess", ("PermissionsViewAllData",), (), _own, first_version=41),
    Table("ObjectPermissions", _GRANT, _GRANT[:4], _none, first_version=24),
    Table("PermissionSetAssignment", _ASSIGNMENT, _ASSIGNMENT, _none, first_version=22),
)
