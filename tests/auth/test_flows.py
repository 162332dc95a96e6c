"""Tests of every way to sign in, against the emulator over TLS.

They include tokens that expire while a stream is open.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import pytest

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.oauth import ClientCredentials, session_provider
from sfpubsub.auth.organisation import user_of
from sfpubsub.auth.session import Session, StaticSession
from sfpubsub.auth.simple_salesforce import SimpleSalesforceLogin
from sfpubsub.client.aio import AsyncPubSubClient
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Settings
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.accounts import user_id
from sfpubsub.emulator.org.settings import Settings as EmulatorSettings
from sfpubsub.errors import AuthenticationError, SessionExpiredError, StreamUnavailableError

from ..client.test_managed import NAME, TOPIC, committed, numbers, orders
from ..conftest import PATIENCE, QUICK, until
from .servers import Reply, https_host

APP = {"client_id": "emulator", "client_secret": "emulator-secret"}


def load(emulator, **options: str) -> Settings:
    """Return settings with the emulator's address and *options*, as a user would write them."""
    service = {"endpoint": emulator.grpc_target, "ca_file": str(emulator.ca_file)}
    return Settings.load({**service, **options}, {})


def client_of(settings: Settings, provider=None) -> PubSubClient:
    """Return a client for *settings* that signs in with *provider*, by default the one that the
    settings choose.
    """
    return PubSubClient(
        provider or session_provider(settings),
        endpoint=settings.endpoint,
        ca_file=settings.ca_file,
        timings=QUICK,
    )


def refresh(emulator, **_) -> Settings:
    """Return settings that sign in with a refresh token."""
    return load(
        emulator,
        auth="refresh",
        login_url=emulator.http_url,
        client_id="emulator",
        refresh_token="emulator-refresh-token",
    )


def client_credentials(emulator, **_) -> Settings:
    """Return settings that sign in with client credentials."""
    return load(emulator, auth="client-credentials", login_url=emulator.http_url, **APP)


def password(emulator, **_) -> Settings:
    """Return settings that sign in with a username and password."""
    user = {"username": "user@example.com", "password": "emulator-password"}
    return load(emulator, auth="password", login_url=emulator.http_url, **APP, **user)


