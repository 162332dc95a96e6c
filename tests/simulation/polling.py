"""HTTP between the CometD client and the org, without sockets, with the faults of the network.

`Connection` stands in for the library's `HttpConnection`; the requests are answered by the
emulator's own handler.
"""

from __future__ import annotations

from collections import deque
from email.message import Message
from http import HTTPStatus
from typing import Any

from sfpubsub.auth.http import Answer, Bearer
from sfpubsub.emulator.http import cometd
from sfpubsub.emulator.http.exchange import Answer as Reply
from sfpubsub.emulator.http.exchange import Call
from sfpubsub.errors import SfPubSubError, StreamUnavailableError
from tests.simulation.kernel import Machine, Task
from tests.simulation.network import Network, Status

HOST = "org.example.com"

_PAGE = b"<html><body>Not the service.</body></html>"


class Request:
    """One HTTP request, from its start to its response.

    Args:
        network: The network.
        machine: Whose request it is.
    """

    def __init__(self, network: Network, machine: Machine) -> None:
        self.network, self.kernel, self.machine = network, network.kernel, machine
        self._waiting: list[tuple[Task, int]] = []
        self._outcome: Answer | SfPubSubError | None = None
        self._silent = False

    def answer(self, call: Call, timeout: float) -> Answer:
        """Send it, and wait for the response.

        Raises:
            StreamUnavailableError: There is none.
        """
        network, kernel = self.network, self.kernel
        network.counts[self.machine.name, "HTTP"] += 1
        network.opened.setdefault(self.machine.name, deque(maxlen=200)).append(kernel.now)
        network.calls[self] = None
        kernel.at(kernel.now + timeout, lambda: self.end("the response took too long"))
        if not network.is_up:
            self._after(kernel.chance.choice((0.01, 1.0, 20.0)), lambda: self.end("no route"))
        elif network.page is not None:
            status = kernel.chance.choice((HTTPStatus.OK, HTTPStatus.FORBIDDEN, HTTPStatus(503)))
            self._after(0.1, lambda: self._arrived(Answer(status, _PAGE, HOST)))
        else:
            self._after(network.delay(), lambda: self._serve(call))
        while self._outcome is None:
            self._waiting.append(kernel.ticket())
            kernel.park()
        if isinstance(self._outcome, SfPubSubError):
            raise self._outcome
        return self._outcome

    # What the network does. None of these waits.

    def lose(self, _status: Status, _service_after: float) -> None:
        """End the request for the client: its connection is reset."""
        self.end("the connection was reset")

    def silence(self, _service_after: float) -> None:
        """Drop everything from now on; the client waits for its timeout."""
        self._silent = True

    def end(self, reason: str) -> None:
        """End the request for the client, without a response."""
        self._finish(StreamUnavailableError(f"{HOST} did not answer: {reason}"))

    def _serve(self, call: Call) -> None:
        if not self._silent:  # a request whose client is gone is served all the same
            self.kernel.spawn(self.network.service, "cometd", lambda: self._work(call))

    def _work(self, call: Call) -> None:
        reply: Reply = cometd.answer(call)
        seconds = self.network.delay() + reply.drip_s
        if reply.reset:
            self._after(seconds, lambda: self.end("the connection was reset"))
            return
        headers = {name.lower(): value for name, value in reply.headers.items()}
        found = Answer(int(reply.status), reply.text.encode(), HOST, headers)
        self._after(seconds, lambda: self._arrived(found))

    def _arrived(self, answer: Answer) -> None:
        if not self._silent:
            self._finish(answer)

    def _finish(self, outcome: Answer | SfPubSubError) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self.network.calls.pop(self, None)
            while self._waiting:
                self.kernel.wake(*self._waiting.pop())

    def _after(self, seconds: float, what: Any) -> None:
        self.kernel.at(self.kernel.now + seconds, what)


class Connection:
    """As `sfpubsub.auth.http_connection.HttpConnection`.

    Args:
        network: The network.
        org: The emulator's state.
        cookies: Shared by the connections of one client.
    """

    def __init__(self, network: Network, org: Any, cookies: Any) -> None:
        self._network = network
        self._org = org
        self._cookies: dict[str, str] = vars(cookies).setdefault("of_simulation", {})
        self._is_cut = True
        self._request: Request | None = None

    def ready(self) -> None:
        """From now on, `cut` aborts the next request."""
        self._is_cut = False

    def post(self, bearer: Bearer, path: str, body: bytes, timeout: float) -> Answer:
        """Send a request, and wait for the response."""
        current = self._network.kernel.current
        assert current is not None
        headers = Message()
        headers["Authorization"] = f"Bearer {bearer.token}"
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        version = path.rpartition("/")[2]
        call = Call(self._org, "POST", path, "", headers, body, parts={"version": version})
        if self._is_cut:
            raise StreamUnavailableError("the request was cut")
        request = self._request = Request(self._network, current.machine)
        answer = request.answer(call, timeout)
        cookie = answer.headers.get("set-cookie", "")
        if cookie:
            name, _, value = cookie.partition(";")[0].partition("=")
            self._cookies[name] = value
        return answer

    def cut(self) -> None:
        """Abort the request in flight, or the one about to be sent."""
        self._is_cut = True
        if self._request is not None:
            self._request.end("the request was cut")

    def drop(self) -> None:
        """Close the connection."""
        self._is_cut = True
