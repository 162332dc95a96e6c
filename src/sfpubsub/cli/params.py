"""Kinds of option values that several commands share, and help for names that were slips."""

from __future__ import annotations

import math
import re
from typing import Any

import click


class Seconds(click.FloatRange):
    """A finite number of seconds. Click's own range lets ``nan`` pass, which no time reaches."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return *value* as a finite number within the range."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a finite number of seconds.", param, ctx)
        return seconds


class Topic(click.types.StringParamType):
    """The full name of a topic. A name without its first part is asked back with it."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*, which begins with a slash."""
        topic = str(value)
        if topic and not topic.startswith("/"):
            full = " or ".join(full_names(topic))
            self.fail(f"{topic!r} is not a topic's full name: did you mean {full}?", param, ctx)
        return topic


class ManagedName(click.types.StringParamType):
    """The name or id of a managed subscription. A topic is asked back with its own option."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*, which does not begin with a slash."""
        if str(value).startswith("/"):
            self.fail(f"{value} is a topic: did you mean --topic {value}?", param, ctx)
        return str(value)


class ReadingCommand(click.Command):
    """A command that names what it reads by options, and says so to whoever leaves them out."""

    allow_extra_args = True  # to be refused here, in better words than click's

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as every command does, and refuse what stands without an option."""
        rest = super().parse_args(ctx, args)
        if ctx.args:
            name = ctx.args[0]
            option = "--topic" if name.startswith("/") else "--managed"
            ctx.fail(f"{name} stands without an option: did you mean {option} {name}?")
        return rest


def full_names(name: str) -> list[str]:
    """Return the topics that *name*, which does not begin with a slash, may stand for."""
    if name.startswith(("event/", "data/")):
        return [f"/{name}"]
    if re.search(r"ChangeEvents?$", name):
        return [f"/data/{name}"]
    if name.endswith("__chn"):  # a channel may be of either kind
        return [f"/event/{name}", f"/data/{name}"]
    return [f"/event/{name}"]
