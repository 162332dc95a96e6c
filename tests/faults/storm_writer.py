"""Makes random changes in an org through REST, for storms. A seed determines the changes.

Shares no code with the client: requests are made with the standard library.
"""

from __future__ import annotations

import http.client
import json
import random
import string
import threading
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import date, timedelta
from typing import Any

from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.server import EmulatorServer
from tests.faults.storm_org import CREDENTIALS, OBJECTS, OVERFLOW

# Maximum number of records per request (Salesforce documentation).
_MOST = 200

# Maximum number of fields that one change sets; objects have about forty.
_FIELDS = 6

# Relative frequency of each kind of change. A change of several records counts once per record.
WEIGHTS = {
    "create": 8, "create_many": 1, "update": 30, "null": 10, "text": 10, "part": 8,
    "same_for_many": 2, "other_for_many": 2,
    "delete": 8, "delete_many": 1, "undelete": 6, "purge": 1,
}  # fmt: skip


class Refusal(Exception):  # noqa: N818  # an expected response rather than an error
    """The org refused a request."""


class Rest:
    """Makes REST requests, and signs in again when the session has expired. Not thread-safe."""

    def __init__(self, url: str) -> None:
        self._host = url.removeprefix("http://")
        self._token = ""

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Make a request, and return the JSON of the response.

        Args:
            method: HTTP method.
            path: An absolute path, or a path relative to that of the REST API.
            body: Content, which is sent as JSON.

        Raises:
            Refusal: The status is 400 or higher.
        """
        full = path if path.startswith("/") else f"/services/data/v60.0/{path}"
        for _ in range(50):  # a storm often expires sessions
            if not self._token:
                self._token = self._sign_in()
            status, answer = self._request(method, full, body)
            if status != 401:
                break
            self._token = ""
        if status >= 400:
            raise Refusal(f"{method} {path}: {status} {answer}")
        return answer

    def _sign_in(self) -> str:
        form = urllib.parse.urlencode({"grant_type": "client_credentials", **CREDENTIALS})
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        _, answer = self._send("POST", "/services/oauth2/token", form, headers)
        return str(answer["access_token"])

    def _request(self, method: str, path: str, body: object) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        return self._send(method, path, None if body is None else json.dumps(body), headers)

    def _send(
        self, method: str, path: str, text: str | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        # A new connection: a reused one could be closed by the server at the same moment, and then
        # it would be unknown whether the org has executed the request.
        connection = http.client.HTTPConnection(self._host, timeout=300)
        with closing(connection):
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            content = answer.read()
        return answer.status, json.loads(content) if content else None


class Writer(threading.Thread):
    """Makes random changes through REST until it reaches a goal, which the caller can raise.

    The changes depend only on the seed, provided that nothing else changes the org.

    Args:
        emulator: A running emulator.
        seed: Seed of the changes.
        weights: Relative frequency of each kind of change; None for `WEIGHTS`.
        pace: Seconds between two requests.
        objects: Objects whose records are changed.
        overflows: Whether some transactions change so many records that they overflow.
    """

    def __init__(
        self,
        emulator: EmulatorServer,
        seed: int,
        *,
        weights: dict[str, int] | None = None,
        pace: float = 0.0,
        objects: Sequence[str] = OBJECTS,
        overflows: bool = True,
    ) -> None:
        super().__init__(name="writer", daemon=True)
        self.made: Counter[str] = Counter()
        """Number of changes, by kind."""
        self.changes = 0
        self.purged: set[str] = set()
        """Ids of the records that were deleted without an event."""
        self.deleted: set[str] = set()
        """Ids of all records that were ever deleted, with or without an event."""
        self.failure: BaseException | None = None
        self._emulator = emulator
        self._rng = random.Random(seed)
        self._weights = dict(WEIGHTS if weights is None else weights)
        self._pace = pace
        self._overflows = overflows
        self._rest = Rest(emulator.http_url)
        self._live: dict[str, list[str]] = {name: [] for name in objects}
        self._binned: dict[str, list[str]] = {name: [] for name in objects}
        self._texts: dict[str, str] = {}
        self._fields = {name: _writable(emulator.records.describe(name)) for name in objects}
        self._goal = 0
        self._ending = False
        self._acts: deque[tuple[int, Callable[[], None]]] = deque()
        self.absent: set[str] = set()
        """Objects that are not in the org at the moment, and are left alone."""
        self._changed = threading.Condition()  # guards `_goal` and `_ending`

    def fill(self, records: int) -> None:
        """Create the initial records before the storm, divided equally among the objects."""
        user = self._emulator.accounts.holder("")
        for name in self._fields:
            left = records // len(self._fields)
            while left > 0:
                with self._emulator.records.transaction(user) as changing:
                    for _ in range(min(_MOST, left)):
                        self._live[name].append(changing.create(name, self._new(name)))
                left -= _MOST

    def plan(self, changes: int, act: Callable[[], None]) -> None:
        """Do something in the writer's thread once it has made this number of changes, so that the
        seed determines between which changes it happens. Plan before `start`.
        """
        self._acts = deque(sorted([*self._acts, (changes, act)], key=lambda each: each[0]))

    def learn(self, name: str) -> None:
        """Set the fields that an object has by now from here on."""
        self._fields[name] = _writable(self._emulator.records.describe(name))

    def some(self, name: str, count: int) -> list[str]:
        """Return the ids of some records of an object, at most *count*."""
        ids = self._live[name]
        return self._rng.sample(ids, min(len(ids), count))

    def raise_goal(self, goal: int) -> None:
        """Raise the goal to a total of *goal* changes, unless it is already higher."""
        with self._changed:
            self._goal = max(goal, self._goal)
            self._changed.notify_all()

    def finish(self, patience: float) -> None:
        """Wait until the goal is reached, and end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self.join(patience)
        if self.failure is not None or self.is_alive():
            raise RuntimeError(f"the writer failed: {self.failure!r}") from self.failure

    def run(self) -> None:
        try:
            while self._wait_for_goal():
                self._act()
                self.step()
            self._act()
        except Exception as error:  # noqa: BLE001  # raised by `finish`
            self.failure = error

    def step(self) -> None:
        """Make one request with a random change."""
        kinds = list(self._weights)
        (kind,) = self._rng.choices(kinds, [self._weights[each] for each in kinds])
        self.step_of(kind)

    def step_of(self, kind: str) -> None:
        """Make one request with a random change of the given kind."""
        name = self._rng.choice([name for name in self._fields if name not in self.absent])
        before = self.changes
        getattr(self, f"_do_{kind}")(name)
        self.made[kind] += self.changes - before

    def _wait_for_goal(self) -> bool:
        """Pause, then wait until there are changes left to make; return False once the run has
        ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ending, timeout=self._pace)
            self._changed.wait_for(lambda: self._ending or self.changes < self._goal)
            return self.changes < self._goal

    def _act(self) -> None:
        while self._acts and self._acts[0][0] <= self.changes:
            self._acts.popleft()[1]()

    # Kinds of changes. If there is no record to change, one is created instead.

    def _do_create(self, name: str) -> None:
        answer = self._rest.ask("POST", f"sobjects/{name}", self._new(name))
        self._live[name].append(answer["id"])
        self.changes += 1

    def _do_create_many(self, name: str) -> None:
        count = self._rng.randint(2, 30)
        rows = [{"attributes": {"type": name}, **self._new(name)} for _ in range(count)]
        for found in self._collection("POST", rows):
            self._live[name].append(found)

    def _do_update(self, name: str) -> None:
        self._change_one(name, lambda _: self._some(name))

    def _do_null(self, name: str) -> None:
        free = [each.name for each in self._fields[name] if each.nillable]
        chosen = self._rng.sample(free, self._rng.randint(1, _FIELDS))
        self._change_one(name, lambda _: dict.fromkeys(chosen))

    def _do_part(self, name: str) -> None:
        parts = [each.name for each in self._fields[name] if each.compound and each.nillable]
        if not parts:
            return self._do_update(name)
        chosen = self._rng.sample(parts, self._rng.randint(1, 3))
        by_name = {each.name: each for each in self._fields[name]}
        return self._change_one(
            name, lambda _: {part: self._value(by_name[part]) for part in chosen}
        )

    def _do_text(self, name: str) -> None:
        """Change one line of a long text field; the service sends such a change as a diff."""
        field = "Notes__c" if name == "Order__c" else "Description"

        def changed(record_id: str) -> dict[str, Any]:
            lines = self._texts.get(record_id, "").splitlines()
            if len(lines) < 20:
                lines = [self._word(60) for _ in range(30)]
            lines[self._rng.randrange(len(lines))] = self._word(60)
            self._texts[record_id] = "\n".join(lines)
            return {field: self._texts[record_id]}

        # Only among a few records, so that most of them already have a text.
        self._change_one(name, changed, among=10)

    def _do_same_for_many(self, name: str) -> None:
        value = self._some(name)
        for each in self._fields[name]:  # unique values cannot be shared
            if each.unique:
                value.pop(each.name, None)
        self._change_many(name, lambda: value)

    def _do_other_for_many(self, name: str) -> None:
        self._change_many(name, lambda: self._some(name))

    def _do_delete(self, name: str) -> None:
        record_id = self._chosen(name, self._live)
        if record_id is None:
            return self._do_create(name)
        self.deleted.add(record_id)
        self._rest.ask("DELETE", f"sobjects/{name}/{record_id}")
        self._binned[name].append(record_id)
        self.changes += 1
        return None

    def _do_delete_many(self, name: str) -> None:
        ids = self._sample(name, 2, 15)
        self.deleted.update(ids)
        for found in self._collection("DELETE", ids):
            self._live[name].remove(found)
            self._binned[name].append(found)

    def _do_undelete(self, name: str) -> None:
        record_id = self._chosen(name, self._binned)
        if record_id is None:
            return self._do_create(name)
        self._rest.ask("POST", "/admin/undelete", {"object": name, "id": record_id})
        self._live[name].append(record_id)
        self.changes += 1
        return None

    def _do_purge(self, name: str) -> None:
        """Delete a record permanently, without an event."""
        record_id = self._chosen(name, self._live)
        if record_id is None:
            return self._do_create(name)
        self.deleted.add(record_id)
        self._emulator.records.purge(record_id)
        self.purged.add(record_id)
        self.changes += 1
        return None

    # Helpers of the changes.

    def _change_one(
        self, name: str, values: Callable[[str], dict[str, Any]], among: int | None = None
    ) -> None:
        if not self._live[name]:
            return self._do_create(name)
        record_id = self._rng.choice(self._live[name][:among])
        given = values(record_id)
        if {"Notes__c", "Description"} & given.keys() and record_id in self._texts:
            self._texts[record_id] = given.get("Notes__c", given.get("Description")) or ""
        self._rest.ask("PATCH", f"sobjects/{name}/{record_id}", given)
        self.changes += 1
        return None

    def _change_many(self, name: str, value: Callable[[], dict[str, Any]]) -> None:
        is_large = self._rng.random() >= 0.66
        least, most = (OVERFLOW, _MOST) if is_large and self._overflows else (2, 40)
        rows = [
            {"attributes": {"type": name}, "id": record_id, **value()}
            for record_id in self._sample(name, least, most)
        ]
        for row in rows:
            self._texts.pop(row["id"], None)
        self._collection("PATCH", rows)

    def _collection(self, method: str, rows: Sequence[Any]) -> list[str]:
        """Create, update or delete records in one transaction, by *method*; return their ids."""
        if not rows:
            return []
        path, body = "composite/sobjects", {"allOrNone": False, "records": rows}
        if method == "DELETE":
            answer = self._rest.ask(method, f"{path}?ids={','.join(rows)}")
        else:
            answer = self._rest.ask(method, path, body)
        found = [each["id"] for each in answer if each["success"]]
        if len(found) != len(rows):
            raise Refusal(f"{method} {path}: {answer}")
        self.changes += len(found)
        return found

    def _chosen(self, name: str, among: dict[str, list[str]]) -> str | None:
        ids = among[name]
        if not ids:
            return None
        number = self._rng.randrange(len(ids))
        ids[number], ids[-1] = ids[-1], ids[number]
        return ids.pop()

    def _sample(self, name: str, least: int, most: int) -> list[str]:
        ids = self._live[name]
        return self._rng.sample(ids, min(len(ids), self._rng.randint(least, most)))

    # Values.

    def _new(self, name: str) -> dict[str, Any]:
        needed = {each.name: self._value(each) for each in self._fields[name] if not each.nillable}
        return {**self._some(name), **needed}

    def _some(self, name: str) -> dict[str, Any]:
        count = self._rng.randint(1, _FIELDS)
        return {
            each.name: self._value(each) for each in self._rng.sample(self._fields[name], count)
        }

    def _value(self, field: Field) -> Any:
        rng = self._rng
        if field.unique:
            return f"x{rng.getrandbits(60):015x}"
        if field.type in ("picklist", "multipicklist") and field.picklist_values:
            many = field.type == "multipicklist"
            chosen = rng.sample(field.picklist_values, rng.randint(1, 2) if many else 1)
            return ";".join(chosen)
        if field.is_number:
            if field.type == "int":
                return rng.randint(-5, 100_000)
            # Few enough digits for a double, the type in events.
            return rng.randint(-(10**9), 10**9) / 10 ** min(field.scale, 6)
        day = date(1999, 12, 25) + timedelta(days=rng.randrange(15_000))
        return {
            "boolean": lambda: rng.random() < 0.5,
            "date": day.isoformat,
            "datetime": lambda: f"{day}T{rng.randrange(24):02}:15:30.{rng.randrange(1000):03}Z",
            "time": lambda: f"{rng.randrange(24):02}:{rng.randrange(60):02}:00.000Z",
        }.get(field.type, lambda: self._word(min(field.length, rng.choice((3, 12, 30)))))()

    def _word(self, length: int) -> str:
        letters = string.ascii_letters + string.digits + "äß '\"\\,;%"
        return "".join(self._rng.choices(letters, k=length)).strip() or "x"


def _writable(of: SObject) -> list[Field]:
    """Return the fields that a client may set, except references, whose targets may be deleted."""
    return [
        each
        for each in of.fields
        if each.updateable and each.is_stored and each.type not in ("reference", "name")
    ]
