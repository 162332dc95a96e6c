"""``sfpubsub emulator publish`` and other subcommands that control a running emulator.

The commands are thin wrappers around `RemoteEmulator`.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO
from urllib.parse import urlsplit

import click

from sfpubsub.cli.params import Topic
from sfpubsub.cli.results import print_record, print_records
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.remote import DEFAULT_URL, RemoteEmulator

_EVENTS = 200
_BYTES = 128 * 1024
"""Limits of a publish request: its maximum number of events, and the size in bytes at which it is
sent. The endpoint accepts twice that size.
"""

_STARTING_S = 10.0
"""How long a command waits for an emulator that may still be starting: a few times what its start
takes on a slow machine.
"""

_POLL_S = 0.1

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.types.FloatParamType):
    """Parameter type for a duration: a number of seconds, or a number followed by s, m, h or d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the duration in seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        if found is None:
            self.fail(
                f"{value!r} is not a valid duration: use a form such as 90, 90s, 5m, 73h or 3d",
                param,
                ctx,
            )
        return float(found[1]) * _UNITS_S[found[2]]


def of_an_emulator(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with options that select a running emulator.

    *command* receives a `RemoteEmulator` as its first argument.
    """

    @click.option(
        "--url",
        envvar="SFPUBSUB_EMULATOR_URL",
        show_envvar=True,
        default=DEFAULT_URL,
        show_default=True,
        help="URL of the emulator's HTTP port. The emulator prints it at startup as `http`.",
    )
    @click.option(
        "--ca-file",
        envvar="SFPUBSUB_EMULATOR_CA_FILE",
        show_envvar=True,
        help="PEM file of the certificate authority to trust. The emulator prints its path at "
        "startup as `ca_file`. Needed only if the emulator runs with --tls.",
    )
    @functools.wraps(command)
    def run(url: str, ca_file: str | None, **options: Any) -> None:
        # Not an option, because other users of a machine can see command lines.
        token = os.environ.get("SFPUBSUB_EMULATOR_TOKEN", "")
        _await(url)
        try:
            command(RemoteEmulator(url, token, ca_file=ca_file), **options)
        except EmulatorProblem as problem:
            raise click.ClickException(str(problem)) from problem

    return run


def _await(url: str) -> None:
    """Wait until an emulator listens at *url*, as after `sfpubsub emulator &` in the line before.

    Returns in any case: the command then says what is wrong.
    """
    deadline = time.monotonic() + _STARTING_S
    said = False
    with contextlib.suppress(ValueError, OSError):  # not a URL, or a host that cannot be reached
        place = urlsplit(url)
        while time.monotonic() < deadline:
            try:
                socket.create_connection((place.hostname, place.port or 80), _STARTING_S).close()
            except ConnectionRefusedError:
                if not said:
                    click.echo(f"waiting for an emulator at {url}", err=True)
                said = True
                time.sleep(_POLL_S)
            else:
                return


@click.command()
@click.argument("topic", type=Topic())
@click.option(
    "--file",
    "file",
    type=click.File(encoding="utf-8"),
    default="-",
    help="File in JSON Lines format, with one event per line.  [default: stdin]",
)
@of_an_emulator
def publish(emulator: RemoteEmulator, topic: str, file: TextIO) -> None:
    """Publish the events of a JSON Lines file as if the org itself published them.

    Each line is a JSON object with the fields of the topic's schema; CreatedDate, CreatedById and
    the fields of a ChangeEventHeader can be omitted. Unlike `sfpubsub publish`, this command can
    publish change events. Prints the event_id and replay_id of each event.
    """
    where = None
    for where, events in _parts(file):
        try:
            results = emulator.publish(topic, events)
        except EmulatorProblem as problem:
            raise click.ClickException(f"{where} could not be published: {problem}") from problem
        for result in results:
            print_record(result)
    if where is None:
        emulator.publish(topic, [])  # so that a wrong topic is an error all the same
        click.echo(f"no events in {file.name}", err=True)


@click.command()
@of_an_emulator
def topics(emulator: RemoteEmulator) -> None:
    """List topics, with their counts of open streams and of published and delivered events."""
    print_records(_named(emulator.health()["topics"]), "no topics")


@click.command()
@of_an_emulator
def subscriptions(emulator: RemoteEmulator) -> None:
    """List managed subscriptions, with their committed positions."""
    print_records(_named(emulator.health()["managed_subscriptions"]), "no managed subscriptions")


class ListFirst(click.Group):
    """A command group whose default subcommand is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with `list` inserted if they do not begin with a subcommand."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListFirst)
def faults() -> None:
    """List, add and disable faults."""


@faults.command("list")
@of_an_emulator
def list_faults(emulator: RemoteEmulator) -> None:
    """List the faults that were added, and how many times each has occurred."""
    rows = ({"number": number, **fault} for number, fault in enumerate(emulator.faults()))
    print_records(rows, "no faults were added")


@faults.command()
@click.argument("kind")
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@of_an_emulator
def add(emulator: RemoteEmulator, kind: str, parameters: tuple[str, ...]) -> None:
    """Add a fault. Depending on its kind, it occurs immediately or at the next opportunity.

    The parameters times, rpc and target limit how many times and where the fault occurs.
    `sfpubsub emulator faults kinds` lists the other parameters of KIND, such as
    after_responses=3. Prints the fault's number.
    """
    print_record({"number": emulator.add_fault(kind, **dict(map(_parameter, parameters)))})


@faults.command()
@click.argument("number", type=click.IntRange(min=0))
@of_an_emulator
def off(emulator: RemoteEmulator, number: int) -> None:
    """Disable a fault, so that it no longer occurs. Its earlier effects remain.

    NUMBER is the fault's number, as printed by `add` and `list`.
    """
    emulator.switch_off_fault(number)
    print_record({"number": number, **emulator.faults()[number]})


@faults.command()
def kinds() -> None:
    """List the kinds of faults: where each can occur, its parameters, and its effect."""
    from sfpubsub.emulator.faults.kinds import KINDS

    rows = (
        {"kind": name, "rpcs": kind.rpcs, "parameters": kind.params, "what": kind.text}
        for name, kind in KINDS.items()
    )
    print_records(rows, "no kinds")


@click.command()
@click.option(
    "--jump",
    type=Duration(),
    metavar="DURATION",
    help="Advance the clock by a duration such as 90, 90s, 5m, 73h or 3d.",
)
@of_an_emulator
def clock(emulator: RemoteEmulator, jump: float | None) -> None:
    """Show the emulator's clock, or advance it.

    Advancing it triggers everything that becomes due in the skipped time: keepalives, deadlines and
    the expiry of retained events.
    """
    now = emulator.now() if jump is None else emulator.jump(jump)
    shown = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="seconds")
    print_record({"now": now, "utc": shown})


