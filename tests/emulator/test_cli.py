"""Tests of the process `sfpubsub emulator`: its ready line, signals, and one-line errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
import tomllib
import urllib.request

import pytest
from click.testing import CliRunner

from sfpubsub import PubSubClient, TopicNotFoundError
from sfpubsub.cli.emulator import emulator as command
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ORDERS


def test_ready_line_names_open_ports_and_a_valid_token(spawn):
    """The ready line has exactly the documented keys.

    Its ports are open, and its token is valid.
    """
    process = spawn().wait_ready()
    ready = process.ready
    assert set(ready) == {"grpc", "http", "access_token", "instance_url", "tenant_id"}
    assert ready["instance_url"] == ready["http"]
    assert urllib.request.urlopen(ready["http"] + "/health", timeout=10).status == 200
    client = process.client()
    assert client.subscribe(topic_name=ORDERS).silent()
    client.close()


def test_tls_adds_a_ca_file_to_the_ready_line(spawn):
    """With `--tls`, the ready line names a CA file. A client that trusts it can use both ports."""
    process = spawn("--tls").wait_ready()
    trust = ssl.create_default_context(cafile=process.ready["ca_file"])
    assert process.ready["http"].startswith("https://")
    url = process.ready["http"] + "/health"
    with urllib.request.urlopen(url, timeout=10, context=trust) as answer:
        assert answer.status == 200
    client = process.client()
    assert client.subscribe().silent()
    client.close()


def test_advertised_names_and_the_ready_file(spawn, tmp_path):
    """The certificate covers all given names, and the URLs contain the advertised one.

    The ready file is complete, readable only by its owner, and removed at exit.
    """
    file = tmp_path / "ready.json"
    options = ["--host", "0.0.0.0", "--tls", "--tls-name", "other.test", "--tls-name", "10.1.2.3"]
    process = spawn(*options, "--advertise", "salesforce.test:8443", "--ready-file", str(file))
    process.wait_ready()
    assert json.loads(file.read_text()) == process.ready
    assert file.stat().st_mode & 0o077 == 0
    assert process.ready["instance_url"] == "https://salesforce.test:8443"
    assert process.ready["grpc"].startswith("salesforce.test:")
    port = int(process.ready["grpc"].rpartition(":")[2])
    trust = ssl.create_default_context(cafile=process.ready["ca_file"])
    trust.set_alpn_protocols(["h2"])
    for name in ("salesforce.test", "other.test", "10.1.2.3", "localhost"):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
            trust.wrap_socket(connection, server_hostname=name),
        ):
            pass
    process.popen.send_signal(signal.SIGTERM)
    code, out, err = process.result()
    assert (code, out) == (0, "")
    # Other machines can reach this emulator, and sign in with what the documentation says.
    assert err.startswith("warning: the emulator listens on 0.0.0.0, and anyone who reaches it")
    assert "default credentials" in err
    assert list(tmp_path.glob("ready*")) == []


def test_own_credentials_need_no_warning(spawn, tmp_path):
    """With a seed without the default app, an emulator on all interfaces prints no warning."""
    (tmp_path / "seed.toml").write_text(APPS)
    process = spawn("--host", "0.0.0.0", "--seed", str(tmp_path / "seed.toml")).wait_ready()
    process.popen.send_signal(signal.SIGTERM)
    assert process.result() == (0, "", "")


def test_files_with_secrets_are_private(spawn, tmp_path):
    """Only the owner can use the data directory and its files, also if they existed before with
    other rights, and whatever the umask.
    """
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    for name in ("bus.sqlite3", "blocks.sqlite3"):
        (data / name).touch(mode=0o644)
    before = os.umask(0)
    try:
        process = spawn("--tls").wait_ready()
    finally:
        os.umask(before)
    process.client().call("GetTopic", pb.TopicRequest(topic_name=ORDERS))
    modes = {path.name: path.stat().st_mode & 0o777 for path in data.iterdir()}
    assert data.stat().st_mode & 0o777 == 0o700
    assert {name for name, mode in modes.items() if mode & 0o077} <= {"ca.pem"}
    assert {"bus.sqlite3-wal", "blocks.sqlite3-wal", "client.toml", "ca-key.pem"} <= set(modes)


def test_a_directory_of_all_users_is_refused(spawn, tmp_path):
    """A data directory that all users share, such as /tmp, is refused and not changed."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    code, _, err = spawn(data_dir=shared).result()
    assert code == 1
    assert "shared by all users" in err
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_the_ready_file_follows_no_link(spawn, tmp_path):
    """Links that another user has put where the ready line is written are replaced, never written
    through.
    """
    target = tmp_path / "target"
    target.write_text("mine")
    file = tmp_path / "ready.json"
    file.symlink_to(target)
    process = spawn("--ready-file", str(file))
    for name in ("ready.json", "client.toml"):
        (tmp_path / f"{name}.{process.popen.pid}").symlink_to(target)
    process.wait_ready()
    assert not file.is_symlink()
    assert json.loads(file.read_text()) == process.ready
    assert target.read_text() == "mine"


