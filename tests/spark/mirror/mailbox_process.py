"""A process that writes to or reads from a mailbox, until it is killed.

``python -m tests.spark.mirror.mailbox_process put|take DIRECTORY LOG`` puts or takes signals in an
endless loop. It writes the id of each signal to LOG after putting it, or before marking it as done.
"""

from __future__ import annotations

import os
import sys

from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal


def main() -> None:
    side, directory, log = sys.argv[1:]
    mailbox = Mailbox(None, Destination.of_tables(directory, "delta"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        if side == "put":
            signal = Signal("reread", "Account")
            mailbox.put(signal)
            os.write(descriptor, f"{signal.id}\n".encode())
        else:
            for signal in mailbox.waiting():
                os.write(descriptor, f"{signal.id}\n".encode())
                mailbox.done([signal.id])


if __name__ == "__main__":
    main()
