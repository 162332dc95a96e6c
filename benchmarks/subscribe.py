"""What a subscriber costs beside bare grpcio: one JSON line a case.

    python benchmarks/subscribe.py [--seconds 200] [--events 10000] [--cases raw dicts ...]
                                   [--tree CHECKOUT] [--against OTHER_CHECKOUT]

`feed_server.py`, a process of its own on loopback without TLS, sends events that were encoded
beforehand, in responses of up to 100, 10 and 1: change events (58 fields, 630 bytes) and platform
events (10 fields, 140 bytes).

``raw`` reads `Event.payload`, ``dicts`` `Event.value`, and ``asyncio`` does so through the asyncio
face. ``managed`` and ``stored`` read payloads as well; what is acked by itself is committed, or
goes into a mapping in memory, so what they cost more than ``raw`` is the price of a position.
``reference`` is the naive loop on grpcio: it counts responses, looks into none, and after each
asks for as many events again. With small responses those are many requests, so a client that asks
less often can be faster.

``events_per_s`` is of the wall, ``cpu_us`` the CPU time of the client's process for an event; a
fifth of the events of a run warms up and is not counted. ``ratio`` is the speed as a ratio to the
reference of the same round. Rounds are interleaved, each with new processes, and there are as many
as ``--seconds`` allow, at least one. With ``--against`` each run has a twin in the other checkout,
right before or after it and on the same server: ``speed_to_against`` (more is better) and
``cpu_to_against`` (less is better) are medians of the pairs' ratios. A ``spread`` is the quartiles,
``load`` the machine's load at start and end. A checkout against itself shows what is noise.

Server and client share this machine's cores. With 1 event in a response the server needs as much
CPU time as the reference does, so speed says little there: compare ``cpu_us``. Only ratios mean
something on another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import operator
import os
import platform
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOPICS = {"change": "/data/AccountChangeEvent", "platform": "/event/Order_Event__e"}
SHARES = {100: 1.0, 10: 0.5, 1: 0.1}  # events in a response -> part of ``--events`` for a run
CASES = ("raw", "dicts", "managed", "stored", "asyncio")
WINDOW = 100  # events that may be outstanding
WARM_UP = 0.2  # part of the events: connects, compiles the decoder, fills the client's queue
STUCK = 120.0  # seconds for a run; after that its process says where it stands, and ends


class Sample(NamedTuple):
    """What one run came to."""

    events: int
    seconds: float
    cpu: float
    """CPU seconds of the client's process."""

    @property
    def speed(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time of an event, in microseconds."""
        return self.cpu / self.events * 1e6


class Run(NamedTuple):
    """What a client's process is asked to do."""

    case: str
    kind: str
    size: int
    """Events in a response."""


# In a client's process. It uses only what every checkout has.


class Meter:
    """Measures from the end of the warm-up to the last event."""

    def __init__(self, events: int) -> None:
        self.sample: Sample | None = None
        self._seen = 0
        self._last = events
        self._began: Sample | None = None

    def is_enough(self, count: int) -> bool:
        """Count *count* events, and return whether those were the last."""
        self._seen += count
        if self._seen >= self._last and self._began is not None:
            self.sample = Sample(*map(operator.sub, self._now(), self._began))
        elif self._seen >= WARM_UP * self._last and self._began is None:
            self._began = self._now()
        return self.sample is not None

    def _now(self) -> Sample:
        return Sample(self._seen, time.perf_counter(), time.process_time())


def read_payloads(batch: Any) -> None:
    for event in batch:
        event.payload  # noqa: B018  # a property


def read_values(batch: Any) -> None:
    for event in batch:
        event.value  # noqa: B018  # a property, which decodes


def receive_bare(
    target: str, topic: str, size: int, meter: Meter, headers: Sequence[tuple[str, str]] = ()
) -> None:
    """Receive with grpcio alone, all that there is."""
    import grpc

    from sfpubsub_grpc import pubsub_api_pb2 as pb

    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.insecure_channel(target) as channel:
        subscribe: Any = channel.stream_stream(
            "/eventbus.v1.PubSub/Subscribe", pb.FetchRequest.SerializeToString
        )
        requests.put(
            pb.FetchRequest(topic_name=topic, num_requested=WINDOW, replay_preset=pb.EARLIEST)
        )
        call = subscribe(iter(requests.get, None), metadata=headers)
        for _ in call:  # bytes: of *size* events, since credit is always a multiple of that
            if meter.is_enough(size):
                break
            requests.put(pb.FetchRequest(num_requested=size))
        requests.put(None)
        call.cancel()
        del call  # one that lives may block the end of the interpreter


def receive(case: str, target: str, topic: str, meter: Meter) -> None:
    """Receive with the synchronous face."""
    from sfpubsub import PubSubClient, Session

    store: dict[str, Any] = {}
    read = read_values if case == "dicts" else read_payloads
    with PubSubClient(Session("token", "http://x", "org"), endpoint=target, insecure="1") as client:
        if case == "managed":
            subscription: Any = client.subscribe_managed(topic.rpartition("/")[2])
        else:
            subscription = client.subscribe(topic, replay=store if case == "stored" else "earliest")
        with subscription:
            for batch in subscription:
                read(batch)
                if meter.is_enough(len(batch)):
                    break
            if case == "managed":
                subscription.commit()  # raises if the server does not take it
    assert bool(store) == (case == "stored")


async def receive_async(target: str, topic: str, meter: Meter) -> None:
    """Receive with the asyncio face."""
    from sfpubsub import AsyncPubSubClient, Session

    session = Session("token", "http://x", "org")
    async with (
        AsyncPubSubClient(session, endpoint=target, insecure="1") as client,
        client.subscribe(topic, replay="earliest") as subscription,
    ):
        async for batch in subscription:
            read_values(batch)
            if meter.is_enough(len(batch)):
                break


def be_client(target: str) -> None:
    """Answer each line of input, which asks for a run, with its sample."""
    import sfpubsub

    print(json.dumps(sfpubsub.__file__), flush=True)
    for line in sys.stdin:
        run = Run(*json.loads(line))
        meter = Meter(round(arguments.events * SHARES[run.size]))
        topic = f"{TOPICS[run.kind]}_{run.size}"
        faulthandler.dump_traceback_later(STUCK, exit=True)
        if run.case == "reference":
            receive_bare(target, topic, run.size, meter)
        elif run.case == "asyncio":
            asyncio.run(receive_async(target, topic, meter))
        else:
            receive(run.case, target, topic, meter)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(meter.sample), flush=True)


