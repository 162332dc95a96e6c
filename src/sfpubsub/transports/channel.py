"""The grpc transport: one channel per client, and the calls on it.

Every call carries the session's headers and a trace id of its own (Salesforce documentation, RPC
method headers). The headers are asked for when a call starts and stay with it for its life.
"""

from __future__ import annotations

import logging
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import grpc

from sfpubsub.config import Timings, network
from sfpubsub.errors import (
    ConfigurationError,
    RemoteProtocolError,
    SchemaNotFoundError,
    SfPubSubError,
    StreamUnavailableError,
    TopicNotFoundError,
)
from sfpubsub.protocol.commands import OpenStream, SendRequest
from sfpubsub.protocol.events import Failure, FailureKind, Response
from sfpubsub.transports import wire
from sfpubsub.transports.base import Headers, StreamCall, Target, Transport
from sfpubsub.transports.status import classify
from sfpubsub.types import ProducerEvent, PublishResult, SchemaInfo, TopicInfo
from sfpubsub_grpc import pubsub_api_pb2_grpc

logger = logging.getLogger("sfpubsub.transport")

Request = TypeVar("Request")
Answer = TypeVar("Answer")

# Deadline of a unary call, in seconds. The service answers in well under one; a bogus token was
# seen refused only after 11.
UNARY_TIMEOUT = 30.0

# Seconds that the reader lets go of the interpreter, so that grpc's own thread takes the request
# from the queue and sends it. Measured with responses of 100 events, received and decoded: 0.78
# times the time. Many times what the hand-over needs, a small part of what a response costs.
_HAND_OVER = 50e-6

