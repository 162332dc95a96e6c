"""Tests of the refresh token flow in one process: which token is sent, what the file contains, and
what happens if the file cannot be used.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sfpubsub.auth import token_file
from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import RefreshToken, session_provider
from sfpubsub.auth.session import CurrentSession
from sfpubsub.auth.token_file import exclusive_lock
from sfpubsub.cli.main import run
from sfpubsub.config import Settings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    RemoteProtocolError,
    StreamUnavailableError,
)

from ..conftest import until
from .servers import Reply, https_host
from .test_oauth import answer

DEAD = {"error": "invalid_grant", "error_description": "expired access/refresh token"}


class App:
    """An app with refresh token rotation: each token is valid once."""

    def __init__(self, host) -> None:
        self.host = host
        self.newest = "token-0"
        self.number = 0

    def __call__(self, request) -> Reply:
        if request.form["refresh_token"] != self.newest:
            return Reply(400, DEAD)
        self.number += 1
        self.newest = f"token-{self.number}"
        access = f"00D000000000001!access-{self.number}"
        found = answer(self.host.url, access_token=access, refresh_token=self.newest)
        return Reply(200, found)


@pytest.fixture
def host(authority):
    """Run an HTTPS server with an app that rotates refresh tokens; its `answer` can be replaced."""
    with https_host(lambda _request: Reply(), authority) as found:
        found.answer = App(found)
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The token file of the logins."""
    return tmp_path / "tokens" / "token.json"


def login(host, file: Path | str, token: str = "token-0") -> RefreshToken:
    """Return a new login, as another process would have."""
    http = HttpClient(ca_file=host.ca_file, timeout=30.0)
    return RefreshToken("key", token, login_url=host.url, http=http, token_file=str(file))


def sent(host) -> list[str]:
    """Return the refresh tokens that the host received."""
    return [request.form["refresh_token"] for request in host.requests]


def stored(file: Path) -> dict:
    """Return the contents of a token file."""
    return json.loads(file.read_text())


def test_a_refused_session_is_replaced_with_the_newest_token(host, file):
    """Each renewal uses the refresh token of the answer before."""
    provider = login(host, file)
    session = None
    for number in range(3):
        session = provider.get_session(session)
        assert session.access_token == f"00D000000000001!access-{number + 1}"
    assert sent(host) == ["token-0", "token-1", "token-2"]


def test_the_next_process_uses_the_session_and_the_token_of_the_file(host, file):
    """A new login with the same configured token uses the stored access token without a request,
    and renews it with the stored refresh token.
    """
    first = login(host, file).get_session(None)
    second = login(host, file)
    assert second.get_session(None) == first
    assert second.get_session(first).access_token.endswith("access-2")
    assert sent(host) == ["token-0", "token-1"]


def test_a_session_that_another_process_has_replaced_is_taken_from_the_file(host, file):
    """A process whose session is refused uses the newer one of the file, without a request."""
    one, other = login(host, file), login(host, file)
    session = one.get_session(None)
    other.get_session(None)
    renewed = one.get_session(session)
    assert other.get_session(session) == renewed
    assert sent(host) == ["token-0", "token-1"]


def test_a_new_configured_token_begins_a_family(host, file):
    """If another refresh token is configured than the file descends from, it is used."""
    login(host, file).get_session(None)
    host.answer.newest = "after-signing-in-again"
    login(host, file, "after-signing-in-again").get_session(None)
    assert sent(host) == ["token-0", "after-signing-in-again"]
    login(host, file, "after-signing-in-again").get_session(None)
    assert len(sent(host)) == 2


def test_threads_share_a_session(host, file):
    """Threads that sign in at once make one request."""
    provider = login(host, file)
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(provider.get_session, [None] * 12))
    assert len({session.access_token for session in sessions}) == 1
    assert sent(host) == ["token-0"]


def test_only_its_owner_can_read_the_file(host, file):
    """The file, its lock and its directory are for their owner, and the file has all that the next
    process needs.
    """
    login(host, file).get_session(None)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in file.parent.iterdir()} == {0o600}
    assert stored(file)["refresh_token"] == "token-1"


def test_an_existing_state_directory_becomes_private(host, tmp_path, monkeypatch):
    """The user's state directory is for its owner only, also if it existed with other rights. A
    directory that the user chose for a token file, or that all users share, is left as it is.
    """
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(tmp_path / "state"))
    for mode, after in ((0o755, 0o700), (0o1777, 0o1777)):
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state").chmod(mode)
        with exclusive_lock(tmp_path / "state" / "lock", "it", timeout=1):
            assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == after
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen").chmod(0o755)
    login(host, tmp_path / "chosen" / "token.json").get_session(None)
    assert stat.S_IMODE((tmp_path / "chosen").stat().st_mode) == 0o755


