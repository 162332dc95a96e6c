"""The gRPC servicer. It translates between gRPC (protobuf messages, statuses, trailers) and the
stream classes, which contain the logic.

Methods are in the order of the proto file. Each call runs inside `_call`, which checks the headers,
applies faults, and ends the RPC when `Refused` or `Dropped` is raised.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sfpubsub.emulator.faults.refusals import PREFIX, Dropped, Refused
from sfpubsub.emulator.grpc.managed_stream import Commit, ManagedFetch, ManagedStream
from sfpubsub.emulator.grpc.pages import Pages
from sfpubsub.emulator.grpc.publish_stream import PublishStream
from sfpubsub.emulator.grpc.stream import CommitAnswer, Fetch, PlainStream, Preset, Reply
from sfpubsub.emulator.org.bus import Draft, Published
from sfpubsub.emulator.org.mailbox import Mailbox
from sfpubsub.emulator.org.world import World
from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

_log = logging.getLogger(__name__)

_PROXY_TEXT = "upstream connect error or disconnect/reset before headers"
"""The status message used by the proxies in front of the service."""

_PRESETS: dict[int, Preset] = {pb.LATEST: "LATEST", pb.EARLIEST: "EARLIEST", pb.CUSTOM: "CUSTOM"}

_DELAYED = "delay_call"
"""The key under which delayed calls are registered with `Bells`; no topic has this name."""

Q = TypeVar("Q")
R = TypeVar("R")


class PubSubServicer(pb_grpc.PubSubServicer):
    """Implements the six RPCs of the Pub/Sub API.

    Args:
        world: The emulator's state.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._pages = Pages(world.bus, world.settings)
        self._lock = threading.Lock()  # guards _streams
        self._streams = 0  # open streaming calls

    def Subscribe(  # noqa: N802 - the proto's name, as below
        self, request_iterator: Iterator[pb.FetchRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Stream the events of one topic, as encoded messages. The client keeps track of the
        position.
        """
        with self._stream("Subscribe", context):
            mailbox: Mailbox[Fetch] = Mailbox(self._world.clock)
            stream = PlainStream(self._world, mailbox, _token(context), self._pages)
            _feed(mailbox, request_iterator, _fetch, context)
            for reply in stream.run():
                yield _message(reply, pb.FetchResponse())

    def GetSchema(  # noqa: N802
        self, request: pb.SchemaRequest, context: grpc.ServicerContext
    ) -> pb.SchemaInfo:
        """Return the JSON text of the schema with the requested id."""

        def work(rpc_id: str) -> pb.SchemaInfo:
            schema = self._world.bus.schema(request.schema_id)
            return pb.SchemaInfo(schema_json=schema.text, schema_id=schema.schema_id, rpc_id=rpc_id)

        return self._unary("GetSchema", context, request.schema_id, work)

    def GetTopic(  # noqa: N802
        self, request: pb.TopicRequest, context: grpc.ServicerContext
    ) -> pb.TopicInfo:
        """Return the schema id of a topic, and whether clients can publish and subscribe to it."""

        def work(rpc_id: str) -> pb.TopicInfo:
            topic = self._world.bus.topic(request.topic_name)
            return pb.TopicInfo(
                topic_name=topic.name,
                tenant_guid=self._world.bus.tenant,
                can_publish=topic.can_publish,
                can_subscribe=topic.can_subscribe,
                schema_id=topic.schema_id,
                rpc_id=rpc_id,
            )

        return self._unary("GetTopic", context, request.topic_name, work)

    def Publish(  # noqa: N802
        self, request: pb.PublishRequest, context: grpc.ServicerContext
    ) -> pb.PublishResponse:
        """Publish the events in one request, and return a result for each event."""

        def work(rpc_id: str) -> pb.PublishResponse:
            if not request.topic_name.strip():
                raise Refused("publish.topic.validation.empty")
            return self._publish("Publish", request.topic_name, request, rpc_id, 0)

        return self._unary("Publish", context, request.topic_name, work)

    def PublishStream(  # noqa: N802
        self, request_iterator: Iterator[pb.PublishRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PublishResponse]:
        """Publish the events in each request of a stream, and yield one response per request."""
        with self._stream("PublishStream", context):
            mailbox: Mailbox[pb.PublishRequest] = Mailbox(self._world.clock)
            stream = PublishStream(
                self._world, mailbox, lambda request: request.topic_name, _token(context)
            )
            _feed(mailbox, request_iterator, lambda request: request, context)
            for sent, (topic, request) in enumerate(stream.run()):
                yield self._publish("PublishStream", topic, request, _rpc_id(), sent)

    def ManagedSubscribe(  # noqa: N802
        self, request_iterator: Iterator[pb.ManagedFetchRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Stream the events of one managed subscription, as encoded messages. The service stores
        the committed position.
        """
        with self._stream("ManagedSubscribe", context):
            mailbox: Mailbox[ManagedFetch] = Mailbox(self._world.clock)
            stream = ManagedStream(self._world, mailbox, _token(context), self._pages)
            _feed(mailbox, request_iterator, _managed_fetch, context, stream.release)
            try:
                for reply in stream.run():
                    yield _message(reply, _answer(reply.answer))
            finally:
                stream.release()

    def _publish(
        self, rpc: str, topic: str, request: pb.PublishRequest, rpc_id: str, sent: int
    ) -> pb.PublishResponse:
        """Publish the events in a request, and return the response.

        Args:
            rpc: Name of the RPC, which determines the faults that apply.
            topic: Name of the topic.
            request: The request; in a PublishStream call, its own topic name may be blank.
            rpc_id: The id to put in the response.
            sent: Number of responses that the call has sent before this one.
        """
        if request.ByteSize() > self._world.settings.publish_request_bytes:
            raise Dropped("UNAVAILABLE")  # a proxy in front of the service does this
        drafts = [Draft(event.payload, event.schema_id, event.id) for event in request.events]
        refusal = self._world.faults.take("refuse_event", rpc, topic) if drafts else None
        refused: list[pb.PublishResult] = []
        if refusal:
            first = drafts.pop(0)
            error = pb.Error(code=pb.PUBLISH, msg=refusal.params["text"])
            refused = [pb.PublishResult(error=error, correlation_key=first.event_id)]
        results = self._world.bus.publish(topic, drafts) if drafts or not refused else []
        lost = self._world.faults.take("lose_answer", rpc, topic, responses=sent)
        if lost:
            raise Dropped(lost.params["status"])
        return pb.PublishResponse(
            results=[*refused, *(_publish_result(result) for result in results)],
            schema_id=self._world.bus.topic(topic).schema_id,
            rpc_id=rpc_id,
        )

    def _unary(
        self, rpc: str, context: grpc.ServicerContext, target: str, work: Callable[[str], R]
    ) -> R:
        with self._call(rpc, context, target) as rpc_id:
            return work(rpc_id)
        raise AssertionError("`_call` must raise an exception for a call that it ends")

    @contextlib.contextmanager
    def _stream(self, rpc: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Run the body of a `with` statement as a streaming call, or refuse the call if too many
        are open. Each open call occupies a thread, and the limit leaves threads for unary calls.
        """
        with self._lock:
            full = self._streams >= self._world.settings.max_streams
            self._streams += not full
        try:
            with self._call(rpc, context, full=full):
                if self._world.settings.headers_at_once:
                    context.send_initial_metadata(())
                yield
        finally:
            with self._lock:
                self._streams -= not full

    @contextlib.contextmanager
    def _call(
        self, rpc: str, context: grpc.ServicerContext, target: str = "", *, full: bool = False
    ) -> Iterator[str]:
        rpc_id = _rpc_id()
        try:
            self._admit(context, full)
            self._begin(rpc, target, context)
            yield rpc_id
        except Refused as refused:
            status = refused.status or self._world.settings.status_of(refused.suffix)
            _log.debug("%s %s refused: %s %s", rpc, rpc_id, status, refused.suffix)
            context.set_trailing_metadata(
                (("error-code", PREFIX + refused.suffix), ("rpc-id", rpc_id), ("type", rpc))
            )
            context.abort(grpc.StatusCode[status], f"{refused.text} rpcId: {rpc_id}")
        except Dropped as dropped:
            _log.debug("%s %s dropped: %s", rpc, rpc_id, dropped.status)
            _drop(context, dropped.status, dropped.text or _PROXY_TEXT)

    def _admit(self, context: grpc.ServicerContext, full: bool) -> None:
        if full:
            raise Refused("service.protection.triggered")
        sessions = self._world.sessions
        try:
            sessions.check({key: str(value) for key, value in context.invocation_metadata()})
        except Refused:
            self._world.faults.met(sessions.ended_by(_token(context)))
            raise

    def _begin(self, rpc: str, target: str, context: grpc.ServicerContext) -> None:
        fault = self._world.faults.take("delay_call", rpc, target)
        if fault:
            self._delay(fault.params["seconds"], context)
        fault = self._world.faults.take("refuse", rpc, target)
        if fault:
            raise Refused(fault.params["error_code"], status=fault.params["status"] or None)
        fault = self._world.faults.take("drop_call", rpc, target)
        if fault:
            raise Dropped(fault.params["status"])

    def _delay(self, seconds: float, context: grpc.ServicerContext) -> None:
        """Wait for *seconds* on the emulator's clock, or until the call ends."""
        clock, bells = self._world.clock, self._world.bus.bells
        mailbox: Mailbox[None] = Mailbox(clock)
        deadline = clock.now() + seconds
        if not context.add_callback(mailbox.hang_up):
            return
        bells.listen(_DELAYED, mailbox.wake)  # so that a jump of the clock wakes this call
        try:
            while clock.now() < deadline and not mailbox.gone:
                mailbox.collect()
                if clock.now() < deadline:  # a jump after this check wakes `wait`
                    mailbox.wait(deadline)
        finally:
            bells.forget(_DELAYED, mailbox.wake)


class _Malformed:
    """Placeholder for a request that could not be parsed as the method's message type."""


_STREAMS: dict[str, tuple[type[Message], type[Message] | None]] = {
    "Subscribe": (pb.FetchRequest, None),  # None: the handler yields bytes
    "PublishStream": (pb.PublishRequest, pb.PublishResponse),
    "ManagedSubscribe": (pb.ManagedFetchRequest, None),
}
_UNARY: dict[str, tuple[type[Message], type[Message]]] = {
    "GetSchema": (pb.SchemaRequest, pb.SchemaInfo),
    "GetTopic": (pb.TopicRequest, pb.TopicInfo),
    "Publish": (pb.PublishRequest, pb.PublishResponse),
}


def add_to_server(servicer: PubSubServicer, server: grpc.Server) -> None:
    """Register the six RPCs with a server.

    This replaces the generated function ``add_PubSubServicer_to_server``. With that function, if a
    request in a stream cannot be parsed, grpc ends the call, the handler ends it a second time, and
    then the server sometimes cannot be stopped. Here, such a request reaches the handler as
    `_Malformed`, and only the handler ends the call.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, (request, response) in _STREAMS.items():
        handlers[name] = grpc.stream_stream_rpc_method_handler(
            getattr(servicer, name),
            _reader(request),
            response.SerializeToString if response else None,
        )
    for name, (request, made) in _UNARY.items():
        handlers[name] = grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name), request.FromString, made.SerializeToString
        )
    service = pb.DESCRIPTOR.services_by_name["PubSub"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _reader(request: type[Message]) -> Callable[[bytes], Message | _Malformed]:
    def read(data: bytes) -> Message | _Malformed:
        try:
            return request.FromString(data)
        except DecodeError:
            return _Malformed()

    return read


def _token(context: grpc.ServicerContext) -> str:
    headers = dict(context.invocation_metadata())
    return str(headers.get("accesstoken", ""))


def _feed(
    mailbox: Mailbox[R],
    requests: Iterator[Q],
    convert: Callable[[Q], R],
    context: grpc.ServicerContext,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Start a thread that puts a call's requests into its mailbox until the call ends.

    Args:
        mailbox: The mailbox of the call.
        requests: The requests, as gRPC delivers them.
        convert: Converts a request for the mailbox.
        context: The call.
        on_end: Function to call, from any thread, when the call has ended.
    """

    def ended() -> None:
        mailbox.hang_up()
        on_end()

    def read() -> None:
        try:
            for request in requests:
                if isinstance(request, _Malformed):
                    mailbox.fail(Dropped("INTERNAL", "the request cannot be parsed"))
                    return
                mailbox.put(convert(request))
        except grpc.RpcError:
            return  # cancelled, or the connection was lost: `ended` handles it
        mailbox.half_close()

    if not context.add_callback(ended):
        ended()
    # A daemon thread: it ends with the call, and a call that never ends must not keep the process
    # alive.
    threading.Thread(target=read, name="emulator-requests", daemon=True).start()


def _drop(context: grpc.ServicerContext, status: str, text: str) -> None:
    """End a call as the infrastructure would: without the service's trailers.

    Args:
        context: The call.
        status: Name of a gRPC status; "OK" for a clean end, "RESET" to reset the HTTP/2 stream.
        text: Status message.
    """
    if status == "OK":
        return  # the stream ends normally; faults allow this for streams only
    if status == "RESET":
        context.cancel()
        status = "CANCELLED"
    context.abort(grpc.StatusCode[status], text)


def _rpc_id() -> str:
    return str(uuid.uuid4())


def _fetch(request: pb.FetchRequest) -> Fetch:
    # Proto3 enums are open: a number that is not in the proto file is passed through.
    preset = _PRESETS.get(request.replay_preset)
    return Fetch(request.topic_name, preset, request.replay_id, request.num_requested)


def _managed_fetch(request: pb.ManagedFetchRequest) -> ManagedFetch:
    commit = None
    if request.HasField("commit_replay_id_request"):
        asked = request.commit_replay_id_request
        commit = Commit(asked.commit_request_id, asked.replay_id)
    return ManagedFetch(
        request.subscription_id,
        request.developer_name,
        request.num_requested,
        request.auth_refresh,
        commit,
    )


def _message(reply: Reply, rest: pb.FetchResponse | pb.ManagedFetchResponse) -> bytes:
    """Return an encoded response: the events of the reply's page, which are already encoded, and
    then the other fields, which this function sets in *rest*.
    """
    rest.latest_replay_id = reply.latest or b""
    rest.rpc_id = _rpc_id()
    rest.pending_num_requested = reply.pending or 0
    return reply.page.wire + rest.SerializeToString()


def _answer(answer: CommitAnswer | None) -> pb.ManagedFetchResponse:
    response = pb.ManagedFetchResponse()
    if answer is not None:
        response.commit_response.commit_request_id = answer.request_id
        response.commit_response.replay_id = answer.replay_id
        response.commit_response.process_time = int(answer.received_at * 1000)
        if answer.error:
            response.commit_response.error.code = pb.COMMIT
            response.commit_response.error.msg = answer.error
    return response


def _publish_result(result: Published) -> pb.PublishResult:
    error = None
    if result.problem is not None:
        error = pb.Error(code=pb.PUBLISH, msg=result.problem)
    return pb.PublishResult(
        replay_id=result.replay_id, error=error, correlation_key=result.event_id
    )
