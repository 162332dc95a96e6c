"""Tests of ``sfpubsub doctor``: each failed check says how to fix it, and no secret is shown."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from sfpubsub.cli import probes
from sfpubsub.cli.certificate import certificate_of
from sfpubsub.cli.holes import HOLES
from sfpubsub.cli.main import run
from sfpubsub.cli.probes import NetworkRoute
from sfpubsub.config import Settings
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings as EmulatorSettings

from ..auth.servers import REMOTE, Authority, Reply, connect_proxy, https_host, raw_host
from ..client.test_managed import NAME, TOPIC
from .test_cli import point_at

SECRET = "SecretOfATest"

CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"


def seem_installed(monkeypatch, place: Path, **versions: str) -> None:
    """Let packages seem to be installed in these versions, whichever are."""
    for package, version in versions.items():
        about = place / f"{package}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(place)


@pytest.fixture(autouse=True)
def safe_libraries(monkeypatch, tmp_path_factory):
    """Let the libraries seem to be installed in the versions of `constraints.txt`, which are safe.

    The ones that are installed may be older, because the requirements allow them.
    """
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS.read_text(), re.M))
    wanted = {hole.package: pins[hole.package] for hole in HOLES}
    seem_installed(monkeypatch, tmp_path_factory.mktemp("safe"), **wanted)


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    """Start an emulator, and set the environment variables that point to it."""
    started = run_emulator()
    point_at(started, monkeypatch)
    return started


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorten the time limits of the checks."""
    monkeypatch.setattr(probes, "STEP", 0.5)
    monkeypatch.setattr("sfpubsub.cli.doctor._CONNECT", 2.0)


@pytest.fixture(autouse=True)
def no_proxy_from_environment(monkeypatch):
    """Remove the machine's proxy settings from the environment."""
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def examine(capsys, *options: str) -> tuple[int, dict[str, dict], list[dict]]:
    """Run the command; return its exit code, the checks by name, and the settings."""
    code = run(["doctor", "--json", *options])
    captured = capsys.readouterr()
    assert captured.err == ""
    found = [json.loads(line) for line in captured.out.splitlines()]
    checks = {line["check"]: line for line in found if "check" in line}
    return code, checks, [line for line in found if "setting" in line]


def results(checks: dict[str, dict]) -> dict[str, str]:
    """Return the result of each check: ok, failed or skipped."""
    return {name: line["result"] for name, line in checks.items()}


def test_all_checks_pass_with_the_emulator(emulator, capsys):
    """In plaintext, the TLS check is skipped and all others pass.

    Settings are shown with their sources, and the token is masked.
    """
    code, checks, settings = examine(capsys, "--topic", TOPIC, "--managed", NAME)
    port = emulator.grpc_target.rpartition(":")[2]
    assert results(checks) == {
        "settings": "ok",
        "libraries": "ok",
        "name resolution": "ok",
        f"port {port}": "ok",
        "TLS": "skipped",
        "sign-in": "ok",
        "organisation": "ok",
        "Pub/Sub API": "ok",
        "topic": "ok",
        "managed subscription": "ok",
    }
    assert code == 0
    by_name = {line["setting"]: line for line in settings}
    assert by_name["endpoint"]["value"] == emulator.grpc_target
    assert by_name["endpoint"]["source"] == "environment SFPUBSUB_ENDPOINT"
    assert by_name["access_token"]["value"] == "***"
    assert by_name["login_url"]["source"] == "default"


def test_a_library_with_a_known_hole_is_a_warning(emulator, monkeypatch, tmp_path, capsys):
    """An installed version with a known hole is a warning, which names the advisory and the first
    safe version; the exit code is 0.
    """
    seem_installed(monkeypatch, tmp_path, grpcio="1.62.2")
    code, checks, _ = examine(capsys)
    assert code == 0
    line = checks["libraries"]
    assert line["result"] == "warning"
    assert "grpcio 1.62.2 has CVE-2024-7246" in line["detail"]
    assert line["cure"] == "pip install 'grpcio>=1.65.4'"


