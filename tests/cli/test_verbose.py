"""Tests of what `-v` and `-vv` log, especially in a healthy run; secrets are never logged."""

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
    """Start an emulator that holds 12 events, and drops the first stream after two responses."""
    plan = FaultPlan([Fault("drop_stream", after_responses=2)])
    started = run_emulator(faults=plan, settings=Settings(events_per_response=4))
    point_at(started, monkeypatch)
    started.publish(TOPIC, [{"Order_Number__c": MARK} for _ in range(12)])
    return started


def stderr_lines(capsys, *arguments: str) -> list[str]:
    """Subscribe to 12 events with *arguments*, and return the lines of stderr."""
    assert run([*arguments, "subscribe", "--managed", NAME, "--max-events", "12"]) == 0
    return capsys.readouterr().err.splitlines()


def test_healthy_run_logs_nothing_without_v(emulator, capsys):
    """Without -v a healthy run prints no INFO line and no DEBUG line."""
    assert [line for line in stderr_lines(capsys) if line.startswith(("INFO", "DEBUG"))] == []


def test_v_logs_each_step_of_a_healthy_subscription(emulator, capsys):
    """Sign-in, connection, subscription and first response are INFO lines.

    Without -vv there is no DEBUG line.
    """
    said = stderr_lines(capsys, "-v")
    for text in (
        f"INFO sfpubsub.cli: signed in at {emulator.instance_url}, org {emulator.tenant_id}",
        f"INFO sfpubsub.transport: connected to {emulator.grpc_target}",
        f"INFO sfpubsub.transport: subscribing to {NAME}, requesting ",
        f"INFO sfpubsub.transport: first response for {NAME} after ",
    ):
        assert [line for line in said if line.startswith(text)], (text, said)
    assert not [line for line in said if line.startswith("DEBUG")]


def test_vv_logs_every_request_and_response(emulator, capsys):
    """With -vv, each request, response, commit and commit response is logged at DEBUG level."""
    said = stderr_lines(capsys, "-vv")
    about = f"DEBUG sfpubsub.transport: response for {NAME}: 4 events, "
    assert len([line for line in said if line.startswith(about)]) >= 3
    requests = [
        line for line in said if line.startswith(f"DEBUG sfpubsub.transport: request for {NAME}: ")
    ]
    assert [line for line in requests if "; commit up to 00" in line]
    assert [line for line in said if line.endswith("; commit: confirmed")]
    assert run(["-vv", "topic", TOPIC]) == 0
    assert f"topic {TOPIC}: response after " in capsys.readouterr().err


def test_no_log_message_contains_a_secret(emulator, capsys, caplog):
    """No log message of a run with -vv contains an access token or a payload.

    The run must reach every log call with arguments in the modules `channel` and `service`.
    """
    stderr_lines(capsys, "-vv")
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
    """Return the line numbers of the logger calls in *source* that pass arguments besides the
    message.
    """
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and len(node.args) > 1
    ]
