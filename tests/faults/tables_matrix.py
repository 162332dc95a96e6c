"""The crash matrix of tables: kills ``sfpubsub tables`` at many moments and checks the result.

``python -m tests.faults.tables_matrix FORMAT DIRECTORY --kills N --seed S`` extends a raw table
between the kills. At the end, the tables must equal the result of `reference`, which decodes all
raw rows and shares no code with the engine.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import pyarrow.dataset as ds

from tests.avro.schemas import schema_text
from tests.faults.crash_victim import WHO
from tests.faults.killer import RunError
from tests.faults.matrix import Job
from tests.faults.tables_victim import MOMENTS

# For each table: the value of one field by ``ingest_seq``.
Tables: TypeAlias = dict[str, dict[int, Any]]

# A field of each event type, to check that columns match the payload.
FIELDS = {"Order_Event__e": "Order_Number__c", "AccountChangeEvent": "AccountNumber"}


@dataclass(frozen=True)
class Cell:
    """A planned kill: which processes, at which moment, and at which occurrence of that moment."""

    moment: str
    who: str
    nth: int


@dataclass
class Report:
    """The result of a run: kills, rows, and what is wrong in the tables."""

    format: str
    seed: int
    kills: int
    rows: int
    wrong: dict[str, str] = field(default_factory=dict)


def cells(kills: int, rng: random.Random) -> list[Cell]:
    """Return *kills* planned kills, cycling through all (moment, victim) pairs in random order."""
    pairs = list(product(MOMENTS, WHO))
    rng.shuffle(pairs)
    return [Cell(moment, who, 1) for moment, who in islice(cycle(pairs), kills)]


def run(
    format_: str,
    raw: Path,
    to: Path,
    grow: Callable[[int], None],
    read: Callable[[], Tables],
    todo: Sequence[Cell],
    *,
    seed: int,
    python: str = sys.executable,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Do the kills in *todo*, let the command finish, and compare the tables with the reference.

    Args:
        format_: Format of the tables.
        raw: The raw table, in Parquet files.
        to: Directory of the tables.
        grow: Writes a batch to the raw table; called with the number of the kill.
        read: Returns the contents of the tables.
        todo: The kills, in order.
        seed: Seed that *todo* was created with, for the report.
        python: Python interpreter with a PySpark version that supports the format.
        say: Called with a description of each kill.

    Raises:
        RunError: A process exited in an unexpected way, or did not exit.
    """
    log = raw.parent / "tables.log"
    command = ["tables", f"--from={raw}", f"--to={to}", "--format", format_]
    for number, cell in enumerate(todo):
        grow(number)
        victim = [cell.moment, cell.who, str(cell.nth), *command]
        job = Job(python, ["tests.faults.tables_victim", *victim], {}, log)
        job.wait()
        status = job.process.returncode
        killed = job.log_text().count("killing") == 1
        if not killed or status != (1 if cell.who == "jvm" else -signal.SIGKILL):
            raise RunError(f"{cell} exited with {status}:\n{job.log_tail()}")
        say(f"kill {number + 1}/{len(todo)}: {cell}")
    last = Job(python, ["sfpubsub", *command], {}, log)
    last.wait()
    if last.process.returncode != 0:
        raise RunError(f"tables exited with {last.process.returncode}:\n{last.log_tail()}")
    wanted, found = reference(raw), read()
    report = Report(format_, seed, len(todo), sum(map(len, wanted.values())))
    for name in wanted.keys() | found.keys():
        if wanted.get(name, {}) != found.get(name, {}):
            report.wrong[name] = _difference(wanted.get(name, {}), found.get(name, {}))
    return report


def reference(raw: Path) -> Tables:
    """Return the expected tables, by decoding all raw rows with fastavro."""
    tables: Tables = {}
    files = sorted(str(path) for path in raw.rglob("part-*.parquet"))
    columns = ["schema_id", "payload", "ingest_seq"]
    for row in ds.dataset(files, format="parquet").to_table(columns=columns).to_pylist():
        schema = json.loads(schema_text(row["schema_id"]))
        content = io.BytesIO(row["payload"])
        value = fastavro.schemaless_reader(content, schema, None)
        if content.read():
            tables.setdefault("_undecodable", {})[row["ingest_seq"]] = None
        else:
            name = schema["name"]
            tables.setdefault(name, {})[row["ingest_seq"]] = value[FIELDS[name]]
    return tables


def _difference(wanted: dict[int, Any], found: dict[int, Any]) -> str:
    lost = sorted(wanted.keys() - found.keys())
    more = sorted(found.keys() - wanted.keys())
    other = sorted(seq for seq in wanted.keys() & found.keys() if wanted[seq] != found[seq])
    return f"{len(lost)} lost {lost[:5]}, {len(more)} too many {more[:5]}, {len(other)} different"


def main() -> None:
    from sfpubsub.spark.runtime.session import spark_session
    from tests.faults.tables_world import World

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=["delta", "iceberg"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    with spark_session(format=options.format) as spark:
        world = World(spark, options.directory, options.format)
        report = run(
            options.format,
            world.raw.path,
            world.raw.typed,
            world.grow,
            world.read,
            cells(options.kills, random.Random(options.seed)),
            seed=options.seed,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps(vars(report)))
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
