"""The server for measuring subscribers: in Go if it can be built, otherwise in Python."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from benchmarks import feed
from benchmarks.processes import Peer, module, packages, peer

SOURCE = Path(__file__).with_name("feed_server.go")
GO_MODULE = """module feed_server

go 1.24

require google.golang.org/grpc v1.83.2
"""
LONGEST_BUILD = 300  # seconds; the first build fetches and compiles grpc


def cache(name: str) -> Path:
    """Return a directory, outside of the repository, for files that are kept between runs."""
    return Path(platformdirs.user_cache_dir("sfpubsub")) / "benchmarks" / name


@dataclass(frozen=True)
class Counts:
    """Requests and commits that a server has received, and responses and events it has sent."""

    requests: int
    commits: int
    responses: int
    events: int


class Server:
    """A running benchmark server: its addresses and its counters."""

    def __init__(self, process: Peer, ca_file: Path, warning: str) -> None:
        self.ca_file = str(ca_file)
        self.warning = warning
        """Why the slower Python server is used; empty for the Go server."""
        self._process = process
        self._targets: dict[str, str] = process.hear()

    def target(self, round_trip: int) -> str:
        """Return the address at which the server has a round trip of *round_trip* milliseconds."""
        return self._targets[str(round_trip)]

    def counts(self) -> Counts:
        """Return the server's current counters."""
        return Counts(**self._process.ask("counts"))


def built(*, may_build: bool = True) -> tuple[Path | None, str]:
    """Return the path of the Go server, or None with the reason.

    Args:
        may_build: Whether to build the server if there is no build yet.
    """
    text = SOURCE.read_text() + GO_MODULE
    directory = cache(f"feed_server-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
    made = directory / "feed_server"
    if made.exists():
        return made, ""
    go = shutil.which("go")
    if go is None:
        return None, "no Go compiler is installed"
    if not may_build:
        return None, "the Go server has not been built"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        Path(place, "go.mod").write_text(GO_MODULE)
        shutil.copy(SOURCE, place)
        command = [go, "build", "-mod=mod", "-o", "feed_server"]
        try:
            done = subprocess.run(
                command, cwd=place, text=True, capture_output=True, timeout=LONGEST_BUILD
            )
        except subprocess.TimeoutExpired:
            return None, f"go build took more than {LONGEST_BUILD} s"
        if done.returncode:
            return None, f"go build failed: {done.stderr.strip()}"
        shutil.copy(Path(place, "feed_server"), made.with_suffix(".new"))
        made.with_suffix(".new").replace(made)
    return made, ""


@contextmanager
def serving(round_trips: Sequence[int] = (0,), *, may_build: bool = True) -> Iterator[Server]:
    """Run the Go server if possible, otherwise the Python server, within the block.

    Args:
        round_trips: Network round trips to simulate, in milliseconds; each gets its own address.
        may_build: Whether to build the Go server if there is no build yet.
    """
    made, warning = built(may_build=may_build)
    with tempfile.TemporaryDirectory(prefix="sfpubsub-feed-") as place:
        ca_file = feed.write(Path(place))
        arguments = [place, *map(str, round_trips)]
        command = [str(made), *arguments] if made else module("python_server", *arguments)
        with peer(command, environment={"PYTHONPATH": packages()}) as process:
            yield Server(process, ca_file, warning)