APPS = """
[[users]]
username = "me@example.com"

[[apps]]
client_id = "mine"
client_secret = "secret"
run_as = "me@example.com"
"""


@pytest.mark.parametrize(
    ("options", "seed", "auth"),
    [
        ([], None, "client-credentials"),
        (["--tls"], None, "client-credentials"),
        ([], APPS, "token"),
        # A name of another machine, which the client must be allowed to reach in plaintext.
        (["--advertise", socket.gethostname()], None, "client-credentials"),
        (["--advertise", socket.gethostname()], APPS, "token"),
    ],
)
def test_a_client_connects_with_the_settings_file_alone(
    spawn, tmp_path, monkeypatch, options, seed, auth
):
    """The emulator writes a settings file that only its owner can read.

    A client that is given only this file can sign in and call the emulator.
    """
    for variable in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        monkeypatch.delenv(variable)
    if seed is not None:
        (tmp_path / "seed.toml").write_text(seed)
        options = [*options, "--seed", str(tmp_path / "seed.toml")]
    process = spawn(*options, "--data-dir", str(tmp_path / "org")).wait_ready()
    file = tmp_path / "org" / "client.toml"
    assert file.stat().st_mode & 0o077 == 0
    assert tomllib.loads(file.read_text())["auth"] == auth
    with PubSubClient.from_env({"config": str(file)}) as client:
        if seed is None:
            assert client.get_topic(ORDERS).can_subscribe
        else:  # a seed without topics
            with pytest.raises(TopicNotFoundError):
                client.get_topic(ORDERS)
    process.popen.send_signal(signal.SIGTERM)
    assert process.result() == (0, "", "")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--advertise", "http://x"], "http://x"),
        (["--advertise", "x:port"], "x:port"),
        (["--tls", "--tls-name", "a" * 300], "a" * 300),
        (["--ready-file", "/no/such/directory/ready"], "/no/such/directory/ready"),
    ],
)
def test_invalid_names_and_paths_exit_with_one_line(spawn, options, named):
    """If a name, URL or path is invalid, the command exits with code 1.

    A one-line error names the invalid value.
    """
    code, out, err = spawn(*options).result()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ")
    assert named in err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_the_process_without_output(spawn, sent, code):
    """SIGTERM ends the process with code 0, and Ctrl-C with 130, even if a stream is open.

    Neither prints anything.
    """
    process = spawn().wait_ready()
    client = process.client()
    stream = client.subscribe()
    assert stream.silent(0.05)
    process.popen.send_signal(sent)
    assert process.result() == (code, "", "")
    client.close()


def test_a_second_emulator_on_a_directory_is_rejected(spawn):
    """A second emulator on the same data directory exits with code 1 and a one-line error."""
    spawn().wait_ready()
    code, out, err = spawn().result()
    assert (code, out) == (1, "")
    assert err.startswith("error: data directory ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port"])
def test_a_port_in_use_is_an_error(spawn, option):
    """If a port is already in use, the command exits with code 1.

    A one-line error names the port.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, out, err = spawn(option, port).result()
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(lines)) == (1, "", 1)
    assert port in lines[0]


@pytest.mark.parametrize(
    "arguments", [["--grpc-port", "x"], ["--grpc-port", "70000"], ["--nonsense"], ["extra"]]
)
def test_usage_errors_exit_with_code_2(arguments):
    """With an invalid option or argument, the command exits with code 2."""
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_a_missing_seed_is_an_error(tmp_path):
    """A missing seed file is an error that names it, and no data directory is created."""
    data = tmp_path / "data"
    result = CliRunner().invoke(
        command, ["--data-dir", str(data), "--seed", str(tmp_path / "none.toml")]
    )
    assert result.exit_code == 1
    assert result.output.startswith(f"error: seed {tmp_path / 'none.toml'}: ")
    assert not data.exists()


def test_tls_without_its_package_names_the_extra(tmp_path, monkeypatch):
    """Without the package trustme, `--tls` is an error that names the extra to install.

    An emulator without TLS still starts.
    """
    monkeypatch.setitem(sys.modules, "trustme", None)
    result = CliRunner().invoke(command, ["--tls", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith("error: TLS needs the package trustme")
    assert "sfpubsub[emulator]" in result.output
    with EmulatorServer(tmp_path):
        pass


def test_help_explains_each_option():
    """Every option of the command has a help text."""
    assert all(getattr(param, "help", None) for param in command.params)
