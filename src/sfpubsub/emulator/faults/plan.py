"""Programmed failures: data, counted, and meant to be used up.

A test adds faults to a plan, runs, and asks the plan whether each of them happened; a test whose
fault never fired proves nothing. What a fault does is written where it happens (stream,
managed_stream, managed, servicer, org_faults); which kinds exist and what they take is in
fault_kinds. Unknown kinds and parameters are refused when a fault is made, not ignored when it
would be hit.

A fault that acts is carried out when it is added. It counts each time a client meets what it did,
so its number can exceed `times`; what was done and never noticed has not happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from sfpubsub.emulator.faults.kinds import (
    AT_START,
    KINDS,
    OF_A_SUBSCRIPTION,
    OPENED_LATER,
    AnswerTip,
)
from sfpubsub.emulator.faults.refusals import FAILURES, STATUSES
from sfpubsub.emulator.faults.signin_errors import SIGN_IN_ERRORS


@dataclass(frozen=True, init=False)
class Fault:
    """One programmed failure.

    Args:
        kind: Key of `KINDS`.
        times: How often it happens; the plan is consumed when all have happened. For a kind that
            acts: how often clients must meet it, at least.
        rpc: Only in this RPC; None is any that the kind allows.
        target: Only for this topic, or this managed subscription by developer name; None is any.
            Of the kinds that act, those of a managed subscription need it, the others have none.
        **params: What the kind takes.

    Raises:
        ValueError: Unknown kind, RPC or parameter, or a value that cannot be.
    """

    kind: str
    times: int
    rpc: str | None
    target: str | None
    params: Mapping[str, Any]

    def __init__(
        self,
        kind: str,
        *,
        times: int = 1,
        rpc: str | None = None,
        target: str | None = None,
        **params: object,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown fault {kind!r}; known are {', '.join(KINDS)}")
        if rpc is not None and rpc not in KINDS[kind].rpcs:
            raise ValueError(f"fault {kind} cannot happen in {rpc!r}")
        if type(times) is not int or times < 1:
            raise ValueError(f"fault {kind}: times must be a whole number above 0, not {times!r}")
        if target is not None and not isinstance(target, str):
            raise ValueError(f"fault {kind}: target must be a name, not {target!r}")
        _check_target(kind, rpc, target)
        for name, value in params.items():
            _check(kind, name, value)
        if kind == "corrupt_id" and not params.get("replay_id"):
            raise ValueError("fault corrupt_id needs a replay_id, in hex")
        values = {
            "kind": kind,
            "times": times,
            "rpc": rpc,
            "target": target,
            "params": {**KINDS[kind].params, **params},
        }
        for name, value in values.items():  # the dataclass is frozen
            object.__setattr__(self, name, value)

    @classmethod
    def from_json(cls, value: object) -> Fault:
        """A fault from a decoded JSON object whose members are the arguments of this class.

        Raises:
            ValueError: It is not such an object.
        """
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise ValueError(  # noqa: TRY004 - a value from outside, not a caller's mistake
                "a fault is a JSON object with at least a kind"
            )
        return cls(**value)


class FaultPlan:
    """The faults of one emulator, and what has become of them.

    Thread-safe. A fault is consumed in the order of its addition: of two that fit, the older
    happens.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._adding = threading.RLock()  # held over an addition and what it does; before _lock
        self._lock = threading.Lock()  # guards what is below
        self._entries: list[_Entry] = []
        self._open: dict[str, list[_Entry]] = {}  # those that can still happen, by kind
        self._on_add: list[Callable[[], None]] = []
        self._act: Callable[[Fault], None] | None = None
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> int:
        """Add a fault; it can happen from now on. One that acts is carried out before this returns.

        Returns:
            Its number in the plan.

        Raises:
            ValueError: It acts, and what it names does not exist; then it is not in the plan.
        """
        entry = _Entry(fault)
        with self._adding:
            with self._lock:  # before it acts, so that a caller that meets it finds it
                self._entries.append(entry)
                number = len(self._entries) - 1
                if not KINDS[fault.kind].acts:
                    self._open.setdefault(fault.kind, []).append(entry)
            if KINDS[fault.kind].acts and self._act is not None:
                try:
                    self._act(fault)
                except ValueError:
                    with self._lock:
                        self._entries.pop()
                    raise
        with self._lock:
            listeners = list(self._on_add)
        for listener in listeners:
            listener()
        return number

    def switch_off(self, number: int) -> None:
        """Have a fault happen no more; how often it did stays in the report, and is enough.

        Args:
            number: Its number in the plan.

        Raises:
            ValueError: There is no such fault, or nothing of it is left to happen.
        """
        with self._lock:
            if not 0 <= number < len(self._entries):
                raise ValueError(f"there is no fault {number}; the plan has {len(self._entries)}")
            entry = self._entries[number]
            if KINDS[entry.fault.kind].acts:
                raise ValueError(f"fault {number}, {entry.fault.kind}, was done and stays done")
            if entry not in self._open[entry.fault.kind]:
                raise ValueError(f"fault {number}, {entry.fault.kind}, is off already")
            self._open[entry.fault.kind].remove(entry)
            entry.off = entry.happened < entry.fault.times

    def carry_out_by(self, act: Callable[[Fault], None]) -> None:
        """Give faults that act someone to carry them out; those that wait are done now.

        Raises:
            ValueError: As `add`, for one that waited.
        """
        with self._adding:
            self._act = act
            with self._lock:
                waiting = [entry.fault for entry in self._entries if KINDS[entry.fault.kind].acts]
            for fault in waiting:
                act(fault)

    def on_add(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each addition, so that waiting streams look again."""
        with self._lock:
            self._on_add.append(listener)

    def take(
        self, kind: str, rpc: str, target: str | None = None, *, responses: int = 0
    ) -> Fault | None:
        """Consume one occurrence of a fault that fits, if there is one.

        Args:
            kind: What could happen now.
            rpc: In which RPC.
            target: Its topic or managed subscription, where known.
            responses: What the stream has sent so far, for kinds with `after_responses`.
        """
        if not self._open.get(kind):  # nearly always, and asked for each response several times
            return None
        with self._lock:
            entries = self._open[kind]
            for entry in entries:
                if entry.fits(rpc, target, responses):
                    entry.happened += 1
                    if entry.happened == entry.fault.times:
                        entries.remove(entry)
                    return entry.fault
        return None

    def next(self, kind: str, rpc: str) -> Fault | None:
        """The fault that `take` would consume; it stays."""
        with self._lock:
            return next(
                (item.fault for item in self._open.get(kind, []) if item.fits(rpc, None, 0)), None
            )

    def met(self, fault: Fault | None) -> None:
        """Count that a client met what a fault did; None, and faults of no plan, do not count."""
        with self._lock:
            own = [entry for entry in self._entries if entry.fault is fault]
            if own:  # the same fault may have been added twice
                min(own, key=lambda entry: entry.happened).happened += 1

    def report(self) -> list[dict[str, Any]]:
        """Each fault with its arguments and how often it happened, for display and JSON."""
        with self._lock:
            return [
                {
                    "kind": entry.fault.kind,
                    "rpc": entry.fault.rpc,
                    "target": entry.fault.target,
                    "times": entry.fault.times,
                    "happened": entry.happened,
                    "off": entry.off,
                    **entry.fault.params,
                }
                for entry in self._entries
            ]

    def assert_consumed(self) -> None:
        """Pass only if every fault happened as often as planned, or was switched off.

        Raises:
            AssertionError: Names each fault that did not.
        """
        left = [row for row in self.report() if row["happened"] < row["times"] and not row["off"]]
        if left:
            raise AssertionError(f"faults that did not happen: {left}")


@dataclass(eq=False)
class _Entry:
    fault: Fault
    happened: int = field(default=0)
    off: bool = field(default=False)
    """Whether it was switched off before it had happened as often as planned."""

    def fits(self, rpc: str, target: str | None, responses: int) -> bool:
        fault = self.fault
        return (
            rpc in KINDS[fault.kind].rpcs
            and fault.rpc in (None, rpc)
            and fault.target in (None, target)
            and responses >= fault.params.get("after_responses", 0)
        )


def _check_target(kind: str, rpc: str | None, target: str | None) -> None:
    if kind in OF_A_SUBSCRIPTION:
        if target is None:
            raise ValueError(f"fault {kind} needs a target: a managed subscription's name")
    elif target is not None and kind == "refuse_sign_in":
        raise ValueError(f"fault {kind} happens to the next call of any client: it takes no target")
    elif target is not None and KINDS[kind].acts:
        raise ValueError(f"fault {kind} concerns the whole org: it has no target")
    elif target is not None and kind in AT_START and rpc in (None, *OPENED_LATER):
        raise ValueError(f"fault {kind}: a target needs the rpc of a unary call, not {rpc!r}")


def _check(kind: str, name: str, value: object) -> None:
    params = KINDS[kind].params
    if name not in params:
        raise ValueError(f"fault {kind} takes {', '.join(params) or 'nothing'}, not {name!r}")
    wanted = type(params[name])
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    if not fits or (isinstance(value, (int, float)) and not value >= 0):
        raise ValueError(f"fault {kind}: {name} cannot be {value!r}")
    allowed = _ALLOWED.get(name)
    if allowed is not None and not allowed(kind, value):
        raise ValueError(f"fault {kind}: {name} cannot be {value!r}")


def _is_hex(value: str) -> bool:
    try:
        return bytes.fromhex(value).hex() == value.lower()
    except ValueError:
        return False


def _statuses(kind: str) -> frozenset[str]:
    if "error_code" in KINDS[kind].params:
        return STATUSES | {""}  # blank is the status of the row
    if kind in ("drop_call", "lose_answer"):
        return STATUSES | {"RESET"}  # a unary call cannot end well without a result
    return STATUSES | {"RESET", "OK"}


_HTTP_FAILURES = frozenset({400, 401, 403, 404, 500, 502, 503, 504})
"""Statuses of a page instead of an answer."""

_FAR = 1_000_000
"""Positions that one keepalive can run ahead: a busy hour of a large org. Ids end at 2**53."""

_ALLOWED: dict[str, Callable[[str, Any], bool]] = {
    "error": lambda _, value: value in {error for error, _ in SIGN_IN_ERRORS.values()},
    "error_code": lambda _, value: value in FAILURES,
    "status": lambda kind, value: (
        value in (_HTTP_FAILURES if kind == "answer_with_page" else _statuses(kind))
    ),
    "tip": lambda _, value: value in get_args(AnswerTip),
    "replay_id": lambda _, value: _is_hex(value),
    "events": lambda _, value: value >= 1,
    "reconnect": lambda _, value: value in ("", "retry", "handshake", "none"),
    "text": lambda _, value: bool(value),
    "advance": lambda _, value: value <= _FAR,
}
"""What a parameter can be, besides being of its type."""