def test_the_default_file_belongs_to_the_configured_token(host, state):
    """Without a setting, the file is in the user's state directory, one for each configured token:
    two users of an app do not replace each other's.
    """
    first, second = login(host, ""), login(host, "", "token-of-another-user")
    assert first.token_file.path.parent == state
    assert first.token_file.path != second.token_file.path
    first.get_session(None)
    assert sorted(state.iterdir()) == sorted(
        [first.token_file.path, Path(f"{first.token_file.path}.lock")]
    )


def test_a_link_to_the_file_is_kept(host, file, tmp_path):
    """If the setting names a symbolic link, the file that it names is replaced."""
    file.parent.mkdir()
    link = tmp_path / "link"
    link.symlink_to(file)
    login(host, link).get_session(None)
    assert link.is_symlink()
    assert stored(file)["number"] == 1


@pytest.mark.parametrize("rotating", [True, False])
def test_without_a_file_a_rotated_token_is_a_warning(host, state, caplog, rotating):
    """With ``none``, nothing is stored; if the org replaces the refresh token, a warning says once
    that only this process has the new one.
    """
    if not rotating:
        host.answer = lambda _request: Reply(200, answer(host.url))
    provider = login(host, "none")
    with caplog.at_level(logging.WARNING, "sfpubsub"):
        session = provider.get_session(None)
        provider.get_session(session)
    assert len(caplog.records) == rotating
    assert "token-" not in caplog.text
    assert sent(host) == ["token-0", "token-1" if rotating else "token-0"]
    assert not state.exists()


def test_no_request_is_sent_if_the_answer_could_not_be_stored(host, tmp_path):
    """If the file cannot be created, the refresh token is not used up."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the directory should be")
    with pytest.raises(ConfigurationError, match="SFPUBSUB_TOKEN_FILE"):
        login(host, blocked / "token.json").get_session(None)
    file = tmp_path / "token.json"
    file.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        login(host, file).get_session(None)
    assert host.requests == []


@pytest.mark.parametrize("content", ["", "{}", b"\xff\xff", '{"format": 99}'])
def test_a_damaged_file_is_refused(host, file, content):
    """A damaged file is an error that names it, and no token is used."""
    file.parent.mkdir()
    file.touch(mode=0o600)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=r"token\.json is not usable") as caught:
        login(host, file).get_session(None)
    assert caught.value.__context__ is None
    assert host.requests == []


def test_an_answer_that_cannot_be_stored_is_stored_later(host, file):
    """If storing an answer fails, its session is not used, and the error is retryable. The next
    attempt stores it, without another request.
    """
    grant, elsewhere = host.answer, file.parent.with_name("elsewhere")

    def lose_directory(request):
        file.parent.rename(elsewhere)
        return grant(request)

    host.answer = lose_directory
    provider = login(host, file)
    with pytest.raises(AuthenticationError, match="cannot be written") as caught:
        provider.get_session(None)
    assert caught.value.retryable
    assert "token-1" not in "".join(map(repr, [caught.value, caught.value.__cause__]))
    elsewhere.rename(file.parent)
    host.answer = grant
    session = provider.get_session(None)
    assert session.access_token.endswith("access-1")
    assert stored(file)["refresh_token"] == "token-1"
    assert sent(host) == ["token-0"]
    assert login(host, file).get_session(None) == session


def test_a_lock_that_another_process_holds_is_an_error_in_time(host, file, monkeypatch):
    """Waiting for the file's lock ends at a deadline, with a retryable error."""
    provider = login(host, file)
    monkeypatch.setattr(token_file, "LOCK_TIMEOUT", 0.1)
    with (
        token_file.TokenFile(file).locked(threading.Event()),
        pytest.raises(StreamUnavailableError, match=r"locked for 0\.1 s") as caught,
    ):
        provider.get_session(None)
    assert caught.value.retryable
    assert host.requests == []
    assert provider.get_session(None).access_token.endswith("access-1")


def test_the_refresh_token_of_an_unusable_answer_is_kept(host, file):
    """If a response has no valid access token, its refresh token is used the next time."""
    grant = host.answer

    def without_access_token(request):
        reply = grant(request)
        return Reply(200, {**reply.body, "access_token": "not\nprintable"})

    host.answer = without_access_token
    provider = login(host, file)
    with pytest.raises(RemoteProtocolError, match="access_token"):
        provider.get_session(None)
    host.answer = grant
    assert login(host, file).get_session(None).access_token.endswith("access-2")
    assert sent(host) == ["token-0", "token-1"]


