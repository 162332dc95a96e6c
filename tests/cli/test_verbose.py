"""What ``-v`` and ``-vv`` say, on a healthy run above all, and what they never say."""

from __future__ import annotations

import ast
import inspect

import pytest

from sfpubsub.cli import service
from sfpubsub.cli.main import run
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.transports import channel

from ..client.test_managed import NAME, TOPIC
from .test_cli import point_at

MARK = "planted-in-a-payload"


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    """Publishes 12 events, drops the stream once, and repeats what was not committed."""
    plan = FaultPlan([Fault("drop_stream", after_responses=2)])
    started = run_emulator(faults=plan, settings=Settings(events_per_response=4))
    point_at(started, monkeypatch)
    started.publish(TOPIC, [{"Order_Number__c": MARK} for _ in range(12)])
    return started


def said_by(capsys, *arguments: str) -> list[str]:
    assert run([*arguments, "subscribe", "--managed", NAME, "--max-events", "12"]) == 0
    return capsys.readouterr().err.splitlines()


def test_nothing_is_logged_of_a_run_that_is_well_unless_one_asks(emulator, capsys):
    """Without -v there is one line at the end; what was waited for is told as before."""
    assert [line for line in said_by(capsys) if line.startswith(("INFO", "DEBUG"))] == []


def test_v_shows_the_life_of_a_healthy_subscription(emulator, capsys):
    """Sign-in, connection, stream, first response: a line each."""
    said = said_by(capsys, "-v")
    for text in (
        f"INFO sfpubsub.cli: signed in at {emulator.instance_url}, org {emulator.tenant_id}",
        f"INFO sfpubsub.transport: connected to {emulator.grpc_target}",
        f"INFO sfpubsub.transport: subscribing to {NAME}, requesting ",
        f"INFO sfpubsub.transport: first response for {NAME} after ",
    ):
        assert [line for line in said if line.startswith(text)], (text, said)
    assert not [line for line in said if line.startswith("DEBUG")]


def test_vv_shows_every_request_and_response_by_its_counts(emulator, capsys):
    """Credit and commits as they are sent and answered."""
    said = said_by(capsys, "-vv")
    about = f"DEBUG sfpubsub.transport: response for {NAME}: 4 events, "
    assert len([line for line in said if line.startswith(about)]) >= 3
    requests = [
        line for line in said if line.startswith(f"DEBUG sfpubsub.transport: request for {NAME}: ")
    ]
    assert [line for line in requests if "; commit up to 00" in line]
    assert [line for line in said if line.endswith("; commit: confirmed")]
    assert run(["-vv", "topic", TOPIC]) == 0
    assert f"topic {TOPIC}: response after " in capsys.readouterr().err


def test_every_line_with_arguments_is_read_and_none_has_a_secret(emulator, capsys, caplog):
    """Each log call of these modules that has arguments is reached, formatted and searched."""
    said_by(capsys, "-vv")
    reached = set()
    for record in caplog.records:
        text = record.getMessage()
        for secret in (emulator.access_token, emulator.access_token.partition("!")[2], MARK):
            assert secret not in text
        assert "accesstoken" not in text
        reached.add((record.pathname, record.lineno))
    for module in (channel, service):
        for number in _log_calls(inspect.getsource(module)):
            assert (module.__file__, number) in reached, f"{module.__name__}, line {number}"


def _log_calls(source: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and len(node.args) > 1
    ]
