"""Interoperability tests with other implementations of CometD, in both directions.

Our clients read from CometD's own servers, and other projects' clients read from our emulator. Run
with `-m foreign`. The packages are downloaded once by npm and Maven, at pinned versions, into a
cache directory outside the repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from sfpubsub.auth.session import Session, StaticSession
from sfpubsub.emulator.faults import Fault

from ..conftest import until
from .conftest import TOPIC, numbered
from .faces import QUICK

pytestmark = pytest.mark.foreign

HERE = Path(__file__).parent / "foreign"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sfpubsub" / "foreign"
CHANNEL = "/u/News"
DOWNLOAD_S = 600.0
START_S = 60.0
EXPIRED_S = 6.0  # both servers expire sessions after 3 s, but check only every few seconds

needs_node = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not installed"
)
needs_java = pytest.mark.skipif(
    not (shutil.which("java") and shutil.which("mvn")), reason="java and mvn are not installed"
)


def fetch_packages(name: str, *command: str, of: Path = HERE, into: str = "") -> Path:
    """Run *command* in the cache to install the packages that the file *name* lists; return their
    directory, which is called *into* or like the file.

    The command is skipped if it has already succeeded for the same contents of the file.
    """
    directory = CACHE / (into or name.partition(".")[0])
    wanted = (of / name).read_text()
    done = directory / "done"
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        shutil.copy(of / name, directory)
        subprocess.run(command, cwd=directory, check=True, timeout=DOWNLOAD_S)
        done.write_text(wanted)
    return directory


def node_packages() -> Path:
    """Install the pinned npm packages if necessary, and return their directory."""
    return fetch_packages("package.json", "npm", "install", "--silent", "--no-audit", "--no-fund")


def java_packages() -> Path:
    """Fetch the pinned Java packages if necessary, and return their directory."""
    copy = ["dependency:copy-dependencies", "-DoutputDirectory=lib"]
    return fetch_packages("pom.xml", "mvn", "-q", "-B", *copy)


class ForeignServer:
    """A CometD server in a child process that takes commands on its standard input."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = f"http://127.0.0.1:{int(self._lines.get(timeout=START_S))}"

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)

    def ask(self, command: str) -> list[int]:
        """Send a command to the server, and return the replay ids of the events that it then
        published.
        """
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self._lines.get(timeout=START_S))

    def stop(self) -> None:
        """Stop the server, and kill it if it does not exit within 10 s."""
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def start_node(program: str = "judge.cjs") -> ForeignServer:
    """Start a Node.js server, by default that of the CometD project."""
    modules = str(node_packages() / "node_modules")
    return ForeignServer(["node", str(HERE / program)], {"NODE_PATH": modules})


def start_java() -> ForeignServer:
    """Start the Java server of the CometD project."""
    lib = java_packages() / "lib"
    return ForeignServer(["java", "-cp", f"{lib}/*", str(HERE / "Judge.java")], {})


@pytest.fixture(
    params=[
        pytest.param(start_node, marks=needs_node, id="cometd-nodejs-server"),
        pytest.param(start_java, marks=needs_java, id="cometd-java-server"),
    ]
)
def foreign_server(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    """Start one of CometD's own servers, and stop it after the test."""
    server = request.param()
    try:
        yield server
    finally:
        server.stop()


def test_our_client_reads_from_cometds_own_servers(
    face: Callable[..., Any], foreign_server: ForeignServer
):
    """Our client receives every event exactly once from CometD's own servers, even if a server
    ends the session.
    """
    session = StaticSession(Session("token", foreign_server.url, "00D000000000001AAA"))
    gaps: list = []
    client = face(session, pace=QUICK, on_gap=gaps.append)
    found = foreign_server.ask(f"publish {CHANNEL} 5")
    client.subscribe(CHANNEL, -2)
    assert client.ids(5) == found
    foreign_server.ask("goodbye")
    found = foreign_server.ask(f"publish {CHANNEL} 5")
    assert client.ids(5) == found
    assert client.rest() == []
    assert gaps == []
    client.subscribe("/u/Other")
    assert client.subscriptions == {CHANNEL, "/u/Other"}
    client.unsubscribe(CHANNEL)
    foreign_server.ask(f"publish {CHANNEL} 2")
    found = foreign_server.ask("publish /u/Other 2")
    assert client.ids(2) == found
    client.close()


def test_our_client_resumes_after_its_unpolled_session_expires(
    face: Callable[..., Any], foreign_server: ForeignServer
):
    """A full queue stops polling until the server's session expires, but each event is still
    delivered exactly once.
    """
    session = StaticSession(Session("token", foreign_server.url, "00D000000000001AAA"))
    client = face(session, pace=QUICK, max_pending_count=1)
    client.subscribe(CHANNEL, -2)
    found = foreign_server.ask(f"publish {CHANNEL} 3")
    until(lambda: client.pending_count)
    time.sleep(EXPIRED_S)
    found += foreign_server.ask(f"publish {CHANNEL} 3")
    assert client.ids(6) == found
    assert client.rest() == []


@needs_node
def test_our_client_reads_from_fayes_server(face: Callable[..., Any]):
    """Our client receives the events of faye's server, and stops when it unsubscribes."""
    server = start_node("faye_judge.cjs")
    try:
        client = face(StaticSession(Session("token", server.url, "00D000000000001AAA")))
        client.subscribe(CHANNEL, -1)
        assert server.ask(f"publish {CHANNEL} 5") == client.ids(5)
        client.subscribe("/u/Other")
        client.unsubscribe(CHANNEL)
        server.ask(f"publish {CHANNEL} 2")
        assert server.ask("publish /u/Other 2") == client.ids(2)
        client.close()
    finally:
        server.stop()


@needs_node
@pytest.mark.parametrize("script", ["cometd_client.cjs", "faye_client.cjs", "jsforce_client.cjs"])
def test_other_clients_replay_and_reconnect_on_our_emulator(emulator: Any, script: str):
    """Other projects' clients replay events from our emulator, and resume when it ends their
    session.
    """
    found = emulator.publish_streaming(TOPIC, numbered(4))
    arguments = [emulator.http_url, emulator.access_token, TOPIC, str(found[0]), "5"]
    process = subprocess.Popen(
        ["node", str(HERE / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NODE_PATH": str(node_packages() / "node_modules")},
    )
    try:
        seen = [int(process.stdout.readline()) for _ in range(3)]
        assert seen == found[1:]
        sessions = emulator.cometd.sessions._sessions
        until(lambda: any(session.pending for session in list(sessions.values())))
        emulator.faults.add(Fault("end_cometd_session"))
        until(lambda: any(session.subscriptions for session in list(sessions.values())))
        new = emulator.publish_streaming(TOPIC, numbered(2))
        rest, errors = process.communicate(timeout=START_S)
    finally:
        process.kill()
        process.communicate()
    assert [int(line) for line in rest.splitlines()][-2:] == new, errors
    emulator.faults.assert_consumed()
