"""Tests that run the examples and commands in the documentation."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sfpubsub import FileReplayStore, ReplayId, StartPosition
from sfpubsub.cli.main import cli, run
from sfpubsub.config import Settings
from sfpubsub.testing import Fault

from . import java
from .cli.test_cli import point_at
from .client.test_managed import ACCOUNT, NAME, TOPIC, committed, orders
from .conftest import PATIENCE, until
from .pages import DOCS, ROOT, blocks, page

PAGES = [
    page("install"),
    page("migrating"),
    ROOT / "README.md",
    page("client"),
    page("publishing"),
    page("handlers"),
    page("values"),
    page("change-events"),
    page("arrow"),
    page("performance"),
    page("quarantine"),
    page("settings"),
    page("signing-in"),
    page("managed-subscriptions"),
    page("operations"),
]


EXAMPLES = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in PAGES
    for number, code in enumerate(blocks(path, "python"), 1)
]


@pytest.fixture
def _restored_logging():
    """Restore the loggers that an example changes."""
    names = ["", "sfpubsub", "sfpubsub.transport"]
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.usefixtures("_restored_logging")
@pytest.mark.parametrize("code", EXAMPLES)
def test_a_python_example_runs(code, run_emulator, monkeypatch, tmp_path):
    """Every Python block of the pages runs unchanged against the emulator."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    monkeypatch.chdir(tmp_path)
    *_, last = emulator.publish(TOPIC, orders(3))
    emulator.publish("/data/AccountChangeEvent", [ACCOUNT])

    class EnoughError(Exception):
        pass

    # The README's loop is endless, so the test leaves it at its first print.
    def printed(*_values):
        raise EnoughError

    namespace = {"__name__": "example"}
    if "for batch in subscription" in code:
        with pytest.raises(EnoughError):
            exec(compile(code, "example", "exec"), {**namespace, "print": printed})
    elif "subscription.run(" in code:
        with sigterm_when(lambda: committed(emulator) == last.replay_id, namespace):
            exec(compile(code, "example", "exec"), namespace)
    else:
        exec(compile(code, "example", "exec"), namespace)


