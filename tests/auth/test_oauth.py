"""Tests of the OAuth flows: the form of each, validation of the response, and errors that say
what to check.
"""

from __future__ import annotations

import base64
import json
import socket
import time

import pytest

from sfpubsub.auth.http import MAX_BYTES, Answer, HttpClient
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
    """Return a token response in Salesforce's form, with the fields in *changed* replaced.

    A field whose new value is None is left out.
    """
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
    """Run an HTTPS server that grants every sign-in; a test may change its `answer`."""
    with https_host(lambda _request: Reply(), authority) as found:
        found.answer = lambda _request: Reply(200, answer(found.url))
        yield found


@pytest.fixture
def http(host):
    """Return an HTTP client that trusts the certificate of `host`."""
    return HttpClient(ca_file=host.ca_file, timeout=30.0)


@pytest.fixture(scope="session")
def key_file(tmp_path_factory):
    """Return the path of a new RSA private key in PEM form."""
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
    """Return a client credentials login at *host*."""
    return ClientCredentials("key", "hush", login_url=host.url, http=http, **options)


def test_client_credentials(host, http):
    """The flow posts the client's ID and secret as a form to the token endpoint.

    The session has the response's token, instance, organisation and user.
    """
    session = credentials(host, http).get_session(None)
    assert session == Session(TOKEN, host.url, ORG, "005000000000001AAA")
    (request,) = host.requests
    assert (request.method, request.path) == ("POST", "/services/oauth2/token")
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.form == {
        "grant_type": "client_credentials",
        "client_id": "key",
        "client_secret": "hush",
    }


def test_refresh_token_of_an_app_with_a_secret(host, http):
    """If a client secret is configured, it is sent in the form."""
    RefreshToken("k", "r", client_secret="s", login_url=host.url, http=http).get_session(None)
    assert host.requests[0].form["client_secret"] == "s"


def test_username_and_password(host, http):
    """The posted form contains all credentials, with special characters in the password intact."""
    UsernamePassword("k", "s", "u@x.org", "p&=%w", login_url=host.url, http=http).get_session(None)
    assert host.requests[0].form == {
        "grant_type": "password",
        "client_id": "k",
        "client_secret": "s",
        "username": "u@x.org",
        "password": "p&=%w",
    }


def test_jwt_bearer(host, http, key_file):
    """The assertion is signed with RS256, has the client, user and audience as its claims, and
    expires within three minutes.
    """
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
    """The audience is the authorisation server for the login URL, not always the host itself.

    A setting overrides it.
    """
    login = JwtBearer("k", "u", str(key_file), login_url=login_url, audience=given)
    body = login._form()["assertion"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["aud"] == (audience or given)


def test_an_invalid_private_key_file_raises(tmp_path):
    """The error names the file that is not a key or doesn't exist.

    An error about a broken key is not chained to one that could show the file's content.
    """
    bad = tmp_path / "key.pem"
    bad.touch(mode=0o600)
    bad.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigurationError, match=r"key\.pem does not contain an RSA") as caught:
        JwtBearer("k", "u", str(bad)).get_session(None)
    assert caught.value.__context__ is None
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem cannot be read"):
        JwtBearer("k", "u", str(tmp_path / "nowhere.pem")).get_session(None)


def test_an_encrypted_private_key_raises(tmp_path, key_file):
    """Nobody is there to type a passphrase, so an encrypted key is a configuration error."""
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
    """Write *content* to a file that only its owner can read, and return its path."""
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
def test_a_wrong_kind_of_key_says_what_to_use_instead(tmp_path, key_file, kind, says):
    """The configuration error names the file and says what it contains instead of an RSA private
    key.
    """
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


def test_the_token_url_can_be_configured(host, http):
    """A configured token URL replaces the one that is derived from the login URL."""
    login = ClientCredentials("k", "s", token_url=f"{host.url}/custom/token", http=http)
    login.get_session(None)
    assert host.requests[0].path == "/custom/token"


# The organisation.


