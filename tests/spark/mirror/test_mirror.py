"""What a mirror promises, through the command and through the object, and what only the object
has: a caller's session and client, a stop from another thread, and exceptions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub import PubSubClient
from sfpubsub.cli.main import exit_code
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import SfPubSubError
from sfpubsub.spark.ingest.members import ALL_CHANGES
from sfpubsub.spark.mirror.mirror import Mirror
from sfpubsub.spark.mirror.settings import MirrorSettings
from sfpubsub.spark.raw.sources import Source
from tests.cli.test_cli import environment, point_at
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, World

pytestmark = pytest.mark.spark

NOW = MirrorSettings(margin=0.0, batch_seconds=0.1)


def by_command(emulator: Any, to: Path, source: Source, environ: dict[str, str]) -> Any:
    """Run the command in a process until the tables match; return its exit code, its line, and
    what it says.
    """
    options = ["--format", TABLE_FORMAT, "--margin", "0", "--batch-seconds", "0.1", "--once"]
    arguments = ["Account", "--to", str(to), f"--{source.kind}", source.name, *options]
    done = subprocess.run(
        [sys.executable, "-m", "sfpubsub", "mirror", "run", *arguments],
        env={**os.environ, **environment(emulator), **environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def by_object(
    spark: SparkSession, emulator: Any, to: Path, source: Source, environ: dict[str, str]
) -> Any:
    """Do the same with a `Mirror` and the tests' session."""
    given = {**environment(emulator), **environ}
    options = {name.removeprefix("SFPUBSUB_").lower(): text for name, text in given.items()}
    try:
        with Mirror(
            ["Account"],
            to=to,
            format=TABLE_FORMAT,
            source=source,
            settings=NOW,
            options=options,
            spark=spark,
        ) as mirror:
            report = mirror.run(once=True)
    except SfPubSubError as error:
        return exit_code(error), {}, str(error)
    return 0, {"objects": mirror.objects, **asdict(report)}, ""


# In a parallel run, with the tests that share its session (tests/spark/conftest.py).
OBJECT = pytest.param("object", marks=pytest.mark.xdist_group("spark-ingest"))


@pytest.fixture(params=["command", OBJECT])
def mirror(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return one of the two faces as a function. Only the object needs the tests' session."""
    is_command = request.param == "command"
    spark = None if is_command else request.getfixturevalue("spark")

    def run(emulator: Any, to: Path, source: Source | None = None, **environ: str) -> Any:
        source = source or Source("topic", ALL_CHANGES)
        if is_command:
            return by_command(emulator, to, source, environ)
        return by_object(spark, emulator, to, source, environ)

    return run


def test_a_mirror_resumes_and_refuses_another_org(mirror, tmp_path: Path):
    """The first run reads all records; the next one applies the changes since then, without
    reading; the session of another org is refused.
    """
    settings = Settings(keepalive_s=0.3)
    with (
        EmulatorServer(tmp_path / "one", org_id="00D000000000001", settings=settings) as one,
        EmulatorServer(tmp_path / "other", org_id="00D000000000009", settings=settings) as other,
    ):
        user = one.accounts.holder("")
        account = one.records.create("Account", {"Name": "a"}, user)
        code, line, said = mirror(one, tmp_path / "lake")
        assert code == 0, said
        assert (line["objects"], line["records"], line["reads"]) == (["Account"], 1, 1)
        one.records.update("Account", account, {"Phone": "1"}, user)
        code, line, said = mirror(one, tmp_path / "lake")
        assert code == 0, said
        assert (line["events"], line["reads"]) == (1, 0)
        code, _, said = mirror(other, tmp_path / "lake")
        assert (code, "00D000000000009EAA" in said) == (2, True)


def test_a_filtered_object_and_a_rejected_session_are_refused(mirror, run_emulator, tmp_path: Path):
    """An object of which the channel delivers only some events is refused, with a managed
    subscription too, and the filter is named. A rejected session is refused before there is a
    table.
    """
    emulator = run_emulator()
    (member,) = [
        each
        for each in emulator.event_channels.members("ChangeEvents")
        if each.entity == "AccountChangeEvent"
    ]
    emulator.event_channels.change(member.member_id, "BillingCity = 'Rome'", [])
    emulator.managed.create("Changes", ALL_CHANGES)
    expired = {"SFPUBSUB_ACCESS_TOKEN": "00D000000000001!expired"}
    code, _, said = mirror(emulator, tmp_path / "lake", **expired)
    assert code == 3, said
    assert not (tmp_path / "lake").exists()
    code, _, said = mirror(emulator, tmp_path / "lake", Source("managed", "Changes"))
    assert code == 2, said
    assert "BillingCity = 'Rome'" in said


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, monkeypatch) -> Any:
    """An org with accounts, at which the environment points."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        point_at(emulator, monkeypatch)
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def test_a_stop_from_another_thread_leaves_open_what_is_the_callers(
    world: World, connect: Callable[..., PubSubClient]
):
    """The mirror tells its state while it runs; its stream is closed when it has been stopped, and
    the caller's session and client can be used.
    """
    (account,) = world.create(1)
    client, said = connect(world.emulator), []
    reports: list[Any] = []
    with Mirror(
        ["Account"],
        to=world.to,
        format=TABLE_FORMAT,
        settings=NOW,
        spark=world.spark,
        client=client,
        on_message=said.append,
    ) as mirror:
        thread = threading.Thread(target=lambda: reports.append(mirror.run()))
        thread.start()
        until(lambda: [each.state for each in mirror.status()] == ["current"], "it", PATIENCE)
        world.update(account, Phone="1")
        until(lambda: mirror.report.events == 1, "the event", PATIENCE)
        (health,) = mirror.health().values()
        assert health.state == "streaming"
        mirror.stop()
        thread.join(PATIENCE)
    assert (reports[0].records, reports[0].events) == (1, 1)
    assert "Account: all 1 records read and merged" in said
    assert mirror.health()[mirror.stream.source].state == "closed"
    assert world.rows()[account]["Phone"] == "1"
    assert client.get_topic(ALL_CHANGES).topic_name == ALL_CHANGES


def test_ctrl_c_stops_it_and_the_next_run_resumes(world: World):
    """KeyboardInterrupt in `run` is raised once everything is closed: the tables and the raw table
    can be opened again at once. A mirror that is stopped before it is open creates nothing.
    """
    stopped = Mirror(["Account"], to=world.to, format=TABLE_FORMAT, spark=world.spark)
    stopped.stop()
    with stopped:
        assert stopped.run().records == 0
    assert not world.to.exists()
    world.create(2)
    main = threading.main_thread().ident

    def interrupt(text: str) -> None:
        if "read and merged" in text:
            signal.pthread_kill(main, signal.SIGINT)

    def opened(on_message: Callable[[str], None] | None = None) -> Mirror:
        return Mirror(
            ["Account"],
            to=world.to,
            format=TABLE_FORMAT,
            settings=NOW,
            spark=world.spark,
            on_message=on_message,
        )

    with pytest.raises(KeyboardInterrupt), opened(interrupt) as mirror:
        mirror.run()
    assert mirror.stream._has_ended
    world.create(1)
    with opened() as mirror:
        mirror.run(once=True)
    assert len(world.rows()) == 3
    world.check()
