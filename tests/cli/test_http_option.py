"""The option `--http`, with which a running command serves metrics, health and a status page."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request

import pytest

from sfpubsub.cli.main import run

from ..client.test_managed import NAME, TOPIC, orders
from ..conftest import PATIENCE, until, wait_for_exit
from .test_cli import assert_one_line_error, point_at, spawn

SECRET = "in-a-payload"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


def test_subscribe_serves_metrics_health_and_a_page(run_emulator):
    """The pages are served only while the command runs, and contain no event values or tokens."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(2))
    emulator.publish(TOPIC, [{"Order_Number__c": SECRET}])
    process = spawn(emulator, "subscribe", "--managed", NAME, "--http", "0")
    said = process.stderr.readline()
    url = re.fullmatch(r"metrics, health and status page: (http://127\.0\.0\.1:\d+/)\n", said)[1]
    for _ in range(3):
        process.stdout.readline()
    system = 'messaging_system="salesforce_pubsub"'
    settled = (
        "messaging_salesforce_settled_messages_total"
        f'{{messaging_destination_subscription_name="{NAME}",{system}}} 3'
    )
    metrics = until(lambda: settled in (text := get(f"{url}metrics")) and text)
    health, page = get(f"{url}health"), get(url)
    assert json.loads(health) == {"status": "ok", "problems": []}
    assert f"subscribe to {NAME}" in page
    for text in (metrics, health, page):
        assert SECRET not in text
        assert emulator.access_token.partition("!")[2] not in text
    process.send_signal(signal.SIGINT)
    assert wait_for_exit(process)[1] == "3 events\n"
    assert process.returncode == 130
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_http_cannot_be_used_with_channel(capsys):
    """`--channel` has no subscription to watch, so combining it with `--http` is a usage error."""
    assert run(["subscribe", "--channel", "/topic/X", "--http", "0"]) == 2
    assert "--http cannot be used with --channel" in capsys.readouterr().err


def test_port_in_use_is_a_one_line_error(run_emulator, monkeypatch, capsys):
    """A port that is already in use is reported before any event is printed."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    port = emulator.grpc_target.rpartition(":")[2]
    assert run(["subscribe", "--topic", TOPIC, "--http", port]) == 1
    assert_one_line_error(capsys, f"cannot listen on 127.0.0.1:{port}")
