"""Read a topic, keep the position in a file, and shut down cleanly on SIGTERM.

    python examples/consume.py /event/Order_Event__e positions.json

After a crash, the events of about the last second, since the position was stored, are delivered
again; nothing is lost. The SFPUBSUB_ variables set the org and the credentials, as for the command
line.
"""

from __future__ import annotations

import signal
import sys

from sfpubsub import FileReplayStore, PubSubClient


def main() -> None:
    """Print each event as a line of JSON, until SIGTERM or Ctrl-C."""
    topic, positions = sys.argv[1:]
    with (
        FileReplayStore(positions) as store,
        PubSubClient.from_env() as client,
        client.subscribe(topic, replay="earliest", replay_store=store) as subscription,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: subscription.stop())
        for batch in subscription:  # asking for the next batch acks this one
            for event in batch:
                print(event.to_json(), flush=True)


if __name__ == "__main__":
    main()
