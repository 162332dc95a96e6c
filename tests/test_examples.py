"""Tests that run the programs in examples/ unchanged against the emulator.

The programs that need a Spark session are run in tests/spark/test_examples.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .cli.test_cli import point_at
from .client.test_managed import ACCOUNT, NAME, TOPIC, committed
from .conftest import PATIENCE, until
from .pages import ROOT

EXAMPLES = ROOT / "examples"

# Examples that this module runs, and those that another test file runs.
RUN_HERE = {"consume.py", "consume_async.py", "managed_workers.py", "notebook.ipynb"}
RUN_ELSEWHERE = {
    "ingest_job.py": "tests/spark/test_examples.py",
    "mirror.py": "tests/spark/test_examples.py",
    "outbox.py": "tests/faults/test_kill_publish.py",
    "postgres.py": "tests/faults/test_kill_postgres.py",
    "streaming_query.py": "tests/spark/test_examples.py",
}


@pytest.fixture
def orders_service(run_emulator, monkeypatch):
    """Start an emulator with three orders and one change, and point programs to it."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    emulator.published = emulator.publish(
        TOPIC,
        [
            {"Order_Number__c": "1", "City__c": "Rome", "Amount__c": 1.5},
            {"Order_Number__c": "2", "City__c": "Oslo", "Amount__c": None},
            {"Order_Number__c": "3", "City__c": "Rome", "Amount__c": 2.5},
        ],
    )
    emulator.publish("/data/AccountChangeEvent", [ACCOUNT])
    return emulator


def start(name: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start the example program *name* with these arguments in a new process."""
    return subprocess.Popen(
        [sys.executable, EXAMPLES / name, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_every_example_is_run():
    """Every file in examples/ is run here, or in a test file that names it."""
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert files == RUN_HERE | RUN_ELSEWHERE.keys()
    for name, test in RUN_ELSEWHERE.items():
        assert name.removesuffix(".py") in (ROOT / test).read_text(encoding="utf-8"), name


def test_consume_resumes_where_it_stopped(orders_service, tmp_path):
    """After SIGTERM stops consume.py, its next run prints only the new event."""
    for published in (3, 1):
        with start("consume.py", TOPIC, tmp_path / "positions.json") as program:
            lines = [program.stdout.readline() for _ in range(published)]
            program.send_signal(signal.SIGTERM)
            out, err = program.communicate(timeout=PATIENCE)
        assert (program.returncode, out, err) == (0, "", "")
        numbers = [json.loads(line)["Order_Number__c"] for line in lines]
        assert numbers == (["1", "2", "3"] if published == 3 else ["4"])
        orders_service.publish(TOPIC, [{"Order_Number__c": "4"}])


def test_consume_async_reads_all_topics(orders_service):
    """consume_async.py reads all events of both topics that it is given."""
    with start("consume_async.py", TOPIC, "/data/AccountChangeEvent") as program:
        out, err = program.communicate(timeout=PATIENCE)
    assert (program.returncode, err) == (0, "")
    assert out.splitlines()[-1] == f"{{'{TOPIC}': 3, '/data/AccountChangeEvent': 1}}"


def test_managed_workers_set_failed_events_aside(orders_service, tmp_path):
    """Two orders are handled, the one without an amount is set aside, and all three are
    committed.
    """
    *_, last = orders_service.published
    with start("managed_workers.py", NAME, tmp_path / "failed") as program:
        until(lambda: committed(orders_service) == last.replay_id)
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, err
    assert sorted(out.splitlines()) == ["1 1.5", "3 2.5", "handled 2, set aside 1"]


def test_the_notebook_runs(orders_service):
    """The cells run in order and compute the total for each city.

    The notebook is stored without outputs.
    """
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    assert names["frame"].groupby("City__c")["Amount__c"].sum().to_dict() == {
        "Oslo": 0.0,
        "Rome": 4.0,
    }