def test_the_replay_store_example_resumes(run_emulator, monkeypatch, tmp_path, capsys):
    """The replay store example reads all events in its first run, and none when it is run again."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    monkeypatch.chdir(tmp_path)
    *_, last = emulator.publish(TOPIC, orders(3))
    (code,) = [code for code in blocks(page("client"), "python") if "FileReplayStore" in code]
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "['0', '1', '2']\n"
    with FileReplayStore("positions.json") as store:
        assert store.get(TOPIC) == StartPosition.after(ReplayId(last.replay_id))
    code = code.replace("timeout=10", "timeout=1")
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == ""


PROGRAMS = blocks(page("programs"), "python")


def run_program(number: int, tmp_path: Path) -> subprocess.Popen[str]:
    """Write the program with index *number* on the programs page to a file, and start it."""
    file = tmp_path / f"program_{number}.py"
    file.write_text(PROGRAMS[number])
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def order_service(run_emulator, monkeypatch):
    """Start an emulator with three orders and one change event, and let the documented programs
    connect to it.
    """
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    emulator.last_id = emulator.publish(TOPIC, orders(3))[-1].replay_id
    emulator.publish("/data/AccountChangeEvent", [ACCOUNT])
    return emulator


def test_the_program_that_breaks_out_of_its_loop_commits(order_service, tmp_path):
    """The program that leaves its loop commits the batch that it printed."""
    with run_program(0, tmp_path) as program:
        out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, err) == (0, "")
    assert out == "['0', '1', '2']\n"
    assert committed(order_service) == order_service.last_id


def test_the_program_with_a_signal_handler_drains(order_service, tmp_path):
    """After SIGTERM the program commits what it printed and exits by itself."""
    with run_program(1, tmp_path) as program:
        assert program.stdout.readline() == "['0', '1', '2']\n"
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, out, err) == (0, "drained\n", "")
    assert committed(order_service) == order_service.last_id


def test_the_program_for_several_topics_reads_them_all(order_service, tmp_path):
    """The documented program prints the number of events for each of its two topics."""
    with run_program(2, tmp_path) as program:
        out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, err) == (0, "")
    assert out == "{'/event/Order_Event__e': 3, '/data/AccountChangeEvent': 1}\n"


def test_error_handling_example_names_the_missing_topic(order_service, tmp_path):
    """The documented program for handling errors prints the name of a topic that does not exist."""
    with run_program(3, tmp_path) as program:
        out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, err) == (0, "")
    assert out.startswith("no such topic: ")
    assert "/event/No_Such_Event__e" in out


def test_the_example_test_of_a_subscriber_passes(tmp_path):
    """The documented example of testing a subscriber passes when it is run as a file by itself."""
    (tmp_path / "test_orders.py").write_text(PROGRAMS[4])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@contextlib.contextmanager
def sigterm_when(condition, namespace):
    """Send SIGTERM to this process, as a service manager would, once *condition* holds.

    Within the block, the signal stops the example's subscription, which is the variable
    `subscription` in *namespace*. If *condition* never holds, the signal is sent all the same, so
    that the example ends, and an error is raised.
    """

    def tell():
        try:
            until(condition)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: namespace["subscription"].stop())
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell)
        try:
            yield
            told.result()
        finally:
            signal.signal(signal.SIGTERM, before)


EMULATOR_PAGE = page("emulator")


def test_the_emulators_change_events_are_published_and_read(
    run_emulator, monkeypatch, tmp_path, capsys
):
    """The emulator page's program reads the change events of the page's seed, and prints what the
    page shows.
    """
    _, seed, _ = blocks(EMULATOR_PAGE, "toml")
    (tmp_path / "changes.toml").write_text(seed)
    point_at(run_emulator(seed=tmp_path / "changes.toml"), monkeypatch)
    (code,) = [code for code in blocks(EMULATOR_PAGE, "python") if "from_env" in code]
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert [capsys.readouterr().out] == blocks(EMULATOR_PAGE, "text")


def test_the_emulators_settings_file_is_complete(run_emulator, monkeypatch, tmp_path, capsys):
    """With the emulator page's settings file alone, `doctor` succeeds over TLS."""
    emulator = run_emulator(tls=True)
    for variable in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        monkeypatch.delenv(variable)
    *_, text = blocks(EMULATOR_PAGE, "toml")
    for shown, real in (
        ("127.0.0.1:7011", emulator.grpc_target),
        ("https://127.0.0.1:7012", emulator.http_url),
        ("/tmp/emulator/ca.pem", str(emulator.ca_file)),
    ):
        assert shown in text
        text = text.replace(shown, real)
    file = tmp_path / "pubsub.toml"
    file.write_text(text)
    file.chmod(0o600)
    (doctor,) = [
        shlex.split(line)
        for block in blocks(EMULATOR_PAGE, "sh")
        for line in block.splitlines()
        if "doctor" in line
    ]
    monkeypatch.chdir(tmp_path)
    assert run(doctor[1:]) == 0, capsys.readouterr()
    assert "ok      TLS" in capsys.readouterr().out


README = ROOT / "README.md"


@pytest.fixture
def free_ports() -> dict[str, str]:
    """Return a free port, as a string, for each of the two ports that the pages use."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        return {"7011": str(one.getsockname()[1]), "7012": str(other.getsockname()[1])}


@contextlib.contextmanager
def terminal(block: str, tmp_path: Path, ports: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a block of shell commands in a directory that stands in for a clone of the repository,
    with a home directory of its own.
    """
    clone, home = tmp_path / "clone", tmp_path / "home"
    (clone / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    python = Path(sys.executable).parent
    (clone / ".venv" / "bin" / "activate").write_text(f"export PATH={python}:$PATH\n")
    for shown, real in ports.items():
        block = block.replace(shown, real)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SFPUBSUB_", "XDG_"))}
    process = subprocess.Popen(
        ["bash", "-c", block],
        cwd=clone,
        env={**environ, **java.environment(), "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process.stdout, process.stderr:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # all processes have ended
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)


def test_the_readmes_settings_file_is_valid(tmp_path, monkeypatch):
    """The README's settings file loads, so it has no unknown setting."""
    for variable in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        monkeypatch.delenv(variable)
    (text,) = blocks(README, "toml")
    file = tmp_path / "pubsub.toml"
    file.write_text(text)
    file.chmod(0o600)
    assert Settings.load({"config": str(file)}).auth == "client-credentials"


OPERATIONS = page("operations")


def test_the_commands_of_the_operations_page_run(run_emulator, monkeypatch, tmp_path, capsys):
    """The commands on the operations page run in the order in which the page shows them.

    `lag` prints the lines and JSON keys that the page lists.
    """
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    emulator.publish(TOPIC, orders(3))
    assert run(["subscribe", "--managed", NAME, "--max-events", "3"]) == 0
    printed = {}
    for line in "".join(blocks(OPERATIONS, "sh")).splitlines():
        capsys.readouterr()
        if "|" in line:
            subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True, timeout=PATIENCE)
        else:
            assert run(shlex.split(line)[1:]) == 0, line
            printed[line] = capsys.readouterr().out
    head = f"subscribe of {NAME}\n"
    (shown,) = [text for text in blocks(OPERATIONS, "text") if text.startswith(head)]
    (page,) = [part for part in printed["sfpubsub lag"].split("\n\n") if part.startswith(head)]
    assert _names(page) == _names(shown)
    (keys,) = [json.loads(out) for line, out in printed.items() if line.endswith("--json")]
    _, _, table = OPERATIONS.read_text().partition("| key of `--json` |")
    told = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()[2:]]
    assert set(keys) == set(re.findall(r"`(\w+)`", " ".join(told))) - {"topic"}


