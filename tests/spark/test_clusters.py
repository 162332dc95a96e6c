"""The same job runs on every kind of cluster; executors need neither grpc nor credentials."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyspark
import pytest

from sfpubsub.spark.runtime.java import find_java_home
from tests.conftest import until
from tests.platforms.server import ConnectServer
from tests.spark.source_world import TOPIC, orders, settings_file

JOB = Path(__file__).with_name("cluster_job.py")
CONNECT_JOB = Path(__file__).with_name("connect_job.py")
EVENTS = 250


@pytest.fixture
def world(run_emulator, tmp_path):
    """Return an emulator with events, and a directory with a settings file for it."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(EVENTS))
    settings_file(emulator, tmp_path / "settings.toml")
    return emulator, tmp_path


def environment(**more: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SFPUBSUB_")}
    return {
        **mine,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


def run(world, master: str, *more: str) -> tuple[dict, str]:
    """Run the job on a Spark master; return its report and its stderr."""
    emulator, directory = world
    # The token is also in the driver's environment, from where it must not spread.
    given = environment(SFPUBSUB_ACCESS_TOKEN=emulator.access_token)
    done = subprocess.run(
        [sys.executable, str(JOB), master, str(directory / "settings.toml"), str(directory),
         str(EVENTS), *more],
        env=given,
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def check(report: dict) -> None:
    assert (report["streamed"], report["ingested"]) == (EVENTS, EVENTS)
    assert report["batches"] == 3
    assert TOPIC in report["plan"] or "sfpubsub" in report["plan"]


@pytest.mark.spark
@pytest.mark.slow  # half a minute
def test_local_cluster_executors_need_no_grpc_and_get_no_token(world):
    """With two separate executors, no file, plan or log of Spark contains the access token."""
    emulator, directory = world
    work = Path(pyspark.__file__).parent / "work"  # directory of the executors' logs
    before = set(work.glob("app-*"))
    report, errors = run(world, "local-cluster[2,1,1024]", "no-grpc")
    check(report)
    assert report["executors"] == ["no grpc, 0 settings"]
    (ours,) = set(work.glob("app-*")) - before
    shutil.move(ours, directory / "work")
    secret = emulator.access_token.encode()
    places = [path for path in directory.rglob("*") if path.is_file()]
    logs = {"eventlog", "checkpoint", "streamed", "work"}
    assert {path.relative_to(directory).parts[0] for path in places} >= logs
    leaks = [
        path
        for path in places
        if "emulator" not in path.parts
        and path.name != "settings.toml"
        and secret in path.read_bytes()
    ]
    assert leaks == []
    assert emulator.access_token not in report["plan"] + errors


@pytest.mark.slow
def test_the_job_runs_in_local_mode(world):
    """The job runs with local[*], where executors are threads of the driver."""
    report, _ = run(world, "local[*]")
    check(report)


@pytest.mark.slow
def test_the_job_runs_on_a_standalone_cluster_with_two_workers(world):
    """Executors in separate worker processes need neither grpc nor settings."""
    _, directory = world
    with ExitStack() as stack:
        port = free_port()
        master = stack.enter_context(
            daemon(directory, "master", "org.apache.spark.deploy.master.Master",
                   "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        )  # fmt: skip
        until(lambda: "I have been elected leader" in master.read_text(), "the master", 60)
        for number in range(2):
            stack.enter_context(
                daemon(directory, f"worker{number}", "org.apache.spark.deploy.worker.Worker",
                       "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                       "--webui-port", "0", "--work-dir", str(directory / f"work{number}"),
                       f"spark://127.0.0.1:{port}")
            )  # fmt: skip
        until(lambda: master.read_text().count("Registering worker") == 2, "the workers", 60)
        report, _ = run(world, f"spark://127.0.0.1:{port}", "no-grpc")
    check(report)
    assert report["executors"] == ["no grpc, 0 settings"]


@pytest.mark.slow
def test_spark_connect_runs_the_source_and_rejects_its_writer(world):
    """The source runs on the Spark Connect server; the writer for `foreachBatch` would too, without
    the objects of this process, so it is rejected.
    """
    for package in ("grpc_status", "zstandard", "google.rpc"):
        pytest.importorskip(package, reason="pyspark[connect] needs it")
    _, directory = world
    done = subprocess.run(
        [sys.executable, str(CONNECT_JOB), str(directory / "settings.toml"), str(directory)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["streamed"] == EVENTS
    assert "needs a classic session" in report["refusal"], report


@pytest.mark.slow  # starts a server
def test_a_job_ends_soon_after_its_server_of_spark_connect(tmp_path):
    """If the server of Spark Connect ends, a failing job does not wait for it when it ends the
    session, which would take ten minutes.
    """
    for package in ("grpc_status", "zstandard", "google.rpc"):
        pytest.importorskip(package, reason="pyspark[connect] needs it")
    with closing(ConnectServer("parquet", tmp_path)) as server:
        job = (
            "import sys\n"
            "from sfpubsub.spark import spark_session\n"
            "with spark_session(sys.argv[1]) as spark:\n"
            "    print(spark.range(3).count(), flush=True)\n"
            "    sys.stdin.read()\n"
            "    raise SystemExit('the server has ended')\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", job, server.url],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "3\n"
            server.close()
            process.stdin.close()
            try:
                assert process.wait(60) == 1
            finally:
                process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def daemon(directory: Path, name: str, *command: str):
    """Run a Spark master or worker within the block; yield the path of its log."""
    log = directory / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *command],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)
