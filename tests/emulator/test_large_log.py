"""A log of a million events: memory stays flat, many streams can be open, and startup is fast."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ORDERS, Client, Process

MANY = 1_000_000
CALL = 200
STREAMS = 200
LIVE = 20

GROWTH_MB = 40.0
"""The most resident memory that a million events may add: 16 MiB of SQLite pages, 2 MiB for SQLite
itself, and whatever was unused before. If the emulator kept the events in memory, they would take
about 300 MB."""

START_S = 2.0
"""The most CPU time from the start of the process to its ready line, including the compilation of
bytecode. CPU time is measured because wall time varies with the load of the machine."""


def resident_mb(process: Process) -> float:
    """Return the resident memory of the process in MiB."""
    lines = Path(f"/proc/{process.popen.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu_s(process: Process) -> float:
    """Return the CPU time that the process has used, in seconds."""
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_all(client: Client, count: int) -> int:
    """Read the topic from the earliest event until *count* events arrive or the stream ends.

    Return the number of events received; each request is for 100.
    """
    more = threading.Semaphore(0)

    def requests() -> Iterator[Any]:
        yield pb.FetchRequest(topic_name=ORDERS, num_requested=100, replay_preset=pb.EARLIEST)
        while True:
            more.acquire()
            yield pb.FetchRequest(num_requested=100)

    call = client.stub.Subscribe(requests(), metadata=client.metadata)
    found = 0
    for response in call:
        found += len(response.events)
        if found >= count:
            break
        more.release()
    call.cancel()
    more.release()
    return found


def live_events_on_all(client: Client, request: Any) -> None:
    """Open `STREAMS` streams that start after the last event, and assert that each receives every
    newly published event exactly once.
    """
    before = client.call("Publish", request).results[0].replay_id
    over = threading.Event()
    first = pb.FetchRequest(
        topic_name=ORDERS, num_requested=100, replay_preset=pb.CUSTOM, replay_id=before
    )

    def requests() -> Iterator[Any]:
        yield first
        over.wait()

    calls = [client.stub.Subscribe(requests(), metadata=client.metadata) for _ in range(STREAMS)]
    for _ in range(LIVE):
        published = client.call("Publish", request).results[0].replay_id
        for call in calls:
            assert [item.replay_id for item in next(call).events] == [published]
    over.set()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_million_events(spawn, tmp_path):
    """Publishing and reading a million events over gRPC adds little memory; 200 streams then
    receive live events; and a restart is fast because it does not read the whole log.
    """
    with EmulatorServer(tmp_path / "data") as emulator:
        schema_id = emulator.bus.topic(ORDERS).schema_id
        payload = emulator.bus.schema(schema_id).encode({"Order_Number__c": "x" * 100}, 0.0)
    event = pb.ProducerEvent(schema_id=schema_id, payload=payload)
    one, some = (
        pb.PublishRequest(topic_name=ORDERS, events=[event] * count) for count in (1, CALL)
    )
    process = spawn().wait_ready()
    client = process.client()
    before = resident_mb(process)
    for _ in range(0, MANY, CALL):
        assert not any(item.HasField("error") for item in client.call("Publish", some).results)
    published = resident_mb(process)
    assert read_all(client, MANY) == MANY
    read = resident_mb(process)
    live_events_on_all(client, one)
    client.close()
    process.kill()
    again = spawn().wait_ready()
    took = cpu_s(again)
    print(
        f"{MANY} events: {before:.0f} MB before, {published:.0f} published, {read:.0f} read;"
        f" ready again after {took:.2f} s of CPU time"
    )
    assert max(published, read) - before < GROWTH_MB
    assert took < START_S
    assert len(again.client().subscribe().events(100)) == 100
