"""Tests of snapshots of the org: what they keep, what a restore ends, and how long it takes."""

from __future__ import annotations

import time

import pytest

from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.remote import RemoteEmulator
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .records.support import events, select
from .support import ACCOUNTS, MANAGED, ORDERS, Client, until

LONGEST_S = 0.05
"""Time limit of a restore in CPU seconds, which other processes do not change."""


@pytest.fixture
def org(tmp_path):
    """An emulator whose snapshot `before` has one record, one event and a committed position."""
    with EmulatorServer(tmp_path / "data") as emulator:
        select(emulator, "Account")
        emulator.records.create("Account", {"Name": "kept"}, emulator.accounts.holder(""))
        emulator.publish(ORDERS, [{"Order_Number__c": "kept"}])
        emulator.save("before")
        yield emulator


def names(emulator: EmulatorServer) -> list[str]:
    """Return the names of the accounts."""
    return [row["Name"] for row in emulator.records.table("Account").where("1", [])]


def test_a_restore_returns_to_the_snapshot(org):
    """After a restore, records, events, users, subscriptions and schemas are those of the
    snapshot, in this process and after the next start.
    """
    org.records.create("Account", {"Name": "lost"}, org.accounts.holder(""))
    org.publish(ORDERS, [{"Order_Number__c": "lost"}])
    org.accounts.put_user("more@example.com")
    org.managed.delete(MANAGED)
    org.restore("before")
    assert names(org) == ["kept"]
    assert [event["Order_Number__c"] for event in events(org, ORDERS)] == ["kept"]
    assert len(events(org, ACCOUNTS)) == 1
    assert [item.developer_name for item in org.managed.all()] == [MANAGED]
    org.stop()
    with EmulatorServer(org.data_dir) as again:
        assert names(again) == ["kept"]
        users = again._store.rows("SELECT username FROM users")
        assert ("more@example.com",) not in users


def test_ids_go_on_above_the_highest_ever_used(org):
    """Ids of records, users and events that were used before a restore are not used again."""

    def made() -> tuple[str, str, int]:
        record = org.records.create("Account", {"Name": "x"}, org.accounts.holder(""))
        org.accounts.put_user("x@example.com")
        (event,) = org.publish(ORDERS, [{}])
        return (
            record,
            org.accounts.holder("x@example.com").user_id,
            org.bus.position(event.replay_id),
        )

    first = made()
    for _ in range(2):
        org.restore("before")
        second = made()
        assert all(old < new for old, new in zip(first, second, strict=True)), (first, second)
        first = second


def test_a_restore_ends_streams_sessions_and_tokens(org):
    """A restore ends open streams and makes access tokens invalid; the addresses stay, and a new
    token works.
    """
    old = Client(org.grpc_target, org.metadata)
    stream = old.subscribe()
    assert len(stream.events(1)) == 1
    until(lambda: org.bus.bells.count(ORDERS) == 1)
    token, target, cometd = org.access_token, org.grpc_target, org.cometd
    org.restore("before")
    assert stream.end()[0] == "UNAVAILABLE"
    old.close()
    assert cometd.sessions.is_stopped
    assert org.access_token != token
    late = Client(target, old.metadata)
    asked = pb.TopicRequest(topic_name=ORDERS)
    assert late.refusal("GetTopic", asked) == ("UNAUTHENTICATED", "service.auth.error")
    late.close()
    new = Client(target, org.metadata)
    assert len(new.subscribe().events(1)) == 1
    new.close()


def test_a_restore_from_another_process(org):
    """Over HTTP, a snapshot is saved and restored, and the client goes on with the new token."""
    remote = RemoteEmulator(org.http_url)
    remote.publish(ORDERS, [{"Order_Number__c": "two"}])
    remote.save("two")
    remote.publish(ORDERS, [{"Order_Number__c": "three"}])
    remote.restore("two")
    assert len(events(org, ORDERS)) == 2
    assert remote.access_token == org.access_token
    remote.publish(ORDERS, [{"Order_Number__c": "four"}])
    assert len(events(org, ORDERS)) == 3
    with pytest.raises(EmulatorProblem, match="no snapshot 'none'"):
        remote.restore("none")
    with pytest.raises(EmulatorProblem, match="not a name of a snapshot"):
        remote.save("../bus")


def test_faults_and_jumps_are_not_repeated(org):
    """A restore does not carry out again what a fault did before, takes another plan, and the
    clock does not go back.
    """
    org.faults.add(Fault("age_out"))
    org.clock.jump(60)
    org.restore("before")
    assert len(events(org, ORDERS)) == 1
    now = org.clock.now()
    plan = FaultPlan()
    org.restore("before", faults=plan)
    assert org.clock.now() >= now
    plan.add(Fault("age_out"))
    assert events(org, ORDERS) == []
    org.stop()
    with EmulatorServer(org.data_dir) as again:
        assert again.clock.now() >= now


def test_jobs_are_not_restored(org):
    """A restore takes the jobs of the Bulk API away, and their files; ids are not used again."""
    user = org.accounts.holder("")
    facts = {"operation": "insert", "object": "Account", "columnDelimiter": "COMMA"}
    first = org.jobs.create({**facts, "lineEnding": "LF"}, user)
    org.jobs.upload(first, b"Name\nx\n")
    org.save("with_a_job")
    org.restore("with_a_job")
    assert org.jobs.all(queries=False) == []
    assert not list(org.data_dir.glob("bulk/*"))
    assert org.jobs.create({**facts, "lineEnding": "LF"}, user).job_id > first.job_id


def test_a_restore_takes_milliseconds(tmp_path):
    """The default seed is restored within 50 ms of CPU time, however often."""
    with EmulatorServer(tmp_path) as emulator:
        emulator.save("fresh")
        emulator.restore("fresh")
        took = []
        for _ in range(10):
            begun = time.process_time()
            emulator.restore("fresh")
            took.append(time.process_time() - begun)
        assert min(took) <= LONGEST_S
        assert len(emulator.clock._listeners) == 2
