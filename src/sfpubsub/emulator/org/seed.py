"""The initial contents of an emulator, read from a TOML file.

    [org]                               # optional
    id = "00DSB0000000001"              # 15 characters

    [settings]                          # optional; names and values of settings.Settings
    keepalive_s = 5.0

    [[topics]]
    name = "/event/Order_Event__e"
    schema = '{"type": "record", …}'    # Avro as JSON text, or
    schema_file = "order.avsc"          # a path, relative to the seed
    can_publish = true                  # optional; default: true for /event/, false for /data/
    can_subscribe = true                # optional; default true

    [[objects]]                         # their records can be changed over REST
    name = "Order__c"
    key_prefix = "a00"                  # the prefix of its record ids
    fields = [{name = "Name", type = "string"}]  # and more: docs/reference/emulator-records.md

    [[channels]]                        # a topic that combines other topics
    name = "/data/ChangeEvents"
    topics = ["/data/AccountChangeEvent"]

    [[managed_subscriptions]]
    developer_name = "My_Managed_Subscription"
    topic = "/event/Order_Event__e"
    label = "…"                         # optional
    default_replay = "EARLIEST"         # optional; LATEST or EARLIEST, default LATEST
    error_recovery_replay = "EARLIEST"  # optional; as above
    state = "RUN"                       # optional; RUN or STOP, default RUN

    [[users]]                           # who can sign in; see also the defaults below
    username = "user@example.com"
    password = "…"                      # optional; followed by the security token, if any
    active = true                       # optional; default true
    view_all = true                     # optional; default true: sees records of other users

    [[apps]]                            # connected apps
    client_id = "…"
    client_secret = "…"                 # optional
    run_as = "user@example.com"         # optional: user of the client credentials flow
    refresh_token = "…"                 # optional: a token for that user
    public_key = "-----BEGIN …"         # optional: for the JWT bearer flow; PEM, or
    public_key_file = "app.pem"         # a path, relative to the seed

    [[events]]                          # published when the data directory is new
    topic = "/event/Order_Event__e"
    payload = {Order_Number__c = "1"}   # TOML has no null: leave the field out; or
    payload_json = '{"City__c": null}'  # JSON text

An org with neither users nor apps gets a default user and a default app.

A seed is checked completely before anything is stored. Applying it twice changes nothing: topics,
objects, channels, users and apps are created or updated to match the file; managed subscriptions
and events are created once for each data directory.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfpubsub.emulator.org.accounts import check_public_key
from sfpubsub.emulator.org.lexical import DEVELOPER_NAME
from sfpubsub.emulator.org.problems import EmulatorProblem, SeedError
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.schemas import change_schema
from sfpubsub.emulator.org.schemas import Schema, SchemaProblem
from sfpubsub.emulator.org.sessions import ORG_ID
from sfpubsub.emulator.org.settings import Settings

DEFAULT_SEED = Path(__file__).with_name("default_seed.toml")
"""The seed that is used if none is given."""

_TOPIC_NAME = re.compile(r"/(event|data)/\w+")

# Types of a table's required keys, and of its optional keys.
_TABLES: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "topics": (
        {"name": str},
        {"schema": str, "schema_file": str, "can_publish": bool, "can_subscribe": bool},
    ),
    "objects": (
        {"name": str, "key_prefix": str, "fields": list},
        {"label": str, "plural": str, "change_events": bool, "archivable": bool},
    ),
    "channels": ({"name": str, "topics": list}, {}),
    "managed_subscriptions": (
        {"developer_name": str, "topic": str},
        {"label": str, "default_replay": str, "error_recovery_replay": str, "state": str},
    ),
    "events": ({"topic": str}, {"payload": dict, "payload_json": str}),
    "users": ({"username": str}, {"password": str, "active": bool, "view_all": bool}),
    "apps": (
        {"client_id": str},
        {
            "client_secret": str,
            "run_as": str,
            "refresh_token": str,
            "public_key": str,
            "public_key_file": str,
        },
    ),
}
_CHOICES = {
    "default_replay": ("LATEST", "EARLIEST"),
    "error_recovery_replay": ("LATEST", "EARLIEST"),
    "state": ("RUN", "STOP"),
}


@dataclass(frozen=True)
class Seed:
    """The checked contents of a seed file.

    Attributes:
        org_id: The org's 15-character id; blank for the default id.
        settings: Values for `Settings`, by name.
        topics: For each topic, including those of objects: name, schema, whether clients can
            publish, whether clients can subscribe.
        objects: The objects of the org.
        channels: For each channel: name, names of its topics.
        managed: For each managed subscription: arguments of `ManagedSubscriptions.create`.
        events: For each event: topic, values by field name.
        users: For each user: arguments of `Accounts.put_user`.
        apps: For each app: arguments of `Accounts.put_app`.
    """

    org_id: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    topics: tuple[tuple[str, Schema, bool, bool], ...] = ()
    channels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    managed: tuple[Mapping[str, Any], ...] = ()
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    users: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    apps: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    objects: tuple[SObject, ...] = ()


def load(path: Path) -> Seed:
    """Read and check a seed file.

    Raises:
        SeedError: The file cannot be read, or its contents are not valid.
    """
    return _Reader(path).seed()


class _Reader:
    """Reads and checks one seed file. Every error message names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def seed(self) -> Seed:
        document = self._document()
        unknown = set(document) - {"org", "settings", *_TABLES}
        if unknown:
            known = ", ".join(["org", "settings", *_TABLES])
            raise self._error(f"unknown tables: {_names(unknown)}", f"valid tables are {known}")
        rows = {name: self._rows(name, document.get(name, [])) for name in _TABLES}
        topics = tuple(self._topic(row) for row in rows["topics"])
        objects = tuple(self._object(row) for row in rows["objects"])
        self._unique("object", [item.name for item in objects])
        self._unique("key prefix", [item.key_prefix for item in objects])
        topics += tuple(
            (item.topic, Schema(change_schema(item).text), False, True)
            for item in objects
            if item.change_events
        )
        names = [item[0] for item in topics]
        channels = tuple(self._channel(row, names) for row in rows["channels"])
        names += [item[0] for item in channels]
        self._unique("topic", names)
        managed = tuple(self._managed(row, names) for row in rows["managed_subscriptions"])
        self._unique("managed subscription", [str(row["developer_name"]) for row in managed])
        schemas = {name: schema for name, schema, *_ in topics}
        events = tuple(
            self._event(number, row, schemas) for number, row in enumerate(rows["events"], start=1)
        )
        for table, key in (("users", "username"), ("apps", "client_id")):
            for number, row in enumerate(rows[table], start=1):
                if not row[key].strip():
                    raise self._error(f"[[{table}]] entry {number} has a blank {key}", "fill it in")
        users = tuple(rows["users"])
        self._unique("user", [str(row["username"]) for row in users])
        apps = tuple(self._app(row, users) for row in rows["apps"])
        self._unique("app", [str(row["client_id"]) for row in apps])
        return Seed(
            self._org(document.get("org", {})),
            self._settings(document.get("settings", {})),
            topics,
            channels,
            managed,
            events,
            users,
            apps,
            objects,
        )

    def _document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = tomllib.loads(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise self._error(error.strerror or "cannot be read", "use another file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self._error(
                f"the file is not valid TOML: {error}", "correct the syntax"
            ) from error
        return document

    def _rows(self, table: str, rows: object) -> list[dict[str, Any]]:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._error(f"{table} is not an array of tables", f"write [[{table}]]")
        needed, optional = _TABLES[table]
        for number, row in enumerate(rows, start=1):
            what = f"[[{table}]] entry {number}{_called(row)}"
            unknown = set(row) - set(needed) - set(optional)
            if unknown:
                known = ", ".join([*needed, *optional])
                raise self._error(
                    f"{what} has unknown keys: {_names(unknown)}", f"valid keys are {known}"
                )
            for key, kind in {**needed, **optional}.items():
                if key not in row and key in needed:
                    raise self._error(f"{what} has no {key}", f"add {key} = …")
                if key in row and not isinstance(row[key], kind):
                    raise self._error(
                        f"{what}: {key} is not of type {kind.__name__}", "correct the value"
                    )
                if key in row and key in _CHOICES and row[key] not in _CHOICES[key]:
                    choices = " or ".join(_CHOICES[key])
                    raise self._error(
                        f"{what}: {key} has the invalid value {row[key]!r}", f"use {choices}"
                    )
        return rows

    def _topic(self, row: dict[str, Any]) -> tuple[str, Schema, bool, bool]:
        name = self._topic_name(row["name"])
        if ("schema" in row) == ("schema_file" in row):
            raise self._error(
                f"topic {name} must have one schema", "set exactly one of schema and schema_file"
            )
        text = row.get("schema")
        if text is None:
            text = self._beside(f"topic {name}", row, "schema_file")
        try:
            schema = Schema(text)
        except SchemaProblem as error:
            raise self._error(f"topic {name}: {error}", "correct the schema") from error
        can_publish = row.get("can_publish", name.startswith("/event/"))
        return name, schema, can_publish, row.get("can_subscribe", True)

    def _object(self, row: dict[str, Any]) -> SObject:
        try:
            return SObject(row)
        except ValueError as error:
            raise self._error(f"object {row['name']}: {error}", "correct the object") from error

    def _channel(self, row: dict[str, Any], topics: list[str]) -> tuple[str, tuple[str, ...]]:
        name = self._topic_name(row["name"])
        for member in row["topics"]:
            if member not in topics:
                raise self._error(
                    f"channel {name}: there is no topic {member!r}", "add it to [[topics]]"
                )
        return name, tuple(dict.fromkeys(row["topics"]))

    def _managed(self, row: dict[str, Any], topics: list[str]) -> dict[str, Any]:
        name = row["developer_name"]
        if not DEVELOPER_NAME.fullmatch(name):
            raise self._error(
                f"managed subscription {name!r}: the developer name is not valid",
                "use letters, digits and single underscores, beginning with a letter",
            )
        if row["topic"] not in topics:
            raise self._error(
                f"managed subscription {name}: there is no topic {row['topic']!r}",
                "add it to [[topics]]",
            )
        return row

    def _event(
        self, number: int, row: dict[str, Any], schemas: dict[str, Schema]
    ) -> tuple[str, Mapping[str, Any]]:
        what, topic = f"[[events]] entry {number}", row["topic"]
        if topic not in schemas:
            raise self._error(f"{what}: there is no topic {topic!r}", "add it to [[topics]]")
        if ("payload" in row) == ("payload_json" in row):
            raise self._error(what, "set exactly one of payload and payload_json")
        try:
            values = row["payload"] if "payload" in row else json.loads(row["payload_json"])
        except json.JSONDecodeError as error:
            raise self._error(
                f"{what}: payload_json is not valid JSON: {error}", "correct the JSON"
            ) from error
        if not isinstance(values, dict):
            raise self._error(f"{what}: payload_json is not a JSON object", "write {…}")
        try:
            schemas[topic].encode(values, 0.0)
        except SchemaProblem as error:
            raise self._error(f"{what} for {topic}: {error}", "correct the payload") from error
        return topic, values

    def _app(self, row: dict[str, Any], users: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        what = f"app {row['client_id']}"
        if row.get("run_as", "") not in ("", *(user["username"] for user in users)):
            raise self._error(f"{what}: there is no user {row['run_as']!r}", "add it to [[users]]")
        if "refresh_token" in row and not row.get("run_as"):
            raise self._error(f"{what}: refresh_token requires run_as", "add run_as")
        if "public_key" in row and "public_key_file" in row:
            raise self._error(what, "set either public_key or public_key_file, not both")
        if "public_key_file" in row:
            row = {**row, "public_key": self._beside(what, row, "public_key_file")}
            del row["public_key_file"]
        if row.get("public_key"):
            try:
                check_public_key(row["public_key"])
            except EmulatorProblem as error:
                raise self._error(f"{what}: {error}", "correct the key") from error
        return row

    def _beside(self, what: str, row: dict[str, Any], key: str) -> str:
        """Return the text of the file whose path, relative to the seed file, is `row[key]`."""
        file = self._path.parent / str(row[key])
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._error(f"{what}: cannot read {file}: {error}", f"correct {key}") from error

    def _topic_name(self, name: str) -> str:
        if not _TOPIC_NAME.fullmatch(name):
            raise self._error(
                f"topic {name!r}: the name is not valid", "name it /event/… or /data/…"
            )
        return name

    def _org(self, org: object) -> str:
        if not isinstance(org, dict) or set(org) - {"id"}:
            raise self._error("[org] may contain only the key id", 'write id = "00D…"')
        org_id = org.get("id", "")
        if org_id and not (isinstance(org_id, str) and ORG_ID.fullmatch(org_id)):
            raise self._error(
                f"[org]: {org_id!r} is not a valid id", "write 15 characters that begin with 00D"
            )
        return str(org_id)

    def _settings(self, values: object) -> Mapping[str, Any]:
        if not isinstance(values, dict):
            raise self._error("settings must be a table", "write [settings]")
        try:
            Settings.from_mapping(values)
        except ValueError as error:
            raise self._error(f"[settings]: {error}", "correct the setting") from error
        return values

    def _unique(self, what: str, names: list[str]) -> None:
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise self._error(f"duplicate {what}: {_names(twice)}", "keep only one of each")

    def _error(self, what: str, remedy: str) -> SeedError:
        text = f"seed {self._path}: {what}: {remedy}"
        return SeedError(" ".join(text.split()))  # a parser's message may have several lines


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _called(row: Mapping[str, Any]) -> str:
    keys = ("name", "developer_name", "topic", "username", "client_id")
    name = next((row[key] for key in keys if key in row), None)
    return f" ({name})" if isinstance(name, str) else ""
