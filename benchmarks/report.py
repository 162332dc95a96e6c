"""Formats results as text tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Row, Spread, Verdict
from benchmarks.runs import MARKS, Run

RATIOS = ("bare", "good", "npm", "plain", "window", "alone", "against")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a text table with aligned columns; columns without any value are omitted."""
    kept = [n for n in range(len(head)) if any(line[n] for line in lines)]
    rows = [[line[n] for n in kept] for line in (head, *lines)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(kept))]
    texts = []
    for row in rows:
        cells = [
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def of_case(rows: Sequence[Row]) -> str:
    """Return the text table of a case's results."""
    several = {row.run.shape for row in rows}
    names = {row.variant for row in rows} - {"reference"}
    head = ["way", "shape", "of", "events/s", "CPU µs", *(f"/ {name}" for name in RATIOS)]
    head += ["against / CPU"]
    head += ["p50 ms", "p99 ms", "requests", "peak MB", "MB at 10^4, 10^5, 10^6"]
    lines = []
    for row in rows:
        line = [row.run.way, _shape(row.run) if len(several) > 1 else ""]
        line += [row.variant if len(names) > 1 and row.variant != "reference" else ""]
        line += [f"{row.speed.median:,.0f}", f"{row.cpu_us.median:.1f}"]
        line += [_ratio(row.ratios.get(name)) for name in RATIOS]
        line += [_ratio(row.cpu_ratios.get("against"))]
        line += [f"{ms:.2f}" for ms in row.latency_ms] if row.latency_ms else ["", ""]
        line += [f"{row.requests:.0f}", f"{row.peak_mb:.0f}"]
        line += [", ".join(f"{size:.1f}" for size in row.marks_mb.values())]
        lines.append(line)
    if not any(len(row.marks_mb) == len(MARKS) for row in rows):
        lines = [[*line[:-1], ""] for line in lines]
    return table(head, lines)


def of_targets(verdicts: Sequence[Verdict], *, is_busy: bool) -> str:
    """Return the text table of targets; on a busy machine, speeds are not marked as reached."""
    head = ["case", "ratio", "of", "2026-11-21", "target", "found", "", "by CPU"]
    words = {True: "reached", False: "NOT reached", None: ""}
    lines = [
        [
            verdict.case,
            verdict.what,
            verdict.variant,
            _number(verdict.before),
            _number(verdict.wanted),
            _ratio(verdict.found),
            "" if is_busy and verdict.is_of_speed else words[verdict.is_reached],
            _ratio(verdict.by_cpu),
        ]
        for verdict in verdicts
    ]
    return table(head, lines)


def _shape(run: Run) -> str:
    parts = [f"{run.size} per response"]
    if run.round_trip and run.streams == 1:
        parts.append(f"{run.round_trip} ms")
    if run.way != "npm" and run.pause:
        parts.append(f"handler {run.pause:g} ms")
    if run.streams > 1:
        parts.append(f"{run.streams} subscriptions")
    return ", ".join(parts)


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return ""
    text = _number(spread.median)
    if spread.low == spread.high:
        return text
    return f"{text} ({_number(spread.low)}-{_number(spread.high)})"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
