"""The ``sfpubsub`` command: runs subcommands, and converts an error to one line and an exit code.

Results go to stdout, messages to stderr. A command's module is imported only when the command is
used, so that ``sfpubsub --help`` needs neither grpc nor Spark.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from sfpubsub import __version__
from sfpubsub.cli import terminal
from sfpubsub.cli.logs import JsonStderr, set_up
from sfpubsub.errors import (
    AuthenticationError,
    FilteredObjectError,
    OtherOrgError,
    PermissionDeniedError,
    ReplayIdRejectedError,
    SfPubSubError,
)

# Exit codes. Click also uses 2, for usage errors.
FAILED = 1
WRONG_USE = 2
NOT_ALLOWED = 3
POSITION_LOST = 4
INTERRUPTED = 130

# Exit codes of errors; that of others is FAILED.
_CODES: dict[type[SfPubSubError], int] = {
    OtherOrgError: WRONG_USE,
    FilteredObjectError: WRONG_USE,
    AuthenticationError: NOT_ALLOWED,
    PermissionDeniedError: NOT_ALLOWED,
    ReplayIdRejectedError: POSITION_LOST,
}

# Module of each command, and its line in --help.
COMMANDS = {
    "channel": ("sfpubsub.cli.event_channels", "Administer channels of events."),
    "completion": ("sfpubsub.cli.completion", "Set up Tab completion in the shell."),
    "demo": ("sfpubsub.cli.demo", "Run an ingest job against the emulator and kill it midway."),
    "doctor": ("sfpubsub.cli.doctor", "Check settings, network, session and permissions."),
    "emulator": ("sfpubsub.cli.emulator", "Run a local emulator of the Pub/Sub API."),
    "help": ("sfpubsub.cli.help", "List the options that select the service and the sign-in."),
    "ingest": ("sfpubsub.cli.ingest", "Write events to a table with PySpark, each exactly once."),
    "lag": ("sfpubsub.cli.lag", "Show the progress of commands on this machine."),
    "maintain": ("sfpubsub.cli.maintain", "Rewrite small files of tables as large ones."),
    "mirror": ("sfpubsub.cli.mirror", "Keep tables in sync with objects of the org, with PySpark."),
    "managed": ("sfpubsub.cli.managed", "Administer managed subscriptions."),
    "publish": ("sfpubsub.cli.publish", "Publish the events of a JSON Lines file."),
    "push": ("sfpubsub.cli.pushtopic", "Push an event to a generic channel."),
    "pushtopic": ("sfpubsub.cli.pushtopic", "Administer PushTopics."),
    "quarantine": ("sfpubsub.cli.quarantine", "List and redrive quarantined events."),
    "schema": ("sfpubsub.cli.lookup", "Show an Avro schema, by id or topic."),
    "subscribe": ("sfpubsub.cli.subscribe", "Print events as JSON lines."),
    "tables": ("sfpubsub.cli.tables", "Build query tables from a raw table, with PySpark."),
    "topics": ("sfpubsub.cli.event_channels", "List topics, or show one."),
    "usage": (
        "sfpubsub.cli.event_channels",
        "Show how much of its event allocations the org has used.",
    ),
}


# Another spelling, for the form with a name.
_SINGULAR = {"topic": "topics"}


class LazyGroup(click.Group):
    """Command group that imports a command's module when the command is used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Set up logging, and run the command. Unknown commands are reported as logging wants."""
        set_up(ctx.params["verbose"], ctx.params["log_format"])
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command; None if *cmd_name* is unknown."""
        cmd_name = _SINGULAR.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for --help, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from sfpubsub import native

    decoder = f"compiled decoder {native.VERSION}" if native.is_installed() else "Python decoder"
    click.echo(f"sfpubsub, version {__version__}, {decoder}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the decoder in use, and exit.",
)
@click.option(
    "-v", "--verbose", count=True, help="Log info messages to stderr; -vv also logs debug messages."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of messages on stderr; with json, every line is a JSON object.",
)
def cli(**_logging: object) -> None:
    """Salesforce Pub/Sub API: subscribe, publish, ingest into Spark tables, and run an emulator.

    Commands that call the service read each setting from an option (--login-url), otherwise from
    the environment (SFPUBSUB_LOGIN_URL), otherwise from a TOML file (--config); `sfpubsub help
    connection` lists these options. `sfpubsub doctor` shows the settings in effect. Secrets cannot
    be given as options: set them in the environment (SFPUBSUB_ACCESS_TOKEN, SFPUBSUB_CLIENT_SECRET,
    SFPUBSUB_PASSWORD, SFPUBSUB_REFRESH_TOKEN) or in the file.
    """


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(run())


def run(args: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: Command-line arguments; None to use those of the process.

    Returns:
        The exit code.
    """
    # Otherwise gRPC core prints messages, for instance about each failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    terminal.protect()
    try:
        code = cli.main(args, prog_name="sfpubsub", standalone_mode=False)
    except click.UsageError as error:
        text = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # in click 8.2 and later
            if not isinstance(sys.stderr, JsonStderr):
                click.echo(text, err=True)
                return error.exit_code
            text = "a command is missing"
        command = error.ctx.command_path if error.ctx else "sfpubsub"
        click.echo(f"error: {_one_line(text)} (see '{command} --help')", err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"error: {_one_line(error.format_message())}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SfPubSubError as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        return exit_code(error)
    except BrokenPipeError:
        # The reader of stdout has exited. Without this, Python would report the error again when
        # flushing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (OSError, UnicodeError) as error:  # such as a full disk, or text that cannot be encoded
        click.echo(f"error: {_one_line(error)}", err=True)
        return FAILED
    return code if isinstance(code, int) else 0


def exit_code(error: SfPubSubError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
