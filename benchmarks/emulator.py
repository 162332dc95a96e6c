"""What the emulator carries: one JSON line a case.

    python benchmarks/emulator.py [--seconds 60] [--events 20000] [--stored 1000000]
                                  [--streams 200] [--cases stream memory streams ready]

The emulator is a process of its own, on loopback without TLS.

``stream`` is how fast one stream gets its events, in responses of 100: change events (58 fields,
630 bytes) and platform events (10 fields, 140 bytes), read from the earliest by the naive loop on
grpcio that is the ``reference`` of `subscribe.py`. The same loop reads from `feed_server.go`, which
sends the very bytes that the emulator sent, over and over. ``first`` is the first read of a new
emulator, ``again`` the next one; ``ratio`` is the speed as a ratio to that of the other server. The
three are interleaved, each read by a new process, in as many rounds as ``--seconds`` allow for a
kind of event, at least three. A fifth of a read warms up. Without a Go compiler the emulator's own
figures are printed, and why there is no ratio. The server is built in each run of this script, with
modules from Go's proxy.

The other cases are about one log of ``--stored`` platform events. ``memory`` is the emulator's
resident memory before these are published through the API, by calls of 200 events each, after that,
and after all of them were read from the earliest; and its ``peak``. ``streams`` is how long it
takes until each of so many concurrent streams, on one connection, has a live event, from when that
is published. ``ready`` is the time from the start of the process to its ready line, ``cpu_s`` the
CPU time of it, with the compiled bytecode of all packages at hand and without any; medians.

Server and client share this machine's cores. ``load`` is the machine's at start and end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
from feed_server import KINDS, corpus
from subscribe import ROOT, WINDOW, Meter, Sample, of_pairs, of_samples, peer, receive_bare

from sfpubsub.emulator.org.bus import Draft
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

CASES = ("stream", "memory", "streams", "ready")
TOPIC = KINDS["platform"][0]
RESPONSE = 100  # events
RECORDED = 50  # responses that the other server sends again and again
CALL = 200  # events published by a call: the service's most
LIVE = 50  # events that every concurrent stream gets after its first
STARTS = 5  # of a process that is measured to its ready line
GO_MODULE = """module feed_server

go 1.24

require google.golang.org/grpc v1.83.2
"""


class Emulator:
    """A running emulator."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the emulator ended before it was ready; what it wrote is above")
        ready = json.loads(line)
        self.target: str = ready["grpc"]
        self.headers = (
            ("accesstoken", ready["access_token"]),
            ("instanceurl", ready["instance_url"]),
            ("tenantid", ready["tenant_id"]),
        )
        self._pid = process.pid
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        self.cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        """CPU time until it was ready, in seconds."""

    def memory(self, name: str = "VmRSS") -> float:
        """Resident memory now, or at most (VmHWM), in MiB."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        found = next(int(line.split()[1]) for line in lines if line.startswith(name))
        return round(found / 1024, 1)


@contextmanager
def running(data_dir: Path, **environment: str) -> Iterator[Emulator]:
    """Run an emulator as a process."""
    command = [sys.executable, "-m", "sfpubsub", "emulator", "--until-stdin-closes"]
    ports = ["--grpc-port", "0", "--http-port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(
        [*command, *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": packages(), **environment},
    ) as process:
        try:
            yield Emulator(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def packages() -> str:
    """Where this checkout has its packages."""
    return os.pathsep.join([str(ROOT / "src"), str(ROOT / "generated")])


# One stream, beside another server.


def build(directory: Path) -> Path | str:
    """Build the other server; a text says why it cannot be."""
    go = shutil.which("go")
    if go is None:
        return "there is no Go compiler: no command go"
    (directory / "go.mod").write_text(GO_MODULE)
    shutil.copy(Path(__file__).with_name("feed_server.go"), directory)
    made = directory / "feed_server"
    done = subprocess.run(
        [go, "build", "-mod=mod", "-o", str(made)], cwd=directory, text=True, capture_output=True
    )
    return made if done.returncode == 0 else f"go build failed: {done.stderr.strip()}"


def fill(data_dir: Path, events: int) -> None:
    """Put so many events of each kind into an emulator's log."""
    with EmulatorServer(data_dir) as emulator:
        for kind, (topic, _) in KINDS.items():
            schema, payloads = corpus(kind)
            emulator.bus.put_topic(topic, schema)
            drafts = [Draft(payload, schema.schema_id) for payload in payloads]
            for _ in range(0, events, len(drafts)):
                emulator.bus.append(topic, drafts)


def record(emulator: Emulator, topic: str, file: Path) -> None:
    """Write what the emulator sends into a file, as the other server wants it."""
    with grpc.insecure_channel(emulator.target) as channel:
        subscribe: Any = channel.stream_stream(
            "/eventbus.v1.PubSub/Subscribe", pb.FetchRequest.SerializeToString
        )
        first = pb.FetchRequest(topic_name=topic, num_requested=WINDOW, replay_preset=pb.EARLIEST)
        more = threading.Semaphore(0)

        def requests() -> Iterator[pb.FetchRequest]:
            yield first
            for _ in range(RECORDED - 1):
                more.acquire()
                yield pb.FetchRequest(num_requested=RESPONSE)

        with file.open("wb") as out:
            for response in subscribe(requests(), metadata=emulator.headers):
                assert len(pb.FetchResponse.FromString(response).events) == RESPONSE
                out.write(struct.pack(">I", len(response)) + response)
                more.release()


