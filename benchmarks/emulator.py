"""Throughput, memory and start time of the emulator; prints one JSON line per case.

    python -m benchmarks emulator [--seconds 60] [--events 20000] [--stored 1000000]
                                  [--streams 200] [--cases stream memory streams ready]

The emulator is a separate process on loopback, with TLS.

``stream`` is the speed of one stream, in responses of 100 events: change events (58 fields, 630
bytes) and platform events (10 fields, 140 bytes). They are read from the earliest position by the
bare grpcio loop with which subscribers are compared. The same loop reads from the server of the
other benchmarks, which sends similar, pre-encoded events. ``first`` is the first read from a new
emulator, ``again`` the next read, and ``ratio`` the speed relative to the other server. The three
are interleaved, and each read uses a new process. Rounds are repeated for ``--seconds`` per kind of
event, at least three times. The first fifth of a read is a warm-up. Without a Go compiler, only the
emulator's figures are printed, with the reason.

The other cases use a log of ``--stored`` platform events. ``memory`` is the emulator's resident
memory before these are published through the API in calls of 200 events, after that, and after all
of them were read from the earliest position, and its ``peak``. ``streams`` is the time from
publishing an event until each of ``--streams`` concurrent streams on one connection has received
it. ``ready`` is the median time from the start of the process to its ready line, and ``cpu_s`` its
CPU time, with the compiled bytecode of all packages and without any.

Server and client share this machine's cores. ``load`` is the machine's load at start and end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.feed import KINDS, WINDOW, corpus
from benchmarks.figures import Spread
from benchmarks.processes import module, packages, peer
from benchmarks.references import channel, receive_bare
from benchmarks.runs import Meter, Run, Sample
from benchmarks.server import Server, serving
from sfpubsub.emulator.org.bus import Draft
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

CASES = ("stream", "memory", "streams", "ready")
TOPIC = KINDS["platform"].topic
KINDS_READ = ("change", "platform")
RESPONSE = 100  # events per response
CALL = 200  # events published per call, the maximum of the service
LIVE = 50  # events that every concurrent stream receives after its first
STARTS = 5  # number of measured starts


class Emulator:
    """A running emulator: its address, its credentials and its process."""

    def __init__(self, process: subprocess.Popen[str], ca_file: Path) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the emulator exited before it was ready: see its output above")
        ready = json.loads(line)
        self.target: str = ready["grpc"]
        self.ca_file = str(ca_file)
        self.headers = (
            ("accesstoken", ready["access_token"]),
            ("instanceurl", ready["instance_url"]),
            ("tenantid", ready["tenant_id"]),
        )
        self._pid = process.pid
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        self.cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        """CPU time until the emulator was ready, in seconds."""

    def memory(self, name: str = "VmRSS") -> float:
        """Return the resident memory in MiB: current (VmRSS) or peak (VmHWM)."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        found = next(int(line.split()[1]) for line in lines if line.startswith(name))
        return round(found / 1024, 1)