def _names(page: str) -> list[str]:
    """Return the names in the first column of what `lag` prints."""
    return [line[2:22].strip() for line in page.splitlines()[1:]]


SILENCE = page("nothing-arrives")


def test_the_commands_for_when_nothing_arrives_run(run_emulator, monkeypatch, tmp_path):
    """The commands of the page run in its order, and the event that they publish arrives."""
    point_at(run_emulator(), monkeypatch)
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert run(["subscribe", "--managed", NAME, "--idle-timeout", "0.1"]) == 0  # for lag
    printed = {}
    for line in "".join(blocks(SILENCE, "sh")).splitlines():
        quick = line.replace("--idle-timeout 30", "--idle-timeout 1")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", quick],
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, line
        printed[line] = done.stdout
    (arrived,) = [text for line, text in printed.items() if line.endswith("tail -1")]
    assert json.loads(arrived)["payload"]["Order_Number__c"] == "test"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["doctor", "--topic", "/event/Nope__e"], "failed topic: … no topic …"),
        (["doctor", "--managed", NAME], "failed managed subscription: … is in state STOP"),
        (["doctor", "--managed", "No"], "failed managed subscription: … no managed subscription …"),
        (["doctor", "--object", "Contact"], "failed changes of …: not selected …"),
        (["subscribe", "--topic", TOPIC], "error: … exceeded the event delivery limit …"),
        (["publish", "/data/AccountChangeEvent"], "error: you cannot publish to …"),
    ],
)
def test_the_answers_for_when_nothing_arrives_are_given(
    command, answer, run_emulator, monkeypatch, capsys
):
    """The page's answers to its questions are what the commands print."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    assert f"| `{answer}`" in SILENCE.read_text(encoding="utf-8").replace("  ", " ")
    assert run(["managed", "stop", NAME, "--yes"]) == 0
    if command[0] == "subscribe":
        limit = "subscription.limit.exceeded"
        emulator.faults.add(Fault("refuse", rpc="Subscribe", error_code=limit))
    monkeypatch.setattr("sys.stdin", io.StringIO("{}\n"))
    capsys.readouterr()
    assert run(command) != 0
    text = " ".join("".join(capsys.readouterr()).split())
    assert re.search(re.escape(answer).replace("…", ".*"), text), text


def test_the_command_lines_of_the_readme_parse():
    """The commands in the README, and the long-running ones on the operations page, parse."""
    lines = [
        line.partition("#")[0].strip()
        for block in [*blocks(ROOT / "README.md", "sh"), *blocks(OPERATIONS, "bash")]
        for line in block.splitlines()
        if line.startswith("sfpubsub ") and not line.endswith("&")
    ]
    assert any("--http" in line for line in lines)
    assert len(lines) >= 6
    for line in lines:
        _, command, *arguments = shlex.split(line)
        with cli.make_context("sfpubsub", [command, *arguments]) as context:
            found = cli.get_command(context, command)
            assert found is not None
            if "--file" not in arguments:  # parsing it would open the file
                found.make_context(command, arguments, parent=context).close()


def test_links_between_pages_are_not_broken():
    """Every relative link in the documentation points to an existing file."""
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
