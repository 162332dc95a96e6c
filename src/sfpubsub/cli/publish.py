"""``sfpubsub publish``: JSON lines to events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

import click

from sfpubsub.cli.render import publish_line
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.client.publisher import MAX_EVENTS
from sfpubsub.errors import ConfigurationError, EncodeError, PublishError
from sfpubsub.types import PublishResult


@click.command()
@click.argument("topic")
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
        for first_line, part in _parts(file):
            try:
                results = client.publish(topic, part, created_by=created_by)
            except EncodeError as error:
                lines = f"lines {first_line} to {first_line + len(part) - 1} of {file.name}"
                raise EncodeError(f"{lines}, not published: {error}") from error
            except PublishError as error:
                results = error.results
                if error.__cause__ is not None:  # not refused events, but a call that failed
                    _show(results)
                    raise
                refused += sum(not result.ok for result in results)
            _show(results)
        if refused:
            raise PublishError(f"{topic}: {refused} events were refused; see the printed results")


def _show(results: list[PublishResult]) -> None:
    click.echo("".join(map(publish_line, results)), nl=False)


def _parts(file: TextIO) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    part: list[dict[str, Any]] = []
    number = first = 1
    for number, line in enumerate(file, 1):
        if line.strip():
            part.append(_event(line, f"line {number} of {file.name}"))
        if len(part) == MAX_EVENTS:
            yield first, part
            part, first = [], number + 1
    if part:
        yield first, part


def _event(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is not a JSON object")
    return value
