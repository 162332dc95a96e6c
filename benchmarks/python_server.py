"""A Python version of `feed_server.go`, for machines without Go. It is slower, but otherwise equal.

python -m benchmarks.python_server DIRECTORY ROUND_TRIP...
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from benchmarks.feed import WINDOW
from sfpubsub_grpc import pubsub_api_pb2 as pb

RPC_ID = "8f2c1f2e-5f0f-4d43-9a31-5d7d0f6f2b6c"  # the RPC id of all responses
ID = b"00000000-0000-4000-8000-000000000000"
REPLAY_ID = b"\xff" * 10  # placeholder; not valid UTF-8, so it occurs nowhere else
PIECE = 1 << 15  # maximum number of bytes that are read at a time


class Template:
    """An encoded event, as part of a response, into which event id and replay id are inserted."""

    def __init__(self, schema_id: str, payload: bytes) -> None:
        event = pb.ProducerEvent(id=ID.decode(), schema_id=schema_id, payload=payload)
        message = pb.FetchResponse(events=[pb.ConsumerEvent(event=event, replay_id=REPLAY_ID)])
        head, rest = message.SerializeToString().split(ID[-12:], 1)
        self._parts = head, rest.removesuffix(REPLAY_ID)

    def wire(self, unique: int, position: int) -> bytes:
        """Return the encoded event with the number *unique* as id, and the replay id *position*."""
        head, rest = self._parts
        return b"%b%012x%b%b\0\0" % (head, unique, rest, position.to_bytes(8, "big"))


class Feed:
    """The schema and the encoded events of one kind."""

    def __init__(self, kind: dict[str, Any]) -> None:
        self.schema = pb.SchemaInfo(schema_id=kind["schema_id"], schema_json=kind["schema"])
        payloads = map(base64.b64decode, kind["payloads"])
        self.templates = [Template(kind["schema_id"], payload) for payload in payloads]


class Stream:
    """The state of one call: its credit, its feed and the number of events sent."""

    def __init__(self, service: Service, context: Any) -> None:
        self.credit = 0
        self._service = service
        self._context = context
        self._feed: Feed | None = None
        self._size = 0
        self._interval = 0.0
        self._has_ended = False
        self._changed = asyncio.Event()
        self._sent = 0
        self._last = 0  # the last position sent
        self._writing = asyncio.Lock()

    async def read(self, requests: AsyncIterator[Any]) -> None:
        """Process the requests of the call until they end."""
        try:
            async for request in requests:
                self._service.counts["requests"] += 1
                if self._feed is None:
                    name = getattr(request, "topic_name", "") or request.developer_name
                    self._feed, self._size, rate = self._service.find(name)
                    self._interval = 1 / rate if rate else 0.0
                self.credit = min(WINDOW, self.credit + request.num_requested)
                if not isinstance(request, pb.FetchRequest):
                    await self._commit(request)
                self._changed.set()
        finally:
            self._has_ended = True
            self._changed.set()

    async def _commit(self, request: pb.ManagedFetchRequest) -> None:
        if not request.HasField("commit_replay_id_request"):
            return
        self._service.counts["commits"] += 1
        asked = request.commit_replay_id_request
        answer = pb.CommitReplayResponse(
            commit_request_id=asked.commit_request_id,
            replay_id=asked.replay_id,
            process_time=round(time.time() * 1000),
        )
        await self._write(
            pb.ManagedFetchResponse(
                pending_num_requested=self.credit, commit_response=answer
            ).SerializeToString()
        )

    async def _write(self, message: bytes) -> None:
        async with self._writing:
            await self._context.write(message)

    async def serve(self) -> None:
        """Send events as credit and rate allow, until the client half-closes the call."""
        due = 0.0
        while True:
            while not self.credit and not self._has_ended:
                self._changed.clear()
                await self._changed.wait()
            if self._has_ended:
                return
            published = time.time()
            if self._interval:
                due = (due or published) + self._interval
                if due > published:
                    await asyncio.sleep(due - published)
                    due = max(due, published)
                published = time.time() if due > published else due
            await self._write(self._response(round(published * 1e9)))

    def _response(self, published: int) -> bytes:
        assert self._feed is not None
        count = min(self._size, self.credit)
        self.credit -= count
        first = max(published, self._last + 1)
        self._last = first + count - 1
        templates, parts = self._feed.templates, []
        for position in range(first, first + count):
            template = templates[self._sent % len(templates)]
            parts.append(template.wire(next(self._service.unique), position))
            self._sent += 1
        tail = pb.FetchResponse(
            latest_replay_id=self._last.to_bytes(8, "big") + b"\0\0",
            rpc_id=RPC_ID,
            pending_num_requested=self.credit,
        )
        self._service.counts.update(responses=1, events=count)
        return b"".join(parts) + tail.SerializeToString()


class Service:
    """The RPC methods of the Pub/Sub API that a subscriber needs."""

    def __init__(self, kinds: dict[str, Any]) -> None:
        self.feeds = {name: Feed(kind) for name, kind in kinds.items()}
        self.counts = Counter(requests=0, commits=0, responses=0, events=0)
        self.unique = itertools.count(1)

    def find(self, name: str) -> tuple[Feed, int, int]:
        """Return the feed, the events per response and the responses per second from *name*."""
        kind, size, rate, _ = name.rpartition("/")[2].split("_")
        return self.feeds[kind], int(size), int(rate)

    async def get_topic(self, request: pb.TopicRequest, _context: Any) -> pb.TopicInfo:
        """Handle a GetTopic call."""
        feed, _, _ = self.find(request.topic_name)
        schema_id = feed.schema.schema_id
        return pb.TopicInfo(topic_name=request.topic_name, can_subscribe=True, schema_id=schema_id)

    async def get_schema(self, request: pb.SchemaRequest, _context: Any) -> pb.SchemaInfo:
        """Handle a GetSchema call."""
        schemas = (feed.schema for feed in self.feeds.values())
        return next(schema for schema in schemas if schema.schema_id == request.schema_id)

    async def subscribe(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Handle a Subscribe or ManagedSubscribe call."""
        stream = Stream(self, context)
        reading = asyncio.create_task(stream.read(requests))
        await stream.serve()
        await reading

    def handlers(self) -> dict[str, Any]:
        """Return the gRPC handlers by method. Streams write bytes, so they have no serializer."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        return {
            "GetTopic": unary(
                self.get_topic, pb.TopicRequest.FromString, pb.TopicInfo.SerializeToString
            ),
            "GetSchema": unary(
                self.get_schema, pb.SchemaRequest.FromString, pb.SchemaInfo.SerializeToString
            ),
            "Subscribe": stream(self.subscribe, pb.FetchRequest.FromString),
            "ManagedSubscribe": stream(self.subscribe, pb.ManagedFetchRequest.FromString),
        }


async def delayed(port: int, way: float) -> int:
    """Start a proxy to *port* that delays each direction by *way* seconds; return its port."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parcels: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await parcels.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    writer.close()
                    return
                writer.write(data)

        delivering = asyncio.create_task(deliver())
        data = b"none yet"
        while data:
            try:
                data = await reader.read(PIECE)
            except ConnectionError:
                data = b""
            parcels.put_nowait((time.monotonic() + way, data))
        await delivering

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def answer_lines(answer: Callable[[], Awaitable[None]]) -> None:
    """Call *answer* for each line of standard input, until the input ends."""
    while await asyncio.to_thread(sys.stdin.readline):
        await answer()


async def serve(directory: Path, round_trips: list[str]) -> None:
    """Serve the events in *directory* on loopback until standard input ends."""
    feed = json.loads((directory / "feed.json").read_text())
    service, server = Service(feed["kinds"]), grpc.aio.server()
    handlers = grpc.method_handlers_generic_handler("eventbus.v1.PubSub", service.handlers())
    server.add_generic_rpc_handlers([handlers])
    pair = [(directory / feed[name]).read_bytes() for name in ("key", "certificate")]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([tuple(pair)]))
    await server.start()
    targets = {}
    for round_trip in round_trips:
        way = float(round_trip) / 2000
        targets[round_trip] = f"127.0.0.1:{await delayed(port, way) if way else port}"

    async def tell_counts() -> None:
        print(json.dumps(service.counts), flush=True)

    print(json.dumps(targets), flush=True)
    await answer_lines(tell_counts)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
