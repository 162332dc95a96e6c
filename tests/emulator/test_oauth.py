"""Tests of the OAuth flows and SOAP sign-in: what they return, and which requests are rejected."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sfpubsub.emulator.addresses import Addresses
from sfpubsub.emulator.org.accounts import user_id
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.schemas import _USER_ID
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb
from tests.conftest import until

from .support import ORDERS, Client
from .web import APP, REFRESH, USER, ask, form, rest, token

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
USERINFO = "/services/oauth2/userinfo"
REVOKE = "/services/oauth2/revoke"
TOPIC = pb.TopicRequest(topic_name=ORDERS)

INVALID_GRANT = "invalid_grant"
NO_APP = (400, "invalid_client_id", "client identifier invalid")
NO_SECRET = (400, "invalid_client", "invalid client credentials")
NO_USER = (400, INVALID_GRANT, "authentication failure")
BAD_ASSERTION = (400, INVALID_GRANT, "invalid assertion")
INACTIVE = (400, "inactive_user", "user is inactive")
MISSING = (400, "invalid_request", "a parameter of this grant type is missing")


def pem(key: Any) -> str:
    """Return a key's public part in PEM format."""
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


@pytest.fixture(scope="module")
def key() -> Any:
    """The private key of the connected app."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: Any, key: Any) -> Any:
    """An emulator over TLS, shared by the tests that do not change it."""
    directory = tmp_path_factory.mktemp("emulator")
    with EmulatorServer(directory, tls=True) as emulator:
        emulator.accounts.put_app("emulator", public_key=pem(key))
        emulator.accounts.put_user("gone@example.com", "gone", active=False)
        emulator.accounts.put_app("bare", "bare-secret")
        emulator.accounts.put_app(
            "gone", "gone-secret", "gone@example.com", "gone-refresh", pem(key)
        )
        yield emulator


def assertion(emulator: Any, key: Any, algorithm: str = "RS256", **changes: Any) -> str:
    """Return a signed JWT assertion whose default claims are replaced by *changes*.

    A claim that is None is removed, and a function is called to get the claim's value.
    """
    claims = {
        "iss": "emulator",
        "sub": USER["username"],
        "aud": emulator.http_url,
        "exp": int(time.time()) + 170,
        **changes,
    }
    # Claims that depend on the time are functions: tests are collected minutes before they run.
    given = {name: value() if callable(value) else value for name, value in claims.items()}
    claims = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm)


FLOWS = ["client_credentials", "password", "refresh_token", JWT_BEARER]


def sign_in(emulator: Any, key: Any, grant_type: str) -> Any:
    """Request a token with a grant type and valid credentials, and return the response."""
    if grant_type == JWT_BEARER:
        fields = {"grant_type": JWT_BEARER, "assertion": assertion(emulator, key)}
        return form(emulator, "/services/oauth2/token", fields)
    more = {"password": USER, "refresh_token": {"refresh_token": REFRESH}}.get(grant_type, {})
    return token(emulator, grant_type, **more)


@pytest.mark.parametrize("grant_type", FLOWS)
def test_flow_returns_a_valid_token(shared, key, grant_type):
    """Over TLS, each flow returns the documented response, whose token authorizes gRPC calls."""
    before = time.time()
    reply = sign_in(shared, key, grant_type)
    assert reply.status == 200
    assert reply.headers["Cache-Control"] == "no-store"
    answer = reply.json
    assert set(answer) == {
        "access_token",
        "instance_url",
        "id",
        "token_type",
        "issued_at",
        "signature",
        "scope",
    }
    assert answer["token_type"] == "Bearer"
    assert answer["instance_url"] == shared.instance_url == shared.http_url
    assert shared.http_url.startswith("https://")
    org, rest_of_token = answer["access_token"].split("!")
    assert (org, len(rest_of_token)) == (shared.tenant_id[:15], 96)
    assert answer["id"] == f"{shared.http_url}/id/{shared.tenant_id}/{user_id(1)}"
    assert abs(int(answer["issued_at"]) / 1000 - before) < 60
    signed = (answer["id"] + answer["issued_at"]).encode()
    digest = hmac.new(APP["client_secret"].encode(), signed, hashlib.sha256).digest()
    assert answer["signature"] == base64.b64encode(digest).decode()
    metadata = (("accesstoken", answer["access_token"]), *shared.metadata[1:])
    client = Client(shared.grpc_target, metadata, shared.ca_file)
    assert client.call("GetTopic", TOPIC).topic_name == ORDERS
    client.close()


def test_credentials_in_a_basic_header(shared):
    """A client's ID and secret are also accepted in a Basic header.

    A wrong or malformed header is rejected with status 400.
    """
    basic = base64.b64encode(f"{APP['client_id']}:{APP['client_secret']}".encode()).decode()
    fields = {"grant_type": "client_credentials"}
    path = "/services/oauth2/token"
    assert form(shared, path, fields, {"Authorization": f"Basic {basic}"}).status == 200
    wrong = base64.b64encode(b"emulator:x").decode()
    assert form(shared, path, fields, {"Authorization": f"Basic {wrong}"}).error == NO_SECRET
    for nonsense in ("Basic %%%", "Basic " + base64.b64encode(b"\xff\xfe").decode(), "Basic eA=="):
        assert form(shared, path, fields, {"Authorization": nonsense}).status == 400


@pytest.mark.parametrize(
    ("grant_type", "fields", "expected"),
    [
        ("authorization_code", {}, (400, "unsupported_grant_type", "grant type not supported")),
        ("", {}, (400, "unsupported_grant_type", "grant type not supported")),
        ("client_credentials", {"client_id": "nobody"}, NO_APP),
        ("client_credentials", {"client_secret": "wrong"}, NO_SECRET),
        ("client_credentials", {"client_secret": ""}, NO_SECRET),
        (
            "client_credentials",
            {"client_id": "bare", "client_secret": "bare-secret"},
            (400, INVALID_GRANT, "no client credentials user enabled"),
        ),
        ("client_credentials", {"client_id": "gone", "client_secret": "gone-secret"}, INACTIVE),
        ("password", {**USER, "client_id": "nobody"}, NO_APP),
        ("password", {**USER, "client_secret": "wrong"}, NO_SECRET),
        ("password", {**USER, "password": "wrong"}, NO_USER),
        ("password", {**USER, "username": "nobody@example.com"}, NO_USER),
        ("password", {"username": "gone@example.com", "password": "wrong"}, NO_USER),
        ("password", {"username": "gone@example.com", "password": "gone"}, INACTIVE),
        ("password", {"username": USER["username"]}, MISSING),
        ("refresh_token", {}, MISSING),
        ("refresh_token", {"refresh_token": REFRESH, "client_secret": "wrong"}, NO_SECRET),
        ("refresh_token", {"refresh_token": "wrong"}, "expired"),
        # A refresh token is valid only for the app that it was issued to.
        (
            "refresh_token",
            {"refresh_token": REFRESH, "client_id": "bare", "client_secret": "bare-secret"},
            "expired",
        ),
        (
            "refresh_token",
            {
                "refresh_token": "gone-refresh",
                "client_id": "gone",
                "client_secret": "gone-secret",
            },
            INACTIVE,
        ),
        (JWT_BEARER, {}, MISSING),
    ],
)
def test_refused_sign_ins(shared, grant_type, fields, expected):
    """Each rejected sign-in returns the same error code and description as the real service."""
    if expected == "expired":
        expected = (400, INVALID_GRANT, "expired access/refresh token")
    assert token(shared, grant_type, **fields).error == expected


def test_refresh_without_the_client_secret(shared):
    """An app can use its refresh token without its client secret."""
    fields = {"grant_type": "refresh_token", "client_id": "emulator", "refresh_token": REFRESH}
    assert form(shared, "/services/oauth2/token", fields).status == 200


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"aud": "https://login.salesforce.com"}, None),
        ({"aud": "https://test.salesforce.com/"}, None),
        (
            {"exp": lambda: str(int(time.time()) + 200)},
            None,
        ),  # one well-known client sends a string
        ({"sub": USER["username"].upper()}, None),
        ({"aud": "https://example.com"}, (400, INVALID_GRANT, "audience is invalid")),
        ({"aud": ["https://login.salesforce.com"]}, (400, INVALID_GRANT, "audience is invalid")),
        ({"aud": None}, (400, INVALID_GRANT, "audience is invalid")),
        ({"exp": 1}, (400, INVALID_GRANT, "expired authorization code")),
        ({"exp": float("nan")}, (400, INVALID_GRANT, "expired authorization code")),
        ({"exp": None}, BAD_ASSERTION),
        ({"exp": [1]}, BAD_ASSERTION),
        ({"exp": 10**400}, BAD_ASSERTION),
        ({"exp": lambda: int(time.time()) + 86_400}, BAD_ASSERTION),
        # The official CLI sends milliseconds.
        ({"exp": lambda: int(time.time() + 300) * 1000}, None),
        (
            {"exp": lambda: int(time.time() - 300) * 1000},
            (400, INVALID_GRANT, "expired authorization code"),
        ),
        ({"iss": "nobody"}, NO_APP),
        ({"iss": None}, NO_APP),
        ({"iss": "\ud800"}, NO_APP),
        ({"iss": "bare"}, BAD_ASSERTION),
        ({"sub": "nobody"}, (400, INVALID_GRANT, "user hasn't approved this consumer")),
        ({"sub": None}, BAD_ASSERTION),
        ({"iss": "gone", "sub": "gone@example.com"}, INACTIVE),
    ],
)
def test_assertion_claims(shared, key, changes, expected):
    """An invalid issuer, subject, audience or expiry of an assertion returns a matching error."""
    fields = {"grant_type": JWT_BEARER, "assertion": assertion(shared, key, **changes)}
    reply = form(shared, "/services/oauth2/token", fields)
    assert reply.status == 200 if expected is None else reply.error == expected


def test_an_announced_default_port_is_left_out_of_the_url(start):
    """With the scheme's own port in `advertise`, the URL has no port, as in the audience of a JWT
    that a client writes for it.
    """
    emulator, _ = start(tls=True, advertise="salesforce.test:443")
    assert emulator.http_url == "https://salesforce.test"
    other = Addresses("127.0.0.1", "salesforce.test:443")
    assert other.http_url(1, tls=False) == "http://salesforce.test:443"
    assert Addresses("::1", None).http_url(80, tls=False) == "http://[::1]"


def test_a_user_is_a_record(shared):
    """A user can be read as a record, by the id in the response to a sign-in, as the official CLI
    does; other ids and fields are refused.
    """
    user = token(shared).json["id"].rpartition("/")[2]
    path = "/services/data/v67.0/sobjects/User"
    assert rest(shared, "GET", f"{path}/{user}").json["Username"] == USER["username"]
    assert rest(shared, "GET", f"{path}/{user[:15]}").json["Id"] == user
    named = rest(shared, "GET", f"{path}/{user}?fields=Username").json
    assert set(named) == {"attributes", "Username", "Id"}  # as for every record
    assert rest(shared, "GET", f"{path}/{user}?fields=Colour").code == (400, "INVALID_FIELD")
    assert rest(shared, "GET", f"{path}/005SB0000000099").code == (404, "NOT_FOUND")
    assert rest(shared, "GET", f"{path}/{user}", access_token="").status == 401


def test_assertion_signature(shared, key):
    """A JWT assertion is rejected if it is unsigned, malformed, or signed with another key.

    Another algorithm is rejected as well.
    """
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    good = assertion(shared, key)
    head, claims, signature = good.split(".")
    secret = "k" * 32
    for text in (
        assertion(shared, other),
        assertion(shared, None, algorithm="none"),
        assertion(shared, secret, algorithm="HS256"),
        assertion(shared, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256"),
        assertion(shared, key, algorithm="RS512"),
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[:-8]}",
        f"{head}.{claims}",
        "x",
        "a.b.c",
        "....",
    ):
        fields = {"grant_type": JWT_BEARER, "assertion": text}
        assert form(shared, "/services/oauth2/token", fields).error == BAD_ASSERTION, text


def test_assertion_ignores_clock_jumps(start, key):
    """A JWT assertion is checked against real time, even if the emulator's clock was moved.

    A client does not know about the emulator's clock.
    """
    emulator, _ = start()
    emulator.accounts.put_app("emulator", public_key=pem(key))
    emulator.clock.jump(73 * 3600)
    assert sign_in(emulator, key, JWT_BEARER).status == 200


def test_invalid_public_key(emulator):
    """A public key that is malformed or unusable for RS256 is rejected and changes nothing."""
    for text in ("x", pem(ec.generate_private_key(ec.SECP256R1())), "-----BEGIN CERTIFICATE-----"):
        with pytest.raises(EmulatorProblem, match="not an RSA key"):
            emulator.accounts.put_app("emulator", public_key=text)
        reply = rest(emulator, "POST", "/admin/apps", {"client_id": "emulator", "public_key": text})
        assert reply.status == 400
    assert emulator.accounts.app("emulator").public_key == ""


def test_public_key_without_pyjwt(emulator, key, monkeypatch):
    """Without PyJWT, setting a public key raises an error that names the extra to install.

    Other flows than JWT bearer still work.
    """
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(EmulatorProblem, match=r"sfpubsub\[emulator\]"):
        emulator.accounts.put_app("emulator", public_key=pem(key))
    assert token(emulator).status == 200
    assert sign_in(emulator, key, JWT_BEARER).error[1] == "server_error"


def test_refresh_token_rotation(start):
    """With `rotate_refresh_tokens`, each refresh token can be used once and is then replaced."""
    emulator, _ = start(settings=Settings(rotate_refresh_tokens=True))
    used, newest = [], REFRESH
    for _ in range(3):
        newest = token(emulator, "refresh_token", refresh_token=newest).json["refresh_token"]
        assert newest not in [REFRESH, *used]
        used.append(newest)


@pytest.mark.parametrize("replayed", ["first", "second"])
def test_a_replayed_refresh_token_revokes_its_family(start, replayed):
    """If a used refresh token is used again, the newest refresh token of its family and all access
    tokens issued for the family are revoked. Tokens of other families stay valid.
    """
    emulator, _ = start(settings=Settings(rotate_refresh_tokens=True))
    emulator.accounts.put_app("emulator", refresh_token="other")
    other = token(emulator, "refresh_token", refresh_token="other").json
    first = token(emulator, "refresh_token", refresh_token=REFRESH).json
    second = token(emulator, "refresh_token", refresh_token=first["refresh_token"]).json
    again = REFRESH if replayed == "first" else first["refresh_token"]
    refused = token(emulator, "refresh_token", refresh_token=again)
    assert refused.error == (400, INVALID_GRANT, "expired access/refresh token")
    for made in (first, second):
        headers = bearer(made["access_token"])
        assert ask(emulator, "GET", USERINFO, headers=headers).status == 403
    newest = token(emulator, "refresh_token", refresh_token=second["refresh_token"])
    assert newest.error == (400, INVALID_GRANT, "expired access/refresh token")
    headers = bearer(other["access_token"])
    assert ask(emulator, "GET", USERINFO, headers=headers).status == 200
    assert token(emulator, "refresh_token", refresh_token=other["refresh_token"]).status == 200


@pytest.mark.parametrize("rotating", [False, True])
def test_an_idle_refresh_token_expires(start, rotating):
    """With `refresh_idle_s`, a refresh token that was not used for this long is refused; each use
    begins the time again.
    """
    emulator, _ = start(settings=Settings(refresh_idle_s=100, rotate_refresh_tokens=rotating))
    newest = REFRESH
    for _ in range(3):
        emulator.clock.jump(99)
        made = token(emulator, "refresh_token", refresh_token=newest).json
        newest = made.get("refresh_token", newest)
    emulator.clock.jump(100)
    refused = token(emulator, "refresh_token", refresh_token=newest)
    assert refused.error == (400, INVALID_GRANT, "expired access/refresh token")


def test_concurrent_refresh_token_rotation(start):
    """If eight requests use the same rotating refresh token at once, one of them succeeds at most,
    and the others revoke its family.
    """
    emulator, _ = start(settings=Settings(rotate_refresh_tokens=True))
    family = emulator.accounts.grant_of(REFRESH, "emulator").family
    with ThreadPoolExecutor(8) as pool:
        replies = pool.map(
            lambda _: token(emulator, "refresh_token", refresh_token=REFRESH), range(8)
        )
        assert sorted(reply.status for reply in replies) == [200] + [400] * 7
    assert not any(emulator.accounts.refresh_tokens(family).values())


def bearer(access_token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {access_token}"}


def test_userinfo(emulator):
    """The userinfo endpoint returns the token's user and org, wherever the request has the token.

    The org's ID has 18 characters.
    """
    answer = token(emulator, "password", **USER).json
    for reply in (
        ask(emulator, "GET", USERINFO, headers=bearer(answer["access_token"])),
        ask(emulator, "GET", f"{USERINFO}?access_token={quote(answer['access_token'])}"),
        form(emulator, USERINFO, {}, bearer(answer["access_token"])),
        form(emulator, USERINFO, {"access_token": answer["access_token"]}),
    ):
        assert reply.status == 200
        assert reply.json["organization_id"] == emulator.tenant_id
        assert reply.json["user_id"] == user_id(1) == _USER_ID
        assert reply.json["preferred_username"] == USER["username"]
    own = ask(emulator, "GET", USERINFO, headers=bearer(emulator.access_token))
    assert own.json["preferred_username"] == USER["username"]


def test_identity_url(emulator):
    """The id URL of a token returns its user in the format of that URL, not of userinfo, and
    accepts the token in the header, or in the query or the form as `oauth_token`.
    """
    answer = token(emulator, "password", **USER).json
    path = answer["id"].removeprefix(emulator.http_url)
    given = answer["access_token"]
    for reply in (
        ask(emulator, "GET", path, headers=bearer(given)),
        ask(emulator, "GET", f"{path}?oauth_token={quote(given)}&format=json"),
        form(emulator, path, {"oauth_token": given}),
    ):
        assert reply.status == 200
        assert reply.json["id"] == answer["id"]
        assert reply.json["username"] == reply.json["display_name"] == USER["username"]
        assert reply.json["user_id"] == _USER_ID
        assert reply.json["organization_id"] == emulator.tenant_id
        assert "sub" not in reply.json
    many = ask(emulator, "GET", path + "?" + "a=b&" * 30)
    assert many.status == 400


@pytest.mark.parametrize(
    ("headers", "text"),
    [({}, "Missing_OAuth_Token"), ({"Authorization": "Bearer x"}, "Bad_OAuth_Token")],
)
def test_userinfo_without_a_valid_token(shared, headers, text):
    """Without a valid token, the userinfo endpoint returns status 403 in plain text.

    The real service does the same.
    """
    reply = ask(shared, "GET", USERINFO, headers=headers)
    assert (reply.status, reply.text) == (403, text)


def test_id_url_of_another_org_or_user(shared):
    """The id URL returns status 403 for another org or another user."""
    headers = bearer(shared.access_token)
    reply = ask(shared, "GET", f"/id/00D000000000062EAA/{user_id(1)}", headers=headers)
    assert (reply.status, reply.text) == (403, "Wrong_Org")
    reply = ask(shared, "GET", f"/id/{shared.tenant_id}/{user_id(9)}", headers=headers)
    assert (reply.status, reply.text) == (403, "Bad_Id")


def test_revoking_a_token(emulator, client):
    """A revoked token is rejected by gRPC, userinfo and REST; other tokens stay valid.

    As on the real service, a stream that was opened with the token continues.
    """
    given = token(emulator).json["access_token"]
    client.metadata = (("accesstoken", given), *emulator.metadata[1:])
    stream = client.subscribe()
    emulator.publish(ORDERS, [{}])
    stream.events(1)
    assert form(emulator, REVOKE, {"token": given}).status == 200
    assert client.refusal("GetTopic", TOPIC) == ("UNAUTHENTICATED", "service.auth.error")
    assert ask(emulator, "GET", USERINFO, headers=bearer(given)).status == 403
    assert rest(emulator, "GET", "/services/data/v62.0", access_token=given).code == (
        401,
        "INVALID_SESSION_ID",
    )
    emulator.publish(ORDERS, [{}])
    stream.events(1)
    assert rest(emulator, "GET", "/services/data/v62.0").status == 200
    again = form(emulator, REVOKE, {"token": given})
    assert again.error == (400, "unsupported_token_type", "this token is not supported")


def test_revoking_a_refresh_token(emulator):
    """Revoking a refresh token also revokes the access tokens that were issued for it.

    Other access tokens stay valid, and configuring the same refresh token again does not restore
    it.
    """
    made = token(emulator, "refresh_token", refresh_token=REFRESH).json["access_token"]
    other = token(emulator).json["access_token"]
    assert form(emulator, REVOKE, {"token": REFRESH}).status == 200
    assert ask(emulator, "GET", USERINFO, headers=bearer(made)).status == 403
    assert ask(emulator, "GET", USERINFO, headers=bearer(other)).status == 200
    assert token(emulator, "refresh_token", refresh_token=REFRESH).error[1] == INVALID_GRANT
    emulator.accounts.put_app("emulator", refresh_token=REFRESH)  # as at each start with a seed
    assert token(emulator, "refresh_token", refresh_token=REFRESH).error[1] == INVALID_GRANT


def test_tokens_expire_on_the_emulator_clock(start):
    """A token expires after `token_lifetime_s` on the emulator's clock.

    Calls are then rejected and streams end, until the client signs in again.
    """
    emulator, client = start(clock=ManualClock(), settings=Settings(token_lifetime_s=900))
    given = token(emulator).json["access_token"]
    client.metadata = (("accesstoken", given), *emulator.metadata[1:])
    plain, managed = client.subscribe(), client.managed()
    publishing = client.stream("PublishStream")
    publishing.send(pb.PublishRequest(topic_name=ORDERS))
    assert publishing.refusal() == "publish.event.count.invalid"  # the stream was open
    streams = emulator._world.streams
    until(lambda: [each.pending for each in streams.all()] == [100, 100], "both requests")
    emulator.clock.jump(60)
    publishing = client.stream("PublishStream")
    assert publishing.silent(0.05)
    emulator.clock.jump(839)
    assert plain.next().pending_num_requested == 100  # the keepalive that is due by now
    assert client.call("GetTopic", TOPIC).topic_name == ORDERS
    emulator.clock.jump(1)
    assert plain.refusal() == managed.refusal() == "service.auth.error"
    assert client.refusal("GetTopic", TOPIC)[1] == "service.auth.error"
    assert ask(emulator, "GET", USERINFO, headers=bearer(given)).status == 403
    given = token(emulator).json["access_token"]
    client.metadata = (("accesstoken", given), *emulator.metadata[1:])
    assert client.call("GetTopic", TOPIC).topic_name == ORDERS


def test_stream_ends_when_its_token_expires(start):
    """An idle stream ends when its token expires in real time, without any jump of the clock."""
    emulator, client = start(settings=Settings(token_lifetime_s=0.3))
    publishing = client.stream("PublishStream")
    stream = client.subscribe()
    assert stream.refusal() == publishing.refusal() == "service.auth.error"
    assert emulator.clock.now() > 0


def test_admin_expires_one_token(emulator, client):
    """`/admin/token` expires the given token and ends its streams; other tokens stay valid."""
    given = token(emulator).json["access_token"]
    client.metadata = (("accesstoken", given), *emulator.metadata[1:])
    stream = client.subscribe()
    assert stream.silent(0.05)
    reply = rest(emulator, "POST", "/admin/token", {"expire": given})
    assert reply.json == {"expired": True}
    assert stream.refusal() == "service.auth.error"
    assert rest(emulator, "POST", "/admin/token", {"expire": given}).json == {"expired": False}
    assert rest(emulator, "GET", "/services/data/v62.0").status == 200


def test_sign_ins_survive_a_restart(tmp_path):
    """Users, issued tokens, the emulator's own token, revocations and used refresh tokens survive a
    restart.
    """
    settings = Settings(rotate_refresh_tokens=True)
    with EmulatorServer(tmp_path, settings=settings) as emulator:
        own = emulator.access_token
        emulator.accounts.put_user("second@example.com", "second")
        given = token(emulator, "refresh_token", refresh_token=REFRESH).json
        revoked = token(emulator).json["access_token"]
        form(emulator, REVOKE, {"token": revoked})
    with EmulatorServer(tmp_path, settings=settings) as emulator:
        assert emulator.access_token == own
        headers = bearer(given["access_token"])
        assert ask(emulator, "GET", USERINFO, headers=headers).status == 200
        assert ask(emulator, "GET", USERINFO, headers=bearer(revoked)).status == 403
        second = {"username": "second@example.com", "password": "second"}
        assert token(emulator, "password", **second).status == 200
        again = token(emulator, "refresh_token", refresh_token=given["refresh_token"])
        assert again.status == 200
        assert token(emulator, "refresh_token", refresh_token=REFRESH).status == 400


def test_tokens_are_bounded(emulator, monkeypatch):
    """If more tokens are issued than the emulator keeps, the oldest ones expire, but never the
    emulator's own.
    """
    monkeypatch.setattr("sfpubsub.emulator.org.sessions._MOST_TOKENS", 3)
    given = [token(emulator).json["access_token"] for _ in range(5)]
    good = [ask(emulator, "GET", USERINFO, headers=bearer(item)).status for item in given]
    assert good == [403, 403, 200, 200, 200]
    assert ask(emulator, "GET", USERINFO, headers=bearer(emulator.access_token)).status == 200


@pytest.mark.parametrize("path", ["/services/oauth2/token", REVOKE])
def test_token_endpoints_accept_only_valid_forms(shared, path):
    """A request that is not an HTTP POST of a valid form returns `invalid_request`.

    Examples are GET, JSON, duplicate or too many parameters, and invalid UTF-8.
    """
    assert ask(shared, "GET", path).error == (400, "invalid_request", "must use HTTP POST")
    kind = {"Content-Type": "application/json"}
    form_kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for data, headers in (
        (b"{}", kind),
        (b"token=a&token=b", form_kind),
        (b"grant_type=\xff", form_kind),
        (b"grant_type=%ff", form_kind),
        (b"&".join(b"a%d=1" % number for number in range(50)), form_kind),
    ):
        assert ask(shared, "POST", path, data, headers).error[:2] == (400, "invalid_request")


def test_secrets_stay_out_of_logs_and_reprs(emulator, key, caplog):
    """No password, secret or token appears in the log, in a repr, or on the health page."""
    caplog.set_level(logging.DEBUG, "sfpubsub.emulator")
    emulator.accounts.put_app("emulator", public_key=pem(key))
    given = [sign_in(emulator, key, flow).json["access_token"] for flow in FLOWS]
    token(emulator, client_secret="a-wrong-secret")
    ask(emulator, "GET", f"{USERINFO}?access_token={given[0]}")
    health = ask(emulator, "GET", "/health").text
    accounts = emulator.accounts
    told = caplog.text + health + repr([accounts.app("emulator"), accounts.user(USER["username"])])
    assert "signed in with grant type password" in caplog.text
    for secret in (*given, *APP.values(), USER["password"], REFRESH, "a-wrong-secret"):
        if secret != "emulator":  # "emulator" is also the client ID, which is not secret
            assert secret not in told


SOAP = (
    '<se:Envelope xmlns:se="http://schemas.xmlsoap.org/soap/envelope/"><se:Header/><se:Body>'
    '<login xmlns="urn:partner.soap.sforce.com"><username>{}</username><password>{}</password>'
    "</login></se:Body></se:Envelope>"
)


def soap(emulator: Any, text: str, version: str = "50.0", action: str = '""') -> Any:
    """Post the XML *text* to the SOAP endpoint of an API version, and return the response."""
    headers = {"Content-Type": "text/xml", "SOAPAction": action}
    return ask(emulator, "POST", f"/services/Soap/u/{version}", text.encode(), headers)


def between(text: str, name: str) -> str:
    """Return the text of the first XML element with this name, or an empty string."""
    return text.partition(f"<{name}>")[2].partition(f"</{name}>")[0]


def test_soap_login(emulator):
    """A SOAP login decodes XML entities in the username and password, and returns a session.

    A wrong password, an unsupported version and a malformed request each return a fault.
    """
    emulator.accounts.put_user("a&b@example.com", "<secret>")
    reply = soap(emulator, SOAP.format("a&amp;b@example.com", "&lt;secret&gt;"))
    assert reply.status == 200
    assert between(reply.text, "organizationId") == emulator.tenant_id
    assert between(reply.text, "serverUrl").startswith(f"{emulator.http_url}/services/Soap/u/50.0/")
    assert between(reply.text, "userName") == "a&amp;b@example.com"
    session = between(reply.text, "sessionId")
    assert ask(emulator, "GET", USERINFO, headers=bearer(session)).status == 200
    wrong = soap(emulator, SOAP.format("a&amp;b@example.com", "x"))
    assert (wrong.status, between(wrong.text, "faultcode")) == (500, "sf:INVALID_LOGIN")
    late = soap(emulator, SOAP.format(*USER.values()), version="65.0")
    assert between(late.text, "sf:exceptionCode") == "UNSUPPORTED_API_VERSION"
    for nonsense in ("", "<login/>", "<logout/>", "\0"):
        assert between(soap(emulator, nonsense).text, "faultcode") == "soapenv:Client"


def test_soap_login_xml_features(emulator):
    """A SOAP login may use CDATA sections, namespace prefixes, comments and other encodings."""
    emulator.accounts.put_user("müller@example.com", "a<b&c")
    name, word = "<![CDATA[müller@example.com]]>", "a<![CDATA[<b]]>&#38;<!-- - -->c"
    prefixed = (
        "<soapenv:Envelope xmlns:soapenv='http://schemas.xmlsoap.org/soap/envelope/' "
        "xmlns:urn='urn:partner.soap.sforce.com'><soapenv:Body>"
        f"<urn:login><urn:username>{name}</urn:username><urn:password>{word}</urn:password>"
        "</urn:login></soapenv:Body></soapenv:Envelope>"
    )
    assert soap(emulator, prefixed).status == 200
    headers = {"Content-Type": "text/xml", "SOAPAction": "login"}
    latin = f'<?xml version="1.0" encoding="ISO-8859-1"?>{prefixed}'.encode("latin-1")
    path = "/services/Soap/u/57.0/"
    assert ask(emulator, "POST", path, latin, headers).status == 200


def test_soap_login_result_order(emulator):
    """The elements of a login result are in the order on which some clients rely.

    These clients read `serverUrl`, `sessionId`, `userInfo` and the org's ID by index.
    """
    reply = soap(emulator, SOAP.format(*USER.values()))
    ((answer,),) = [list(body) for body in ElementTree.fromstring(reply.text)]
    (result,) = answer
    assert [child.tag.partition("}")[2] for child in result][3:] == [
        "serverUrl",
        "sessionId",
        "userId",
        "userInfo",
    ]
    assert result[6][8].tag.endswith("}organizationId")
    assert result[6][8].text == emulator.tenant_id


@pytest.mark.parametrize(
    "evil",
    [
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>' + SOAP,
        '<!DOCTYPE x SYSTEM "file:///etc/passwd">' + SOAP,
        SOAP.replace("{}", "&who;", 1),
        SOAP.replace("{}", "<a>" * 10_000 + "</a>" * 10_000, 1),
        '<?xml version="1.0" encoding="no-such-encoding"?>' + SOAP,
        SOAP.replace("partner", "enterprise"),
        SOAP.replace("login", "query"),
        SOAP.replace("password", "pass"),
        SOAP[:-5],
    ],
)
def test_soap_refuses_malformed_calls(emulator, evil):
    """Malformed SOAP requests return a client fault.

    Examples are a document type, an undefined entity, deep nesting, and an unknown encoding,
    namespace or call.
    """
    reply = soap(emulator, evil.replace("{}", "x"))
    assert (reply.status, between(reply.text, "faultcode")) == (500, "soapenv:Client")


def test_soap_logout(emulator):
    """A SOAP session can read its own identity URL until it logs out.

    A second logout returns a fault.
    """
    session = between(soap(emulator, SOAP.format(*USER.values())).text, "sessionId")
    resources = ask(emulator, "GET", "/services/data/v60.0", headers=bearer(session)).json
    identity = resources["identity"].removeprefix(emulator.http_url)
    assert ask(emulator, "GET", f"{identity}?format=json", headers=bearer(session)).status == 200
    goodbye = (
        '<se:Envelope xmlns:se="http://schemas.xmlsoap.org/soap/envelope/"><se:Header>'
        f'<SessionHeader xmlns="urn:partner.soap.sforce.com"><sessionId>{session}</sessionId>'
        "</SessionHeader></se:Header><se:Body>"
        '<logout xmlns="urn:partner.soap.sforce.com"/></se:Body></se:Envelope>'
    )
    assert soap(emulator, goodbye, version="67.0").status == 200
    assert ask(emulator, "GET", USERINFO, headers=bearer(session)).status == 403
    again = soap(emulator, goodbye)
    assert (again.status, between(again.text, "faultcode")) == (500, "sf:INVALID_SESSION_ID")
