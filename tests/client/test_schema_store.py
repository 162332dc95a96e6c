"""Tests of schemas stored on disk: each is stored completely or not at all, and the store is asked
before the service.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from sfpubsub import FileSchemaStore, SchemaStore
from sfpubsub.auth.session import Session
from sfpubsub.avro.schema_cache import SchemaCache, schema_id_of
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.errors import ConfigurationError, SchemaError
from sfpubsub.protocol.events import Response
from sfpubsub.transports.base import Transport
from sfpubsub.transports.channel import GrpcTransport, open_channel
from sfpubsub.types import SchemaInfo

from ..conftest import PATIENCE
from .test_managed import NAME, TOPIC, collect, orders


def schema(name: str, *fields: str) -> str:
    """Return the JSON of an Avro record schema with optional text *fields*."""
    columns = [{"name": field, "type": ["null", "string"], "default": None} for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": columns})


ORDER = schema("Order_Event__e", "Order_Number__c")
ORDER_ID = schema_id_of(ORDER)


def file_names(store: FileSchemaStore) -> list[str]:
    """Return the names of the store's files, sorted."""
    return sorted(path.name for path in store.directory.iterdir())


def test_stored_schemas_are_found_by_a_new_store(tmp_path):
    """A new store finds the schemas that another one wrote to the same directory.

    The first `put` creates the directory, each schema has its own file, and `get` returns None for
    an unknown id.
    """
    store = FileSchemaStore(tmp_path / "deep" / "schemas")
    assert store.get("a") is None
    store.put("a", ORDER)
    store.put("b", "not even JSON \u2028 é")
    again = FileSchemaStore(tmp_path / "deep" / "schemas")
    assert (again.get("a"), again.get("b")) == (ORDER, "not even JSON \u2028 é")
    assert len(file_names(store)) == 2


@pytest.mark.parametrize(
    "ids",
    [
        ("i8wgJwwM-AVcDbFkbRl5Nw", "I8wgJwwM-AVcDbFkbRl5Nw"),
        ("a_b", "a.b"),
        ("../../x", ".._.._x"),
        ("", "x" * 300),
        ("x" * 300, "x" * 301),
        ("nul", "\0"),
    ],
)
def test_ids_never_share_a_file_even_if_case_is_ignored(tmp_path, ids):
    """Ids that differ only in case are stored in separate files, and no id leads out of the
    directory.
    """
    store = FileSchemaStore(tmp_path)
    for schema_id in ids:
        store.put(schema_id, schema_id * 2)
    assert [store.get(schema_id) for schema_id in ids] == [schema_id * 2 for schema_id in ids]
    assert len({name.casefold() for name in file_names(store)}) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("Order_Number", "Order_Namber"),
        lambda text: "[]",
        lambda text: '{"check": 1, "schema": 2}',
        lambda text: text.replace("{", "\xff", 1),
    ],
)
def test_damaged_file_is_detected_and_fetched_again(tmp_path, caplog, damage):
    """A stored schema whose file was changed is fetched again, because a wrong schema would
    silently decode to garbage.
    """
    store = FileSchemaStore(tmp_path)
    store.put(ORDER_ID, ORDER)
    (file,) = tmp_path.iterdir()
    file.write_text(damage(file.read_text()), encoding="latin-1")
    assert store.get(ORDER_ID) is None
    assert "is damaged" in caplog.text
    calls = []
    cache = SchemaCache(lambda id_: calls.append(id_) or SchemaInfo(id_, ORDER), store=store)
    assert cache.get(ORDER_ID).name == "Order_Event__e"
    assert calls == [ORDER_ID]
    assert FileSchemaStore(tmp_path).get(ORDER_ID) == ORDER


def test_file_copied_from_another_schema_is_not_used(tmp_path):
    """A file is valid only for the id under which it was stored."""
    store = FileSchemaStore(tmp_path)
    store.put("a", ORDER)
    (of_a,) = tmp_path.iterdir()
    store.put("b", schema("Other__e"))
    (of_b,) = set(tmp_path.iterdir()) - {of_a}
    of_b.write_bytes(of_a.read_bytes())
    assert store.get("b") is None