@click.group()
def snapshot() -> None:
    """Save the state of the org, and return to it."""


@snapshot.command()
@click.argument("name")
@of_an_emulator
def save(emulator: RemoteEmulator, name: str) -> None:
    """Save the state of the org as the snapshot NAME, in the emulator's data directory.

    NAME has letters, digits, - and _. A snapshot with this name is replaced.
    """
    emulator.save(name)
    print_record({"snapshot": name})


@snapshot.command()
@click.argument("name")
@of_an_emulator
def restore(emulator: RemoteEmulator, name: str) -> None:
    """Return to the snapshot NAME, and print the new access token.

    This ends all streams, sessions and access tokens, and takes the jobs of the Bulk API away. The
    ids of records and events go on above the highest that was ever used, and the clock does not go
    back.
    """
    emulator.restore(name)
    print_record({"snapshot": name, "access_token": emulator.access_token})


def _named(rows: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({"name": name, **row} for name, row in rows.items())


def _parts(file: TextIO) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Split the events in *file* into requests.

    Yields, for each request, a description of its lines, such as ``lines 1 to 200 of
    events.jsonl``, and its events.
    """
    part: list[dict[str, Any]] = []
    size = first = last = 0

    def where() -> str:
        lines = f"line {last}" if first == last else f"lines {first} to {last}"
        return f"{lines} of {file.name}"

    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        part.append(_event(line, f"line {number} of {file.name}"))
        size += len(line)
        first, last = first or number, number
        if len(part) == _EVENTS or size >= _BYTES:
            yield where(), part
            part, size, first = [], 0, 0
    if part:
        yield where(), part


def _event(line: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{where} is not valid JSON: {error}") from error
    if not isinstance(event, dict):
        raise click.ClickException(
            f"{where} is not a JSON object: each line must be an object with the event's fields"
        )
    return event


def _parameter(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``. The value becomes a bool or a number if it looks like one."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is not a valid parameter: use NAME=VALUE")
    if re.fullmatch(r"true|false|\d+(\.\d+)?", value):
        return name, json.loads(value)
    return name, value
