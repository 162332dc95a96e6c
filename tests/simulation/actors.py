"""Those who act on the world: publishers, the network, Salesforce, administrators, an operator.

Each is a thread of the service's machine that waits for a random time and then does something. What
it does, and when, depends only on the seed, its name, and the number of what it does.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.errors import AuthenticationError, RemoteProtocolError, StreamUnavailableError
from tests.simulation.network import PAGES
from tests.simulation.process import Program
from tests.simulation.world import DAY, HOUR, SENT, World, audit_schema

Act = tuple[str, int]
"""One thing that happens: the actor's name, and the number of what it does."""

REST = 3 * HOUR
"""How long after the last fault everything must be caught up, in seconds. The longest wait of a
client is the slot's 1,260 s; a session, a backoff and the propagation of a record come on top.
"""


@dataclass(frozen=True)
class Pace:
    """How often each thing happens: the mean time between two, in seconds; 0 for never."""

    publish: float = DAY / 20
    breaks: float = 2 * HOUR
    moods: float = 3 * HOUR
    sign_in: float = DAY
    admin: float = DAY
    moves: float = 7 * DAY
    schemas: float = 7 * DAY
    kills: float = DAY
    burst: float = 0.02
    """Probability that many events are published at once."""


YEAR = Pace()
INVALID = "FIELD_CUSTOM_VALIDATION_EXCEPTION: not valid"
"""Refuses an event for good."""

STORM = Pace(
    publish=1800.0,
    breaks=900.0,
    moods=600.0,
    sign_in=2 * HOUR,
    admin=2 * HOUR,
    moves=DAY,
    schemas=3 * HOUR,
    kills=HOUR,
    burst=0.1,
)