def test_ctrl_c_does_not_lose_an_answer(host, file):
    """If the waiting thread is interrupted during a request, its answer is stored nevertheless."""
    grant = host.answer

    def interrupt(request):
        os.kill(os.getpid(), signal.SIGINT)
        until(interrupted.is_set)
        return grant(request)

    interrupted = threading.Event()
    host.answer = interrupt
    with pytest.raises(KeyboardInterrupt):
        login(host, file).get_session(None)
    interrupted.set()
    until(lambda: stored(file)["number"] == 1)
    host.answer = grant
    login(host, file).get_session(None)
    assert sent(host) == ["token-0"]


# Refused refresh tokens.


def test_a_dead_grant_costs_one_request(host, file):
    """A refresh token that was refused for good is not sent again, however often a session is
    requested; the error says what to do.
    """
    host.answer = lambda _request: Reply(400, DEAD)
    provider = login(host, file)
    for _ in range(5):
        with pytest.raises(AuthenticationError, match="set SFPUBSUB_REFRESH_TOKEN") as caught:
            CurrentSession(provider).get()
        assert caught.value.error_code == "invalid_grant"
        assert not caught.value.retryable
    assert len(host.requests) == 1


def test_a_refusal_that_may_end_is_asked_again(host, file):
    """Another refusal, such as that of an address, may end: the next sign-in asks again."""
    grant = host.answer
    refusal = {"error": "invalid_grant", "error_description": "ip restricted"}
    host.answer = lambda _request: Reply(400, refusal)
    provider = login(host, file)
    with pytest.raises(AuthenticationError, match="login IP ranges"):
        provider.get_session(None)
    host.answer = grant
    assert provider.get_session(None).access_token.endswith("access-1")


def test_a_token_that_was_used_elsewhere_is_described(host, file):
    """If the stored token is refused, the error names the file, and says that it serves one
    machine.
    """
    session = login(host, file).get_session(None)
    host.answer.newest = "known to another machine"
    provider = login(host, file)
    with pytest.raises(AuthenticationError, match="several need client-credentials") as caught:
        provider.get_session(session)
    assert str(file) in str(caught.value)
    assert "lost" not in str(caught.value)
    # The refusal was an answer: the next process does not believe that one was lost.
    with pytest.raises(AuthenticationError) as again:
        login(host, file).get_session(session)
    assert "lost" not in str(again.value)


def test_a_lost_answer_is_described(host, file):
    """If the connection breaks before the answer arrives, the next refusal says that the answer was
    lost, and with it the token.
    """
    grant = host.answer

    def lose(request):
        grant(request)
        return Reply(503)

    host.answer = lose
    provider = login(host, file)
    with pytest.raises(StreamUnavailableError):
        provider.get_session(None)
    host.answer = grant
    with pytest.raises(AuthenticationError, match="was lost before it was stored"):
        login(host, file).get_session(None)


def test_a_command_with_a_dead_grant_ends_at_once(run_emulator, monkeypatch, capsys):
    """A command whose refresh token is dead makes one request and ends with exit code 3."""
    emulator = run_emulator()
    with https_host(lambda _request: Reply(400, DEAD)) as host:
        for name, value in {
            "ENDPOINT": emulator.grpc_target,
            "INSECURE": "1",
            "AUTH": "refresh",
            "LOGIN_URL": host.url,
            "CLIENT_ID": "key",
            "REFRESH_TOKEN": "token-0",
        }.items():
            monkeypatch.setenv(f"SFPUBSUB_{name}", value)
        assert run(["subscribe", "--topic", "/event/Order_Event__e"]) == 3
    assert len(host.requests) == 1
    assert "set SFPUBSUB_REFRESH_TOKEN" in capsys.readouterr().err


def test_the_setting_names_the_file(tmp_path, monkeypatch):
    """``SFPUBSUB_TOKEN_FILE`` is a path, in which ``~`` is the home directory, or ``none``; a path
    in a settings file is relative to that file.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"auth": "refresh", "client_id": "key", "refresh_token": "token-0"}

    def path_of(**more: str) -> Path | None:
        settings = Settings.load({**more}, {f"SFPUBSUB_{k.upper()}": v for k, v in given.items()})
        file = session_provider(settings).token_file
        return file.path if file else None

    assert path_of(token_file="~/token.json") == tmp_path / "token.json"
    assert path_of(token_file="none") is None
    config = tmp_path / "config"
    config.mkdir()
    settings = config / "settings.toml"
    settings.write_text('token_file = "token.json"')
    assert path_of(config=str(settings)) == config / "token.json"
    settings.write_text('token_file = "none"')
    assert path_of(config=str(settings)) is None
