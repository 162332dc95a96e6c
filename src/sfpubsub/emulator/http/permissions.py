"""What the running user may see, as objects that can be queried.

The org knows one permission, `view_all`: here it is View All Data of the user. No permission set
exists, and so no object's own View All.
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


_GRANT = ("Id", "ParentId", "SobjectType", "PermissionsViewAllRecords")
_ASSIGNMENT = ("Id", "AssigneeId", "PermissionSetId")

TABLES = (
    Table("UserPermissionAccess", ("PermissionsViewAllData",), (), _own, first_version=41),
    Table("ObjectPermissions", _GRANT, _GRANT[:3], _none, first_version=24),
    Table("PermissionSetAssignment", _ASSIGNMENT, _ASSIGNMENT, _none, first_version=22),
)