class Actors:
    """All who act, until `stop`.

    Args:
        world: The world.
        programs: The programs.
        pace: How often each acts.
        only: What may happen; None for everything. A story is shorter with less.
    """

    def __init__(
        self, world: World, programs: list[Program], pace: Pace, only: Iterable[Act] | None
    ) -> None:
        self.world, self.programs, self.pace = world, programs, pace
        self.kernel = world.kernel
        self.is_over = False
        self._only = only
        self._stopped: set[str] = set()
        self._version = 1  # of the schema of `SENT`
        for name, mean, act in self._all():
            if mean:
                self._begin(name, mean, act)

    def _all(self) -> list[tuple[str, float, Callable[[random.Random], None]]]:
        pace = self.pace
        return [
            ("publish", pace.publish, self._publish),
            ("breaks", pace.breaks, self._break),
            ("moods", pace.moods, self._mood),
            ("sign_in", pace.sign_in, self._sign_in),
            ("admin", pace.admin, self._administer),
            ("moves", pace.moves, self._move),
            ("schemas", pace.schemas, self._change_schema),
            ("kills", pace.kills, self._operate),
        ]

    def _begin(self, name: str, mean: float, act: Callable[[random.Random], None]) -> None:
        kernel, world = self.kernel, self.world

        only = None if self._only is None else {n for each, n in self._only if each == name}

        def work() -> None:
            due = 0.0
            for number in itertools.count() if only is None else range(max(only) + 1):
                chance = random.Random(f"{kernel.seed}/{name}/{number}")
                due += chance.expovariate(1 / mean)
                # What was due during something that took longer does not happen.
                if due > kernel.now and (only is None or number in only):
                    kernel.sleep(due - kernel.now)
                    if self.is_over:
                        return
                    world.acts.append((name, number))
                    act(chance)

        if only is None or only:
            kernel.spawn(world.service, name, work)

    def stop(self) -> None:
        """End all faults: from now on, everything works."""
        world = self.world
        self.is_over = True
        world.network.down = world.login_down = 0.0
        world.network.page = None
        world.tell("everything works from now on")
        for name in sorted(self._stopped):
            self._run_again(name)
        for program in self.programs:
            program.leaving = False
            program.start()

    # What they do.

    def _publish(self, chance: random.Random) -> None:
        count = 1
        if chance.random() < self.pace.burst:
            count = chance.choice((5, 100, 300))
        self.world.publish(count)
        self.world.publish_news(count)
        if count > 1:
            self.world.tell(f"{count} events are published")

    def _break(self, chance: random.Random) -> None:
        world, kernel = self.world, self.kernel
        names = [each.machine.name for each in self.programs if each.machine is not None]
        what = chance.random()
        if what < 0.35:
            name = chance.choice([None, *names])
            world.tell(f"connections of {name or 'all'} are reset")
            if world.network.reset(name):
                world.reach("reset")
        elif what < 0.55 and names:
            name = chance.choice(names)
            world.tell(f"the connection of {name} falls silent")
            if world.network.silence(name):
                world.reach("half-open")
        elif what < 0.8:
            seconds = chance.choice((1.0, 20.0, 300.0, 3600.0))
            if chance.random() < 0.01:
                seconds = 80 * HOUR
                world.reach("outage beyond the retention")
            world.tell(f"the service is down for {seconds:g} s")
            world.network.down = max(world.network.down, world.trouble(seconds))
            world.network.reset()
            world.reach("service down")
        else:
            world.network.page = chance.choice(PAGES)
            world.tell(f"a proxy answers with a page: {world.network.page[1]}")
            world.network.reset()
            kernel.sleep(world.trouble(chance.choice((1.0, 60.0, 500.0))) - kernel.now)
            world.network.page = None
            world.reach("proxy page")

    def _mood(self, chance: random.Random) -> None:
        faults = self.world.org.faults
        kinds: list[tuple[str, dict[str, object]]] = [
            ("fail_commit", {}),
            ("drop_before_commit_answer", {}),
            ("leave_commit_unanswered", {}),
            ("coalesce_commits", {}),
            ("answer_with_events", {}),
            ("shape_commit_answer", {"tip": chance.choice(("none", "sent", "org"))}),
            ("shape_commit_answer", {"pending": False}),
            ("hold_slot", {"seconds": chance.choice((5.0, 100.0, 1200.0))}),
            ("split_response", {}),
            ("merge_responses", {}),
            ("withhold_keepalive", {}),
            ("move_keepalive_tip", {"advance": chance.choice((0, 3))}),
            ("drop_call", {}),
            ("drop_call", {"status": "RESET"}),
            ("delay_call", {"seconds": chance.choice((1.0, 25.0, 100.0))}),
            ("drop_stream", {"status": "OK"}),
            ("refuse", {}),
            ("lose_answer", {"after_responses": chance.choice((0, 0, 1))}),
            ("lose_answer", {"status": "RESET"}),
            ("cut_poll", {"with_events": chance.random() < 0.7}),
            ("end_cometd_session", {}),
            ("say_goodbye", {}),
            ("answer_with_page", {"status": chance.choice((500, 503))}),
            ("drip_answer", {"seconds": chance.choice((1.0, 30.0))}),
            ("refuse_message", {}),
            ("refuse_message", {"text": "503::Server is too busy", "reconnect": "none"}),
            ("refuse_event", {}),
            ("refuse_event", {"text": INVALID}),
        ]
        kind, params = chance.choice(kinds)
        self.world.tell(f"the service is in the mood for {kind} {params or ''}")
        faults.add(Fault(kind, times=chance.choice((1, 1, 3)), **params))
        self.world.reach(f"mood: {kind}")
        if kind == "lose_answer" and chance.random() < 0.5:
            self.world.then_refuse = Fault("refuse_event", text=INVALID)

    def _sign_in(self, chance: random.Random) -> None:
        world = self.world
        what = chance.random()
        if what < 0.3:
            world.tell("all sessions expire")
            world.end_sessions(expired=True)
        elif what < 0.5:
            world.tell("all sessions are revoked")
            world.end_sessions(expired=False)
        else:
            failure, text = chance.choice(
                (
                    (StreamUnavailableError, "the login host did not answer"),
                    (RemoteProtocolError, "the login host returned status 200 with HTML"),
                    (AuthenticationError, "the login host refused the sign-in: invalid_grant"),
                )
            )
            seconds = chance.choice((5.0, 100.0, 500.0))
            world.tell(f"for {seconds:g} s, {text}")
            world.login_failure = lambda: failure(text)
            world.login_down = world.trouble(seconds)
            if chance.random() < 0.7:
                world.end_sessions(expired=True)

    def _administer(self, chance: random.Random) -> None:
        world, kernel = self.world, self.kernel
        managed = [each for each in self.programs if each.managed]
        if not managed:
            return
        program = chance.choice(managed)
        name = program.name
        if name in self._stopped:
            return
        world.tell(f"an administrator stops {name}")
        self._change(name, "STOP")
        program.position_lost()
        self._stopped.add(name)
        kernel.sleep(chance.choice((0.5, 30.0, 1000.0, 5 * HOUR)))
        if not self.is_over:
            self._run_again(name)

    def _run_again(self, name: str) -> None:
        self.world.tell(f"an administrator starts {name}")
        for program in self.programs:
            if program.name == name:
                program.position_lost()
        self._change(name, "RUN")
        self._stopped.discard(name)

    def _change(self, name: str, state: str) -> None:
        managed = self.world.org.managed
        record = managed.get(name)
        assert record is not None
        managed.change(
            record.subscription_id,
            label=record.label,
            default_replay=record.default_replay,
            error_recovery_replay=record.error_recovery_replay,
            state=state,  # type: ignore[arg-type]
        )

    def _move(self, chance: random.Random) -> None:
        world = self.world
        world.tell("the org is moved to another instance")
        down = world.trouble(chance.choice((0.0, 60.0, 1800.0)))
        world.network.down = max(world.network.down, down)
        world.org.bus.move()
        world.renumbered()
        for program in self.programs:
            program.position_lost(moved=True)
        world.network.reset()
        world.reach("org moved")

    def _change_schema(self, chance: random.Random) -> None:
        self._version = self._version % 3 + 1
        self.world.tell(f"the schema of {SENT} is now version {self._version}")
        self.world.org.bus.change_schema(SENT, audit_schema(self._version))
        self.world.reach("schema changed")

    def _operate(self, chance: random.Random) -> None:
        kernel = self.kernel
        program = chance.choice(self.programs)
        if program.machine is None:
            return
        if chance.random() < 0.6:
            program.kill()
        else:
            self.world.tell(f"{program.name} is asked to end")
            program.leave()
        seconds = chance.choice((0.1, 3.0, 200.0, 3 * HOUR))
        if chance.random() < 0.01:
            seconds = 80 * HOUR
        kernel.sleep(seconds)
        if not self.is_over:
            program.start()
