"""Tests of what a user's right to see every record rests on, and of when it was interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from sfpubsub.rest.grants import Finding, Grant, Held, checked, grants_everything, sources_of


def assignment(number: int, of: str, *, data: bool = False, at: str = "1") -> dict[str, Any]:
    """Return an assignment of the permission set *of* that was changed at *at*."""
    parent = {"Id": of, "SystemModstamp": at, "PermissionsViewAllData": data}
    row = {"Id": f"0Pa{number}", "SystemModstamp": "1", "PermissionSet": parent}
    return {**row, "PermissionSetId": of, "PermissionSetGroupId": None}


def permission(of: str, *, view_all: bool = True, group: str | None = None, at: str = "1"):
    """Return the object permissions of the permission set *of*."""
    row = {"Id": f"110{of}", "SystemModstamp": at, "ParentId": of}
    return {**row, "PermissionsViewAllRecords": view_all, "Parent": {"PermissionSetGroupId": group}}


def test_view_all_rests_on_assigned_permission_sets_and_groups():
    """Each assigned permission set or group with View All, for the object or for all data, is a
    source; what is not assigned, or grants less, is none.
    """
    mine = [assignment(1, "a"), assignment(2, "b", data=True)]
    assert len(sources_of(mine, [permission("a"), permission("other")])) == 2
    assert len(sources_of(mine, [permission("a", view_all=False)])) == 1
    assert grants_everything(mine)
    assert not grants_everything(mine[:1])
    in_group = {**assignment(3, "x"), "PermissionSetGroupId": "group"}
    assert len(sources_of([in_group], [permission("c", group="group")])) == 1
    assert sources_of([assignment(1, "a")], [permission("c", group="group")]) == []


@pytest.mark.parametrize(
    ("now", "more"),
    [
        ([assignment(9, "a")], [permission("a")]),  # assigned again
        ([assignment(1, "a")], [permission("a", at="2")]),  # View All given again
        ([assignment(2, "b", data=True)], []),  # through another permission set
    ],
)
def test_a_new_grant_does_not_continue_an_earlier_one(now: list[Any], more: list[Any]):
    """A right that was withdrawn and given again in another way, or at another time, is seen."""
    before = Grant.of(sources_of([assignment(1, "a")], [permission("a")]))
    after = Grant.of(sources_of(now, more))
    assert after
    assert not after.continues(before)


def test_one_unchanged_source_continues_a_grant():
    """While one source stays as it is, others may come, go and change."""
    both = [assignment(1, "a"), assignment(2, "b", data=True)]
    before = Grant.of(sources_of(both, [permission("a")]))
    for later in (
        sources_of(both[:1], [permission("a")]),
        sources_of(both[1:], []),
        sources_of([*both, assignment(3, "c", data=True)], [permission("a", at="2")]),
    ):
        assert Grant.of(later).continues(before)


def test_checks_find_interruptions():
    """Each check says whether the right held since the one before it. Every interruption begins an
    epoch, and what was known is the same after it was stored.
    """
    one, other, none = Grant.of(["1"]), Grant.of(["2"]), Grant()
    found, held, epochs = [], None, []
    for now in (none, one, Grant.of(["1", "3"]), Grant.of(["3"]), none, none, one, other, other):
        finding, held = checked(held, now)
        assert Held.from_json(held.to_json()) == held
        found.append(finding)
        epochs.append(held.epoch)
    assert found == [
        Finding.MISSING, Finding.BACK, Finding.HELD, Finding.HELD, Finding.LOST, Finding.MISSING,
        Finding.BACK, Finding.LOST, Finding.BACK,
    ]  # fmt: skip
    assert epochs == [0, 0, 0, 0, 1, 1, 1, 2, 2]
    assert checked(None, one) == (Finding.HELD, Held(one))
