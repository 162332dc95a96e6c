"""The server that subscribers are measured with: in Go where it can be built, else in Python."""

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
LONGEST_BUILD = 300  # seconds: the first one fetches and compiles grpc


def cache(name: str) -> Path:
    """Return the directory in which something is kept between runs, outside of the repository."""
    return Path(platformdirs.user_cache_dir("sfpubsub")) / "benchmarks" / name


@dataclass(frozen=True)
class Counts:
    """What a server has seen and sent so far."""

    requests: int
    commits: int
    responses: int
    events: int


class Server:
    """A running server."""

    def __init__(self, process: Peer, ca_file: Path, warning: str) -> None:
        self.ca_file = str(ca_file)
        self.warning = warning
        """Why it is not the fast one; empty if it is."""
        self._process = process
        self._targets: dict[str, str] = process.hear()

    def target(self, round_trip: int) -> str:
        """Return the address behind a line of so many milliseconds there and back."""
        return self._targets[str(round_trip)]

    def counts(self) -> Counts:
        """Ask what it has seen and sent."""
        return Counts(**self._process.ask("counts"))


def built(*, may_build: bool = True) -> tuple[Path | None, str]:
    """Return the server in Go, or why there is none.

    Args:
        may_build: Whether it is built where it was not yet.
    """
    text = SOURCE.read_text() + GO_MODULE
    directory = cache(f"feed_server-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
    made = directory / "feed_server"
    if made.exists():
        return made, ""
    go = shutil.which("go")
    if go is None:
        return None, "there is no Go compiler"
    if not may_build:
        return None, "the server in Go was not built yet"
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
    """Run the fastest server there is.

    Args:
        round_trips: Milliseconds of the lines that clients are to be measured behind.
        may_build: Whether the server in Go is built where it was not yet.
    """
    made, warning = built(may_build=may_build)
    with tempfile.TemporaryDirectory(prefix="sfpubsub-feed-") as place:
        ca_file = feed.write(Path(place))
        arguments = [place, *map(str, round_trips)]
        command = [str(made), *arguments] if made else module("python_server", *arguments)
        with peer(command, environment={"PYTHONPATH": packages()}) as process:
            yield Server(process, ca_file, warning)
