"""Other processes of a benchmark, and what it uses of the processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def packages(tree: Path = ROOT) -> str:
    """Return the search path with the packages of a checkout."""
    return os.pathsep.join([str(tree / "src"), str(tree / "generated")])


class Peer:
    """Another process, which answers lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, what: Any) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Read a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process ended before it was told to; what it wrote is above")
        return json.loads(line)

    def ask(self, what: Any) -> Any:
        """Write a line and read the answer."""
        self.tell(what)
        return self.hear()


@contextmanager
def peer(
    command: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> Iterator[Peer]:
    """Run a command; it ends with its standard input."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield Peer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package; its working directory is `ROOT`."""
    return [sys.executable, "-m", f"benchmarks.{name}", *arguments]


def processor_seconds() -> float:
    """Return what this process and all below it have used, as Linux counts it."""
    used, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(entry.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15]))  # with children that have ended
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")
