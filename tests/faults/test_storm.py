"""The storm: whatever happens to an org and to its mirror, at the end they are equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.emulator.records.support import events
from tests.faults.storm_org import OBJECTS, event_of, seed_of, truth_of
from tests.faults.storm_writer import WEIGHTS, Writer


@pytest.fixture
def seed() -> int:
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    return seed


def test_the_writer_does_everything_and_the_truth_is_what_rest_tells(tmp_path: Path, seed: int):
    """Every kind of change is made, over REST, and each object's rows are those of a query."""
    emulator = EmulatorServer(
        tmp_path / "org", seed=seed_of(tmp_path), settings=Settings(overflow_changes=50)
    )
    with emulator:
        writer = Writer(emulator, seed)
        writer.fill(90)
        while writer.changes < 400:
            writer.step()
        for kind in WEIGHTS:
            writer.step_of(kind)
        writer.close()
        assert set(writer.made) == set(WEIGHTS)
        assert writer.changes >= 400
        truth = truth_of(emulator)
        user = emulator.accounts.holder("")
        told = set()
        for name in OBJECTS:
            found = emulator.records.query(f"SELECT Id, LastModifiedDate FROM {name}", user).rows
            assert truth[name].keys() == {row["Id"] for row in found}
            topic = f"/data/{event_of(name)}"
            told |= {event["ChangeEventHeader"]["changeType"] for event in events(emulator, topic)}
            told |= {
                "DIFF"
                for event in events(emulator, topic)
                if event["ChangeEventHeader"]["diffFields"]
            }
    assert {"CREATE", "UPDATE", "DELETE", "UNDELETE", "GAP_OVERFLOW", "DIFF"} <= told


def test_the_same_seed_makes_the_same_changes(tmp_path: Path, seed: int):
    """A storm can be had again: two orgs with one seed end alike, but for times."""
    ends = []
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        with EmulatorServer(directory / "org", seed=seed_of(directory)) as emulator:
            writer = Writer(emulator, seed)
            writer.fill(30)
            writer.raise_goal(100)
            writer.start()
            writer.finish(300)
            truth = truth_of(emulator)
        ends.append(
            {
                (name, record_id): {k: v for k, v in row.items() if not k.endswith("Date")}
                for name, rows in truth.items()
                for record_id, row in rows.items()
            }
        )
    assert ends[0] == ends[1]