OPTIONS: list[tuple[str, Any]] = [
    # 100 events of up to 1 MB exceed the default of 4 MB.
    ("grpc.max_receive_message_length", -1),
    # The protocol spaces its attempts; a channel that waits up to 120 s between its own would
    # refuse them without looking.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]


def open_channel(
    endpoint: str,
    *,
    insecure: str = "",
    ca_file: str = "",
    proxy: str = "",
    timings: Timings | None = None,
) -> grpc.Channel:
    """Return a channel to *endpoint*. Does not connect yet.

    Args:
        endpoint: ``host:port``; the service listens on 443 and 7443.
        insecure: ``1`` for plaintext to loopback, ``force`` for plaintext to anywhere.
        ca_file: PEM file of the certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; without it ``https_proxy`` and ``no_proxy`` hold.
        timings: Has the times of pings.

    Raises:
        ConfigurationError: No port, plaintext to a host that is not loopback, a CA file without
            certificates, or a proxy that is not valid.
    """
    host, _ = network.split_endpoint(endpoint)
    if insecure not in ("", "0", "1", "force"):
        raise ConfigurationError(f"insecure is 1 or force, not {insecure!r}")
    options = [*OPTIONS, *_pings(timings or Timings())]
    if proxy:
        network.check_proxy(proxy, "proxy")
    if insecure == "force" or (insecure == "1" and network.is_loopback(host)):
        # Through a proxy it would leave this machine, in plaintext.
        return grpc.insecure_channel(endpoint, options=[*options, ("grpc.enable_http_proxy", 0)])
    if insecure == "1":
        raise ConfigurationError(
            f"plaintext to {host} would show the access token to the network; SFPUBSUB_INSECURE=1 "
            f"is for loopback, and 'force' insists"
        )
    # Never left to grpc, which reads other variables than HTTP does, and no capitals.
    proxy = network.proxy_to(host, proxy)
    options.append(("grpc.http_proxy", proxy) if proxy else ("grpc.enable_http_proxy", 0))
    roots = network.trusted_roots(ca_file).read_bytes()
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    return grpc.secure_channel(endpoint, credentials, options=options)


def _pings(timings: Timings) -> list[tuple[str, Any]]:
    if not timings.ping_interval:
        return []
    return [
        ("grpc.keepalive_time_ms", round(timings.ping_interval * 1000)),
        ("grpc.keepalive_timeout_ms", round(timings.ping_timeout * 1000)),
        # Seen with grpcio 1.85: without this one an answer is waited for 60 s, whatever the other
        # one says.
        ("grpc.http2.ping_timeout_ms", round(timings.ping_timeout * 1000)),
        # Also while nothing is called or sent: an idle stream is when a connection dies unseen.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class GrpcTransport(Transport):
    """Calls over a grpc channel.

    Args:
        channel: Owned by this object from now on.
        endpoint: For messages.
        headers: The session's headers; may wait for a session, may raise.
    """

    def __init__(self, channel: grpc.Channel, endpoint: str, headers: Callable[[], Headers]):
        self._channel = channel
        self._endpoint = endpoint
        self._headers = headers
        self._stub = pubsub_api_pb2_grpc.PubSubStub(channel)  # type: ignore[no-untyped-call]

    def connect(self, timeout: float) -> None:
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout)
        except grpc.FutureTimeoutError:
            host, _ = network.split_endpoint(self._endpoint)
            cure = "check the address and the network, and whether it speaks TLS"
            if network.is_loopback(host):  # a service without TLS, such as the emulator
                cure = (
                    "check that it runs, and whether it speaks TLS: if not, set "
                    "SFPUBSUB_INSECURE=1; if so, leave that unset"
                )
            raise StreamUnavailableError(
                f"{self._endpoint} could not be reached within {timeout:g} s: {cure}"
            ) from None
        finally:
            ready.cancel()
        logger.info("connected to %s", self._endpoint)

    def open_stream(self, target: Target, opening: OpenStream) -> StreamCall:
        logger.info("subscribing to %s, asking for %d events", target.name, opening.num_requested)
        if target.managed:
            return GrpcStreamCall(
                target,
                self._stub.ManagedSubscribe,
                wire.managed_opening(target, opening),
                wire.managed_request,
                self._headers(),
            )
        return GrpcStreamCall(
            target,
            self._stub.Subscribe,
            wire.fetch_opening(target, opening),
            wire.fetch_request,
            self._headers(),
        )

    def _unary(self, what: str, method: Callable[..., Answer], request: object) -> Answer:
        begun = time.monotonic()
        try:
            answer = method(request, timeout=UNARY_TIMEOUT, metadata=_traced(self._headers()))
        except grpc.RpcError as error:
            raise classify(what, error).error from error
        logger.debug("%s: answered after %.3f s", what, time.monotonic() - begun)
        return answer

    def get_topic(self, name: str) -> TopicInfo:
        request = wire.topic_request(name)
        return wire.topic_info(self._unary(f"topic {name}", self._stub.GetTopic, request))

    def get_schema(self, schema_id: str) -> SchemaInfo:
        request = wire.schema_request(schema_id)
        try:
            answer = self._unary(f"schema {schema_id}", self._stub.GetSchema, request)
        except TopicNotFoundError as error:  # NOT_FOUND of this call is about the schema
            raise SchemaNotFoundError(
                f"the service knows no schema {schema_id}",
                error_code=error.error_code,
                rpc_id=error.rpc_id,
            ) from error
        return wire.schema_info(answer)

    def publish(self, topic: str, events: Sequence[ProducerEvent]) -> list[PublishResult]:
        request = wire.publish_request(topic, events)
        return wire.publish_results(self._unary(f"topic {topic}", self._stub.Publish, request))

    def close(self) -> None:
        self._channel.close()


class GrpcStreamCall(StreamCall, Generic[Request]):
    """One Subscribe or ManagedSubscribe call."""

    def __init__(
        self,
        target: Target,
        method: Callable[..., Any],
        opening: Request,
        convert: Callable[[Target, SendRequest], Request],
        headers: Headers,
    ) -> None:
        self.headers = headers
        self._target = target
        self._convert = convert
        # The service ends a stream whose requests have ended, so this iterator lives as long as
        # the call. None ends it.
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._requests.put(opening)
        self._has_sent = False
        self._opened = time.monotonic()
        self._has_received = False
        self._debug = logger.isEnabledFor(logging.DEBUG)
        self._call = method(self._take_requests(), metadata=_traced(headers))

    def _take_requests(self) -> Iterator[Request]:
        while (request := self._requests.get()) is not None:
            yield request

    def receive(self) -> Response | Failure | None:
        if self._has_sent:
            # Then the service works on it while the application works on what came before. Without
            # this the application's thread is as likely to run first, and grpc's to wait for it.
            self._has_sent = False
            time.sleep(_HAND_OVER)
        try:
            response = wire.response(next(self._call))
        except StopIteration:
            self.half_close()  # lets grpc's own thread go, which waits for the next request
            return None
        except grpc.RpcError as error:
            self.half_close()
            return classify(self._target.name, error, managed=self._target.managed)
        except RemoteProtocolError as error:
            self.cancel()
            return Failure(FailureKind.STOP, _about(self._target, error))
        if self._debug or not self._has_received:
            self._log(response)
        return response

    def _log(self, response: Response) -> None:
        # By counts: what an event says stays out of the log, as do the headers.
        if not self._has_received:
            self._has_received = True
            waited = time.monotonic() - self._opened
            logger.info("first response of %s after %.3f s", self._target.name, waited)
        if self._debug:
            answer = response.commit
            logger.debug(
                "response of %s: %d events, %d more asked for%s",
                self._target.name,
                len(response.events),
                response.pending,
                "" if answer is None else f"; commit {answer.error or 'confirmed'}",
            )

    def send(self, request: SendRequest) -> None:
        if self._debug:
            commit = request.commit
            logger.debug(
                "request to %s: %d events%s",
                self._target.name,
                request.num_requested,
                "" if commit is None else f"; commit of {commit.replay_id.hex()}",
            )
        self._requests.put(self._convert(self._target, request))
        self._has_sent = True

    def half_close(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        self._call.cancel()
        self.half_close()


def _traced(headers: Headers) -> list[tuple[str, str]]:
    # An id per call: what support asks for when something on the way to the service failed.
    return [*headers, ("x-client-trace-id", str(uuid.uuid4()))]


def _about(target: Target, error: SfPubSubError) -> SfPubSubError:
    named = type(error)(f"{target.name}: {error}", rpc_id=error.rpc_id)
    named.__cause__ = error
    return named
