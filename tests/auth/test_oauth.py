"""Signing in: the form of each flow, the answer read with care, refusals that say what to check."""

from __future__ import annotations

import base64
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sfpubsub.auth.http import MAX_BYTES, HttpClient
from sfpubsub.auth.oauth import (
    ClientCredentials,
    JwtBearer,
    RefreshToken,
    UsernamePassword,
    session_provider,
)
from sfpubsub.auth.refusals import REFUSALS, find, refused
from sfpubsub.auth.session import CurrentSession, Session
from sfpubsub.config import Settings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    RemoteProtocolError,
    StreamUnavailableError,
)

from .servers import Reply, Request, https_host, raw_host

TOKEN = "00D000000000001!AQ0AQ.token"
ORG = "00D000000000001EAA"


def answer(url: str, **changed) -> dict:
    """A token answer as the service gives it."""
    found = {
        "access_token": TOKEN,
        "instance_url": url,
        "id": f"https://login.salesforce.com/id/{ORG}/005000000000001AAA",
        "token_type": "Bearer",
        "issued_at": "1700000000000",
        "signature": "c2lnbmF0dXJl",
        "scope": "api",
        **changed,
    }
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def host(authority):
    """A host that answers a sign-in over TLS; a test may change its `answer`."""
    with https_host(lambda _request: Reply(), authority) as found:
        found.answer = lambda _request: Reply(200, answer(found.url))
        yield found


@pytest.fixture
def http(host):
    return HttpClient(ca_file=host.ca_file, timeout=30.0)


@pytest.fixture(scope="session")
def key_file(tmp_path_factory):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = tmp_path_factory.mktemp("key") / "key.pem"
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def credentials(host, http, **options) -> ClientCredentials:
    return ClientCredentials("key", "hush", login_url=host.url, http=http, **options)


def test_client_credentials(host, http):
    """The form of the flow; token, instance and organisation of the answer."""
    session = credentials(host, http).get_session(None)
    assert session == Session(TOKEN, host.url, ORG)
    (request,) = host.requests
    assert (request.method, request.path) == ("POST", "/services/oauth2/token")
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.form == {
        "grant_type": "client_credentials",
        "client_id": "key",
        "client_secret": "hush",
    }


def test_refresh_token_and_its_rotation(host, http):
    """A new refresh token in an answer is the one that is used next."""
    host.answer = lambda _request: Reply(200, answer(host.url, refresh_token="second"))
    login = RefreshToken("key", "first", login_url=host.url, http=http)
    login.get_session(None)
    login.get_session(None)
    first, second = (request.form for request in host.requests)
    assert first == {"grant_type": "refresh_token", "client_id": "key", "refresh_token": "first"}
    assert second["refresh_token"] == "second"


def test_a_rotating_refresh_token_that_two_clients_share(host, http):
    """Each token is used once, whoever asks at the same time."""
    good = ["token-0"]

    def respond(request: Request) -> Reply:
        if request.form["refresh_token"] != good[-1]:
            return Reply(400, {"error": "invalid_grant"})
        good.append(f"token-{len(good)}")
        return Reply(200, answer(host.url, refresh_token=good[-1]))

    host.answer = respond
    login = RefreshToken("key", "token-0", login_url=host.url, http=http)
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(login.get_session, [None] * 12))
    assert len(sessions) == 12
    assert len(good) == 13


def test_refresh_token_of_an_app_with_a_secret(host, http):
    """The secret goes along where there is one."""
    RefreshToken("k", "r", client_secret="s", login_url=host.url, http=http).get_session(None)
    assert host.requests[0].form["client_secret"] == "s"


def test_username_and_password(host, http):
    """The form of the flow."""
    UsernamePassword("k", "s", "u@x.org", "p&=%w", login_url=host.url, http=http).get_session(None)
    assert host.requests[0].form == {
        "grant_type": "password",
        "client_id": "k",
        "client_secret": "s",
        "username": "u@x.org",
        "password": "p&=%w",
    }


def test_jwt_bearer(host, http, key_file):
    """RS256 over issuer, subject, audience and a number of seconds within three minutes."""
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    JwtBearer("key", "u@x.org", str(key_file), login_url=host.url, http=http).get_session(None)
    form = host.requests[0].form
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    public = load_pem_private_key(key_file.read_bytes(), None).public_key()
    claims = jwt.decode(form["assertion"], public, algorithms=["RS256"], audience=host.url)
    assert (claims["iss"], claims["sub"]) == ("key", "u@x.org")
    assert isinstance(claims["exp"], int)
    assert 0 < claims["exp"] - time.time() <= 180


