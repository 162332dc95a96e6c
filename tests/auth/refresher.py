"""A process that forks others, which sign in with a refresh token and may be killed at any line.

It reads one JSON object per line from stdin and, for each, writes a list of results to stdout, one
for each child. Forking costs milliseconds, while a new process takes half a second to import.

    settings    the settings to sign in with
    children    how many children sign in at the same time; 1 by default
    rounds      how often each child signs in; from the second time on, the token is refused
    kill        [round, line]: kill the child with SIGKILL when it executes this line of the round

A result has the access tokens (`tokens`) and the number of executed lines (`lines`) of each round,
or the error (`error`), or it is `{"killed": true}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import requests.adapters  # noqa: F401  # imported before the first fork
import urllib3.util  # noqa: F401

import sfpubsub.durable
from sfpubsub.auth import http, login, oauth, refresh, token_family, token_file
from sfpubsub.config import Settings

# The lines at which a child can be killed: everything that runs between the decision to request a
# token and its use.
_FILES = {
    str(module.__file__)
    for module in (sfpubsub.durable, http, login, refresh, token_family, token_file)
}

# How long the children wait for each other, in seconds.
_TOGETHER = 60.0


class Lines:
    """Counts the lines that the refreshing thread executes, and ends the process at one of them."""

    def __init__(self, kill: int | None) -> None:
        self.count = 0
        self._kill = kill

    def trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Trace a function if its lines count."""
        is_ours = threading.current_thread().name == "sfpubsub-refresh"
        return self._line if is_ours and frame.f_code.co_filename in _FILES else None

    def _line(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def sign_in(order: dict[str, Any], ready: Path) -> dict[str, Any]:
    """Sign in as often as ordered, together with the other children, and return the result."""
    provider = oauth.session_provider(Settings(**order["settings"]))
    killed_in, line = order.get("kill", (None, None))
    session, tokens, lines = None, [], []
    for number in range(order.get("rounds", 1)):
        (ready / f"{number}-{os.getpid()}").touch()
        deadline = time.monotonic() + _TOGETHER
        while len(list(ready.glob(f"{number}-*"))) < order.get("children", 1):
            assert time.monotonic() < deadline
            time.sleep(0.001)  # until the deadline
        counter = Lines(line if number == killed_in else None)
        threading.settrace(counter.trace)
        try:
            session = provider.get_session(session)
        except Exception as error:  # noqa: BLE001
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        tokens.append(session.access_token)
        lines.append(counter.count)
    return {"tokens": tokens, "lines": lines}


def carry_out(order: dict[str, Any], directory: Path) -> list[dict[str, Any]]:
    """Fork the children, and return their results."""
    directory.mkdir()
    results = []
    children = []
    for _ in range(order.get("children", 1)):
        pid = os.fork()
        if not pid:
            result = sign_in(order, directory)
            (directory / f"result-{os.getpid()}").write_text(json.dumps(result))
            os._exit(0)
        children.append(pid)
    for pid in children:
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            results.append({"killed": True})
        else:
            results.append(json.loads((directory / f"result-{pid}").read_text()))
    return results


def main() -> None:
    """Process orders until stdin ends. The argument is a directory for temporary files."""
    for number, line in enumerate(sys.stdin):
        print(json.dumps(carry_out(json.loads(line), Path(sys.argv[1]) / str(number))), flush=True)


if __name__ == "__main__":
    main()
