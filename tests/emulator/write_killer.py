"""Kills an emulator at its n-th write, and checks what a restart finds.

    python -m tests.emulator.write_killer DIRECTORY writes LAST STEP     1, 1 + STEP, … up to LAST
    python -m tests.emulator.write_killer DIRECTORY files                the writes to other files
    python -m tests.emulator.write_killer DIRECTORY restores STEP        every STEP-th of a restore
    python -m tests.emulator.write_killer DIRECTORY moments COUNT SEED   COUNT random moments

A write is a statement that changes a database, a change of a directory, or half of an uploaded
file. A life of the emulator is its first start with TLS, and then changes of records, published
events and a Bulk API job. For each kill, this prints a JSON line with its write or moment, and what
was broken, lost or doubled. Lives run in forked processes, because importing takes longer.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme  # noqa: F401  # otherwise each life would import it

from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.records.job_store import ENDED, Job
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.store import Store
from sfpubsub.emulator.server import EmulatorServer

from .records.support import events as events_of
from .support import ACCOUNTS, MANAGED, ORDERS, until

ROWS = 210
"""Rows of the Bulk API job: two transactions."""

SEEDED = ("seed 1", "seed 2")
READS = ("SELECT", "PRAGMA", "--")
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.truncate")
"""Names of the audit events of a change of a directory or of a file's length."""


class EndedError(Exception):
    """The process of a life or check ended with an error."""


