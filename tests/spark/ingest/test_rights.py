"""What ``sfpubsub ingest`` says if its user may not see every record, without Spark."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.session import CurrentSession, Session
from sfpubsub.errors import PermissionDeniedError, SfPubSubError
from sfpubsub.rest.grants import CHECK_EVERY, Grant
from sfpubsub.spark.ingest.rights import OrgGrants, RightsWatch
from sfpubsub.spark.ingest.selection import event_of, object_of
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import Gap, ReplayId
from tests.conftest import until

NAME = "/data/ChangeEvents"


class Run:
    """A run of the command, whose user's grants a test changes."""

    def __init__(self, opened: ExitStack) -> None:
        self.grants = {"Account": Grant.of(["1"]), "Case": Grant.of(["1"])}
        self.error: SfPubSubError | None = None
        self.now = 0.0
        self.gaps: list[Gap] = []
        self.said: list[str] = []
        self.watch = opened.enter_context(
            RightsWatch(NAME, self._ask, self.gaps.append, self.said.append, clock=lambda: self.now)
        )
        self.check()

    def _ask(self) -> dict[str, Grant]:
        if self.error is not None:
            raise self.error
        return dict(self.grants)

    def check(self) -> ReplayId:
        """Let the time of the next check come; return the stream's position."""
        self.now += CHECK_EVERY
        position = ReplayId(int(self.now).to_bytes(8, "big"))
        self.watch.advance(position)

        def has_ended() -> bool:
            self.watch.advance(position)
            return self.watch._running is None

        until(has_ended, "the check")
        return position


@pytest.fixture
def run():
    """A run of the command whose user has every right."""
    with ExitStack() as opened:
        yield Run(opened)


def test_a_right_that_is_withdrawn_is_one_gap(run: Run):
    """The gap names the object, and begins at the last check that was good. The user is told what
    to grant, and when the right is back.
    """
    good = run.check()
    run.grants["Account"] = Grant()
    lost = run.check()
    run.check()
    assert run.gaps == [Gap("rights", NAME, good, lost, entity="Account")]
    assert "grant the user View All" in run.said[0]
    run.grants["Account"] = Grant.of(["2"])
    run.check()
    assert "may see every record of Account again" in run.said[1]
    assert (len(run.gaps), len(run.said)) == (1, 2)


def test_a_right_that_was_given_again_between_two_checks_is_a_gap(run: Run):
    """A right with another identity was withdrawn in the meantime."""
    run.grants["Case"] = Grant.of(["2"])
    run.check()
    assert [gap.entity for gap in run.gaps] == ["Case"]
    run.check()
    assert len(run.gaps) == 1


def test_a_right_that_is_missing_at_the_start_is_a_gap():
    """Nothing is known about the time before, so the gap has no positions."""
    with ExitStack() as opened:
        run = Run(opened)
        run.grants["Lead"] = Grant()
        run.check()
        run.check()
        assert run.gaps == [Gap("rights", NAME, entity="Lead")]


def test_a_check_that_fails_concludes_nothing(run: Run, caplog: pytest.LogCaptureFixture):
    """The reason is logged once."""
    run.error = PermissionDeniedError("no")
    run.check()
    run.check()
    assert run.gaps == []
    assert [record.message.count("cannot check") for record in caplog.records] == [1]


@pytest.mark.parametrize("name", ["Account", "Order__c"])
def test_an_object_has_one_event_type(name: str):
    """The name of an object and of its event type determine each other."""
    assert object_of(event_of(name)) == name


def test_the_objects_are_those_that_the_source_delivers(run_emulator):
    """The object of its topic, the members of its channel, or none for platform events."""
    emulator = run_emulator()
    session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
    emulator.managed.create("Changes", NAME)

    def objects(kind: str, name: str) -> set[str]:
        source = Source(kind, name)  # type: ignore[arg-type]
        grants = OrgGrants(CurrentSession(session), HttpClient(), source)()
        assert all(grants.values())
        return set(grants)

    members = emulator.event_channels.members("ChangeEvents")
    assert objects("topic", "/data/AccountChangeEvent") == {"Account"}
    assert objects("topic", NAME) == {object_of(each.entity) for each in members}
    assert objects("managed", "Changes") == objects("topic", NAME)
    assert objects("managed", "My_Managed_Subscription") == set()
