"""One blocking interface for both streaming clients, so that both run each scenario."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from sfpubsub.auth.session import Session
from sfpubsub.streaming import AsyncStreamingClient, Pace, StreamingClient, StreamingMessage

from ..conftest import PATIENCE

T = TypeVar("T")

# Short delays. A request may be slow on a busy machine or with a server that has just started.
QUICK = Pace(request=30.0, backoff_initial=0.02, backoff_max=0.1, busy=0.2, close=2.0)


def session_of(emulator: Any) -> Session:
    return Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)


class Current:
    """A session provider that uses the emulator's newest token, and renews it if it was refused."""

    def __init__(self, emulator: Any) -> None:
        self.emulator = emulator
        self.renewals = 0

    def get_session(self, expired: Session | None) -> Session:
        if expired is not None:
            self.renewals += 1
            self.emulator.new_token()
        return session_of(self.emulator)


class SyncFace:
    """A `StreamingClient`, with helper methods for tests."""

    name = "sync"
    kind: Any = StreamingClient

    def __init__(self, session: Any, **arguments: Any) -> None:
        arguments.setdefault("pace", QUICK)
        self.client = self.kind(session, **arguments)

    def run(self, result: Any) -> Any:
        """Return the result of a client method; the asyncio version awaits it."""
        return result

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self.run(found(*args, **kwargs))

    def collect(self, count: int, timeout: float = PATIENCE) -> list[StreamingMessage]:
        """Receive *count* messages and return them."""
        found = []
        while len(found) < count:
            message = self.receive(timeout)
            assert message is not None, [item.replay_id for item in found]
            found.append(message)
        return found

    def ids(self, count: int) -> list[int | None]:
        return [message.replay_id for message in self.collect(count)]

    def rest(self) -> list[int | None]:
        """Return the replay ids of the messages that arrive before a pause of 0.05 s."""
        found = []
        while (message := self.receive(0.05)) is not None:
            found.append(message.replay_id)
        return found

    def iterate(self) -> list[int | None]:
        """Iterate until the client is closed; return the replay ids of all messages."""
        return [message.replay_id for message in self.client]

    def handled(self, message: StreamingMessage, error: Exception | None = None) -> None:
        """Handle a message in a `handling` block, and raise *error* inside it if given."""
        with self.client.handling(message):
            if error is not None:
                raise error

    def stop(self) -> None:
        self.client.close()


class AsyncFace(SyncFace):
    """An `AsyncStreamingClient`, in an event loop in another thread."""

    name = "asyncio"
    kind = AsyncStreamingClient

    def __init__(self, session: Any, **arguments: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        try:
            super().__init__(session, **arguments)
        except BaseException:
            self.end_loop()
            raise

    def run(self, result: Any) -> Any:
        return self.wait(result) if asyncio.iscoroutine(result) else result

    def wait(self, awaited: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(awaited, self.loop).result(PATIENCE * 2)

    def iterate(self) -> list[int | None]:
        async def iterated() -> list[int | None]:
            return [message.replay_id async for message in self.client]

        return self.wait(iterated())

    def handled(self, message: StreamingMessage, error: Exception | None = None) -> None:
        async def handle() -> None:
            async with self.client.handling(message):
                if error is not None:
                    raise error

        self.wait(handle())

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.wait(self.client.close())
            self.end_loop()

    def end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


FACES = (SyncFace, AsyncFace)
