"""Tests of logins managed by other tools: the ``sf`` command line and simple_salesforce."""

from __future__ import annotations

import json
import logging
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.sf_cli import SfCliLogin
from sfpubsub.auth.simple_salesforce import SimpleSalesforceLogin
from sfpubsub.config import Settings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    SessionExpiredError,
    StreamUnavailableError,
)

from .servers import Reply, https_host

TOKEN = "00D000000000001!AQ0AQ.token"
INSTANCE = "https://acme.my.salesforce.com"
ORG = "00D000000000001EAA"

SHOWN = {"accessToken": TOKEN, "instanceUrl": INSTANCE, "id": ORG, "username": "me@acme.org"}


@pytest.fixture
def sf(tmp_path, monkeypatch):
    """Put a fake ``sf`` first on the PATH; return a function that sets its responses.

    The function takes tuples of command prefix, exit code and output. Calling its attribute `asked`
    returns the arguments of all calls so far.
    """
    answers, asked = tmp_path / "answers.json", tmp_path / "asked"
    program = tmp_path / "sf"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"open({str(asked)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))\n"
        "print('warning: token 00D000000000001!stderr-secret', file=sys.stderr)\n"
        "if 'SF_BUSY' in os.environ:\n"  # fails if another one is running
        "    os.mkdir(os.environ['SF_BUSY'])\n"
        "    import time\n"
        "    time.sleep(0.05)\n"
        "    os.rmdir(os.environ['SF_BUSY'])\n"
        "if 'FORCE_COLOR' in os.environ:\n"
        "    print(chr(27) + '[32m')\n"
        f"for start, code, text in json.load(open({str(answers)!r})):\n"
        "    if ' '.join(sys.argv[1:]).startswith(start):\n"
        "        print(text)\n"
        "        sys.exit(code)\n"
        "sys.exit(7)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def answer(*rows: tuple[str, int, object]) -> None:
        texts = [(s, c, t if isinstance(t, str) else json.dumps(t)) for s, c, t in rows]
        answers.write_text(json.dumps(texts))

    answer.asked = lambda: [json.loads(line) for line in asked.read_text().splitlines()]
    return answer


def ok(result: object) -> dict:
    """Return the JSON that ``sf`` prints for a successful command."""
    return {"status": 0, "result": result, "warnings": []}


def test_the_session_of_the_default_org(sf):
    """The token, instance and organisation are read with one call of ``sf org display``."""
    sf(("org display", 0, ok(SHOWN)))
    session = SfCliLogin().get_session(None)
    assert (session.access_token, session.instance_url) == (TOKEN, INSTANCE)
    assert session.tenant_id == ORG
    assert sf.asked() == [["org", "display", "--json"]]


def test_a_redacted_token_is_read_by_another_command(sf):
    """Since May 2026, ``org display`` redacts the token.

    ``org auth show-access-token`` then returns the token of the same org.
    """
    redacted = {**SHOWN, "accessToken": "[REDACTED] Use 'sf org auth show-access-token' to view"}
    sf(
        ("org display", 0, ok(redacted)),
        ("org auth show-access-token", 0, ok({"accessToken": TOKEN})),
    )
    settings = Settings.load({"auth": "sf-cli", "username": "uat"}, {})
    session = session_provider(settings).get_session(None)
    assert session.access_token == TOKEN
    assert sf.asked() == [
        ["org", "display", "--json", "--target-org", "uat"],
        ["org", "auth", "show-access-token", "--json", "--target-org", "uat"],
    ]


@pytest.mark.parametrize(
    ("status", "retryable"),
    [({"connectedStatus": "RefreshTokenAuthError"}, False), ({}, True)],
    ids=["dead", "unknown"],
)
def test_a_rejected_token_that_sf_still_returns_raises(sf, status, retryable):
    """If ``sf`` returns the rejected token again and does not say that it works, the error explains
    how to log in. It is retryable if ``sf`` does not say that its login has failed.

    Once ``sf`` returns a new token, it is used.
    """
    sf(("org display", 0, ok({**SHOWN, **status})))
    login = SfCliLogin("uat")
    first = login.get_session(None)
    with pytest.raises(AuthenticationError, match="sf org login web --alias uat") as caught:
        login.get_session(first)
    assert caught.value.retryable is retryable
    sf(("org display", 0, ok({**SHOWN, "accessToken": TOKEN + "2"})))
    assert login.get_session(first).access_token == TOKEN + "2"


