"""Threads, locks, queues and clocks in virtual time: one thread of the machine runs everything.

Each thread of the simulated programs is a greenlet. Only one runs at a time, until it waits;
`Kernel.chance`, which a seed determines, then chooses the next one. When all wait, the time moves
on to the next deadline. So a seed determines the order of everything.

`replaced` gives the modules of the library these threads, locks and clocks in place of Python's
own, so what is simulated is the library's code itself, including what its threads decide.

A `Machine` is a process of its own: a kill ends its threads where they wait. What they still do
while they unwind has no effect outside, because whoever acts for a machine asks `Machine.dead`.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import queue as real_queue
import random
import secrets
import sys
import threading as real_threading
import time as real_time
import types
import uuid as real_uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import greenlet

START = 1_800_000_000.0
"""The time at which every run begins, in seconds since the epoch, by the service's clock."""

STUCK = 20_000
"""Most switches of threads without any movement of time; far more than a busy moment takes."""


TICK = 1e-6
"""Shortest wait, in seconds: a wait that is shorter than what a clock's number shows never ends."""


class Stuck(AssertionError):  # noqa: N818 - a verdict, as `oracle.Broken`
    """Threads run without an end, although no time passes; or one waits for what cannot come."""


class Machine:
    """A process: its threads, its wall clock, and whether it was killed.

    Attributes:
        name: Unique, for the story.
        drift: How far its wall clock is ahead of the service's, in seconds.
        dead: Whether it was killed: nothing that it does has an effect any more.
        main: Its first thread, which Python calls the main thread.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.drift = 0.0
        self.dead = False
        self.tasks: dict[Task, None] = {}
        self.main: Task | None = None


class Task:
    """A thread of a machine."""

    __slots__ = (
        "alive",
        "ident",
        "joining",
        "let",
        "locals",
        "machine",
        "name",
        "thread",
        "ticket",
        "told",
    )

    def __init__(self, machine: Machine, name: str, ident: int) -> None:
        self.machine = machine
        self.name = name
        self.ident = ident
        self.thread: object = self  # what `threading.current_thread` returns
        self.alive = True
        self.joining: list[tuple[Task, int]] = []
        self.let: greenlet.greenlet | None = None
        self.locals: dict[Any, dict[str, Any]] = {}
        self.ticket = 0  # number of waits that are over; a wake-up names the wait that it ends
        self.told: bool | None = None  # how the last wait ended: woken, or its deadline passed

    def is_alive(self) -> bool:
        return self.alive


class Kernel:
    """Runs tasks, one at a time, and moves the time.

    Args:
        seed: Determines every choice.
        luck: Another number gives other choices, apart from those that others take from *seed*.
        preempt: Probability that a thread is interrupted where it takes a lock.

    Attributes:
        seed: The seed.
        now: Virtual time in seconds since the start.
        chance: Source of all random decisions of the world.
        switches: How many times a thread was chosen to run.
        failures: Errors that no thread caught, each with its task's name.
    """

    def __init__(self, seed: int, luck: int = 0, *, preempt: float = 0.01) -> None:
        self.seed = seed
        self.now = 0.0
        self.chance = random.Random(seed + (luck << 64))
        self.preempt = preempt
        self.switches = 0
        self.failures: list[tuple[str, BaseException]] = []
        self._hub = greenlet.getcurrent()
        self._ready: list[Task] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.current: Task | None = None

    # Tasks.

    def spawn(self, machine: Machine, name: str, work: Callable[[], object]) -> Task:
        """Start a thread of a machine; nothing starts on a dead one."""
        task = Task(machine, name, next(self._numbers))
        if machine.dead:
            task.alive = False
            return task

        def run() -> None:
            try:
                work()
            except greenlet.GreenletExit:
                pass
            except BaseException as error:  # noqa: BLE001  # reported
                if not machine.dead:
                    self.failures.append((f"{machine.name}/{name}", error))
            task.alive = False
            machine.tasks.pop(task, None)
            for waiter, ticket in task.joining:
                self.wake(waiter, ticket)

        task.let = greenlet.greenlet(run, self._hub)
        machine.tasks[task] = None
        if machine.main is None:
            machine.main = task
        self._ready.append(task)
        return task

    def kill(self, machine: Machine) -> None:
        """End a machine as a power cut would: its threads stop where they wait."""
        machine.dead = True
        for task in list(machine.tasks):
            if task is not self.current and task.alive:
                self._unwind(task)

    def _unwind(self, task: Task) -> None:
        task.ticket += 1
        task.alive = False
        if task in self._ready:
            self._ready.remove(task)
        before, self.current = self.current, task
        hub, self._hub = self._hub, greenlet.getcurrent()
        if task.let is not None:
            task.let.parent = self._hub
            task.let.throw()
        self._hub, self.current = hub, before
        task.machine.tasks.pop(task, None)
        task.let = None

    # Waiting. Called in tasks.

    def park(self, deadline: float | None = None) -> bool:
        """Wait until `wake` is called or a time is reached; return whether it was woken."""
        task = self.current
        if task is None:
            raise Stuck("the world itself waits for a thread")
        if task.machine.dead:
            raise greenlet.GreenletExit
        if deadline is not None:
            ticket = task.ticket
            self.at(deadline, lambda: self._over(task, ticket))
        self._hub.switch()
        if task.machine.dead:
            raise greenlet.GreenletExit
        return bool(task.told)

    def ticket(self) -> tuple[Task, int]:
        """Return what `wake` needs to end the next wait of the current task."""
        if self.current is None:
            raise Stuck("the world itself waits for a thread")
        return self.current, self.current.ticket

    def wake(self, task: Task, ticket: int) -> bool:
        """End a wait of a task; return whether it was still waiting."""
        return self._ends(task, ticket, True)

    def _over(self, task: Task, ticket: int) -> None:
        self._ends(task, ticket, False)

    def _ends(self, task: Task, ticket: int, told: bool) -> bool:
        if task.ticket != ticket or not task.alive:
            return False
        task.ticket += 1
        task.told = told
        self._ready.append(task)
        return True

    def pause(self) -> None:
        """Let other threads run first, if it is this thread's turn to be interrupted."""
        task = self.current
        if task is not None and not task.machine.dead and self.chance.random() < self.preempt:
            self._ends(task, task.ticket, True)
            self._hub.switch()
            if task.machine.dead:
                raise greenlet.GreenletExit

    def sleep(self, seconds: float) -> None:
        """Wait for some virtual seconds."""
        self.park(self.now + max(TICK, seconds))

    # The world.

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Call a function, which must not wait, at a time."""
        heapq.heappush(self._heap, (when, next(self._numbers), what))

    def run(self, until: Callable[[], bool]) -> None:
        """Run until a condition holds.

        Raises:
            Stuck: Nothing can happen any more, or threads run on although no time passes.
        """
        moved = self.switches
        while not until():
            ready = self._ready
            if ready:
                if self.switches - moved > STUCK:
                    names = sorted({f"{each.machine.name}/{each.name}" for each in ready})
                    raise Stuck(f"threads run without an end: {', '.join(names)}")
                index = int(self.chance.random() * len(ready)) if len(ready) > 1 else 0
                task = ready.pop(index)
                if not task.alive or task.let is None:
                    continue
                self.switches += 1
                self.current = task
                task.let.switch()
                self.current = None
            elif self._heap:
                when, _, what = heapq.heappop(self._heap)
                if when > self.now:
                    self.now = when
                    moved = self.switches
                what()
            else:
                raise Stuck("everything waits, and nothing is due")


class Lock:
    """As `threading.Lock`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._held = False
        self._waiting: deque[tuple[Task, int]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self._kernel
        if not self._held and kernel.preempt:
            kernel.pause()
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        deadline = None if timeout is None or timeout < 0 else kernel.now + max(timeout, TICK)
        while self._held:
            if deadline is not None and kernel.now >= deadline:
                return False
            self._waiting.append(kernel.ticket())
            kernel.park(deadline)
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        while self._waiting:
            if self._kernel.wake(*self._waiting.popleft()):
                break

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """As `threading.RLock`."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.owner: Task | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held and self.owner is self._kernel.current:
            self.depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self.owner, self.depth = self._kernel.current, 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.owner = None
            super().release()


class Condition:
    """As `threading.Condition`."""

    def __init__(self, kernel: Kernel, lock: Lock | None = None) -> None:
        self._kernel = kernel
        self._lock = lock or RLock(kernel)
        self._waiting: deque[tuple[Task, int]] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        kernel, lock = self._kernel, self._lock
        self._waiting.append(kernel.ticket())
        depth = getattr(lock, "depth", 1)
        for _ in range(depth):
            lock.release()
        try:
            return kernel.park(None if timeout is None else kernel.now + max(TICK, timeout))
        finally:
            if kernel.current is not None and not kernel.current.machine.dead:
                for _ in range(depth):
                    lock.acquire()

    def wait_for(self, condition: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else self._kernel.now + timeout
        while not (found := condition()):
            rest = None if deadline is None else deadline - self._kernel.now
            if rest is not None and rest <= 0:
                break
            self.wait(rest)
        return found

    def notify(self, n: int = 1) -> None:
        while n > 0 and self._waiting:
            if self._kernel.wake(*self._waiting.popleft()):
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """As `threading.Event`."""

    def __init__(self, kernel: Kernel) -> None:
        self._condition = Condition(kernel)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._condition.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._condition:
            return bool(self._condition.wait_for(lambda: self._is_set, timeout))


class Semaphore:
    """As `threading.BoundedSemaphore`."""

    def __init__(self, kernel: Kernel, value: int = 1) -> None:
        self._condition = Condition(kernel)
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._condition:
            if not blocking:
                timeout = 0.0
            if not self._condition.wait_for(lambda: self._value > 0, timeout):
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        self._value += n
        self._condition.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    kernel: Kernel

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[tuple[Task, int]] = deque()

    def __class_getitem__(cls, _item: Any) -> type[SimpleQueue]:
        return cls

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        while self._waiting:
            if self.kernel.wake(*self._waiting.popleft()):
                break

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        kernel = self.kernel
        deadline = None if timeout is None else kernel.now + max(timeout, TICK)
        while not self._items:
            if not block or (deadline is not None and kernel.now >= deadline):
                raise real_queue.Empty
            self._waiting.append(kernel.ticket())
            kernel.park(deadline)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Thread:
    """As `threading.Thread`, of the machine whose thread creates it."""

    kernel: Kernel

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target = target
        self._arguments = args, kwargs or {}
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self.task: Task | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._arguments[0], **self._arguments[1])

    def start(self) -> None:
        current = self.kernel.current
        assert current is not None
        self.task = self.kernel.spawn(current.machine, self.name, self.run)
        self.task.thread = self

    @property
    def ident(self) -> int | None:
        return self.task.ident if self.task is not None else None

    def is_alive(self) -> bool:
        return self.task is not None and self.task.alive

    def join(self, timeout: float | None = None) -> None:
        kernel = self.kernel
        deadline = None if timeout is None else kernel.now + max(0.0, timeout)
        while self.task is not None and self.task.alive:
            if deadline is not None and kernel.now >= deadline:
                return
            self.task.joining.append(kernel.ticket())
            kernel.park(deadline)


class _Module:
    """A stand-in for a module: what is not replaced is the module's own."""

    def __init__(self, module: types.ModuleType, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Random(random.Random):
    """The module `random`, whose functions draw from the run's seed."""

    Random = random.Random
    SystemRandom = random.Random


def _stand_ins(kernel: Kernel) -> dict[str, Any]:
    """Return what stands in for each module of Python, by name."""

    class Local:
        def __init__(self) -> None:
            object.__setattr__(self, "_key", object())

        def _values(self) -> dict[str, Any]:
            assert kernel.current is not None
            found: dict[str, Any] = kernel.current.locals.setdefault(self._key, {})
            return found

        def __getattr__(self, name: str) -> Any:
            try:
                return self._values()[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name: str, value: Any) -> None:
            self._values()[name] = value

    class KernelThread(Thread):
        pass

    class KernelQueue(SimpleQueue):
        pass

    KernelThread.kernel = KernelQueue.kernel = kernel

    def drift() -> float:
        return kernel.current.machine.drift if kernel.current is not None else 0.0

    def main_thread() -> Task | None:
        return kernel.current.machine.main if kernel.current is not None else None

    def current_thread() -> object:
        return kernel.current.thread if kernel.current is not None else None

    def start_new_thread(work: Callable[..., object], args: tuple[Any, ...], *_: Any) -> int:
        if (
            kernel.current is None
        ):  # of garbage, collected between two switches: its machine is dead
            return 0
        thread = KernelThread(target=work, args=args)
        thread.start()
        return thread.ident or 0

    chance = _Random(kernel.chance.getrandbits(64))
    threading = _Module(
        real_threading,
        Lock=lambda: Lock(kernel),
        RLock=lambda: RLock(kernel),
        Condition=lambda lock=None: Condition(kernel, lock),
        Event=lambda: Event(kernel),
        BoundedSemaphore=lambda value=1: Semaphore(kernel, value),
        Semaphore=lambda value=1: Semaphore(kernel, value),
        Thread=KernelThread,
        current_thread=current_thread,
        main_thread=main_thread,
        get_ident=lambda: kernel.current.ident if kernel.current is not None else 0,
        local=Local,
    )
    return {
        "threading": threading,
        "_thread": _Module(_thread, start_new_thread=start_new_thread),
        "queue": _Module(real_queue, SimpleQueue=KernelQueue),
        "time": _Module(
            real_time,
            monotonic=lambda: kernel.now,
            perf_counter=lambda: kernel.now,
            time=lambda: START + kernel.now + drift(),
            time_ns=lambda: int((START + kernel.now + drift()) * 1e9),
            sleep=kernel.sleep,
        ),
        "random": chance,
        "secrets": _Module(
            secrets,
            token_urlsafe=lambda count=32: f"{chance.getrandbits(64):016x}".ljust(count, "x"),
            token_hex=lambda count=32: f"{chance.getrandbits(8 * count):0{2 * count}x}",
        ),
        "uuid": _Module(
            real_uuid, uuid4=lambda: real_uuid.UUID(int=chance.getrandbits(128), version=4)
        ),
    }


# What the standard library does in the threads of its callers.
_ALSO = ("concurrent.futures._base",)


@contextlib.contextmanager
def replaced(kernel: Kernel, **names: Any) -> Iterator[None]:
    """Give the library's modules the threads, clocks and chance of *kernel*.

    Args:
        kernel: Runs everything within the block.
        names: Further values, by ``module__name``, such as ``client_connection__open_channel``.
    """
    stand_ins = _stand_ins(kernel)
    clocks = {
        real: getattr(stand_ins[module.__name__], name)
        for module, name in ((real_time, "monotonic"), (real_time, "time"), (random, "random"))
        if (real := getattr(module, name))
    }
    threading = stand_ins["threading"]
    factories = {
        id(getattr(real_threading, name)): getattr(threading, name)
        for name in ("Lock", "RLock", "Condition", "Event")
    }
    changed: list[tuple[Any, str, Any]] = []

    def put(module: types.ModuleType, name: str, value: Any) -> None:
        changed.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "sfpubsub" or name in _ALSO
    ]
    try:
        for module in modules:
            for name, real in _REAL.items():
                if module.__dict__.get(name) is real:
                    put(module, name, stand_ins[name])
            for function in _functions(module):
                # Where a dataclass has the factory of a field.
                for cell in function.__closure__ or ():
                    if cell.cell_contents is not function and id(cell.cell_contents) in factories:
                        changed.append((cell, "cell_contents", cell.cell_contents))
                        cell.cell_contents = factories[id(cell.cell_contents)]
                defaults = function.__kwdefaults__
                if defaults and not clocks.keys().isdisjoint(_hashable(defaults.values())):
                    found = {
                        name: clocks.get(value, value) if callable(value) else value
                        for name, value in defaults.items()
                    }
                    changed.append((function, "__kwdefaults__", defaults))
                    function.__kwdefaults__ = found
        for path, value in names.items():
            where, _, name = path.rpartition("__")
            put(sys.modules["sfpubsub." + where.replace("_", ".")], name, value)
        yield
        late = [
            name
            for name, module in sys.modules.items()
            if name.startswith("sfpubsub.") and module not in modules
        ]
        late = [name for name in late if {"threading", "time"} & vars(sys.modules[name]).keys()]
        if late:
            raise RuntimeError(f"loaded during the run, with Python's own clocks: {late}")
    finally:
        for module, name, value in reversed(changed):
            setattr(module, name, value)


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions and methods that a module defines: their defaults may be a clock."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for function in vars(value).values() if isinstance(value, type) else (value,):
            if isinstance(function, types.FunctionType):
                yield function


def _hashable(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if callable(value)]


_REAL: dict[str, types.ModuleType] = {
    "threading": real_threading,
    "_thread": _thread,
    "queue": real_queue,
    "time": real_time,
    "random": random,
    "secrets": secrets,
    "uuid": real_uuid,
}