def test_all_checks_pass_over_tls(run_emulator, monkeypatch, capsys):
    """Over TLS, all checks pass, and the TLS line names the certificate's issuer."""
    started = run_emulator(tls=True)
    point_at(started, monkeypatch, SFPUBSUB_INSECURE="", SFPUBSUB_CA_FILE=str(started.ca_file))
    code, checks, _ = examine(capsys, "--topic", TOPIC, "--managed", NAME)
    assert set(results(checks).values()) == {"ok"}
    assert code == 0
    assert "issued by O=sfpubsub emulator" in checks["TLS"]["detail"]


def test_an_untrusted_certificate_is_described(run_emulator, monkeypatch, capsys):
    """The certificate's issuer is shown, with the setting that would make it trusted, and the
    API is not checked.
    """
    started = run_emulator(tls=True)
    point_at(started, monkeypatch, SFPUBSUB_INSECURE="")
    code, checks, _ = examine(capsys)
    assert code == 3
    assert checks["TLS"]["result"] == "failed"
    assert "issued by O=sfpubsub emulator" in checks["TLS"]["detail"]
    assert "SFPUBSUB_CA_FILE" in checks["TLS"]["cure"]
    assert checks["Pub/Sub API"]["result"] == "skipped"


# By the check that fails: the results of the checks after it.
AFTER_FAILURE = {
    "settings": {
        "libraries": "ok",
        "network": "skipped",
        "sign-in": "skipped",
        "Pub/Sub API": "skipped",
    },
    "endpoint": {"sign-in": "ok", "organisation": "ok", "Pub/Sub API": "skipped"},
    "port 1": {
        "TLS": "skipped",
        "sign-in": "ok",
        "organisation": "ok",
        "Pub/Sub API": "skipped",
    },
    "TLS": {"sign-in": "ok", "organisation": "ok", "Pub/Sub API": "skipped"},
    "sign-in": {"organisation": "skipped", "Pub/Sub API": "skipped"},
    "organisation": {"Pub/Sub API": "failed"},  # the API rejects a wrong organisation, too
    "Pub/Sub API": {},
    "topic": {},
    "managed subscription": {},
}


@pytest.mark.parametrize(
    ("changed", "options", "check", "says", "cure"),
    [
        ({"SFPUBSUB_ENDPOINT": "nonsense"}, [], "endpoint", "host:port", "SFPUBSUB_ENDPOINT"),
        ({"SFPUBSUB_ENDPIONT": "x"}, [], "settings", "did you mean SFPUBSUB_ENDPOINT", ""),
        ({"SFPUBSUB_ENDPOINT": "127.0.0.1:1"}, [], "port 1", "refused", "listen"),
        ({"SFPUBSUB_INSECURE": ""}, [], "TLS", "the TLS handshake failed", "SFPUBSUB_INSECURE=1"),
        ({"SFPUBSUB_ACCESS_TOKEN": ""}, [], "sign-in", "SFPUBSUB_ACCESS_TOKEN", ""),
        ({"SFPUBSUB_ACCESS_TOKEN": f"00DSB0000000001!{SECRET}"}, [], "Pub/Sub API", "token", ""),
        (
            {"SFPUBSUB_TENANT_ID": "00D000000000009AAA"},
            [],
            "organisation",
            "SFPUBSUB_TENANT_ID",
            "SFPUBSUB_TENANT_ID",
        ),
        ({}, ["--topic", "/event/Nothing__e"], "topic", "/event/Nothing__e", ""),
        ({}, ["--managed", "Nobody"], "managed subscription", "Nobody", ""),
        ({}, ["--managed", "not a name"], "managed subscription", "developer name", ""),
    ],
)
def test_each_failure_is_reported_by_its_own_check(
    emulator, monkeypatch, capsys, changed, options, check, says, cure
):
    """A failed check says what is wrong and how to fix it, and the exit code is 3.

    Only checks that depend on it are skipped.
    """
    point_at(emulator, monkeypatch, **changed)
    code, checks, _ = examine(capsys, *options)
    assert code == 3
    assert checks[check]["result"] == "failed", checks
    names = list(checks)
    before, after = names[: names.index(check)], names[names.index(check) + 1 :]
    assert all(checks[name]["result"] != "failed" for name in before)
    assert {name: checks[name]["result"] for name in after} == AFTER_FAILURE[check]
    assert says in checks[check]["detail"]
    assert cure in checks[check]["cure"]


