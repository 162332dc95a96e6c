"""The options of commands that start Spark: settings and packages, and no secret in an error."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sfpubsub.cli.spark_options import spark_options, spark_settings


@click.command()
@spark_options
def command(conf: tuple[tuple[str, str], ...], packages: tuple[str, ...]) -> None:
    for key, value in spark_settings(conf, packages).items():
        click.echo(f"{key} -> {value}")


def test_settings_and_packages_reach_the_session():
    """Values may contain equals signs and commas; --packages adds to packages set with --conf."""
    found = CliRunner().invoke(
        command,
        "--conf spark.a=b=c,d --conf spark.jars.packages=g:a:1 "
        "--packages g:b:2,g:c:3 --packages g:d:4",
    )
    assert found.output.splitlines() == [
        "spark.a -> b=c,d",
        "spark.jars.packages -> g:a:1,g:b:2,g:c:3,g:d:4",
    ]


@pytest.mark.parametrize("given", ["spark.hadoop.fs.s3a.secret.key:hunter2", "=hunter2"])
def test_malformed_setting_is_rejected_without_being_repeated(given):
    """The error shows the form KEY=VALUE but not the argument, which may be a mistyped secret."""
    found = CliRunner().invoke(command, ["--conf", given])
    assert found.exit_code == 2
    assert "--conf" in found.output
    assert "KEY=VALUE" in found.output
    assert "hunter2" not in found.output
