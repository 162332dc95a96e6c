"""Applies faults that change the org immediately (`Kind.acts`), with one function for each kind.

The effects are implemented in `sessions`, `positions`, `managed` and `records`. These modules
receive the fault, so that they can count the clients that encounter its effect.
"""

from __future__ import annotations

from collections.abc import Callable

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.managed import ManagedSubscriptions
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.sessions import Sessions


def actor(
    bus: Bus, managed: ManagedSubscriptions, sessions: Sessions, records: Records
) -> Callable[[Fault], None]:
    """Return the function for `FaultPlan.carry_out_by`. It applies a fault, and raises ValueError
    if the event, record or managed subscription that the fault would change does not exist.
    """
    acts: dict[str, Callable[[Fault], None]] = {
        "expire_token": lambda fault: sessions.end_all(expired=True, cause=fault),
        "revoke_token": lambda fault: sessions.end_all(expired=False, cause=fault),
        "corrupt_id": lambda fault: bus.corrupt(bytes.fromhex(fault.params["replay_id"]), fault),
        "age_out": lambda fault: bus.age_out(
            bytes.fromhex(fault.params["replay_id"]) or None, fault
        ),
        "reset_stream": bus.reset,
        "move_org": lambda fault: _move(bus, records, fault),
        "purge_record": lambda fault: records.purge(str(fault.params["record_id"]), fault),
        "stop_managed": lambda fault: managed.set_state(str(fault.target), "STOP", fault),
        "delete_managed": lambda fault: managed.delete(str(fault.target), fault),
    }

    def act(fault: Fault) -> None:
        try:
            acts[fault.kind](fault)
        except KeyError as error:
            raise ValueError(
                f"fault {fault.kind}: there is no managed subscription {fault.target!r}: set the"
                " target to the name of an existing one"
            ) from error

    return act


def _move(bus: Bus, records: Records, fault: Fault) -> None:
    bus.move(fault)
    records.publishing.move()
