"""What commands tell Spark: settings and jars, without showing what may be a secret."""

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


def test_settings_and_packages_are_what_the_session_gets():
    """A value may hold equals signs and commas; packages join those of a setting."""
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
def test_a_setting_that_is_none_is_refused_without_being_repeated(given):
    """It may be a secret that was mistyped."""
    found = CliRunner().invoke(command, ["--conf", given])
    assert found.exit_code == 2
    assert "--conf" in found.output
    assert "KEY=VALUE" in found.output
    assert "hunter2" not in found.output
