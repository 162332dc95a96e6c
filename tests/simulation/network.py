"""The network between the programs and the service: gRPC calls without sockets, with faults.

`Channel` stands in for a `grpc.Channel`, and `Context` for the servicer's side of a call. Messages
are the bytes that would be on the wire. Each takes a while, in order; a connection can be reset,
or fall silent in both directions until a ping or the service's own patience notices it; a proxy can
answer in place of the service.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from tests.simulation.kernel import Kernel, Machine, Task

_PATIENCE_S = 40.0  # how long a client's pings take to notice a silent connection: 30 s and 10 s
_PREFIX = "sfdc.platform.eventbus.grpc."
_SERVICE = "/eventbus.v1.PubSub/"

Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]
"""How a call ended: its code, text, and trailers."""

_LOST: Status = (grpc.StatusCode.UNAVAILABLE, "Socket closed", ())
_NO_ROUTE: Status = (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", ())
_CANCELLED: Status = (grpc.StatusCode.CANCELLED, "Locally cancelled by application!", ())
_LATE: Status = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())

# What gRPC makes of a page of a proxy, by the page's HTTP status.
PAGES: tuple[Status, ...] = (
    (grpc.StatusCode.UNAVAILABLE, "Received http2 header with status: 503", ()),
    (grpc.StatusCode.UNKNOWN, "Received http2 header with status: 302", ()),
    (grpc.StatusCode.PERMISSION_DENIED, "Received http2 header with status: 403", ()),
    (grpc.StatusCode.UNAUTHENTICATED, "Received http2 header with status: 401", ()),
    (grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404", ()),
    (grpc.StatusCode.INTERNAL, "Received http2 header with status: 400", ()),
)


class RpcFailed(grpc.RpcError):
    """As the error of a gRPC call that has ended with a status other than OK."""

    def __init__(self, status: Status) -> None:
        super().__init__(status[1])
        self.status = status

    def code(self) -> grpc.StatusCode:
        return self.status[0]

    def details(self) -> str:
        return self.status[1]

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.status[2]


class _Aborted(Exception):  # noqa: N818 - how gRPC ends a servicer's method
    """Ends a method of the servicer, after `Context.abort`."""


class Network:
    """The paths between all machines and the service.

    Args:
        kernel: Runs the calls.
        servicer: The service.
        service: The machine on which it runs.

    Attributes:
        down: Until when the service cannot be reached, in seconds since the start.
        page: What a proxy answers to each new call; None if there is none in the way.
        calls: The open calls.
        refusals: How often the service ended a call with each error code.
        counts: How many calls of each method were made, by machine and method.
        opened: The times of the last calls of each machine, for the bound on requests.
    """

    def __init__(self, kernel: Kernel, servicer: Any, service: Machine) -> None:
        self.kernel = kernel
        self.servicer = servicer
        self.service = service
        self.refusals: Counter[str] = Counter()
        self.down = 0.0
        self.page: Status | None = None
        self.calls: dict[Any, None] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.opened: dict[str, deque[float]] = {}

    def delay(self) -> float:
        """Return how long a message takes, in seconds: usually little, sometimes seconds."""
        number = self.kernel.chance.random()
        return 0.004 + 0.05 * number if number < 0.99 else 200 * (number - 0.98)

    @property
    def is_up(self) -> bool:
        return self.kernel.now >= self.down

    # Faults.

    def reset(self, machine: str | None = None) -> int:
        """Reset the connections of one machine, or of all; return how many calls that ended."""
        found = [each for each in self.calls if machine in (None, each.machine.name)]
        for each in found:
            each.lose(_LOST, self.kernel.chance.choice((0.0, 0.02, 1.0)))
        return len(found)

    def silence(self, machine: str) -> int:
        """Drop everything on a machine's connections, in both directions, without a word."""
        found = [each for each in self.calls if each.machine.name == machine]
        for each in found:
            each.silence(self.kernel.chance.choice((1.0, 30.0, 300.0, 1000.0)))
        return len(found)

    def hang_up(self, machine: Machine) -> None:
        """End the calls of a machine that was killed, whose system closes its connections."""
        for each in [each for each in self.calls if each.machine is machine]:
            each.lose(_LOST, 0.02)


