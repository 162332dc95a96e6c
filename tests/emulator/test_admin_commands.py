"""Tests of commands such as `sfpubsub emulator publish`, against a running emulator."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from sfpubsub.cli.main import cli
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.server import EmulatorServer

from .support import ACCOUNTS, MANAGED, ORDERS, WAIT_S


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """An emulator that all tests of this module share."""
    with EmulatorServer(tmp_path_factory.mktemp("data"), clock=ManualClock()) as emulator:
        yield emulator


@pytest.fixture
def command(running, monkeypatch):
    """Return a function that runs a command; it returns the exit code and the output.

    The output is a list of decoded JSON lines if the exit code is 0, and a string otherwise.
    """
    monkeypatch.setenv("SFPUBSUB_EMULATOR_URL", running.http_url)

    def run(*arguments: str, stdin: str = "") -> tuple[int, Any]:
        done = CliRunner().invoke(cli, ["emulator", *arguments], input=stdin)
        if done.exit_code:
            return done.exit_code, done.output
        return 0, [json.loads(line) for line in done.output.splitlines()]

    return run


def test_publish_publishes_one_event_per_line(command, running):
    """`publish` publishes each line of stdin as one event, and prints the results in order.

    Input with too many lines for one request is split across several. Change events can be
    published too.
    """
    before = running.bus.tip()
    lines = [json.dumps({"Order_Number__c": str(number)}) for number in range(401)]
    code, results = command("publish", ORDERS, stdin="\n".join(lines))
    assert (code, len(results)) == (0, 401)
    ids = [running.bus.ids.read(bytes.fromhex(row["replay_id"])) for row in results]
    assert ids == list(range(before + 1, before + 402))
    code, (row,) = command("publish", ACCOUNTS, stdin='{"Name": "x"}\n')
    assert code == 0
    assert set(row) == {"event_id", "replay_id"}


def test_publish_names_the_lines_of_a_rejected_request(command, running):
    """A request of several lines is published as a whole or not at all.

    If it is rejected, the error names its lines.
    """
    before = running.bus.tip()
    code, output = command("publish", ORDERS, stdin="{}\n" * 200 + '\n{}\n{"Nonsense": 1}\n')
    assert code == 1
    assert "lines 202 to 203 of <stdin> could not be published" in output
    assert running.bus.tip() == before + 200


@pytest.mark.parametrize(
    ("topic", "line", "said"),
    [
        (ORDERS, "{", "line 1 of <stdin> is not valid JSON"),
        (ORDERS, "[]", "line 1 of <stdin> is not a JSON object"),
        (ORDERS, '{"Nonsense": 1}', "does not have these fields: Nonsense"),
        ("/event/None__e", "{}", "/event/None__e"),
        ("/data/ChangeEvents", "{}", "is a channel"),
    ],
)
def test_publish_rejects_invalid_lines(command, running, topic, line, said):
    """For a line that cannot be published, `publish` exits with code 1 and an error message.

    Nothing in the request is published.
    """
    before = running.bus.tip()
    code, output = command("publish", topic, stdin=line)
    assert code == 1
    assert said in output
    assert running.bus.tip() == before


def test_topics_and_subscriptions(command, running):
    """`topics` and `subscriptions` print the names and counts from the emulator's health page."""
    rows = command("topics")[1]
    assert ORDERS in {row["name"] for row in rows}
    assert {"published", "delivered", "streams"} <= set(rows[0])
    (row,) = command("subscriptions")[1]
    assert (row["name"], row["state"], row["committed_replay_id"]) == (MANAGED, "RUN", None)


def test_faults_can_be_added_listed_and_switched_off(command, running):
    """`faults` adds a fault with parameters, lists all faults, and switches one off.

    Invalid usage exits with code 1 or 2.
    """
    code, (row,) = command("faults", "add", "drop_stream", "after_responses=3", "status=RESET")
    assert code == 0
    listed = command("faults")[1][row["number"]]
    assert (listed["kind"], listed["after_responses"], listed["status"]) == (
        "drop_stream",
        3,
        "RESET",
    )
    assert command("faults", "list")[1][row["number"]] == listed
    assert "drop_stream" in {kind["kind"] for kind in command("faults", "kinds")[1]}
    code, (off,) = command("faults", "off", str(row["number"]))
    assert (code, off) == (0, {**listed, "off": True})
    assert command("faults", "off", str(row["number"]))[0] == 1
    assert command("faults", "off", "1000")[0] == 1
    assert command("faults", "add", "nonsense")[0] == 1
    assert command("faults", "add", "drop_stream", "nonsense")[0] == 2


