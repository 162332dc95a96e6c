"""Tests of several processes that share a rotating refresh token, and of killed ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.emulator.org.settings import Settings as EmulatorSettings
from sfpubsub.emulator.server import EmulatorServer

from ..conftest import PATIENCE

Run = Callable[..., list[dict[str, Any]]]

# A killed process: the stage of the refresh at which it was killed, as found in the org and file.
BEFORE, BETWEEN, AFTER = "before the request", "between answer and file", "after the file"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a function that makes new processes sign in (see `refresher`)."""
    (tmp_path / "orders").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.auth.refresher", str(tmp_path / "orders")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def order(**given: Any) -> list[dict[str, Any]]:
        stdin.write(json.dumps(given) + "\n")
        stdin.flush()
        found: list[dict[str, Any]] = json.loads(stdout.readline())
        return found

    yield order
    stdin.close()
    assert process.wait(PATIENCE) == 0
    stdout.close()


@pytest.fixture
def emulator(run_emulator: Callable[..., EmulatorServer]) -> EmulatorServer:
    """An emulator with refresh token rotation."""
    return run_emulator(settings=EmulatorSettings(rotate_refresh_tokens=True))


def settings(emulator: EmulatorServer, token: str, **more: str) -> dict[str, str]:
    """Return settings for a new family of *token*."""
    emulator.accounts.put_app("emulator", refresh_token=token)
    return {
        "auth": "refresh",
        "login_url": emulator.http_url,
        "client_id": "emulator",
        "refresh_token": token,
        **more,
    }


def family_of(emulator: EmulatorServer, token: str) -> dict[str, bool]:
    """Return the refresh tokens of the family of *token*, each with whether it is valid."""
    grant = emulator.accounts.grant_of(token, "emulator")
    assert grant is not None
    return emulator.accounts.refresh_tokens(grant.family)


def test_eight_processes_make_one_refresh(run: Run, emulator: EmulatorServer) -> None:
    """Eight processes that start together, and whose session is refused at the same time, make one
    request each time; no refresh token is used twice.
    """
    results = run(settings=settings(emulator, "shared"), children=8, rounds=2)
    first, second = zip(*(result["tokens"] for result in results), strict=True)
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    family = family_of(emulator, "shared")
    assert len(family) == 3  # the configured one, and one for each request
    assert list(family.values()).count(True) == 1


def stage_of(emulator: EmulatorServer, token: str, file: Path, answers: int) -> str:
    """Return the stage at which a process was killed.

    Args:
        emulator: The emulator.
        token: The configured refresh token.
        file: The token file.
        answers: How many answers the org had given before.
    """
    tokens = family_of(emulator, token)
    if len(tokens) == answers + 1:
        return BEFORE
    stored = json.loads(file.read_text())
    return AFTER if stored["number"] == answers + 1 and tokens[stored["refresh_token"]] else BETWEEN


def check_kills(
    run: Run, emulator: EmulatorServer, file: Path, lines: range, *, renewal: bool
) -> list[str]:
    """Kill a process at each of *lines*, sign in again, and return the stages.

    The next process signs in unless the answer was not stored; then it says so, and names the file.
    """
    stages = []
    for line in lines:
        token = f"token-{line}"
        file.unlink(missing_ok=True)
        given = settings(emulator, token, token_file=str(file))
        number = int(renewal)
        (killed,) = run(settings=given, rounds=number + 1, kill=[number, line])
        assert killed == {"killed": True}
        stages.append(stage_of(emulator, token, file, number))
        # The stored access token may be the one that the killed process was about to replace, so
        # the next process uses it, and then has to replace it as well.
        (after,) = run(settings=given, rounds=2)
        if stages[-1] == BETWEEN:
            assert "was lost before it was stored" in after["error"]
            assert str(file) in after["error"]
            assert "set SFPUBSUB_REFRESH_TOKEN" in after["error"]
            assert not any(family_of(emulator, token).values())
        else:
            assert len(after["tokens"]) == 2
            assert list(family_of(emulator, token).values()).count(True) == 1
            assert not list(file.parent.glob(f"{file.name}.*.tmp"))
            # A stored access token is used before another one is requested.
            new = 1 if renewal and stages[-1] == BEFORE else 2
            assert len(family_of(emulator, token)) == number + 1 + new
    assert stages == sorted(stages, key=[BEFORE, BETWEEN, AFTER].index)
    return stages


def line_count(run: Run, emulator: EmulatorServer, file: Path, *, renewal: bool) -> int:
    """Return how many lines a refresh executes."""
    given = settings(emulator, "counted", token_file=str(file))
    (whole,) = run(settings=given, rounds=int(renewal) + 1)
    count: int = whole["lines"][-1]
    return count


def test_a_killed_process_loses_at_most_an_answer(
    run: Run, emulator: EmulatorServer, tmp_path: Path
) -> None:
    """A process that is killed during a refresh leaves a file with which the next one signs in.
    Only if it is killed between the answer and the file, the next one cannot, and says why.
    """
    file = tmp_path / "token.json"
    count = line_count(run, emulator, file, renewal=True)
    check_kills(run, emulator, file, range(1, count, count // 5), renewal=True)


@pytest.mark.slow  # about a minute: two processes for each of 300 lines
@pytest.mark.parametrize("renewal", [False, True], ids=["first", "renewal"])
def test_a_process_killed_at_any_line_loses_at_most_an_answer(
    run: Run, emulator: EmulatorServer, tmp_path: Path, renewal: bool
) -> None:
    """As above, at every line."""
    file = tmp_path / "token.json"
    count = line_count(run, emulator, file, renewal=renewal)
    stages = check_kills(run, emulator, file, range(1, count + 1), renewal=renewal)
    assert set(stages) == {BEFORE, BETWEEN, AFTER}
    print({stage: stages.count(stage) for stage in set(stages)})
