"""The ways to receive with this package. Uses an API that older checkouts have, if possible."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

from benchmarks.references import in_threads
from benchmarks.runs import Job, Meter
from sfpubsub import AsyncPubSubClient, PubSubClient, Session

GATHERED = 1_000  # events per record batch
WORKERS = 8  # workers of `run`

Read = Callable[[Any], None]
"""A function that reads each event of a batch."""


def read_payloads(batch: Any) -> None:
    for event in batch:
        event.payload  # noqa: B018  # a property


def read_values(batch: Any) -> None:
    for event in batch:
        event.value  # noqa: B018  # a property, which decodes


def read_facts(batch: Any) -> None:
    for event in batch:
        event.value  # noqa: B018
        facts = event if hasattr(event, "changed_fields") else event.change_event
        if facts is not None:  # None for a platform event
            facts.changed_fields  # noqa: B018  # a property, which reads bitmaps


def read_json(batch: Any) -> None:
    for event in batch:
        event.to_json()


def slowly(read: Read, pause: float) -> Read:
    """Return a function that reads each event and then sleeps for *pause* seconds."""

    def handle(batch: Any) -> None:
        for event in batch:
            read([event])
            time.sleep(pause)

    return handle if pause else read


def noted(read: Read, meter: Meter) -> Read:
    """Return *read*; if the meter measures latency, also record it after each event."""

    def handle(batch: Any) -> None:
        for event in batch:
            read([event])
            meter.published(bytes(event.replay_id))

    return handle if meter.is_paced else read


def arguments(job: Job) -> dict[str, Any]:
    """Return the arguments of a client for the server of *job*."""
    session = Session("token", "https://127.0.0.1", "00D000000000001AAA")
    return {"session": session, "endpoint": job.target, "ca_file": job.ca_file}


def sync(
    read: Read, job: Job, meter: Meter, *, is_managed: bool = False, is_stored: bool = False
) -> None:
    """Iterate over batches with the synchronous client, in one thread per subscription."""
    store: dict[str, Any] = {}
    read = noted(slowly(read, job.run.pause / 1000), meter)
    with PubSubClient(**arguments(job)) as client:

        def receive(name: str) -> None:
            if is_managed:
                subscription: Any = client.subscribe_managed(name)
            else:
                replay: Any = store if is_stored else "earliest"
                subscription = client.subscribe(f"/data/{name}", replay=replay)
            with subscription:
                for batch in subscription:
                    read(batch)
                    if meter.is_enough(len(batch)):
                        break
                if is_managed:
                    subscription.commit()  # raises if the server rejects it

        in_threads(receive, job.run.names())
    assert bool(store) == is_stored


def arrow(job: Job, meter: Meter) -> None:
    """Collect events and convert them to Arrow record batches."""
    from sfpubsub.avro.arrow import record_batches

    waiting: list[Any] = []
    pending = 0

    def read(batch: Any) -> None:
        nonlocal pending
        waiting.append(batch)
        pending += len(batch)
        if pending >= GATHERED:
            made = record_batches(waiting)
            assert sum(rows.num_rows for rows in made) == pending
            waiting.clear()
            pending = 0

    sync(read, job, meter)


def run_sync(job: Job, meter: Meter) -> None:
    """Receive with a handler and `run`, with `WORKERS` workers."""
    pause = job.run.pause / 1000
    with PubSubClient(**arguments(job)) as client:
        [name] = job.run.names()
        subscription = client.subscribe(f"/data/{name}", replay="earliest", replay_store={})

        def handle(event: Any) -> None:
            event.value  # noqa: B018
            time.sleep(pause)
            if meter.is_paced:
                meter.published(bytes(event.replay_id))
            if meter.is_enough(1):
                subscription.stop()

        subscription.run(handle, workers=WORKERS)


async def _aio(job: Job, meter: Meter) -> None:
    pause = job.run.pause / 1000
    read = noted(read_values, meter)
    async with AsyncPubSubClient(**arguments(job)) as client:

        async def receive(name: str) -> None:
            async with client.subscribe(f"/data/{name}", replay="earliest") as subscription:
                async for batch in subscription:
                    if pause:
                        for event in batch:
                            read([event])
                            await asyncio.sleep(pause)
                    else:
                        read(batch)
                    if meter.is_enough(len(batch)):
                        break

        await asyncio.gather(*map(receive, job.run.names()))


async def _run_aio(job: Job, meter: Meter) -> None:
    pause = job.run.pause / 1000
    async with AsyncPubSubClient(**arguments(job)) as client:
        [name] = job.run.names()
        subscription = client.subscribe(f"/data/{name}", replay="earliest", replay_store={})

        async def handle(event: Any) -> None:
            event.value  # noqa: B018
            await asyncio.sleep(pause)
            if meter.is_paced:
                meter.published(bytes(event.replay_id))
            if meter.is_enough(1):
                subscription.stop()

        await subscription.run(handle, workers=WORKERS)


def aio(job: Job, meter: Meter) -> None:
    """Iterate over batches with the asyncio client."""
    asyncio.run(_aio(job, meter))


def run_aio(job: Job, meter: Meter) -> None:
    """Receive with a handler and `run` of the asyncio client, with `WORKERS` workers."""
    asyncio.run(_run_aio(job, meter))


def cli(job: Job, meter: Meter) -> None:
    """Run ``sfpubsub subscribe`` with its output discarded, and count the lines it writes."""
    from sfpubsub.cli.main import run

    [name] = job.run.names()
    words = ["subscribe", "--topic", f"/data/{name}", "--replay", "earliest"]
    words += ["--max-events", str(job.run.events), "--endpoint", job.target]
    words += ["--ca-file", job.ca_file, "--instance-url", "https://127.0.0.1"]
    words += ["--tenant-id", "00D000000000001AAA"]
    os.environ["SFPUBSUB_ACCESS_TOKEN"] = "token"
    said = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as place,
        open(os.devnull, "w") as nothing,
        redirect_stdout(nothing),
        redirect_stderr(said),
        counted_lines(nothing.fileno(), meter),
    ):
        os.environ["SFPUBSUB_STATE_DIR"] = place
        code = run(words)
    if code:
        raise SystemExit(f"sfpubsub exited with code {code}: {said.getvalue()}")


@contextmanager
def counted_lines(descriptor: int, meter: Meter) -> Iterator[None]:
    """Within the block, count lines written to *descriptor* as events in *meter*."""
    write = os.write

    def counted(to: int, data: Any) -> int:
        size = write(to, data)
        if to == descriptor:
            meter.is_enough(bytes(data[:size]).count(b"\n"))
        return size

    os.write = counted
    try:
        yield
    finally:
        os.write = write


WAYS: dict[str, Callable[[Job, Meter], None]] = {
    "raw": partial(sync, read_payloads),
    "dicts": partial(sync, read_values),
    "facts": partial(sync, read_facts),
    "json": partial(sync, read_json),
    "managed": partial(sync, read_values, is_managed=True),
    "stored": partial(sync, read_values, is_stored=True),
    "arrow": arrow,
    "asyncio": aio,
    "run": run_sync,
    "asyncio-run": run_aio,
    "cli": cli,
}
