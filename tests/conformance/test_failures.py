"""Tests of failures that a subscriber can encounter, simulated by the emulator.

Each test runs with the synchronous client and with the asyncio client. Labels such as t12 in the
names of tests are explained in test_scenarios.
"""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfpubsub import Session
from sfpubsub.config import Timings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import (
    AuthenticationError,
    ReplayIdRejectedError,
    SessionExpiredError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
    TopicNotFoundError,
)
from sfpubsub.types import ReplayId, StartPosition

from ..client.test_managed import ACCOUNT
from ..client.test_plain import MemoryStore
from ..conftest import QUICK, until
from .faces import AsyncFace, Face
from .targets import NAME, TOPIC, EmulatorTarget

HOUR = 3600.0

Start = Callable[..., tuple[EmulatorTarget, Face]]


class Provider:
    """Signs in to an emulator and counts renewals."""

    def __init__(self, emulator: EmulatorServer) -> None:
        self.emulator = emulator
        self.renewals = 0
        self.failures: list[Exception] = []
        self._lock = threading.Lock()

    def get_session(self, expired: Session | None) -> Session:
        with self._lock:
            if expired is None:
                token = self.emulator.access_token
            else:
                self.renewals += 1
                if self.failures:
                    raise self.failures.pop(0)
                token = self.emulator.new_token()
        return Session(token, self.emulator.instance_url, self.emulator.tenant_id)


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def start(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Start]:
    """Return a function that starts an emulator and a client that can renew its session."""
    with contextlib.ExitStack() as stack:

        def make(timings: Timings = QUICK, **settings: Any) -> tuple[EmulatorTarget, Face]:
            target = EmulatorTarget(tmp_path / "data", **settings)
            stack.callback(target.close)
            target.provider = Provider(target.emulator)  # type: ignore[attr-defined]
            arguments = {**target.arguments(), "session": target.provider}  # type: ignore[attr-defined]
            face = request.param(timings=timings, **arguments)
            stack.callback(face.close)
            return target, face

        yield make


# Sessions.


def test_an_expired_session_is_renewed_once_for_all_streams(start: Start):
    """If a session expires, one sign-in is enough for four open streams.

    Each resumes at its position without a gap.
    """
    target, face = start(events_per_response=5)
    target.publish(10)
    held = [face.plain(TOPIC, replay="earliest") for _ in range(3)]
    held.append(face.managed(NAME))
    seen = [each.collect(10) for each in held]
    target.plan("expire_token")
    until(lambda: all(each.health().reconnects for each in held), "four reconnects")
    target.publish(10)
    for each, before in zip(held, seen, strict=True):
        assert before + each.collect(10) == list(range(20))
        assert each.health().gaps == ()
    assert target.provider.renewals == 1
    until(target.is_consumed)


def test_a_revoked_token_is_noticed_by_the_next_call(start: Start):
    """A revoked token does not end open streams.

    The next call is rejected, renews the session and succeeds.
    """
    target, face = start()
    target.publish(1)
    held = face.plain(TOPIC, replay="earliest")
    held.collect(1)
    target.plan("revoke_token")
    assert face.call(face.client.get_topic, TOPIC).can_subscribe
    target.publish(1)
    assert held.collect(1) == [1]
    assert held.health().reconnects == 0
    assert target.provider.renewals == 1


def test_a_session_that_cannot_be_renewed_ends_the_subscription(start: Start):
    """If the login host refuses a renewal by a code of its own, the subscription ends with the
    provider's exception.
    """
    target, face = start()
    target.publish(1)
    held = face.plain(TOPIC, replay="earliest")
    held.collect(1)
    refused = AuthenticationError("the refresh token was revoked", error_code="invalid_grant")
    target.provider.failures = [refused]
    target.plan("expire_token")
    with pytest.raises(AuthenticationError, match="the refresh token was revoked"):
        held.next()


def test_a_session_that_stays_rejected_is_eventually_given_up(start: Start):
    """If every renewed session is rejected, the client gives up after `session_budget`.

    The error is retryable and says that signing in worked.
    """
    target, face = start(Timings(backoff_initial=0.02, backoff_max=0.1, session_budget=0.5))
    target.plan("refuse", times=500, rpc="Subscribe", error_code="service.auth.error")
    held = face.plain(TOPIC)
    with pytest.raises(SessionExpiredError, match="signing in worked") as caught:
        held.next()
    assert caught.value.retryable
    assert 4 < target.provider.renewals < 100


