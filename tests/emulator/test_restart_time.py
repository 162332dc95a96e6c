"""Tests that the org's clock does not go back when an emulator is started again."""

from __future__ import annotations

from sfpubsub.emulator.org.clock import Clock, ManualClock
from sfpubsub.emulator.server import EmulatorServer

from .support import ACCOUNTS, ORDERS

YEAR_S = 365 * 86400.0


def times(emulator: EmulatorServer) -> list[float]:
    """Return the publication times of the retained orders."""
    return [at for _, at in emulator.bus.times_after(emulator.bus.topic(ORDERS), 0, 10)]


def test_a_restart_keeps_the_jumps_of_the_clock(tmp_path):
    """After a jump and a restart, the clock shows no time before the newest stored one, and a new
    change event is not older than an earlier one.
    """
    stamps = []
    for _ in range(2):
        with EmulatorServer(tmp_path) as emulator:
            if not stamps:
                emulator.clock.jump(YEAR_S)
            user = emulator.accounts.holder("")
            emulator.records.create("Account", {"Name": "x"}, user, "")
            (event, at), *_ = emulator.bus.newest(emulator.bus.topic(ACCOUNTS), 1)
            header = emulator.bus.schema(event.schema_id).decode(event.payload)["ChangeEventHeader"]
            stamps += [at, header["commitTimestamp"] / 1000 + 0.001]
    assert stamps == sorted(stamps)
    assert 0 <= emulator.clock.jumped - YEAR_S < 1


def test_a_machine_clock_that_was_set_back_does_not_set_back_the_org(tmp_path):
    """If the machine's clock shows an earlier time at the next start, the org's clock continues
    from the newest stored event.
    """
    with EmulatorServer(tmp_path, clock=ManualClock(2_000_000_000.0)) as emulator:
        emulator.publish(ORDERS, [{"Order_Number__c": "1"}])
    with EmulatorServer(tmp_path, clock=ManualClock(1_900_000_000.0)) as emulator:
        assert emulator.clock.now() == 2_000_000_000.0
        emulator.publish(ORDERS, [{"Order_Number__c": "2"}])
        assert times(emulator) == [2_000_000_000.0] * 2


def test_a_clock_that_outlives_an_emulator_can_jump(tmp_path):
    """A clock can jump after its emulator has stopped, and its jumps are not added twice."""
    clock = ManualClock()
    with EmulatorServer(tmp_path, clock=clock):
        clock.jump(10)
    clock.jump(5)
    with EmulatorServer(tmp_path, clock=clock):
        assert clock.jumped == 15
    assert Clock().jumped == 0