def test_clock_shows_and_advances_the_time(command, running):
    """`clock` prints the emulator's time, and `--jump` advances it."""
    before = running.clock.now()
    assert command("clock")[1][0]["now"] == before
    assert command("clock", "--jump", "73h")[1][0]["now"] == before + 73 * 3600
    assert running.clock.now() == before + 73 * 3600
    assert command("clock", "--jump", "soon")[0] == 2


def test_a_command_waits_for_an_emulator_that_starts(tmp_path):
    """A command that comes before the emulator listens, as in a pasted block, says what it waits
    for, and then does its work.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    early = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sfpubsub",
            "emulator",
            "clock",
            "--url",
            f"http://127.0.0.1:{port}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert early.stderr.readline() == f"waiting for an emulator at http://127.0.0.1:{port}\n"
    with EmulatorServer(tmp_path, http_port=port):
        out, err = early.communicate(timeout=WAIT_S)
    assert (early.returncode, err) == (0, "")
    assert json.loads(out)["now"] > 0


def test_no_emulator_at_the_url_is_an_error(command, monkeypatch):
    """If no emulator responds, the command exits with code 1, and the error names the URL."""
    monkeypatch.setattr("sfpubsub.cli.emulator_admin._STARTING_S", 0)
    code, output = command("topics", "--url", "http://127.0.0.1:1")
    assert code == 1
    assert "no emulator answers at http://127.0.0.1:1" in output


def test_url_with_the_grpc_port_is_rejected(command, running, monkeypatch):
    """A URL with the gRPC port is an error that says to use the HTTP port."""
    monkeypatch.setattr("sfpubsub.cli.emulator_admin._STARTING_S", 0)
    code, output = command("topics", "--url", f"http://{running.grpc_target}")
    assert code == 1
    assert "does not speak HTTP; use the emulator's http port" in output
    assert "seed" not in command("clock", "--url", "http://127.0.0.1:1")[1]


def test_server_options_are_rejected_with_a_command(command):
    """Options that apply to starting an emulator, such as `--http-port`, are rejected."""
    code, output = command("--http-port", "7012", "topics")
    assert code == 2
    assert "--url" in output


def test_an_org_with_its_own_apps_needs_a_token(tmp_path, monkeypatch):
    """If the seed defines apps, a command needs a token in SFPUBSUB_EMULATOR_TOKEN.

    Without it, the error says where to find the token.
    """
    seed = tmp_path / "seed.toml"
    seed.write_text(
        '[[users]]\nusername = "me@example.com"\n[[apps]]\nclient_id = "x"\nclient_secret = "y"\n'
    )
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        arguments = ["emulator", "clock", "--url", emulator.http_url]
        refused = CliRunner().invoke(cli, arguments)
        assert refused.exit_code == 1
        assert "access_token from the JSON line" in refused.output
        monkeypatch.setenv("SFPUBSUB_EMULATOR_TOKEN", emulator.access_token)
        assert CliRunner().invoke(cli, arguments).exit_code == 0


def test_commands_reach_an_emulator_with_tls(tmp_path):
    """A command reaches an emulator that uses TLS if `--ca-file` is given, and otherwise fails."""
    with EmulatorServer(tmp_path, tls=True) as emulator:
        arguments = ["emulator", "topics", "--url", emulator.http_url]
        assert CliRunner().invoke(cli, arguments).exit_code == 1
        trusting = [*arguments, "--ca-file", str(emulator.ca_file)]
        assert CliRunner().invoke(cli, trusting).exit_code == 0


def test_until_stdin_closes_stops_the_emulator(spawn):
    """With `--until-stdin-closes`, the emulator exits with code 0 when its stdin is closed."""
    process = spawn("--until-stdin-closes", stdin=True).wait_ready()
    process.popen.stdin.close()
    assert process.popen.wait(WAIT_S) == 0


def test_records_can_be_created_queried_updated_and_deleted(command, running):
    """`records` creates, queries, updates, shows and deletes a record.

    Each change publishes one change event.
    """
    assert "Account" in {row["name"] for row in command("records")[1]}
    before = running.bus.tip()
    code, (made,) = command("records", "create", "Account", "Name=Acme", "NumberOfEmployees=7")
    assert code == 0
    key = made["id"]
    found = command("records", "query", "SELECT Id, Name FROM Account")[1]
    assert found == [{"Id": key, "Name": "Acme"}]
    assert command("records", "update", "Account", key, "NumberOfEmployees=", "Name=A=B")[0] == 0
    (shown,) = command("records", "show", "Account", key)[1]
    assert (shown["Name"], shown["NumberOfEmployees"]) == ("A=B", None)
    assert command("records", "delete", "Account", key)[0] == 0
    assert running.bus.tip() == before + 3
    code, output = command("records", "show", "Account", key)
    assert code == 1
    assert "deleted" in output
    assert command("records", "create", "Account", "Name")[0] == 2
