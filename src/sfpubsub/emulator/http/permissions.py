"""The users of the org, what gives them View All, and their login history, as objects that can be
queried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sfpubsub.emulator.http import soql
from sfpubsub.emulator.http.exchange import Call
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org.records.values import moment
from sfpubsub.emulator.org.rights import PermissionSet
from sfpubsub.emulator.org.sessions import eighteen


def _own(call: Call, _asked: soql.Query) -> list[dict[str, Any]]:
    user = call.world.accounts.holder(call.world.sessions.user_of(call.bearer) or "")
    return [
        {
            "LastCacheUpdate": moment(call.world.rights.history(user.username)[0][-1]),
            "PermissionsViewAllData": user.view_all,
            "PermissionsModifyAllData": False,
        }
    ]


def _users(call: Call, _asked: soql.Query) -> Iterator[dict[str, Any]]:
    for one in call.world.rights.permission_sets():
        user = call.world.accounts.user(one.profile_of)
        if user is not None:
            yield {
                "Id": user.user_id,
                "Username": user.username,
                "IsActive": user.active,
                "ProfileId": one.profile_id,
                **_times(one.made_at, one.made_at),
            }


def _sets(call: Call, _asked: soql.Query) -> Iterator[dict[str, Any]]:
    for one in call.world.rights.permission_sets():
        yield {"Id": one.set_id, **_about(one), **_times(one.made_at, one.changed_at)}


def _object_permissions(call: Call, _asked: soql.Query) -> Iterator[dict[str, Any]]:
    rights = call.world.rights
    sets = {one.set_id: one for one in rights.permission_sets()}
    for one in rights.object_permissions():
        yield {
            "Id": one.permission_id,
            "ParentId": one.set_id,
            "SobjectType": one.object_name,
            "PermissionsRead": True,
            "PermissionsViewAllRecords": one.view_all,
            "PermissionsModifyAllRecords": False,
            **_prefixed("Parent", sets[one.set_id]),
            **_times(one.made_at, one.changed_at),
        }


def _assignments(call: Call, _asked: soql.Query) -> Iterator[dict[str, Any]]:
    rights = call.world.rights
    sets = {one.set_id: one for one in rights.permission_sets()}
    for one in rights.assignments():
        user = call.world.accounts.user(one.username)
        if user is not None:
            yield {
                "Id": one.assignment_id,
                "AssigneeId": user.user_id,
                "PermissionSetId": one.set_id,
                "PermissionSetGroupId": None,
                "SystemModstamp": moment(one.made_at),
                **_prefixed("PermissionSet", sets[one.set_id]),
            }


def _logins(call: Call, _asked: soql.Query) -> Iterator[dict[str, Any]]:
    """Yield the login history of the user of the token; other users' is not shown."""
    own = call.world.accounts.holder(call.world.sessions.user_of(call.bearer) or "")
    for number, one in enumerate(list(call.world.sign_in.history), start=1):
        if one.user_id == own.user_id:
            yield {
                "Id": eighteen(f"0YaSB{number:010d}"),
                "UserId": one.user_id,
                "LoginTime": moment(one.at),
                "LoginType": one.kind,
                "SourceIp": one.address,
                "Status": "Success",
            }


def _about(one: PermissionSet) -> dict[str, Any]:
    return {
        "Name": one.name,
        "Label": one.name.replace("_", " "),
        "IsOwnedByProfile": bool(one.profile_of),
        "ProfileId": one.profile_id,
        "PermissionSetGroupId": None,
        "PermissionsViewAllData": one.view_all_data,
        "PermissionsModifyAllData": False,
    }


def _times(made_at: float, changed_at: float) -> dict[str, str]:
    changed = moment(changed_at)
    return {
        "CreatedDate": moment(made_at),
        "LastModifiedDate": changed,
        "SystemModstamp": changed,
    }


def _prefixed(parent: str, one: PermissionSet) -> dict[str, Any]:
    """Return the columns of a permission set as those of the parent of another row."""
    values = {"Id": one.set_id, **_about(one), **_times(one.made_at, one.changed_at)}
    return {f"{parent}.{name}": value for name, value in values.items()}


_TIMES = ("CreatedDate", "LastModifiedDate", "SystemModstamp")
_SET = (
    "Id", "Name", "Label", "IsOwnedByProfile", "ProfileId", "PermissionSetGroupId",
    "PermissionsViewAllData", "PermissionsModifyAllData", *_TIMES,
)  # fmt: skip
_USER = ("Id", "Username", "IsActive", "ProfileId", *_TIMES)
_GRANT = (
    "Id", "ParentId", "SobjectType", "PermissionsRead", "PermissionsViewAllRecords",
    "PermissionsModifyAllRecords", *_TIMES, *(f"Parent.{name}" for name in _SET),
)  # fmt: skip
_ASSIGNMENT = (
    "Id", "AssigneeId", "PermissionSetId", "PermissionSetGroupId", "SystemModstamp",
    *(f"PermissionSet.{name}" for name in _SET),
)  # fmt: skip
_LOGIN = ("Id", "UserId", "LoginTime", "LoginType", "SourceIp", "Status")
_OWN = ("LastCacheUpdate", "PermissionsViewAllData", "PermissionsModifyAllData")

TABLES = (
    Table("UserPermissionAccess", _OWN, (), _own, first_version=41),
    Table("User", _USER, _USER, _users),
    Table("PermissionSet", _SET, _SET, _sets, first_version=22),
    Table("ObjectPermissions", _GRANT, _GRANT, _object_permissions, first_version=24),
    Table("LoginHistory", _LOGIN, _LOGIN[:4], _logins, first_version=21),
    Table("PermissionSetAssignment", _ASSIGNMENT, _ASSIGNMENT, _assignments, first_version=22),
)
