"""Tests of what `sfpubsub mirror plan` says before a mirror runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sfpubsub.cli.main import run
from sfpubsub.spark.ingest.selection import event_of
from sfpubsub.spark.mirror.plan import Facts, costs
from sfpubsub.spark.mirror.settings import MirrorSettings
from tests.cli.test_cli import point_at
from tests.spark.mirror.schedule_world import DAY, MARGIN, SETTINGS, SimulatedMirror


@pytest.mark.parametrize("limit", [100_000, 5_000])
@pytest.mark.parametrize("has_derived", [False, True])
def test_a_day_costs_as_many_calls_as_planned(limit: int, has_derived: bool):
    """The calls of a simulated day, beside objects with and without events, with and without fields
    that no event reports, and with intervals that are stretched, are within 10 % of the plan.
    """
    settings = replace(SETTINGS, drift=3600.0, poll=300.0, sweep=DAY / 4, refresh_formulas=DAY / 3)
    world = SimulatedMirror(1, ["Account", "Contact", "Lead"], settings)
    world.most_pieces, world.limit, world.has_derived = 1, limit, has_derived
    del world.members[event_of("Lead")]
    world.run(2 * MARGIN)
    facts = [Facts(name, 1, name != "Lead", int(has_derived)) for name in world.objects]
    planned = costs(facts, settings, limit, rights=1, look=1)
    assert [each.by for each in planned] == ["events", "events", "modstamp", None]
    before = len(world.sends)
    world.run(DAY)
    calls = sum(each.calls_a_day for each in planned)
    assert len(world.sends) - before == pytest.approx(calls, rel=0.1)


def test_first_reads_are_planned_by_size():
    """A small object is read by queries, a large one in bulk, each after a margin. An object that
    nothing tells about costs nothing a day.
    """
    small = Facts("Account", 9_999, has_events=True, unreported=0)
    large = replace(small, entity="Contact", records=10_000_000, unreported=3)
    stampless = replace(small, entity="Lead", has_events=False, has_stamp=False)
    found = costs([small, large, stampless], MirrorSettings(), 100_000, rights=2, look=5)
    assert [each.first_read_calls for each in found] == [6, 210, 6, None]
    assert [each.first_read_seconds for each in found] == [305, 5300, 305, None]
    assert [each.calls_a_day for each in found] == [49, 522, 0, 697]
    assert [each.share_of_limit for each in found] == ["0.0 %", "0.5 %", "0.0 %", "0.7 %"]
    assert found[2].by == "nothing"
    (waits, _) = costs([replace(small, has_events=False)], MirrorSettings(by="events"), 1, 1, 1)
    assert (waits.by, waits.calls_a_day) == ("nothing", 0)


def test_the_command_plans_for_the_org_at_hand(run_emulator, monkeypatch, capsys):
    """It says which objects have events, and which fields are in none, and counts all records, also
    those in the Recycle Bin, without reading them.
    """
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    user = emulator.accounts.holder("")
    for number in range(3):
        account = emulator.records.create("Account", {"Name": f"{number}"}, user)
    emulator.records.delete("Account", account, user)
    for member in emulator.event_channels.members("ChangeEvents"):
        if member.entity != "AccountChangeEvent":
            emulator.event_channels.remove(member.member_id)
    assert run(["mirror", "plan", "Account", "Order__c"]) == 0
    account, order, both = map(json.loads, capsys.readouterr().out.splitlines())
    assert (account["object"], account["records"], account["by"]) == ("Account", 3, "events")
    assert (order["object"], order["by"]) == ("Order__c", "modstamp")
    assert account["calls_a_day"] == 24 + 288 + 2  # an account has a formula
    assert account["fields_in_no_event"] > 0
    assert (both["object"], both["by"]) == ("all objects", None)
    assert run(["mirror", "plan", "Nothing__c"]) == 1