def test_a_valid_token_that_was_rejected_by_mistake_is_tried_again(sf):
    """If ``sf`` has checked its login and still has the rejected token, the token is returned, so
    that the stream tries it again with its backoff, as after any renewal.
    """
    sf(("org display", 0, ok({**SHOWN, "connectedStatus": "Connected"})))
    login = SfCliLogin()
    first = login.get_session(None)
    again = login.get_session(first)
    assert again.access_token == first.access_token
    assert again is not first  # otherwise it would count as not renewed
    assert len(sf.asked()) == 3  # the last two: it may print the token that it is about to renew


def test_sf_is_asked_one_at_a_time(sf, tmp_path, monkeypatch):
    """Logins of several threads and processes do not ask ``sf`` at the same time: it may renew its
    login, which two of them would do at once.
    """
    monkeypatch.setenv("SF_BUSY", str(tmp_path / "busy"))
    sf(("org display", 0, ok(SHOWN)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: SfCliLogin().get_session(None), range(4)))
    assert len(sf.asked()) == 4


def test_sf_output_has_no_colours(sf, monkeypatch):
    """FORCE_COLOR is not passed on to ``sf``, because colour codes would break its JSON."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    sf(("org display", 0, ok(SHOWN)))
    assert SfCliLogin().get_session(None).access_token == TOKEN


def test_a_missing_sf_program_raises(monkeypatch, tmp_path):
    """If ``sf`` is not on the PATH, the error says to install the Salesforce CLI."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install the Salesforce CLI"):
        SfCliLogin().get_session(None)


@pytest.mark.parametrize(
    ("code", "output", "message"),
    [
        (1, {"status": 1, "name": "NoDefaultEnvError", "message": "No default."}, "No default"),
        (1, {"message": f"bad {TOKEN} and force://PlatformCLI::abc@x"}, r"bad \*\*\* and \*\*\*"),
        (1, "Segmentation fault", "failed; sign in"),
        (0, "no json", "failed; sign in"),
        (0, [], "failed; sign in"),
        (0, {"result": "text"}, "failed; sign in"),
        (0, "[" * 100_000, "failed; sign in"),
        (7, "", "failed; sign in"),
    ],
)
def test_a_failure_of_sf_is_reported_without_secrets(sf, code, output, message):
    """The error contains the redacted message of ``sf``, but never its raw output or its stderr."""
    sf(("org display", code, output))
    with pytest.raises(AuthenticationError, match=message) as caught:
        SfCliLogin().get_session(None)
    assert "secret" not in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        ({**SHOWN, "instanceUrl": "http://acme.my.salesforce.com"}, "plaintext"),
        ({**SHOWN, "instanceUrl": 5}, "is not a valid URL"),
        ({**SHOWN, "accessToken": None}, "update the Salesforce CLI with sf update"),
    ],
)
def test_the_output_of_sf_is_validated(sf, shown, error):
    """An HTTP or invalid instance URL, or a missing token, raises an error that says so."""
    sf(("org display", 0, ok(shown)), ("org auth", 0, ok({})))
    with pytest.raises((AuthenticationError, ConfigurationError), match=error):
        SfCliLogin().get_session(None)


def test_sf_signed_in_to_another_org_raises(sf):
    """An instance URL or tenant in the settings must match the org that ``sf`` is signed in to."""
    sf(("org display", 0, ok(SHOWN)))
    with pytest.raises(ConfigurationError, match="SFPUBSUB_INSTANCE_URL"):
        SfCliLogin(instance_url="https://other.my.salesforce.com").get_session(None)
    with pytest.raises(ConfigurationError, match="SFPUBSUB_TENANT_ID"):
        SfCliLogin(tenant_id="00D000000000002").get_session(None)


def test_an_sf_that_hangs_times_out(tmp_path, monkeypatch):
    """If ``sf`` doesn't finish within its time limit, an error with this limit is raised, and its
    process is killed.
    """
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    program = tmp_path / "sf"
    program.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("sfpubsub.auth.sf_cli.COMMAND_TIMEOUT", 0.3)
    begun = time.monotonic()
    with pytest.raises(AuthenticationError, match=r"within 0\.3 s") as caught:
        SfCliLogin().get_session(None)
    assert time.monotonic() - begun < 30.0
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert caught.value.__context__ is None


