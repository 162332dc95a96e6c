"""The standard gRPC services: health, and reflection for tools such as grpcurl.

Health is available if grpcio-health-checking is installed; reflection also needs
grpcio-reflection. Neither requires an access token. The real service is not known to offer them.
Reflection is imported on first use, because the import takes longer than the rest of the emulator's
start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import grpc

from sfpubsub_grpc import pubsub_api_pb2 as pb

_log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["PubSub"].full_name

_HEALTH = "grpc.health.v1.Health"
_REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Both versions of the service; their messages differ only in their names."""

_REFLECTIONS = 16
"""Maximum number of concurrent reflection streams. Each occupies a thread; this is half of the
threads reserved for unary calls.
"""


def add_standard_services(server: grpc.Server) -> None:
    """Register the health and reflection services, if their packages are installed."""
    try:
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    except ModuleNotFoundError:
        _log.debug("no health or reflection service: grpcio-health-checking is not installed")
        return
    servicer = health.HealthServicer()
    for name in (SERVICE, _HEALTH):
        servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if find_spec("grpc_reflection") is None:
        _log.debug("no reflection service: grpcio-reflection is not installed")
        return
    server.add_generic_rpc_handlers((_Reflection(),))


class _Reflection(grpc.GenericRpcHandler):
    """Handles calls to both versions of the reflection service, v1 and v1alpha."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _handler, so that the import happens only once
        self._handler: Any = None
        self._room = threading.BoundedSemaphore(_REFLECTIONS)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, or None if it is not a reflection method."""
        wanted = [f"/{name}/ServerReflectionInfo" for name in _REFLECTION]
        if handler_call_details.method not in wanted:
            return None
        with self._lock:
            if self._handler is None:
                self._handler = self._made()
            return self._handler

    def _made(self) -> Any:
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        servicer = reflection.ReflectionServicer((SERVICE, _HEALTH, *_REFLECTION))

        def info(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if not self._room.acquire(blocking=False):
                text = f"{_REFLECTIONS} reflection streams are open: close one first"
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            try:
                yield from servicer.ServerReflectionInfo(requests, context)
            finally:
                self._room.release()

        return grpc.stream_stream_rpc_method_handler(
            info,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
