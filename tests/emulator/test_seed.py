"""Tests of seed files: the default seed, the format, and the error for each invalid one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trustme

from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.problems import EmulatorProblem, SeedError
from sfpubsub.emulator.server import EmulatorServer

from .support import ACCOUNTS, CHANGES, MANAGED, ORDERS, Client
from .web import rest, token

SCHEMA = """{"type": "record", "name": "A__e", "fields": [
    {"name": "CreatedDate", "type": "long"}, {"name": "CreatedById", "type": "string"},
    {"name": "X__c", "type": ["null", "string"], "default": null}]}"""
TOPIC = f"[[topics]]\nname = '/event/A__e'\nschema = '''{SCHEMA}'''\n"
FULL = (
    TOPIC
    + """
[org]
id = "00DXX0000000009"
[settings]
keepalive_s = 7
statuses = {"schema.not.found" = "INVALID_ARGUMENT"}
[[channels]]
name = "/event/All__chn"
topics = ["/event/A__e"]
[[managed_subscriptions]]
developer_name = "Mine"
topic = "/event/All__chn"
[[events]]
topic = "/event/A__e"
payload = {X__c = "one"}
[[events]]
topic = "/event/A__e"
payload_json = '{"X__c": null}'
"""
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_default(emulator):
    """Without a seed file the emulator has three topics, one running managed subscription that
    starts at EARLIEST, and no events.
    """
    assert [topic.name for topic in emulator.bus.topics()] == [ACCOUNTS, CHANGES, ORDERS]
    (record,) = emulator.managed.all()
    assert (record.developer_name, record.topic, record.state) == (MANAGED, ORDERS, "RUN")
    assert (record.default_replay, record.error_recovery_replay) == ("EARLIEST", "EARLIEST")
    assert emulator.bus.tip() == 0


def test_every_table_of_a_seed_file_takes_effect(tmp_path):
    """The TOML tables of a seed file set up the emulator, and a second start with the same seed
    adds nothing.
    """
    seed = write(tmp_path / "s.toml", FULL)
    for _ in range(2):
        with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
            assert emulator.tenant_id.startswith("00DXX0000000009")
            assert emulator.settings.keepalive_s == 7
            assert emulator.managed.get("Mine").default_replay == "LATEST"
            client = Client(emulator.grpc_target, emulator.metadata)
            assert len(client.subscribe(topic_name="/event/All__chn").events(2)) == 2
            client.close()
            assert emulator.bus.tip() == 2


def test_restart_without_the_seed(tmp_path):
    """A data directory keeps the content of its seed; the default seed applies only to a new
    directory.
    """
    with EmulatorServer(tmp_path / "data", seed=write(tmp_path / "s.toml", FULL)):
        pass
    with EmulatorServer(tmp_path / "data") as emulator:
        names = [topic.name for topic in emulator.bus.topics()]
        assert names == ["/event/A__e", "/event/All__chn"]


def test_deleted_subscription_stays_deleted(tmp_path):
    """A deleted managed subscription is not created again by the next start with the same seed."""
    seed = write(tmp_path / "s.toml", FULL)
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        emulator.managed.delete("Mine")
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        assert emulator.managed.get("Mine") is None


def test_schema_file(tmp_path):
    """The path in `schema_file` is relative to the seed file."""
    write(tmp_path / "a.avsc", SCHEMA)
    seed = write(tmp_path / "s.toml", "[[topics]]\nname='/event/A__e'\nschema_file='a.avsc'\n")
    assert seeds.load(seed).topics[0][1].name == "A__e"


def test_users_and_apps(tmp_path):
    """The seed's users and apps replace the default ones, are kept in the data directory, and are
    updated when the seed changes.
    """
    seed = write(
        tmp_path / "s.toml",
        TOPIC + "[settings]\ntoken_lifetime_s = 60\n"
        "[[users]]\nusername = 'me@example.com'\npassword = 'word'\n"
        "[[apps]]\nclient_id = 'mine'\nclient_secret = 'one'\nrun_as = 'me@example.com'\n"
        "refresh_token = 'again'\n",
    )
    mine = {"client_id": "mine", "client_secret": "one"}
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        assert token(emulator).error[1] == "invalid_client_id"
        given = token(emulator, **mine).json["access_token"]
        me = {"username": "me@example.com", "password": "word"}
        assert token(emulator, "password", **mine, **me).status == 200
        assert token(emulator, "refresh_token", **mine, refresh_token="again").status == 200
        emulator.clock.jump(60)
        reply = rest(emulator, "GET", "/services/data/v62.0", access_token=given)
        assert reply.code == (401, "INVALID_SESSION_ID")
    with EmulatorServer(tmp_path / "data") as emulator:
        assert token(emulator, **mine).status == 200
        assert token(emulator).error[1] == "invalid_client_id"
    seed.write_text(seed.read_text().replace("'one'", "'two'"))
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        assert token(emulator, **mine).error[1] == "invalid_client"
        assert token(emulator, **{**mine, "client_secret": "two"}).status == 200


def test_public_key_file(tmp_path):
    """The path in `public_key_file` is relative to the seed file. The file may contain a
    certificate.
    """
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    write(tmp_path / "app.pem", authority.cert_pem.bytes().decode())
    seed = write(tmp_path / "s.toml", "[[apps]]\nclient_id='x'\npublic_key_file='app.pem'\n")
    assert seeds.load(seed).apps[0]["public_key"].startswith("-----BEGIN CERTIFICATE-----")


def topic(schema: str) -> str:
    """Return a seed table that defines one topic with this schema."""
    return f"[[topics]]\nname = '/event/A__e'\nschema = '''{schema}'''\n"


MS = "[[managed_subscriptions]]\n"

BROKEN = {
    "syntax": ("x = ", "not valid TOML"),
    "table": ("[[topic]]\nname='x'", "unknown tables: topic"),
    "not a list": ("topics = 3", r"write \[\[topics\]\]"),
    "no name": ("[[topics]]\nschema='{}'", r"\[\[topics\]\] entry 1 has no name"),
    "unknown key": (TOPIC + "color = 'red'", r"\(/event/A__e\) has unknown keys: color"),
    "wrong type": (TOPIC + "can_publish = 'yes'", "can_publish is not of type bool"),
    "bad name": ("[[topics]]\nname='Order'\nschema='{}'", "topic 'Order'"),
    "no schema": ("[[topics]]\nname='/event/A__e'", "exactly one of schema and schema_file"),
    "no file": ("[[topics]]\nname='/event/A__e'\nschema_file='no.avsc'", "no.avsc"),
    "not json": (topic("{"), "topic /event/A__e: the schema is not valid JSON"),
    "not avro": (
        topic('{"type": "record", "name": "A__e"}'),
        "topic /event/A__e: the schema is not",
    ),
    "unknown type": (
        topic('{"type":"record","name":"A","fields":[{"name":"x","type":"Nope"}]}'),
        "unknown type",
    ),
    "not a record": (topic('"string"'), "must be an Avro record"),
    "json list": (topic("[]"), "topic /event/A__e: the schema"),
    "twice": (TOPIC + TOPIC, "duplicate topic: /event/A__e"),
    "channel": ("[[channels]]\nname='/event/C__chn'\ntopics=['/event/B__e']", "no topic '/event/B"),
    "ms name": (TOPIC + MS + "developer_name='1_'\ntopic='/event/A__e'", "subscription '1_'"),
    "ms topic": (TOPIC + MS + "developer_name='M'\ntopic='/event/B__e'", "no topic '/event/B__e'"),
    "ms replay": (
        TOPIC + MS + "developer_name='M'\ntopic='/event/A__e'\ndefault_replay='CUSTOM'",
        "LATEST or EARLIEST",
    ),
    "ms state": (
        TOPIC + MS + "developer_name='M'\ntopic='/event/A__e'\nstate='PAUSE'",
        "RUN or STOP",
    ),
    "event topic": (
        TOPIC + "[[events]]\ntopic='/event/B__e'\npayload={}",
        "no topic '/event/B__e'",
    ),
    "event field": (
        TOPIC + "[[events]]\ntopic='/event/A__e'\npayload={Y=1}",
        "does not have these fields: Y",
    ),
    "event value": (
        TOPIC + "[[events]]\ntopic='/event/A__e'\npayload={X__c=1}",
        "do not match A__e",
    ),
    "event json": (TOPIC + "[[events]]\ntopic='/event/A__e'\npayload_json='{'", "payload_json"),
    "event list": (
        TOPIC + "[[events]]\ntopic='/event/A__e'\npayload_json='[]'",
        "is not a JSON object",
    ),
    "event none": (
        TOPIC + "[[events]]\ntopic='/event/A__e'",
        "exactly one of payload and payload_json",
    ),
    "user name": ("[[users]]\nusername=''", r"\[\[users\]\] entry 1 has a blank username"),
    "user twice": ("[[users]]\nusername='a'\n[[users]]\nusername='a'", "duplicate user: a"),
    "app id": ("[[apps]]\nclient_id=' '", r"\[\[apps\]\] entry 1 has a blank client_id"),
    "app user": ("[[apps]]\nclient_id='x'\nrun_as='a'", "app x: there is no user 'a'"),
    "app refresh": ("[[apps]]\nclient_id='x'\nrefresh_token='r'", "add run_as"),
    "app key": ("[[apps]]\nclient_id='x'\npublic_key='k'", "app x: the public key is not an RSA"),
    "app keys": ("[[apps]]\nclient_id='x'\npublic_key=''\npublic_key_file='f'", "either"),
    "app key file": ("[[apps]]\nclient_id='x'\npublic_key_file='no.pem'", "no.pem"),
    "app secret": ("[[apps]]\nclient_id='x'\nclient_secret=1", "client_secret is not of type str"),
    "org": ("[org]\nid='123'", "begin with 00D"),
    "org key": ("[org]\nname='x'", "may contain only the key id"),
    "setting": ("[settings]\nkeepalive=1", "unknown setting keepalive"),
    "setting type": ("[settings]\nkeepalive_s='1'", "keepalive_s: '1' has the wrong type"),
    "setting range": ("[settings]\nkeepalive_s=1000", "at most 270"),
    "settings": ("settings=1", r"write \[settings\]"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_seed(tmp_path, name):
    """An invalid seed raises `SeedError` with one line that names the file and the problem, before
    the data directory is created.
    """
    text, expected = BROKEN[name]
    seed = write(tmp_path / "broken.toml", text)
    with pytest.raises(SeedError) as caught:
        EmulatorServer(tmp_path / "data", seed=seed)
    message = str(caught.value)
    assert re.search(expected, message), message
    assert message.startswith(f"seed {seed}: ")
    assert "\n" not in message
    assert not (tmp_path / "data").exists()


def test_a_start_that_fails_changes_nothing(tmp_path):
    """If a seed cannot be applied to an existing directory, nothing of it is, and an org id given
    with it does not turn the directory into that of a refreshed sandbox.
    """
    data = tmp_path / "data"
    with EmulatorServer(data) as emulator:
        (published,) = emulator.publish(ORDERS, [{"Order_Number__c": "1"}])
        before = emulator.access_token, emulator.tenant_id
    seed = write(
        tmp_path / "other.toml",
        "[[users]]\nusername = 'new@example.com'\n"
        "[[objects]]\nname = 'Other__c'\nkey_prefix = '001'\n"
        "fields = [{name = 'Name', type = 'string'}]\n",
    )
    with pytest.raises(EmulatorProblem, match="key prefix 001 belongs to Account"):
        EmulatorServer(data, seed=seed, org_id="00DSB0000000002")
    with EmulatorServer(data) as emulator:
        assert (emulator.access_token, emulator.tenant_id) == before
        assert emulator.bus.position(published.replay_id) is not None
        assert emulator.accounts.user("new@example.com") is None