@pytest.mark.parametrize(
    ("login_url", "given", "audience"),
    [
        ("https://login.salesforce.com", "", "https://login.salesforce.com"),
        ("https://test.salesforce.com/", "", "https://test.salesforce.com"),
        ("https://acme.my.salesforce.com", "", "https://login.salesforce.com"),
        ("https://acme--uat.sandbox.my.salesforce.com", "", "https://test.salesforce.com"),
        ("https://acme.my.site.com/customers", "", "https://acme.my.site.com/customers"),
        ("https://acme.my.salesforce.com", "https://acme.my.salesforce.com", None),
    ],
)
def test_the_audience_of_an_assertion(login_url, given, audience, key_file):
    """The authorisation server, not the host that is asked; a setting overrides it."""
    login = JwtBearer("k", "u", str(key_file), login_url=login_url, audience=given)
    body = login._form()["assertion"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["aud"] == (audience or given)


def test_a_private_key_that_is_none(tmp_path):
    """The file is named, and what it should be; nothing of it is shown."""
    bad = tmp_path / "key.pem"
    bad.touch(mode=0o600)
    bad.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigurationError, match=r"key\.pem does not contain an RSA") as caught:
        JwtBearer("k", "u", str(bad)).get_session(None)
    assert caught.value.__context__ is None
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem cannot be read"):
        JwtBearer("k", "u", str(tmp_path / "nowhere.pem")).get_session(None)


def test_an_encrypted_private_key(tmp_path, key_file):
    """There is nobody to type a pass phrase."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.touch(mode=0o600)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"phrase"),
        )
    )
    with pytest.raises(ConfigurationError, match="is encrypted"):
        JwtBearer("k", "u", str(locked)).get_session(None)


def _pem(tmp_path, content: bytes):
    file = tmp_path / "other.pem"
    file.touch(mode=0o600)
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("public", "contains a public key or certificate: name the file with the private key"),
        ("openssh public", "contains a public key or certificate"),
        ("certificate", "contains a public key or certificate"),
        ("elliptic", "is not RSA: use an RSA key, as RS256 requires"),
        ("empty", "does not contain an RSA private key in PEM form"),
    ],
)
def test_a_key_of_another_kind_is_named_for_what_it_is(tmp_path, key_file, kind, says):
    """A setting that is wrong, with what to give instead; never "the session provider failed"."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    private = form.load_pem_private_key(key_file.read_bytes(), None)
    if kind == "elliptic":
        content = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        )
    elif kind == "public":
        content = private.public_key().public_bytes(
            form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        )
    elif kind == "openssh public":
        content = private.public_key().public_bytes(
            form.Encoding.OpenSSH, form.PublicFormat.OpenSSH
        )
    else:
        begin = b"-----BEGIN CERTIFICATE-----\n"
        content = b"" if kind == "empty" else begin + b"AAAA\n-----END CERTIFICATE-----\n"
    login = JwtBearer("k", "u", str(_pem(tmp_path, content)))
    with pytest.raises(ConfigurationError, match=r"other\.pem") as caught:
        CurrentSession(login).get()
    assert says in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_token_url_can_be_another_one(host, http):
    """For hosts whose token endpoint is somewhere else."""
    login = ClientCredentials("k", "s", token_url=f"{host.url}/custom/token", http=http)
    login.get_session(None)
    assert host.requests[0].path == "/custom/token"


# The organisation.


def userinfo(host, reply: Reply, **changed):
    """Let the host answer the sign-in without an id, and userinfo with *reply*."""

    def respond(request: Request) -> Reply:
        if request.path == "/services/oauth2/userinfo":
            return reply
        return Reply(200, answer(host.url, id=None, **changed))

    host.answer = respond


def test_the_organisation_by_userinfo(host, http):
    """Without an identity URL the instance is asked, with the token."""
    userinfo(host, Reply(200, {"organization_id": "00D000000000009"}), access_token="opaque")
    assert credentials(host, http).get_session(None).tenant_id == "00D000000000009EAA"
    assert host.requests[1].headers["Authorization"] == "Bearer opaque"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(403, "Missing_OAuth_Token"),
        Reply(200, "<html>"),
        Reply(200, []),
        Reply(200, {"organization_id": 5}),
        Reply(200, {"organization_id": "../evil"}),
        Reply(503),
        Reply(302, headers={"Location": "https://elsewhere.example"}),
    ],
)
def test_the_organisation_by_the_token(host, http, reply):
    """When userinfo does not tell it, the token's beginning does."""
    userinfo(host, reply)
    assert credentials(host, http).get_session(None).tenant_id == ORG


