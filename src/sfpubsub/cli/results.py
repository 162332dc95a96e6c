"""Print the records that a command found or changed: for people on a terminal, else as JSON lines.

This is the one place that decides between the two. Commands that print events, or a report of their
own (`doctor`, `lag`), do not use it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import click

from sfpubsub.cli.render import json_line


def print_record(record: object) -> None:
    """Print one record: on a terminal, a line per value; otherwise a JSON line.

    Args:
        record: A mapping or a dataclass object, whose values can be in JSON.
    """
    values = _values(record)
    if not sys.stdout.isatty():
        click.echo(json_line(values), nl=False)
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {_cell(value)}".rstrip())


def print_records(records: Iterable[object], nothing: str) -> None:
    """Print records: a table on a terminal, otherwise a JSON line per record.

    Args:
        records: As for `print_record`. JSON lines are printed as the records arrive.
        nothing: Message on stderr if there are none, such as ``no PushTopics``.
    """
    rows = map(_values, records)
    first = next(rows, None)
    if first is None:
        click.echo(nothing, err=True)
    elif sys.stdout.isatty():
        _table([first, *rows])
    else:
        for row in chain([first], rows):
            click.echo(json_line(row), nl=False)


def _table(rows: list[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (f"{text:<{width}}" for text, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_line(value).rstrip("\n")


def _values(record: Any) -> Mapping[str, Any]:
    return record if isinstance(record, Mapping) else dataclasses.asdict(record)
