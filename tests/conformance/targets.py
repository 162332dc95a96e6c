"""Two services that the scenarios run against: the emulator, and a small in-memory service.

Both support the same faults and count them. Events are numbered from 0 in order of publication;
`committed` returns such a number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sfpubsub.auth.session import Session
from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.types import ReplayId

from .memory_service import MemoryService

TOPIC = "/event/Order_Event__e"
NAME = "My_Managed_Subscription"


class Target(ABC):
    """A service that scenarios run against."""

    name = ""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the arguments for creating a client of this service."""

    @abstractmethod
    def publish(self, count: int) -> None:
        """Publish the next *count* events."""

    @abstractmethod
    def plan(self, kind: str, *, times: int = 1, **params: Any) -> None:
        """Plan a fault that is triggered *times* times."""

    @abstractmethod
    def is_consumed(self) -> bool:
        """Return whether every planned fault has been triggered."""

    @abstractmethod
    def committed(self) -> int | None:
        """Return the number of the last committed event, or None if nothing is committed."""

    @abstractmethod
    def replay_id(self, number: int) -> ReplayId:
        """Return the position of event *number*."""

    @abstractmethod
    def stop_subscription(self) -> None:
        """Set the managed subscription to STOP."""


class EmulatorTarget(Target):
    """The emulator, over gRPC on loopback."""

    name = "emulator"

    def __init__(self, data_dir: Any, **settings: Any) -> None:
        self.faults = FaultPlan()
        self.emulator = EmulatorServer(data_dir, settings=Settings(**settings), faults=self.faults)
        self.emulator.start()
        self._ids: list[bytes] = []

    def close(self) -> None:
        self.emulator.stop()

    def arguments(self) -> dict[str, Any]:
        emulator = self.emulator
        return {
            "session": Session(emulator.access_token, emulator.instance_url, emulator.tenant_id),
            "endpoint": emulator.grpc_target,
            "insecure": "1",
        }

    def publish(self, count: int) -> None:
        first = len(self._ids)
        rows = [{"Order_Number__c": str(first + index)} for index in range(count)]
        self._ids += [result.replay_id for result in self.emulator.publish(TOPIC, rows)]

    def plan(self, kind: str, *, times: int = 1, **params: Any) -> None:
        self.faults.add(Fault(kind, times=times, **params))

    def is_consumed(self) -> bool:
        try:
            self.faults.assert_consumed()
        except AssertionError:
            return False
        return True

    def committed(self) -> int | None:
        position = self.emulator.managed.get(NAME).committed
        if position is None:
            return None
        replay_id = self.emulator.bus.ids.mint(position)
        return self._ids.index(replay_id) if replay_id in self._ids else None

    def replay_id(self, number: int) -> ReplayId:
        return ReplayId(self._ids[number])

    def stop_subscription(self) -> None:
        self.emulator.managed.set_state(NAME, "STOP")


class MemoryTarget(Target):
    """The in-memory service defined in `memory_service`."""

    name = "memory"

    def __init__(self, _data_dir: Any = None, **settings: Any) -> None:
        self.service = MemoryService(**settings)

    def close(self) -> None:
        self.service.close()

    def arguments(self) -> dict[str, Any]:
        return {"session": Session("t", "https://x", "o"), "transport": self.service}

    def publish(self, count: int) -> None:
        self.service.append(count)

    def plan(self, kind: str, *, times: int = 1, **params: Any) -> None:
        self.service.plan(kind, times, params)

    def is_consumed(self) -> bool:
        return not any(self.service.faults.values())

    def committed(self) -> int | None:
        number = self.service.committed
        return None if number < 0 else number

    def replay_id(self, number: int) -> ReplayId:
        return self.service.mint(number)

    def stop_subscription(self) -> None:
        self.service.stop_subscription()