@contextmanager
def running(data_dir: Path, **environment: str) -> Iterator[Emulator]:
    """Run an emulator in a new process until the block ends."""
    command = [sys.executable, "-m", "sfpubsub", "emulator", "--until-stdin-closes", "--tls"]
    ports = ["--grpc-port", "0", "--http-port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(
        [*command, *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": packages(), **environment},
    ) as process:
        try:
            yield Emulator(process, data_dir / "ca.pem")
        finally:
            assert process.stdin is not None
            process.stdin.close()


# One stream, compared with the other server.


def fill(data_dir: Path, events: int) -> None:
    """Write at least *events* events of each kind to an emulator's log."""
    with EmulatorServer(data_dir) as emulator:
        for kind in KINDS_READ:
            topic = KINDS[kind].topic
            schema, payloads = corpus(kind)
            emulator.bus.put_topic(topic, schema)
            drafts = [Draft(payload, schema.schema_id) for payload in payloads]
            for _ in range(0, events, len(drafts)):
                emulator.bus.append(topic, drafts)


def be_client() -> None:
    """Read the events that a line of stdin describes, and print the sample as JSON."""
    target, ca_file, topic, headers, events = json.loads(sys.stdin.readline())
    meter = Meter(Run("bare", "", RESPONSE, events=events))
    metadata = [(name, value) for name, value in headers]
    receive_bare(target, ca_file, topic, RESPONSE, meter, metadata)
    sample = meter.sample()
    print(json.dumps([sample.events, sample.seconds, sample.cpu]), flush=True)


def read_once(
    target: str, ca_file: str, topic: str, headers: Any = (), events: int | None = None
) -> Sample:
    """Read events from a server in a new process, and return the sample."""
    with peer(module("emulator", "--receive"), environment={"PYTHONPATH": packages()}) as client:
        return Sample(*client.ask([target, ca_file, topic, headers, events or arguments.events]))


def stream(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of the case ``stream`` for each kind of event."""
    fill(directory / "data", arguments.events)
    with serving() as server:
        for kind in KINDS_READ:
            line: dict[str, Any] = {"event": kind, "per_response": RESPONSE}
            if server.warning:
                line["skipped"] = server.warning
            samples = rounds(directory / "data", kind, None if server.warning else server)
            line["rounds"] = len(samples["first"])
            for which, found in samples.items():
                line[which] = of_samples(found, samples["other"])
            yield line


def of_samples(found: list[Sample], others: list[Sample]) -> dict[str, Any]:
    """Return the figures of some reads, and their ratio to the reads from the other server."""
    speeds = [sample.speed for sample in found]
    if not speeds:
        return {}
    line: dict[str, Any] = {
        "events_per_s": round(statistics.median(speeds)),
        "min": round(min(speeds)),
        "max": round(max(speeds)),
        "cpu_us": round(statistics.median(sample.cpu_us for sample in found), 2),
    }
    if others and found is not others:
        ratio = Spread.of([a.speed / b.speed for a, b in zip(found, others, strict=True)])
        line["ratio"] = round(ratio.median, 3)
        line["ratio_spread"] = [round(ratio.low, 3), round(ratio.high, 3)]
    return line


def rounds(data_dir: Path, kind: str, other: Server | None) -> dict[str, list[Sample]]:
    """Read twice from a new emulator and once from the other server, for several rounds."""
    samples: dict[str, list[Sample]] = {"first": [], "again": [], "other": []}
    ends = time.perf_counter() + arguments.seconds
    while len(samples["first"]) < 3 or time.perf_counter() < ends:
        with running(data_dir) as emulator:
            of_emulator = emulator.target, emulator.ca_file, KINDS[kind].topic, emulator.headers
            samples["first"].append(read_once(*of_emulator))
            if other is not None:
                topic = f"/data/{kind}_{RESPONSE}_0_0"
                samples["other"].append(read_once(other.target(0), other.ca_file, topic))
            samples["again"].append(read_once(*of_emulator))
    return samples


# A large log.


def memory(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of the case ``memory``: publish all events, then read all."""
    schema, payloads = corpus("platform")
    with EmulatorServer(directory / "large") as emulator:
        emulator.bus.put_topic(TOPIC, schema)
    events = [pb.ProducerEvent(schema_id=schema.schema_id, payload=item) for item in payloads]
    request = pb.PublishRequest(topic_name=TOPIC, events=events[:CALL])
    with running(directory / "large") as running_one:
        line: dict[str, Any] = {"events": arguments.stored, "before_mib": running_one.memory()}
        with channel(running_one.target, running_one.ca_file) as opened:
            publish = pb_grpc.PubSubStub(opened).Publish
            began = time.perf_counter()
            for _ in range(0, arguments.stored, CALL):
                publish(request, metadata=running_one.headers)
            line["published_per_s"] = round(arguments.stored / (time.perf_counter() - began))
        line["published_mib"] = running_one.memory()
        sample = read_once(
            running_one.target, running_one.ca_file, TOPIC, running_one.headers, arguments.stored
        )
        line["read_per_s"] = round(sample.speed)
        line["read_mib"] = running_one.memory()
        line["peak_mib"] = running_one.memory("VmHWM")
    yield line


def streams(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of the case ``streams``: wait for live events on many streams."""
    schema, payloads = corpus("platform")
    event = pb.ProducerEvent(schema_id=schema.schema_id, payload=payloads[0])
    with (
        running(directory / "large") as emulator,
        channel(emulator.target, emulator.ca_file) as opened,
    ):
        stub = pb_grpc.PubSubStub(opened)
        over = threading.Event()
        one = pb.PublishRequest(topic_name=TOPIC, events=[event])
        before = stub.Publish(one, metadata=emulator.headers).results[0].replay_id
        first = pb.FetchRequest(
            topic_name=TOPIC, num_requested=WINDOW, replay_preset=pb.CUSTOM, replay_id=before
        )

        def requests() -> Iterator[pb.FetchRequest]:
            yield first
            over.wait()

        calls = [
            stub.Subscribe(requests(), metadata=emulator.headers) for _ in range(arguments.streams)
        ]
        took = []
        for _ in range(1 + LIVE):
            began = time.perf_counter()
            stub.Publish(one, metadata=emulator.headers)
            for call in calls:
                assert len(next(call).events) == 1
            took.append(time.perf_counter() - began)
        del took[0]  # the first one includes the time to open the streams
        resident = emulator.memory()
        over.set()
    yield {
        "streams": arguments.streams,
        "to_all_ms": round(statistics.median(took) * 1000, 1),
        "max_ms": round(max(took) * 1000, 1),
        "resident_mib": resident,
    }


def ready(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of the case ``ready``: start the emulator several times."""
    for has_bytecode in (True, False):
        cache = directory / f"bytecode {has_bytecode}"
        environment = {
            "PYTHONPYCACHEPREFIX": str(cache),
            "PYTHONDONTWRITEBYTECODE": "" if has_bytecode else "1",  # empty means unset
        }
        with running(directory / "large", **environment):
            pass  # the first start writes the bytecode, if allowed
        wall, cpu = [], []
        for _ in range(STARTS):
            began = time.perf_counter()
            with running(directory / "large", **environment) as emulator:
                wall.append(time.perf_counter() - began)
                cpu.append(emulator.cpu_s)
        yield {
            "events": arguments.stored,
            "bytecode": has_bytecode,
            "seconds": round(statistics.median(wall), 2),
            "min": round(min(wall), 2),
            "cpu_s": round(statistics.median(cpu), 2),
        }


def main() -> None:
    """Run the selected cases and print their results."""
    load = os.getloadavg()[0]
    about = {
        "benchmark": "emulator",
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "cores": os.cpu_count(),
    }
    cases = {"stream": stream, "memory": memory, "streams": streams, "ready": ready}
    with tempfile.TemporaryDirectory() as directory:
        for name, case in cases.items():
            if name not in arguments.cases and not (name == "memory" and is_large_wanted()):
                continue
            for line in case(Path(directory)):
                loads = [round(load, 1), round(os.getloadavg()[0], 1)]
                print(json.dumps({**about, "case": name, "load": loads, **line}), flush=True)


def is_large_wanted() -> bool:
    """Return whether a selected case needs the log that ``memory`` creates."""
    return bool({"streams", "ready"} & set(arguments.cases))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--events", type=int, default=20_000, help="per read of the case stream")
    parser.add_argument("--stored", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        be_client()
    else:
        main()
