"""``sfpubsub emulator``: run the local emulator until it is stopped.

This module reads options, prints one JSON line, and converts signals to exit codes. The emulator is
implemented in sfpubsub.emulator, which is imported only when the command runs. The subcommands for
a running emulator are in emulator_admin and emulator_records.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sfpubsub.cli.main import INTERRUPTED
from sfpubsub.config.network import is_loopback
from sfpubsub.durable import replace_file

if TYPE_CHECKING:
    from sfpubsub.emulator.server import EmulatorServer

_GRPC_PORT = 7011
"""Default of --grpc-port. The port is unassigned by IANA, below the ephemeral range, and differs
from the service's 7443.
"""

_HTTP_PORT = 7012
"""Default of --http-port: the number after the default of --grpc-port."""


_COMMANDS = ("clock", "faults", "publish", "records", "snapshot", "subscriptions", "topics")


class _Commands(click.Group):
    """Command group that imports a subcommand only when it is used, to start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a subcommand; None if *cmd_name* is unknown."""
        if cmd_name not in _COMMANDS:
            return None
        from sfpubsub.cli import emulator_admin, emulator_records

        module = emulator_records if cmd_name == "records" else emulator_admin
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=_Commands, invoke_without_command=True)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    default=_GRPC_PORT,
    show_default=True,
    help="Port of the Pub/Sub API; 0 selects a free port.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=_HTTP_PORT,
    show_default=True,
    help="Port for HTTP: sign-in, the REST APIs and the web page; 0 selects a free port.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path(".sfpubsub-emulator"),
    show_default=True,
    help="Directory for events, positions and credentials; created if missing.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Other machines can reach the emulator only if you change this.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Serve both ports with TLS. Clients must trust the `ca_file` printed at startup.",
)
@click.option(
    "--tls-name",
    "tls_names",
    multiple=True,
    metavar="NAME",
    help="Additional name or address for the certificate; can be repeated.",
)
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Host announced to clients instead of --host, for instance in a container with --host "
    "0.0.0.0. PORT is the HTTP port that clients use, if it differs from --http-port.",
)
@click.option(
    "--org-id",
    metavar="ID",
    help="15-character id of the org. With a data directory of another org: a refreshed sandbox, "
    "which keeps its records and loses its events, positions and tokens.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="File to which the JSON line printed at startup is also written; removed at exit.",
)
@click.option(
    "--seed",
    type=click.Path(path_type=Path),
    help="TOML file with topics, managed subscriptions, users and more.  [default: built-in "
    "values]",
)
@click.option(
    "--until-stdin-closes",
    is_flag=True,
    help="Exit when stdin is closed, so that the emulator ends together with the program that "
    "started it.",
)
@click.pass_context
def emulator(
    context: click.Context,
    grpc_port: int,
    http_port: int,
    data_dir: Path,
    host: str,
    tls: bool,
    tls_names: tuple[str, ...],
    advertise: str | None,
    org_id: str | None,
    ready_file: Path | None,
    seed: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Run a local emulator of the Pub/Sub API.

    When ready, the command prints one line of JSON with everything a client needs to connect. It
    also writes these values to client.toml in the data directory, a settings file for --config.
    SIGTERM and Ctrl-C shut the emulator down cleanly. Even if it is killed, no acknowledged data is
    lost.

    A subcommand controls a running emulator instead of starting one.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    try:
        from sfpubsub.emulator.org.problems import EmulatorProblem
        from sfpubsub.emulator.server import EmulatorServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sfpubsub"):
            raise
        _fail(f"the emulator needs the package {error.name}: pip install 'sfpubsub[emulator]'")
    # Signals are blocked here and awaited below, so that no signal handler interrupts other code.
    # Threads started from now on inherit the mask, so only ``sigwait`` receives the signals.
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        server = EmulatorServer(
            data_dir,
            host=host,
            grpc_port=grpc_port,
            http_port=http_port,
            tls=tls,
            tls_names=tls_names,
            advertise=advertise,
            org_id=org_id,
            seed=seed,
        )
        with server, _ready_file(ready_file, json.dumps(_ready(server))):
            _write_privately(server.data_dir / "client.toml", _client_settings(server))
            _warn_of_strangers(server, host)
            if until_stdin_closes:
                threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
            click.echo(json.dumps(_ready(server)))
            received = signal.sigwait(signals)
    except EmulatorProblem as problem:
        _fail(str(problem))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    if received == signal.SIGINT:
        sys.exit(INTERRUPTED)


def _refuse_options(context: click.Context) -> None:
    """Reject options for starting an emulator, because the invoked subcommand would ignore them."""
    for name in context.params:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} configures a new emulator, but {context.invoked_subcommand} controls a "
                "running one: use --url after the subcommand to select the emulator"
            )


def _end_with_stdin() -> None:
    with contextlib.suppress(OSError):  # stdin was already closed
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _ready_file(ready_file: Path | None, line: str) -> Iterator[None]:
    """Write *line* to *ready_file* atomically, and delete the file when the block ends.

    Does nothing if *ready_file* is None.
    """
    if ready_file is None:
        yield
        return
    _write_privately(ready_file, line + "\n")
    try:
        yield
    finally:
        ready_file.unlink(missing_ok=True)


def _write_privately(path: Path, text: str) -> None:
    """Write *text*, which contains secrets, atomically to a file that only its owner can read."""
    try:
        replace_file(path, text, mode=0o600)
    except OSError as error:
        _fail(f"{path} cannot be written ({error.strerror}): choose another path")


def _has_default_app(server: EmulatorServer) -> bool:
    from sfpubsub.emulator.org.accounts import DEFAULT_APP

    app = server.accounts.app(DEFAULT_APP["client_id"])
    return app is not None and app.client_secret == DEFAULT_APP["client_secret"]


def _warn_of_strangers(server: EmulatorServer, host: str) -> None:
    """Warn if other machines can reach the emulator, and sign in with published credentials."""
    if not is_loopback(host) and _has_default_app(server):
        click.echo(
            f"warning: the emulator listens on {host}, and anyone who reaches it can sign in with"
            " the default credentials, which are published: use a seed with [[apps]] and [[users]]"
            " of your own, or --host 127.0.0.1",
            err=True,
        )


def _client_settings(server: EmulatorServer) -> str:
    """Return the content of a client's settings file, in TOML.

    The client signs in with the default connected app if the org has that app and its secret is the
    default one; otherwise with an access token.
    """
    from sfpubsub.emulator.org.accounts import DEFAULT_APP

    settings = {"endpoint": server.grpc_target}
    if server.ca_file is None:
        # Plaintext to another machine is the choice of whoever announces one without TLS.
        settings["insecure"] = (
            "1" if is_loopback(server.grpc_target.rpartition(":")[0]) else "force"
        )
    else:
        settings["ca_file"] = str(server.ca_file)
    if _has_default_app(server):
        client_id, secret = DEFAULT_APP["client_id"], DEFAULT_APP["client_secret"]
        settings |= {"auth": "client-credentials", "login_url": server.http_url}
        settings |= {"client_id": client_id, "client_secret": secret}
    else:
        settings |= {"auth": "token", "access_token": server.access_token}
        settings |= {"instance_url": server.instance_url, "tenant_id": server.tenant_id}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(
        ["# Settings for a local emulator, which rewrites this file at each start.", *lines, ""]
    )


def _ready(server: EmulatorServer) -> dict[str, str]:
    """Return the values to print at startup: addresses, access token, org and CA file."""
    ready = {
        "grpc": server.grpc_target,
        "http": server.http_url,
        "access_token": server.access_token,
        "instance_url": server.instance_url,
        "tenant_id": server.tenant_id,
    }
    if server.ca_file is not None:
        ready["ca_file"] = str(server.ca_file)
    return ready


def _fail(text: str) -> NoReturn:
    click.echo(f"error: {text}", err=True)
    sys.exit(1)
