"""Pictures and tables of the architecture, drawn from the code's own tables.

Pictures are SVG within the page: they load nothing, and take the page's colours, light or dark.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from html import escape
from pathlib import Path

from sfpubsub.protocol.states import TRANSITIONS, Signal, State

# Where each state stands in the picture, as column and row; what moves where is read from the code.
PLACES = {
    State.NEW: (0.0, 1.0),
    State.OPENING: (1.0, 1.0),
    State.STREAMING: (2.8, 1.0),
    State.WAITING: (1.0, 0.0),
    State.RENEWING: (2.8, 0.0),
    State.PAUSED: (1.9, 1.5),
    State.DRAINING: (2.8, 2.1),
    State.CLOSING: (1.0, 2.1),
    State.CLOSED: (0.0, 2.1),
}
# Pixels between columns and between rows, and of half a box.
COLUMN, ROW, HALF_WIDTH, HALF_HEIGHT = 210, 150, 52, 18
# Only in the table: what ends a subscription from every state, or from every one without a stream.
AT_ONCE = frozenset({Signal.ABORT, Signal.FATAL, Signal.DRAIN})


def states() -> str:
    """Return the life of a subscription: a picture, and the table that it is drawn from."""
    return f"{_picture_of_states()}\n\n{_table_of_states()}"


def _table_of_states() -> str:
    columns = [state for state in State if TRANSITIONS[state]]
    lines = [
        "| " + " | ".join(["signal", *(f"in *{state.value}*" for state in columns)]) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for signal in Signal:
        cells = [
            TRANSITIONS[state][signal].value if signal in TRANSITIONS[state] else ""
            for state in columns
        ]
        lines.append(f"| **{signal.value}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def _picture_of_states() -> str:
    edges: dict[tuple[State, State], list[str]] = {}
    for state, row in TRANSITIONS.items():
        for signal, after in row.items():
            # SAVE and SAVING, a last stream for the last commit, would cross all the others.
            ends = after is State.CLOSED and signal in AT_ONCE
            if state is not after and not ends and signal is not Signal.SAVE and state in PLACES:
                edges.setdefault((state, after), []).append(signal.value)
    drawn = [
        *(_arrow(_place(a), _place(b), signals) for (a, b), signals in edges.items()),
        *(_box(*_place(state), HALF_WIDTH, state.value) for state in PLACES),
    ]
    return _svg(
        (2.8 + 0.62) * COLUMN,
        (2.1 + 0.8) * ROW,
        drawn,
        "States of a subscription and signals between them; the table below has all of them.",
    )


def _place(state: State) -> tuple[float, float]:
    column, row = PLACES[state]
    return (column + 0.3) * COLUMN, (row + 0.35) * ROW


def _box(x: float, y: float, half: float, text: str) -> str:
    return (
        f'<rect x="{x - half:.0f}" y="{y - HALF_HEIGHT:.0f}" width="{2 * half:.0f}" '
        f'height="{2 * HALF_HEIGHT}" rx="6" class="box"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" class="name">{escape(text)}</text>'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], words: list[str]) -> str:
    """Return a bent arrow from box to box, which leaves room for one the other way."""
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    bend = 0.13 * length + 6
    middle = (x0 + x1) / 2 - (y1 - y0) / length * bend, (y0 + y1) / 2 + (x1 - x0) / length * bend
    (ax, ay), (bx, by) = _edge(start, middle), _edge(end, middle)
    # A point of the curve, nearer to its start: crossing ways have their words apart.
    parts = (0.64 * 0.64, 2 * 0.36 * 0.64, 0.36 * 0.36)
    label_x = parts[0] * ax + parts[1] * middle[0] + parts[2] * bx
    label_y = parts[0] * ay + parts[1] * middle[1] + parts[2] * by
    texts = "".join(
        f'<tspan x="{label_x:.0f}" dy="{12 if number else 0}">{escape(word)}</tspan>'
        for number, word in enumerate(words)
    )
    return (
        f'<path d="M{ax:.0f},{ay:.0f} Q{middle[0]:.0f},{middle[1]:.0f} {bx:.0f},{by:.0f}" '
        'class="way" marker-end="url(#head)"/>'
        f'<text x="{label_x:.0f}" y="{label_y + 4 - 6 * (len(words) - 1):.0f}" class="label">'
        f"{texts}</text>"
    )


def _edge(box: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Return where the line from a box's middle leaves it, two pixels outside."""
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    part = min(
        (HALF_WIDTH + 2) / abs(dx) if dx else math.inf,
        (HALF_HEIGHT + 2) / abs(dy) if dy else math.inf,
    )
    return box[0] + dx * part, box[1] + dy * part


def _svg(width: float, height: float, drawn: Iterable[str], title: str) -> str:
    return (
        f'<svg class="drawing" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title>"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" class="head"/></marker></defs>'
        + "".join(drawn)
        + "</svg>"
    )


def layers(file: Path) -> str:
    """Return the layer map: a picture, lowest layer at the foot, and a table of what may be used.

    Args:
        file: The test that checks the map, and has it as data.
    """
    may_import = _assigned(file, "MAY_IMPORT")
    height: dict[str, int] = {}

    def climb(name: str) -> int:
        if name not in height:
            used = may_import.get(name, set()) & may_import.keys()
            height[name] = 1 + max(map(climb, used), default=-1)
        return height[name]

    for name in may_import:
        climb(name)
    top = max(height.values())
    drawn = []
    for level in range(top + 1):
        row = sorted(name for name, found in height.items() if found == level)
        for place, name in enumerate(row):
            x = (place + 0.5) * 760 / len(row)
            drawn.append(_box(x, (top - level) * 56 + 24, 380 / len(row) - 5, name))
    picture = _svg(760, top * 56 + 48, drawn, "The packages in layers, as in the table below.")
    lines = ["| package | may import |", "|---|---|"]
    for name in sorted(may_import, key=lambda each: (height[each], each)):
        used = ", ".join(f"`{each}`" for each in sorted(may_import[name]))
        lines.append(f"| `{name}` | {used or 'none of the others'} |")
    return f"{picture}\n\n" + "\n".join(lines)


def _assigned(file: Path, name: str) -> dict[str, set[str]]:
    """Return a dict of sets of names that a module assigns, without importing the module."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            (target,) = node.targets
            if isinstance(target, ast.Name) and target.id == name:
                return {
                    ast.literal_eval(key): set()
                    if isinstance(value, ast.Call)  # set() is the empty one
                    else ast.literal_eval(value)
                    for key, value in zip(node.value.keys, node.value.values, strict=True)
                    if key is not None
                }
    raise LookupError(f"{file} assigns no {name}")
