"""The org and its users, what gives these View All, and their login history, as objects that can be
queried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sfpubsub.emulator.http.exchange import Call
from sfpubsub.emulator.http.tables import Table
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.records.values import moment
from sfpubsub.emulator.org.rights import PermissionSet
from sfpubsub.emulator.org.sessions import eighteen


def _own(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    user = call.world.accounts.holder(call.world.sessions.user_of(call.bearer) or "")
    return [
        {
            "LastCacheUpdate": moment(call.world.rights.history(user.username)[0][-1]),
            "PermissionsViewAllData": user.view_all,
            "PermissionsModifyAllData": False,
        }
    ]


def _users(call: Call, _asked: soql.Select) -> Iterator[dict[str, Any]]:
    for one in call.world.rights.permission_sets():
        user = call.world.accounts.user(one.profile_of)
        if user is not None:
            yield {
                "Id": user.user_id,
                **_named(user.username),
                "IsActive": user.active,
                "ProfileId": one.profile_id,
                "UserType": "Standard",
                **_LOCALE,
                **_times(one.made_at, one.made_at),
            }


def _sets(call: Call, _asked: soql.Select) -> Iterator[dict[str, Any]]:
    for one in call.world.rights.permission_sets():
        yield {"Id": one.set_id, **_about(one), **_times(one.made_at, one.changed_at)}


def _object_permissions(call: Call, _asked: soql.Select) -> Iterator[dict[str, Any]]:
    for one in call.world.rights.object_permissions():
        yield {
            "Id": one.permission_id,
            "ParentId": one.set_id,
            "SobjectType": one.object_name,
            "PermissionsRead": True,
            "PermissionsViewAllRecords": one.view_all,
            "PermissionsModifyAllRecords": False,
            **_times(one.made_at, one.changed_at),
        }


def _assignments(call: Call, _asked: soql.Select) -> Iterator[dict[str, Any]]:
    for one in call.world.rights.assignments():
        user = call.world.accounts.user(one.username)
        if user is not None:
            yield {
                "Id": one.assignment_id,
                "AssigneeId": user.user_id,
                "PermissionSetId": one.set_id,
                "PermissionSetGroupId": None,
                "SystemModstamp": moment(one.made_at),
            }


def _logins(call: Call, _asked: soql.Select) -> Iterator[dict[str, Any]]:
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


def _organization(call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    return [
        {
            "Id": call.world.sessions.org_id,
            "Name": "Emulator",
            "IsSandbox": True,
            "OrganizationType": "Developer Edition",
            "InstanceName": "EMU",
            "NamespacePrefix": None,
            **_LOCALE,
        }
    ]


def _named(username: str) -> dict[str, str]:
    """Return the names of a user. The emulator knows only the username."""
    alias = username.partition("@")[0]
    return {
        "Username": username,
        "Name": alias,
        "LastName": alias,
        "Alias": alias[:_ALIAS],
        "Email": username,
    }


def _none(_call: Call, _asked: soql.Select) -> list[dict[str, Any]]:
    return []


_ALIAS = 8
"""Maximum number of characters of a user's alias. Documented."""

_LOCALE = {"TimeZoneSidKey": "GMT", "LocaleSidKey": "en_US", "LanguageLocaleKey": "en_US"}

_TIMES = dict.fromkeys(("CreatedDate", "LastModifiedDate", "SystemModstamp"), "datetime")
_SET = {
    "Id": "id",
    "Name": "string",
    "Label": "string",
    "IsOwnedByProfile": "boolean",
    "ProfileId": "Profile",
    "PermissionSetGroupId": "string",
    "PermissionsViewAllData": "boolean",
    "PermissionsModifyAllData": "boolean",
    **_TIMES,
}
_USER = {
    "Id": "id",
    **dict.fromkeys(("Username", "Name", "FirstName", "LastName", "Alias", "Email"), "string"),
    "IsActive": "boolean",
    "ProfileId": "Profile",
    "UserType": "string",
    **dict.fromkeys(_LOCALE, "string"),
    **_TIMES,
}
_ORGANIZATION = {
    "Id": "id",
    "Name": "string",
    "IsSandbox": "boolean",
    **dict.fromkeys(("OrganizationType", "InstanceName", "NamespacePrefix", *_LOCALE), "string"),
}
_GRANT = {
    "Id": "id",
    "ParentId": "PermissionSet",
    "SobjectType": "string",
    "PermissionsRead": "boolean",
    "PermissionsViewAllRecords": "boolean",
    "PermissionsModifyAllRecords": "boolean",
    **_TIMES,
}
_ASSIGNMENT = {
    "Id": "id",
    "AssigneeId": "User",
    "PermissionSetId": "PermissionSet",
    "PermissionSetGroupId": "string",
    "SystemModstamp": "datetime",
}
_LOGIN = {
    "Id": "id",
    "UserId": "User",
    "LoginTime": "datetime",
    **dict.fromkeys(("LoginType", "SourceIp", "Status"), "string"),
}
_OWN = {
    "LastCacheUpdate": "datetime",
    "PermissionsViewAllData": "boolean",
    "PermissionsModifyAllData": "boolean",
}
_RECORD_TYPE = {
    "Id": "id",
    **dict.fromkeys(("Name", "DeveloperName", "SobjectType", "NamespacePrefix"), "string"),
    "IsActive": "boolean",
    **_TIMES,
}
_PROFILE = {"Id": "id", "Name": "string", "UserType": "string", **_TIMES}

TABLES = (
    Table("UserPermissionAccess", _OWN, _own, first_version=41),
    Table("User", _USER, _users, path="sobjects/User", prefix="005"),
    Table("Organization", _ORGANIZATION, _organization, path="sobjects/Organization", prefix="00D"),
    Table("RecordType", _RECORD_TYPE, _none, path="sobjects/RecordType", prefix="012"),
    Table("Profile", _PROFILE, _none, path="sobjects/Profile", prefix="00e"),
    Table("PermissionSet", _SET, _sets, first_version=22),
    Table("ObjectPermissions", _GRANT, _object_permissions, first_version=24),
    Table("LoginHistory", _LOGIN, _logins, first_version=21),
    Table("PermissionSetAssignment", _ASSIGNMENT, _assignments, first_version=22),
)
