"""Read a topic, keep the position in a file, end in order on SIGTERM.

    python examples/consume.py /event/Order_Event__e positions.json

A crash repeats the events since the position was stored, within the last second; nothing is lost.
Where to read and as whom is said by the SFPUBSUB_ variables, as for the command line.
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
        for batch in subscription:  # asking for the next one acks this one
            for event in batch:
                print(event.to_json(), flush=True)


if __name__ == "__main__":
    main()
