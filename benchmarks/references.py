"""What subscriptions are compared with: grpcio alone, and a good client on it.

Both ask for more events when half of the window is owed, which was measured to be the best: each
request costs as much as a response.

``bare`` receives messages as bytes and looks into none: what a client on grpcio cannot beat.

``good`` is what somebody would write who knows the API: one channel, messages parsed by protobuf,
schemas fetched once and parsed once, each payload read by fastavro, and more asked for before a
response is decoded. It knows no reconnects, no positions, and no bitmaps.
"""

from __future__ import annotations

import io
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import grpc

from benchmarks.runs import Job, Meter
from sfpubsub_grpc import pubsub_api_pb2 as pb

WINDOW = 100  # events that may be outstanding
OWED = WINDOW // 2  # events that were received and not asked for again when more are
SUBSCRIBE = "/eventbus.v1.PubSub/Subscribe"
GET_SCHEMA = "/eventbus.v1.PubSub/GetSchema"


@contextmanager
def channel(target: str, ca_file: str) -> Iterator[grpc.Channel]:
    """Open a channel; without a CA file in plaintext."""
    options = [("grpc.max_receive_message_length", -1)]
    if not ca_file:
        with grpc.insecure_channel(target, options) as opened:
            yield opened
        return
    credentials = grpc.ssl_channel_credentials(Path(ca_file).read_bytes())
    with grpc.secure_channel(target, credentials, options) as opened:
        yield opened


class Call:
    """A call of Subscribe, from the earliest event on."""

    def __init__(
        self,
        opened: grpc.Channel,
        topic: str,
        deserializer: Callable[[bytes], Any] | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        subscribe: Any = opened.stream_stream(
            SUBSCRIBE, pb.FetchRequest.SerializeToString, deserializer
        )
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(
            pb.FetchRequest(topic_name=topic, num_requested=WINDOW, replay_preset=pb.EARLIEST)
        )
        self._call = subscribe(iter(self._requests.get, None), metadata=headers)
        self._owed = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._call)

    def received(self, events: int) -> None:
        """Ask for more events if it is time to."""
        self._owed += events
        if self._owed >= OWED:
            self._requests.put(pb.FetchRequest(num_requested=self._owed))
            self._owed = 0

    def close(self) -> None:
        """End the call."""
        self._requests.put(None)
        self._call.cancel()
        del self._call  # one that lives may block the end of the interpreter


def receive_bare(
    target: str,
    ca_file: str,
    topic: str,
    size: int,
    meter: Meter,
    headers: Sequence[tuple[str, str]] = (),
) -> None:
    """Receive with grpcio alone, all that there is, in responses of *size*.

    Args:
        target: Address of the server.
        ca_file: Of the authority to trust; empty for plaintext.
        topic: Its full path.
        size: Events in a response: every response has as many, since credit is always a multiple.
        meter: Says when it is enough.
        headers: Metadata of the call.
    """
    with channel(target, ca_file) as opened:
        call = Call(opened, topic, headers=headers)
        for message in call:
            if meter.is_paced:
                meter.published(pb.FetchResponse.FromString(message).latest_replay_id)
            if meter.is_enough(size):
                break
            call.received(size)
        call.close()


class GoodClient:
    """A client of the API, as far as it receives."""

    def __init__(self, opened: grpc.Channel) -> None:
        self._channel = opened
        self._get_schema: Any = opened.unary_unary(
            GET_SCHEMA, pb.SchemaRequest.SerializeToString, pb.SchemaInfo.FromString
        )
        self._schemas: dict[str, Any] = {}

    def receive(self, topic: str, meter: Meter, pause: float) -> None:
        """Decode events until it is enough; sleep for *pause* seconds after each."""
        call = Call(self._channel, topic, pb.FetchResponse.FromString)
        for response in call:
            call.received(len(response.events))
            for event in response.events:
                self.value(event.event)
                if pause:
                    time.sleep(pause)
                if meter.is_paced:
                    meter.published(event.replay_id)
            if meter.is_enough(len(response.events)):
                break
        call.close()

    def value(self, event: Any) -> Any:
        """Return an event's fields."""
        schema = self._schemas.get(event.schema_id)
        if schema is None:
            found = self._get_schema(pb.SchemaRequest(schema_id=event.schema_id))
            schema = fastavro.parse_schema(json.loads(found.schema_json))
            self._schemas[event.schema_id] = schema
        return fastavro.schemaless_reader(io.BytesIO(event.payload), schema, None)


def in_threads(receive: Callable[[str], None], topics: Sequence[str]) -> None:
    """Call *receive* for each topic, all but the first in threads of their own."""
    others = [threading.Thread(target=receive, args=(topic,)) for topic in topics[1:]]
    for other in others:
        other.start()
    receive(topics[0])
    for other in others:
        other.join()


def bare(job: Job, meter: Meter) -> None:
    """Receive by way of `receive_bare`."""

    def receive(topic: str) -> None:
        receive_bare(job.target, job.ca_file, topic, job.run.size, meter)

    in_threads(receive, [f"/data/{name}" for name in job.run.names()])


def good(job: Job, meter: Meter) -> None:
    """Receive by way of `GoodClient`."""
    with channel(job.target, job.ca_file) as opened:
        client = GoodClient(opened)

        def receive(topic: str) -> None:
            client.receive(topic, meter, job.run.pause / 1000)

        in_threads(receive, [f"/data/{name}" for name in job.run.names()])


WAYS = {"bare": bare, "good": good}
