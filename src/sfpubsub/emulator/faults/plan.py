"""Fault plans: the failures that a test schedules, and how many times each occurred.

A test adds faults to a plan, runs the client, and then asserts that each fault occurred; a test
whose fault never occurred proves nothing. The behaviour of a fault is implemented where it occurs,
in the packages `org`, `grpc` and `http`; `kinds` lists the kinds and their parameters. Unknown
kinds and parameters raise an error when the fault is created, not when it would occur.

A fault of an immediate kind (`Kind.acts`) takes effect when it is added. It is counted each time a
client encounters its effect, so the count can exceed `times`, and stays at 0 if no client
encounters the effect.
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
from sfpubsub.emulator.faults.signin_errors import SIGN_IN_ERRORS, sign_in_error


@dataclass(frozen=True, init=False)
class Fault:
    """One failure to inject.

    Args:
        kind: Key of `KINDS`.
        times: How many times the fault occurs. For an immediate kind: the minimum number of times
            that clients must encounter the effect before the fault counts as consumed.
        rpc: Restricts the fault to this RPC; None allows every RPC of the kind.
        target: Restricts the fault to this topic, or to the managed subscription with this
            developer name; None means any. The immediate kinds for managed subscriptions require
            a target; the other immediate kinds do not accept one.
        **params: Values of the kind's parameters; those not given have their defaults.

    Raises:
        ValueError: The kind, the RPC or a parameter is unknown, a value is not valid, or the kind
            requires a target or does not accept one.
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
            raise ValueError(f"unknown fault {kind!r}; valid kinds are {', '.join(KINDS)}")
        if rpc is not None and rpc not in KINDS[kind].rpcs:
            raise ValueError(
                f"fault {kind} cannot occur in {rpc!r}; valid values of rpc are"
                f" {', '.join(KINDS[kind].rpcs) or '(none: omit rpc)'}"
            )
        if type(times) is not int or times < 1:
            raise ValueError(f"fault {kind}: times must be a whole number above 0, not {times!r}")
        if target is not None and not isinstance(target, str):
            raise ValueError(f"fault {kind}: target must be a name, not {target!r}")
        _check_target(kind, rpc, target)
        for name, value in params.items():
            _check(kind, name, value)
        if kind == "corrupt_id" and not params.get("replay_id"):
            raise ValueError("fault corrupt_id needs a replay_id, in hex")
        if kind == "refuse_sign_in":
            wanted = {**KINDS[kind].params, **params}
            sign_in_error(str(wanted["error"]), str(wanted["description"]))
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
        """Create a fault from a decoded JSON object, which contains the arguments of `Fault`.

        Raises:
            ValueError: The value is not a JSON object with the key `kind`, or an argument is not
                valid.
        """
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise ValueError(  # noqa: TRY004 - a value from outside, not a caller's mistake
                'a fault must be a JSON object with at least the key "kind"'
            )
        return cls(**value)


