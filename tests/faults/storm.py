"""The storm: random changes in an org that ``sfpubsub mirror run`` mirrors, with many faults.

``python -m tests.faults.storm DIRECTORY --changes N --blows K --seed S`` runs an emulator in this
process, a writer that uses REST, and the mirror as a process. The run includes K blows: kills of
the mirror, which is then restarted, faults of the org, and changes by its administrator. Streams
break, sessions expire, events are incomplete, late or lost, query jobs fail, and the org moves to
another instance. The mirror's user loses View All and gets it again; objects and fields go and come
back, fields get other types, objects are deselected. At the end, the writer stops, the mirror
catches up, and each table must equal the org. At no blow may a table have a row as deleted whose
record was never deleted. The mirror has history tables, whose versions are compared with the rows.
The org's records are read from the emulator's database, the tables by Spark and by another reader.

With ``--silent``, a tenth of the changes has no event, and one object has none at all.
With ``--connect``, the mirror uses a server of Spark Connect, which survives its kills; then it is
the server that is killed, and restarted, in place of the mirror's JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.faults.killer import DEADLINE, RunError
from tests.faults.matrix import Job
from tests.faults.storm_changes import KINDS as CHANGES
from tests.faults.storm_changes import OrgChanges
from tests.faults.storm_org import (
    CHANNEL,
    MIRROR_CREDENTIALS,
    OBJECTS,
    OVERFLOW,
    REST_LAG,
    Rows,
    admit_mirror,
    aligned,
    event_of,
    seed_of,
    truth_of,
)
from tests.faults.storm_writer import Writer

if TYPE_CHECKING:
    from tests.platforms.server import ConnectServer

# Margin that the mirror allows for stale REST responses, in seconds; they lag by `REST_LAG`. In
# production, these times are minutes.
MARGIN = 1.0

OPTIONS = ("--margin", str(MARGIN), "--batch-seconds", "2", "--history")

# Options that select the source of a mirror, by name.
SOURCES = {"topic": ("--topic", CHANNEL), "managed": ("--managed", "Storm")}

# Options that select how objects are read as a whole, by name. By default, only objects with 10,000
# records are read in bulk; several pieces per object, so that kills come between them.
READS = {"default": (), "bulk": ("--bulk-from", "0", "--piece-rows", "500")}

# Refreshes and sweeps are disabled during the storm, and done by the last run.
DURING_THE_STORM = ("--refresh-formulas", "0", "--sweep", "0")
LAST_RUN = ("--once", "--refresh-formulas", "1s", "--sweep", "1s")

# In a silent storm, a tenth of the changes has no event, and one object has none at all. Only reads
# of changed records may heal what differs: so there is no refresh, and the last run's sweep finds
# the records that were purged.
SILENT = ("--refresh-formulas", "0", "--drift", "2s", "--poll", "2s", "--overlap", "30s")
SILENT_RUN = (*SILENT, "--once", "--sweep", "1s")
SILENT_OBJECT, SILENT_EVERY = "Order__c", 10

# Longest time between two faults, in seconds: twice the start time of a mirror.
LONGEST_LIFE = 25.0

# Share of the blows that wait until the mirror has applied or read something since its start, and
# for how many seconds at most: on a busy machine, it would otherwise be killed at each start.
WORKING, LONGEST_WAIT = 0.75, 90.0

# Seconds in which the last run must catch up; on a busy machine, it takes minutes.
PATIENCE = 3600.0

# Kills of the mirror, and faults of the org and its streams.
KILLS = ("driver", "jvm", "both")
FAULTS: dict[str, dict[str, Any]] = {
    "drop": {"kind": "drop_stream"},
    "reset": {"kind": "drop_stream", "status": "RESET"},
    "gap": {"kind": "gap_event", "times": 3},
    "late": {"kind": "delay_event", "seconds": 2.0, "times": 3},
    "expire": {"kind": "expire_token"},
    "move": {"kind": "move_org"},
    "lost": {"kind": "reset_stream"},
}

# Query jobs that end early, which needs reads in bulk.
JOBS: dict[str, dict[str, Any]] = {
    "job_failed": {"kind": "end_query_job"},
    "job_aborted": {"kind": "end_query_job", "state": "Aborted"},
}
BLOWS = (*KILLS, *FAULTS, *CHANGES)
BULK_BLOWS = (*BLOWS, *JOBS)
SILENT_BLOWS = tuple(blow for blow in BLOWS if blow != "deselect")

# Faults that happen with the next changes of an object.
CHANGE_FAULTS = ("gap", "late")


@dataclass
class Report:
    """The result of a storm: changes, faults, and differences between tables and org."""

    format: str
    seed: int
    changes: int
    records: int
    made: dict[str, int]
    blows: dict[str, int]
    happened: dict[str, int]
    seconds: float
    wrong: dict[str, str] = field(default_factory=dict)
    """Differences between table and org, by object and reader; empty if they are equal."""
    wrongly_deleted: dict[str, list[str]] = field(default_factory=dict)
    """Ids of records that a table had as deleted and that were never deleted, by object."""
    missed: list[str] = field(default_factory=list)
    """Blows that did not happen: the storm shows nothing about them."""

    @property
    def ok(self) -> bool:
        return not (self.wrong or self.wrongly_deleted or self.missed)


def shuffled_blows(count: int, rng: random.Random, among: Sequence[str] = BLOWS) -> list[str]:
    """Return *count* faults and kills in random order, with each kind about equally often."""
    found: list[str] = []
    while len(found) < count:
        kinds = list(among)
        rng.shuffle(kinds)
        found += kinds
    return found[:count]


def run(
    directory: Path,
    blows: Sequence[str],
    readers: dict[str, Callable[[str], Rows]],
    deleted: Callable[[str], set[str]],
    flaws: Callable[[str], list[str]],
    *,
    lake: str | None = None,
    access: Sequence[str] = (),
    changes: int,
    records: int,
    seed: int,
    format_: str = "delta",
    source: str = "topic",
    reads: str = "default",
    python: str = sys.executable,
    server: ConnectServer | None = None,
    life: float = LONGEST_LIFE,
    silent: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run a storm, and compare the tables with the org.

    Args:
        directory: An empty directory.
        blows: Faults and kills, in order.
        readers: Functions that read a table, by name of the reader.
        deleted: Returns the ids of the rows that a table has as deleted.
        flaws: Returns what is wrong with the history of a table.
        lake: Path or URL of the tables; None for ``lake`` in *directory*.
        access: Options of commands that give access to *lake*.
        changes: Number of changes that the writer makes, spread over the whole storm.
        records: Number of records in the org before the storm.
        seed: Seed of the changes and the random times.
        format_: Format of the tables.
        source: One of `SOURCES`.
        reads: One of `READS`.
        python: Python interpreter with a PySpark version that supports the format.
        server: The server of Spark Connect that the mirror uses; None for a classic session.
        life: Longest time between two faults, in seconds.
        silent: Whether a tenth of the changes has no event; see `SILENT`.
        say: Called with a description of each fault.

    Raises:
        RunError: The mirror exited without being killed, or did not exit.
    """
    began, rng = time.monotonic(), random.Random(seed)
    lake = lake or str(directory / "lake")
    settings = Settings(
        rest_lag_s=REST_LAG,
        overflow_changes=OVERFLOW,
        keepalive_s=1.0,
    )
    emulator = EmulatorServer(directory / "org", seed=seed_of(directory), settings=settings)
    with emulator:
        writer = Writer(emulator, seed, pace=life * (len(blows) + 1) / max(changes, 1) / 4)
        writer.fill(records)
        admit_mirror(emulator)
        emulator.managed.create("Storm", CHANNEL)
        org = OrgChanges(emulator, writer, random.Random(seed + 1))
        for number, blow in enumerate(blows, start=1):
            if blow in CHANGES:
                writer.plan(changes * number // (len(blows) + 1), partial(org.begin, blow))
                writer.plan(changes * (2 * number + 1) // (2 * len(blows) + 2), org.end)
        if silent:
            _be_silent(emulator, writer, changes)
        wrongly: dict[str, set[str]] = {}

        def check() -> None:
            for name in OBJECTS:
                gone = deleted(f"{lake}/{name}")
                if more := gone - writer.deleted:
                    wrongly.setdefault(name, set()).update(more)
                    say(f"{len(more)} rows of {name} are wrongly deleted: {sorted(more)[:3]}")

        place = ["--to", lake, "--format", format_, *access]
        options = (*SOURCES[source], *READS[reads])
        runs = (SILENT, SILENT_RUN) if silent else (DURING_THE_STORM, LAST_RUN)
        mirror = _Mirror(directory, emulator, place, options, python, server, runs)
        writer.start()
        try:
            for number, blow in enumerate(blows, start=1):
                writer.raise_goal(changes * number // (len(blows) + 1))
                if rng.random() < WORKING:
                    mirror.run_until(mirror.is_working)
                mirror.run_for(rng.uniform(0.0, life))
                check()
                if blow in KILLS:
                    mirror.kill(blow)
                elif blow not in CHANGES:
                    emulator.faults.add(fault_of(blow, rng))
                    if blow == "move":
                        mirror.run_until(lambda: _has_moved(emulator))
                say(f"blow {number}/{len(blows)}: {blow}, after {writer.changes} changes")
            writer.raise_goal(changes)
            writer.finish(DEADLINE)
            org.end()
            mirror.kill("both")  # at any point, so that the last run starts from a crash
            mirror.finish()
            check()
        finally:
            mirror.kill_if_running()
        happened: Counter[str] = Counter(org.made)
        for row in emulator.faults.report():
            happened[row["kind"]] += row["happened"]
        report = Report(
            format_, seed, writer.changes, records, dict(writer.made), dict(Counter(blows)),
            dict(happened), round(time.monotonic() - began, 1),
            wrongly_deleted={name: sorted(ids)[:10] for name, ids in wrongly.items()},
            missed=missed(blows, emulator, happened),
        )  # fmt: skip
        if silent and not happened["lose_event"]:
            report.missed.append("lose_event")
        truth = truth_of(emulator)
    for name, wanted in truth.items():
        for reader, read in readers.items():
            found = aligned(read(f"{lake}/{name}"), wanted)
            if text := difference(wanted, found):
                report.wrong[f"{name} by {reader}"] = text
        if found_flaws := flaws(f"{lake}/{name}"):
            text = f"{len(found_flaws)} flaws, such as {found_flaws[:3]}"
            report.wrong[f"history of {name}"] = text
    return report


def _be_silent(emulator: EmulatorServer, writer: Writer, changes: int) -> None:
    """Let a tenth of the changes have no event, and all changes of one object."""
    channels, event = emulator.event_channels, event_of(SILENT_OBJECT)
    (member,) = [one for one in channels.members("ChangeEvents") if one.entity == event]
    channels.remove(member.member_id)
    for number in range(0, changes, SILENT_EVERY):
        writer.plan(number, partial(emulator.faults.add, Fault("lose_event")))


def _has_moved(emulator: EmulatorServer) -> bool:
    """Return whether the mirror has met the org's move, before a restart hides it from it."""
    rows = emulator.faults.report()
    return all(row["happened"] for row in rows if row["kind"] == "move_org")


def fault_of(blow: str, rng: random.Random, objects: Sequence[str] = OBJECTS) -> Fault:
    """Return the emulator's fault for *blow*, a key of `FAULTS` or `JOBS`.

    A fault that affects change events is set for one of *objects*, chosen at random.
    """
    given = {**FAULTS, **JOBS}[blow]
    if blow in CHANGE_FAULTS:
        given = {**given, "target": f"/data/{event_of(rng.choice(objects))}"}
    return Fault(**given)


def missed(
    blows: Sequence[str], emulator: EmulatorServer, happened: Mapping[str, int]
) -> list[str]:
    """Return the kinds of blows that were planned and did not happen. Kills always happen."""
    found = {blow for blow in blows if blow in CHANGES and not happened[blow]}
    rows = emulator.faults.report()
    for blow in set(blows) & {*FAULTS, *JOBS}:
        kind, state = fault_of(blow, random.Random()).kind, JOBS.get(blow, {}).get("state")
        if not any(
            row["happened"]
            for row in rows
            if row["kind"] == kind and (blow not in JOBS or row["state"] == (state or "Failed"))
        ):
            found.add(blow)
    return sorted(found)


def difference(wanted: Rows, found: Rows) -> str:
    """Describe how two sets of rows differ; return an empty string if they are equal."""
    missing, more = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    other = {
        record_id: sorted(
            name
            for name in wanted[record_id].keys() | found[record_id].keys()
            if wanted[record_id].get(name) != found[record_id].get(name)
        )
        for record_id in wanted.keys() & found.keys()
        if wanted[record_id] != found[record_id]
    }
    if not (missing or more or other):
        return ""
    shown = [
        (record_id, [(n, wanted[record_id].get(n), found[record_id].get(n)) for n in names[:2]])
        for record_id, names in sorted(other.items())[:3]
    ]
    return (
        f"{len(missing)} missing {sorted(missing)[:3]}, {len(more)} too many {sorted(more)[:3]}, "
        f"{len(other)} different {shown}"
    )


class _Mirror:
    """The process ``sfpubsub mirror run``, which is restarted after each kill."""

    def __init__(
        self,
        directory: Path,
        emulator: EmulatorServer,
        place: Sequence[str],
        options: Sequence[str],
        python: str,
        server: ConnectServer | None,
        runs: tuple[Sequence[str], Sequence[str]],
    ) -> None:
        self._during, self._last = runs
        self._log = directory / "mirror.log"
        self._python = python
        self._server = server
        self._environment = {
            "SFPUBSUB_ENDPOINT": emulator.grpc_target,
            "SFPUBSUB_INSECURE": "1",
            "SFPUBSUB_AUTH": "client-credentials",
            "SFPUBSUB_LOGIN_URL": emulator.http_url,
            **{f"SFPUBSUB_{name.upper()}": value for name, value in MIRROR_CREDENTIALS.items()},
            **({"SPARK_REMOTE": server.url} if server else {}),
        }
        self._place = place
        self._command = ["sfpubsub", "mirror", "run", *OBJECTS, *place]
        self._command += [*options, *OPTIONS]
        self._start(*self._during)

    def run_for(self, seconds: float) -> None:
        """Let the mirror run for *seconds*; raise an error if it exits before that."""
        try:
            self._job.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise self._failure("exited by itself")

    def is_working(self) -> bool:
        """Return whether the present process has applied an event or read a record."""
        counts = _WORK.findall(self._job.log_text())
        return any(int(number) for each in counts for number in each)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let the mirror run until *condition* returns True, but no longer than `LONGEST_WAIT`."""
        deadline = time.monotonic() + LONGEST_WAIT
        while not condition() and time.monotonic() < deadline:
            self.run_for(1.0)

    def kill(self, whom: str) -> None:
        """Kill the process of the mirror, Spark's JVM or both, and restart the mirror."""
        pid = self._job.process.pid
        if whom == "jvm" and self._end_java(pid):
            try:
                self._job.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                raise self._failure("did not exit without its JVM") from None
            if self._job.process.returncode == 0:
                raise self._failure("exited with status 0 without its JVM")
        elif whom == "driver":
            self._job.process.kill()
        else:
            os.killpg(pid, signal.SIGKILL)
            self._end_java(pid)
        self._job.process.communicate()
        self._start(*self._during)

    def _end_java(self, pid: int) -> bool:
        """Kill the mirror's JVM, or restart its server. Return whether it has one."""
        if self._server is not None:
            self._server.restart()
            return True
        java = _child(pid)
        if java is not None:
            os.kill(java, signal.SIGKILL)
        return java is not None

    def finish(self) -> None:
        """Run the mirror for the last time, with a formula refresh and a sweep, until it exits.

        Records that were purged without an event may wait for a confirmation: confirm it, and run
        the mirror once more. Raise an error if it takes longer than `PATIENCE` seconds or fails.
        """
        self.kill_if_running()
        self._run_once()
        confirmed = [self._confirm(name) for name in OBJECTS]
        if any(confirmed):
            self._run_once()

    def _confirm(self, name: str) -> bool:
        """Confirm the deletions of an object that wait for it; return whether there are any."""
        command = ["sfpubsub", "mirror", "signal", *self._place, "--confirm-deletes", name]
        job = Job(self._python, command, self._environment, self._log)
        job.wait()
        return job.process.returncode == 0

    def _run_once(self) -> None:
        self._start(*self._last)
        try:
            output, _ = self._job.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise self._failure("did not catch up in time") from None
        if self._job.process.returncode != 0:
            raise self._failure(f"failed after {output}")

    def kill_if_running(self) -> None:
        """Kill the mirror and its child processes, unless the mirror has already exited."""
        if self._job.process.poll() is None:
            os.killpg(self._job.process.pid, signal.SIGKILL)
            self._job.process.communicate()

    def _start(self, *more: str) -> None:
        self._job = Job(self._python, [*self._command, *more], self._environment, self._log)

    def _failure(self, how: str) -> RunError:
        status = self._job.process.poll()
        return RunError(f"the mirror {how} (exit status {status}):\n{self._job.log_tail()}")


# The counts in a mirror's status line.
_WORK = re.compile(r"(\d+) events? applied, (\d+) records? read")


def _child(pid: int) -> int | None:
    """Return the pid of the JVM that a process has started; None if it has not started one."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:  # the process has ended
            continue
        if name == "java" and int(rest.split()[1]) == pid:
            return int(path.parent.name)
    return None


def main() -> None:
    from sfpubsub.spark.runtime.session import spark_session
    from tests.faults.storm_tables import deleted_reader_of, flaws_of_history, readers_of
    from tests.platforms.server import ConnectServer
    from tests.spark.object_store import object_store

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--store", choices=["files", "s3"], default="files")
    parser.add_argument("--connect", action="store_true", help="not with --store s3")
    parser.add_argument("--silent", action="store_true", help="a tenth of the changes: no event")
    parser.add_argument("--source", choices=sorted(SOURCES), default="topic")
    parser.add_argument("--reads", choices=sorted(READS), default="default")
    parser.add_argument("--changes", type=int, default=5_000)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--blows", type=int, default=20)
    parser.add_argument("--among", default="", help="kinds of blows, by commas; default: all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    if options.connect and options.store == "s3":
        parser.error("the server of Spark Connect has no access to the object store")
    options.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    rng = random.Random(options.seed)
    among = options.among.split(",") if options.among else None
    kinds = SILENT_BLOWS if options.silent else BLOWS
    among = among or (BULK_BLOWS if options.reads == "bulk" and not options.silent else kinds)
    # Exit normally on SIGTERM, so that child processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with ExitStack() as stack:
        store = (
            stack.enter_context(object_store(options.directory)) if options.store == "s3" else None
        )
        settings = store.settings if store else {}
        spark = stack.enter_context(spark_session(format=options.format, settings=settings))
        readers = readers_of(spark, options.format, store.storage_options if store else None)
        server = None
        if options.connect:
            server = stack.enter_context(closing(ConnectServer(options.format, options.directory)))
        report = run(
            options.directory,
            shuffled_blows(options.blows, rng, among),
            readers,
            deleted_reader_of(options.format, store.storage_options if store else None),
            flaws_of_history(spark, options.format),
            lake=store.url("lake") if store else None,
            access=store.options if store else (),
            changes=options.changes,
            records=options.records,
            seed=options.seed,
            format_=options.format,
            source=options.source,
            reads=options.reads,
            server=server,
            silent=options.silent,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps({**vars(report), "ok": report.ok}))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
