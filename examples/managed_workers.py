"""Handle the events of a managed subscription with eight workers, in order for each city.

    python examples/managed_workers.py My_Managed_Subscription failed-orders

An event for which the handler fails permanently is stored in the directory, with the reason;
`sfpubsub quarantine` lists these events. On SIGTERM, running handlers finish, and handled events
are committed.
"""

from __future__ import annotations

import signal
import sys

from sfpubsub import Event, FileQuarantine, PubSubClient, Retry


def handle(event: Event) -> None:
    """Handle an event; it is acked when this returns, but may be delivered again after a crash."""
    if event.value["Amount__c"] is None:
        raise ValueError("an order without an amount")
    print(event.value["Order_Number__c"], event.value["Amount__c"], flush=True)


def main() -> None:
    """Run until SIGTERM."""
    name, directory = sys.argv[1:]
    with PubSubClient.from_env() as client:
        subscription = client.subscribe_managed(name)
        signal.signal(signal.SIGTERM, lambda *_: subscription.stop())
        summary = subscription.run(
            handle,
            workers=8,
            key=lambda event: event.value["City__c"],
            retry=Retry(seconds=60, exceptions=(OSError,)),
            on_failure="quarantine",
            quarantine=FileQuarantine(directory),
        )
    print(f"handled {summary.handled}, set aside {summary.quarantined}")


if __name__ == "__main__":
    main()
