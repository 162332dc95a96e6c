"""A container for the state of one emulator, passed to the request handlers of all protocols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfpubsub.emulator.faults.plan import FaultPlan
from sfpubsub.emulator.org.accounts import Accounts
from sfpubsub.emulator.org.api_calls import ApiCalls
from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.clock import Clock
from sfpubsub.emulator.org.cometd.sessions import Cometd
from sfpubsub.emulator.org.delivery import Delivery
from sfpubsub.emulator.org.event_channels import EventChannels
from sfpubsub.emulator.org.lag import CommitHistory
from sfpubsub.emulator.org.managed import ManagedSubscriptions
from sfpubsub.emulator.org.open_streams import OpenStreams
from sfpubsub.emulator.org.records.jobs import Jobs
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.rights import Rights
from sfpubsub.emulator.org.sessions import Sessions
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.signin import SignIn
from sfpubsub.emulator.org.store import Store


@dataclass(frozen=True)
class World:
    """The state and services of one emulator, for its request handlers.

    `save` and `restore` take the name of a snapshot, and raise EmulatorProblem; `restore` returns
    the new access token, and another world is in use afterwards.
    """

    bus: Bus
    managed: ManagedSubscriptions
    clock: Clock
    settings: Settings
    faults: FaultPlan
    sessions: Sessions
    accounts: Accounts
    rights: Rights
    delivery: Delivery
    sign_in: SignIn
    cometd: Cometd
    streams: OpenStreams
    commits: CommitHistory
    records: Records
    jobs: Jobs
    store: Store
    event_channels: EventChannels
    api_calls: ApiCalls
    save: Callable[[str], None]
    restore: Callable[[str], str]
