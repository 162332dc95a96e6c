"""Option types shared by several commands, with suggestions for mistyped names."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import click

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.paths import What, kind_of

# Prefixes of channels that exist only in the Streaming API.
_CHANNELS = ("/topic/", "/u/")

# Units of a duration, in seconds.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(consequence: str, yes: bool) -> None:
    """Ask whether to go on with what cannot be undone.

    Args:
        consequence: What will be lost, and the question.
        yes: Whether --yes was given, which answers the question.

    Raises:
        UsageError: There is no terminal to ask on.
        ClickException: The answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "this command asks for confirmation in a terminal: use --yes to skip the question"
        )
    if not click.confirm(consequence, err=True):
        raise click.ClickException("not confirmed: nothing was changed")


class Seconds(click.FloatRange):
    """Parameter type for a finite number of seconds.

    Click's own type also accepts ``nan`` and ``inf``.
    """

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return *value* as a finite number within the range that the parameter allows."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a finite number of seconds.", param, ctx)
        return seconds


class Duration(click.types.StringParamType):
    """Parameter type for a duration such as ``90``, ``90s``, ``10m``, ``24h`` or ``7d``.

    ``never`` is 0.
    """

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the duration in seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        if value == "never":
            return 0.0
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value, re.ASCII)
        if found is None:
            self.fail(
                f"{value!r} is not a valid duration: use a form such as 90s, 10m, 24h, 7d or never",
                param,
                ctx,
            )
        return float(found[1]) * _UNITS[found[2] or "s"]


class Topic(click.types.StringParamType):
    """Parameter type for a topic's full name.

    The error for a short name suggests the full name. The error for a Streaming API channel
    suggests the option --channel.
    """

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*. Fail with a suggestion if it is not the full name of a topic."""
        topic = str(value)
        if topic and not topic.startswith("/"):
            full = " or ".join(full_names(topic))
            self.fail(f"{topic!r} is not a topic's full name: did you mean {full}?", param, ctx)
        if topic.startswith(_CHANNELS):
            self.fail(f"{topic} is not a topic: did you mean {meant(topic)}?", param, ctx)
        return topic


class ManagedName(click.types.StringParamType):
    """Parameter type for a managed subscription's name or id.

    The error for a topic or a channel suggests the option --topic or --channel.
    """

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*. Fail with a suggestion if it begins with a slash."""
        if str(value).startswith("/"):
            self.fail(
                f"{value} is not the name of a managed subscription: did you mean "
                f"{meant(str(value))}?",
                param,
                ctx,
            )
        return str(value)


class Channel(click.types.StringParamType):
    """Parameter type for a Streaming API channel, optionally with a filter."""

    name = "channel"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*. Fail with a suggestion if it does not begin with a slash."""
        channel = str(value)
        if channel and not channel.startswith("/"):
            self.fail(
                f"{channel!r} is not a channel: did you mean /topic/{channel} or /u/{channel}?",
                param,
                ctx,
            )
        return channel


class TableLocation(click.types.StringParamType):
    """Parameter type for a table, or for a target of tables: a path, a URL or a name in a catalog.

    Args:
        what: What is there: a ``table``, or a ``schema`` (or directory) with tables.
    """

    name = "location"

    def __init__(self, what: What) -> None:
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*. Fail, with both spellings, if it could be a directory or a name."""
        try:
            kind_of(str(value), self._what)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class ReadingCommand(click.Command):
    """Command whose source is an option such as --topic, not an argument.

    An argument is rejected with an error that suggests the right option.
    """

    allow_extra_args = True  # rejected here, with a better message than click's

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Reject a positional argument, and suggest the right option."""
        rest = super().parse_args(ctx, args)
        if ctx.args:
            name = ctx.args[0]
            ctx.fail(f"{name} is not an option: did you mean {meant(name)}?")
        return rest


def meant(name: str) -> str:
    """Return the option that the user probably meant, such as ``--topic /event/A__e``.

    For a Streaming API channel, the result includes a command, as in ``subscribe --channel
    /topic/A``, because not every command has that option.

    Args:
        name: The argument that the user gave; it becomes the option's value.
    """
    if name.startswith(_CHANNELS):
        return f"subscribe --channel {name}"
    return f"--topic {name}" if name.startswith("/") else f"--managed {name}"


def full_names(name: str) -> list[str]:
    """Return the full topic names that a short name, such as ``Order__e``, may stand for."""
    if name.startswith(("event/", "data/")):
        return [f"/{name}"]
    if re.search(r"ChangeEvents?$", name):
        return [f"/data/{name}"]
    if name.endswith("__chn"):  # may carry platform events or change events
        return [f"/event/{name}", f"/data/{name}"]
    return [f"/event/{name}"]
