"""``sfpubsub publish``: JSON lines to events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

import click

from sfpubsub.cli.params import Topic
from sfpubsub.cli.render import publish_line
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.cli.words import counted
from sfpubsub.config import MAX_PUBLISH_EVENTS as MAX_EVENTS
from sfpubsub.errors import ConfigurationError, EncodeError, PublishError
from sfpubsub.types import PublishResult


@click.command()
@click.argument("topic", type=Topic())
@click.option(
    "--file",
    "file",
    type=click.File(encoding="utf-8"),
    default="-",
    help="JSON lines; stdin when left out.",
)
@click.option(
    "--created-by",
    metavar="USER_ID",
    help="Fill CreatedById with this, and CreatedDate with the present time, where they are left "
    "out.",
)
@service_options
def publish(topic: str, file: TextIO, created_by: str | None, **service: str | None) -> None:
    """Publish an event for every JSON line, and print a result for every event.

    A line is an object with the fields of the topic's schema; see `sfpubsub schema TOPIC`.
    CreatedDate (milliseconds since 1970 UTC) and CreatedById have to be among them, or be asked for
    with --created-by.
    """
    with connected_client(None, **service) as client:
        refused = 0
        for lines, part in _parts(file):
            try:
                results = client.publish(topic, part, created_by=created_by)
            except EncodeError as error:
                raise EncodeError(f"{lines}, not published: {error}") from error
            except PublishError as error:
                results = error.results
                if error.__cause__ is not None:  # not refused events, but a call that failed
                    _show(results)
                    raise
                refused += sum(not result.ok for result in results)
            _show(results)
        if refused:
            raise PublishError(
                f"{topic}: {counted(refused, 'event')} refused; see the printed results"
            )


def _show(results: list[PublishResult]) -> None:
    click.echo("".join(map(publish_line, results)), nl=False)


def _parts(file: TextIO) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the events of one request, and which lines they are."""
    part: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(file, 1):
        if line.strip():
            part[number] = _event(line, f"line {number} of {file.name}")
        if len(part) == MAX_EVENTS:
            yield _lines(part, file), list(part.values())
            part = {}
    if part:
        yield _lines(part, file), list(part.values())


def _lines(part: dict[int, dict[str, Any]], file: TextIO) -> str:
    first, last = min(part), max(part)
    return f"line{f's {first} to' if last > first else ''} {last} of {file.name}"


def _event(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is not a JSON object")
    return value