def test_a_topic_without_read_access_fails(emulator, capsys):
    """A topic that exists but can't be subscribed to is a failure."""
    schema = emulator.bus.schema(emulator.bus.topic(TOPIC).schema_id)
    emulator.bus.put_topic(TOPIC, schema, can_subscribe=False)
    code, checks, _ = examine(capsys, "--topic", TOPIC)
    assert code == 3
    assert checks["topic"]["result"] == "failed"
    assert "read access" in checks["topic"]["cure"]


def test_a_topic_that_cannot_be_checked_is_skipped(emulator, monkeypatch, capsys):
    """If an earlier check fails, the topic's check is reported as skipped."""
    for changed in ({"SFPUBSUB_ACCESS_TOKEN": "00DSB0000000001!void"}, {"SFPUBSUB_INSECURE": ""}):
        point_at(emulator, monkeypatch, **changed)
        code, checks, _ = examine(capsys, "--topic", TOPIC)
        assert (code, checks["topic"]["result"]) == (3, "skipped"), changed


def test_a_stopped_subscription_fails_with_the_command_to_start_it(emulator, capsys):
    """The line contains the state of the subscription, and the command that starts it."""
    emulator.managed.set_state(NAME, "STOP")
    code, checks, _ = examine(capsys, "--managed", NAME)
    assert code == 3
    assert "STOP" in checks["managed subscription"]["detail"]
    assert checks["managed subscription"]["cure"] == f"sfpubsub managed start {NAME}"


def test_a_mirrored_object_is_checked_for_access_and_changes(emulator, monkeypatch, capsys):
    """An object's checks fail without access to all its records or without change events for it."""
    code, checks, _ = examine(capsys, "--object", "Account", "--object", "Nothing__c")
    assert (checks["object Account"]["result"], checks["changes of Account"]["result"]) == (
        "ok",
        "ok",
    )
    assert (code, checks["object Nothing__c"]["result"]) == (3, "failed")
    changes = checks["changes of Nothing__c"]
    assert changes["result"] == "failed"
    assert changes["cure"] == "sfpubsub channel add ChangeEvents Nothing__c"
    emulator.accounts.put_user("limited@example.com", "secret", view_all=False)
    token = emulator._sessions.issue("limited@example.com")
    point_at(emulator, monkeypatch, SFPUBSUB_ACCESS_TOKEN=token)
    code, checks, _ = examine(capsys, "--object", "Account")
    assert (code, checks["object Account"]["result"]) == (3, "failed")
    assert "View All" in checks["object Account"]["detail"]
    point_at(emulator, monkeypatch, SFPUBSUB_ACCESS_TOKEN="00DSB0000000001!void")
    code, checks, _ = examine(capsys, "--object", "Account")
    assert (code, checks["object Account"]["result"]) == (3, "failed")
    point_at(emulator, monkeypatch, SFPUBSUB_ACCESS_TOKEN="")
    code, checks, _ = examine(capsys, "--object", "Account")
    assert (code, checks["object Account"]["result"]) == (3, "skipped")


def test_missing_setup_permission_skips_the_subscription_check(emulator, monkeypatch, capsys):
    """Without permission to view the setup, the check is skipped and its line names the permission.

    The exit code is still 0, as such a user may be able to subscribe.
    """
    refusal = Reply(403, [{"errorCode": "INSUFFICIENT_ACCESS", "message": "no"}])
    with https_host(lambda _: refusal) as host:
        point_at(emulator, monkeypatch, SFPUBSUB_INSTANCE_URL=host.url)
        code, checks, _ = examine(capsys, "--managed", NAME)
    assert code == 0, checks
    assert checks["managed subscription"]["result"] == "skipped"
    assert "View Setup and Configuration" in checks["managed subscription"]["detail"]


def test_doctor_does_not_take_the_slot(emulator, capsys):
    """The checks open no stream, so a managed subscription's slot stays free for the client that
    uses it.
    """
    for rpc in ("Subscribe", "ManagedSubscribe"):  # counts the calls, and delays none
        emulator.faults.add(Fault("delay_call", rpc=rpc, seconds=0.0))
    assert examine(capsys, "--topic", TOPIC, "--managed", NAME)[0] == 0
    assert [fault["happened"] for fault in emulator.faults.report()] == [0, 0]