# Positions.


def test_an_expired_position_raises_an_error_with_the_gap(start: Start):
    """A position that is older than the retention time is rejected.

    The error names the gap, which begins at that position.
    """
    target, face = start()
    target.publish(3)
    stored = target.replay_id(2)
    target.emulator.clock.jump(73 * HOUR)
    held = face.plain(TOPIC, replay=stored)
    with pytest.raises(ReplayIdRejectedError) as caught:
        held.next()
    assert caught.value.gap is not None
    assert caught.value.gap.after == stored
    assert caught.value.rpc_id


def test_t5b_an_idle_topic_keeps_its_position_fresh(start: Start):
    """Keepalives renew the position of an idle topic beyond the retention time.

    After 80 hours without events, a new subscription resumes without a gap.
    """
    target, face = start(keepalive_s=270.0, tip_refresh_s=0.0)
    target.publish(2)
    store = MemoryStore(StartPosition.earliest())
    held = face.plain(TOPIC, replay=store)
    held.collect(2)
    for _ in range(8):
        before = held.health().last_position
        target.emulator.clock.jump(10 * HOUR)
        until(lambda before=before: held.health().last_position != before, "a keepalive")
        assert held.next(0) is None
    held.drain()
    target.publish(1)
    again = face.plain(TOPIC, replay=store)
    assert again.collect(1) == [2]
    assert again.health().gaps == ()


def test_an_expired_managed_position_is_reported_as_a_gap(start: Start):
    """The service silently restarts an expired managed subscription at a different position.

    The client notices that unacked events are not redelivered, and reports a gap.
    """
    target, face = start(events_per_response=5)
    target.publish(10)
    gaps: list[Any] = []
    held = face.managed(NAME, ack="manual", on_gap=gaps.append)
    held.batch().ack()
    held.commit()
    held.batch()  # five events are open
    target.emulator.clock.jump(73 * HOUR)
    target.publish(3)
    target.plan("drop_stream")
    assert held.collect(3) == [10, 11, 12]
    until(lambda: gaps, "a gap")
    assert [gap.reason for gap in gaps] == ["repositioned"]
    assert gaps[0].after == target.replay_id(4)
    assert gaps[0].before == target.replay_id(10)


@pytest.mark.parametrize("fault", ["move_org", "reset_stream"])
def test_a_moved_org_is_handled_as_a_rejected_position(start: Start, fault: str):
    """After a move or a reset of the org, old replay ids are rejected.

    The subscription restarts at `replay_fallback` and reports a gap.
    """
    target, face = start()
    target.publish(3)
    gaps: list[Any] = []
    held = face.plain(TOPIC, replay="earliest", replay_fallback="earliest", on_gap=gaps.append)
    assert held.collect(3) == [0, 1, 2]
    target.plan(fault)
    until(lambda: gaps, "a gap")
    if fault == "move_org":  # the same events, under new ids
        assert held.collect(3) == [0, 1, 2]
    target.publish(1)
    assert held.collect(1) == [3]
    assert [gap.reason for gap in gaps] == ["rejected"]


# The managed slot, STOP and RUN.


def test_health_says_why_a_managed_stream_waits_for_its_slot(start: Start):
    """A lost connection may hold the managed slot for a while.

    The next subscription waits for the slot, and `health().reason` says so.
    """
    target, face = start()
    target.publish(2)
    target.plan("hold_slot", seconds=0.6)
    first = face.managed(NAME, ack="manual")
    first.collect(2)
    first.abort()
    second = face.managed(NAME)
    reason = until(lambda: second.health().reason, "a reason")
    assert "active" in reason
    assert second.collect(2) == [0, 1]
    assert second.health().reason is None


def test_a_slot_that_stays_held_raises_an_error(start: Start):
    """If another client holds the managed slot beyond `slot_timeout`, an error is raised."""
    target, face = start(Timings(slot_initial=0.02, slot_max=0.05, slot_timeout=0.3))
    target.publish(1)
    holder = face.managed(NAME)
    holder.collect(1)
    second = face.managed(NAME)
    with pytest.raises(SubscriptionBusyError, match="held by another client"):
        second.next()


