"""A program of the customer: how its processes start and end, whatever it does in them."""

from __future__ import annotations

from collections import Counter

from sfpubsub.errors import SfPubSubError
from tests.simulation.kernel import Kernel, Machine
from tests.simulation.oracle import Broken
from tests.simulation.world import World

PATIENCE_S = 500.0
"""For how long a working program must bear refusals, in seconds: a little less than the
`Timings.session_budget`, which begins with the first refusal that it sees.
"""


def machine_of(kernel: Kernel) -> Machine:
    """Return the machine whose thread runs."""
    assert kernel.current is not None
    return kernel.current.machine


class Program:
    """A program, which runs until it is stopped, and is started again. A base class.

    Args:
        world: The world.
        name: Unique.

    Attributes:
        managed: Whether it reads a managed subscription.
        machine: Its process; None while none runs.
        leaving: Whether it was asked to end by itself.
        excuses: How often each exception of the guarantees page was used.
        delivered: How many events it was given.
        duplicates: How many of them again.
    """

    managed = False

    def __init__(self, world: World, name: str) -> None:
        self.world, self.kernel, self.chance = world, world.kernel, world.chance
        self.name = name
        self.machine: Machine | None = None
        self.leaving = False
        self.excuses: Counter[str] = Counter()
        self.delivered = 0
        self.duplicates = 0
        self._lives = 0

    # What an operator does.

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.machine is not None:
            return
        self._lives += 1
        self.leaving = False
        machine = self.machine = Machine(f"{self.name}.{self._lives}")
        machine.drift = self.chance.choice((0.0, -3.0, 40.0, 7200.0, -86400.0))
        self.world.tell(f"{machine.name} starts")
        self.kernel.spawn(machine, "main", lambda: self._main(machine))

    def kill(self) -> None:
        """Kill the process where it stands."""
        machine = self.machine
        if machine is None:
            return
        self.world.tell(f"{machine.name} is killed")
        self.machine = None
        self.kernel.kill(machine)
        self.world.network.hang_up(machine)

    def leave(self) -> None:
        """Ask the process to end by itself, after its next event."""
        self.leaving = True

    # The process.

    def _main(self, machine: Machine) -> None:
        error: BaseException | None = None
        try:
            self._work()
        except SfPubSubError as failure:
            error = failure
        if self.machine is machine:
            self.machine = None
        name = type(error).__name__ if error is not None else "no error"
        self.world.tell(f"{machine.name} ended with {name}: {error or ''}")
        self.world.reach(f"ended: {name}")
        if error is not None and not self._may_end_with(error):
            raise Broken(
                f"{machine.name} ended with {name}, after trouble of"
                f" {self.world.troubled_for():.0f} s: {error}"
            )
        self._ended(error)
        # As a supervisor does.
        if not self.leaving:
            self.kernel.at(self.kernel.now + self.chance.choice((1.0, 30.0, 600.0)), self.start)

    def _take_time(self) -> None:
        """Take some time with an event, as a program does; sometimes long."""
        number = self.chance.random()
        if number < 0.3:
            self.kernel.sleep(0.2 * number)
        elif number > 0.999:
            self.kernel.sleep(self.chance.choice((30.0, 250.0)))

    # What kinds of programs differ in.

    def _work(self) -> None:
        """Do what the process is for, until it is `leaving`. It may raise SfPubSubError."""
        raise NotImplementedError

    def _may_end_with(self, error: SfPubSubError) -> bool:
        """Return whether the world is such that an error may end the process."""
        raise NotImplementedError

    def _ended(self, error: BaseException | None) -> None:
        """A process has ended by itself."""

    def check(self) -> None:
        """Check what must be true at any time, once a minute.

        Raises:
            Broken: It is not.
        """

    @property
    def behind(self) -> str:
        """What is still to be done before the program has caught up; empty if it has."""
        raise NotImplementedError

    def position_lost(self, *, moved: bool = False) -> None:
        """The org drops positions: by a stop or, if *moved*, by a move to another instance."""