def userinfo(host, reply: Reply, **changed):
    """Make *host* grant sign-ins without an identity URL, and respond to ``userinfo`` with
    *reply*.
    """

    def respond(request: Request) -> Reply:
        if request.path == "/services/oauth2/userinfo":
            return reply
        return Reply(200, answer(host.url, id=None, **changed))

    host.answer = respond


def test_the_organisation_is_read_from_userinfo(host, http):
    """If the response has no identity URL, the instance's ``userinfo`` is requested with the new
    token.
    """
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
def test_the_organisation_is_read_from_the_token(host, http, reply):
    """If ``userinfo`` doesn't return a valid id, the organisation is read from the beginning of
    the token.
    """
    userinfo(host, reply)
    assert credentials(host, http).get_session(None).tenant_id == ORG


def test_the_organisation_is_taken_from_the_setting(host, http):
    """If no response contains the organisation, the configured one is used unchanged."""
    userinfo(host, Reply(403), access_token="opaque")
    given = "core/acme/00D000000000009"
    assert credentials(host, http, tenant_id=given).get_session(None).tenant_id == given


def test_an_unknown_organisation_raises(host, http):
    """If no source provides the organisation, the error names the setting to use.

    If ``userinfo`` is unavailable, a retryable error is raised instead.
    """
    userinfo(host, Reply(403), access_token="opaque")
    with pytest.raises(ConfigurationError, match="SFPUBSUB_TENANT_ID"):
        credentials(host, http).get_session(None)
    userinfo(host, Reply(503), access_token="opaque")
    with pytest.raises(StreamUnavailableError) as caught:
        credentials(host, http).get_session(None)
    assert caught.value.retryable


@pytest.mark.parametrize("given", ["00D000000000002", "core/acme/00D000000000002EAA"])
def test_a_tenant_setting_of_another_org_raises(host, http, given):
    """The service would only report a wrong token; this error names both organisations."""
    with pytest.raises(ConfigurationError, match=f"{ORG}.*00D000000000002"):
        credentials(host, http, tenant_id=given).get_session(None)


@pytest.mark.parametrize("given", [ORG, ORG[:15], f"core/acme/{ORG}", "00D000000000001XYZ"])
def test_a_tenant_setting_of_the_same_org_is_accepted(host, http, given):
    """A setting with the session's organisation ID is accepted in any form and used as given.

    It may have 15 or 18 characters, or the form ``core/name/id``.
    """
    assert credentials(host, http, tenant_id=given).get_session(None).tenant_id == given


# The instance.


def test_a_missing_instance_url_is_taken_from_the_setting(host, http):
    """If the response has no instance URL, the configured one is used; if none is configured, an
    error is raised.
    """
    host.answer = lambda _request: Reply(200, answer(host.url, instance_url=None))
    login = credentials(host, http, instance_url="https://acme.my.salesforce.com/")
    assert login.get_session(None).instance_url == "https://acme.my.salesforce.com"
    with pytest.raises(RemoteProtocolError, match="instance URL"):
        credentials(host, http).get_session(None)


def test_an_instance_other_than_the_configured_one_raises(host, http):
    """The token is not sent to an instance other than the configured one."""
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
def test_an_invalid_instance_url_gets_no_token(host, http, instance_url):
    """An instance URL other than ``https://`` and a valid host raises an error, and no further
    request is sent.
    """
    host.answer = lambda _request: Reply(200, answer(host.url, instance_url=instance_url))
    with pytest.raises(RemoteProtocolError):
        credentials(host, http).get_session(None)
    assert len(host.requests) == 1


# Invalid responses.

SHAPES = [
    b"",
    b"<html>TopSecret</html>",
    b"null",
    b"[]",
    b'"TopSecret"',
    b"12",
    b'{"access_token": "TopSecret"',
    b"[" * 100_000,
    b"\xff\xfe\x00TopSecret",
    b'{"access_token": null}',
    b'{"access_token": 5}',
    b'{"access_token": ["TopSecret"]}',
    b'{"access_token": ""}',
    b'{"access_token": "TopSecret with space\\n", "instance_url": "https://x"}',
    b'{"access_token": "TopSecret", "token_type": "mac", "instance_url": "https://x"}',
    b'{"access_token": "TopSecret", "instance_url": {"TopSecret": 1}}',
    b'{"access_token": "TopSecret", "instance_url": "https://x", "id": 7}',
    json.dumps({"access_token": "TopSecret" * 1000, "instance_url": "https://x"}).encode(),
]


