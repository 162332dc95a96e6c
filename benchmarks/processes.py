"""Processes that a benchmark starts, and the CPU time of all of them."""

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
    """Return a value for PYTHONPATH that selects the packages of the checkout *tree*."""
    return os.pathsep.join([str(tree / "src"), str(tree / "generated")])


class Peer:
    """A process with which lines of JSON are exchanged through its stdin and stdout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, what: Any) -> None:
        """Send *what* to the process as a line of JSON."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Wait for a line from the process, and return its parsed JSON."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process exited unexpectedly: see its output above")
        return json.loads(line)

    def ask(self, what: Any) -> Any:
        """Send *what* to the process, and return its parsed answer."""
        self.tell(what)
        return self.hear()


@contextmanager
def peer(
    command: Sequence[str], *, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> Iterator[Peer]:
    """Run a command within the block. The command must exit when its stdin closes."""
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
    """Return the command that runs a module of this package; run it in the directory `ROOT`."""
    return [sys.executable, "-m", f"benchmarks.{name}", *arguments]


def processor_seconds() -> float:
    """Return the CPU seconds that this process and all its descendants have used so far."""
    used, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        pid = int(entry.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15]))  # including its children that have ended
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")
