"""No secret is printed, logged, pickled or contained in an error.

Each way of signing in is tested with planted secrets, in success and in every kind of failure,
against a host that echoes whatever it is sent. Everything that could be seen is then searched for
the secrets.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.auth.http import Answer, Bearer, Form, HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.refusals import scrub
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, StaticSession
from sfpubsub.cli.main import run
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Settings
from sfpubsub.config.settings import SECRETS
from sfpubsub.emulator.faults import Fault
from sfpubsub.errors import ConfigurationError, SfPubSubError

from .servers import REMOTE, Reply, Request, connect_proxy, https_host, raw_host

# The planted secrets: each contains the word "planted", which occurs nowhere else.
CLIENT_SECRET = "planted-client-secret-4711"
PASSWORD = "planted-p&ssword=4711%"
REFRESH_TOKEN = "planted-refresh-token-4711"
ACCESS_TOKEN = "00D000000000001!planted.access.token.4711"
ROTATED_TOKEN = "planted-rotated-token-4711"
PROXY_PASSWORD = "planted-proxy-password-4711"

ORG = "00D000000000001EAA"
MARK = "planted"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory) -> Path:
    """Return the path of a new RSA private key in PEM form."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def capture_all_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Capture all logs at level DEBUG, even if an earlier test has set this package's level."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "sfpubsub")


def assert_clean(text: str, what: str) -> None:
    """Fail if *text* contains a planted secret, or a signed assertion, which is as good as one."""
    assert MARK not in text, f"{what} has a secret"
    assert "eyJ" not in text, f"{what} has a JWT"


def visible_parts(error: BaseException) -> Iterator[str]:
    """Yield all text that an error exposes, including its chain, its pickle and the variables
    in its frames.
    """
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop()
        yield from (str(one), repr(one), repr(one.args), repr(vars(one)))
        yield repr(getattr(one, "__notes__", ""))
        shown = traceback.TracebackException.from_exception(one, capture_locals=True)
        # The local variables of the tests' own frames are the planted values themselves.
        shown.stack[:] = [frame for frame in shown.stack if "/tests/" not in frame.filename]
        yield "".join(shown.format(chain=False))
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
    if isinstance(error, SfPubSubError):
        yield repr(pickle.dumps(error))


def sign_in_settings(url: str, key_file: Path) -> dict[str, dict[str, str]]:
    """Return the settings for each way of signing in, by its name."""
    app = {"client_id": "key", "client_secret": CLIENT_SECRET}
    return {
        "client-credentials": app,
        "jwt": {"client_id": "key", "username": "u", "private_key_file": str(key_file)},
        "refresh": {**app, "refresh_token": REFRESH_TOKEN},
        "password": {**app, "username": "u", "password": PASSWORD},
    }


WAYS = ["client-credentials", "jwt", "refresh", "password"]


def token_response(url: str, **changed: Any) -> dict[str, Any]:
    """Return a token response that contains planted tokens."""
    return {
        "access_token": ACCESS_TOKEN,
        "refresh_token": ROTATED_TOKEN,
        "instance_url": url,
        "id": f"{url}/id/{ORG}/005000000000001AAA",
        **changed,
    }


# By name: functions from a request and the host's URL to a response that repeats secrets.
ANSWERS: dict[str, Callable[[Request, str], Reply]] = {
    "granted": lambda _request, url: Reply(200, token_response(url)),
    "refused": lambda request, _url: Reply(
        400, {"error": "invalid_grant", "error_description": " ".join(request.form.values())}
    ),
    "refused oddly": lambda request, _url: Reply(
        400, {"error": " ".join(request.form.values()), "error_description": ACCESS_TOKEN}
    ),
    "html": lambda request, _url: Reply(200, b"<html>" + request.body),
    "json": lambda request, _url: Reply(200, json.dumps([request.form, ACCESS_TOKEN])),
    "broken json": lambda request, url: Reply(200, json.dumps(token_response(url))[:-1]),
    "down": lambda request, _url: Reply(503, request.body),
    "redirect": lambda request, url: Reply(
        302, headers={"Location": f"{url}/{ACCESS_TOKEN}?{request.body.decode()}"}
    ),
    "other org": lambda _request, url: Reply(
        200, token_response(url, id=f"{url}/id/{ORG[:14]}9/005x")
    ),
    "no token": lambda request, url: Reply(200, token_response(url, access_token=[ACCESS_TOKEN])),
    "bad token": lambda request, url: Reply(
        200, token_response(url, access_token=ACCESS_TOKEN + "\n")
    ),
    "bad instance": lambda request, url: Reply(
        200, token_response(url, instance_url=f"ftp://{ACCESS_TOKEN}")
    ),
    "too large": lambda request, url: Reply(200, (ACCESS_TOKEN * 200_000).encode()),
}


