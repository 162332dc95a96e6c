"""Speed of both Streaming API clients, compared with a bare long-polling loop.

    python -m benchmarks streaming [--events N] [--rounds R]

The server, a separate process, answers every connect immediately with 1,000 PushTopic events. The
bare loop is a minimal program with requests: post, json.loads, read each message. The three are
interleaved. Prints one JSON line, with a part for each client: `ratio` is the client's events per
second divided by those of the bare loop, as the median of the ratios per round, and `spread` their
quartiles. `cpu_ratio` is computed from events per CPU second of this process. It is lower, because
the client reads ahead in other threads while the bare loop waits for the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

CHANNEL = "/topic/Accounts"
PER_ANSWER = 1000
TOKEN = "00D000000000001!" + "AQ" * 48  # as long as a token of the service


def events() -> str:
    """Return a PushTopic event as JSON, with ``@`` in place of its replay id."""
    record = {
        "Id": "001SB0000000001YAA",
        "Name": "Global Media",
        "Phone": "(905) 555-1212",
        "Industry": "Media",
        "AnnualRevenue": 1250000.0,
        "Website": None,
    }
    return json.dumps(
        {
            "channel": CHANNEL,
            "clientId": "2t80j2hcog29sdh9ihjd9643a",
            "data": {
                "event": {
                    "createdDate": "2026-01-01T00:00:00.000Z",
                    "replayId": "@",
                    "type": "updated",
                },
                "sobject": record,
            },
        }
    ).replace('"@"', "@")


def serve(ready: Any) -> None:
    """Run a fast Bayeux server, with one thread per connection and pre-encoded events.

    On each connection, replay ids count on from 1, because the client recognises an id that it has
    received before.

    Args:
        ready: Pipe through which the server sends its port.
    """
    before, after = events().split("@")
    between = f"{after},{before}"
    listener = socket.create_server(("127.0.0.1", 0))
    ready.send(listener.getsockname()[1])

    def many(first: int) -> str:
        ids = between.join(map(str, range(first, first + PER_ANSWER)))
        return f"{before}{ids}{after}"

    def answer(message: dict[str, Any], numbers: Iterator[int]) -> str:
        reply = {"channel": message["channel"], "id": message.get("id"), "successful": True}
        if message["channel"] == "/meta/handshake":
            reply |= {"clientId": "1", "ext": {"replay": True}}
        held = message["channel"] == "/meta/connect" and "advice" not in message
        return f"{many(next(numbers)) + ',' if held else ''}{json.dumps(reply)}"

    def work(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        numbers = count(1, PER_ANSWER)
        with connection, connection.makefile("rb") as reader:
            while reader.readline():
                length = 0
                while (line := reader.readline()) != b"\r\n":
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                data = reader.read(length)
                if len(data) < length or not data:  # the client has disconnected
                    return
                messages = json.loads(data)
                body = f"[{','.join(answer(each, numbers) for each in messages)}]".encode()
                head = (
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                connection.sendall(head.encode() + body)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=work, args=(connection,), daemon=True).start()


class Watch:
    """Measures events per second after the first response."""

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, count: int) -> tuple[float, float]:
        """Return the events per second of wall-clock time and of CPU time.

        Args:
            count: Number of events received, including those of the first response.
        """
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return (count - PER_ANSWER) / wall, (count - PER_ANSWER) / cpu


def bare(url: str, wanted: int) -> tuple[float, float]:
    """Poll with requests and json.loads; return the rates of `Watch.rates`."""
    import requests

    session = requests.Session()
    session.trust_env = False
    body = json.dumps([{"channel": "/meta/connect", "id": "1", "connectionType": "long-polling"}])
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    watch, number, last = Watch(), 0, None
    while number < wanted:
        answer = session.post(f"{url}/cometd/67.0", data=body, headers=headers, timeout=10)
        for message in json.loads(answer.content):
            if "data" in message:
                last = message["data"]["event"]["replayId"]
                number += 1
        if number == PER_ANSWER:
            watch.start()
    assert last == number
    session.close()
    return watch.rates(number)


def session(url: str) -> Any:
    """Return a session for the benchmark server."""
    from sfpubsub.auth.session import Session

    return Session(TOKEN, url, "00D000000000001AAA")


def sync(url: str, wanted: int) -> tuple[float, float]:
    """Iterate over a `StreamingClient`; return the rates of `Watch.rates`."""
    from sfpubsub.streaming import StreamingClient

    client = StreamingClient(session(url))  # with default arguments
    watch, number = Watch(), 0
    with client:
        client.subscribe(CHANNEL)
        for message in client:  # noqa: B007  # looked at after the loop
            number += 1
            if number == PER_ANSWER:
                watch.start()
            if number >= wanted:
                break
        rates = watch.rates(number)
    assert message.replay_id is not None
    return rates


def awaited(url: str, wanted: int) -> tuple[float, float]:
    """Iterate over an `AsyncStreamingClient`; return the rates of `Watch.rates`."""
    from sfpubsub.streaming import AsyncStreamingClient

    async def read() -> tuple[float, float]:
        watch, number = Watch(), 0
        async with AsyncStreamingClient(session(url)) as client:
            await client.subscribe(CHANNEL)
            async for message in client:  # noqa: B007  # looked at after the loop
                number += 1
                if number == PER_ANSWER:
                    watch.start()
                if number >= wanted:
                    break
            rates = watch.rates(number)
        assert message.replay_id is not None
        return rates

    return asyncio.run(read())


FACES = {"sync": sync, "asyncio": awaited}


def compared(pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> dict[str, Any]:
    """Return the figures of one client, from pairs of the bare loop's rates and its own."""
    ratios = [mine[0] / theirs[0] for theirs, mine in pairs]
    first, middle, third = statistics.quantiles(ratios, n=4)
    return {
        "per_s": round(statistics.median(mine[0] for _, mine in pairs)),
        "ratio": round(middle, 2),
        "spread": [round(first, 2), round(third, 2)],
        "cpu_ratio": round(statistics.median(mine[1] / theirs[1] for theirs, mine in pairs), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


def main() -> int:
    """Measure and print; return exit code 1 if a ratio is below ``--least``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--least", type=float, default=0.0, help="exit with 1 if a ratio is lower")
    options = parser.parse_args()
    receive, send = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(send,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{receive.recv()}"
    try:
        rounds = [
            (bare(url, options.events), *(face(url, options.events) for face in FACES.values()))
            for _ in range(options.rounds)
        ]
    finally:
        server.terminate()
        server.join()
    faces = {
        name: compared([(one[0], one[place]) for one in rounds])
        for place, name in enumerate(FACES, 1)
    }
    result = {
        "benchmark": "streaming",
        "events": options.events,
        "per_answer": PER_ANSWER,
        "bare_per_s": round(statistics.median(one[0][0] for one in rounds)),
        **faces,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(result))
    return 0 if all(face["ratio"] >= options.least for face in faces.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