def test_the_organisation_that_is_given(host, http):
    """When nothing else tells it, the setting does; as it stands there."""
    userinfo(host, Reply(403), access_token="opaque")
    given = "core/acme/00D000000000009"
    assert credentials(host, http, tenant_id=given).get_session(None).tenant_id == given


def test_no_organisation_at_all(host, http):
    """The error names the setting; a userinfo that is down is tried again."""
    userinfo(host, Reply(403), access_token="opaque")
    with pytest.raises(ConfigurationError, match="SFPUBSUB_TENANT_ID"):
        credentials(host, http).get_session(None)
    userinfo(host, Reply(503), access_token="opaque")
    with pytest.raises(StreamUnavailableError) as caught:
        credentials(host, http).get_session(None)
    assert caught.value.retryable


@pytest.mark.parametrize("given", ["00D000000000002", "core/acme/00D000000000002EAA"])
def test_a_tenant_of_another_org(host, http, given):
    """It would read like a wrong token; here both orgs are named."""
    with pytest.raises(ConfigurationError, match=f"{ORG}.*00D000000000002"):
        credentials(host, http, tenant_id=given).get_session(None)


@pytest.mark.parametrize("given", [ORG, ORG[:15], f"core/acme/{ORG}", "00D000000000001XYZ"])
def test_a_tenant_of_the_same_org(host, http, given):
    """15 and 18 characters and the long form are the same org."""
    assert credentials(host, http, tenant_id=given).get_session(None).tenant_id == given


# The instance.


def test_an_instance_that_the_answer_lacks(host, http):
    """The setting stands in for it."""
    host.answer = lambda _request: Reply(200, answer(host.url, instance_url=None))
    login = credentials(host, http, instance_url="https://acme.my.salesforce.com/")
    assert login.get_session(None).instance_url == "https://acme.my.salesforce.com"
    with pytest.raises(RemoteProtocolError, match="instance URL"):
        credentials(host, http).get_session(None)


def test_an_instance_that_is_not_the_configured_one(host, http):
    """The token would go to a host that nobody has named."""
    login = credentials(host, http, instance_url="https://acme.my.salesforce.com")
    with pytest.raises(ConfigurationError, match="SFPUBSUB_INSTANCE_URL"):
        login.get_session(None)
    assert len(host.requests) == 1


@pytest.mark.parametrize(
    "instance_url",
    [
        "http://acme.my.salesforce.com",
        "ftp://127.0.0.1",
        "acme.my.salesforce.com",
        "https://user:pass@acme.my.salesforce.com",
        "https://acme.my.salesforce.com/path",
        "https://acme.my.salesforce.com?x",
        "https://",
        "https://[::1",
        "https://acme:port",
        "https://ácme.example",
    ],
)
def test_an_instance_that_no_token_goes_to(host, http, instance_url):
    """Neither the network nor an injected path gets the token; nobody is asked."""
    host.answer = lambda _request: Reply(200, answer(host.url, instance_url=instance_url))
    with pytest.raises(RemoteProtocolError):
        credentials(host, http).get_session(None)
    assert len(host.requests) == 1


# What else an answer may be.

SHAPES = [
    b"",
    b"<html>maintenance</html>",
    b"null",
    b"[]",
    b'"text"',
    b"12",
    b'{"access_token": "x"',
    b"[" * 100_000,
    b"\xff\xfe\x00",
    b'{"access_token": null}',
    b'{"access_token": 5}',
    b'{"access_token": ["x"]}',
    b'{"access_token": ""}',
    b'{"access_token": "with space\\n", "instance_url": "https://x"}',
    b'{"access_token": "x", "token_type": "mac", "instance_url": "https://x"}',
    b'{"access_token": "x", "instance_url": {}}',
    b'{"access_token": "x", "instance_url": "https://x", "id": 7}',
    json.dumps({"access_token": "x" * 9000, "instance_url": "https://x"}).encode(),
]


@pytest.mark.parametrize("body", SHAPES, ids=range(len(SHAPES)))
def test_an_answer_that_is_none(host, http, body):
    """Whatever comes with a 200, the error is ours, is not tried again, and shows nothing of it."""
    host.answer = lambda _request: Reply(200, body)
    with pytest.raises(RemoteProtocolError, match=r"127\.0\.0\.1") as caught:
        credentials(host, http).get_session(None)
    assert not caught.value.retryable
    assert caught.value.__context__ is None
    assert "maintenance" not in str(caught.value)


