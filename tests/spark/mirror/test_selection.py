"""What follows when a channel stops delivering a mirrored object's events."""

from __future__ import annotations

import pytest

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.session import CurrentSession, Session
from sfpubsub.errors import ConfigurationError, SfPubSubError, StreamUnavailableError
from sfpubsub.spark.ingest.members import ALL_CHANGES, ChannelMembers
from sfpubsub.spark.ingest.selection import (
    LOOK_EVERY,
    RETRY_EVERY,
    SETTLING,
    Finding,
    Member,
    Selection,
    check_filters,
    compared,
)
from sfpubsub.spark.mirror.actions import Decision, KeepMembers, LookAtMembers, T
from sfpubsub.spark.mirror.deadlines import Deadlines, Now
from sfpubsub.spark.mirror.selection_watch import SelectionWatch
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.types import Gap, ReplayId

NAME = "My_Managed_Subscription"


class Org:
    """A channel whose members a test changes, a mirror's memory, and processes that watch it."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {"AccountChangeEvent": Member("1")}
        self.error: SfPubSubError | None = None
        self.stored: dict[str, str | None] = {}
        self.now = 0.0
        self.looks = 0
        self.said: list[str] = []
        self.gaps: list[Gap] = []
        self.asked: list[str] = []
        self.start()

    def start(self) -> None:
        """Start a process that watches the channel; only what was stored survives."""
        self.time = Deadlines(Now(self.now, self.now))
        self.waiting = Waiting(self.time)
        self.watch = SelectionWatch(
            self.stored, self.waiting, self.time, self._request, self._report
        )

    def _request(self, name: str) -> Decision[None]:
        self.asked.append(name)
        yield from ()

    def _report(self, gap: Gap) -> Decision[None]:
        self.gaps.append(gap)
        yield from ()

    def carry_out(self, decision: Decision[T]) -> T:
        """Carry out the actions of a decision, and return its result."""
        self.time.now = Now(self.now, self.now)
        while True:
            try:
                action = next(decision)
            except StopIteration as end:
                return end.value
            if isinstance(action, KeepMembers):
                self.stored = dict(action.known)
            elif isinstance(action, LookAtMembers):
                self.looks += 1
                answer = Selection("ChangeEvents", dict(self.members))
                self.watch.found(self.error or answer)

    def look(self, after: float = LOOK_EVERY) -> None:
        """Let some time pass, and let the process look at the channel if that is due."""
        self.now += after
        position = ReplayId(int(self.now).to_bytes(8, "big"))
        while self.carry_out(self.watch.advance(["Account"], NAME, position)) or self.watch._answer:
            pass

    @property
    def waits(self) -> str | None:
        """Why the object waits; None if it does not."""
        wait = self.waiting.of("Account").get(Why.DESELECTED)
        return None if wait is None else wait.text


def test_a_deselected_object_is_one_gap_and_waits_until_it_is_selected_again():
    """The gap begins at the last good look, and names the object; the object waits, and says what
    to do. Ten minutes after it was seen selected again, all its records are reread.
    """
    org = Org()
    for _ in range(2):
        org.look()
    assert (org.gaps, org.asked, org.waits) == ([], [], None)
    good = ReplayId(int(org.now).to_bytes(8, "big"))
    del org.members["AccountChangeEvent"]
    for _ in range(3):
        org.look()
    assert [(gap.reason, gap.subscription, gap.after, gap.entity) for gap in org.gaps] == [
        ("deselected", NAME, good, "Account")
    ]
    assert org.gaps[0].occurrence == "member 1", "its positions do not tell it from the next one"
    assert "sfpubsub channel add ChangeEvents Account" in str(org.waits)
    org.members["AccountChangeEvent"] = Member("2")
    org.look()
    org.look(SETTLING - 1)
    assert org.asked == []
    assert "selected again" in str(org.waits)
    org.look(1.0)
    assert (org.asked, org.waits, len(org.gaps)) == (["Account"], None, 1)
    org.look()
    assert (org.asked, len(org.gaps)) == (["Account"], 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_member_removed_and_added_between_two_looks_is_noticed(restarted: bool):
    """A member that was added again has another id, so events were missed, even if no process ran
    in the meantime.
    """
    org = Org()
    org.look()
    org.members["AccountChangeEvent"] = Member("2")
    if restarted:
        org.start()
    org.look()
    org.look(SETTLING)
    assert [gap.reason for gap in org.gaps] == ["deselected"]
    assert org.asked == ["Account"]


def test_a_restart_does_not_forget_that_an_object_was_deselected():
    """A process that starts after the object was selected again rereads it, as does one that starts
    while it is not selected, since nothing else tells what has changed.
    """
    org = Org()
    org.look()
    del org.members["AccountChangeEvent"]
    org.look()
    org.start()
    org.look()
    assert (org.asked, org.waits is None) == (["Account"], False)
    org.members["AccountChangeEvent"] = Member("2")
    org.start()
    org.look()
    org.start()  # killed before the reread was requested
    org.look()
    org.look(SETTLING)
    assert (org.asked, org.waits, len(org.gaps)) == (["Account", "Account"], None, 1)


def test_a_removed_object_is_forgotten():
    """Nothing is asked about an object that was removed from the mirror before it has settled."""
    org = Org()
    org.look()
    del org.members["AccountChangeEvent"]
    org.look()
    org.members["AccountChangeEvent"] = Member("2")
    org.look()
    org.carry_out(org.watch.forget("Account"))
    org.now += SETTLING
    assert not org.carry_out(org.watch.advance([], NAME, None))
    assert (org.asked, org.waits, org.stored) == ([], None, {})


def test_a_filter_set_in_mid_run_is_a_gap_that_waits():
    """With a filter, the channel delivers only some events of the object."""
    org = Org()
    org.look()
    org.members["AccountChangeEvent"] = Member("1", "BillingCity = 'Rome'")
    org.look()
    assert [gap.entity for gap in org.gaps] == ["Account"]
    assert "BillingCity = 'Rome'" in str(org.waits)


def test_a_look_that_fails_concludes_nothing():
    """The next look comes sooner after a temporary failure, and decides."""
    org = Org()
    org.look()
    org.error = StreamUnavailableError("no answer")
    org.look()
    assert (org.gaps, org.waits) == ([], None)
    org.error = None
    before = org.looks
    org.look(RETRY_EVERY - 1)
    assert org.looks == before
    org.look(1.0)
    assert org.looks == before + 1
    assert (org.gaps, org.waits) == ([], None)


@pytest.mark.parametrize(
    ("known", "now", "finding"),
    [
        ({}, "1", Finding.DELIVERED),
        ({}, None, Finding.WITHHELD),
        ({"Account": "1"}, "1", Finding.DELIVERED),
        ({"Account": "1"}, "2", Finding.LOST),
        ({"Account": "1"}, None, Finding.LOST),
        ({"Account": None}, None, Finding.WITHHELD),
        ({"Account": None}, "1", Finding.BACK),
    ],
)
def test_a_look_is_compared_with_the_last_one(known, now, finding):
    """Every pair of looks has one finding."""
    assert compared(known, "Account", now) is finding


def test_a_custom_object_has_a_change_event_of_its_own():
    """Names are compared as the org does, whatever their case."""
    selection = Selection("ChangeEvents", {"order__ChangeEvent": Member("1")})
    assert selection.problem("Order__c") is None
    with pytest.raises(ConfigurationError, match="Order__c cannot be mirrored"):
        check_filters(
            Selection("X__chn", {"Order__ChangeEvent": Member("1", "A = 1")}), ["Order__c"]
        )


def test_members_are_those_of_the_channel_that_is_read(run_emulator):
    """The topic of one object is served if any channel selects the object; a managed subscription
    delivers its topic.
    """
    emulator = run_emulator()
    session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
    emulator.event_channels.create("Sales__chn", "data", "Sales")
    own = emulator.event_channels.add(
        "Sales_Account", "Sales__chn", "AccountChangeEvent", filter_expression="BillingCity = 'A'"
    )
    emulator.managed.create("Sales", "/data/Sales__chn")

    def members(**of: str) -> Selection:
        return ChannelMembers(CurrentSession(session), HttpClient(), **of)()

    sales = members(managed="Sales")
    assert sales.channel == "Sales__chn"
    assert sales.member("Account") == Member(own.member_id, "BillingCity = 'A'")
    standard = members(topic=ALL_CHANGES).member("Account")
    assert standard is not None
    assert members(topic="/data/AccountChangeEvent").member("Account") == standard
    emulator.event_channels.remove(standard.id)
    assert members(topic="/data/AccountChangeEvent").whole("Account") == own.member_id
    emulator.event_channels.remove(own.member_id)
    assert members(topic="/data/AccountChangeEvent").whole("Account") is None