def jwt_bearer(emulator, tmp_path, **_) -> Settings:
    """Return settings that sign in with a signed assertion; register its key in the emulator."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file = tmp_path / "key.pem"
    file.touch(mode=0o600)
    pem = serialization.Encoding.PEM
    file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    emulator.accounts.put_app("jwt-app", public_key=public.decode())
    return load(
        emulator,
        auth="jwt",
        login_url=emulator.http_url,
        client_id="jwt-app",
        username="user@example.com",
        private_key_file=str(file),
    )


def token(emulator, **_) -> Settings:
    """Return settings with an access token that is ready to use."""
    return load(
        emulator,
        access_token=emulator.access_token,
        instance_url=emulator.instance_url,
        tenant_id=emulator.tenant_id,
    )


def sf_cli(emulator, tmp_path, monkeypatch) -> Settings:
    """Put a fake ``sf`` on the PATH, signed in to the emulator; return settings that use it.

    Like the real one, its ``display`` command redacts the token.
    """
    shown = {
        "accessToken": "[REDACTED] Use 'sf org auth show-access-token' to view",
        "instanceUrl": emulator.instance_url,
        "id": emulator.tenant_id,
    }
    file = tmp_path / "sf-token"
    program = tmp_path / "sf"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"shown = {shown!r}\n"
        f"told = {{'accessToken': open({str(file)!r}).read()}}\n"
        "print(json.dumps({'result': shown if sys.argv[2] == 'display' else told}))\n"
    )
    program.chmod(0o755)
    file.write_text(emulator.access_token)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return load(emulator, auth="sf-cli")


WAYS = [client_credentials, jwt_bearer, refresh, password, token, sf_cli]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_sign_in_flow_works_over_tls(way, run_emulator, tmp_path, monkeypatch):
    """With one ``ca_file``, a client signs in over HTTPS and receives an event over gRPC."""
    emulator = run_emulator(tls=True)
    emulator.publish(TOPIC, orders(1))
    settings = way(emulator, tmp_path=tmp_path, monkeypatch=monkeypatch)
    with client_of(settings) as client:
        assert client.get_topic(TOPIC).can_subscribe
        with client.subscribe(TOPIC, replay="earliest") as subscription:
            assert len(subscription.next_batch(PATIENCE)) == 1


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_sign_in_flow_names_its_user(way, run_emulator, tmp_path, monkeypatch):
    """The session or, for a flow that returns only a token, the org names the signed-in user."""
    emulator = run_emulator(tls=True)
    settings = way(emulator, tmp_path=tmp_path, monkeypatch=monkeypatch)
    session = session_provider(settings).get_session(None)
    assert user_of(HttpClient(ca_file=settings.ca_file), session) == user_id(1)


def test_a_salesforce_object_signs_in_over_tls(run_emulator):
    """An existing `simple_salesforce.Salesforce` object provides the token, and a new one after
    that expires.
    """
    emulator = run_emulator(tls=True)

    class Salesforce:
        session_id = emulator.access_token
        sf_instance = emulator.instance_url.removeprefix("https://")

        def _refresh_session(self):
            self.session_id = emulator.new_token()

    http = HttpClient(ca_file=str(emulator.ca_file))
    with client_of(load(emulator), SimpleSalesforceLogin(Salesforce(), http=http)) as client:
        assert client.get_topic(TOPIC).can_subscribe
        emulator.faults.add(Fault("expire_token"))
        assert client.get_topic(TOPIC).can_subscribe


def test_from_env_signs_in(run_emulator, monkeypatch):
    """Both clients that `from_env` returns sign in with settings from environment variables.

    Neither of them contacts the login host before its first call.
    """
    emulator = run_emulator(tls=True)
    settings = client_credentials(emulator)
    for name in ("endpoint", "ca_file", "auth", "login_url", "client_id", "client_secret"):
        monkeypatch.setenv(f"SFPUBSUB_{name.upper()}", getattr(settings, name))
    with PubSubClient.from_env() as client:
        assert client.get_topic(TOPIC).can_subscribe

    async def main() -> bool:
        async with AsyncPubSubClient.from_env({"ping_interval": "0"}) as client:
            return (await client.get_topic(TOPIC)).can_subscribe

    assert asyncio.run(main())
    nowhere = {"login_url": "https://127.0.0.1:1"}
    asyncio.run(AsyncPubSubClient.from_env(nowhere).close())
    with (
        PubSubClient.from_env(nowhere) as client,
        pytest.raises(StreamUnavailableError, match="the connection was refused"),
    ):
        client.get_topic(TOPIC)


@pytest.mark.parametrize(
    ("way", "rotating"),
    [
        (client_credentials, False),
        (jwt_bearer, False),
        (refresh, False),
        (refresh, True),
        (password, False),
    ],
)
def test_expired_tokens_leave_no_gap_in_a_stream(way, rotating, run_emulator, tmp_path):
    """A stream whose token expires three times still delivers each event once, in order, with
    no gap reported.
    """
    settings = EmulatorSettings(events_per_response=5, rotate_refresh_tokens=rotating)
    emulator = run_emulator(tls=True, settings=settings)
    gaps = []
    with client_of(way(emulator, tmp_path=tmp_path)) as client:
        subscription = client.subscribe(TOPIC, replay="earliest", on_gap=gaps.append)
        with subscription:
            seen = []
            for start in range(0, 60, 20):
                emulator.publish(TOPIC, orders(20, start))
                while len(seen) < start + 20:
                    seen += numbers([subscription.next_batch(PATIENCE)])
                emulator.faults.add(Fault("expire_token"))
            emulator.publish(TOPIC, orders(1, 60))
            seen += numbers([subscription.next_batch(PATIENCE)])
    assert seen == list(range(61))
    assert gaps == []
    emulator.faults.assert_consumed()


def test_a_managed_stream_survives_expired_tokens(run_emulator):
    """A managed subscription whose token expires twice still delivers each event once and in
    order, and commits the last one.
    """
    emulator = run_emulator(tls=True, settings=EmulatorSettings(events_per_response=5))
    with (
        client_of(client_credentials(emulator)) as client,
        client.subscribe_managed(NAME) as subscription,
    ):
        seen = []
        for start in range(0, 40, 20):
            emulator.publish(TOPIC, orders(20, start))
            while len(seen) < start + 20:
                seen += numbers([subscription.next_batch(PATIENCE)])
            emulator.faults.add(Fault("expire_token"))
        (last,) = emulator.publish(TOPIC, orders(1, 40))
        seen += numbers([subscription.next_batch(PATIENCE)])
        subscription.next_batch(0)  # acks the last batch
    assert seen == list(range(41))
    assert committed(emulator) == last.replay_id
    emulator.faults.assert_consumed()


def test_many_streams_share_one_renewal(run_emulator):
    """When a token expires for six streams at once, the session is renewed once and not once per
    stream.
    """
    emulator = run_emulator(tls=True)
    emulator.publish(TOPIC, orders(1))
    provider = session_provider(client_credentials(emulator))
    calls = []

    class Counted:
        def get_session(self, expired):
            calls.append(expired)
            return provider.get_session(expired)

    with client_of(load(emulator), Counted()) as client:
        subscriptions = [client.subscribe(TOPIC, replay="earliest") for _ in range(6)]
        for subscription in subscriptions:
            assert len(subscription.next_batch(PATIENCE)) == 1
        emulator.faults.add(Fault("expire_token"))
        emulator.publish(TOPIC, orders(1, 1))
        for subscription in subscriptions:
            assert len(subscription.next_batch(PATIENCE)) == 1
    assert len(calls) == 2


def test_renewal_is_retried_while_the_login_host_is_down(run_emulator):
    """A stream whose renewal fails because the login host is unreachable retries with its
    backoff until the renewal succeeds, and no event is lost.
    """
    emulator = run_emulator(tls=True)
    emulator.publish(TOPIC, orders(1))
    settings = client_credentials(emulator)
    good = session_provider(settings)
    down = ClientCredentials("emulator", "emulator-secret", login_url="http://127.0.0.1:9")
    tried = []

    class Shaky:
        def get_session(self, expired):
            if expired is None or len(tried) == 3:
                return good.get_session(expired)
            tried.append(expired)
            return down.get_session(expired)

    with (
        client_of(settings, Shaky()) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        assert len(subscription.next_batch(PATIENCE)) == 1
        emulator.faults.add(Fault("expire_token"))
        emulator.publish(TOPIC, orders(1, 1))
        assert numbers([subscription.next_batch(PATIENCE)]) == [1]
    assert len(tried) == 3


STRANGE = {
    "HTML": Reply(200, "<html>maintenance</html>", {"Content-Type": "text/html"}),
    "redirect": Reply(302, b"", {"Location": "https://elsewhere.example/"}),
    "firewall": Reply(403, "<html>blocked</html>"),
    "no token": Reply(200, {"token_type": "Bearer"}),
}


@pytest.mark.parametrize("reply", STRANGE.values(), ids=STRANGE)
def test_strange_answers_of_the_login_host_do_not_end_a_stream(run_emulator, reply):
    """A renewal that the login host answers with something other than an OAuth error is retried,
    and no event is lost.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    strange = [reply] * 3

    def answer(request) -> Reply:
        if len(host.requests) > 1 and strange:
            return strange.pop()
        token = {"access_token": emulator.new_token(), "instance_url": emulator.instance_url}
        return Reply(200, token)

    with https_host(answer) as host:
        http = HttpClient(insecure="1")
        login = ClientCredentials(
            "id", "secret", login_url=host.url, tenant_id=emulator.tenant_id, http=http
        )
        with (
            PubSubClient(
                login, endpoint=emulator.grpc_target, insecure="1", timings=QUICK
            ) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            assert numbers([subscription.next_batch(PATIENCE)]) == [0]
            emulator.faults.add(Fault("expire_token"))
            emulator.publish(TOPIC, orders(1, 1))
            assert numbers([subscription.next_batch(PATIENCE)]) == [1]
            assert subscription.health().gaps == ()
    assert strange == []


def test_failing_session_provider_is_retried_within_the_session_budget(run_emulator):
    """Any exception of a caller's own provider is retried; after `session_budget`, the subscription
    ends with an error that names the last failure, without the exception's text.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
    calls = []

    class Vault:
        def get_session(self, expired):
            if expired is None:
                return session
            calls.append(expired)
            raise LookupError("secret")

    client = PubSubClient(
        Vault(),
        endpoint=emulator.grpc_target,
        insecure="1",
        timings=replace(QUICK, session_budget=0.5),
    )
    with client:
        subscription = client.subscribe(TOPIC, replay="earliest")
        assert len(subscription.next_batch(PATIENCE)) == 1
        emulator.faults.add(Fault("expire_token"))
        with pytest.raises(SessionExpiredError, match="LookupError") as caught:
            subscription.next_batch(PATIENCE)
    assert "0.5 s" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(calls) > 2


def test_schema_waits_for_a_strange_answer_of_the_login_host(run_emulator):
    """Events wait for their schema while the login host answers a renewal strangely, as a stream
    would wait, and none is lost.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(1))
    session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
    calls = []

    class Vault:
        def get_session(self, expired):
            if expired is None:
                return session
            calls.append(expired)
            if len(calls) < 4:
                raise LookupError
            return Session(emulator.new_token(), emulator.instance_url, emulator.tenant_id)

    client = PubSubClient(Vault(), endpoint=emulator.grpc_target, insecure="1", timings=QUICK)
    with client, client.subscribe(TOPIC, replay="earliest") as subscription:
        until(lambda: subscription.pending_count, "the event")
        emulator.faults.add(Fault("revoke_token"))  # the open stream continues
        assert numbers([subscription.next_batch(PATIENCE)]) == [0]
        assert subscription.health().reconnects == 0
    assert len(calls) == 4


