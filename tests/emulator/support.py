"""A minimal client based on the generated stub, and the emulator as a process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sfpubsub_grpc import pubsub_api_pb2 as pb
from sfpubsub_grpc import pubsub_api_pb2_grpc as pb_grpc

ORDERS = "/event/Order_Event__e"
ACCOUNTS = "/data/AccountChangeEvent"
CHANGES = "/data/ChangeEvents"
MANAGED = "My_Managed_Subscription"
PREFIX = "sfdc.platform.eventbus.grpc."

WAIT_S = 60.0
"""Longest wait for a condition, in seconds; a passing test waits milliseconds."""


class Stream:
    """An open streaming call; a thread reads its responses."""

    def __init__(self, method: Any, metadata: Any) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        self._responses: queue.Queue[Any] = queue.Queue()
        self.call = method(iter(self._requests.get, None), metadata=metadata)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for response in self.call:
                self._responses.put(response)
        self._responses.put(None)

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def next(self, timeout: float = WAIT_S) -> Any:
        """Return the next response; fail if the stream has ended."""
        response = self._responses.get(timeout=timeout)
        assert response is not None, f"stream ended: {self.call.code()} {self.call.details()}"
        return response

    def events(self, count: int) -> list[Any]:
        """Return at least the next *count* events, from one or more responses."""
        found: list[Any] = []
        while len(found) < count:
            found.extend(self.next().events)
        return found

    def answer(self) -> Any:
        """Return the next commit response, ignoring events before it."""
        while True:
            response = self.next()
            if response.HasField("commit_response"):
                assert not response.events
                return response.commit_response

    def maybe(self, seconds: float) -> Any:
        """Return the next response; None if the stream ends, or none arrives within *seconds*."""
        try:
            return self._responses.get(timeout=seconds)
        except queue.Empty:
            return None

    def silent(self, seconds: float = 0.15) -> bool:
        """Return whether no response arrives within *seconds*."""
        try:
            self._responses.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def half_close(self) -> None:
        self._requests.put(None)

    def end(self, seconds: float = WAIT_S) -> tuple[str, str, dict[str, str]]:
        """Wait until the stream ends; return its status name, details and trailers."""
        deadline = time.monotonic() + seconds
        while self._responses.get(timeout=max(0.0, deadline - time.monotonic())) is not None:
            pass
        self._responses.put(None)
        trailers = dict(self.call.trailing_metadata() or ())
        return self.call.code().name, self.call.details(), trailers

    def refusal(self) -> str:
        """Wait for the stream to end with an error; return its error code without the common
        prefix.
        """
        _, details, trailers = self.end()
        assert details.endswith(f" rpcId: {trailers['rpc-id']}")
        assert trailers["error-code"].startswith(PREFIX)
        return trailers["error-code"].removeprefix(PREFIX)

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._thread.join(WAIT_S)


class Client:
    """Calls the generated stub with the headers of one emulator."""

    def __init__(
        self,
        target: str,
        metadata: Any,
        ca_file: Path | None = None,
        channel: grpc.Channel | None = None,
    ) -> None:
        if channel is not None:
            self.channel = channel
        elif ca_file is None:
            self.channel = grpc.insecure_channel(target)
        else:
            trust = grpc.ssl_channel_credentials(ca_file.read_bytes())
            self.channel = grpc.secure_channel(target, trust)
        self.stub = pb_grpc.PubSubStub(self.channel)
        self.metadata = metadata
        self._streams: list[Stream] = []

    def stream(self, rpc: str) -> Stream:
        stream = Stream(getattr(self.stub, rpc), self.metadata)
        self._streams.append(stream)
        return stream

    def subscribe(self, **first: Any) -> Stream:
        """Open a Subscribe stream, by default from EARLIEST with 100 requested events."""
        stream = self.stream("Subscribe")
        stream.send(
            pb.FetchRequest(
                **{
                    "topic_name": ORDERS,
                    "num_requested": 100,
                    "replay_preset": pb.EARLIEST,
                    **first,
                }
            )
        )
        return stream

    def managed(self, **first: Any) -> Stream:
        """Open a ManagedSubscribe stream; *first* sets fields of the first request.

        By default, the request names the subscription `MANAGED` and requests 100 events.
        """
        stream = self.stream("ManagedSubscribe")
        if not {"subscription_id", "developer_name"} & set(first):
            first["developer_name"] = MANAGED
        stream.send(pb.ManagedFetchRequest(**{"num_requested": 100, **first}))
        return stream

    def call(self, rpc: str, request: Any) -> Any:
        return getattr(self.stub, rpc)(request, metadata=self.metadata, timeout=WAIT_S)

    def refusal(self, rpc: str, request: Any) -> tuple[str, str]:
        """Make a unary call that must fail; return its status name, and its error code without the
        common prefix.
        """
        with pytest.raises(grpc.RpcError) as caught:
            self.call(rpc, request)
        error: Any = caught.value
        trailers = dict(error.trailing_metadata())
        assert trailers["type"] == rpc
        assert error.details().endswith(f" rpcId: {trailers['rpc-id']}")
        return error.code().name, trailers["error-code"].removeprefix(PREFIX)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self.channel.close()


def commit(replay_id: bytes, request_id: str = "", num_requested: int = 0) -> Any:
    """Return a request that commits *replay_id*."""
    return pb.ManagedFetchRequest(
        num_requested=num_requested,
        commit_replay_id_request=pb.CommitReplayRequest(
            commit_request_id=request_id, replay_id=replay_id
        ),
    )


def until(condition: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """Return the first true value that *condition* returns; fail if there is none in *seconds*."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        threading.Event().wait(0.005)
    return found


class Process:
    """A process that runs `sfpubsub emulator`."""

    def __init__(self, data_dir: Path, *options: str, stdin: bool = False) -> None:
        code = "from sfpubsub.cli.emulator import emulator; emulator()"
        ports = ["--grpc-port", "0", "--http-port", "0", "--data-dir", str(data_dir)]
        self.popen = subprocess.Popen(
            [sys.executable, "-c", code, *ports, *options],
            stdin=subprocess.PIPE if stdin else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.ready: dict[str, str] = {}

    def wait_ready(self) -> Process:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.result()
        self.ready = json.loads(line)
        return self

    def client(self) -> Client:
        ca_file = self.ready.get("ca_file")
        return Client(
            self.ready["grpc"],
            (
                ("accesstoken", self.ready["access_token"]),
                ("instanceurl", self.ready["instance_url"]),
                ("tenantid", self.ready["tenant_id"]),
            ),
            Path(ca_file) if ca_file else None,
        )

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.result()

    def result(self) -> tuple[int, str, str]:
        """Wait for the process to exit; return its exit code, remaining stdout, and stderr."""
        out, err = self.popen.communicate(timeout=WAIT_S)
        return self.popen.returncode, out, err
