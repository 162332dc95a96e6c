"""Handle the events of a managed subscription with eight workers, in order for each city.

    python examples/managed_workers.py My_Managed_Subscription failed-orders

What a handler fails on for good goes into the directory, with its reason; `sfpubsub quarantine`
lists it. SIGTERM ends it: running handlers are finished, and what is done is committed.
"""

from __future__ import annotations

import signal
import sys

from sfpubsub import Event, FileQuarantine, PubSubClient, Retry


def handle(event: Event) -> None:
    """Do the work; when this returns, the event is done. It may come again after a crash."""
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