class FaultPlan:
    """The faults of one emulator, and how many times each occurred.

    Thread-safe. If several faults match, the one that was added first occurs.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        # Held while a fault is added and applied; acquired before _lock.
        self._adding = threading.RLock()
        self._lock = threading.Lock()  # guards the fields below
        self._entries: list[_Entry] = []
        self._open: dict[str, list[_Entry]] = {}  # faults that can still occur, by kind
        self._on_add: list[Callable[[], None]] = []
        self._act: Callable[[Fault], None] | None = None
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> int:
        """Add a fault. A fault of an immediate kind takes effect before this method returns.

        Returns:
            The fault's number in the plan, starting from 0.

        Raises:
            ValueError: The event, record or managed subscription that the fault would change does
                not exist; the plan is unchanged.
        """
        entry = _Entry(fault)
        with self._adding:
            # Add it before it takes effect, so that `met` also counts the first client.
            with self._lock:
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
        """Disable a fault. Its count stays in the report, and the fault counts as consumed.

        Args:
            number: The fault's number, as returned by `add`.

        Raises:
            ValueError: There is no such fault, it is no longer active, or its kind is immediate.
        """
        with self._lock:
            if not 0 <= number < len(self._entries):
                count = len(self._entries)
                raise ValueError(
                    f"there is no fault {number}: the plan has {count} "
                    f"fault{'s' * (count != 1)}, numbered from 0"
                )
            entry = self._entries[number]
            if KINDS[entry.fault.kind].acts:
                raise ValueError(
                    f"fault {number}, {entry.fault.kind}, has already taken effect "
                    f"and cannot be undone"
                )
            if entry not in self._open[entry.fault.kind]:
                raise ValueError(
                    f"fault {number}, {entry.fault.kind}, is no longer active: it has occurred as"
                    " many times as planned, or was switched off"
                )
            self._open[entry.fault.kind].remove(entry)
            entry.off = entry.happened < entry.fault.times

    def carry_out_by(self, act: Callable[[Fault], None]) -> None:
        """Set the function that applies faults of immediate kinds. If the plan already contains
        such faults, apply them.

        Raises:
            ValueError: The event, record or managed subscription that one of these faults would
                change does not exist.
        """
        with self._adding:
            self._act = act
            with self._lock:
                waiting = [entry.fault for entry in self._entries if KINDS[entry.fault.kind].acts]
            for fault in waiting:
                act(fault)

    def on_add(self, listener: Callable[[], None]) -> None:
        """Register a function to call after a fault is added, so that waiting streams notice it."""
        with self._lock:
            self._on_add.append(listener)

    def take(
        self, kind: str, rpc: str, target: str | None = None, *, responses: int = 0
    ) -> Fault | None:
        """Consume one occurrence of a matching fault.

        Args:
            kind: The kind of fault that the caller implements at this point.
            rpc: The RPC in progress.
            target: Topic or managed subscription of the call; None if unknown.
            responses: Number of responses that the stream has sent; used by the kinds that have the
                parameter `after_responses`.

        Returns:
            The fault that occurs now, or None if no fault matches.
        """
        if not self._open.get(kind):  # the usual case, on a hot path
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
        """Return the fault that `take` would consume for a call that has no target and has sent no
        responses, but do not consume it. Return None if no fault matches.
        """
        with self._lock:
            return next(
                (item.fault for item in self._open.get(kind, []) if item.fits(rpc, None, 0)), None
            )

    def met(self, fault: Fault | None) -> None:
        """Add 1 to the count of a fault whose effect a client encountered. None and faults that are
        not in the plan are ignored.
        """
        with self._lock:
            own = [entry for entry in self._entries if entry.fault is fault]
            if own:
                # A fault that was added twice has two entries, which share the counts evenly.
                min(own, key=lambda entry: entry.happened).happened += 1

    def report(self) -> list[dict[str, Any]]:
        """Return each fault with its arguments and its count, for display and JSON."""
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
        """Check that every fault occurred as many times as planned, or was switched off.

        Raises:
            AssertionError: At least one fault occurred fewer times than planned. The message lists
                these faults.
        """
        left = [row for row in self.report() if row["happened"] < row["times"] and not row["off"]]
        if left:
            raise AssertionError(f"these faults occurred fewer times than planned: {left}")


@dataclass(eq=False)
class _Entry:
    fault: Fault
    happened: int = field(default=0)
    off: bool = field(default=False)
    """Whether the fault was switched off before it had occurred as many times as planned."""

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
        raise ValueError(f"fault {kind} affects the sign-ins of all clients: omit the target")
    elif target is not None and KINDS[kind].acts:
        raise ValueError(f"fault {kind} affects the whole org: omit the target")
    elif target is not None and kind in AT_START and rpc in (None, *OPENED_LATER):
        raise ValueError(
            f"fault {kind} can have a target only if rpc is Publish, GetTopic or GetSchema, "
            f"not {rpc!r}"
        )


def _check(kind: str, name: str, value: object) -> None:
    params = KINDS[kind].params
    if name not in params:
        raise ValueError(
            f"fault {kind}: valid parameters are {', '.join(params) or '(none)'}, not {name!r}"
        )
    wanted = type(params[name])
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    if not fits or (isinstance(value, (int, float)) and not value >= 0):
        raise ValueError(
            f"fault {kind}: {value!r} is not a valid value for {name}: see the output of"
            " sfpubsub emulator faults kinds"
        )
    allowed = _ALLOWED.get(name)
    if allowed is not None and not allowed(kind, value):
        raise ValueError(
            f"fault {kind}: {value!r} is not a valid value for {name}: see the output of"
            " sfpubsub emulator faults kinds"
        )


def _is_hex(value: str) -> bool:
    try:
        return bytes.fromhex(value).hex() == value.lower()
    except ValueError:
        return False


def _statuses(kind: str) -> frozenset[str]:
    if "error_code" in KINDS[kind].params:
        return STATUSES | {""}  # blank: use the status in `FAILURES`
    if kind in ("drop_call", "lose_answer"):
        return STATUSES | {"RESET"}  # a unary call cannot succeed without a response
    return STATUSES | {"RESET", "OK"}


_HTTP_FAILURES = frozenset({400, 401, 403, 404, 500, 502, 503, 504})
"""HTTP statuses of an HTML error page."""

_FAR = 1_000_000
"""Maximum number of positions by which one keepalive can be ahead: the events of a busy hour in a
large org. It is small compared with 2**53, the upper bound of positions.
"""

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
    "state": lambda _, value: value in ("Failed", "Aborted"),
    "advance": lambda _, value: value <= _FAR,
}
"""Functions that check the value of a parameter, by parameter name. The type is checked as well."""