def test_run_after_stop_starts_at_the_default(start: Start):
    """STOP deletes the committed position, so a restart with RUN begins at `defaultReplay`."""
    target, face = start()
    target.publish(2)
    held = face.managed(NAME)
    held.collect(2)
    held.next(0)
    held.commit()
    target.emulator.managed.set_state(NAME, "STOP")
    with pytest.raises(SubscriptionStoppedError):
        held.next()
    target.emulator.managed.set_state(NAME, "RUN")
    assert face.managed(NAME).collect(2) == [0, 1]


def test_deleting_a_subscription_ends_its_stream(start: Start):
    """The stream's error says that the subscription was stopped.

    Later subscriptions raise `SubscriptionNotFoundError`.
    """
    target, face = start()
    target.publish(1)
    held = face.managed(NAME)
    held.collect(1)
    target.plan("delete_managed", target=NAME)
    with pytest.raises(SubscriptionStoppedError):
        held.next()
    late = face.managed(NAME)
    with pytest.raises(SubscriptionNotFoundError):
        late.next()


# Time.


def test_a_silent_stream_is_reopened(start: Start):
    """A stream that is silent beyond the keepalive interval and its margin is reopened."""
    timings = Timings(keepalive=0.2, keepalive_margin=0.1, backoff_initial=0.02)
    target, face = start(timings, keepalive_s=0.1)
    target.publish(1)
    target.plan("withhold_keepalive", times=4)
    held = face.plain(TOPIC, replay="earliest")
    held.collect(1)
    until(lambda: held.health().reconnects, "a reconnect")
    until(target.is_consumed)
    target.publish(1)
    assert held.collect(1) == [1]


def test_an_idle_managed_stream_outlives_the_commit_deadline(start: Start):
    """An idle subscription commits its last position again in time to keep its stream open."""
    timings = Timings(commit_interval=0.1, slot_initial=0.02)
    # Below the wait of 2.5 s, with a margin for a busy machine.
    target, face = start(timings, commit_deadline_s=2.0)
    target.publish(1)
    held = face.managed(NAME)
    held.collect(1)
    held.next(0)
    held.commit()
    quiet = held.next(2.5)
    assert quiet is None
    assert held.health().reconnects == 0


def test_a_missed_commit_deadline_costs_only_a_reconnect(start: Start):
    """A handler that misses the service's commit deadline causes a reconnect.

    No event is lost or delivered twice, and the handler's commit succeeds.
    """
    target, face = start(commit_deadline_s=0.3)
    target.publish(3)
    held = face.managed(NAME, ack="manual")
    batch = held.batch()
    until(lambda: held.health().reconnects, "a reconnect")
    batch.ack()
    held.commit()
    assert target.committed() == 2
    assert held.health().gaps == ()
    assert held.health().delivered == 3


# Messages of every shape.


def test_t4b_the_position_in_a_commit_response_is_not_committed(start: Start):
    """The latest position in a commit response may be ahead of undelivered events.

    Committing it would lose them.
    """
    target, face = start(commit_answer_tip="org")
    target.publish(10)
    held = face.managed(NAME, ack="manual")
    batch = held.batch()
    target.plan("merge_responses", events=100, within_s=5.0)
    target.publish(5)  # held back, while commit responses already have their position
    batch.ack()
    held.commit()
    held.drain()
    assert target.committed() == 9
    with urllib.request.urlopen(f"{target.emulator.http_url}/health", timeout=10) as answer:
        counts = json.load(answer)["managed_subscriptions"][NAME]
    assert (counts["commits_accepted"], counts["commits_refused"]) == (1, 0)
    assert face.managed(NAME).collect(5) == list(range(10, 15))


def test_events_and_a_commit_response_in_one_message(start: Start):
    """If a message has both events and a commit response, the client processes both."""
    target, face = start(events_per_response=10)
    target.plan("answer_with_events", times=3)
    target.publish(200)
    held = face.managed(NAME)
    assert held.collect(200) == list(range(200))
    held.next(0)
    held.commit()
    assert target.committed() == 199