def test_an_answer_that_is_too_large(host, http):
    """No more of it is read than the bound."""
    host.answer = lambda _request: Reply(200, b"x" * (MAX_BYTES + 1))
    with pytest.raises(RemoteProtocolError, match="more than"):
        credentials(host, http).get_session(None)


def test_an_answer_without_an_end():
    """It is left alone at the bound, and not read until the time is up."""
    sent = []

    def talk(connection, over):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"x" * 65536)
            sent.append(65536)

    with raw_host(talk) as url:
        login = ClientCredentials("k", "s", login_url=url, http=HttpClient(timeout=10.0))
        with pytest.raises(RemoteProtocolError, match="more than"):
            login.get_session(None)
    assert sum(sent) < 10 * MAX_BYTES  # the bound, and what the kernel holds


def test_a_small_answer_that_unpacks_to_a_large_one(host, http):
    """Compressed answers are not asked for, and not unpacked."""
    import gzip

    packed = gzip.compress(json.dumps(answer(host.url)).encode())
    host.answer = lambda _request: Reply(200, packed, {"Content-Encoding": "gzip"})
    with pytest.raises(RemoteProtocolError):
        credentials(host, http).get_session(None)
    assert host.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(authority, host, http, status):
    """The form goes to nobody but the configured host; the other one is named without its query."""
    with https_host(lambda _request: Reply(200, answer(host.url)), authority) as other:
        place = {"Location": f"{other.url}/services/oauth2/token?sid=hush"}
        host.answer = lambda _request: Reply(status, headers=place)
        with pytest.raises(RemoteProtocolError, match="redirects to") as caught:
            credentials(host, http).get_session(None)
        assert other.requests == []
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_host_that_is_down_is_tried_again(host, http, status):
    """Retryable, so that a stream backs off instead of ending."""
    host.answer = lambda _request: Reply(status, "<html>")
    with pytest.raises(StreamUnavailableError, match=str(status)) as caught:
        credentials(host, http).get_session(None)
    assert caught.value.retryable


def test_a_host_that_nobody_listens_at():
    """Retryable, and said in words."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    login = ClientCredentials("k", "s", login_url=f"http://127.0.0.1:{port}")
    with pytest.raises(StreamUnavailableError, match="connection was refused") as caught:
        login.get_session(None)
    assert caught.value.retryable


def test_a_certificate_that_is_not_trusted(host):
    """Not tried again: neither end changes by itself. It says which setting helps."""
    login = credentials(host, HttpClient())
    with pytest.raises(StreamUnavailableError, match="SFPUBSUB_CA_FILE") as caught:
        login.get_session(None)
    assert not caught.value.retryable
    assert host.requests == []


def drip(parts, pause: float):
    """Send *parts* one by one, each *pause* seconds after the one before."""

    def talk(connection, over):
        connection.recv(65536)
        for part in parts:
            connection.sendall(part)
            if over.wait(pause):
                return

    return talk


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD, *[b"x"] * 2000],
        [b"HTTP/1.1 200 OK\r\n", *[b"X-Slow: 1\r\n"] * 2000],
        [b"H", *[b"x"] * 2000],
        [],
    ],
    ids=["body", "headers", "status", "nothing"],
)
def test_an_answer_that_drips_ends_in_time(parts):
    """Every read is in time, the answer never is: the time of the whole is bounded."""

    def talk(connection, over):
        drip(parts, 0.02)(connection, over)
        over.wait(60.0)

    with raw_host(talk) as url:
        login = ClientCredentials("k", "s", login_url=url, http=HttpClient(timeout=0.3))
        begun = time.monotonic()
        with pytest.raises(StreamUnavailableError, match=r"0\.3 s|in time") as caught:
            login.get_session(None)
        assert time.monotonic() - begun < 20.0  # without the bound, 40
    assert caught.value.retryable


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 999999 ?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"access_token": "x"',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
    ],
)
def test_bytes_that_are_no_answer(sent):
    """Cut off, malformed or no HTTP: an error of ours, unchained."""

    def talk(connection, _over):
        connection.recv(65536)
        connection.sendall(sent)

    with raw_host(talk) as url:
        login = ClientCredentials("k", "s", login_url=url, http=HttpClient(timeout=2.0))
        with pytest.raises((StreamUnavailableError, RemoteProtocolError)) as caught:
            login.get_session(None)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


# Refusals.


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.error}-{row.words}".strip("-"))
def test_a_row_of_the_table_of_refusals(row):
    """Each row is found by its own words, its error carries both texts and the cure."""
    description = f"It says: {row.words.upper()}." if row.words else "other"
    found = {"error": row.error, "error_description": description}
    assert find(row.error, description) is row
    error = refused("host", 400, found, [])
    assert isinstance(error, AuthenticationError)
    assert row.error in str(error)
    assert description in str(error)
    assert row.check in str(error)
    assert error.error_code == row.error
    assert error.retryable is row.retryable


@pytest.mark.parametrize(
    ("error", "description", "cure"),
    [
        # The answers as the service and its documentation word them.
        ("invalid_grant", "authentication failure", "password"),
        ("invalid_grant", "no client credentials user enabled", "Run As"),
        ("invalid_grant", "request not supported on this domain", "My Domain"),
        ("invalid_grant", "user hasn't approved this consumer", "pre-authorized"),
        ("invalid_grant", "user is not admin approved to access this app", "pre-authorized"),
        ("invalid_app_access", "user is not admin approved to access this app", "pre-authorized"),
        ("invalid_grant", "Audience validation failed", "SFPUBSUB_AUDIENCE"),
        ("invalid_grant", "audience is invalid", "SFPUBSUB_AUDIENCE"),
        ("invalid_grant", "invalid assertion", "certificate"),
        ("invalid_grant", "expired authorization code", "clock"),
        ("invalid_grant", "expired access/refresh token", "sign in again"),
        ("invalid_grant", "ip restricted or invalid login hours", "IP"),
        ("invalid_client_id", "client identifier invalid", "SFPUBSUB_CLIENT_ID"),
        ("invalid_client", "invalid client credentials", "SFPUBSUB_CLIENT_SECRET"),
        ("unsupported_grant_type", "grant type not supported", "OAuth settings"),
        ("something_new", "of next year", "login history"),
    ],
)
def test_what_to_check_after_a_refusal(host, http, error, description, cure):
    """The user reads Salesforce's words and what to do; it is not tried again."""
    host.answer = lambda _request: Reply(400, {"error": error, "error_description": description})
    with pytest.raises(AuthenticationError, match=cure) as caught:
        credentials(host, http).get_session(None)
    assert f"{error}: {description}" in str(caught.value)
    assert not caught.value.retryable