@pytest.mark.parametrize("body", SHAPES, ids=range(len(SHAPES)))
def test_an_invalid_token_response_raises(host, http, body):
    """The error names the host, can't be retried, isn't chained, and quotes no text of the body."""
    host.answer = lambda _request: Reply(200, body)
    with pytest.raises(RemoteProtocolError, match=r"127\.0\.0\.1") as caught:
        credentials(host, http).get_session(None)
    assert not caught.value.retryable
    assert caught.value.__context__ is None
    assert "TopSecret" not in str(caught.value)


def test_a_response_that_is_too_large_raises(host, http):
    """A response with one byte more than the limit is rejected."""
    host.answer = lambda _request: Reply(200, b"x" * (MAX_BYTES + 1))
    with pytest.raises(RemoteProtocolError, match="more than"):
        credentials(host, http).get_session(None)


def test_an_endless_response_is_aborted():
    """A response that never ends is aborted soon after the size limit, not only at the timeout."""
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
    assert sum(sent) < 10 * MAX_BYTES  # the limit, plus data in the kernel's buffers


def test_a_compressed_response_is_not_decompressed(host, http):
    """The request asks for no compression, and a compressed response is rejected, as it could
    expand without limit.
    """
    import gzip

    packed = gzip.compress(json.dumps(answer(host.url)).encode())
    host.answer = lambda _request: Reply(200, packed, {"Content-Encoding": "gzip"})
    with pytest.raises(RemoteProtocolError):
        credentials(host, http).get_session(None)
    assert host.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(authority, host, http, status):
    """The form is sent only to the configured host.

    The error names the redirect's target without its query.
    """
    with https_host(lambda _request: Reply(200, answer(host.url)), authority) as other:
        place = {"Location": f"{other.url}/services/oauth2/token?sid=hush"}
        host.answer = lambda _request: Reply(status, headers=place)
        with pytest.raises(RemoteProtocolError, match="redirects to") as caught:
            credentials(host, http).get_session(None)
        assert other.requests == []
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_host_that_is_down_raises_a_retryable_error(host, http, status):
    """The error can be retried, so that a stream backs off instead of ending."""
    host.answer = lambda _request: Reply(status, "<html>")
    with pytest.raises(StreamUnavailableError, match=str(status)) as caught:
        credentials(host, http).get_session(None)
    assert caught.value.retryable


def test_a_refused_connection_raises_a_retryable_error():
    """If nothing is listening on the port, the error says that the connection was refused, and can
    be retried.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    login = ClientCredentials("k", "s", login_url=f"http://127.0.0.1:{port}")
    with pytest.raises(StreamUnavailableError, match="connection was refused") as caught:
        login.get_session(None)
    assert caught.value.retryable


def test_an_untrusted_certificate_raises(host):
    """The error can't be retried, and names the setting that helps; nothing is sent to the host."""
    login = credentials(host, HttpClient())
    with pytest.raises(StreamUnavailableError, match="SFPUBSUB_CA_FILE") as caught:
        login.get_session(None)
    assert not caught.value.retryable
    assert host.requests == []