def test_no_secret_is_printed(emulator, monkeypatch, tmp_path, capsys):
    """No secret from the settings or from a host's response is printed, neither as text nor as
    JSON.
    """
    token = f"00DSB0000000001!{SECRET}token"
    page = Reply(400, {"error": "invalid_grant", "error_description": f"{SECRET}secret {token}"})
    with https_host(lambda _: page) as host:
        secrets = {
            "SFPUBSUB_ACCESS_TOKEN": token,
            "SFPUBSUB_CLIENT_SECRET": f"{SECRET}secret",
            "SFPUBSUB_PASSWORD": f"{SECRET}password",
            "SFPUBSUB_REFRESH_TOKEN": f"{SECRET}refresh",
        }
        shared = {
            "SFPUBSUB_PROXY": f"http://user:{SECRET}proxy@127.0.0.1:1",
            "SFPUBSUB_LOGIN_URL": host.url,
            "SFPUBSUB_INSTANCE_URL": host.url,
            "SFPUBSUB_CLIENT_ID": "app",
            "SFPUBSUB_USERNAME": "user@example.com",
        }
        for auth in ("token", "client-credentials", "refresh", "password"):
            for insecure in ("", "1"):
                changed = {"SFPUBSUB_AUTH": auth, "SFPUBSUB_INSECURE": insecure}
                point_at(emulator, monkeypatch, **changed, **secrets, **shared)
                for form in ([], ["--json"]):
                    assert run(["doctor", "--managed", NAME, *form]) == 3
                    captured = capsys.readouterr()
                    assert SECRET not in captured.out + captured.err, (auth, insecure)
                    assert "***" in captured.out


def by_refresh_token(emulator, monkeypatch, state: Path) -> None:
    """Configure the default refresh token, with *state* for the token file."""
    point_at(
        emulator,
        monkeypatch,
        SFPUBSUB_AUTH="refresh",
        SFPUBSUB_LOGIN_URL=emulator.http_url,
        SFPUBSUB_CLIENT_ID="emulator",
        SFPUBSUB_REFRESH_TOKEN="emulator-refresh-token",
        SFPUBSUB_STATE_DIR=str(state),
    )


def test_the_token_file_and_the_address_are_shown(run_emulator, monkeypatch, tmp_path, capsys):
    """For a refresh token, `doctor` shows the file, when and where it was written, and that it
    serves one machine; for any sign-in, the address that the org sees, if the org returns it.
    """
    emulator = run_emulator(settings=EmulatorSettings(rotate_refresh_tokens=True))
    by_refresh_token(emulator, monkeypatch, tmp_path)
    code, checks, _ = examine(capsys)
    assert code == 0
    (file,) = tmp_path.glob("refresh-token-*.json")
    detail = checks["token file"]["detail"]
    assert str(file) in detail
    assert "(rotated), last used at" in detail
    assert socket.gethostname() in detail
    assert "several need client-credentials or jwt" in detail
    assert "came from 127.0.0.1, at" in checks["address"]["detail"]
    stored = json.loads(file.read_text())
    assert stored["refresh_token"] not in str(checks)


def test_without_a_token_file_doctor_says_so(run_emulator, monkeypatch, tmp_path, capsys):
    """If `SFPUBSUB_TOKEN_FILE` is none, `doctor` says what that means."""
    by_refresh_token(run_emulator(), monkeypatch, tmp_path)
    monkeypatch.setenv("SFPUBSUB_TOKEN_FILE", "none")
    code, checks, _ = examine(capsys)
    assert code == 0
    assert checks["token file"]["result"] == "skipped"
    assert "ends with the process" in checks["token file"]["detail"]


@pytest.mark.parametrize(
    ("error", "description", "cure"),
    [
        ("invalid_client", "app must be installed into org", "administrator install the app"),
        ("OAUTH_APP_BLOCKED", "this app is blocked by admin", "unblock the app"),
        ("invalid_grant", "inactive user", "unfreeze the user"),
        ("invalid_grant", "ip restricted", "login IP ranges"),
        ("invalid_grant", "expired access/refresh token", "was not used for too long"),
    ],
)
def test_a_refused_sign_in_is_named(
    run_emulator, monkeypatch, tmp_path, capsys, error, description, cure
):
    """`doctor` names the reason of a refused sign-in, and what to do about it."""
    emulator = run_emulator()
    emulator.faults.add(Fault("refuse_sign_in", error=error, description=description))
    by_refresh_token(emulator, monkeypatch, tmp_path)
    code, checks, _ = examine(capsys)
    assert code == 3
    assert checks["sign-in"]["result"] == "failed"
    assert f"{error}: {description}" in checks["sign-in"]["detail"]
    assert cure in checks["sign-in"]["detail"]
    emulator.faults.assert_consumed()