class Writes:
    """Counts the writes of this process, and kills it before the last one of a number."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self.files: list[int] = []
        """The numbers of the writes to other files than databases."""
        self._last = last
        self._lock = threading.Lock()
        connect = sqlite3.connect

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            made = connect(*arguments, **options)
            made.set_trace_callback(self._statement)
            return made

        sqlite3.connect = traced
        sys.addaudithook(self._audit)
        Path.write_bytes = lambda path, data: self._in_halves(path, data)  # type: ignore[assignment]

    def note(self) -> None:
        """Count a write that comes next; never return if it is the last."""
        with self._lock:
            self.count += 1
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)

    def _statement(self, sql: str) -> None:
        if not sql.lstrip().startswith(READS):
            self.note()

    def _audit(self, event: str, _arguments: Any) -> None:
        if event in CHANGES:
            self._note_file()

    def _in_halves(self, path: Path, data: bytes) -> int:
        half = len(data) // 2
        with path.open("wb") as file:
            for part in (data[:half], data[half:]):
                self._note_file()
                file.write(part)
                file.flush()
        self._note_file()
        return len(data)

    def _note_file(self) -> None:
        self.files.append(self.count + 1)
        self.note()


def set_seed(directory: Path) -> None:
    """Replace the seed of new directories in this process: two events are added."""
    path = directory / "seed.toml"
    more = "".join(
        f"\n[[events]]\ntopic = '{ORDERS}'\npayload = {{Order_Number__c = '{name}'}}\n"
        for name in SEEDED
    )
    path.write_text(seeds.DEFAULT_SEED.read_text() + more)
    seeds.DEFAULT_SEED = path


def rows() -> bytes:
    """Return the rows of the Bulk API job."""
    return "".join(["Name\n", *(f"row {number}\n" for number in range(ROWS))]).encode()


def live(directory: Path, told: Callable[[str, str], None]) -> None:
    """Live once; tell each success after it was acknowledged."""
    emulator = EmulatorServer(directory, tls=True)
    told("started", emulator.access_token)
    user = emulator.accounts.holder("")
    for number in range(4):
        emulator.publish(ORDERS, [{"Order_Number__c": f"order {number}"}])
        told("order", f"order {number}")
        made = emulator.records.create("Account", {"Name": f"record {number}"}, user, "")
        told("record", made)
        emulator.records.update("Account", made, {"Phone": "1"}, user, "")
        told("update", made)
    emulator.records.delete("Account", made, user, "")
    told("deletion", made)
    job = emulator.jobs.create(FACTS, user)
    told("job", job.job_id)
    emulator.jobs.upload(job, rows())
    told("upload", job.job_id)
    emulator.jobs.close(job)
    until(lambda: job.state in ENDED)
    told("end", job.job_id)
    emulator.records.create("Account", {"Name": "last record"}, user, "")
    emulator.stop()


FACTS = {
    "operation": "insert",
    "object": "Account",
    "columnDelimiter": "COMMA",
    "delimiter": ",",
    "lineEnding": "LF",
    "contentType": "CSV",
    "apiVersion": 67.0,
    "origin": "",
}


def check(directory: Path, told: dict[str, list[str]]) -> list[str]:
    """Start the emulator again, finish what a client would finish, and return what is wrong."""
    emulator = EmulatorServer(directory, tls=True)
    topics = {topic.name for topic in emulator.bus.topics()}
    known = seeds.load(seeds.DEFAULT_SEED)
    problems = [
        f"there is no topic {item[0]}"
        for item in (*known.topics, *known.channels)
        if item[0] not in topics
    ]
    if emulator.managed.get(MANAGED) is None:
        problems.append("there is no managed subscription")
    if told["started"] and not emulator._sessions.knows(told["started"][0]):
        problems.append("the token is not valid")
    orders = Counter(item["Order_Number__c"] for item in events_of(emulator, ORDERS))
    problems += wrong("event", orders, [*SEEDED, *told["order"]])
    problems += wrong_job(emulator, told)
    problems += wrong_records(emulator, told)
    emulator.publish(ORDERS, [{"Order_Number__c": "after"}])
    emulator.stop()
    return problems


def wrong(what: str, found: Counter[str], needed: list[str]) -> list[str]:
    """Return which of `needed` are missing, and what is there more than once."""
    lost = [f"{what} {one} is lost" for one in needed if one not in found]
    twice = [one for one, count in found.items() if count > 1]
    return lost + [f"{what} {one} is there {found[one]} times" for one in twice]


def wrong_job(emulator: EmulatorServer, told: dict[str, list[str]]) -> list[str]:
    """Finish the job as a client that retries would, and return what is wrong with it."""
    jobs = emulator.jobs.all(queries=False)
    if set(told["job"]) - {job.job_id for job in jobs}:
        return ["the job is lost"]
    for job in jobs:
        if job.state == "Open":
            _upload_again(emulator, job)
            emulator.jobs.close(job)
        until(lambda job=job: job.state in ENDED)
        done = emulator.jobs.stored.result(job, "successful", []).count
        if (job.state, done) != ("JobComplete", ROWS):
            return [f"the job has ended as {job.state} with {done} rows"]
    return []


def _upload_again(emulator: EmulatorServer, job: Job) -> None:
    try:
        emulator.jobs.upload(job, rows())
    except RecordProblem:  # the upload had been completed
        return


def wrong_records(emulator: EmulatorServer, told: dict[str, list[str]]) -> list[str]:
    """Return which records or change events are lost or doubled."""
    stored = emulator._store.rows("SELECT Id, Name, Phone, IsDeleted FROM rec_Account")
    problems = wrong("record", Counter(row[1] for row in stored), [])
    names = {row[1] for row in stored}
    if emulator.jobs.all(queries=False) and not {f"row {n}" for n in range(ROWS)} <= names:
        problems.append("rows of the job are lost")
    problems += wrong("record", Counter(row[0] for row in stored), told["record"])
    for kind, present, acknowledged in (
        ("CREATE", {row[0] for row in stored}, told["record"]),
        ("UPDATE", {row[0] for row in stored if row[2]}, told["update"]),
        ("DELETE", {row[0] for row in stored if row[3]}, told["deletion"]),
    ):
        found = Counter(
            one
            for event in events_of(emulator, ACCOUNTS)
            if event["ChangeEventHeader"]["changeType"] == kind
            for one in event["ChangeEventHeader"]["recordIds"]
        )
        problems += wrong(f"{kind} event of", found, [*present, *acknowledged])
        problems += [f"{kind} event of {one} tells what is not so" for one in set(found) - present]
    return problems


# A restore of a snapshot.


def prepare(directory: Path) -> int:
    """Make an org that has one event more than its snapshot; return its newest position."""
    emulator = EmulatorServer(directory)
    emulator.publish(ORDERS, [{"Order_Number__c": "kept"}])
    emulator.save("saved")
    emulator.publish(ORDERS, [{"Order_Number__c": "lost"}])
    emulator.stop()
    return emulator.bus.tip()


def restore(directory: Path, last: int) -> None:
    """Restore the snapshot in a process that is killed at a write."""
    Writes(last)
    store = Store(directory / "bus.sqlite3")
    store.restore(directory / "snapshots" / "saved.sqlite3", time.time())


def check_restored(directory: Path, tip: int) -> list[str]:
    """Return what is wrong with an org whose restore was killed."""
    emulator = EmulatorServer(directory)
    orders = [item["Order_Number__c"] for item in events_of(emulator, ORDERS)]
    problems = []
    if orders not in ([*SEEDED, "kept"], [*SEEDED, "kept", "lost"]):
        problems.append(f"a part was restored: {orders}")
    (made,) = emulator.publish(ORDERS, [{"Order_Number__c": "after"}])
    if (emulator.bus.position(made.replay_id) or 0) <= tip:
        problems.append("a replay id is used again")
    emulator.stop()
    return problems


# Processes.


def forked(work: Callable[[], object]) -> int:
    """Start `work` in a forked process, and return the process's id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def life(directory: Path, last: int, after_s: float | None) -> tuple[bool, dict[str, list[str]]]:
    """Run a life in a process; return whether it was killed, and what it told.

    Args:
        directory: Its directory, with the seed.
        last: The write at which it is killed; 0 for none.
        after_s: Seconds after which it is killed; None for never.
    """
    reading, writing = os.pipe()

    def tell(kind: str, value: str) -> None:
        os.write(writing, (json.dumps([kind, value]) + "\n").encode())

    def work() -> None:
        writes = Writes(last)
        live(directory, tell)
        for number in writes.files:
            tell("file", str(number))

    child = forked(work)
    os.close(writing)
    if after_s is not None:
        time.sleep(after_s)  # the moment of the kill
        os.kill(child, signal.SIGKILL)
    with open(reading) as lines:
        facts = [json.loads(line) for line in lines]
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGKILL):
        raise EndedError(f"the emulator ended with {status}")
    told: dict[str, list[str]] = defaultdict(list)
    for kind, value in facts:
        told[kind].append(value)
    return status != 0, told