def test_threads_may_share_a_directory(tmp_path):
    """Threads that share a directory find either no schema or a complete one, and leave no
    temporary file.
    """
    wrong = []

    def work():
        store = FileSchemaStore(tmp_path)
        for n in range(20):
            store.put(f"s{n % 3}", ORDER)
            wrong.extend(x for x in range(3) if store.get(f"s{x}") not in (None, ORDER))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []
    assert len(list(tmp_path.iterdir())) == 3, "no draft is left behind"


def test_kill_leaves_every_stored_schema_intact(tmp_path):
    """After SIGKILL, each schema whose `put` had returned is intact, and one that was being written
    is complete or missing.
    """
    code = (
        "import sys; from sfpubsub import FileSchemaStore\n"
        "store = FileSchemaStore(sys.argv[1])\n"
        "for n in range(1 << 20):\n"
        "    store.put(str(n), '{}' * 1000)\n"
        "    print(n, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process.stdout:
        done = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        done += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait(PATIENCE)
    store = FileSchemaStore(tmp_path)
    assert all(store.get(str(n)) == "{}" * 1000 for n in done)
    assert store.get(str(done[-1] + 1)) in (None, "{}" * 1000)


def test_unusable_directory_raises_an_error_that_names_it(tmp_path):
    """Storing or reading a schema in an unusable directory raises an error instead of failing
    silently.
    """
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file"):
        FileSchemaStore(tmp_path / "file").put("a", ORDER)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        FileSchemaStore(tmp_path / "file").get("a")


class RecordingStore(SchemaStore):
    """An application's schema store that records calls to it."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.log: list[str] = []

    def get(self, schema_id: str) -> str | None:
        self.log.append(f"get {schema_id}")
        return self.kept.get(schema_id)

    def put(self, schema_id: str, schema_json: str) -> None:
        self.log.append(f"put {schema_id}")
        self.kept[schema_id] = schema_json


def test_cache_asks_the_store_before_the_service():
    """Only a schema that is not in the store is fetched, and then stored.

    A schema that is already cached is looked up in neither the store nor the service.
    """
    shelf = RecordingStore()

    def fetch(schema_id):
        shelf.log.append("fetch ORDER")
        return SchemaInfo(schema_id, ORDER)

    for _ in range(2):
        cache = SchemaCache(fetch, store=shelf)
        assert cache.get(ORDER_ID) is cache.get(ORDER_ID)
    log = [entry.replace(ORDER_ID, "ORDER") for entry in shelf.log]
    assert log == ["get ORDER", "fetch ORDER", "put ORDER", "get ORDER"]


def test_stored_schema_that_is_invalid_is_fetched_again():
    """An invalid schema in the store is replaced by the service's.

    An invalid schema from the service raises an error and is not stored.
    """
    shelf = RecordingStore()
    shelf.kept[ORDER_ID] = "{"
    assert SchemaCache(lambda id_: SchemaInfo(id_, ORDER), store=shelf).get(ORDER_ID).name
    assert shelf.kept == {ORDER_ID: ORDER}
    with pytest.raises(SchemaError):
        SchemaCache(lambda id_: SchemaInfo(id_, "{"), store=shelf).get("b")
    assert "b" not in shelf.kept


def test_schema_id_is_the_md5_of_the_canonical_form():
    """The canonical form has full names and no docs or defaults.

    The id is base64url without padding.
    """
    text = (
        '{"type": "record", "doc": "x", "namespace": "com.sforce.eventbus", "name": "A__e",'
        ' "fields": [{"doc": "Data:Text", "type": ["null", "string"], "name": "B__c",'
        ' "default": null}]}'
    )
    canonical = (
        '{"name":"com.sforce.eventbus.A__e","type":"record",'
        '"fields":[{"name":"B__c","type":["null","string"]}]}'
    )
    digest = hashlib.md5(canonical.encode()).digest()
    assert schema_id_of(text) == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    with pytest.raises(SchemaError):
        schema_id_of("{")


class Renaming(Transport):
    """A service over another one, whose schema ids are no hashes.

    Args:
        inner: The transport of the service.
        lies: Number of GetSchema answers that are another event's schema.
    """

    def __init__(self, inner: Transport, *, lies: int = 0, rename: bool = True) -> None:
        self._inner = inner
        self.lies = lies
        self._suffix = "-v1" if rename else ""

    def open_stream(self, target, opening):
        call = self._inner.open_stream(target, opening)
        receive, read = call.receive, call.read

        def renamed(message):
            if not isinstance(message, Response):
                return message
            # Once only: with an old grpcio, `read` calls `receive`.
            found = [
                event._replace(schema_id=event.schema_id.removesuffix(self._suffix) + self._suffix)
                for event in message.events
            ]
            return message._replace(events=tuple(found))

        call.receive = lambda: renamed(receive())
        call.read = lambda received, ended: read(lambda each: received(renamed(each)), ended)
        return call

    def get_schema(self, schema_id):
        if self.lies:
            self.lies -= 1
            return SchemaInfo(schema_id, schema("Wrong__e", "Order_Number__c"))
        found = self._inner.get_schema(schema_id.removesuffix(self._suffix))
        return replace(found, schema_id=schema_id)

    def connect(self, timeout):
        self._inner.connect(timeout)

    def get_topic(self, name):
        return self._inner.get_topic(name)

    def open_publish(self, topic, opening, *, streamed):
        return self._inner.open_publish(topic, opening, streamed=streamed)

    def close(self):
        self._inner.close()


def through(emulator, **options) -> Renaming:
    """Return a transport to the emulator, whose schemas are changed on the way."""
    session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
    channel = open_channel(emulator.grpc_target, insecure="1")
    inner = GrpcTransport(channel, emulator.grpc_target, lambda: session.headers)
    return Renaming(inner, **options)


def test_service_whose_ids_are_no_hashes_loses_nothing(run_emulator, connect, tmp_path):
    """Everything is delivered and decoded; the mismatch is counted, and no schema is stored."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(20))
    store = FileSchemaStore(tmp_path / "schemas")
    client = connect(emulator, transport=through(emulator), schema_store=store)
    with client.subscribe_managed(NAME, on_undecodable="skip") as subscription:
        assert collect(subscription, 20) == list(range(20))
        health = subscription.health()
    assert (health.skipped, health.details["schema_id_mismatches"]) == (0, 1)
    assert not store.directory.exists()


def test_wrong_schema_is_not_used(run_emulator, connect, tmp_path):
    """One wrong GetSchema answer changes no value, in this process or in the next one."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(20))
    for lies in (1, 0):
        store = FileSchemaStore(tmp_path / "schemas")
        transport = through(emulator, lies=lies, rename=False)
        client = connect(emulator, transport=transport, schema_store=store)
        with client.subscribe(TOPIC, replay="earliest") as subscription:
            batch = subscription.next_batch(PATIENCE)
            assert {event.codec.name for event in batch} == {"Order_Event__e"}
            assert subscription.health().details["schema_id_mismatches"] == 0


def test_events_are_decoded_from_the_store_without_the_service(run_emulator, connect, tmp_path):
    """After a restart no GetSchema call is needed, even if the topic's schema has since changed."""
    plan = FaultPlan()
    emulator = run_emulator(faults=plan)
    emulator.publish(TOPIC, orders(2))
    changed = json.loads(emulator.bus.schema(emulator.bus.topic(TOPIC).schema_id).text)
    extra = {"name": "Extra__c", "type": ["null", "string"], "default": None}
    changed["fields"].append(extra)
    emulator.change_schema(TOPIC, json.dumps(changed))
    emulator.publish(TOPIC, [{"Order_Number__c": "2", "Extra__c": "new"}])

    def read() -> list[dict]:
        store = FileSchemaStore(tmp_path / "schemas")
        client = connect(emulator, schema_store=store)
        values: list[dict] = []
        with client.subscribe(TOPIC, replay="earliest") as subscription:
            while len(values) < 3:
                values += [event.value for event in subscription.next_batch(PATIENCE)]
            assert subscription.health().details["schema_id_mismatches"] == 0
        return values

    first = read()
    assert [value.get("Extra__c", "old") for value in first] == ["old", "old", "new"]
    assert len(list((tmp_path / "schemas").iterdir())) == 2
    fault = Fault("refuse", rpc="GetSchema", error_code="schema.meta.permission", times=100)
    plan.add(fault)
    assert read() == first
