"""What the emulator carries: one JSON line a case.

    python benchmarks/emulator.py [--seconds 120] [--events 40000] [--stored 1000000]
                                  [--streams 200] [--cases stream ready memory streams]

The emulator is a process of its own, on loopback without TLS.

``stream`` is how fast one stream gets its events, in responses of 100: change events (58 fields,
630 bytes) and platform events (10 fields, 140 bytes), read from the earliest by the naive loop on
grpcio that is the ``reference`` of `subscribe.py`. The same loop reads from `feed_server.go`, which
sends the very bytes that the emulator sent, over and over; ``ratio`` is the emulator's speed as a
ratio to that server's. Rounds are interleaved, the two in turns, each read by a new process, and
there are as many as ``--seconds`` allow for a kind of event, at least three. A fifth of a run warms
up. Without a Go compiler the emulator's own figures are printed, and why there is no ratio. The
server is built once in a run of this script, with modules from Go's proxy.

The other cases use one log of ``--stored`` platform events, published through the API by calls of
200 events each. ``memory`` is the emulator's resident memory before, while and after these are
published and all of them are read from the earliest. ``streams`` is how long it takes until each of
so many concurrent streams, on one connection, has a live event, from when that is published, and
how long until 100 more have reached all. ``ready`` is the time from the start of the process to its
ready line, with an empty log and a full one, with Python's compiled bytecode at hand and without
any, that of the packages that it imports included.

Server and client share this machine's cores. ``load`` is that of the machine at start and end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from feed_server import KINDS, corpus
from subscribe import ROOT, WINDOW, Meter, Sample, of_pairs, of_samples, peer, receive_bare

from sfpubsub.emulator.org.bus import Draft
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

CASES = ("stream", "ready", "memory", "streams")
TOPIC = KINDS["platform"][0]
RESPONSE = 100  # events
RECORDED = 50  # responses that the other server sends again and again
CALL = 200  # events published by a call: the service's most
LIVE = 100  # events that every concurrent stream gets after its first
STARTS = 5  # of a process that is measured to its ready line
GO_MODULE = """module feed_server

go 1.24

require google.golang.org/grpc v1.83.2
"""
MIB = 1 << 20


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

    def memory(self, name: str = "VmRSS") -> float:
        """Resident memory now, or at most (VmHWM), in MiB."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


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


def read_once(target: str, topic: str, headers: Any = ()) -> Sample:
    """Read from a server in a new process."""
    with peer(ROOT, Path(__file__).name, "--receive", "--events", str(arguments.events)) as client:
        client.tell([target, topic, headers])
        return Sample(*client.hear())


def stream(directory: Path) -> Iterator[dict[str, Any]]:
    """Return a line for each kind of event."""
    server = build(directory)
    fill(directory / "data", arguments.events)
    with running(directory / "data") as emulator:
        for kind, (topic, name) in KINDS.items():
            line = {"event": kind, "per_response": RESPONSE}
            record(emulator, topic, directory / name)
            targets: dict[str, tuple[str, Any]] = {"ours": (emulator.target, emulator.headers)}
            with ExitStack() as stack:
                if isinstance(server, Path):
                    address = stack.enter_context(other(server, directory / name))
                    targets["go"] = (address, ())
                else:
                    line["skipped"] = server
                samples = rounds(targets, topic)
            line["rounds"] = len(samples["ours"])
            line |= of_samples(samples["ours"])
            if "go" in samples:
                line["go"] = of_samples(samples["go"])
                speed = lambda one: one.speed  # noqa: E731
                line |= of_pairs("ratio", speed, samples["ours"], samples["go"])
            yield line


def rounds(targets: dict[str, tuple[str, Any]], topic: str) -> dict[str, list[Sample]]:
    """Read from all, in turns; who is first alternates."""
    samples: dict[str, list[Sample]] = {name: [] for name in targets}
    ends = time.perf_counter() + arguments.seconds
    number = 0
    while number < 3 or time.perf_counter() < ends:
        for name in sorted(targets, reverse=number % 2 == 0):
            target, headers = targets[name]
            samples[name].append(read_once(target, topic, headers))
        number += 1
    return samples


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        be_client()
    else:
        with tempfile.TemporaryDirectory() as d:
            for line in stream(Path(d)):
                print(json.dumps(line))