def test_too_many_sign_ins_are_tried_again(host, http):
    """The one refusal that passes by itself."""
    refusal = {"error": "rate_limit_exceeded", "error_description": "login rate exceeded"}
    host.answer = lambda _request: Reply(400, refusal)
    with pytest.raises(AuthenticationError) as caught:
        credentials(host, http).get_session(None)
    assert caught.value.retryable


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"error": 5}', b'{"error_description": ["x"]}', b"\xff"]
)
def test_a_refusal_without_words(host, http, body):
    """The status has to do."""
    host.answer = lambda _request: Reply(400, body)
    with pytest.raises(AuthenticationError, match="status 400"):
        credentials(host, http).get_session(None)


# What the settings choose.


def settings(**values: str) -> Settings:
    return Settings.load(values, {})


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (
            {
                "auth": "client-credentials",
                "client_id": "k",
                "client_secret": "s",
                "login_url": "https://acme.my.salesforce.com",
            },
            ClientCredentials,
        ),
        ({"auth": "refresh", "client_id": "k", "refresh_token": "r"}, RefreshToken),
        (
            {"auth": "jwt", "client_id": "k", "username": "u", "private_key_file": "f"},
            JwtBearer,
        ),
        (
            {
                "auth": "password",
                "client_id": "k",
                "client_secret": "s",
                "username": "u",
                "password": "p",
            },
            UsernamePassword,
        ),
    ],
)
def test_the_settings_choose_the_flow(given, kind):
    """And each setting that the flow needs is asked for by its name."""
    assert type(session_provider(settings(**given))) is kind
    for name in given.keys() - {"auth"}:
        rest = {key: value for key, value in given.items() if key != name}
        with pytest.raises(ConfigurationError, match=f"SFPUBSUB_{name.upper()}"):
            session_provider(settings(**rest))


@pytest.mark.parametrize("host", ["login", "test"])
def test_client_credentials_need_my_domain(host):
    """The general hosts refuse this flow with words that tell nobody anything."""
    given = {"auth": "client-credentials", "client_id": "k", "client_secret": "s"}
    with pytest.raises(ConfigurationError, match="My Domain"):
        session_provider(settings(login_url=f"https://{host}.salesforce.com", **given))


def test_no_token_names_the_other_ways():
    """Who has set nothing reads of both."""
    with pytest.raises(ConfigurationError, match=r"SFPUBSUB_ACCESS_TOKEN.*SFPUBSUB_AUTH"):
        session_provider(settings())