def test_split_and_merged_responses_lose_no_event(start: Start):
    """All events are delivered in order even if the service splits or merges responses."""
    target, face = start()
    target.plan("split_response", times=5, events=1)
    target.plan("merge_responses", times=2, events=20, within_s=0.2)
    target.publish(150)
    held = face.plain(TOPIC, replay="earliest")
    assert held.collect(150) == list(range(150))
    until(target.is_consumed)


def test_t12_two_schemas_in_one_response(start: Start):
    """After a schema change, each event is decoded with the schema that it names."""
    target, face = start()
    emulator = target.emulator
    old = emulator.publish(TOPIC, [{"Order_Number__c": "0"}])[0].schema_id
    schema = json.loads(emulator.bus.schema(old).text)
    schema["fields"].insert(2, {"name": "New__c", "type": ["null", "string"], "default": None})
    emulator.change_schema(TOPIC, json.dumps(schema))
    emulator.publish(TOPIC, [{"Order_Number__c": "1", "New__c": "x"}])
    held = face.plain(TOPIC, replay="earliest")
    events = list(held.batch())
    while len(events) < 2:
        events += list(held.batch())
    assert [event.value["Order_Number__c"] for event in events] == ["0", "1"]
    assert "New__c" not in events[0].value
    assert events[1].value["New__c"] == "x"


def test_t13_a_slow_schema_does_not_reorder_events(start: Start):
    """Responses that arrive while a schema is being fetched are delivered in order."""
    target, face = start(events_per_response=5)
    target.plan("delay_call", rpc="GetSchema", seconds=0.3)
    target.publish(20)
    held = face.plain(TOPIC, replay="earliest")
    assert held.collect(20) == list(range(20))
    until(target.is_consumed)


def test_a_schema_that_is_unavailable_for_a_while_loses_no_event(start: Start):
    """If a schema is temporarily unavailable, its events wait for it and are then delivered."""
    target, face = start()
    target.plan("refuse", times=3, rpc="GetSchema", error_code="schema.api.unavailable")
    target.publish(5)
    held = face.plain(TOPIC, replay="earliest")
    assert held.collect(5) == list(range(5))
    until(target.is_consumed)


def test_t15_errors_contain_the_error_code_and_the_rpc_id(start: Start):
    """Errors of unary calls and of streams contain the service's error code and rpc id.

    Salesforce Support asks for them.
    """
    _, face = start()
    with pytest.raises(TopicNotFoundError) as caught:
        face.call(face.client.get_topic, "/event/Nothing__e")
    assert caught.value.error_code == "sfdc.platform.eventbus.grpc.topic.not.found"
    assert caught.value.rpc_id
    held = face.plain("/event/Nothing__e")
    with pytest.raises(TopicNotFoundError) as caught:
        held.next()
    assert caught.value.error_code == "sfdc.platform.eventbus.grpc.topic.not.found"
    assert caught.value.rpc_id


def test_t17_a_named_type_used_twice_is_decoded(start: Start):
    """A schema may refer to a named record type that an earlier field defines.

    Here BillingAddress defines the type that ShippingAddress refers to.
    """
    target, face = start()
    row = {
        **ACCOUNT,
        "BillingAddress": {"City": "Zug"},
        "ShippingAddress": {"City": "Chur", "Latitude": 46.8},
    }
    target.emulator.publish("/data/AccountChangeEvent", [row])
    held = face.plain("/data/ChangeEvents", replay="earliest")
    (event,) = held.batch()
    assert event.value["BillingAddress"]["City"] == "Zug"
    assert event.value["ShippingAddress"]["Latitude"] == 46.8


def test_change_events_without_ids_have_a_dedupe_key(start: Start):
    """Change events may have no id. Their `dedupe_key` does not need it."""
    target, face = start(change_event_ids=False)
    target.emulator.publish("/data/AccountChangeEvent", [ACCOUNT])
    held = face.plain("/data/ChangeEvents", replay="earliest")
    (event,) = held.batch()
    assert event.id == ""
    assert len(event.dedupe_key) == 16
    assert event.replay_id != ReplayId(b"\x00")