# simple_salesforce.


@pytest.fixture
def org(authority):
    """Run an HTTPS server as an org; its ``userinfo`` returns status 403 by default."""
    with https_host(lambda _request: Reply(403), authority) as host:
        yield host


def login_with(salesforce: object, org) -> SimpleSalesforceLogin:
    """Point *salesforce* at the server *org*, and return a login that uses *salesforce*."""
    salesforce.sf_instance = f"127.0.0.1:{org.port}"
    return SimpleSalesforceLogin(salesforce, http=HttpClient(ca_file=org.ca_file, timeout=30.0))


class Salesforce:
    """A fake `simple_salesforce.Salesforce` with the attributes that the login uses.

    A renewal sets the token to *renewed*, or raises *renewed* if it is an exception.
    """

    def __init__(self, renewed: object = None) -> None:
        self.session_id = TOKEN
        self.sf_instance = "127.0.0.1"
        self._renewed = renewed
        self._password = "hush"

    def _refresh_session(self) -> None:
        if isinstance(self._renewed, Exception):
            raise self._renewed
        self.session_id = str(self._renewed)


def test_the_session_of_a_salesforce_object(org):
    """Any object with ``session_id`` and ``sf_instance`` can be used to log in.

    The instance URL is ``https://`` followed by the host.
    """
    session = login_with(Salesforce(), org).get_session(None)
    assert (session.access_token, session.instance_url) == (TOKEN, org.url)
    assert session.tenant_id == ORG


def test_a_salesforce_object_is_renewed_in_place(org):
    """If the rejected session is still the object's current one, the object is renewed.

    Otherwise, its current session is returned.
    """
    salesforce = Salesforce("00D000000000001!second")
    login = login_with(salesforce, org)
    first = login.get_session(None)
    assert login.get_session(first).access_token == "00D000000000001!second"
    assert login.get_session(first).access_token == "00D000000000001!second"


@pytest.mark.parametrize(
    ("failure", "retryable"),
    [(RuntimeError("password=hush"), False), (ConnectionError("body=hush"), True)],
)
def test_a_salesforce_object_that_cannot_be_renewed(org, failure, retryable):
    """If renewal fails, the error names only the type of the exception.

    Its text may contain the password. A connection error can be retried.
    """
    login = login_with(Salesforce(failure), org)
    first = login.get_session(None)
    with pytest.raises(AuthenticationError, match=type(failure).__name__) as caught:
        login.get_session(first)
    assert "hush" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.retryable is retryable


def test_a_salesforce_object_without_a_refresh_method(org):
    """If the object has no method to renew its session, the error says to create a new one."""

    class Bare:
        session_id, sf_instance = TOKEN, "127.0.0.1"

    login = login_with(Bare(), org)
    with pytest.raises(SessionExpiredError, match="create a new Salesforce object"):
        login.get_session(login.get_session(None))


def test_an_object_that_is_not_a_salesforce_raises():
    """The login cannot be created, and the error names the missing attribute."""
    with pytest.raises(ConfigurationError, match="session_id"):
        SimpleSalesforceLogin(object())


def test_the_organisation_of_an_opaque_session(org):
    """If the token doesn't contain the organisation, it is read from the instance's ``userinfo``.

    If that endpoint is down, the error can be retried.
    """
    salesforce = Salesforce()
    salesforce.session_id = "opaque"
    login = login_with(salesforce, org)
    org.answer = lambda _request: Reply(200, {"organization_id": ORG})
    assert login.get_session(None).tenant_id == ORG
    org.answer = lambda _request: Reply(503)
    with pytest.raises(StreamUnavailableError):
        login.get_session(None)


def test_logins_are_not_pickled():
    """Pickling a login raises an error, because a login gives access to a token."""
    for login in (SfCliLogin(), SimpleSalesforceLogin(Salesforce())):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(login)
        assert "hush" not in repr(login)


def test_the_output_of_sf_is_not_logged(sf, caplog):
    """Neither the stdout nor the stderr of ``sf`` appears in the log, even at level DEBUG."""
    caplog.set_level(logging.DEBUG)
    sf(("org display", 0, ok(SHOWN)))
    SfCliLogin().get_session(None)
    assert "AQ0AQ" not in caplog.text
    assert "stderr-secret" not in caplog.text
