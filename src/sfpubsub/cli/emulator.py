"""`sfpubsub emulator`: runs the local emulator until it is told to stop.

Options in, one JSON line out, signals to exit codes. What the emulator does is in
sfpubsub.emulator, imported only when the command runs.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sfpubsub.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from sfpubsub.emulator.server import EmulatorServer

_GRPC_PORT = 7011
"""Default of --grpc-port: unassigned by IANA, below the ephemeral range, and not the service's
7443."""

_HTTP_PORT = 7012
"""Default of --http-port: the next one."""


@click.command()
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    default=_GRPC_PORT,
    show_default=True,
    help="Port of the Pub/Sub API; 0 picks a free one.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=_HTTP_PORT,
    show_default=True,
    help="Port of sign-in, the Tooling API and the health page; 0 picks a free one.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path(".sfpubsub-emulator"),
    show_default=True,
    help="Where events, positions and credentials are kept; made when it is not there.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Other machines reach the emulator only if this says so.",
)
@click.option(
    "--tls", is_flag=True, help="Serve both ports with TLS; clients trust the ca_file printed."
)
@click.option(
    "--seed",
    type=click.Path(path_type=Path),
    help="TOML file with topics, managed subscriptions, users and more.  [default: one of each]",
)
def emulator(
    grpc_port: int, http_port: int, data_dir: Path, host: str, tls: bool, seed: Path | None
) -> None:
    """Run a local emulator of the Pub/Sub API.

    Prints one JSON line when it is ready, with what a client needs to connect. Ends cleanly on
    SIGTERM and Ctrl-C; killed any other way it loses nothing that it has acknowledged.
    """
    try:
        from sfpubsub.emulator.org.problems import EmulatorProblem
        from sfpubsub.emulator.server import EmulatorServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sfpubsub"):
            raise
        _fail(f"the emulator needs the package {error.name}: pip install 'sfpubsub[emulator]'")
    # Blocked here and waited for below: no handler runs in the middle of anything. Threads that
    # start from now on inherit the mask, so the signals reach the wait.
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        server = EmulatorServer(
            data_dir, host=host, grpc_port=grpc_port, http_port=http_port, tls=tls, seed=seed
        )
        with server:
            click.echo(json.dumps(_ready(server)))
            received = signal.sigwait(signals)
    except EmulatorProblem as problem:
        _fail(str(problem))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    if received == signal.SIGINT:
        sys.exit(INTERRUPTED)


def _ready(server: EmulatorServer) -> dict[str, str]:
    """What a client needs to connect."""
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
