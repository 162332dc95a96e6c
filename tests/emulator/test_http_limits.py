"""Tests of the HTTP port with malformed, oversized and slow requests, and with too many
connections.

Every such request is answered with a well-formed error of the called API, never a traceback.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import random
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest

from sfpubsub.emulator.http import listener
from sfpubsub.emulator.server import EmulatorServer

from .bayeux import Bayeux
from .support import WAIT_S, until
from .web import RECORDS, ask

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
PATHS = {
    "/services/oauth2/token": FORM,
    "/services/oauth2/revoke": FORM,
    "/services/oauth2/userinfo": FORM,
    "/services/Soap/u/50.0": "text/xml",
    RECORDS: JSON,
    f"{RECORDS}/18xSB0000000001YAA": JSON,
    "/services/data/v62.0/tooling/query?q=SELECT+Id+FROM+ManagedEventSubscription": JSON,
    "/admin/faults": JSON,
    "/admin/clock": JSON,
    "/admin/token": JSON,
    "/admin/managed": JSON,
    "/admin/schema": JSON,
    "/admin/users": JSON,
    "/admin/apps": JSON,
    "/id/x/y": FORM,
    "/health": JSON,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An emulator shared by the tests that do not modify it."""
    with EmulatorServer(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


def exchange(emulator, *parts, end=False):
    """Send the parts over a new connection, and return all bytes received until it is closed.

    With `end`, close the sending side after the last part.
    """
    address = ("127.0.0.1", int(emulator.http_url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=WAIT_S) as connection:
        with contextlib.suppress(ConnectionError):  # the server may close while we still send
            for part in parts:
                connection.sendall(part)
            if end:
                connection.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65536):
                found += data
        return found


def check_shape(path, status, kind, text):
    """Assert that an error response has the format of the API that `path` belongs to."""
    assert status != 500 or path.startswith("/services/Soap/"), (path, text)
    assert "Traceback" not in text
    if status < 400:
        return
    if path.startswith(("/services/oauth2/userinfo", "/id/")) and status == 403:
        assert text.endswith(("_Token", "_Org", "_Id"))
    elif path.startswith(("/services/oauth2/", "/id/")):
        assert set(json.loads(text)) == {"error", "error_description"}
    elif path.startswith("/services/data"):
        (row,) = json.loads(text)
        assert {"message", "errorCode"} <= set(row)
        assert row["errorCode"] != "UNKNOWN_EXCEPTION"
    elif path.startswith("/services/Soap/"):
        assert kind.startswith("text/xml")
        assert "<soapenv:Fault>" in text
    else:
        assert set(json.loads(text)) == {"error"}


def test_random_requests_receive_well_formed_responses(shared, caplog):
    """1,500 requests with randomly malformed bodies receive well-formed responses.

    They cover all paths and methods, and the emulator logs no error.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    values = [None, True, 0, -1, 1e400, 10**400, "", "x", "\ud800", "\0", [], {}, [[]], {"": {}}]
    values += ["A" * 300, {"label": 1}, "urn:ietf:params:oauth:grant-type:jwt-bearer", "a.b.c"]
    keys = ["FullName", "Metadata", "topic", "schema", "name", "state", "delete", "jump_s", "kind"]
    keys += ["times", "username", "active", "client_id", "public_key", "grant_type", "assertion"]
    keys += ["token", "refresh_token", "expire", "label", "topicName", "replay_id", "target"]

    def body(kind):
        fields = {dice.choice(keys): dice.choice(values) for _ in range(dice.randrange(4))}
        if "Metadata" in fields and dice.random() < 0.8:
            fields["Metadata"] = {"label": "x", "topicName": dice.choice(values)}
        if kind == FORM:
            text = "&".join(f"{key}={value}" for key, value in fields.items())
            data = text.encode("utf-8", "surrogatepass")
        elif kind == JSON:
            data = json.dumps(dice.choice([fields, fields, fields, *values])).encode()
        else:
            data = f"<login><username>{dice.choice(values)}</username></login>".encode(
                "utf-8", "surrogatepass"
            )
        if dice.random() < 0.3:
            data = data[: dice.randrange(len(data) + 1)]
        if dice.random() < 0.2:
            data += bytes(dice.randrange(256) for _ in range(5))
        return data

    connection = http.client.HTTPConnection(shared.http_url.removeprefix("http://"), timeout=WAIT_S)
    with contextlib.closing(connection), caplog.at_level(logging.ERROR, "sfpubsub.emulator"):
        for _ in range(1500):
            path = dice.choice(list(PATHS))
            method = dice.choice(["GET", "POST", "POST", "PATCH", "DELETE", "PUT"])
            if path.endswith("YAA") and method == "DELETE":
                continue  # it would succeed
            headers = {"Content-Type": dice.choice([PATHS[path]] * 5 + ["", "x", "text/plain"])}
            if path == "/services/Soap/u/50.0":
                headers["SOAPAction"] = "login"
            if dice.random() < 0.9:
                headers["Authorization"] = f"Bearer {shared.access_token}"
            connection.request(method, path, body(PATHS[path]), headers)
            with connection.getresponse() as answer:
                text = answer.read().decode()
            check_shape(path, answer.status, answer.headers.get("Content-Type", ""), text)
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/services/oauth2/no", "/services/data/x"])
def test_long_and_unusual_paths_are_handled(shared, path):
    """A path that is extremely long or contains unusual characters gets a well-formed response."""
    for more in ("/" + "x" * 60_000, "%00", "/../..", "//", "%ff%fe", "?" + "a=b&" * 1000):
        reply = ask(shared, "GET", path + more)
        check_shape(path, reply.status, reply.headers["Content-Type"], reply.text)
    for method in ("PUT", "DELETE", "HEAD"):
        assert ask(shared, method, path).status in (200, 400, 401, 403, 404, 405)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"NONSENSE / HTTP/1.1\r\n\r\n", 501),
        (b"GET\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        # The response arrives although the server never reads the rest of the body.
        (b"POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, 413),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nshort", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefg\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFF\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 50, 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 5000, 400),
    ],
)
def test_malformed_requests_are_rejected(shared, request_bytes, status):
    """A malformed or oversized request is answered with a JSON error with the matching status.

    The connection is then closed.
    """
    answer = exchange(shared, request_bytes, end=True)
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode()
    assert b"Connection: close" in head
    assert set(json.loads(text)) == {"error"}


def test_chunked_body_is_reassembled(shared):
    """A chunked body, with chunk extensions and trailers, is reassembled before it is parsed."""
    body = b"grant_type=nonsense"
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:]))
    request = (
        b"POST /services/oauth2/token HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n"
    )
    answer = exchange(shared, request, chunks, b"0\r\nX: y\r\n\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "unsupported_grant_type"


def test_deeply_nested_json_is_rejected(shared):
    """JSON that is nested too deeply to be parsed is reported as a client error with status 400."""
    headers = {"Authorization": f"Bearer {shared.access_token}", "Content-Type": JSON}
    deep = b"[" * 100_000
    assert ask(shared, "POST", RECORDS, deep, headers).code == (400, "JSON_PARSER_ERROR")
    assert ask(shared, "POST", "/admin/faults", deep, headers).status == 400


@pytest.mark.parametrize(
    ("path", "key"), [("/admin/users", "username"), ("/admin/apps", "client_id")]
)
def test_unpaired_surrogate_is_rejected(shared, path, key):
    """A JSON string with an unpaired surrogate is rejected with status 400.

    Such a string cannot be stored as UTF-8.
    """
    headers = {"Authorization": f"Bearer {shared.access_token}", "Content-Type": JSON}
    reply = ask(shared, "POST", path, json.dumps({key: "\ud800"}).encode(), headers)
    assert (reply.status, set(reply.json)) == (400, {"error"})


def test_internal_error_is_reported_and_logged(shared, monkeypatch, caplog):
    """If the emulator itself fails, the client receives a `server_error` without the cause.

    The cause is logged.
    """

    def fail(*_args):
        raise RuntimeError("planted")

    monkeypatch.setattr(type(shared.accounts), "app", fail)
    headers = {"Content-Type": FORM}
    data = b"grant_type=client_credentials&client_id=emulator"
    reply = ask(shared, "POST", "/services/oauth2/token", data, headers)
    assert reply.error[:2] == (500, "server_error")
    assert "planted" not in reply.text
    assert "planted" in caplog.text


def test_a_slow_client_is_cut_off(emulator, monkeypatch):
    """A request that arrives byte by byte is cut off after the time limit for requests.

    Other clients are still served.
    """
    monkeypatch.setattr(listener, "_REQUEST_S", 0.2)
    address = ("127.0.0.1", int(emulator.http_url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=WAIT_S) as slow:
        slow.sendall(b"POST /services/oauth2/token HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")

        def is_cut():
            try:
                slow.sendall(b"x")  # it keeps sending
            except OSError:
                return True
            return False

        until(is_cut)
    monkeypatch.undo()
    assert ask(emulator, "GET", "/health").status == 200


def test_silent_connections_do_not_keep_others_away(emulator, monkeypatch):
    """With as many connections open as are allowed, a new one is served, and the one closed whose
    time ends first: neither clients that send nothing nor those that trickle take `/health` away,
    and a held connect of the Streaming API stays.
    """
    monkeypatch.setattr(listener, "_CONNECTIONS", 4)
    address = ("127.0.0.1", int(emulator.http_url.rpartition(":")[2]))
    client = Bayeux(emulator).ready()
    client.subscribe("/event/Order_Event__e")
    with contextlib.ExitStack() as opened, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.read, 1)
        (session,) = emulator.cometd.sessions._sessions.values()
        until(lambda: session.pending == 1)
        silent = [
            opened.enter_context(socket.create_connection(address, timeout=WAIT_S))
            for _ in range(8)
        ]
        silent[-1].sendall(b"GET /health HTTP/1.1\r\nX: ")
        for _ in range(10):
            assert ask(emulator, "GET", "/health").status == 200
        assert silent[0].recv(1) == b""
        emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "1"}])
        assert len(waiting.result(WAIT_S)) == 1


def test_plain_client_on_the_tls_port_does_not_block_others(start):
    """Neither plain HTTP on the TLS port nor a connection that never starts a handshake blocks
    other clients.
    """
    emulator, _ = start(tls=True)
    address = ("127.0.0.1", int(emulator.http_url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=WAIT_S):  # sends nothing
        exchange(emulator, b"GET / HTTP/1.1\r\n\r\n")
        assert ask(emulator, "GET", "/health").status == 200
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            ssl.create_default_context().wrap_socket(
                socket.create_connection(address, timeout=WAIT_S), server_hostname="127.0.0.1"
            )
        assert ask(emulator, "GET", "/health").status == 200


def test_oversized_body_is_rejected_over_tls(start):
    """Over TLS, a client that sends too large a body still receives the 413 response.

    The body itself is never read.
    """
    emulator, _ = start(tls=True)
    trust = ssl.create_default_context(cafile=emulator.ca_file)
    address = ("127.0.0.1", int(emulator.http_url.rpartition(":")[2]))
    with (
        socket.create_connection(address, timeout=WAIT_S) as plain,
        trust.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n")
        connection.sendall(b"x" * 300_000)
        assert b" 413 " in connection.recv(4096)


def test_a_silent_connection_leaves_no_traceback(emulator, monkeypatch, caplog):
    """A connection on which nothing arrives, as browsers open them in reserve, is closed after a
    time, without an error in the log.
    """
    monkeypatch.setattr(listener, "_SILENCE_S", 0.1)
    with caplog.at_level(logging.DEBUG, "sfpubsub.emulator"):
        assert exchange(emulator) == b""
        assert ask(emulator, "GET", "/health").status == 200
    assert [item for item in caplog.records if item.levelno > logging.DEBUG] == []


@pytest.mark.parametrize(
    "path", ["/health", "/admin/faults", "/services/oauth2/token", "/services/data", "/cometd/67.0"]
)
def test_dns_rebinding_is_refused_on_every_path(shared, path):
    """A request whose Host header is the name of a foreign site is refused, so that a page of that
    site cannot sign in with the default credentials after DNS rebinding.
    """
    method = "GET" if path in ("/health", "/services/data") else "POST"
    body = b"" if method == "POST" else None
    for name in ("evil.example.com", "127.0.0.1.example.com"):
        reply = ask(shared, method, path, body, {"Host": name})
        assert reply.status == 421
        check_shape(path, reply.status, reply.headers["Content-Type"], reply.text)
    assert ask(shared, method, path, body, {"Host": "localhost"}).status != 421


def test_names_of_the_emulator_are_served(start):
    """A request under a name that was given to the emulator is served."""
    emulator, _ = start(advertise="salesforce.test", tls_names=["Other.test"], host="0.0.0.0")
    port = int(emulator.http_url.rpartition(":")[2])
    for name, status in (("salesforce.test", 200), ("other.test:1", 200), ("third.test", 421)):
        part = f"GET /health HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
            connection.sendall(part.encode())
            assert f" {status} ".encode() in connection.recv(4096)


def test_a_large_body_is_read_only_after_sign_in(shared):
    """A request that announces a large body is refused before the body arrives, unless its token is
    valid.
    """
    head = (
        "POST /services/data/v67.0/composite/sobjects HTTP/1.1\r\nAuthorization: Bearer {}\r\n"
        f"Content-Type: {JSON}\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n"
    )
    for token in ("", "x"):
        answer = exchange(shared, head.format(token).encode())
        assert b" 401 " in answer.partition(b"\r\n")[0]
        assert b"INVALID_SESSION_ID" in answer
    body = json.dumps({"records": []}).encode().ljust(1_000_000)
    answer = exchange(shared, head.format(shared.access_token).encode(), body)
    assert b" 401 " not in answer.partition(b"\r\n")[0]
    assert b"HTTP/1.1" in answer
