"""Loads a checked seed into an emulator."""

from __future__ import annotations

import json

from sfpubsub.emulator.org.accounts import Accounts
from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.managed import ManagedSubscriptions
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.seed import Seed
from sfpubsub.emulator.org.store import Store


def plant(
    seed: Seed,
    store: Store,
    bus: Bus,
    managed: ManagedSubscriptions,
    accounts: Accounts,
    records: Records,
) -> None:
    """Load a seed into an emulator. Existing topics, objects, channels, users and apps are updated
    to match the seed; those that the seed does not name are kept. Managed subscriptions and events
    are created once for each data directory.

    Raises:
        EmulatorProblem: An existing object cannot be changed to match the seed.
    """
    for arguments in seed.users:
        accounts.put_user(**arguments)
    for arguments in seed.apps:
        accounts.put_app(**arguments)
    made_from = {item.topic for item in seed.objects}
    for name, schema, can_publish, can_subscribe in seed.topics:
        if name not in made_from:  # the others are created with their objects
            bus.put_topic(name, schema, can_publish=can_publish, can_subscribe=can_subscribe)
    for item in seed.objects:
        try:
            records.put_object(item)
        except ValueError as error:
            raise EmulatorProblem(
                f"the seed cannot be applied to this data directory: {error}"
            ) from error
    for name, members in seed.channels:
        bus.put_channel(name, members)
    seeded = set(json.loads(store.meta("seeded", "[]")))
    for arguments in seed.managed:
        name = arguments["developer_name"]
        if f"managed:{name}" not in seeded and managed.get(name) is None:
            managed.create(**arguments)
        seeded.add(f"managed:{name}")
    if "events" not in seeded:
        for topic, values in seed.events:
            bus.publish_values(topic, [values])
        seeded.add("events")
    store.set_meta("seeded", json.dumps(sorted(seeded)))
