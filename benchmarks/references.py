"""Reference clients in Python: grpcio alone, and a good client based on it.

Both request more events when half of the window has been received, which was measured to be the
fastest: each request costs as much as a response.

``bare`` receives messages as bytes and does not parse them; no client based on grpcio can be faster
than this.

``good`` is a client that an experienced developer would write: one channel, messages parsed by
protobuf, schemas fetched and parsed once, payloads decoded by fastavro, and events requested before
a response is decoded. It has no reconnects, no positions and no bitmaps.
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
OWED = WINDOW // 2  # received events after which the same number is requested
SUBSCRIBE = "/eventbus.v1.PubSub/Subscribe"
GET_SCHEMA = "/eventbus.v1.PubSub/GetSchema"


@contextmanager
def channel(target: str, ca_file: str) -> Iterator[grpc.Channel]:
    """Open a gRPC channel to *target*; in plaintext if *ca_file* is empty."""
    options = [("grpc.max_receive_message_length", -1)]
    if not ca_file:
        with grpc.insecure_channel(target, options) as opened:
            yield opened
        return
    credentials = grpc.ssl_channel_credentials(Path(ca_file).read_bytes())
    with grpc.secure_channel(target, credentials, options) as opened:
        yield opened


class Call:
    """A Subscribe call that starts at the earliest event."""

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
        """Count received events; request more if half of the window has been received."""
        self._owed += events
        if self._owed >= OWED:
            self._requests.put(pb.FetchRequest(num_requested=self._owed))
            self._owed = 0

    def close(self) -> None:
        """Half-close and cancel the call."""
        self._requests.put(None)
        self._call.cancel()
        del self._call  # a remaining call may block the exit of the interpreter


def receive_bare(
    target: str,
    ca_file: str,
    topic: str,
    size: int,
    meter: Meter,
    headers: Sequence[tuple[str, str]] = (),
) -> None:
    """Receive messages with grpcio alone, until *meter* has enough events.

    Args:
        target: Address of the server.
        ca_file: PEM file of the certificate authority to trust; empty for plaintext.
        topic: Full path of the topic.
        size: Events per response. All responses are full, because credit is always a multiple.
        meter: Counts the events and ends the measurement.
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
    """A receiving client of the API; see the module's docstring."""

    def __init__(self, opened: grpc.Channel) -> None:
        self._channel = opened
        self._get_schema: Any = opened.unary_unary(
            GET_SCHEMA, pb.SchemaRequest.SerializeToString, pb.SchemaInfo.FromString
        )
        self._schemas: dict[str, Any] = {}

    def receive(self, topic: str, meter: Meter, pause: float) -> None:
        """Decode events until *meter* has enough; sleep for *pause* seconds after each event."""
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
        """Return the fields of an event, decoded from its payload."""
        schema = self._schemas.get(event.schema_id)
        if schema is None:
            found = self._get_schema(pb.SchemaRequest(schema_id=event.schema_id))
            schema = fastavro.parse_schema(json.loads(found.schema_json))
            self._schemas[event.schema_id] = schema
        return fastavro.schemaless_reader(io.BytesIO(event.payload), schema, None)


def in_threads(receive: Callable[[str], None], topics: Sequence[str]) -> None:
    """Call *receive* with each topic: the first in this thread, the others in new threads."""
    others = [threading.Thread(target=receive, args=(topic,)) for topic in topics[1:]]
    for other in others:
        other.start()
    receive(topics[0])
    for other in others:
        other.join()


def bare(job: Job, meter: Meter) -> None:
    """Do a job with `receive_bare`, in one thread per subscription."""

    def receive(topic: str) -> None:
        receive_bare(job.target, job.ca_file, topic, job.run.size, meter)

    in_threads(receive, [f"/data/{name}" for name in job.run.names()])


def good(job: Job, meter: Meter) -> None:
    """Do a job with `GoodClient`, in one thread per subscription."""
    with channel(job.target, job.ca_file) as opened:
        client = GoodClient(opened)

        def receive(topic: str) -> None:
            client.receive(topic, meter, job.run.pause / 1000)

        in_threads(receive, [f"/data/{name}" for name in job.run.names()])


WAYS = {"bare": bare, "good": good}
