"""Tests of the faults that affect records: gap events, lost and delayed events, a moved org, and a
purged record.
"""

from __future__ import annotations

import pytest

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.conftest import until
from tests.emulator.records.support import events
from tests.emulator.records.test_bulk import call, wait_for_job

ACCOUNTS, ORDERS = "/data/AccountChangeEvent", "/data/Order__ChangeEvent"
ALL = "/data/ChangeEvents"


def headers(emulator, topic):
    """Return the headers of a topic's retained change events."""
    return [event["ChangeEventHeader"] for event in events(emulator, topic)]


def test_gap_event_replaces_the_next_event_of_its_target(org, user):
    """The fault `gap_event` replaces the next change event of its target with a gap event.

    Other events are unchanged.
    """
    org.faults.add(Fault("gap_event", target=ORDERS))
    org.records.create("Account", {"Name": "A"}, user)
    record = org.records.create("Order__c", {"Name": "1"}, user)
    org.records.update("Order__c", record, {"Name": "2"}, user)
    assert [header["changeType"] for header in headers(org, ORDERS)] == ["GAP_CREATE", "UPDATE"]
    assert [header["changeType"] for header in headers(org, ACCOUNTS)] == ["CREATE"]
    org.faults.assert_consumed()


def test_a_lost_event_leaves_only_the_stamp(org, user, clock):
    """The fault `lose_event` drops the next change event of its target from all topics. The record
    has changed, and its SystemModstamp is the second of the change; other events are sent.
    """
    record = org.records.create("Order__c", {"Name": "1"}, user)
    org.faults.add(Fault("lose_event", target=ORDERS))
    clock.jump(5.4)
    org.records.update("Order__c", record, {"Name": "2"}, user)
    org.records.create("Account", {"Name": "A"}, user)
    assert [header["changeType"] for header in headers(org, ORDERS)] == ["CREATE"]
    assert [header["changeType"] for header in headers(org, ACCOUNTS)] == ["CREATE"]
    row = org.records.get("Order__c", record)
    assert row["Name"] == "2"
    assert row["SystemModstamp"].endswith(".000+0000")
    assert row["SystemModstamp"] > row["CreatedDate"]
    org.faults.assert_consumed()


@pytest.mark.parametrize("org", [Settings(), Settings(deletes_move_stamp=False)], indirect=True)
def test_a_deletion_moves_the_stamp_unless_told(org, user, clock):
    """A deletion and an undeletion move SystemModstamp, or do not, as a setting says; an update
    always does.
    """
    moves = org.settings.deletes_move_stamp
    record = org.records.create("Account", {"Name": "A"}, user)

    def stamp():
        query = "SELECT SystemModstamp FROM Account"
        (row,) = org.records.query(query, user, deleted=True).rows
        return row["SystemModstamp"]

    stamps = [stamp()]
    for change in (org.records.delete, org.records.undelete):
        clock.jump(2.0)
        change("Account", record, user)
        stamps.append(stamp())
    assert len(set(stamps)) == (3 if moves else 1)
    clock.jump(2.0)
    org.records.update("Account", record, {"Phone": "1"}, user)
    assert stamp() > stamps[-1]


def test_delayed_events_arrive_when_due(org, user, clock, tmp_path):
    """The fault `delay_event` delays an event, so that later events overtake it.

    A restart of the emulator does not lose it.
    """
    for seconds in (5.0, 60.0):
        org.faults.add(Fault("delay_event", seconds=seconds))
    for name in ("late", "later", "now"):
        org.records.create("Account", {"Name": name}, user)
    assert [event["Name"] for event in events(org, ALL)] == ["now"]
    clock.jump(6)
    until(lambda: len(events(org, ALL)) == 2)
    org.stop()
    clock.jump(60)
    again = EmulatorServer(tmp_path / "org", clock=clock)
    until(lambda: len(events(again, ALL)) == 3)
    assert [event["Name"] for event in events(again, ACCOUNTS)] == ["now", "late", "later"]
    again.stop()


def test_a_channel_can_be_deleted_while_an_event_is_delayed(org, user, clock):
    """If a channel is deleted while two of its events are delayed, both still reach their object's
    own topic.
    """
    org.bus.put_channel("/data/Banks__chn", [ACCOUNTS])
    for _ in range(2):
        org.faults.add(Fault("delay_event", seconds=5.0))
        org.records.create("Account", {"Name": "late"}, user)
    org.bus.remove_channel("/data/Banks__chn")
    clock.jump(6)
    until(lambda: len(events(org, ACCOUNTS)) == 2)


def test_commit_numbers_start_anew_after_a_move(org, user):
    """After an org move, commit numbers start again from a lower value, and old replay ids are
    invalid.
    """
    org.records.create("Account", {"Name": "1"}, user)
    old = org.bus.ids.mint(org.bus.tip())
    org.faults.add(Fault("move_org"))
    org.records.create("Account", {"Name": "2"}, user)
    org.records.create("Account", {"Name": "3"}, user)
    numbers = [header["commitNumber"] for header in headers(org, ACCOUNTS)]
    assert numbers[1] < numbers[0]
    assert numbers[2] > numbers[1]
    assert org.bus.position(old) is None


def test_a_purged_record_vanishes_without_an_event(org, user):
    """The fault `purge_record` permanently deletes a record without publishing an event.

    It counts as consumed once a client looks for the record.
    """
    record = org.records.create("Account", {"Name": "A"}, user)
    org.faults.add(Fault("purge_record", record_id=record))
    assert len(events(org, ACCOUNTS)) == 1
    assert org.records.query("SELECT Id FROM Account", user, deleted=True).total == 0
    with pytest.raises(RecordProblem, match="does not exist"):
        org.records.get("Account", record)
    org.faults.assert_consumed()
    with pytest.raises(ValueError, match="no record"):
        org.faults.add(Fault("purge_record", record_id=record))


def test_a_query_job_fails_or_is_aborted(org):
    """A fault lets the next query job of an object fail, with an error message, or lets it be
    aborted; the job has no results, and cannot be aborted again. Jobs of other objects complete.
    """
    asked = {"operation": "query", "query": "SELECT Id FROM Account"}
    other = {"operation": "query", "query": "SELECT Id FROM Contact"}
    org.start()
    for state in ("Failed", "Aborted"):
        org.faults.add(Fault("end_query_job", target="Account", state=state))
        made = call(org, "POST", "/query", other).json
        assert wait_for_job(org, "query", made["id"])["state"] == "JobComplete"
        made = call(org, "POST", "/query", asked).json
        ended = wait_for_job(org, "query", made["id"])
        assert ended["state"] == state
        assert ("QUERY_TIMEOUT" in ended.get("errorMessage", "")) is (state == "Failed")
        assert call(org, "GET", f"/query/{made['id']}/results").status == 204
        refused = call(org, "PATCH", f"/query/{made['id']}", {"state": "Aborted"})
        assert refused.code == (400, "INVALIDJOBSTATE")
    org.faults.assert_consumed()
    made = call(org, "POST", "/query", asked).json
    assert wait_for_job(org, "query", made["id"])["state"] == "JobComplete"
    with pytest.raises(ValueError, match="state"):
        Fault("end_query_job", state="Open")