@pytest.mark.parametrize("how", ANSWERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_sign_in_shows_no_secret(way, how, authority, key_file, caplog, capfd):
    """No secret is in the settings, the provider, the session, an error, the output or any
    library's debug log.
    """
    capture_all_logs(caplog)
    with https_host(lambda _request: Reply(), authority) as host:
        host.answer = lambda request: ANSWERS[how](request, host.url)
        settings = Settings(
            auth=way,
            login_url=host.url,
            ca_file=host.ca_file,
            tenant_id=ORG,
            **sign_in_settings(host.url, key_file)[way],
        )
        provider = session_provider(settings)
        try:
            session = provider.get_session(None)
        except SfPubSubError as error:
            assert how != "granted"
            for text in visible_parts(error):
                assert_clean(text, f"the error of {how}")
        else:
            assert how == "granted"
            assert session.access_token == ACCESS_TOKEN
            assert_clean(f"{session} {session!r} {vars(provider)}", "the session")
        assert host.requests
        assert_clean(f"{settings!r} {settings.describe()} {provider!r} {vars(provider)}", "a repr")
    assert "sfpubsub.auth" in caplog.text  # proves that debug lines were captured
    assert_clean(caplog.text, "the log")
    assert_clean("".join(capfd.readouterr()), "the output")


@pytest.mark.parametrize("way", WAYS)
def test_a_broken_connection_shows_no_secret(way, authority, key_file, caplog):
    """Errors of the HTTP libraries contain the request, so they must not be chained to this
    package's errors.
    """
    capture_all_logs(caplog)

    def hang_up(connection, _over):
        connection.recv(65536)

    with https_host(lambda _r: Reply(), authority) as untrusted, raw_host(hang_up) as broken:
        for url, proxy in (
            (broken, ""),
            (untrusted.url, ""),
            ("http://127.0.0.1:9", ""),
            (untrusted.url, f"http://me:{PROXY_PASSWORD}@127.0.0.1:9"),
        ):
            values = sign_in_settings(url, key_file)[way]
            settings = Settings(auth=way, login_url=url, proxy=proxy, **values)
            http = HttpClient(proxy=proxy, timeout=30.0)
            with pytest.raises(SfPubSubError) as caught:
                session_provider(settings, http).get_session(None)
            for text in visible_parts(caught.value):
                assert_clean(text, f"the error of {url}")
            assert_clean(f"{settings!r} {settings.describe()}", "the settings")
    assert_clean(caplog.text, "the log")


def test_a_failed_rest_request_shows_no_secret(authority, caplog):
    """If an org repeats the token in its response, the token is in neither the error nor the
    log.
    """
    capture_all_logs(caplog)
    answers = [
        Reply(401, [{"errorCode": "INVALID_SESSION_ID", "message": "Session expired"}]),
        Reply(400, [{"errorCode": "X", "message": f"bad header Bearer {ACCESS_TOKEN}"}]),
        Reply(200, f"<html>{ACCESS_TOKEN}"),
        Reply(302, headers={"Location": f"https://elsewhere.example/{ACCESS_TOKEN}"}),
        Reply(503, ACCESS_TOKEN),
    ]
    with https_host(lambda _request: Reply(), authority) as host:
        session = Session(ACCESS_TOKEN, host.url, ORG)
        sessions = CurrentSession(StaticSession(session))
        org = OrgClient(sessions, HttpClient(ca_file=host.ca_file))
        for answer in answers:
            host.answer = lambda _request, answer=answer: answer
            with pytest.raises(SfPubSubError) as caught:
                org.get("/services/data", {"q": "SELECT Id"})
            for text in visible_parts(caught.value):
                assert_clean(text, f"the error of {answer.status}")
            if answer.status != 200:  # a sink accepts any response with status 200
                with pytest.raises(SfPubSubError) as caught:
                    org.send("GET", "/x", headers={"Accept": "text/csv"}, sink=lambda _part: True)
                for text in visible_parts(caught.value):
                    assert_clean(text, f"the error of {answer.status} to a sink")
        assert_clean(repr([org, sessions, session, vars(org)]), "a repr")
    assert_clean(caplog.text, "the log")


def test_nothing_that_holds_a_secret_is_pickled(key_file):
    """Objects with secrets refuse to be pickled, because pickles are sent to executors, caches
    and queues.
    """
    values = dict.fromkeys(SECRETS, "planted")
    things: list[Any] = [
        Settings(**values),
        Session(ACCESS_TOKEN, "https://x", ORG),
        StaticSession(Session(ACCESS_TOKEN, "https://x", ORG)),
        CurrentSession(StaticSession(Session(ACCESS_TOKEN, "https://x", ORG))),
        Bearer("https://x", ACCESS_TOKEN),
        Form(client_secret=CLIENT_SECRET),
        Answer(200, ACCESS_TOKEN.encode(), "x"),
    ]
    for way in WAYS:
        given = sign_in_settings("", key_file)[way]
        settings = Settings(auth=way, login_url="https://acme.my.salesforce.com", **given)
        things.append(session_provider(settings))
    for thing in things:
        with pytest.raises(TypeError) as caught:
            pickle.dumps(thing)
        assert_clean(str(caught.value), f"the refusal of {type(thing).__name__}")
        assert_clean(f"{thing} {thing!r}", f"the repr of {type(thing).__name__}")


@pytest.mark.parametrize(
    "text",
    [
        f"client_id=k&secret={CLIENT_SECRET}",
        f"token {ACCESS_TOKEN} was bad",
        "assertion eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln",
        "force://PlatformCLI::planted@acme.my.salesforce.com",
    ],
)
def test_scrub_redacts_tokens_in_foreign_text(text):
    """In text that this package did not write, `scrub` redacts everything that looks like a token,
    and every secret that was sent.
    """
    assert_clean(scrub(text, [CLIENT_SECRET]), "the text")


def test_a_mistake_in_the_settings_does_not_show_the_value(tmp_path):
    """A secret that was put into the wrong setting, or into a broken file, is not shown in the
    error.
    """
    for name in ("login_url", "instance_url", "audience", "proxy"):
        with pytest.raises(ConfigurationError) as caught:
            Settings.load({name: CLIENT_SECRET}, {})
        for text in visible_parts(caught.value):
            assert_clean(text, name)
        with pytest.raises(ConfigurationError) as caught:
            Settings.load({name: f"https://me:{PASSWORD}@host/{CLIENT_SECRET}"}, {})
        for text in visible_parts(caught.value):
            assert_clean(text, name)
    file = tmp_path / "x.toml"
    file.touch(mode=0o600)
    for content in (f'client_secret = "{CLIENT_SECRET}', f'secret = "{CLIENT_SECRET}"'):
        file.write_text(content)
        with pytest.raises(ConfigurationError) as caught:
            Settings.load({"config": str(file)}, {})
        for text in visible_parts(caught.value):
            assert_clean(text, "the file")


def test_a_command_shows_no_secret(run_emulator, monkeypatch, capfd, tmp_path):
    """A command with ``-vv``, successful or not, prints no secret, not even its proxy's
    password.
    """
    emulator = run_emulator(tls=True, advertise=REMOTE)
    emulator.accounts.put_user("u", PASSWORD)
    emulator.accounts.put_app("key", CLIENT_SECRET, run_as="u", refresh_token=REFRESH_TOKEN)
    with connect_proxy() as proxy:
        service = {
            "ENDPOINT": emulator.grpc_target,
            "CA_FILE": str(emulator.ca_file),
            "LOGIN_URL": emulator.http_url,
            "PROXY": proxy.url.replace("//", f"//me:{PROXY_PASSWORD}@"),
            "CLIENT_ID": "key",
            "CLIENT_SECRET": CLIENT_SECRET,
            "USERNAME": "u",
            "PASSWORD": PASSWORD,
            "REFRESH_TOKEN": REFRESH_TOKEN,
        }
        for name, value in service.items():
            monkeypatch.setenv(f"SFPUBSUB_{name}", value)
        topic = ["topic", "/event/Order_Event__e"]
        for way in ("client-credentials", "refresh", "password"):
            monkeypatch.setenv("SFPUBSUB_AUTH", way)
            assert run(["-vv", *topic]) == 0
        emulator.faults.add(Fault("expire_token"))
        assert run(["-vv", *topic]) == 0
        monkeypatch.setenv("SFPUBSUB_CLIENT_SECRET", "planted-wrong")
        assert run(["-vv", *topic]) == 3
        monkeypatch.setenv("SFPUBSUB_LOGIN_URL", f"https://me:{PASSWORD}@x")
        assert run(["-vv", *topic]) == 1
        assert proxy.credentials
    out, err = capfd.readouterr()
    assert "sfpubsub.auth" in err
    assert_clean(out, "stdout")
    assert_clean(err, "stderr")


def test_an_uncaught_error_shows_no_secret():
    """The traceback that Python prints at the end of a failed process contains no secret."""
    code = "from sfpubsub import PubSubClient\nPubSubClient.from_env().get_topic('/event/X__e')\n"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", code],
        env={
            **os.environ,
            "SFPUBSUB_AUTH": "password",
            "SFPUBSUB_LOGIN_URL": "http://127.0.0.1:9",
            "SFPUBSUB_CLIENT_ID": "k",
            "SFPUBSUB_CLIENT_SECRET": CLIENT_SECRET,
            "SFPUBSUB_USERNAME": "u",
            "SFPUBSUB_PASSWORD": PASSWORD,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "the connection was refused" in done.stderr
    assert_clean(done.stderr, "the traceback")


def test_a_client_shows_no_secret(run_emulator):
    """Neither the repr of a client, nor its attributes, nor the errors of its calls contain a
    secret.
    """
    emulator = run_emulator(tls=True)
    session = Session(ACCESS_TOKEN, emulator.instance_url, emulator.tenant_id)
    with PubSubClient(
        session, endpoint=emulator.grpc_target, ca_file=str(emulator.ca_file)
    ) as client:
        with pytest.raises(SfPubSubError) as caught:
            client.get_topic("/event/Order_Event__e")
        one: BaseException | None = caught.value
        while one is not None:  # gRPC's own frames are not searched
            assert_clean(f"{one} {one!r} {one.args}", "the error")
            one = one.__cause__ or one.__context__
        assert_clean(repr(pickle.dumps(caught.value)), "its pickle")
        assert_clean(f"{client} {vars(client)}", "the client")
        with contextlib.suppress(TypeError):
            assert_clean(repr(pickle.dumps(client)), "the client's pickle")