@contextmanager
def other(server: Path, responses: Path) -> Iterator[str]:
    """Run the other server; its address."""
    with subprocess.Popen(
        [str(server), str(responses)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def be_client() -> None:
    """Read as the line of input says, and print the sample."""
    target, topic, headers = json.loads(sys.stdin.readline())
    meter = Meter(arguments.events)
    receive_bare(target, topic, RESPONSE, meter, [(name, value) for name, value in headers])
    print(json.dumps(meter.sample), flush=True)


def read_once(target: str, topic: str, headers: Any = (), events: int = 0) -> Sample:
    """Read from a server in a new process."""
    count = str(events or arguments.events)
    with peer(ROOT, Path(__file__).name, "--receive", "--events", count) as client:
        client.tell([target, topic, headers])
        return Sample(*client.hear())


def stream(directory: Path) -> Iterator[dict[str, Any]]:
    """Return a line for each kind of event."""
    server = build(directory)
    fill(directory / "data", arguments.events)
    for kind, (topic, name) in KINDS.items():
        line: dict[str, Any] = {"event": kind, "per_response": RESPONSE}
        with running(directory / "data") as emulator:
            record(emulator, topic, directory / name)
        with ExitStack() as stack:
            address = None
            if isinstance(server, Path):
                address = stack.enter_context(other(server, directory / name))
            else:
                line["skipped"] = server
            samples = rounds(directory / "data", topic, address)
        line["rounds"] = len(samples["first"])
        for which in ("first", "again"):
            line[which] = of_samples(samples[which])
            if address is not None:
                line[which] |= of_pairs("ratio", speed, samples[which], samples["go"])
        if address is not None:
            line["go"] = of_samples(samples["go"])
        yield line


def speed(sample: Sample) -> float:
    """Events a second."""
    return sample.speed


def rounds(data_dir: Path, topic: str, address: str | None) -> dict[str, list[Sample]]:
    """Read from a new emulator twice and from the other server, in turns."""
    samples: dict[str, list[Sample]] = {"first": [], "again": [], "go": []}
    ends = time.perf_counter() + arguments.seconds
    while len(samples["first"]) < 3 or time.perf_counter() < ends:
        with running(data_dir) as emulator:
            samples["first"].append(read_once(emulator.target, topic, emulator.headers))
            if address is not None:
                samples["go"].append(read_once(address, topic))
            samples["again"].append(read_once(emulator.target, topic, emulator.headers))
    return samples


# A large log.


def memory(directory: Path) -> Iterator[dict[str, Any]]:
    """Publish all and read all."""
    schema, payloads = corpus("platform")
    with EmulatorServer(directory / "large") as emulator:
        emulator.bus.put_topic(TOPIC, schema)
    events = [pb.ProducerEvent(schema_id=schema.schema_id, payload=item) for item in payloads]
    request = pb.PublishRequest(topic_name=TOPIC, events=events[:CALL])
    with running(directory / "large") as running_one:
        line: dict[str, Any] = {"events": arguments.stored, "before_mib": running_one.memory()}
        with grpc.insecure_channel(running_one.target) as channel:
            publish = pb_grpc.PubSubStub(channel).Publish
            began = time.perf_counter()
            for _ in range(0, arguments.stored, CALL):
                publish(request, metadata=running_one.headers)
            line["published_per_s"] = round(arguments.stored / (time.perf_counter() - began))
        line["published_mib"] = running_one.memory()
        sample = read_once(running_one.target, TOPIC, running_one.headers, arguments.stored)
        line["read_per_s"] = round(sample.speed)
        line["read_mib"] = running_one.memory()
        line["peak_mib"] = running_one.memory("VmHWM")
    yield line


def streams(directory: Path) -> Iterator[dict[str, Any]]:
    """Wait for live events on many streams."""
    schema, payloads = corpus("platform")
    event = pb.ProducerEvent(schema_id=schema.schema_id, payload=payloads[0])
    with (
        running(directory / "large") as emulator,
        grpc.insecure_channel(emulator.target) as channel,
    ):
        stub = pb_grpc.PubSubStub(channel)
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
        del took[0]  # while that was under way the streams were opened
        resident = emulator.memory()
        over.set()
    yield {
        "streams": arguments.streams,
        "to_all_ms": round(statistics.median(took) * 1000, 1),
        "max_ms": round(max(took) * 1000, 1),
        "resident_mib": resident,
    }


def ready(directory: Path) -> Iterator[dict[str, Any]]:
    """Start a process again and again."""
    for has_bytecode in (True, False):
        cache = directory / f"bytecode {has_bytecode}"
        environment = {
            "PYTHONPYCACHEPREFIX": str(cache),
            "PYTHONDONTWRITEBYTECODE": "" if has_bytecode else "1",  # empty is as if it were unset
        }
        with running(directory / "large", **environment):
            pass  # the first writes the bytecode, if it may
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
    """Measure and print."""
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
    """Whether a case needs the log that ``memory`` makes."""
    return bool({"streams", "ready"} & set(arguments.cases))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--events", type=int, default=20_000, help="a read of the case stream")
    parser.add_argument("--stored", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        be_client()
    else:
        main()
