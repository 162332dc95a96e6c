"""The fault page. It lists the faults of the plan and how many times each has occurred. For each
kind of fault, it has a form that adds one to the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfpubsub.emulator.faults.kinds import KINDS, OF_A_SUBSCRIPTION, SIGN_IN, Kind
from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.http.exchange import Answer
from sfpubsub.emulator.page.live import Live, PageUpdate
from sfpubsub.emulator.page.markup import Markup, button, labelled, table, table_rows, tag
from sfpubsub.emulator.page.topics import stream
from sfpubsub.emulator.page.visit import Visit, back_to

PLACE = "/ui/faults"

_HEADS = ["Fault", "Where", "Happened", "Action"]
_ROWS = "plan"


def faults(visit: Visit) -> Answer:
    """GET /ui/faults: show the fault plan, and the forms to add faults."""
    return _page(visit, {}, "")


def add(visit: Visit) -> Answer:
    """POST /ui/faults: add a fault, or switch one off."""
    entered = visit.guard.form(visit.call)
    try:
        if "off" in entered:
            visit.world.faults.switch_off(_number_of(entered["off"]))
            return back_to(PLACE, "off")
        visit.world.faults.add(_fault(entered))
    except ValueError as error:
        return _page(visit, entered, str(error))
    return back_to(PLACE, "fault")


def live(visit: Visit) -> Answer:
    """GET /ui/faults/live: send the table of faults whenever it changes."""

    def look(_mark: str) -> PageUpdate:
        return PageUpdate({_ROWS: table_rows(_HEADS, _rows(visit))})

    return stream(Live(look, "", visit.world.bus.bells, ()))


def _page(visit: Visit, entered: Mapping[str, str], problem: str) -> Answer:
    return visit.page(
        "Faults",
        tag("h2", "The plan"),
        table("Faults and how many times each occurred", _HEADS, _rows(visit), _ROWS),
        tag("h2", "Add a fault"),
        *(_kind(visit, name, kind, entered) for name, kind in KINDS.items()),
        problem=problem,
        live=f"{PLACE}/live",
    )


def _rows(visit: Visit) -> list[list[str | Markup]]:
    rows: list[list[str | Markup]] = []
    report = visit.world.faults.report()
    for number, fault in reversed([*enumerate(report)]):
        places = [item for item in (fault.pop("rpc"), fault.pop("target")) if item]
        kind, happened, times, off = (
            fault.pop(key) for key in ("kind", "happened", "times", "off")
        )
        given = ", ".join(f"{name} {value}" for name, value in fault.items() if value != "")
        rows.append(
            [
                tag("span", tag("b", kind), f" {given}"),
                ", ".join(places) or "anywhere",
                f"{happened} of {times}",
                _switch(visit, number, kind) if happened < times and not off else "",
            ]
        )
    return rows


def _switch(visit: Visit, number: int, kind: str) -> Markup | str:
    if KINDS[kind].acts:  # it has taken effect and cannot be undone
        return ""
    return visit.form(
        PLACE, button("Switch off", name="off", value=number), label=f"Fault {number}, {kind}"
    )


def _number_of(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text[:80]!r} is not the number of a fault")
    return int(text[:9])


def _kind(visit: Visit, name: str, kind: Kind, entered: Mapping[str, str]) -> Markup:
    mine = entered.get("kind") == name
    values = entered if mine else {}
    controls = [_number(name, values)]
    if len(kind.rpcs) > 1:
        options = [tag("option", "any", value="")]
        options += [tag("option", rpc, selected=values.get("rpc") == rpc) for rpc in kind.rpcs]
        id_ = f"{name}-rpc"
        controls.append(labelled("in", tag("select", *options, id=id_, name="rpc"), id_))
    if name in OF_A_SUBSCRIPTION or (kind.rpcs and kind.rpcs != (SIGN_IN,)):
        hint = (
            "managed subscription"
            if name in OF_A_SUBSCRIPTION
            else "topic or subscription; blank for any"
        )
        controls.append(_text(name, "target", values.get("target", ""), hint))
    for parameter, default in kind.params.items():
        shown = values.get(f"p-{parameter}", _shown(default))
        controls.append(_text(name, parameter, shown, _HINTS.get(type(default), ""), "p-"))
    return tag(
        "details",
        tag("summary", tag("b", name), f" {kind.text}"),
        visit.form(
            PLACE,
            tag("input", type="hidden", name="kind", value=name),
            tag("div", *controls, class_="grid"),
            tag("p", button("Apply now" if kind.acts else "Switch on")),
            label=name,
        ),
        open=mine,
    )


_HINTS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def _number(name: str, values: Mapping[str, str]) -> Markup:
    return _text(name, "times", values.get("times", "1"), "how many times")


def _text(kind: str, name: str, value: str, hint: str, prefix: str = "") -> Markup:
    id_ = f"{kind}-{name}"
    control = tag("input", type="text", id=id_, name=prefix + name, value=value)
    return labelled(name, control, id_, hint)


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _fault(entered: Mapping[str, str]) -> Fault:
    """Return the fault that a form describes.

    Raises:
        ValueError: The kind is unknown, or a value is not valid.
    """
    kind = entered.get("kind", "")
    values: dict[str, Any] = {"times": _read(kind, "times", entered.get("times", "1"), 1)}
    for name in ("rpc", "target"):
        if entered.get(name, "").strip():
            values[name] = entered[name].strip()
    params = KINDS[kind].params if kind in KINDS else {}
    for name, default in params.items():
        if f"p-{name}" in entered:
            values[name] = _read(kind, name, entered[f"p-{name}"], default)
    return Fault(kind, **values)


def _read(kind: str, name: str, text: str, default: object) -> Any:
    """Convert the text of a form control to the type of the fault parameter's default.

    Raises:
        ValueError: The text is not a value of this type.
    """
    text = text.strip()
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, (int, float)):
            return type(default)(text)
    except (KeyError, ValueError) as error:
        hint = _HINTS[type(default)]
        raise ValueError(f"fault {kind}: {name} must be {hint}, not {text[:80]!r}") from error
    return text
