"""The gRPC transport: one channel per client, and its calls.

Every call sends the session's headers and a new trace id (Salesforce documentation, RPC method
headers). Both are determined when a call starts, and do not change during the call.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from sfpubsub.config import Timings, network
from sfpubsub.errors import (
    ConfigurationError,
    SchemaNotFoundError,
    StreamUnavailableError,
    TopicNotFoundError,
)
from sfpubsub.protocol.commands import OpenPublish, OpenStream
from sfpubsub.transports import wire
from sfpubsub.transports.apart import apart
from sfpubsub.transports.base import Headers, PublishCall, StreamCall, Target, Transport
from sfpubsub.transports.publish_calls import UNARY_TIMEOUT, StreamedPublish, UnaryPublish
from sfpubsub.transports.status import classify
from sfpubsub.transports.stream_call import GrpcStreamCall
from sfpubsub.types import SchemaInfo, TopicInfo
from sfpubsub_grpc import pubsub_api_pb2_grpc

logger = logging.getLogger("sfpubsub.transport")

Answer = TypeVar("Answer")

# Largest response that is accepted, in bytes; gRPC checks it before and after decompression. The
# default of 4 MB is too small, and a compressed response without a limit could take any amount of
# memory. It leaves room for 60 of the largest events; if a response exceeds it, the next stream
# begins with `FIRST_CREDIT` events, which always fit.
MAX_RESPONSE = 64 * 1024 * 1024

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_RESPONSE),
    # The protocol has its own backoff. With gRPC's default backoff of up to 120 s, the channel
    # would fail the protocol's attempts without trying to connect.
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
    """Return a channel to *endpoint*, without connecting yet.

    Args:
        endpoint: ``host:port``; the service listens on 443 and 7443.
        insecure: ``1`` for plaintext to loopback, ``force`` for plaintext to any host; blank or
            ``0`` for TLS.
        ca_file: PEM file of the certificate authorities to trust instead of the system's.
        proxy: URL of an HTTP proxy; if empty, ``https_proxy`` and ``no_proxy`` apply.
        timings: Ping interval and timeout; None for the defaults.

    Raises:
        ConfigurationError: The endpoint has no port, *insecure* is not a valid value or requests
            plaintext to a host other than loopback, the CA file has no certificates, or the proxy
            is not valid.
    """
    host, _ = network.split_endpoint(endpoint)
    if insecure not in ("", "0", "1", "force"):
        raise ConfigurationError(f"insecure must be 1 or force, not {insecure!r}")
    options = [*OPTIONS, *_pings(timings or Timings())]
    if proxy:
        network.check_proxy(proxy, "proxy")
    if insecure == "force" or (insecure == "1" and network.is_loopback(host)):
        # No proxy: it would carry the plaintext off this machine.
        return grpc.insecure_channel(endpoint, options=[*options, ("grpc.enable_http_proxy", 0)])
    if insecure == "1":
        raise ConfigurationError(
            f"plaintext to {host} would expose the access token on the network, and "
            f"SFPUBSUB_INSECURE=1 allows plaintext only to loopback: unset this variable, or set "
            f"it to 'force' to allow any host"
        )
    # Not left to gRPC, which reads different variables than HTTP clients, and only in lower case.
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
        # Observed with grpcio 1.85: without this option the ping timeout is 60 s, whatever the
        # value of grpc.keepalive_timeout_ms.
        ("grpc.http2.ping_timeout_ms", round(timings.ping_timeout * 1000)),
        # Ping also when idle, because a lost connection goes unnoticed on an idle stream.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


class GrpcTransport(Transport):
    """Makes calls over a gRPC channel. Thread-safe.

    Args:
        channel: The channel, owned by this object from now on.
        endpoint: Address of the service, for error messages.
        headers: Returns the session's headers. It may block to obtain a session, and may raise
            SfPubSubError.
    """

    def __init__(self, channel: grpc.Channel, endpoint: str, headers: Callable[[], Headers]):
        self._channel = channel
        self._endpoint = endpoint
        self._headers = headers
        self._stub = pubsub_api_pb2_grpc.PubSubStub(channel)  # type: ignore[no-untyped-call]

    def connect(self, timeout: float) -> None:
        apart(lambda: self._connect(timeout))

    def _connect(self, timeout: float) -> None:
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout)
        except grpc.FutureTimeoutError:
            host, _ = network.split_endpoint(self._endpoint)
            cure = "check the address, the network, and that the service uses TLS"
            if network.is_loopback(host):  # a service without TLS, such as the emulator
                cure = (
                    "check that it is running; if it does not use TLS, set SFPUBSUB_INSECURE=1, "
                    "otherwise unset it"
                )
            raise StreamUnavailableError(
                f"{self._endpoint} could not be reached within {timeout:g} s: {cure}"
            ) from None
        finally:
            ready.cancel()
        logger.info("connected to %s", self._endpoint)

    def open_stream(self, target: Target, opening: OpenStream) -> StreamCall:
        logger.info("subscribing to %s, requesting %d events", target.name, opening.num_requested)
        headers = self._headers()
        method = self._stub.ManagedSubscribe if target.managed else self._stub.Subscribe
        form = wire.MANAGED if target.managed else wire.PLAIN
        return GrpcStreamCall(target, method, form, opening, headers, _traced(headers))

    def _unary(self, what: str, method: Callable[..., Answer], request: object) -> Answer:
        begun = time.monotonic()
        metadata = _traced(self._headers())
        try:
            answer = apart(lambda: method(request, timeout=UNARY_TIMEOUT, metadata=metadata))
        except grpc.RpcError as error:
            raise classify(what, error).error from error
        logger.debug("%s: response after %.3f s", what, time.monotonic() - begun)
        return answer

    def get_topic(self, name: str) -> TopicInfo:
        request = wire.topic_request(name)
        return wire.topic_info(self._unary(f"topic {name}", self._stub.GetTopic, request))

    def get_schema(self, schema_id: str) -> SchemaInfo:
        request = wire.schema_request(schema_id)
        try:
            answer = self._unary(f"schema {schema_id}", self._stub.GetSchema, request)
        except TopicNotFoundError as error:  # for this call, NOT_FOUND refers to the schema
            raise SchemaNotFoundError(
                f"the service has no schema {schema_id}: check the schema id",
                error_code=error.error_code,
                rpc_id=error.rpc_id,
            ) from error
        return wire.schema_info(answer)

    def open_publish(self, topic: str, opening: OpenPublish, *, streamed: bool) -> PublishCall:
        headers = self._headers()
        method = self._stub.PublishStream if streamed else self._stub.Publish
        kind = StreamedPublish if streamed else UnaryPublish
        return kind(topic, method, opening, headers, lambda: _traced(headers))

    def close(self) -> None:
        apart(self._channel.close)


def _traced(headers: Headers) -> list[tuple[str, str]]:
    # One id per call: Salesforce support asks for it when a failure occurred between the client and
    # the service.
    return [*headers, ("x-client-trace-id", str(uuid.uuid4()))]
