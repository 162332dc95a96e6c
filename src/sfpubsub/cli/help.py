"""``sfpubsub help``: what --help of a command leaves out, because many commands share it."""

from __future__ import annotations

import click

from sfpubsub.cli.service import connection_options


@click.command()
@click.argument("about", type=click.Choice(["connection"]))
@click.pass_context
def help(ctx: click.Context, about: str) -> None:  # noqa: A001  # the command's name
    """List the options with which a command selects the service and the way to sign in.

    Each is also a setting: in the file of --config by its name with underscores (login_url), and in
    the environment with a prefix (SFPUBSUB_LOGIN_URL). An option takes precedence over the
    environment, which takes precedence over the file. Secrets are no options, because other users
    of a machine can see command lines.
    """
    formatter = ctx.make_formatter()
    with formatter.section(f"Options of commands that call the service ({about})"):
        formatter.write_dl(connection_options())
    click.echo(formatter.getvalue(), nl=False)
