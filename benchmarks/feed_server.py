"""A server that sends events as fast as credit allows, for `subscribe.py`.

What it sends was encoded beforehand. It knows the topics of `KINDS`, each once for every number of
events in a response: ``/data/AccountChangeEvent_10`` sends up to 10 in one. So does the managed
subscription ``AccountChangeEvent_10``, whose commits are all accepted at once. A feed never ends,
and where a stream is to start is not looked at.

It is a process of its own and ends with its standard input. Its only line of output is JSON: the
address, and the mean number of payload bytes of each kind.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc
from tests.avro.schemas import schema_text, values

from sfpubsub.emulator.org.schemas import Schema
from sfpubsub_grpc import pubsub_api_pb2 as pb

KINDS = {  # kind of event -> topic, schema in the corpus of the tests
    "change": ("/data/AccountChangeEvent", "account_change"),
    "platform": ("/event/Order_Event__e", "order_event"),
}
SIZES = (100, 10, 1)  # events in a response
WINDOW = 100  # events that may be outstanding, as with the service
FIELDS = 58  # of the change event, which has some more in the corpus
COUNT = 200  # different payloads of a kind, sent again and again
# How often before an event comes with the same ids as one before: with fewer a client that has not
# committed so many would take it for sent again, and drop it.
REPEATS = 50
# Which of the change events are CREATEs, with most fields, and not UPDATEs, with a few: so many
# that the mean is 630 bytes.
CREATES = (True, False, True, False, True, True, False, True)


def corpus(kind: str) -> tuple[Schema, list[bytes]]:
    """Return the schema and the payloads of a kind."""
    name = KINDS[kind][1]
    text = json.loads(schema_text(name))
    text["fields"] = text["fields"][:FIELDS]
    schema, kept = Schema(json.dumps(text)), {field["name"] for field in text["fields"]}
    payloads: dict[bool, list[bytes]] = {True: [], False: []}
    for value in values(name, 5 * COUNT):  # a quarter of them CREATEs
        is_create = value.get("ChangeEventHeader", {}).get("changeType") == "CREATE"
        fields = {field: part for field, part in value.items() if field in kept}
        payloads[is_create].append(schema.encode(fields, now=0.0))
    wanted = [kind == "change" and CREATES[n % len(CREATES)] for n in range(COUNT)]
    return schema, [payloads[is_create].pop() for is_create in wanted]


class Feed:
    """The events of a kind in their wire form, one behind another."""

    def __init__(self, schema_id: str, payloads: list[bytes]) -> None:
        # A message may be written in pieces: here one for each event, without what is behind them.
        ids = range(REPEATS)
        parts = [self._part(schema_id, payload) for _ in ids for payload in payloads] * 2
        # Twice, so that any 100 events in a row are a slice.
        self._wire = b"".join(parts)
        self._starts = [0, *accumulate(map(len, parts))]
        rpc_id = str(uuid.uuid4())
        self._tails = [
            pb.FetchResponse(rpc_id=rpc_id, pending_num_requested=pending).SerializeToString()
            for pending in range(WINDOW + 1)
        ]

    @staticmethod
    def _part(schema_id: str, payload: bytes) -> bytes:
        event = pb.ProducerEvent(id=str(uuid.uuid4()), schema_id=schema_id, payload=payload)
        replay_id = os.urandom(8) + bytes(2)
        message = pb.FetchResponse(events=[pb.ConsumerEvent(event=event, replay_id=replay_id)])
        return message.SerializeToString()

    def response(self, first: int, count: int, pending: int) -> bytes:
        """Return a FetchResponse; as a ManagedFetchResponse its bytes are the same."""
        first %= COUNT * REPEATS
        events = self._wire[self._starts[first] : self._starts[first + count]]
        return events + self._tails[pending]


class Stream:
    """What the client of one call has asked for."""

    def __init__(self) -> None:
        self.name = ""  # of the topic or the managed subscription
        self.credit = 0
        self.commits: deque[pb.CommitReplayRequest] = deque()  # not answered yet
        self.has_ended = False
        self.changed = asyncio.Event()

    async def read(self, requests: AsyncIterator[Any]) -> None:
        """Take requests until they end."""
        try:
            async for request in requests:
                if isinstance(request, pb.FetchRequest):
                    name = request.topic_name.rpartition("/")[2]
                else:
                    name = request.developer_name
                    if request.HasField("commit_replay_id_request"):
                        self.commits.append(request.commit_replay_id_request)
                self.name = self.name or name
                self.credit = min(WINDOW, self.credit + request.num_requested)
                self.changed.set()
        finally:
            self.has_ended = True
            self.changed.set()

    def answer(self) -> bytes:
        """Return the answer to the oldest commit."""
        asked = self.commits.popleft()
        return pb.ManagedFetchResponse(
            pending_num_requested=self.credit,
            commit_response=pb.CommitReplayResponse(
                commit_request_id=asked.commit_request_id,
                replay_id=asked.replay_id,
                process_time=round(time.time() * 1000),
            ),
        ).SerializeToString()


class Server:
    """The service, as far as a subscriber needs it."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}  # of a payload, by kind
        self._schemas: dict[str, str] = {}
        self._feeds: dict[str, tuple[Feed, int]] = {}
        for kind, (topic, _) in KINDS.items():
            schema, payloads = corpus(kind)
            self.bytes[kind] = round(statistics.mean(map(len, payloads)))
            self._schemas[schema.schema_id] = schema.text
            feed = Feed(schema.schema_id, payloads)
            for size in SIZES:
                self._feeds[f"{topic.rpartition('/')[2]}_{size}"] = (feed, size)

    async def get_schema(self, request: pb.SchemaRequest, _context: Any) -> pb.SchemaInfo:
        """Answer GetSchema."""
        text = self._schemas[request.schema_id]
        return pb.SchemaInfo(schema_id=request.schema_id, schema_json=text)

    async def subscribe(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Answer Subscribe and ManagedSubscribe."""
        stream, sent = Stream(), 0
        reading = asyncio.create_task(stream.read(requests))
        while True:
            if stream.commits:
                await context.write(stream.answer())
            elif stream.has_ended:  # then the service ends the stream
                break
            elif stream.credit:
                feed, size = self._feeds[stream.name]
                count = min(size, stream.credit)
                stream.credit -= count
                await context.write(feed.response(sent, count, stream.credit))
                sent += count
            else:
                stream.changed.clear()
                await stream.changed.wait()
        await reading

    def handlers(self) -> dict[str, Any]:
        """Return what grpc calls. Streams write bytes, so they have no serializer."""
        stream = grpc.stream_stream_rpc_method_handler
        return {
            "GetSchema": grpc.unary_unary_rpc_method_handler(
                self.get_schema, pb.SchemaRequest.FromString, pb.SchemaInfo.SerializeToString
            ),
            "Subscribe": stream(self.subscribe, pb.FetchRequest.FromString),
            "ManagedSubscribe": stream(self.subscribe, pb.ManagedFetchRequest.FromString),
        }


async def serve() -> None:
    """Serve on loopback until standard input ends."""
    service, server = Server(), grpc.aio.server()
    handlers = grpc.method_handlers_generic_handler("eventbus.v1.PubSub", service.handlers())
    server.add_generic_rpc_handlers([handlers])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps([f"127.0.0.1:{port}", service.bytes]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