def test_secrets_in_third_party_errors_are_masked(emulator, monkeypatch, capsys):
    """If an error from a library or host contains the token, it is masked in the output."""

    def leak(host: str) -> list[str]:
        raise probes.ProbeError(f"failed with {emulator.access_token}", emulator.access_token)

    monkeypatch.setattr(probes, "resolve", leak)
    for form in ([], ["--json"]):
        assert run(["doctor", *form]) == 3
        out = capsys.readouterr().out
        assert "failed with ***" in out
        assert emulator.access_token not in out


def test_without_json_the_output_is_a_readable_page(emulator, capsys):
    """Without ``--json``, only configured settings are listed, and each failed check is followed by
    its fix.
    """
    emulator.managed.set_state(NAME, "STOP")
    assert run(["doctor", "--managed", NAME]) == 3
    out = capsys.readouterr().out.splitlines()
    assert any(line.startswith("endpoint ") and "SFPUBSUB_ENDPOINT" in line for line in out)
    assert not any(line.startswith("refresh_token") for line in out)
    at = next(i for i, line in enumerate(out) if line.startswith("failed"))
    assert "STOP" in out[at]
    assert out[at + 1].strip() == f"-> sfpubsub managed start {NAME}"


def test_each_step_is_bounded_in_time(emulator, monkeypatch, capsys):
    """A server that accepts a connection but never responds doesn't block the command."""
    with raw_host(lambda _, over: over.wait(60)) as silent:
        endpoint = silent.removeprefix("http://")
        point_at(emulator, monkeypatch, SFPUBSUB_ENDPOINT=endpoint, SFPUBSUB_INSECURE="")
        began = time.monotonic()
        code, checks, _ = examine(capsys)
    assert code == 3
    assert "no response within" in checks["TLS"]["detail"]
    assert time.monotonic() - began < 30


# The single steps.