def test_credentials_rejected_during_a_stream_end_the_subscription(run_emulator):
    """A rejected renewal of an expired token ends the subscription.

    The error has the service's error code and says to sign in again.
    """
    emulator = run_emulator(tls=True)
    emulator.publish(TOPIC, orders(1))
    with client_of(refresh(emulator)) as client:
        subscription = client.subscribe(TOPIC, replay="earliest")
        assert len(subscription.next_batch(PATIENCE)) == 1
        emulator.accounts.end_refresh_token("emulator-refresh-token")
        emulator.faults.add(Fault("expire_token"))
        with pytest.raises(AuthenticationError, match="sign in again") as caught:
            subscription.next_batch(PATIENCE)
    assert caught.value.error_code == "invalid_grant"


def test_a_wrong_tenant_is_named_in_the_error(run_emulator):
    """The service rejects a wrong tenant and a wrong token with the same text, so the error
    names the tenant.
    """
    emulator = run_emulator(tls=True)
    session = Session(emulator.access_token, emulator.instance_url, "00D000000000009")
    with (
        client_of(load(emulator), StaticSession(session)) as client,
        pytest.raises(SessionExpiredError, match="00D000000000009"),
    ):
        client.get_topic(TOPIC)


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"client_id": "nobody"}, "SFPUBSUB_CLIENT_ID"),
        ({"client_secret": "wrong"}, "SFPUBSUB_CLIENT_SECRET"),
    ],
)
def test_rejected_client_credentials_name_the_setting_to_check(run_emulator, change, cure):
    """The error of the first call names the setting that is wrong, and contains no secret."""
    emulator = run_emulator(tls=True)
    given = {**APP, **change}
    settings = load(emulator, auth="client-credentials", login_url=emulator.http_url, **given)
    with client_of(settings) as client, pytest.raises(AuthenticationError, match=cure) as caught:
        client.get_topic(TOPIC)
    assert given["client_secret"] not in str(caught.value)


