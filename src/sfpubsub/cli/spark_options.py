"""Options of the commands that start Spark: session configuration and jars."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sfpubsub.errors import MissingExtraError

F = TypeVar("F", bound=Callable[..., Any])


def pairs(
    _context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Split option values of the form ``KEY=VALUE``. A click callback.

    Errors do not quote a malformed value, because it may be a secret.
    """
    found = []
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter("the value must have the form KEY=VALUE", param=parameter)
        found.append((key.strip(), text))
    return tuple(found)


def require_spark(command: str, *also: str) -> None:
    """Check that PySpark, PyArrow and the packages *also* are installed, without importing them.

    Raises:
        MissingExtraError: One is missing; the error names *command*.
    """
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow", *also)):
        raise MissingExtraError(command, "spark")


# Passed to the command as a bool.
maintain_option = click.option(
    "--maintain",
    type=click.Choice(["auto", "never"]),
    callback=lambda _context, _parameter, value: value == "auto",
    default="auto",
    show_default=True,
    help="Whether many small files are rewritten as a few larger ones: those of a raw table once a "
    "day, and those of other tables when there is nothing else to do.",
)


def spark_options(command: F) -> F:
    """Add the options ``--conf`` and ``--packages`` to a command.

    The command receives them as ``conf`` and ``packages``, and passes them to `spark_settings`.
    """
    for option in (
        click.option(
            "--packages",
            metavar="COORDINATES",
            multiple=True,
            help="Jars that Spark downloads from Maven Central, as GROUP:ARTIFACT:VERSION, "
            "separated by commas; can be repeated.",
        ),
        click.option(
            "--conf",
            callback=pairs,
            metavar="KEY=VALUE",
            multiple=True,
            help="Spark setting, for instance for a catalog; can be repeated. Put secrets in "
            "spark-defaults.conf instead, because other users can see command lines.",
        ),
    ):
        command = option(command)
    return command


def spark_settings(conf: tuple[tuple[str, str], ...], packages: tuple[str, ...]) -> dict[str, str]:
    """Return the Spark session settings for the options that `spark_options` adds."""
    settings = dict(conf)
    coordinates = [settings.get("spark.jars.packages", ""), *packages]
    wanted = ",".join(text for text in coordinates if text)
    return settings | ({"spark.jars.packages": wanted} if wanted else {})