# In the process that measures.


class Peer:
    """Another process, which answers lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, what: Any) -> None:
        """Write a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Read a line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process ended before it was told to; what it wrote is above")
        return json.loads(line)


@contextmanager
def peer(tree: Path, script: str, *options: str) -> Iterator[Peer]:
    """Start a script of this directory with the packages of a checkout."""
    path = os.pathsep.join([str(tree / "src"), str(tree / "generated")])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(script)), *options],
        text=True,
        env={**os.environ, "PYTHONPATH": path},  # goes before what is installed
        **pipes,
    ) as process:
        try:
            yield Peer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def measure_round(number: int, target: str, trees: dict[str, Path]) -> dict[Any, Sample]:
    """Return a sample for each checkout and run; who of a pair is first alternates."""
    samples: dict[Any, Sample] = {}
    options = ["--receive", target, "--events", str(arguments.events)]
    with ExitStack() as stack:
        peers = {
            whose: stack.enter_context(peer(tree, Path(__file__).name, *options))
            for whose, tree in {"reference": ROOT, **trees}.items()
        }
        for whose, tree in {"reference": ROOT, **trees}.items():
            if not Path(source := peers[whose].hear()).is_relative_to(tree / "src"):
                raise SystemExit(f"{tree} is not a checkout: {source} was imported instead")

        def sample(whose: str, run: Run) -> None:
            peers[whose].tell(run)
            samples[whose, run] = Sample(*peers[whose].hear())

        turn = number
        for kind in TOPICS:
            for size in SHARES:
                sample("reference", Run("reference", kind, size))
                for case in arguments.cases:
                    turn += 1
                    for whose in sorted(trees, reverse=turn % 2 == 0):
                        sample(whose, Run(case, kind, size))
    return samples


def measure(target: str, trees: dict[str, Path]) -> list[dict[Any, Sample]]:
    """Return the samples of as many rounds as there is time for."""
    rounds: list[dict[Any, Sample]] = []
    began, longest = time.perf_counter(), 0.0
    while not rounds or time.perf_counter() - began + longest < arguments.seconds:
        started = time.perf_counter()
        rounds.append(measure_round(len(rounds), target, trees))
        longest = max(longest, time.perf_counter() - started)
    return rounds


def of_samples(samples: list[Sample]) -> dict[str, Any]:
    """Return the figures of a run by itself."""
    speeds = [sample.speed for sample in samples]
    return {
        "events_per_s": round(statistics.median(speeds)),
        "min": round(min(speeds)),
        "max": round(max(speeds)),
        "cpu_us": round(statistics.median(sample.cpu_us for sample in samples), 2),
    }


def of_pairs(
    name: str, figure: Callable[[Sample], float], ours: list[Sample], theirs: list[Sample]
) -> dict[str, Any]:
    """Return the median of the ratios of the rounds, and their quartiles."""
    ratios = [figure(one) / figure(other) for one, other in zip(ours, theirs, strict=True)]
    lower = middle = upper = ratios[0]
    if len(ratios) > 1:
        lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {name: round(middle, 3), f"{name}_spread": [round(lower, 3), round(upper, 3)]}


def figures(rounds: list[dict[Any, Sample]], run: Run) -> dict[str, Any]:
    """Return the figures of a run."""
    if run.case == "reference":
        return of_samples([samples["reference", run] for samples in rounds])
    bare = [samples["reference", run._replace(case="reference")] for samples in rounds]
    ours = [samples["tree", run] for samples in rounds]
    line = of_samples(ours) | of_pairs("ratio", lambda one: one.speed, ours, bare)
    if arguments.against:
        other = [samples["against", run] for samples in rounds]
        line["against"] = of_samples(other) | of_pairs("ratio", lambda one: one.speed, other, bare)
        line |= of_pairs("speed_to_against", lambda one: one.speed, ours, other)
        line |= of_pairs("cpu_to_against", lambda one: one.cpu_us, ours, other)
    return line


def main() -> None:
    """Measure and print."""
    trees = {"tree": arguments.tree.resolve()}
    if arguments.against:
        trees["against"] = arguments.against.resolve()
    loads = [os.getloadavg()[0]]
    with peer(ROOT, "feed_server.py") as server:
        target, sizes = server.hear()
        rounds = measure(target, trees)
    loads.append(os.getloadavg()[0])
    about = {
        "benchmark": "subscribe",
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in loads],
        "rounds": len(rounds),
    }
    for kind in TOPICS:
        for size in SHARES:
            for case in ("reference", *arguments.cases):
                of_run = {"case": case, "event": kind, "bytes": sizes[kind], "per_response": size}
                print(json.dumps({**about, **of_run, **figures(rounds, Run(case, kind, size))}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--events", type=int, default=10_000, help="a run, with 100 in a response")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout that is measured")
    parser.add_argument("--against", type=Path, help="another one, measured in turns with it")
    parser.add_argument("--receive", metavar="TARGET", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        be_client(arguments.receive)
    else:
        main()
