"""Options of the commands that start Spark: the configuration of its session, and its jars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def pairs(
    _context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return options of the form ``KEY=VALUE`` in two parts. A callback of click.

    The value may be a secret, and without the sign there is no telling where the key ends: so no
    error repeats what was given.
    """
    found = []
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter("it takes KEY=VALUE", param=parameter)
        found.append((key.strip(), text))
    return tuple(found)


def spark_options(command: F) -> F:
    """Add ``--conf`` and ``--packages``; they come as ``conf`` and ``packages``.

    See `spark_settings`.
    """
    for option in (
        click.option(
            "--packages",
            metavar="COORDINATES",
            multiple=True,
            help="Jars that Spark gets from Maven Central, as GROUP:ARTIFACT:VERSION, several with "
            "commas; can be repeated.",
        ),
        click.option(
            "--conf",
            callback=pairs,
            metavar="KEY=VALUE",
            multiple=True,
            help="A setting of Spark, such as a catalog's; can be repeated. For secrets use a file "
            "of Spark's own (spark-defaults.conf): a command line is seen by others.",
        ),
    ):
        command = option(command)
    return command


def spark_settings(conf: tuple[tuple[str, str], ...], packages: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of a session from the options that `spark_options` adds."""
    settings = dict(conf)
    coordinates = [settings.get("spark.jars.packages", ""), *packages]
    wanted = ",".join(text for text in coordinates if text)
    return settings | ({"spark.jars.packages": wanted} if wanted else {})