def drip(parts, pause: float):
    """Return a function for `raw_host` that sends *parts* one by one with *pause* seconds
    between them.
    """

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
def test_a_slow_response_times_out(parts):
    """The timeout applies to the whole response, not to each read, so a server that sends byte
    by byte can't extend it.
    """

    def talk(connection, over):
        drip(parts, 0.02)(connection, over)
        over.wait(60.0)

    with raw_host(talk) as url:
        login = ClientCredentials("k", "s", login_url=url, http=HttpClient(timeout=0.3))
        begun = time.monotonic()
        with pytest.raises(StreamUnavailableError, match=r"0\.3 s|in time") as caught:
            login.get_session(None)
        assert time.monotonic() - begun < 20.0  # without the limit: 40 s
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
def test_a_malformed_http_response_raises(sent):
    """A response that is truncated, malformed or not HTTP raises an error of this package that
    isn't chained to another.
    """

    def talk(connection, _over):
        connection.recv(65536)
        connection.sendall(sent)

    with raw_host(talk) as url:
        login = ClientCredentials("k", "s", login_url=url, http=HttpClient(timeout=2.0))
        with pytest.raises((StreamUnavailableError, RemoteProtocolError)) as caught:
            login.get_session(None)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


# Rejected sign-ins.


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.error}-{row.words}".strip("-"))
def test_each_row_of_the_refusals_table_is_matched(row):
    """Each row of the refusals table is found by its error code and words.

    The resulting error contains the service's code and description, and what the row says to
    check.
    """
    description = f"It says: {row.words.upper()}." if row.words else "other"
    found = {"error": row.error, "error_description": description}
    assert find(row.error, description) is row
    answered = Answer(400, json.dumps(found).encode(), "host")
    error = refused(answered, [])
    assert isinstance(error, AuthenticationError)
    assert row.error in str(error)
    assert description in str(error)
    assert row.check in str(error)
    assert error.error_code == row.error
    assert error.retryable is row.retryable


@pytest.mark.parametrize(
    ("error", "description", "cure"),
    [
        # Errors in the words of the service and its documentation.
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
def test_a_rejected_sign_in_says_what_to_check(host, http, error, description, cure):
    """The error contains Salesforce's text and what to check, and can't be retried."""
    host.answer = lambda _request: Reply(400, {"error": error, "error_description": description})
    with pytest.raises(AuthenticationError, match=cure) as caught:
        credentials(host, http).get_session(None)
    assert f"{error}: {description}" in str(caught.value)
    assert not caught.value.retryable


def test_an_exceeded_login_rate_is_retryable(host, http):
    """An exceeded login rate is a temporary condition, so its error is retryable."""
    refusal = {"error": "rate_limit_exceeded", "error_description": "login rate exceeded"}
    host.answer = lambda _request: Reply(400, refusal)
    with pytest.raises(AuthenticationError) as caught:
        credentials(host, http).get_session(None)
    assert caught.value.retryable


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"error": 5}', b'{"error_description": ["x"]}', b"\xff"]
)
def test_a_rejection_without_a_description_reports_the_status(host, http, body):
    """If the body contains no usable error, the message contains the HTTP status."""
    host.answer = lambda _request: Reply(400, body)
    with pytest.raises(AuthenticationError, match="status 400"):
        credentials(host, http).get_session(None)


# The choice of a flow by the settings.


def settings(**values: str) -> Settings:
    """Return settings with *values*, regardless of the environment."""
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
    """The setting ``auth`` chooses the flow; any setting that the flow needs but lacks is named."""
    assert type(session_provider(settings(**given))) is kind
    for name in given.keys() - {"auth"}:
        rest = {key: value for key, value in given.items() if key != name}
        with pytest.raises(ConfigurationError, match=f"SFPUBSUB_{name.upper()}"):
            session_provider(settings(**rest))


@pytest.mark.parametrize("host", ["login", "test"])
def test_client_credentials_need_my_domain(host):
    """A general login host is a configuration error, because Salesforce would reject this flow
    there without saying why.
    """
    given = {"auth": "client-credentials", "client_id": "k", "client_secret": "s"}
    with pytest.raises(ConfigurationError, match="My Domain"):
        session_provider(settings(login_url=f"https://{host}.salesforce.com", **given))


def test_missing_settings_name_both_ways_to_sign_in():
    """Without any setting, the error names the access token and the setting that chooses a flow."""
    with pytest.raises(ConfigurationError, match=r"SFPUBSUB_ACCESS_TOKEN.*SFPUBSUB_AUTH"):
        session_provider(settings())