def test_the_emulators_userinfo_returns_the_organisation(run_emulator):
    """The organisation's id can be read from ``userinfo``, for token responses without an
    identity URL.
    """
    from sfpubsub.auth.http import Bearer
    from sfpubsub.auth.organisation import identity_of

    emulator = run_emulator(tls=True)
    http = HttpClient(ca_file=str(emulator.ca_file))
    bearer = Bearer(emulator.instance_url, emulator.access_token)
    assert identity_of(http, bearer).tenant_id == emulator.tenant_id


def test_a_command_signs_in(run_emulator, tmp_path, capsys, monkeypatch):
    """A command combines settings from a file, a profile and a secret from the environment.

    With a wrong secret it exits with code 3 and does not print the secret.
    """
    from sfpubsub.cli.main import run

    emulator = run_emulator(tls=True)
    file = tmp_path / "sfpubsub.toml"
    file.write_text(
        f"endpoint = {json.dumps(emulator.grpc_target)}\n"
        f"ca_file = {json.dumps(str(emulator.ca_file))}\n"
        "[profile.local]\n"
        'auth = "client-credentials"\n'
        'client_id = "emulator"\n'
        f"login_url = {json.dumps(emulator.http_url)}\n"
    )
    monkeypatch.setenv("SFPUBSUB_CLIENT_SECRET", "emulator-secret")
    assert run(["topic", TOPIC, "--config", str(file), "--profile", "local"]) == 0
    assert json.loads(capsys.readouterr().out)["topic_name"] == TOPIC
    monkeypatch.setenv("SFPUBSUB_CLIENT_SECRET", "wrong-secret")
    assert run(["topic", TOPIC, "--config", str(file), "--profile", "local"]) == 3
    said = capsys.readouterr().err
    assert "invalid_client" in said
    assert "wrong-secret" not in said