def kill_once(directory: Path, at: float, last: int, after_s: float | None) -> bool:
    """Live and check in a new directory, and print what is wrong; return whether the life was
    killed. `last` and `after_s` are as for `life`, and `at` names the moment.
    """
    killed, told = life(directory, last, after_s)
    report(directory, at, killed, lambda: check(directory, told))
    return killed


def kill_restore(original: Path, directory: Path, tip: int, last: int) -> bool:
    """Kill a restore at a write, and print what is wrong; return whether it was killed."""
    shutil.copytree(original, directory)
    _, status = os.waitpid(forked(lambda: restore(directory, last)), 0)
    report(directory, last, status != 0, lambda: check_restored(directory, tip))
    return status != 0


def report(directory: Path, at: float, killed: bool, check: Callable[[], list[str]]) -> None:
    """Print the result of `check`, which runs in a process, and remove the directory."""
    reading, writing = os.pipe()
    child = forked(lambda: os.write(writing, json.dumps(check()).encode()))
    os.close(writing)
    with open(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    shutil.rmtree(directory, ignore_errors=True)
    problems = json.loads(text) if status == 0 else [f"the emulator does not start: {status}"]
    print(json.dumps({"at": at, "killed": killed, "problems": problems}), flush=True)


def main() -> None:
    """Run the command line."""
    directory, how, *numbers = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    set_seed(directory)
    data = directory / "data"
    if how == "writes":
        last, step = numbers
        for number in range(1, last, step):
            if not kill_once(data, number, number, None):
                return
    elif how == "files":
        _, told = life(data, 0, None)
        shutil.rmtree(data)
        for number in map(int, told["file"]):
            kill_once(data, number, number, None)
    elif how == "restores":
        tip, last = prepare(data), 1
        while kill_restore(data, directory / "copy", tip, last):
            last += numbers[0]
    else:
        count, seed = numbers
        started = time.monotonic()
        life(data, 0, None)
        life_s, chance = time.monotonic() - started, random.Random(seed)
        shutil.rmtree(data)
        for _ in range(count):
            after_s = chance.uniform(0, life_s)
            kill_once(data, after_s, 0, after_s)


if __name__ == "__main__":
    main()
