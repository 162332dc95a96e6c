"""Programmed failures: data, counted, and meant to be used up.

A test adds faults to a plan, runs, and asks the plan whether each of them happened; a test whose
fault never fired proves nothing. What a fault does is written where it happens (stream,
managed_stream, managed, servicer); this module knows only which kinds exist and what they take.
Unknown kinds and parameters are refused when a fault is made, not ignored when it would be hit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sfpubsub.emulator.failures import FAILURES, STATUSES

RPCS = ("Subscribe", "GetSchema", "GetTopic", "Publish", "PublishStream", "ManagedSubscribe")
"""In the order of the proto."""

_STREAMS = ("Subscribe", "ManagedSubscribe")
_MANAGED = ("ManagedSubscribe",)

_AT_START = ("refuse", "drop_call")
_OPENED_LATER = (*_STREAMS, "PublishStream")
"""At the start of a stream its target is not known yet: faults there cannot name one."""


@dataclass(frozen=True)
class Kind:
    """What one kind of fault takes.

    Attributes:
        rpcs: Where it can happen.
        params: Parameter names and defaults; the type of a default is the type of the parameter.
        text: What it does, for the docs and the admin endpoint.
    """

    rpcs: tuple[str, ...]
    params: Mapping[str, object]
    text: str


KINDS: dict[str, Kind] = {
    "refuse": Kind(
        RPCS,
        {"error_code": "service.unavailable", "status": ""},
        "End a call at its start with an error code (suffix) and, if given, another status.",
    ),
    "drop_call": Kind(
        RPCS,
        {"status": "UNAVAILABLE"},
        "End a call at its start as the infrastructure would: no trailers. RESET cuts the stream.",
    ),
    "drop_stream": Kind(
        _STREAMS,
        {"after_responses": 0, "status": "UNAVAILABLE"},
        "End a stream once it has sent that many responses, without trailers. OK ends it cleanly, "
        "RESET cuts the HTTP/2 stream.",
    ),
    "fail_stream": Kind(
        _STREAMS,
        {"after_responses": 0, "error_code": "service.unavailable", "status": ""},
        "End a stream once it has sent that many responses, with an error code.",
    ),
    "drop_before_commit_answer": Kind(
        _MANAGED,
        {"status": "UNAVAILABLE"},
        "Accept a commit durably, then end the stream instead of answering.",
    ),
    "fail_commit": Kind(
        _MANAGED,
        {"message": "The commit failed."},
        "Answer a commit with an error; the committed position stays.",
    ),
    "leave_commit_unanswered": Kind(
        _MANAGED, {}, "Accept a commit durably and never answer it; the stream goes on."
    ),
    "coalesce_commits": Kind(
        _MANAGED,
        {"count": 2, "within_s": 5.0},
        "Hold answers until that many commits wait, or for that long, then answer all at once.",
    ),
    "hold_slot": Kind(
        _MANAGED,
        {"seconds": 1.0},
        "Keep the slot of a managed subscription that long after its stream has ended.",
    ),
    "withhold_keepalive": Kind(
        _STREAMS, {}, "Send nothing when a keepalive is due; each one left out counts."
    ),
}
"""The kinds, by name."""


@dataclass(frozen=True, init=False)
class Fault:
    """One programmed failure.

    Args:
        kind: Key of `KINDS`.
        times: How often it happens; the plan is consumed when all have happened.
        rpc: Only in this RPC; None is any that the kind allows.
        target: Only for this topic, or this managed subscription by developer name; None is any.
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
        if target is not None and kind in _AT_START and rpc in (None, *_OPENED_LATER):
            raise ValueError(f"fault {kind}: a target needs the rpc of a unary call, not {rpc!r}")
        for name, value in params.items():
            _check(kind, name, value)
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
        self._lock = threading.Lock()  # guards _entries and their counts
        self._entries: list[_Entry] = []
        self._on_add: list[Callable[[], None]] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> int:
        """Add a fault; it can happen from now on.

        Returns:
            Its number in the plan.
        """
        with self._lock:
            self._entries.append(_Entry(fault))
            number = len(self._entries) - 1
            listeners = list(self._on_add)
        for listener in listeners:
            listener()
        return number

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
        with self._lock:
            for entry in self._entries:
                if entry.fits(kind, rpc, target, responses):
                    entry.happened += 1
                    return entry.fault
        return None

    def report(self) -> list[dict[str, Any]]:
        """Each fault with its arguments and how often it happened, for people and JSON."""
        with self._lock:
            return [
                {
                    "kind": entry.fault.kind,
                    "rpc": entry.fault.rpc,
                    "target": entry.fault.target,
                    "times": entry.fault.times,
                    "happened": entry.happened,
                    **entry.fault.params,
                }
                for entry in self._entries
            ]

    def assert_consumed(self) -> None:
        """Pass only if every fault happened as often as planned.

        Raises:
            AssertionError: Names each fault that did not.
        """
        left = [row for row in self.report() if row["happened"] < row["times"]]
        if left:
            raise AssertionError(f"faults that did not happen: {left}")


@dataclass
class _Entry:
    fault: Fault
    happened: int = field(default=0)

    def fits(self, kind: str, rpc: str, target: str | None, responses: int) -> bool:
        fault = self.fault
        return (
            fault.kind == kind
            and self.happened < fault.times
            and rpc in KINDS[kind].rpcs
            and fault.rpc in (None, rpc)
            and fault.target in (None, target)
            and responses >= fault.params.get("after_responses", 0)
        )


def _check(kind: str, name: str, value: object) -> None:
    params = KINDS[kind].params
    if name not in params:
        raise ValueError(f"fault {kind} takes {', '.join(params) or 'nothing'}, not {name!r}")
    wanted = type(params[name])
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    if not fits or (isinstance(value, (int, float)) and not value >= 0):
        raise ValueError(f"fault {kind}: {name} cannot be {value!r}")
    if name == "error_code" and value not in FAILURES:
        raise ValueError(f"fault {kind}: unknown error_code {value!r}")
    if name == "status" and value not in _statuses(kind):
        raise ValueError(f"fault {kind}: unknown status {value!r}")


def _statuses(kind: str) -> frozenset[str]:
    if "error_code" in KINDS[kind].params:
        return STATUSES | {""}  # blank is the status of the row
    if kind == "drop_call":
        return STATUSES | {"RESET"}  # a unary call cannot end well without a result
    return STATUSES | {"RESET", "OK"}
