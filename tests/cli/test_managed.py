"""``sfpubsub managed`` against the emulator: its JSON output, its messages and its exit codes."""

from __future__ import annotations

import json
import shlex
import sys
import threading

import pytest

from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.session import CurrentSession
from sfpubsub.cli import managed as cli_managed
from sfpubsub.cli.main import run
from sfpubsub.cli.service import client_of
from sfpubsub.config import Settings as ClientSettings
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import SubscriptionStoppedError

from ..client.test_managed import NAME, TOPIC, committed, orders
from ..conftest import PATIENCE, until
from ..pages import blocks, page
from .test_cli import assert_one_line_error, point_at

NEW = "New_Subscription"


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator()
    point_at(started, monkeypatch)
    return started


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Shorten the waits: a subscription is checked every 0.05 s and available after 0.3 s."""
    monkeypatch.setattr("sfpubsub.cli.managed.ACCEPTED", 0.3)
    monkeypatch.setattr("sfpubsub.cli.managed.CHECK_EVERY", 0.05)


def lines(capsys) -> tuple[list[dict], str]:
    """Return the JSON lines printed to stdout, and the text printed to stderr."""
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_managed_subscription_lifecycle(emulator, capsys):
    """Each subcommand from create to delete prints the record as one JSON line.

    List prints one line for each record.
    """
    assert run(["managed", "create", NEW, "--topic", TOPIC, "--label", "For people"]) == 0
    (made,), said = lines(capsys)
    assert made == {
        "id": made["id"],
        "developer_name": NEW,
        "label": "For people",
        "topic_name": TOPIC,
        "default_replay": "EARLIEST",
        "error_recovery_replay": "EARLIEST",
        "state": "RUN",
    }
    assert "oldest retained event (EARLIEST)" in said
    assert f"{NEW} is available" in said
    assert run(["managed", "list"]) == 0
    assert [record["developer_name"] for record in lines(capsys)[0]] == [NAME, NEW]
    for changing, change in [
        (["show", NEW], {}),
        (["show", made["id"][:15]], {}),
        (["update", NEW, "--default-replay", "latest"], {"default_replay": "LATEST"}),
        (["stop", NEW, "--yes"], {"state": "STOP"}),
        (["start", NEW], {"state": "RUN"}),
        (["delete", NEW, "--yes"], {}),
    ]:
        assert run(["managed", *changing]) == 0
        (said_now,), _ = lines(capsys)
        made |= change
        assert said_now == made, changing
    assert emulator.managed.get(NEW) is None


def test_create_waits_until_the_subscription_is_available(run_emulator, monkeypatch, capsys):
    """While a new subscription propagates, `create` reports that it is waiting.

    Once it returns, the subscription is available.
    """
    started = run_emulator(settings=Settings(propagation_s=1.0))
    point_at(started, monkeypatch)
    assert run(["managed", "create", NEW, "--topic", TOPIC]) == 0
    (_,), said = lines(capsys)
    assert "still waiting after" in said
    assert said.splitlines()[-1] == f"{NEW} is available"
    assert run(["subscribe", "--managed", NEW, "--idle-timeout", "0"]) == 0


def test_waiting_times_out_and_can_be_disabled(run_emulator, monkeypatch, capsys):
    """If a new subscription is not available in time, `create` reports it and exits with code 1.

    With --no-wait, availability is not checked.
    """
    started = run_emulator(settings=Settings(propagation_s=600.0))
    point_at(started, monkeypatch)
    monkeypatch.setattr("sfpubsub.cli.managed.PROPAGATION", 0.1)
    assert run(["managed", "create", NEW, "--topic", TOPIC]) == 1
    (record,), said = lines(capsys)
    assert record["developer_name"] == NEW
    assert "the change was made" in said.splitlines()[-1]
    assert run(["managed", "create", "Another", "--topic", TOPIC, "--no-wait"]) == 0
    assert "waiting" not in lines(capsys)[1]


def test_availability_check_moves_no_position(emulator, capsys):
    """The check subscribes briefly, commits nothing and releases the slot."""
    emulator.publish(TOPIC, orders(3))
    assert run(["managed", "start", NAME]) == 0
    assert committed(emulator) is None
    capsys.readouterr()
    assert run(["subscribe", "--managed", NAME, "--max-events", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_held_slot_counts_as_available(emulator, connect, capsys):
    """A subscription that another client is reading is available; that client is not disturbed."""
    with connect(emulator).subscribe_managed(NAME) as holder:
        emulator.publish(TOPIC, orders(1))
        until(lambda: holder.health().state == "streaming", "the slot")
        assert run(["managed", "start", NAME]) == 0
        assert holder.health().reconnects == 0
    assert "is available" in capsys.readouterr().err


def test_network_failure_does_not_count_as_available(run_emulator, connect):
    """If the service cannot be reached, the subscription is not reported as available."""
    started = run_emulator()
    client = connect(started)
    client.get_topic(TOPIC)
    started.stop()
    assert not cli_managed._is_served(client, NAME)


@pytest.mark.parametrize("command", [["create", NEW, "--topic", TOPIC], ["start", NAME]])
def test_change_and_wait_share_one_sign_in(run_emulator, monkeypatch, capsys, command):
    """Changing a subscription and waiting for it signs in once.

    A rotating refresh token is valid once, so a second sign-in would fail.
    """
    started = run_emulator(settings=Settings(rotate_refresh_tokens=True))
    point_at(
        started,
        monkeypatch,
        SFPUBSUB_AUTH="refresh",
        SFPUBSUB_LOGIN_URL=started.instance_url,
        SFPUBSUB_CLIENT_ID="emulator",
        SFPUBSUB_REFRESH_TOKEN="emulator-refresh-token",
    )
    assert run(["managed", *command]) == 0
    assert "is available" in lines(capsys)[1]


def test_default_replay_latest_prints_a_warning(emulator, capsys):
    """Creating a subscription with LATEST succeeds, but warns that events can be lost."""
    arguments = ["--topic", TOPIC, "--default-replay", "LATEST", "--no-wait"]
    assert run(["managed", "create", NEW, *arguments]) == 0
    (record,), said = lines(capsys)
    assert record["default_replay"] == "LATEST"
    assert "loses events" in said


@pytest.mark.parametrize("act", ["stop", "delete"])
def test_stop_and_delete_require_yes_without_a_terminal(emulator, capsys, act):
    """Without --yes or a terminal for confirmation, nothing is changed and the exit code is 2."""
    assert run(["managed", act, NAME]) == 2
    assert_one_line_error(capsys, "--yes")
    assert emulator.managed.get(NAME).state == "RUN"


@pytest.mark.parametrize(
    ("act", "warned"), [("stop", "72 hours of events are redelivered"), ("delete", "position")]
)
@pytest.mark.parametrize("answer", ["y", "n"])
def test_confirmation_states_the_consequence(emulator, capsys, monkeypatch, act, warned, answer):
    """The prompt names the subscription, its topic and what will be lost.

    Answering no changes nothing.
    """
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text, **_: (asked.append(text), answer == "y")[1])
    assert run(["managed", act, NAME]) == (0 if answer == "y" else 1)
    (question,) = asked
    assert NAME in question
    assert TOPIC in question
    assert warned in question
    record = emulator.managed.get(NAME)
    captured = capsys.readouterr()
    if answer == "y":
        assert record is None or record.state == "STOP"
    else:
        assert record.state == "RUN"
        assert captured.err == "error: not confirmed: nothing was changed\n"
        assert captured.out == ""


def test_stop_and_delete_print_their_consequences(emulator, capsys):
    """`stop` warns that the committed position is deleted.

    `delete` advises against reusing the name soon.
    """
    assert run(["managed", "stop", NAME, "--yes"]) == 0
    assert "committed position is deleted" in lines(capsys)[1]
    assert run(["managed", "delete", NAME, "--yes"]) == 0
    assert f"do not reuse the name {NAME} soon" in lines(capsys)[1]


def test_stop_ends_a_running_client(emulator, connect):
    """Stopping a subscription raises SubscriptionStoppedError in a client that is reading it."""

    def read_on() -> None:
        with connect(emulator).subscribe_managed(NAME) as running:
            emulator.publish(TOPIC, orders(1))
            assert running.next_batch(PATIENCE) is not None
            stopping = threading.Thread(target=run, args=(["managed", "stop", NAME, "--yes"],))
            stopping.start()
            running.next_batch(PATIENCE)
            stopping.join()

    with pytest.raises(SubscriptionStoppedError, match="state to RUN"):
        read_on()


def test_commands_of_the_managed_subscriptions_page_run(emulator, capsys):
    """All commands on the page succeed when run in order."""
    (block,) = blocks(page("managed-subscriptions"), "sh")
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        asks = command[1] in ("stop", "delete")
        assert run([*command, "--yes"] if asks else command) == 0, command
        assert lines(capsys)[0][-1]["developer_name"] == "My_Orders"


@pytest.mark.parametrize(
    ("arguments", "changed", "code", "says"),
    [
        (["show", "Nobody"], {}, 1, "no managed subscription Nobody"),
        (["show", "not a name"], {}, 1, "developer name"),
        (["start", "Nobody"], {}, 1, "managed list"),
        (["create", "1st", "--topic", TOPIC], {}, 1, "developer name"),
        (["create", NEW, "--topic", "Order_Event__e"], {}, 2, f"did you mean {TOPIC}?"),
        (["create", NEW, "--topic", "/event/Nothing__e"], {}, 1, "topicName"),
        (["create", NAME, "--topic", TOPIC], {}, 1, "already"),
        (["create", NEW], {}, 2, "--topic"),
        (["create", NEW, "--topic", TOPIC, "--default-replay", "custom"], {}, 2, "not one of"),
        (["update", NAME], {}, 2, "--label"),
        (["stop", "Nobody", "--yes"], {}, 1, "no managed subscription"),
        (["list"], {"SFPUBSUB_ACCESS_TOKEN": "00DSB0000000001!x"}, 3, "access token"),
        (["list"], {"SFPUBSUB_ACCESS_TOKEN": ""}, 1, "SFPUBSUB_ACCESS_TOKEN"),
        (["list"], {"SFPUBSUB_INSTANCE_URL": "http://127.0.0.1:1"}, 1, "connection was refused"),
        (["list"], {"SFPUBSUB_INSTANCE_URL": "http://example.com"}, 1, "plaintext"),
        (["nothing"], {}, 2, "nothing"),
    ],
)
def test_bad_input_is_a_one_line_error(
    emulator, monkeypatch, capsys, arguments, changed, code, says
):
    """Each mistake exits with its own code and a one-line error on stderr."""
    point_at(emulator, monkeypatch, **changed)
    assert run(["managed", *arguments]) == code
    assert_one_line_error(capsys, says)


@pytest.mark.parametrize("command", ["list", "show", "create", "update", "start", "stop", "delete"])
def test_every_subcommand_has_help(command, capsys):
    """`--help` of each subcommand exits with code 0 and prints its usage."""
    assert run(["managed", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: sfpubsub managed {command}" in out


def test_clients_of_commands_notice_a_subscription_that_was_stopped_and_started(emulator):
    """A command's client can compare the subscription's record, whose stamp changes by a stop and a
    start, and does not change by itself.
    """
    settings = ClientSettings.load({})
    sessions = CurrentSession(session_provider(settings))
    with client_of(settings, sessions) as client:
        record_of = client._connection._record_of
        before = record_of(NAME)
        assert record_of(NAME) == before
        emulator.clock.jump(1.0)
        emulator.managed.set_state(NAME, "STOP")
        emulator.managed.set_state(NAME, "RUN")
        assert record_of(NAME) != before
        assert record_of(NAME)[:3] == before[:3]