def test_an_unknown_host_and_a_dns_timeout_are_reported(monkeypatch):
    """Both an unknown host name and a DNS server that doesn't respond raise an error that says
    so.
    """
    with pytest.raises(probes.ProbeError, match=r"nowhere\.invalid cannot be resolved"):
        probes.resolve("nowhere.invalid")
    over = threading.Event()
    monkeypatch.setattr(probes.socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    try:
        with pytest.raises(probes.ProbeError, match="no DNS response for"):
            probes.resolve("slow.example.com")
    finally:
        over.set()


def test_a_port_that_never_answers_is_an_error_after_the_timeout(monkeypatch):
    """Connecting is limited to the time of one step; the error names the port and that limit."""
    limits = []

    def connect(_address: tuple[str, int], timeout: float) -> None:
        limits.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(probes.socket, "create_connection", connect)
    with pytest.raises(
        probes.ProbeError, match=r"192\.0\.2\.1:7443 cannot be reached: no response within 0\.5 s"
    ):
        probes.connect(NetworkRoute("192.0.2.1", 7443, ""))
    assert limits == [probes.STEP]


def test_both_ports_of_the_service_are_tried(monkeypatch, capsys):
    """If 7443 is closed and 443 is open, the suggested fix is to use 443; if only 443 is closed, no
    check fails.
    """
    tried = []

    def connect(way: NetworkRoute) -> socket.socket:
        tried.append(way.port)
        if way.port == shut:
            raise probes.ProbeError(f"{way.host}:{way.port} cannot be reached: refused", "cure")
        return socket.socket()

    monkeypatch.setattr(probes, "connect", connect)
    monkeypatch.setattr(probes, "resolve", lambda host: ["192.0.2.1"])
    monkeypatch.setattr(probes, "handshake", lambda way, ca_file: "TLSv1.3")
    shut = 7443
    _, checks, _ = examine(capsys)
    assert sorted(tried) == [443, 7443]
    assert checks["port 443"]["result"] == "ok"
    assert checks["port 7443"]["result"] == "failed"
    assert "SFPUBSUB_ENDPOINT=api.pubsub.salesforce.com:443" in checks["port 7443"]["cure"]
    shut = 443
    _, checks, _ = examine(capsys)
    assert checks["port 443"]["result"] == "skipped"
    assert checks["port 7443"]["result"] == checks["TLS"]["result"] == "ok"


def test_connections_go_through_the_proxy(tmp_path, monkeypatch):
    """The service's port is reached through the configured proxy, with the credentials in its URL,
    or through the proxy set in the environment.
    """
    authority = Authority(tmp_path)
    with connect_proxy() as proxy, https_host(lambda _: Reply(), authority) as host:
        named = proxy.url.replace("http://", "http://user:pass%21@")
        settings = Settings(endpoint=f"{REMOTE}:{host.port}", proxy=named)
        way = probes.route_to(settings)
        assert "certificate for" in probes.handshake(way, host.ca_file)
        (asked,), (credentials,) = proxy.asked, proxy.credentials
        assert f"CONNECT {REMOTE}:{host.port}" in asked
        assert "Basic dXNlcjpwYXNzIQ==" in credentials
        with pytest.raises(probes.ProbeError, match="the proxy responded with nothing"):
            probes.connect(way._replace(port=1))
        monkeypatch.setenv("https_proxy", proxy.url)
        assert probes.route_to(Settings(endpoint="other.example.com:1")).proxy == proxy.url
        monkeypatch.setenv("no_proxy", "other.example.com")
        assert not probes.route_to(Settings(endpoint="other.example.com:1")).proxy
    with pytest.raises(probes.ProbeError, match=r"the proxy .* cannot be reached"):
        probes.connect(way)


def der_of(chain: trustme.LeafCert) -> bytes:
    """Return the certificate in its binary form, DER."""
    return ssl.PEM_cert_to_DER_cert(chain.cert_chain_pems[0].bytes().decode())


def test_a_certificate_has_subject_issuer_and_expiry():
    """A certificate's subject, issuer and expiry are read from its bytes, even if expired."""
    expires = datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)
    ca = trustme.CA(organization_name="Authority Ö", organization_unit_name="Unit")
    leaf = ca.issue_cert(
        "api.example.com", common_name="api.example.com", not_after=expires, not_before=expires
    )
    found = certificate_of(der_of(leaf))
    assert found.expires == expires
    assert "CN=api.example.com" in found.subject
    assert found.issuer == "O=Authority Ö, OU=Unit"
    assert "valid until 2020-02-03" in str(found)
    late = ca.issue_cert("a", not_after=datetime(2070, 1, 1, tzinfo=UTC))
    assert certificate_of(der_of(late)).expires.year == 2070


def test_invalid_certificate_bytes_raise_value_error():
    """Reading a truncated certificate raises a ValueError.

    Reading one with an altered byte raises a ValueError or succeeds, but never fails otherwise.
    """
    der = der_of(trustme.CA().issue_cert("a"))
    for cut in range(0, len(der), 3):
        with pytest.raises(ValueError, match="certificate"):
            certificate_of(der[:cut])
    for at in range(0, len(der), 2):
        changed = bytearray(der)
        changed[at] ^= 0xFF
        try:
            certificate_of(bytes(changed))
        except ValueError as error:
            assert "certificate" in str(error)  # noqa: PT017  # some changes leave one


def test_an_expired_certificate_is_shown_with_its_date(tmp_path: Path):
    """The handshake error contains the date on which the certificate expired."""
    ca = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(ca_file)
    past = datetime.now(UTC) - timedelta(days=3)
    leaf = ca.issue_cert("localhost", not_before=past - timedelta(days=9), not_after=past)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)

    def talk(connection: socket.socket, _over: threading.Event) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)

    with raw_host(talk) as url:
        way = NetworkRoute("localhost", int(url.rpartition(":")[2]), "")
        with pytest.raises(probes.ProbeError, match="expired") as caught:
            probes.handshake(way, str(ca_file))
    assert f"valid until {past:%Y-%m-%d}" in str(caught.value)