class Channel:
    """As a `grpc.Channel`, of the machine whose thread makes each call."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.closed = False

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> _Unary:
        return _Unary(self.network, method, request_serializer, response_deserializer)

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., RpcCall]:
        def call(requests: Iterator[Any], *, metadata: Any, timeout: Any = None) -> RpcCall:
            made = RpcCall(self.network, method, metadata, response_deserializer)
            made.start(requests, request_serializer, timeout)
            return made

        return call

    def close(self) -> None:
        self.closed = True


class _Unary:
    """A method with one request and one response."""

    def __init__(self, network: Network, method: str, serialize: Any, deserialize: Any) -> None:
        self._network = network
        self._method = method
        self._serialize = serialize
        self._deserialize = deserialize

    def __call__(self, request: Any, *, timeout: float, metadata: Any) -> Any:
        return self.future(request, timeout=timeout, metadata=metadata).result()

    def future(self, request: Any, *, timeout: float, metadata: Any) -> RpcCall:
        call = RpcCall(self._network, self._method, metadata, self._deserialize, unary=True)
        call.start(iter([request]), self._serialize, timeout)
        return call


class RpcCall:
    """One call: the client's end, which a reader iterates over, and the service's.

    Args:
        network: The network.
        method: Full name of the method.
        metadata: The headers.
        deserialize: Makes a message of bytes.
        unary: Whether there is one request and one response.
    """

    def __init__(
        self,
        network: Network,
        method: str,
        metadata: Sequence[tuple[str, str]],
        deserialize: Callable[[bytes], Any],
        *,
        unary: bool = False,
    ) -> None:
        kernel = network.kernel
        assert kernel.current is not None
        self.network, self.kernel = network, kernel
        self.machine = kernel.current.machine
        self.name = method.removeprefix(_SERVICE)
        self.headers = tuple((name.lower(), value) for name, value in metadata)
        self._deserialize = deserialize
        self._unary = unary
        self._inbox: deque[bytes] = deque()  # of the client
        self._requests: deque[bytes] = deque()  # of the service
        self._waiting: list[tuple[Task, int]] = []
        self._serving: list[tuple[Task, int]] = []
        self._half_closed = False
        self._status: Status | None = None  # as the client knows it
        self._silent = False
        self._gone = False  # whether the service knows that the client is gone
        self._arrives = [0.0, 0.0]  # when the last message arrives, to and from the service
        self._context: Context | None = None

    def start(self, requests: Iterator[Any], serialize: Any, timeout: float | None) -> None:
        """Begin to send the requests, in a thread of their own, as gRPC does."""
        network, kernel = self.network, self.kernel
        network.counts[self.machine.name, self.name] += 1
        times = network.opened.setdefault(self.machine.name, deque(maxlen=200))
        times.append(kernel.now)
        if self.machine.dead:
            self._status = _CANCELLED
            return
        network.calls[self] = None
        if timeout is not None:
            kernel.at(kernel.now + timeout, lambda: self.lose(_LATE, 0.0))
        if not network.is_up:
            self._after(kernel.chance.choice((0.01, 1.0, 20.0)), lambda: self.lose(_NO_ROUTE, 0.0))
        elif network.page is not None:
            page = network.page
            self._after(0.1, lambda: self.lose(page, 0.0))
        else:
            self._after(network.delay(), self._serve)
        kernel.spawn(
            self.machine, f"grpc-send {self.name}", lambda: self._send(requests, serialize)
        )

    # The client's end.

    def __iter__(self) -> RpcCall:
        return self

    def __next__(self) -> Any:
        while not self._inbox:
            if self._status is not None:
                if self._status[0] is grpc.StatusCode.OK:
                    raise StopIteration
                raise RpcFailed(self._status)
            self._waiting.append(self.kernel.ticket())
            self.kernel.park()
        return self._deserialize(self._inbox.popleft())

    def result(self) -> Any:
        """Return the response of a unary call, or raise how it failed."""
        try:
            return next(self)
        except RpcFailed as error:
            if error.status is _CANCELLED:
                raise grpc.FutureCancelledError from error
            raise
        except StopIteration:
            raise RpcFailed(_LOST) from None

    def cancel(self) -> bool:
        self.lose(_CANCELLED, 0.01)
        return True

    def code(self) -> grpc.StatusCode | None:
        return self._status[0] if self._status else None

    def details(self) -> str:
        return self._status[1] if self._status else ""

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._status[2] if self._status else ()

    def _send(self, requests: Iterator[Any], serialize: Callable[[Any], bytes]) -> None:
        for request in requests:
            message = serialize(request)
            if self._status is not None:
                continue  # as gRPC: the iterator is read to its end, and what it yields is dropped
            self._carry(0, lambda message=message: self._requests.append(message))
        self._carry(0, self._no_more)

    def _no_more(self) -> None:
        self._half_closed = True

    # What the network does. None of these waits.

    def lose(self, status: Status, service_after: float) -> None:
        """End the call for the client now, and for the service after some seconds."""
        if self._status is None:
            self._status = status
            self._inbox.clear()
            self._wake(self._waiting)
        self.network.calls.pop(self, None)
        if not self._silent:
            self._after(service_after, self._hang_up)

    def silence(self, service_after: float) -> None:
        """Drop everything from now on; the service notices after *service_after* seconds."""
        self._silent = True
        self._after(_PATIENCE_S, lambda: self.lose(_LOST, 0.0))
        self._after(service_after, self._hang_up)

    def _carry(self, way: int, arrived: Callable[[], None]) -> None:
        when = max(self.kernel.now + self.network.delay(), self._arrives[way])
        self._arrives[way] = when

        def arrive() -> None:
            if self._silent or (way == 0 and self._gone) or (way == 1 and self._status is not None):
                return
            arrived()
            self._wake(self._waiting if way else self._serving)

        self.kernel.at(when, arrive)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self.kernel.at(self.kernel.now + seconds, what)

    def _wake(self, waiting: list[tuple[Task, int]]) -> None:
        while waiting:
            self.kernel.wake(*waiting.pop())

    def _hang_up(self) -> None:
        if not self._gone:
            self._gone = True
            self._wake(self._serving)
            if self._context is not None:
                self._context.gone()

    # The service's end.

    def _serve(self) -> None:
        if not self._gone and not self._silent:
            self.kernel.spawn(self.network.service, f"call {self.name}", self._work)

    def _work(self) -> None:
        context = self._context = Context(self)
        method = getattr(self.network.servicer, self.name)
        requests = self._incoming()
        status: Status = (grpc.StatusCode.OK, "", ())
        try:
            if self._unary:
                first = next(requests, None)
                if first is None:
                    return
                answers = iter([method(first, context)])
            else:
                answers = method(requests, context)
            for answer in answers:
                message = answer if isinstance(answer, bytes) else answer.SerializeToString()
                self._carry(1, lambda message=message: self._inbox.append(message))
        except _Aborted:
            status = context.status
        finally:
            context.gone()
        if not self._gone:
            self._carry(1, lambda: self._ended(status))
            self._gone = True  # nothing of the client arrives any more

    def _ended(self, status: Status) -> None:
        self._status = status
        for name, value in status[2]:
            if name == "error-code":
                self.network.refusals[value.removeprefix(_PREFIX)] += 1
        self.network.calls.pop(self, None)

    def _incoming(self) -> Iterator[Any]:
        parse = _PARSERS[self.name]
        while True:
            while not self._requests:
                if self._gone:
                    raise grpc.RpcError
                if self._half_closed:
                    return
                self._serving.append(self.kernel.ticket())
                self.kernel.park()
            yield parse(self._requests.popleft())


class Context:
    """As a `grpc.ServicerContext`, as far as the servicer uses it."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call
        self._callbacks: list[Callable[[], None]] = []
        self._is_over = False
        self._trailers: tuple[tuple[str, str], ...] = ()
        self.status: Status = _LOST

    def gone(self) -> None:
        """Tell the servicer that the call is over, in a thread of its own, as gRPC does."""
        if self._is_over:
            return
        self._is_over = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call.kernel.spawn(self._call.network.service, "call ended", callback)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self._is_over:
            return False
        self._callbacks.append(callback)
        return True

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._call.headers

    def send_initial_metadata(self, _metadata: Any) -> None:
        """Do nothing: nobody waits for them."""

    def set_trailing_metadata(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self._trailers = tuple(trailers)

    def is_active(self) -> bool:
        return not self._is_over

    def cancel(self) -> None:
        self._call.lose((grpc.StatusCode.CANCELLED, "CANCELLED", ()), 0.0)

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.status = code, details, self._trailers
        raise _Aborted


def _parsers() -> dict[str, Callable[[bytes], Any]]:
    from sfpubsub_grpc import pubsub_api_pb2 as pb

    return {
        "Subscribe": pb.FetchRequest.FromString,
        "ManagedSubscribe": pb.ManagedFetchRequest.FromString,
        "PublishStream": pb.PublishRequest.FromString,
        "Publish": pb.PublishRequest.FromString,
        "GetTopic": pb.TopicRequest.FromString,
        "GetSchema": pb.SchemaRequest.FromString,
    }


_PARSERS = _parsers()

__all__ = ["PAGES", "Channel", "Network", "RpcCall", "RpcFailed"]
